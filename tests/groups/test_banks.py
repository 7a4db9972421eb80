"""Banks of kernels of its own for every group, while groups are learned."""

import pytest
import torch
from torch import nn

import filtergroups as fg
from tests.laws import generator, randomise

TASKS = (fg.Regression("age"), fg.Classification("gender", classes=2))


def backbone() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 5, 2, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def network(**options: object) -> fg.GroupedNetwork:
    torch.manual_seed(0)
    plain = backbone().double()
    image = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    return fg.lift(plain, TASKS, example=image, **{"init": "uniform", **options})  # type: ignore[arg-type]


IMAGES = torch.randn(7, 3, 12, 12, dtype=torch.float64, generator=generator(1))


def gates_of(net: fg.GroupedNetwork, **how: float) -> dict[str, torch.Tensor]:
    return net(IMAGES, temperature=how.get("temperature", 1.0), generator=generator(2))


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("groups", ["tasks+shared", [["age", "gender"], ["gender"]]])
def test_as_long_as_the_banks_are_equal_they_give_what_one_bank_gives(per_example, temperature, groups):
    one = network(per_example=per_example, groups=groups)
    own = network(per_example=per_example, groups=groups, own_banks=True)
    assert own.backbone[0].weight.shape[0] == len(own.family) * 6
    for net in (one, own):
        torch.stack(
            [found.square().sum() for found in gates_of(net, temperature=temperature).values()]
        ).sum().backward()
    for a, b in zip(
        gates_of(one, temperature=temperature).values(), gates_of(own, temperature=temperature).values(), strict=True
    ):
        torch.testing.assert_close(a, b)
    # The gradient of the one bank is the sum of those of all banks, and p has the same.
    for layer, of_own in zip(one.grouped_layers(), own.grouped_layers(), strict=True):
        axis = layer.kernel_axis
        parts = of_own.weight.grad.unflatten(axis, (len(own.family), layer.kernels))
        torch.testing.assert_close(layer.weight.grad, parts.sum(axis))
        torch.testing.assert_close(layer.assignment.rho.grad, of_own.assignment.rho.grad)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_a_bank_is_reached_by_the_tasks_of_its_group_alone(temperature):
    net = network(own_banks=True, per_example=True)
    net.zero_grad()
    gates_of(net, temperature=temperature)["age"].sum().backward()
    for layer in net.grouped_layers():
        parts = layer.weight.grad.unflatten(layer.kernel_axis, (len(net.family), layer.kernels))
        reached = [bool(part.any()) for part in parts.unbind(layer.kernel_axis)]
        assert reached == ["age" in group for group in net.family.sets]


@pytest.mark.parametrize("how", ["mode", "proportions", None])
def test_fixed_each_kernel_keeps_what_its_own_group_has_trained(how):
    net = network(own_banks=True)
    randomise(net, 3)
    with torch.no_grad():
        for assignment in net.assignments():
            assignment.rho.copy_(torch.randn(assignment.rho.shape, generator=generator(4)))
    banks = [layer.weight.detach().unflatten(layer.kernel_axis, (3, -1)) for layer in net.grouped_layers()]
    net.eval()
    before = net(IMAGES)  # at the mode
    net.fix(how)
    for layer, bank in zip(net.grouped_layers(), banks, strict=True):
        assert layer.banks == 1
        for kernel, group in enumerate(layer.assignment.mode().tolist()):
            of_kernels, of_bank = layer.weight.movedim(layer.kernel_axis, 0), bank.movedim(layer.kernel_axis, 0)
            assert torch.equal(of_kernels[kernel], of_bank[group].movedim(layer.kernel_axis, 0)[kernel])
    if how == "mode":
        for name, after in net(IMAGES).items():
            torch.testing.assert_close(after, before[name])


def test_several_passes_are_those_one_after_the_other():
    net = network(own_banks=True, per_example=True)
    randomise(net, 5)
    together = net.predict(IMAGES, samples=6, generator=generator(6), temperature=0.7, at_once=3)
    single = net.predict(IMAGES, samples=6, generator=generator(6), temperature=0.7, at_once=1)
    for name, one in single.items():
        torch.testing.assert_close(together[name].value, one.value)


def test_a_state_without_banks_of_their_own_gives_all_groups_the_same():
    one, own = network(), network(own_banks=True)
    randomise(one, 7)
    own.load_state_dict(one.state_dict())
    for a, b in zip(gates_of(one).values(), gates_of(own).values(), strict=True):
        torch.testing.assert_close(a, b)
