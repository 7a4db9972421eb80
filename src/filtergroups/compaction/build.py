"""From a grouped network to its compact form."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from filtergroups.compaction.passes import compacted, multiplications
from filtergroups.compaction.recording import record_for_any_size
from filtergroups.compaction.steps import CompactNetwork
from filtergroups.groups.assignment import Assignment, TiedRows
from filtergroups.groups.draw import Draw, Gates, some_kernels
from filtergroups.groups.layer import GroupedConv
from filtergroups.groups.streams import Layout
from filtergroups.network import GroupedNetwork


def compact(
    network: GroupedNetwork, tasks: Sequence[str] | None = None, *, image_shape: Sequence[int] | None = None
) -> CompactNetwork:
    """The plain network that is left when every kernel is in its most probable group.

    Its outputs are those of `network` at evaluation. tasks: only what these need; None: all. image_shape: channels and
    space to build it for; None: what the backbone was lifted with. Other sizes work where the network's code allows it.
    """
    asked = _asked(network, tasks)
    with network.evaluating("running"), torch.no_grad():
        recording, varies = record_for_any_size(_WithoutDead(network, asked), _image(network, image_shape))
    smaller = compacted(recording, asked)
    made = CompactNetwork(smaller.steps, smaller.weights, smaller.outputs)
    made.image_shape, made.varies = recording.shapes[0][1:], varies
    made.multiplications = multiplications(smaller)
    return made.eval()


class _WithoutDead(nn.Module):
    """A network at its mode without the kernels that no head of these tasks depends on."""

    def __init__(self, network: GroupedNetwork, tasks: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        unread = network.liveness(tasks).unread
        self.live = _Live(network, [~dead for dead in unread])

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        with self.live.followed():
            return self.network.drawn(images, self.live)


class _Live(Draw):
    """Each kernel in its most probable group, and dead ones in none."""

    def __init__(self, network: GroupedNetwork, live: Sequence[Tensor]) -> None:
        super().__init__(network.family)
        self.layouts: dict[GroupedConv, Layout] = {}
        for layer, alive in zip(network.grouped_layers(), live, strict=True):
            # A layer that nobody reads stays whole: it is left out as a step.
            chosen = alive if bool(alive.any()) else torch.ones_like(alive)
            self.layouts[layer] = some_kernels(layer.assignment.mode().cpu(), chosen)

    def kept(self, assignment: Assignment | TiedRows) -> tuple[Layout, Gates]:
        return self.layouts[self.current], None

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Know which layer asks: tied ones ask for the same assignment, but need not be read alike."""

        def enter(layer: nn.Module, args: tuple[Any, ...]) -> None:
            assert isinstance(layer, GroupedConv)
            self.current = layer

        handles = [layer.register_forward_pre_hook(enter) for layer in self.layouts]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _asked(network: GroupedNetwork, tasks: Sequence[str] | None) -> list[str]:
    known = [task.name for task in network.tasks]
    for task in tasks or ():
        if task not in known:
            raise ValueError(f"a task is one of {known}, found {task!r}; choose one of these")
    return [task for task in known if tasks is None or task in tasks]


def _image(network: GroupedNetwork, image_shape: Sequence[int] | None) -> Tensor:
    """Two images to record with; noise, as nothing depends on what they show."""
    shape = network.image_shape if image_shape is None else tuple(image_shape)
    weight = next(network.grouped_layers()).weight
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, *shape, generator=generator).to(weight.device, weight.dtype)
