"""A baseline is data: what each method assigns, and what cross-stitch adds to it."""

import pytest
import torch
from torch import nn

import filtergroups as fg
from filtergroups.config import MethodConfig
from filtergroups.starting import shuffle, take_over
from tests.backbones import ResNet18
from tests.laws import generator, randomise

TASKS = [fg.Regression("age"), fg.Regression("gender")]
KEEP = {"age": nn.Identity(), "gender": nn.Identity()}


def shares(method, tasks=TASKS, **options):
    """The share of each group among the kernels of the last layer, and the kind of the assignment."""
    network = fg.vgg11(tasks, width=0.1875, method=method, **options)  # 96 kernels: divisible by 2, 3 and 4
    last = list(network.grouped_layers())[-1]
    return last.assignment.probabilities().mean(0).tolist(), last.assignment.kind


@pytest.mark.parametrize(
    ("method", "expected", "kind"),
    [
        ("one_task", [0.5, 0.5, 0.0], "fixed"),
        ("hard_sharing", [0.0, 0.0, 1.0], "fixed"),
        ("constant_mask", [1 / 3, 1 / 3, 1 / 3], "fixed"),
        ("constant_p", [1 / 3, 1 / 3, 1 / 3], "constant"),
        ("cross_stitch", [0.5, 0.5, 0.0], "fixed"),
        ("sfg", [0.2, 0.2, 0.6], "learned"),
    ],
)
def test_each_method_assigns_as_the_paper_says(method, expected, kind):
    found, found_kind = shares(method)
    assert found == pytest.approx(expected, abs=1e-6)
    assert found_kind == kind
    ours = {"fixed_mask"}  # a control that the paper does not have
    assert set(fg.METHODS) - ours == {
        "one_task", "hard_sharing", "constant_mask", "constant_p", "cross_stitch", "sfg",
    }  # fmt: skip


def test_random_masks_come_from_the_seed():
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        network = fg.vgg11(TASKS, width=0.25, method="fixed_mask")
        masks.append([layer.assignment.mode() for layer in network.grouped_layers()])
    assert all(torch.equal(a, b) for a, b in zip(masks[0], masks[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(masks[0], masks[2], strict=True))
    assert set(torch.cat(masks[0]).tolist()) == {0, 1, 2}


def test_the_methods_scale_to_more_tasks():
    three = [fg.Regression(name) for name in "abc"]
    assert shares("one_task", three)[0] == pytest.approx([1 / 3] * 3 + [0])
    assert shares("constant_mask", three)[0] == pytest.approx([1 / 4] * 4)
    assert shares("sfg", three)[0] == pytest.approx([0.4 / 3] * 3 + [0.6])
    assert shares("constant_p", three, groups="all_subsets")[0] == pytest.approx([1 / 7] * 7)


def test_only_learned_probabilities_are_parameters():
    for method, of in fg.METHODS.items():
        network = fg.vgg11(TASKS, width=0.125, method=method)
        learned = [name for name, _ in network.named_parameters() if name.endswith("rho")]
        assert bool(learned) == (of.kind == "learned")


def stitched(backbone):
    network = fg.lift(backbone, TASKS, heads=KEEP, method="cross_stitch").double()
    randomise(network)
    return network.eval()


def test_a_stitch_that_mixes_nothing_is_one_task():
    network = stitched(ResNet18(width=8))
    alone = fg.lift(ResNet18(width=8), TASKS, heads=KEEP, method="one_task").double().eval()
    alone.load_state_dict({k: v for k, v in network.state_dict().items() if "stitch" not in k})
    for name, parameter in network.named_parameters():
        if name.endswith("alpha"):
            parameter.data.copy_(torch.eye(2).unsqueeze(2).expand_as(parameter))
    batch = torch.randn(2, 3, 64, 64, generator=generator(), dtype=torch.float64)
    one, two = network(batch), alone(batch)
    for task in KEEP:
        torch.testing.assert_close(one[task], two[task], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernels", [6, 5])
def test_a_stitch_mixes_channel_by_channel(kernels):
    """Two layers by hand; with 5 kernels the last of the first task has no partner."""
    network = stitched(nn.Sequential(nn.Conv2d(2, kernels, 1), nn.ReLU(), nn.Conv2d(kernels, 4, 1, bias=False)))
    first, second = network.grouped_layers()
    alpha = first.stitch.stitch.alpha.detach()
    batch = torch.randn(2, 2, 3, 3, generator=generator(), dtype=torch.float64)
    features = nn.functional.conv2d(batch, first.weight, first.bias).relu()
    count = -(-kernels // 2)
    own = {0: features[:, :count], 1: features[:, count:]}
    columns = {0: slice(0, count), 1: slice(count, kernels)}
    rows = {0: slice(0, 2), 1: slice(2, 4)}
    outputs = {}
    for t in (0, 1):
        mixed = torch.zeros_like(own[t])
        for s in (0, 1):
            n = min(own[t].shape[1], own[s].shape[1])
            mixed[:, :n] += alpha[t, s, :n].reshape(1, -1, 1, 1) * own[s][:, :n]
        outputs[t] = nn.functional.conv2d(mixed, second.weight[rows[t], columns[t]])
    beta = second.stitch.stitch.alpha.detach()
    found = network(batch)
    for t, task in enumerate(KEEP):
        expected = sum(beta[t, s].reshape(1, -1, 1, 1) * outputs[s] for s in (0, 1))
        torch.testing.assert_close(found[task][:, rows[t]], expected, rtol=1e-10, atol=1e-12)


def test_a_stitch_starts_with_mostly_its_own_features():
    network = fg.vgg11(TASKS, width=0.125, method="cross_stitch")
    alpha = next(p for n, p in network.named_parameters() if n.endswith("alpha"))
    torch.testing.assert_close(alpha[:, :, 0], torch.tensor([[0.9, 0.1], [0.1, 0.9]]))


def shared_out(network):
    """How many kernels of each layer each group has."""
    return [torch.bincount(a.mode(), minlength=len(network.family)).tolist() for a in network.assignments()]


def test_shares_by_hand_are_each_layers_own():
    network = fg.vgg11(TASKS, width=0.125, method="fixed_mask")
    take_over(network, MethodConfig(name="fixed_mask", shares={"age": 0.25, "shared": 0.75}))
    assert shared_out(network) == [[kernels // 4, 0, kernels * 3 // 4] for kernels in (8, 16, 32, 32, 64, 64, 64, 64)]


@pytest.mark.parametrize("what", ["kernels", "layers"])
def test_a_control_keeps_the_shares_of_a_layer_or_of_all_layers(what):
    network = fg.vgg11(TASKS, width=0.125, method="fixed_mask")
    for n, assignment in enumerate(network.assignments()):
        assignment.fix(torch.full((assignment.kernels,), 0 if n < 4 else 2))
    network.assignments()[-1].fix(torch.arange(64) // 32)
    before, order = shared_out(network), network.assignments()[-1].mode()
    shuffle(network, what)
    if what == "kernels":
        assert shared_out(network) == before
        assert not torch.equal(network.assignments()[-1].mode(), order)
    else:
        overall = [(88 + 32) / 344, 32 / 344, 192 / 344]
        for counts in shared_out(network):
            assert all(abs(count - share * sum(counts)) < 1 for count, share in zip(counts, overall, strict=True))
