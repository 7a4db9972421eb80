"""Three ways to compute one thing: all groups, what the gates keep, one pair a kernel."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import filtergroups as fg
from filtergroups.groups import draw
from filtergroups.groups.streams import Streams
from tests import reference
from tests.laws import fix_at_random, generator, randomise

CONVOLUTION = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
PADDING_MODES = ["zeros", "reflect", "replicate", "circular"]


@st.composite
def chains(draw_):
    """A random chain of convolution, norm, ReLU, and a family of groups for it."""
    dims = draw_(st.integers(1, 3))
    tasks = draw_(st.integers(1, 4))
    layers, channels = [], draw_(st.integers(1, 3))
    first = channels
    for _ in range(draw_(st.integers(1, 3))):
        kernels, size = draw_(st.integers(1, 9)), draw_(st.sampled_from([1, 3]))
        dilation = draw_(st.integers(1, 2))
        layers += [
            CONVOLUTION[dims](
                channels,
                kernels,
                size,
                stride=draw_(st.integers(1, 2)),
                dilation=dilation,
                padding=dilation * (size // 2),
                padding_mode=draw_(st.sampled_from(PADDING_MODES)),
                bias=draw_(st.booleans()),
            ),
            NORM[dims](kernels),
            draw_(st.sampled_from([nn.ReLU(), nn.LeakyReLU(0.2)])),
        ]
        channels = kernels
    names = [f"t{n}" for n in range(tasks)]
    subsets = st.frozensets(st.sampled_from(names), min_size=1)
    groups = draw_(st.one_of(st.sampled_from(["tasks+shared", "all_subsets"]), st.sets(subsets, max_size=5)))
    if not isinstance(groups, str):
        groups = [*sorted(groups - {frozenset(names)}, key=sorted), frozenset(names)]
    batch = draw_(st.integers(2, 4))
    images = torch.randn(batch, first, *[12 if dims < 3 else 8] * dims, generator=generator(1), dtype=torch.float64)
    return nn.Sequential(*layers).double(), names, groups, images


def lifted_chain(chain, **options):
    plain, names, groups, images = chain
    tasks = [fg.Regression(name) for name in names]
    network = fg.lift(plain, tasks, groups=groups, example=images, threshold=0.0, **options)
    randomise(network)
    return network


def gradients(network, outputs):
    network.zero_grad()
    torch.stack([output.square().sum() for output in outputs.values()]).sum().backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def assert_same(network, one, two):
    """Outputs and gradients agree to 1e-10."""
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-10, atol=1e-10)
    first, second = gradients(network, one), gradients(network, two)
    for name in first.keys() | second.keys():
        zero = torch.zeros(())
        scale = max(1.0, first.get(name, zero).abs().max().item())
        torch.testing.assert_close(
            first.get(name, second.get(name, zero) * 0), second.get(name, first.get(name, zero) * 0),
            rtol=1e-8, atol=1e-9 * scale,
        )  # fmt: skip


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains(), st.sampled_from([0.02, 0.3, 1.0]), st.booleans(), st.sampled_from(["soft", "straight_through"]))
def test_a_pass_equals_the_definition(chain, temperature, per_example, estimator):
    network = lifted_chain(chain, per_example=per_example, estimator=estimator)
    images = chain[3]
    found = network(images, temperature=temperature, generator=generator(5))
    gates = reference.drawn_gates(network, temperature, generator(5), len(images) if per_example else None)
    gate_last = estimator != "soft"
    assert_same(network, found, reference.chain_outputs(network, chain[0], gates, images, gate_last=gate_last))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains(), st.sampled_from([0.02, 0.3, 1.0]))
def test_leaving_pairs_out_at_threshold_0_is_exact(chain, temperature):
    """Forced onto the path of kept pairs, also where nearly all are kept."""
    network = lifted_chain(chain)
    images = chain[3]
    full = network(images, temperature=temperature, generator=generator(5))
    nearly_all = draw.NEARLY_ALL
    draw.NEARLY_ALL = 2.0
    try:
        kept = network(images, temperature=temperature, generator=generator(5))
    finally:
        draw.NEARLY_ALL = nearly_all
    assert_same(network, full, kept)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains(), st.integers(0, 99))
def test_fixed_one_hot_gates_equal_the_definition(chain, seed):
    network = lifted_chain(chain)
    fix_at_random(network, seed)
    gates = [layer.assignment.probabilities().t()[None] for layer in network.grouped_layers()]
    images = chain[3]
    assert_same(network, network(images), reference.chain_outputs(network, chain[0], gates, images))


def two_tasks():
    return [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]


def test_a_small_threshold_hardly_changes_the_loss():
    images = torch.randn(8, 3, 32, 32, generator=generator(1), dtype=torch.float64)
    labels = {"age": torch.rand(8, generator=generator(2)) * 100, "gender": torch.tensor([0, 1] * 4)}
    network = fg.vgg11(two_tasks(), width=0.25).double()  # in single precision so little changes that it may round away
    for temperature in (0.1, 0.5):
        losses = {}
        for threshold in (0.0, 1e-3):
            network.threshold = threshold
            outputs = network(images, temperature=temperature, generator=generator(3))
            losses[threshold] = fg.objective(network, outputs, labels).total.item()
        assert losses[0.0] != losses[1e-3], "the threshold left nothing out"
        assert losses[1e-3] == pytest.approx(losses[0.0], rel=0.01)


def test_fewer_pairs_are_computed_at_a_low_temperature():
    network = fg.vgg11(two_tasks(), width=0.5)
    pairs = {}
    for temperature in (1.0, 0.1):
        found = draw.Draw.sampled(network.family, network.assignments(), temperature, generator(), threshold=1e-3)
        pairs[temperature] = sum(
            sum(run.size for run in found.kept(assignment)[0].kernels) for assignment in network.assignments()
        ) / sum(assignment.kernels for assignment in network.assignments())
    assert pairs[1.0] == 3.0
    assert pairs[0.1] < 1.7


def streams_of(network, images, gates):
    """The streams that leave the backbone for given gates of its layers."""
    found = draw.Draw(network.family)
    for layer, gate in zip(network.grouped_layers(), gates, strict=True):
        found._kept[layer.assignment] = (draw.every_pair(layer.kernels, len(network.family)), gate.unbind(1))
    return network.backbone(Streams.of_image(images, found))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid, nn.GELU])
def test_a_gate_of_0_adds_exactly_0_whatever_bias_and_shift(activation):
    plain = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), activation(), nn.AdaptiveAvgPool2d(1))
    network = fg.lift(plain, two_tasks())
    randomise(network)
    images = torch.randn(4, 3, 9, 9)
    gate = torch.full((1, 3, 5), 0.5)
    gate[:, :, 2] = 0
    streams = streams_of(network, images, [gate])
    for group in range(3):
        read = streams.dense([group])
        assert torch.equal(read[:, 2], torch.zeros_like(read[:, 2]))
        assert (read[:, 1] != 0).any()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid])
@pytest.mark.parametrize("norm_first", [False, True])
def test_half_a_gate_halves_what_is_read(activation, norm_first):
    """Also where the norm stands between the kernel and the convolution that reads it."""
    norm = [nn.BatchNorm2d(5), activation()]
    plain = nn.Sequential(
        nn.Conv2d(3, 5, 3), *(norm if not norm_first else []), nn.MaxPool2d(2), *(norm if norm_first else [])
    )
    network = fg.lift(plain, [fg.ImageRegression("a"), fg.Segmentation("b")])
    randomise(network)
    images = torch.randn(4, 3, 9, 9)
    whole = torch.rand(1, 3, 5, generator=generator())
    half = whole.clone()
    half[:, :, 3] /= 2
    one, two = (streams_of(network, images, [gate]) for gate in (whole, half))
    for group in range(3):
        torch.testing.assert_close(two.dense([group])[:, 3], one.dense([group])[:, 3] / 2)
        torch.testing.assert_close(two.dense([group])[:, :3], one.dense([group])[:, :3])


def test_the_gate_keeps_its_gradient_through_batch_norm():
    """A gate before the norm would be cancelled by it: its gradient would all but vanish."""
    network = fg.vgg11(two_tasks(), width=0.125)
    outputs = network(torch.randn(8, 3, 32, 32), temperature=1.0, generator=generator())
    sum(output.square().mean() for output in outputs.values()).backward()
    for assignment in network.assignments():
        assert assignment.rho.grad.abs().mean() > 1e-6


def test_each_group_has_a_norm_of_its_own():
    network = fg.vgg11(two_tasks(), width=0.125)
    norm = network.backbone.layers[1]
    assert norm.weight.shape == (3, 8)
    before = norm.running_mean.clone()
    network(torch.randn(8, 3, 32, 32), temperature=1.0, generator=generator())
    moved = (norm.running_mean != before).any(1)
    assert moved.all()


def test_a_group_with_nothing_to_read_gives_its_bias_only():
    plain = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    network = fg.lift(
        plain, [fg.ImageRegression("a"), fg.ImageRegression("b")], heads={"a": nn.Identity(), "b": nn.Identity()}
    )
    first, second = network.grouped_layers()
    first.assignment.fix(torch.zeros(4, dtype=torch.long))  # only a
    second.assignment.fix(torch.ones(4, dtype=torch.long))  # only b
    found = network(torch.randn(2, 3, 5, 5))
    torch.testing.assert_close(found["b"], second.bias.reshape(1, 4, 1, 1).expand(2, 4, 5, 5))
    assert torch.equal(found["a"], torch.zeros(2, 4, 5, 5))
