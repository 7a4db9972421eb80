"""Which kernels serve nobody: a pass of the network at its mode in which every channel knows what it depends on.

A specialist that no later layer of its group can read is computed for nothing, and so is a kernel that has nothing to
read itself. With every kernel in one group it is the structure of the network that decides this, not its weights:

    k reads j   ⇔  j is added up in a channel of a stream h that k's group g may read (g ⊆ h)
    k is dead   ⇔  no chain of readers leads from k to a task's head, or k reads nothing

Then no output depends on the weights of k. Skips, concatenations, slices, products, tied layers, modules of their own
for each stream and cross-stitch units are followed as the forward code runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from filtergroups.groups.assignment import Assignment, TiedRows
from filtergroups.groups.draw import Draw, Gates, one_pair_each
from filtergroups.groups.layer import GroupedConv, PerStream
from filtergroups.groups.norms import GroupedGroupNorm
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import Layout, Streams
from filtergroups.groups.survey import evaluated

IMAGE = 0
Nodes = frozenset[int]  # the image (0), kernels, and what a module made of a stream


class Dependencies(Draw):
    """The mode of a network, whose channels carry what they depend on: an index into `sets`, or -1 for a zero."""

    def __init__(self, family: Family, groups: Mapping[GroupedConv, Tensor]) -> None:
        super().__init__(family)
        self.groups = groups  # of each layer's kernels
        self.first: dict[GroupedConv, int] = {}
        self.nodes = IMAGE + 1
        for layer, of_kernels in groups.items():
            self.first[layer] = self.nodes
            self.nodes += len(of_kernels)
        self.sets: list[Nodes] = []
        self.places: dict[Nodes, int] = {}
        self.reads: dict[int, Nodes] = {}

    def entered(self, layer: GroupedConv) -> None:
        self.current = layer

    def kept(self, assignment: Assignment | TiedRows) -> tuple[Layout, Gates]:
        return one_pair_each(tuple(self.groups[self.current].tolist())), None

    def image_layout(self, channels: int) -> Layout:
        place = self._place(frozenset({IMAGE}))
        return Layout.whole(channels, [self.family.full], origins=(torch.full((channels,), place),))

    def united(self, one: Tensor, other: Tensor) -> Tensor:
        """A sum or a product depends on what either of its parts depends on."""
        return torch.tensor([self._both(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True)])

    def _both(self, one: int, other: int) -> int:
        return (
            max(one, other) if one == other or min(one, other) < 0 else self._place(self.sets[one] | self.sets[other])
        )

    def _place(self, nodes: Nodes) -> int:
        if nodes not in self.places:
            self.places[nodes] = len(self.sets)
            self.sets.append(nodes)
        return self.places[nodes]

    def all_of(self, origins: Tensor) -> Nodes:
        """What some channels depend on together."""
        return frozenset().union(*(self.sets[place] for place in origins.unique().tolist() if place >= 0))

    def of_groups(self, streams: Streams, groups: Sequence[int]) -> Nodes:
        """What whoever reads these groups depends on."""
        return frozenset().union(
            *(self.all_of(origins) for group, origins in _by_group(streams) if group in groups)
        )  # fmt: skip

    def multiplied(self, one: Tensor, other: Tensor) -> Tensor:
        """What is multiplied by a zero is one."""
        return torch.where((one >= 0) & (other >= 0), self.united(one, other), -1)

    def ran(self, module: nn.Module, streams: Streams, output: Streams) -> Streams:
        """The output of a module that does not leave each channel by itself, with what its channels depend on."""
        if isinstance(module, GroupedConv):
            return self._of_layer(module, streams.settled(), output)
        if isinstance(module, PerStream):
            streams = streams.settled()
            return _with_origins(output, [self._of_copy(streams, group) for group in output.pairs.groups])
        if isinstance(module, GroupedGroupNorm):
            size = module.channels // module.channel_groups
            return _with_origins(output, [self._in_buckets(output.pairs, n, size) for n in range(len(output.parts))])
        return _with_origins(output, self._mixed(module, streams))

    def _of_layer(self, layer: GroupedConv, streams: Streams, output: Streams) -> Streams:
        origins = []
        for group, kernels in zip(output.pairs.groups, output.pairs.kernels, strict=True):
            readable = [h for h, may_read in enumerate(self.family.readable[group]) if may_read]
            sources = self.of_groups(streams, readable)
            nodes = (self.first[layer] + kernels.indices()).tolist()
            for node in nodes:
                self.reads[node] = self.reads.get(node, frozenset()) | sources
            origins.append(torch.tensor([self._place(frozenset({node})) for node in nodes]))
        return _with_origins(output, origins)

    def _of_copy(self, streams: Streams, group: int) -> Tensor:
        """A stream's own copy of a module may use all of the stream in all that it gives."""
        node, self.nodes = self.nodes, self.nodes + 1
        self.reads[node] = self.of_groups(streams, [group])
        return torch.tensor([self._place(frozenset({node}))])

    def _in_buckets(self, pairs: Layout, stream: int, size: int) -> Tensor:
        """The channels of a bucket share their statistics."""
        assert pairs.origins is not None
        origins, buckets = pairs.origins[stream].clone(), pairs.kernels[stream].indices() // size
        for bucket in buckets.unique():
            origins[buckets == bucket] = self._place(self.all_of(origins[buckets == bucket]))
        return origins

    def _mixed(self, stitch: nn.Module, streams: Streams) -> list[Tensor]:
        """A cross-stitch unit adds up the channels that the tasks have at the same slot."""
        slots: Any = stitch.slots
        at_slot: dict[int, int] = {}
        found = [
            (slots[kernels.indices()].tolist(), origins.tolist())
            for kernels, (_, origins) in zip(streams.pairs.kernels, _by_group(streams), strict=True)
        ]
        for of_stream, origins in found:
            for slot, origin in zip(of_stream, origins, strict=True):
                at_slot[slot] = self._both(at_slot.get(slot, -1), origin)
        return [torch.tensor([at_slot[slot] for slot in of_stream]) for of_stream, _ in found]


