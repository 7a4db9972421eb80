"""Laws that hold for VGG11, HighResNet and lifted networks alike."""

import pytest
import torch
from torch import nn

import filtergroups as fg
from tests import laws
from tests.backbones import PreActivationNet, ResNet18, UNet, net3d
from tests.laws import generator

IMAGE_TASKS = [fg.Regression("age"), fg.Classification("gender", classes=2)]
PIXEL_TASKS = [fg.ImageRegression("ct"), fg.Segmentation("organs", classes=3)]
THREE = [fg.Regression("a"), fg.Classification("b", classes=2), fg.Regression("c")]


def images(channels, *space, batch=3):
    return torch.randn(batch, channels, *space, generator=generator(9), dtype=torch.float64)


# name -> (network for the options, images)
CASES = {
    "vgg11": lambda **o: (fg.vgg11(IMAGE_TASKS, width=0.125, **o), images(3, 32, 32)),
    "vgg11-all-subsets": lambda **o: (
        fg.vgg11(THREE, width=0.125, **{"groups": "all_subsets", **o}),
        images(3, 32, 32),
    ),
    "highresnet": lambda **o: (fg.highresnet(PIXEL_TASKS, width=0.5, **o), images(1, 16, 16)),
    "highresnet-3d": lambda **o: (
        fg.highresnet(PIXEL_TASKS, width=0.5, spatial_dims=3, **o),
        images(1, 8, 8, 8, batch=2),
    ),
    "resnet18": lambda **o: (fg.lift(ResNet18(width=8), IMAGE_TASKS, **o), images(3, 64, 64)),
    "pre-activation": lambda **o: (fg.lift(PreActivationNet(), PIXEL_TASKS, **o), images(3, 16, 16)),
    "pre-activation-untied": lambda **o: (
        fg.lift(PreActivationNet(), PIXEL_TASKS, tie_sums=False, **o),
        images(3, 16, 16),
    ),
    "unet": lambda **o: (fg.lift(UNet(), PIXEL_TASKS, **o), images(1, 32, 32)),
    "net3d": lambda **o: (fg.lift(net3d(), PIXEL_TASKS, **o), images(1, 8, 8, 8)),
}  # fmt: skip


@pytest.fixture(params=CASES)
def make(request):
    def build(**options):
        network, batch = CASES[request.param](**options)
        network = network.double()
        laws.randomise(network)
        return network, batch

    return build


def test_task_loss_leaves_other_specialists_untouched(make):
    network, batch = make()
    laws.fix_at_random(network)
    laws.assert_task_loss_leaves_strangers_untouched(network, batch)
    laws.assert_some_own_kernel_is_reached(network, batch)


def test_output_ignores_kernels_of_other_groups(make):
    network, batch = make()
    laws.fix_at_random(network, seed=1)
    laws.assert_output_ignores_strangers(network, batch)


@pytest.mark.parametrize("estimator", ["straight_through", "gumbel_rao"])
def test_hard_gates_keep_the_outputs_apart_too(make, estimator):
    """Sampled one-hot gates give exactly what fixed ones at the same place give."""
    network, batch = make(estimator=estimator, threshold=0.0)
    network.eval()
    found = network(batch, temperature=0.5, generator=generator(2))
    g = generator(2)
    for assignment in network.assignments():
        assignment.fix(assignment.sample(0.5, g, estimator=estimator)[0].argmax(0))
    expected = network(batch)
    for task in network.tasks:
        torch.testing.assert_close(found[task.name], expected[task.name], rtol=1e-9, atol=1e-9)


def test_same_seed_same_outputs(make):
    network, batch = make()
    laws.assert_same_seed_same_outputs(network, batch)


def test_the_mode_is_deterministic_and_equals_the_fixed_network(make):
    network, batch = make(init="random", generator=generator(4))
    network.eval()
    first, second = network(batch), network(batch)
    for assignment in network.assignments():
        assignment.fix()
    fixed = network(batch)
    for task in network.tasks:
        assert torch.equal(first[task.name], second[task.name])
        assert torch.equal(first[task.name], fixed[task.name])


