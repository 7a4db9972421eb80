"""Properties that hold for every grouped network, and what they need."""

import torch
from torch import Tensor, nn

import filtergroups as fg
from filtergroups.groups.assignment import Assignment, TiedRows


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randomise(network: nn.Module, seed: int = 0) -> None:
    """Give every parameter a random value: no shift is 0 and no copy equals another."""
    g = generator(seed)
    for module in network.modules():
        if not isinstance(module, (Assignment, TiedRows)):
            for parameter in module.parameters(recurse=False):
                with torch.no_grad():
                    parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=parameter.dtype) * 0.3)


def fix_at_random(network: fg.GroupedNetwork, seed: int = 0) -> None:
    """Hard gates: every kernel in a random group."""
    g = generator(seed)
    for assignment in network.assignments():
        assignment.fix(torch.randint(len(network.family), (assignment.kernels,), generator=g))


def strangers(network: fg.GroupedNetwork, task: str) -> list[tuple[nn.Parameter, int, Tensor]]:
    """For each layer its weight, the kernel axis, and the kernels whose group does not contain the task."""
    own = torch.tensor(network.family.containing(task))
    return [
        (layer.weight, 1 if layer.transposed else 0, ~torch.isin(layer.assignment.mode(), own))
        for layer in network.grouped_layers()
    ]


def assert_task_loss_leaves_strangers_untouched(network: fg.GroupedNetwork, images: Tensor) -> None:
    for task in network.tasks:
        network.zero_grad()
        network(images)[task.name].square().sum().backward()
        for weight, axis, others in strangers(network, task.name):
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            of_kernels = gradient.movedim(axis, 0)
            assert torch.equal(of_kernels[others], torch.zeros_like(of_kernels[others]))


def assert_some_own_kernel_is_reached(network: fg.GroupedNetwork, images: Tensor) -> None:
    """The law above would also hold for a network that does nothing."""
    for task in network.tasks:
        network.zero_grad()
        network(images)[task.name].square().sum().backward()
        reached = [
            bool((weight.grad.movedim(axis, 0)[~others] != 0).any())
            for weight, axis, others in strangers(network, task.name)
            if weight.grad is not None and (~others).any()
        ]
        assert any(reached)


def assert_output_ignores_strangers(network: fg.GroupedNetwork, images: Tensor) -> None:
    for task in network.tasks:
        before = network(images)[task.name].detach().clone()
        changed = 0
        with torch.no_grad():
            for weight, axis, others in strangers(network, task.name):
                weight.movedim(axis, 0)[others] += 1.5
                changed += int(others.sum())
        assert changed > 0
        assert torch.equal(network(images)[task.name], before)


def assert_same_seed_same_outputs(network: fg.GroupedNetwork, images: Tensor) -> None:
    state = torch.get_rng_state()
    one, two = (network(images, temperature=0.5, generator=generator(3)) for _ in range(2))
    other = network(images, temperature=0.5, generator=generator(4))
    assert torch.equal(torch.get_rng_state(), state), "the global random state was touched"
    for task in network.tasks:
        assert torch.equal(one[task.name], two[task.name])
        assert not torch.equal(one[task.name], other[task.name])
