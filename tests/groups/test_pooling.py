"""What the kernels of a layer learn together, and how many of them each group gets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from filtergroups.groups.assignment import Assignment, in_proportion, initial_probabilities
from filtergroups.groups.routing import family

FAMILY = family(["a", "b", "c"], "tasks+shared")


def pooled(kernels: int = 5) -> Assignment:
    return Assignment(
        FAMILY, initial_probabilities(FAMILY, kernels, "random", torch.Generator().manual_seed(0)), pooled=True
    )


def test_a_pooled_assignment_starts_where_it_was_asked_to():
    probabilities = initial_probabilities(FAMILY, 5, "random", torch.Generator().manual_seed(0))
    torch.testing.assert_close(Assignment(FAMILY, probabilities, pooled=True).probabilities(), probabilities)


def test_the_common_part_moves_all_kernels_and_gets_the_gradient_of_all():
    one = pooled()
    weights = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (one.log_probabilities() * weights).sum().backward()
    torch.testing.assert_close(one.common.grad, one.rho.grad.sum(0))
    before = one.probabilities().detach().clone()
    with torch.no_grad():
        one.common[2] += 1.0
    assert (one.probabilities()[:, 2] > before[:, 2]).all()
    assert (one.probabilities()[:, [0, 1, 3]] < before[:, [0, 1, 3]]).all()
    torch.testing.assert_close(one.log_probabilities().exp(), one.probabilities())
    assert torch.equal(one.mode(), one.probabilities().argmax(-1))


@pytest.mark.parametrize("kind", ["constant", "fixed"])
def test_what_is_not_learned_has_no_common_part(kind):
    probabilities = initial_probabilities(FAMILY, 3, "uniform")
    if kind == "fixed":
        probabilities = torch.eye(4, dtype=torch.float64)[:3]
    assert list(Assignment(FAMILY, probabilities, kind, pooled=True).parameters()) == []


def test_a_fixed_assignment_has_no_parameter_left():
    one = pooled()
    mode = one.mode()
    one.fix()
    assert list(one.parameters()) == []
    assert torch.equal(one.mode(), mode)
    assert set(one.state_dict()) == {"rho"}


def test_a_state_without_a_common_part_is_that_of_kernels_for_themselves():
    alone = Assignment(FAMILY, initial_probabilities(FAMILY, 5, "specific"))
    one = pooled()
    with torch.no_grad():
        one.common += 3
    one.load_state_dict(alone.state_dict())
    torch.testing.assert_close(one.probabilities(), alone.probabilities())


@given(
    kernels=st.integers(1, 40),
    shares=st.lists(st.floats(0, 1), min_size=2, max_size=6).filter(lambda of: sum(of) > 0.1),
    seed=st.integers(0, 99),
)
def test_every_group_gets_its_share_of_the_kernels(kernels, shares, seed):
    preferences = torch.rand(kernels, len(shares), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    wanted = torch.tensor(shares, dtype=torch.float64)
    counts = torch.bincount(in_proportion(preferences, wanted), minlength=len(shares))
    assert counts.sum() == kernels
    assert ((counts - kernels * wanted / wanted.sum()).abs() < 1 + 1e-9).all()


def test_a_group_gets_the_kernels_that_are_surest_of_it():
    probabilities = torch.tensor(
        [[0.9, 0.05, 0.05, 0.0], [0.1, 0.8, 0.1, 0.0], [0.9, 0.1, 0.0, 0.0], [0.2, 0.1, 0.7, 0.0]]
    )
    one = Assignment(FAMILY, probabilities.double())
    assert one.by_proportions().tolist() == [0, 1, 0, 2]


def test_undecided_kernels_are_shared_out_though_their_modes_are_all_the_same():
    probabilities = torch.tensor([[0.48, 0.52, 0.0, 0.0]]).repeat(10, 1)
    one = Assignment(FAMILY, probabilities.double())
    assert set(one.mode().tolist()) == {1}
    assert torch.bincount(one.by_proportions()).tolist() == [5, 5]