@pytest.mark.parametrize("temperature", [0.02, 1.0])
def test_leaving_pairs_out_at_threshold_0_is_exact(make, temperature, monkeypatch):
    network, batch = make(threshold=0.0)
    full = network(batch, temperature=temperature, generator=generator(5))
    monkeypatch.setattr("filtergroups.groups.draw.NEARLY_ALL", 2.0)
    kept = network(batch, temperature=temperature, generator=generator(5))
    for task in network.tasks:
        torch.testing.assert_close(full[task.name], kept[task.name], rtol=1e-9, atol=1e-10)


def test_one_gate_per_example_is_that_of_the_batch_where_examples_agree(make):
    """A batch of one has the same gates either way."""
    network, batch = make(threshold=0.0)
    network.eval()
    alone = batch[:1]
    one = network(alone, temperature=0.5, generator=generator(5))
    network.per_example = True
    two = network(alone, temperature=0.5, generator=generator(5))
    several = network(alone.expand_as(batch), temperature=0.5, generator=generator(5))
    for task in network.tasks:
        torch.testing.assert_close(one[task.name], two[task.name], rtol=1e-9, atol=1e-9)
        assert not torch.allclose(several[task.name][0], several[task.name][1]), "examples share a gate"


def test_swapping_the_tasks_swaps_the_outputs():
    one = fg.vgg11([fg.Regression("a"), fg.Regression("b")], width=0.125, threshold=0.0).double()
    laws.randomise(one)
    two = fg.vgg11([fg.Regression("b"), fg.Regression("a")], width=0.125, threshold=0.0).double()
    swap = [1, 0, 2]
    state = {}
    for name, value in one.state_dict().items():
        by_group = (value.ndim > 0 and value.shape[0] == 3 and "weight" in name) or value.shape[:1] == (3,)
        if name.endswith("rho"):
            value = value[:, swap]
        elif by_group and "heads" not in name and not name.endswith("layers.0.weight"):
            value = value[swap]
        state[name] = value
    two.load_state_dict(state)
    for a, b in zip(one.assignments(), two.assignments(), strict=True):
        groups = torch.randint(3, (a.kernels,), generator=generator(3))
        a.fix(groups)
        b.fix(torch.tensor(swap)[groups])
    batch = images(3, 32, 32)
    first, second = one(batch), two(batch)
    assert not torch.allclose(first["a"], first["b"])
    for task in ("a", "b"):
        torch.testing.assert_close(first[task], second[task], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tasks", [1, 8])
@pytest.mark.parametrize("method", fg.METHODS)
def test_one_and_eight_tasks_work(tasks, method):
    network = fg.vgg11([fg.Regression(f"t{n}") for n in range(tasks)], width=0.125, method=method)
    batch = torch.randn(4, 3, 32, 32)
    outputs = network(batch, temperature=0.2, generator=generator())
    labels = {name: torch.randn(4) for name in outputs}
    fg.objective(network, outputs, labels).total.backward()
    assert len(outputs) == tasks
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_one_task_is_the_plain_network():
    plain = ResNet18(width=8).eval()
    network = fg.lift(plain, [fg.Regression("age")], heads={"age": nn.Identity()})
    batch = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(network(batch)["age"], plain(batch))
    assert not network.is_random


def test_an_empty_stream_stays_empty_through_its_blocks():
    """HighResNet's blocks have norm shifts; where no kernel is in a stream they must not leak into it."""
    network = fg.highresnet(PIXEL_TASKS, width=0.5, estimator="straight_through", threshold=0.0).double()
    laws.randomise(network)
    network.eval()
    batch = images(1, 16, 16)
    first = next(network.grouped_layers())
    for assignment in network.assignments():
        groups = torch.randint(3, (assignment.kernels,), generator=generator(6))
        if assignment is first.assignment:
            groups.fill_(network.family.full)
        assignment.fix(groups)
    sure = network(batch)
    # The same assignment, now as a sampled hard gate that still passes gradients: the closed pairs are computed.
    for assignment in network.assignments():
        p = assignment.probabilities().clamp_min(1e-9)
        assignment.kind = "constant"
        assignment.rho = p / p.sum(1, keepdim=True)
    sampled = network(batch, temperature=0.5, generator=generator())
    for task in network.tasks:
        torch.testing.assert_close(sampled[task.name], sure[task.name], rtol=1e-9, atol=1e-9)
