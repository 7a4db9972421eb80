"""Multiplications: the model against what a pass really computes."""

from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import filtergroups as fg
from filtergroups.groups.assignment import Assignment
from tests.backbones import MobileNet, PreActivationNet, ResNet18, UNet, net3d, plain_net
from tests.laws import fix_at_random, generator

FAMILIES = ("tasks+shared", "all_subsets")


class Counted(TorchFunctionMode):
    """Counts the multiplications of every convolution and linear layer as it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "linear" or name.startswith("conv"):
            features, weight = args[:2]
            if weight.shape[:2] == (1, 1) and not weight.any() and not features.any():
                return result  # a group with nothing to read: this only finds out the shape of its zeros
            at = features if "transpose" in name else result
            # Kernels × channels × area, whichever way around the weight is: groups are already in its shape.
            self.total += at.shape[0] * prod(at.shape[2:]) * prod(weight.shape)
        return result


def counted(network: nn.Module, image_shape: tuple[int, ...]) -> int:
    network.eval()
    with torch.no_grad(), Counted() as counter:
        network(torch.randn(3, *image_shape))
    assert counter.total % 3 == 0
    return counter.total // 3


def tasks(count: int = 3) -> list[fg.Regression]:
    return [fg.Regression(name) for name in "abc"[:count]]


class DenseNet(nn.Module):
    """Every layer reads all before it and the image."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(3 + 6 * n) for n in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(3 + 6 * n, 6, 3, padding=1, stride=1) for n in range(3)])
        self.last = nn.Linear(21 * 4, 7)

    def forward(self, x):
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(norm(x).relu())], 1)
        return self.last(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


class Recurrent(nn.Module):
    """A layer that reads what it is added to: its kernels and its channels are the same variables."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        x = self.stem(x)
        return (x + self.conv(x)).mean((2, 3))


Make = Callable[[str], fg.GroupedNetwork]
MAKERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "vgg11": (lambda groups: fg.vgg11(tasks(), width=0.125, groups=groups), (3, 32, 48)),
    "highresnet": (
        lambda groups: fg.highresnet(
            [fg.ImageRegression("ct"), fg.ImageRegression("pet"), fg.Segmentation("organs", classes=3)],
            width=0.25, groups=groups,
        ),
        (1, 12, 10),
    ),
    "highresnet_ends_in_blocks": (
        lambda groups: fg.lift(
            nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3)), tasks(), group="0", groups=groups
        ),
        (3, 12, 10),
    ),
    "residual": (lambda groups: fg.lift(ResNet18(width=4), tasks(), groups=groups), (3, 40, 32)),
    "residual_untied": (
        lambda groups: fg.lift(ResNet18(width=4), tasks(), groups=groups, tie_sums=False), (3, 32, 32),
    ),
    "pre_activation": (lambda groups: fg.lift(PreActivationNet(), tasks(), groups=groups), (3, 9, 8)),
    "dense": (lambda groups: fg.lift(DenseNet(), tasks(), groups=groups), (3, 8, 8)),
    "unet": (lambda groups: fg.lift(UNet(), tasks(), groups=groups), (1, 16, 24)),
    "mobile": (lambda groups: fg.lift(MobileNet(), tasks(), groups=groups), (3, 16, 16)),
    "volumes": (lambda groups: fg.lift(net3d(), tasks(), groups=groups), (1, 8, 8, 6)),
    "summed_copies": (
        lambda groups: fg.lift(plain_net(), tasks(), groups=groups, group=["0", "8"], merge="sum"), (3, 16, 16),
    ),
    "recurrent": (lambda groups: fg.lift(Recurrent(), tasks(), groups=groups), (3, 8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("groups", FAMILIES)
@pytest.mark.parametrize("name", MAKERS)
def test_the_count_is_that_of_the_calls_of_a_pass(name, groups):
    make, shape = MAKERS[name]
    network = make(groups)
    assert network.multiplications(shape) == counted(network, shape)
    for seed in range(2):
        network = make(groups)
        fix_at_random(network, seed)
        assert network.multiplications(shape) == counted(network, shape)


@pytest.mark.parametrize("method", fg.METHODS)
def test_every_method_has_a_count(method):
    network = fg.vgg11(tasks(2), width=0.0625, method=method)
    assert network.multiplications((3, 16, 16)) == counted(network, (3, 16, 16))


def set_at_random(network: fg.GroupedNetwork, seed: int = 0) -> None:
    g = generator(seed)
    with torch.no_grad():
        for assignment in network.assignments():
            assignment.rho.copy_(torch.randn(assignment.rho.shape, generator=g) * 2)


@pytest.mark.parametrize("name", MAKERS)
def test_the_expected_count_is_the_mean_over_hard_gates(name):
    make, shape = MAKERS[name]
    network = make("all_subsets")
    set_at_random(network)
    model = network.cost_model(shape)
    g = generator(1)
    p = [assignment.probabilities().detach() for assignment in network.assignments()]
    draws = torch.tensor(
        [model.of_groups([torch.multinomial(of, 1, generator=g)[:, 0] for of in p]) for _ in range(500)]
    ).double()
    error = draws.std() / len(draws) ** 0.5
    expected = network.expected_multiplications(shape).item()
    assert abs(expected - draws.mean()) < 4 * error + 1e-9 * expected
    assert error < 0.03 * expected


def test_everything_shared_is_the_plain_count():
    backbone = ResNet18(width=4)
    network = fg.lift(backbone, tasks(2), method="hard_sharing")
    plain = counted(nn.Sequential(backbone), (3, 32, 32)) + sum(counted(head, (32,)) for head in network.heads.values())
    model = network.cost_model((3, 32, 32))
    assert network.multiplications((3, 32, 32)) == model.plain == plain


def test_thirds_cost_five_ninths_in_inner_layers():
    inner = nn.Sequential(*(nn.Conv2d(6, 6, 3, padding=1) for _ in range(3)))
    heads = {"a": nn.Identity(), "b": nn.Identity()}
    counts = {}
    for method in ("hard_sharing", "constant_mask", "one_task"):
        network = fg.lift(inner, tasks(2), heads, method=method)
        first = 6 * 6 * 9 * 64 * 64
        counts[method] = network.multiplications((6, 64, 64)) - first
    assert counts["constant_mask"] * 9 == counts["hard_sharing"] * 5
    assert counts["one_task"] * 2 == counts["hard_sharing"]
    assert network.cost_model((6, 64, 64)).evenly_split() == network.multiplications((6, 64, 64))


def test_the_gradient_points_to_cheaper_groupings():
    network = fg.vgg11(tasks(2), width=0.125, init="random", generator=generator(0))
    optimiser = torch.optim.SGD([a.rho for a in network.assignments()], lr=100.0)
    plain = network.cost_model().plain
    costs = []
    for _ in range(20):
        ratio = network.expected_multiplications() / plain
        optimiser.zero_grad()
        ratio.backward()
        optimiser.step()
        costs.append(ratio.item())
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.95 * costs[0]


def test_the_count_leaves_the_network_as_it_was():
    network = fg.vgg11(tasks(2), width=0.0625, method="cross_stitch")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    network.cost_model((3, 32, 32))
    assert network.training
    assert torch.equal(state, torch.get_rng_state())
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert isinstance(network.assignments()[0], Assignment)


def test_images_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 channels"):
        fg.vgg11(tasks(2), width=0.0625).multiplications((1, 32, 32))


def of_nothing(network):
    outputs = {task.name: torch.zeros(1, 1) for task in network.tasks}
    return outputs, {task.name: torch.zeros(1) for task in network.tasks}


def test_the_term_is_what_the_mode_costs_above_the_target():
    network = fg.vgg11(tasks(2), width=0.0625)
    shape = (3, 16, 16)
    set_at_random(network)
    ratio = network.multiplications(shape) / network.cost_model(shape).plain
    outputs, labels = of_nothing(network)
    how = {"cost_factor": 2.0, "image_shape": shape}
    terms = fg.objective(network, outputs, labels, cost_target=ratio - 0.1, **how)
    assert terms.cost.item() == pytest.approx(0.2, rel=1e-5)
    assert terms.total.item() == pytest.approx((terms.weights + terms.entropy + terms.cost).item())
    terms.cost.backward()
    found = [assignment.rho.grad.clone() for assignment in network.assignments()]
    network.zero_grad()
    (2 * network.expected_multiplications(shape) / network.cost_model(shape).plain).backward()
    for gradient, assignment in zip(found, network.assignments(), strict=True):
        torch.testing.assert_close(gradient, assignment.rho.grad)
    assert fg.objective(network, outputs, labels, cost_target=ratio, **how).cost.item() == 0
    assert fg.objective(network, outputs, labels).cost is None


def test_without_a_cost_nothing_is_counted(monkeypatch):
    network = fg.vgg11(tasks(2), width=0.0625)
    monkeypatch.setattr(fg.GroupedNetwork, "cost_model", lambda *_: pytest.fail("counted"))
    fg.objective(network, *of_nothing(network))


@pytest.mark.parametrize("method", [name for name in fg.METHODS if name != "sfg"])
def test_a_cost_needs_groups_that_are_learned(method):
    network = fg.vgg11(tasks(2), width=0.0625, method=method)
    with pytest.raises(ValueError, match=f"found method '{method}'") as caught:
        fg.objective(network, *of_nothing(network), cost_factor=1.0)
    assert "\n" not in str(caught.value)


def test_a_target_below_an_even_split_is_said_to_be_so():
    model = fg.vgg11(tasks(3), width=0.25).cost_model()
    assert 1 / 3 < model.evenly_split() / model.plain < 0.37
    assert len(model.described(0.5)) == 1
    assert len(model.described(0.3)) == 2