def _by_group(streams: Streams) -> list[tuple[int, Tensor]]:
    assert streams.pairs.origins is not None
    return list(zip(streams.pairs.groups, streams.pairs.origins, strict=True))


def _with_origins(streams: Streams, origins: Sequence[Tensor]) -> Streams:
    """The same features; one origin stands for all channels of a stream."""
    runs = streams.pairs.kernels
    each = tuple(of_stream.expand(run.size) for of_stream, run in zip(origins, runs, strict=True))
    return Streams(streams.parts, replace(streams.pairs, origins=each), streams.gates, streams.draw, streams.stitch)


@dataclass(frozen=True)
class Liveness:
    """For each layer, in the network's order, which kernels (K booleans) do not count, and why."""

    unread: tuple[Tensor, ...]  # no head depends on them
    blind: tuple[Tensor, ...]  # they read nothing: what they give is a constant

    @property
    def dead(self) -> tuple[Tensor, ...]:
        return tuple(unread | blind for unread, blind in zip(self.unread, self.blind, strict=True))

    def __str__(self) -> str:
        """'3 of 40 kernels are dead (no task depends on them): 2 in layer 3, 1 in layer 5'."""
        return told([int(of_layer.sum()) for of_layer in self.dead], sum(len(of_layer) for of_layer in self.dead))


def told(dead: Sequence[int], kernels: int) -> str:
    """How many kernels are dead, in all and by layer, in words."""
    total = sum(dead)
    if not total:
        return f"none of {kernels} kernels is dead"
    where = ", ".join(f"{count} in layer {n}" for n, count in enumerate(dead, start=1) if count)
    return f"{total} of {kernels} kernels {'is' if total == 1 else 'are'} dead (no task depends on them): {where}"


def liveness(
    backbone: nn.Module, groups: Mapping[GroupedConv, Tensor], family: Family, tasks: Sequence[str], images: Tensor
) -> Liveness:
    """Follow one pass with hard groups (K indices for each layer); tasks: whose heads count."""
    pass_ = Dependencies(family, groups)
    with _following(backbone, pass_):
        features = evaluated(backbone, Streams.of_image(images, pass_))
        leaves = [leaf.settled() for leaf in tree_flatten(features)[0] if isinstance(leaf, Streams)]
    read_by_heads = {group for task in tasks for group in family.containing(task)}
    needed: set[int] = set()
    waiting = set().union(*(pass_.of_groups(leaf, sorted(read_by_heads)) for leaf in leaves))
    while waiting:
        needed |= waiting
        waiting = set().union(*(pass_.reads.get(node, frozenset()) for node in waiting)) - needed
    unread, blind = [], []
    for layer, first in pass_.first.items():
        nodes = range(first, first + len(groups[layer]))
        unread.append(torch.tensor([node not in needed for node in nodes]))
        blind.append(torch.tensor([not pass_.reads.get(node) for node in nodes]))
    return Liveness(tuple(unread), tuple(blind))


@contextmanager
def _following(backbone: nn.Module, pass_: Dependencies) -> Iterator[None]:
    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, GroupedConv):
            pass_.entered(module)

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return pass_.ran(module, args[0], output)

    stitches = [layer.stitch for layer in pass_.groups]
    handles = []
    for module in backbone.modules():
        if isinstance(module, (GroupedConv, PerStream, GroupedGroupNorm)) or module in stitches:
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
