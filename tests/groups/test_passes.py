"""Several passes together give what they give one by one, in less work."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import filtergroups as fg
from tests.backbones import BACKBONES
from tests.laws import fix_at_random, generator, randomise

TASKS = [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]


def one_by_one(network, images, samples, *, statistics="running", temperature=0.1, seed=1):
    accumulators = {task.name: task.accumulator() for task in network.tasks}
    g = generator(seed)
    with network.evaluating(statistics), torch.no_grad():
        for _ in range(samples):
            for name, output in network(images, temperature, g).items():
                accumulators[name].add(output)
    return {name: accumulator.prediction() for name, accumulator in accumulators.items()}


def assert_same(found, expected):
    for name, prediction in expected.items():
        torch.testing.assert_close(found[name].spread, prediction.spread, rtol=1e-5, atol=1e-5)
        if prediction.value.is_floating_point():
            torch.testing.assert_close(found[name].value, prediction.value, rtol=1e-5, atol=1e-5)
        else:
            torch.testing.assert_close(found[name].probabilities, prediction.probabilities, rtol=1e-5, atol=1e-5)


def lifted(name, **options):
    make, shape = BACKBONES[name]
    torch.manual_seed(0)
    backbone = make().double()
    images = torch.randn(shape, generator=generator(3), dtype=torch.float64)
    network = fg.lift(backbone, TASKS, heads={"age": Head(1), "gender": Head(2)}, **options)
    randomise(network)
    return network, images


class Head(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, features):
        return features.flatten(2).mean(2)[:, : self.outputs] if features.ndim > 2 else features[:, : self.outputs]


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("at_once", [1, 3])
def test_passes_together_are_the_passes_one_by_one(name, at_once):
    network, images = lifted(name)
    found = network.predict(images, 7, generator(1), at_once=at_once, converged=0)
    expected = one_by_one(network, images, 7)
    assert (expected["age"].spread > 0).all()
    assert_same(found, expected)


@pytest.mark.parametrize("options", [
    {"threshold": 0.0}, {"per_example": True}, {"estimator": "straight_through"}, {"tie_sums": False},
    {"groups": "all_subsets"}, {"per_stream": ["layers.1"]},
])  # fmt: skip
@pytest.mark.parametrize("at_once", [1, 4])
def test_options_of_a_network_hold_for_passes_together(options, at_once):
    network, images = lifted("resnet18", **options)
    found = network.predict(images, 5, generator(1), at_once=at_once, temperature=0.5, converged=0)
    assert_same(found, one_by_one(network, images, 5, temperature=0.5))


def test_batch_statistics_are_those_of_a_single_pass():
    network, images = lifted("plain")
    found = network.predict(images, 5, generator(1), statistics="batch", converged=0)
    assert_same(found, one_by_one(network, images, 5, statistics="batch"))


def converge(network, layers):
    """Every kernel of the first layers is all but certain of the shared group."""
    for layer in list(network.grouped_layers())[:layers]:
        with torch.no_grad():
            layer.assignment.rho.fill_(-20.0)
            layer.assignment.rho[:, network.family.full] = 1.0


@pytest.mark.parametrize("leading", [0, 1, 4])
def test_what_no_gate_touches_is_computed_once(leading, monkeypatch):
    torch.manual_seed(0)
    network = fg.vgg11(TASKS, width=0.125)
    converge(network, leading)
    images = torch.randn(2, 3, 32, 32)
    calls = {layer.name: 0 for layer in network.grouped_layers()}
    for layer in network.grouped_layers():

        def noted(*args, name=layer.name, convolve=layer.convolve):
            calls[name] += 1
            return convolve(*args)

        monkeypatch.setattr(layer, "convolve", noted)
    network.predict(images, 6, generator(), at_once=1)
    # The layers that have converged, and the one after them, whose kernels all read the same features in every pass.
    once = [name for name, count in calls.items() if count < 6]
    assert once == list(calls)[: leading + 1]
    assert [calls[name] for name in once] == [1] * (leading + 1)


def test_a_converged_layer_is_at_its_mode_and_little_changes():
    torch.manual_seed(0)
    network = fg.vgg11(TASKS, width=0.125)
    converge(network, 4)
    images = torch.randn(4, 3, 32, 32)
    found = network.predict(images, 20, generator(1))
    assert_same(found, one_by_one(network, images, 20))
    fixed = fg.vgg11(TASKS, width=0.125)
    fix_at_random(fixed)
    assert not fixed.passes(0.1, generator()).is_random


class Careless(nn.Module):
    """Changes features in place after others have read them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x):
        batch = x.shape[0]
        features = self.first(x)
        deep = self.second(features) + features
        F.relu(features, inplace=True)
        features += 1
        deep = deep * features
        return deep.view(batch, 6, -1).mean(2)


@pytest.mark.parametrize("at_once", [1, 2])
def test_forward_code_that_works_in_place_is_followed(at_once):
    torch.manual_seed(0)
    network = fg.lift(Careless().double(), TASKS)
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    assert_same(network.predict(images, 5, generator(1), at_once=at_once, converged=0), one_by_one(network, images, 5))


def test_an_estimate_that_is_stable_ends_early():
    torch.manual_seed(0)
    network = fg.vgg11(TASKS, width=0.125)
    images = torch.randn(2, 3, 32, 32)
    everything = network.predict(images, 40, generator(1))
    soon = network.predict(images, 40, generator(1), precision=1.0)
    assert_same(soon, one_by_one(network, images, 10))
    assert_same(network.predict(images, 40, generator(1), precision=1e-9), everything)


def test_memory_does_not_grow_with_the_passes(monkeypatch):
    network = fg.vgg11(TASKS, width=0.125)
    images = torch.randn(2, 3, 32, 32)
    held = []
    real = type(network.tasks[0].accumulator())
    add = real.add

    def noted(self, output):
        add(self, output)
        everything = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        held.append(sum(tensor.numel() for tensor in everything))

    monkeypatch.setattr(real, "add", noted)
    gc.collect()
    network.predict(images, 40, generator())
    assert max(held[20:]) <= 1.01 * max(held[:20])
