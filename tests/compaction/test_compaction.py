"""The compact network gives what the mode network gives, with less."""

import json
from functools import partial

import pytest
import torch
from torch import nn

import filtergroups as fg
from filtergroups.compaction.build import compact
from filtergroups.compaction.recording import CannotExport, record
from filtergroups.compaction.steps import CompactNetwork, Step, Value, as_json, from_json
from filtergroups.networks.vgg import VGG11
from tests.backbones import BACKBONES
from tests.groups.test_liveness import fix_unevenly, made
from tests.laws import fix_at_random, generator, randomise

TASKS = [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]
PIXELS = [fg.ImageRegression("ct", scale=1024), fg.Segmentation("organs", classes=4)]


def lived_in(network, shape):
    """Weights, norms and modes that no symmetry can hide."""
    randomise(network)
    network.train()
    with torch.no_grad():
        network(torch.randn(shape, generator=generator(2)), 0.5, generator(3))
    return network.eval()


def of_backbone(name):
    tasks = PIXELS if name in ("unet", "pre-activation", "net3d") else TASKS
    return fg.lift(BACKBONES[name][0](), tasks)


FOUR = [fg.Classification(f"t{n}") for n in range(4)]
NETWORKS = {
    "vgg11": (lambda: fg.vgg11(TASKS, width=0.25), (3, 3, 64, 64)),
    "vgg11, 4 tasks": (lambda: fg.vgg11(FOUR, width=0.25, groups="all_subsets"), (3, 3, 32, 32)),
    "highresnet": (lambda: fg.highresnet(PIXELS, width=0.5), (3, 1, 24, 24)),
    "highresnet 3-D": (lambda: fg.highresnet(PIXELS, width=0.25, spatial_dims=3), (2, 1, 12, 12, 12)),
    **{name: (partial(of_backbone, name), shape) for name, (_, shape) in BACKBONES.items()},
}


@pytest.fixture(params=NETWORKS)
def case(request):
    make, shape = NETWORKS[request.param]
    torch.manual_seed(0)
    network = lived_in(make(), shape)
    for assignment in network.assignments():  # modes in all groups, without fixing anything
        with torch.no_grad():
            assignment.rho.copy_(torch.randn(assignment.rho.shape, generator=generator(5)))
    return network, torch.randn(shape, generator=generator(6))


def assert_equal_outputs(found, expected):
    for task, output in found.items():
        scale = expected[task].abs().max().clamp_min(1)
        assert ((output - expected[task]).abs().max() / scale) < 1e-4


def test_outputs_are_those_of_the_mode_network(case):
    network, images = case
    small = compact(network, image_shape=images.shape[1:])
    with torch.no_grad():
        assert_equal_outputs(small(images), network(images))
        assert_equal_outputs(small(images[:1]), network(images[:1]))
    assert set(small.outputs) == {task.name for task in network.tasks}


def test_one_task_is_what_that_task_needs(case):
    network, images = case
    name = network.tasks[0].name
    whole, alone = (
        compact(network, image_shape=images.shape[1:]),
        compact(network, [name], image_shape=images.shape[1:]),
    )
    with torch.no_grad():
        found = alone(images)
        assert_equal_outputs(found, network(images))
    assert list(found) == [name]
    assert alone.multiplications < whole.multiplications
    # What another task's specialists learned cannot matter to it.
    other = next(g for g in network.family.specialists if network.family.names[g] != name)
    for layer in network.grouped_layers():
        kernels = (layer.assignment.mode() == other).nonzero().flatten()
        layer.weight.data.index_fill_(1 if layer.transposed else 0, kernels, 7.0)
    again = compact(network, [name], image_shape=images.shape[1:])
    assert all(torch.equal(a, b) for a, b in zip(alone.weights.values(), again.weights.values(), strict=True))


@pytest.mark.parametrize("name", ["vgg11", "highresnet", "dense", "unet", "mobilenet", "sliced"])
def test_no_weight_of_a_dead_kernel_is_shipped(name):
    network, images = made(name)
    network = network.float()
    randomise(network)
    fix_unevenly(network, 1)
    dead = network.dead_kernels()
    assert any(of_layer.any() for of_layer in dead.values())
    before = compact(network, image_shape=images.shape[1:])
    for layer in network.grouped_layers():
        layer.weight.data.movedim(1 if layer.transposed else 0, 0)[dead[layer.name]] = 7.0
    after = compact(network, image_shape=images.shape[1:])
    with torch.no_grad():
        assert_equal_outputs(after(images.float()), network(images.float()))
    assert all(torch.equal(a, b) for a, b in zip(before.weights.values(), after.weights.values(), strict=True))


def test_another_image_size_works_where_the_network_allows_it():
    network = lived_in(fg.highresnet(PIXELS, width=0.25), (2, 1, 16, 16))
    fix_at_random(network)
    small = compact(network, image_shape=(1, 16, 16))
    images = torch.randn(2, 1, 20, 28)
    assert small.varies == (0, 2, 3)
    with torch.no_grad():
        assert_equal_outputs(small(images), network(images))


