"""What a network costs at a given grouping: multiplications of one image, as a function of p.

A pass with everything shared is recorded once: how many multiplications each layer takes for a pair (kernel, channel),
and which kernels made the channels that it reads. Channel c is present in the stream of group h if any of the kernels
S_c that are added up in it belongs to h:

    P(c in h) = 1 − Π_{k ∈ S_c} (1 − p_kh)                                         = p_kh for one kernel
    E[layer]  = unit · Σ_{g ⊆ h} (Σ_k p_kg) · (Σ_c P(c in h))                       a grouped convolution
    E[module] = unit · Σ_h P(any channel in h)                                      a module copied for each stream

The kernels' groups are drawn independently, so that this is the mean over hard gates; a kernel that reads a channel of
its own assignment (tied layers) is accounted for. It is not exact where a kernel reads a sum that it is itself a part
of without being tied to the rest of it. For one-hot p it is the count of the mode network, always.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from filtergroups.groups.assignment import Assignment, TiedRows, equal_parts, one_hot
from filtergroups.groups.draw import Draw, Gates
from filtergroups.groups.layer import ConcatMerge, DepthwiseConv, GroupedConv, PerStream
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import Layout, Streams
from filtergroups.groups.survey import evaluated


@dataclass(frozen=True)
class Reading:
    """Readers of group g read what is present in group h where the matrix `may_read` says so."""

    unit: int  # multiplications of one reader and one channel
    readers: Tensor  # sources of presence, see CostModel.presence
    channels: Tensor
    may_read: Tensor  # G × G


class CostModel:
    """The multiplications of one image as a function of p (K × G for every assignment, in the network's order).

    All sums run in double precision on the CPU, in which counts up to 2⁵³ are exact.
    """

    def __init__(
        self,
        family: Family,
        kernels: Sequence[int],
        sets: Sequence[frozenset[int]],
        plain: int,
        constant: int,
        readings: Sequence[Reading],
        present: Sequence[tuple[int, Tensor, Sequence[int]]],
    ) -> None:
        """sets: for each source of presence its kernels (rows of all p together; the last is the image).

        present: (unit, sources, groups), paid for each source in each of the groups.
        """
        self.family = family
        self.kernels = tuple(kernels)
        self.plain = plain  # the plain backbone with the heads
        self.constant = constant  # what does not depend on the grouping
        self._single = torch.tensor([next(iter(s)) for s in sets])
        self._joint = _by_size(sets)
        self._linear = torch.zeros(len(sets), len(family), dtype=torch.float64)
        for unit, sources, groups in present:
            for group in groups:
                self._linear[:, group].index_add_(0, sources, torch.full((len(sources),), float(unit)).double())
        self._unit = torch.tensor([float(one.unit) for one in readings], dtype=torch.float64)
        self._may_read = torch.stack([one.may_read for one in readings]).double()
        self._readers = torch.stack([_counts(one.readers, len(sets)) for one in readings])
        self._channels = torch.stack([_counts(one.channels, len(sets)) for one in readings])
        # Pairs of a kernel and a channel that are one random variable, by that variable.
        alone = torch.tensor([len(members) == 1 for members in sets])
        own = (self._readers * self._channels * self._unit[:, None]).sum(0) * alone
        self._own = own if bool(own.any()) else None
        self._readable = torch.tensor(family.readable).double()

    def expected(self, probabilities: Sequence[Tensor]) -> Tensor:
        """The mean over hard gates drawn from p; differentiable."""
        presence = self.presence(probabilities)
        readers, channels = self._readers @ presence, self._channels @ presence
        read = torch.einsum("l,lgh,lg,lh->", self._unit, self._may_read, readers, channels)
        total = self.constant + (self._linear * presence).sum() + read
        if self._own is not None:
            # A kernel is in the group of a channel of its own: it always reads it.
            together = torch.einsum("kg,gh,kh->k", presence, self._readable, presence)
            total = total + (self._own * (1 - together)).sum()
        return total

    def of_groups(self, groups: Sequence[Tensor]) -> int:
        """The exact count for hard groups (K indices for every assignment)."""
        like = [torch.zeros(len(of), len(self.family), dtype=torch.float64) for of in groups]
        hard = [one_hot(of.cpu(), zeros) for of, zeros in zip(groups, like, strict=True)]
        return int(self.expected(hard).item())

    def presence(self, probabilities: Sequence[Tensor]) -> Tensor:
        """P(in h) of every source of presence: sources × G."""
        image = torch.zeros(1, len(self.family), dtype=torch.float64)
        image[0, self.family.full] = 1
        rows = torch.cat([*(p.to("cpu", torch.float64) for p in probabilities), image])
        presence = rows[self._single]
        for places, members in self._joint:
            presence = presence.index_copy(0, places, 1 - (1 - rows[members]).prod(1))
        return presence

    def evenly_split(self) -> int:
        """The count with kernels split evenly among the smallest groups, none shared: the tasks' own, if they have one.

        Less is had only by groups that read nothing: a layer of one task after a layer of another.
        """
        sets = self.family.sets
        smallest = tuple(g for g, group in enumerate(sets) if not any(other < group for other in sets))
        return self.of_groups([equal_parts(kernels, smallest) for kernels in self.kernels])


def _counts(sources: Tensor, size: int) -> Tensor:
    return torch.bincount(sources, minlength=size).double()


def _by_size(sets: Sequence[frozenset[int]]) -> list[tuple[Tensor, Tensor]]:
    """Sources that are sums of several kernels: (places, n × size members) for every size."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, members in enumerate(sets):
        if len(members) > 1:
            found[len(members)].append(place)
    return [(torch.tensor(at), torch.tensor([sorted(sets[place]) for place in at])) for at in found.values()]


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
