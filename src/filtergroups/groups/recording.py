"""Finding a network's cost model: a pass with everything shared in which channels carry the kernels that made them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from filtergroups.groups.assignment import Assignment, TiedRows
from filtergroups.groups.cost import CostModel, Reading
from filtergroups.groups.draw import Draw, Gates
from filtergroups.groups.layer import ConcatMerge, DepthwiseConv, GroupedConv, PerStream
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import Layout, Streams
from filtergroups.groups.survey import evaluated


class Recorder(Draw):
    """A pass with everything shared in which every channel carries the kernels that are added up in it.

    A channel's origin is an index into `sets`. Rows of all assignments together are numbered through; after them comes
    the image, which is always in the full group.
    """

    def __init__(self, family: Family, layers: Iterable[GroupedConv]) -> None:
        super().__init__(family)
        self.first: dict[Assignment, int] = {}
        count = 0
        for layer in layers:
            base = layer.assignment.base if isinstance(layer.assignment, TiedRows) else layer.assignment
            if base not in self.first:
                self.first[base] = count
                count += base.kernels
        self.image = count
        self.sets = [frozenset({row}) for row in range(count + 1)]
        self.places = {members: place for place, members in enumerate(self.sets)}
        self.readings: list[Reading] = []
        self.present: list[tuple[int, Tensor, Sequence[int]]] = []
        self.counted = 0  # multiplications that a reading or a presence accounts for
        self.readable = torch.tensor(family.readable)

    def rows(self, assignment: Assignment | TiedRows) -> Tensor:
        if isinstance(assignment, TiedRows):
            return self.first[assignment.base] + assignment.rows.cpu()
        return self.first[assignment] + torch.arange(assignment.kernels)

    def kept(self, assignment: Assignment | TiedRows) -> tuple[Layout, Gates]:
        origins = self.rows(assignment)
        return Layout.whole(len(origins), [self.family.full], origins=(origins,)), None

    def image_layout(self, channels: int) -> Layout:
        return Layout.whole(channels, [self.family.full], origins=(torch.full((channels,), self.image),))

    def united(self, one: Tensor, other: Tensor) -> Tensor:
        """A sum is present where any of its parts is."""
        return torch.tensor([self._either(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True)])

    def _either(self, one: int, other: int) -> int:
        if one == other or min(one, other) < 0:
            return max(one, other)
        return self._place(self.sets[one] | self.sets[other])

    def _place(self, members: frozenset[int]) -> int:
        if members not in self.places:
            self.places[members] = len(self.sets)
            self.sets.append(members)
        return self.places[members]

    def any_of(self, sources: Tensor) -> Tensor:
        """Is a stream there at all?"""
        return torch.tensor(
            [self._place(frozenset().union(*(self.sets[place] for place in sources.unique().tolist())))]
        )

    def ran(self, module: nn.Module, streams: Streams, output: Any, multiplications: int) -> Any:
        """Note what a module did; its output, with origins where it has new ones."""
        channels = origins(streams)
        if isinstance(module, GroupedConv):
            readers = self.rows(module.assignment)
            if module.merge is not None:
                # Each kernel reads the whole width of its group's merge, whatever its group: a constant.
                positions = prod(streams.parts[0].shape[2:])
                self.merged(module.merge, streams.pairs.width, positions, self.any_of(readers), self.any_of(channels))
            else:
                unit = multiplications // (len(readers) * streams.pairs.kernels[0].size)
                self.readings.append(Reading(unit, readers, channels, self.readable))
                self.counted += unit * len(readers) * len(channels)
        elif isinstance(module, DepthwiseConv):
            unit = multiplications // streams.pairs.kernels[0].size
            self.present.append((unit, channels, range(len(self.family))))
            self.counted += unit * len(channels)
        elif isinstance(module, PerStream):
            alive = self.any_of(channels)
            self.present.append((multiplications, alive, range(len(self.family))))
            self.counted += multiplications
            pairs = replace(output.pairs, origins=(alive.expand(output.pairs.width),))
            return Streams(output.parts, pairs, output.gates, output.draw)
        return output

    def merged(self, merge: ConcatMerge, width: int, positions: int, target: Tensor, source: Tensor) -> None:
        """The 1×1 convolutions of a merge: width × width for each stream that a group with several sources reads."""
        several = torch.tensor([[name in merge.weights] for name in self.family.names])
        self.readings.append(Reading(width * width * positions, target, source, self.readable & several))

    def merged_for_task(self, merge: ConcatMerge, task: str, streams: Streams) -> None:
        if task in merge.weights:
            unit = streams.pairs.width**2 * prod(streams.parts[0].shape[2:])
            self.present.append((unit, self.any_of(origins(streams)), merge.readers[task]))


def origins(streams: Streams) -> Tensor:
    """What the channels of the one stream of a recorded pass come from; channels that are always 0 are left out."""
    assert streams.pairs.origins is not None
    found = streams.pairs.origins[0]
    return found[found >= 0]


def record(
    backbone: nn.Module,
    layers: Sequence[GroupedConv],
    merges: Sequence[nn.Module],
    heads: Mapping[str, nn.Module],
    family: Family,
    images: Tensor,
) -> CostModel:
    """Find the cost model of a lifted backbone and its heads for images of this shape."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import, and few need it

    recorder = Recorder(family, layers)
    batch = images.shape[0]
    with FlopCounterMode(display=False) as counter, _unstitched(layers):

        def multiplications() -> int:
            flops: int = counter.get_total_flops()  # a multiplication and an addition each
            return flops // (2 * batch)

        with _noting(backbone, recorder, multiplications):
            features = evaluated(_Network(backbone, heads), Streams.of_image(images, recorder))
        plain = multiplications()
    for leaf, merge in zip(tree_flatten(features)[0], merges, strict=True):
        if isinstance(leaf, Streams) and isinstance(merge, ConcatMerge):
            for task in heads:
                recorder.merged_for_task(merge, task, leaf)
    kernels = [assignment.kernels for assignment in recorder.first]
    constant = plain - recorder.counted
    return CostModel(family, kernels, recorder.sets, plain, constant, recorder.readings, recorder.present)


class _Network(nn.Module):
    """The backbone and all heads on what it gives, everything shared."""

    def __init__(self, backbone: nn.Module, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.backbone, self.heads = backbone, nn.ModuleDict(heads)

    def forward(self, streams: Streams) -> Any:
        features = self.backbone(streams)
        dense = tree_map(lambda leaf: leaf.dense([leaf.family.full]) if isinstance(leaf, Streams) else leaf, features)
        for head in self.heads.values():
            head(dense)
        return features


@contextmanager
def _noting(backbone: nn.Module, recorder: Recorder, multiplications: Any) -> Iterator[None]:
    before: dict[nn.Module, int] = {}

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        before[module] = multiplications()

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return recorder.ran(module, args[0], output, multiplications() - before[module])

    handles = []
    for module in backbone.modules():
        if isinstance(module, (GroupedConv, DepthwiseConv, PerStream)):
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _unstitched(layers: Sequence[GroupedConv]) -> Iterator[None]:
    """Without cross-stitch units: they mix the tasks' streams, of which a pass with everything shared has none."""
    stitches = [layer.stitch for layer in layers]
    try:
        for layer in layers:
            layer.stitch = None
        yield
    finally:
        for layer, stitch in zip(layers, stitches, strict=True):
            layer.stitch = stitch
