import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import filtergroups as fg
from filtergroups.groups.assignment import Assignment, entropy, initial_probabilities
from tests.laws import generator

ESTIMATORS = ["soft", "straight_through", "gumbel_rao"]
HARD = ["straight_through", "gumbel_rao"]
TWO = fg.family(["age", "gender"])


def learned(rows, family=TWO):
    return Assignment(family, torch.tensor(rows, dtype=torch.float64), "learned")


@pytest.mark.parametrize("scheme", ["shared", "specific", "random", "mask"])
@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
@pytest.mark.parametrize("groups", ["tasks+shared", "all_subsets"])
def test_p_starts_exactly_where_asked(scheme, tasks, groups):
    family = fg.family([f"t{n}" for n in range(tasks)], groups)
    asked = initial_probabilities(family, 13, scheme, generator())
    found = Assignment(family, asked).probabilities()
    torch.testing.assert_close(found, asked, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones(13, dtype=torch.float64))


def test_the_paper_s_initialisations_for_two_tasks():
    def first_row(scheme):
        return initial_probabilities(TWO, 9, scheme)[0].tolist()

    assert first_row("shared") == pytest.approx([0.2, 0.2, 0.6])
    assert first_row("specific") == pytest.approx([0.45, 0.45, 0.1])
    assert initial_probabilities(TWO, 9, "mask").argmax(1).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_random_initialisation_is_uniform_on_the_simplex():
    rows = initial_probabilities(TWO, 20_000, "random", generator())
    # Each coordinate of Dirichlet(1, 1, 1) is Beta(1, 2).
    for column in rows.t():
        assert stats.kstest(column.numpy(), stats.beta(1, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.1])
def test_without_noise_a_gate_is_p_and_sharper_as_the_temperature_falls(temperature):
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    gate = learned(p.tolist()).sample(temperature, generator(), noise=0.0)
    sharpened = p ** (1 / temperature)
    torch.testing.assert_close(gate[0].t(), sharpened / sharpened.sum(-1, keepdim=True))


def test_less_noise_is_less_spread():
    drawn = {
        noise: torch.cat([learned([[0.5, 0.3, 0.2]]).sample(1.0, generator(n), noise=noise) for n in range(400)])
        for noise in (0.0, 0.3, 1.0)
    }
    spread = [gates.std(0).mean().item() for gates in drawn.values()]
    assert spread[0] < 1e-12 < 2 * spread[1] < spread[2]


def test_gumbel_rao_refuses_less_noise():
    with pytest.raises(ValueError, match=r"full noise, found noise 0\.5; use soft"):
        learned([[0.5, 0.3, 0.2]]).sample(1.0, generator(), estimator="gumbel_rao", noise=0.5)


def test_entropy_is_zero_at_a_vertex_and_largest_at_uniform():
    assert entropy(torch.tensor([1.0, 0.0, 0.0])).item() == 0
    assert entropy(torch.full((3,), 1 / 3)).item() == pytest.approx(math.log(3))


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3))
def test_entropy_lies_between(weights):
    p = torch.tensor(weights, dtype=torch.float64)
    assert 0 <= entropy(p / p.sum()).item() <= math.log(3) + 1e-12


@pytest.mark.parametrize("estimator", HARD)
def test_sampled_group_frequencies_match_p(estimator):
    p = [0.5, 0.15, 0.35]
    assignment = learned([p] * 1000)
    counts = np.zeros(3)
    for seed in range(4):
        gates = assignment.sample(0.5, generator(seed), estimator=estimator, examples=25)
        assert gates.shape == (25, 3, 1000)
        assert torch.equal(gates.detach(), gates.detach().round())
        counts += gates.detach().sum((0, 2)).numpy()
    assert counts.sum() == 100_000
    assert stats.chisquare(counts, 100_000 * np.array(p)).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_soft_samples_average_to_an_independent_computation(temperature):
    """E of a Gumbel-softmax coordinate for two groups by quadrature: the difference of two Gumbels is logistic."""
    family = fg.Family(("a", "b"), (frozenset("a"), frozenset("ab")))
    p = 0.3
    assignment = learned([[p, 1 - p]] * 2000, family)
    found = assignment.sample(temperature, generator(), examples=50).detach()[:, 0].mean().item()
    noise = stats.logistic.ppf((np.arange(200_000) + 0.5) / 200_000)
    expected = (1 / (1 + np.exp(-(math.log(p / (1 - p)) + noise) / temperature))).mean()
    assert found == pytest.approx(expected, abs=4e-3)  # 4 standard errors of 10^5 draws


def test_soft_gates_lie_on_the_simplex_and_vertices_stay():
    gates = learned([[0.2, 0.2, 0.6]] * 50).sample(0.7, generator(), examples=9).detach()
    torch.testing.assert_close(gates.sum(1), torch.ones(9, 50, dtype=torch.float64))
    at_vertex = Assignment(TWO, torch.tensor([[1.0, 0.0, 0.0]]), "constant").sample(1.0, generator(), examples=200)
    assert at_vertex[:, 0].min() > 0.999


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_gate_a_batch_and_one_an_example_have_the_same_expectation(estimator):
    assignment = learned([[0.5, 0.1, 0.4]] * 400)
    g = generator()
    per_batch = torch.cat([assignment.sample(0.5, g, estimator=estimator).detach() for _ in range(50)])
    per_example = assignment.sample(0.5, g, estimator=estimator, examples=50).detach()
    assert per_batch.shape == per_example.shape
    torch.testing.assert_close(per_batch.mean((0, 2)), per_example.mean((0, 2)), atol=0.015, rtol=0)