class Flat(nn.Module):
    """Space taken into a linear layer: only one image size works."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 6, 3, 2, 1), nn.Linear(6 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.linear(x.view(x.size(0), -1))


def test_a_network_for_one_image_size_keeps_it_and_any_batch():
    network = fg.lift(Flat(), TASKS, example=torch.zeros(1, 3, 8, 8))
    fix_at_random(network)
    small = compact(network, image_shape=(3, 8, 8))
    assert small.varies == (0,)
    images = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        assert_equal_outputs(small(images), network.eval()(images))


def test_thirds_cost_five_ninths_of_the_plain_backbone():
    network = fg.vgg11(TASKS, width=0.75, method="constant_mask").eval()  # every width is a multiple of three
    plain = fg.vgg11(TASKS, width=0.75, method="hard_sharing").eval()
    small, whole = compact(network, image_shape=(3, 32, 32)), compact(plain, image_shape=(3, 32, 32))
    assert whole.multiplications == multiplications_of(VGG11(3, 0.75), (1, 3, 32, 32)) + heads_of(plain)
    first = 3 * 48 * 9 * 32 * 32
    inner = whole.multiplications - first - heads_of(plain)
    layers = small.multiplications - first - heads_of(plain, 2 / 3)
    assert layers == pytest.approx(inner * 5 / 9, rel=1e-6)


def multiplications_of(backbone, shape):
    total = []
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda m, _, out: total.append(m.weight.numel() * out[0, 0].numel()))
    backbone.eval()(torch.zeros(shape))
    return sum(total)


def heads_of(network, share=1.0):
    return sum(round(head[0].weight.numel() * share) + head[2].weight.numel() for head in network.heads.values())


def test_norms_are_folded_and_nothing_is_multiplied_by_zero():
    network = lived_in(fg.vgg11(TASKS, width=0.25), (3, 3, 64, 64))
    fix_at_random(network)
    small = compact(network, image_shape=(3, 64, 64))
    names = {step.function for step in small.steps}
    assert "batch_norm" not in names
    assert "place_channels" not in names
    for name, weight in small.weights.items():
        if name.endswith("weight"):
            assert (weight.flatten(1) != 0).any(1).all(), name
            assert (weight.transpose(0, 1).flatten(1) != 0).any(1).all(), name


def test_dead_kernels_are_dropped():
    network = fg.vgg11(TASKS, width=0.25)
    layers = list(network.grouped_layers())
    for layer in layers:  # age has kernels of its own up to the third layer, where its path ends
        groups = torch.full((layer.kernels,), network.family.full)
        layer.assignment.fix(groups)
    age = network.family.names.index("age")
    groups = torch.full((layers[2].kernels,), network.family.full)
    groups[:5] = age
    layers[2].assignment.fix(groups)
    layers[3].assignment.fix(torch.full((layers[3].kernels,), network.family.full))
    small = compact(network, image_shape=(3, 32, 32))
    kernels = [w.shape[0] for n, w in small.weights.items() if n.startswith("conv2d") and n.endswith("weight")]
    assert kernels[2] == layers[2].kernels - 5
    assert len(kernels) == 8


def test_every_method_can_be_exported():
    for method in fg.METHODS:
        network = lived_in(fg.vgg11(TASKS, width=0.125, method=method), (3, 3, 32, 32))
        images = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            assert_equal_outputs(compact(network, image_shape=(3, 32, 32))(images), network(images))


def test_steps_survive_json():
    network = lived_in(fg.lift(BACKBONES["resnet18"][0](), TASKS), (2, 3, 64, 64))
    small = compact(network, image_shape=(3, 64, 64))
    text = json.dumps(
        [
            [s.function, as_json(s.args), {k: as_json(v) for k, v in s.kwargs.items()}, s.results, s.several]
            for s in small.steps
        ]
    )
    steps = [
        Step(f, from_json(a), {k: from_json(v) for k, v in kw.items()}, tuple(r), several)
        for f, a, kw, r, several in json.loads(text)
    ]
    again = CompactNetwork(steps, small.weights, small.outputs)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(again(images)["age"], small(images)["age"])


def test_a_file_cannot_call_what_is_no_tensor_function():
    for name in ("load", "save", "__import__", "system", "__reduce__"):
        with pytest.raises(ValueError, match="the file is not ours"):
            CompactNetwork([Step(name, (Value(0),), {}, (1,))], {}, {"age": Value(1)})


def test_what_cannot_be_exported_says_so():
    class Assigns(nn.Module):
        def forward(self, x):
            y = x * 1
            y[:, 0] = 0
            return {"age": y}

    class Asks(nn.Module):
        def forward(self, x):
            return {"age": torch.linalg.svdvals(x)}

    class Ignores(nn.Module):
        def forward(self, x):
            return {"age": torch.ones(2)}

    for module, said in ((Assigns(), "assignment"), (Asks(), "svdvals"), (Ignores(), "does not depend")):
        with pytest.raises(CannotExport, match=said):
            record(module, torch.randn(2, 3, 4, 4))
    with pytest.raises(ValueError, match=r"one of \['age', 'gender'\], found 'agee'"):
        compact(fg.vgg11(TASKS, width=0.125), ["agee"])
