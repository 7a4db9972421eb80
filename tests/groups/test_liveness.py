"""Dead kernels: by the structure of the network, and by force."""

import pytest
import torch
from torch import nn

import filtergroups as fg
from tests.backbones import MobileNet, PreActivationNet, ResNet18, UNet, net3d, plain_net
from tests.laws import fix_at_random, generator, randomise
from tests.test_cost import DenseNet, Recurrent

DRAWS = 4  # of all weights: behind an activation that is closed a kernel changes nothing that it could have


class Sliced(nn.Module):
    """Channels that part: half of them end in a product, a quarter nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.inner, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(6, 6, 1)

    def forward(self, x):
        x = self.stem(x)
        left, right = x.chunk(2, 1)
        return self.last(torch.cat([self.inner(right) * left, self.norm(x)[:, :2]], 1))


def tasks(count):
    return [fg.Regression(name) for name in "abc"[:count]]


def pixels():
    return [fg.ImageRegression("ct"), fg.ImageRegression("pet")]


# name -> (make, shape of a batch)
NETWORKS = {
    "vgg11": (lambda **how: fg.vgg11(tasks(2), width=0.0625, **how), (2, 3, 32, 32)),
    "vgg11, all subsets": (
        lambda **how: fg.vgg11(tasks(3), width=0.0625, **{"groups": "all_subsets", **how}), (2, 3, 32, 32),
    ),
    "highresnet": (lambda **how: fg.highresnet(pixels(), width=0.25, **how), (2, 1, 9, 8)),
    "plain": (lambda **how: fg.lift(plain_net(), tasks(3), **how), (2, 3, 16, 16)),
    "per stream": (lambda **how: fg.lift(plain_net(), tasks(2), group=["0", "8"], **how), (2, 3, 16, 16)),
    "summed copies": (
        lambda **how: fg.lift(plain_net(), tasks(2), group=["0", "8"], merge="sum", **how), (2, 3, 16, 16),
    ),
    "ends in copies": (
        lambda **how: fg.lift(nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3)), tasks(3), group="0", **how),
        (2, 3, 9, 9),
    ),
    "resnet18": (lambda **how: fg.lift(ResNet18(width=2), tasks(2), **how), (2, 3, 32, 32)),
    "resnet18, untied": (lambda **how: fg.lift(ResNet18(width=2), tasks(2), tie_sums=False, **how), (2, 3, 32, 32)),
    "pre-activation": (lambda **how: fg.lift(PreActivationNet(nn.Tanh), tasks(2), **how), (2, 3, 9, 8)),
    "dense": (lambda **how: fg.lift(DenseNet(), tasks(3), **how), (2, 3, 8, 8)),
    "unet": (lambda **how: fg.lift(UNet(width=4), pixels(), **how), (2, 1, 16, 16)),
    "net3d": (lambda **how: fg.lift(net3d(), pixels(), **how), (2, 1, 8, 8, 8)),
    "mobilenet": (lambda **how: fg.lift(MobileNet(), tasks(2), **how), (2, 3, 16, 16)),
    "recurrent": (lambda **how: fg.lift(Recurrent(), tasks(2), **how), (2, 3, 8, 8)),
    "sliced": (lambda **how: fg.lift(Sliced(), tasks(2), **how), (2, 3, 8, 8)),
}  # fmt: skip


def fix_unevenly(network, seed):
    """Hard gates: every kernel in one of a few groups, others in each layer, so that much cannot be read."""
    g = generator(seed)
    for assignment in network.assignments():
        few = torch.randperm(len(network.family), generator=g)[: 1 + int(torch.randint(2, (1,), generator=g))]
        assignment.fix(few[torch.randint(len(few), (assignment.kernels,), generator=g)])


@torch.no_grad()
def dead_by_force(network, images):
    """Set each kernel's weights to others: it is dead if no output ever changes, whatever the other weights are."""
    found = {layer.name: torch.ones(layer.kernels, dtype=torch.bool) for layer in network.grouped_layers()}
    for draw in range(DRAWS):
        randomise(network, draw)
        before = network(images)
        for layer in network.grouped_layers():
            bank = layer.weight.data.movedim(1 if layer.transposed else 0, 0)
            for kernel in found[layer.name].nonzero().flatten().tolist():
                kept = bank[kernel].clone()
                bank[kernel] = torch.randn(kept.shape, generator=generator(7), dtype=kept.dtype)
                after = network(images)
                bank[kernel] = kept
                found[layer.name][kernel] = all(torch.equal(after[task], before[task]) for task in before)
    return found


def made(name, **how):
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    network = make(**how).double()
    for module in network.modules():
        for child, activation in module.named_children():
            if isinstance(activation, nn.ReLU):
                setattr(module, child, nn.LeakyReLU(0.3))  # a ReLU that is closed hides what would have been read
    return network.eval(), torch.randn(shape, generator=generator(2), dtype=torch.float64)


def assert_as_by_force(network, images):
    expected, found = dead_by_force(network, images), network.dead_kernels()
    assert list(found) == list(expected)
    for layer, dead in expected.items():
        assert found[layer].tolist() == dead.tolist(), layer
    return sum(int(dead.sum()) for dead in expected.values())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_kernel_is_dead_exactly_when_other_weights_change_no_output(name):
    dead, kernels = 0, 0
    for seed in range(3):
        network, images = made(name)
        (fix_unevenly if seed else fix_at_random)(network, seed)
        dead += assert_as_by_force(network, images)
        kernels += sum(layer.kernels for layer in network.grouped_layers())
    assert dead < kernels
    # In these all kernels are tied to each other, or in one layer that all heads read.
    assert dead > 0 or name in ("recurrent", "ends in copies"), "nothing was tested"


@pytest.mark.parametrize("method", fg.METHODS)
@pytest.mark.parametrize("name", ["vgg11", "highresnet", "resnet18", "unet", "mobilenet", "sliced"])
def test_it_holds_for_every_method(name, method):
    network, images = made(name, method=method)
    assert_as_by_force(network, images)


def test_a_learned_network_is_looked_at_in_its_mode():
    network, images = made("sliced")
    for assignment in network.assignments():
        assignment.rho.data.copy_(torch.randn(assignment.rho.shape, generator=generator(3)))
    assert network.is_random
    assert assert_as_by_force(network, images) > 0


@pytest.mark.parametrize("name", ["vgg11", "highresnet", "unet", "sliced"])
def test_for_some_tasks_it_counts_what_their_heads_depend_on(name):
    network, _ = made(name)
    fix_at_random(network, 1)
    task = network.tasks[0].name
    everyone, head = network.dead_kernels(), network.heads
    alone = network.dead_kernels([task])
    assert all(bool((alone[layer] >= dead).all()) for layer, dead in everyone.items())
    other = next(g for g in network.family.specialists if network.family.names[g] != task)
    for layer in network.grouped_layers():
        assert alone[layer.name][layer.assignment.mode() == other].all()
    assert network.heads is head


def test_nothing_of_the_network_is_changed_by_looking():
    network, _ = made("mobilenet")
    network.train()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.dead_kernels()
    assert network.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