def exact_and_estimated_gradients(estimator, draws=20_000, temperature=0.5):
    """The gradient of E[f(z)] for two kernels: by enumerating all assignments, and by each draw of an estimator."""
    rows = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]], dtype=torch.float64)
    value = torch.randn(3, 3, generator=generator(7), dtype=torch.float64)

    def f(gate):  # … × 2 kernels × 3 groups; a bilinear form and a square, exact on vertices and smooth between
        one, two = gate.unbind(-2)
        return ((one @ value) * two).sum(-1) + (one @ value.diag()) ** 2

    assignment = Assignment(TWO, rows, "learned")
    p = assignment.probabilities()
    exact = torch.zeros((), dtype=torch.float64)
    for groups in itertools.product(range(3), repeat=2):
        gate = torch.zeros(2, 3, dtype=torch.float64)
        gate[0, groups[0]] = gate[1, groups[1]] = 1
        exact = exact + p[0, groups[0]] * p[1, groups[1]] * f(gate)
    (expected,) = torch.autograd.grad(exact, assignment.rho)
    # A copy of the two kernels for every draw, so that one backward pass gives each draw's own gradient.
    copies = Assignment(TWO, rows.repeat(draws, 1), "learned")
    gates = copies.sample(temperature, generator(1), estimator=estimator)[0].t().reshape(draws, 2, 3)
    (estimates,) = torch.autograd.grad(f(gates).sum(), copies.rho)
    return expected, estimates.reshape(draws, 2, 3)


def test_gradient_estimators_against_exact_enumeration(record_property):
    found = {}
    for estimator in ESTIMATORS:
        expected, estimates = exact_and_estimated_gradients(estimator)
        bias = (estimates.mean(0) - expected).norm() / expected.norm()
        variance = estimates.var(0).sum()
        found[estimator] = (bias.item(), variance.item())
        record_property(f"{estimator}_relative_bias", bias.item())
        record_property(f"{estimator}_variance", variance.item())
        print(f"{estimator:17} relative bias {bias:.3f}  variance {variance:.4f}")
        cosine = torch.nn.functional.cosine_similarity(estimates.mean(0).flatten(), expected.flatten(), dim=0)
        assert cosine > 0.9, f"{estimator} points elsewhere than the exact gradient"
    assert found["gumbel_rao"][1] < 0.9 * found["straight_through"][1]


def test_gumbel_rao_has_the_mean_of_straight_through():
    _, one = exact_and_estimated_gradients("straight_through")
    _, two = exact_and_estimated_gradients("gumbel_rao")
    error = (one.var(0) / len(one) + two.var(0) / len(two)).sqrt()
    assert ((one.mean(0) - two.mean(0)).abs() < 4 * error).all()


def test_a_vanishing_probability_keeps_a_gradient_and_no_nan():
    assignment = learned([[0.2, 0.2, 0.6]])
    with torch.no_grad():
        assignment.rho.copy_(torch.tensor([[-60.0, -3.0, 2.0]]))
    for estimator in ESTIMATORS:
        gate = assignment.sample(0.1, generator(), estimator=estimator)
        (gradient,) = torch.autograd.grad(gate[0, 1].sum(), assignment.rho)
        assert torch.isfinite(gradient).all()
    log_p = assignment.log_probabilities()
    assert torch.isfinite(log_p).all()
    torch.testing.assert_close(log_p.exp(), assignment.probabilities(), rtol=1e-6, atol=1e-12)


def test_fixing_puts_each_kernel_in_its_most_probable_group():
    assignment = learned([[0.2, 0.2, 0.6], [0.7, 0.2, 0.1]])
    assignment.fix()
    assert assignment.kind == "fixed"
    assert assignment.probabilities().tolist() == [[0, 0, 1], [1, 0, 0]]
    assert not list(assignment.parameters())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Assignment(TWO, torch.full((4, 2), 0.5)), "3 groups"),
        (lambda: Assignment(TWO, torch.full((4, 3), 0.5)), "sums to 1"),
        (lambda: Assignment(TWO, torch.tensor([[1.5, -0.5, 0.0]])), "not negative"),
        (lambda: Assignment(TWO, torch.full((4, 3), 1 / 3), "fixed"), "one-hot"),
        (lambda: Assignment(TWO, torch.full((4, 3), 1 / 3), "frozen"), "'frozen'"),
        (lambda: learned([[0.2, 0.2, 0.6]]).sample(0, generator()), "above 0"),
        (lambda: learned([[0.2, 0.2, 0.6]]).sample(-1, generator()), "above 0"),
        (lambda: learned([[0.2, 0.2, 0.6]]).sample(float("nan"), generator()), "above 0"),
        (lambda: learned([[0.2, 0.2, 0.6]]).sample(1, generator(), estimator="reinmax"), "'reinmax'"),
        (lambda: learned([[0.2, 0.2, 0.6]]).fix(torch.tensor([3])), "to below 3"),
        (lambda: initial_probabilities(TWO, 3, "even"), "'even'"),
        (lambda: fg.anneal(0, floor=0.0), "0 < floor"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, said):
    with pytest.raises(ValueError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_annealing_follows_the_paper():
    assert fg.anneal(0) == 1
    assert fg.anneal(100_000) == pytest.approx(math.exp(-1))
    assert fg.anneal(10**7) == 0.1
    assert fg.anneal(100, start=0.5, rate=0.01) == pytest.approx(0.5 * math.exp(-1))
