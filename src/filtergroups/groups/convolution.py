"""One kernel bank convolved for every group, each pair computed once.

Convolution is linear, so the merge of streams can be summed after it: what group g reads is
    merged_g * M = Σ_{h ⊇ g} (gate_h · F_h) * M.
Each stream h is convolved once with the kernels that any of its readers keeps, and the results are added pair by pair.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from filtergroups.groups.routing import Family
from filtergroups.groups.streams import Layout, Segment, Streams

Convolve = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Rows:
    """Some of the kernels of a convolution: a run of them, or a list."""

    start: int
    size: int
    index: Tensor | None = None  # None: the run start … start + size

    @staticmethod
    def of(indices: Tensor, device: torch.device) -> "Rows":
        start, size = int(indices[0]), len(indices)
        if int(indices[-1]) - start == size - 1 and bool((indices[1:] - indices[:-1] == 1).all()):
            return Rows(start, size)
        return Rows(start, size, indices.to(device))

    def take(self, tensor: Tensor, axis: int) -> Tensor:
        if self.index is not None:
            return tensor.index_select(axis, self.index)
        if self.start == 0 and self.size == tensor.shape[axis]:
            return tensor
        return tensor.narrow(axis, self.start, self.size)


@dataclass(frozen=True)
class Source:
    """One stream to convolve: its segments and kernels, the kernels to convolve it with, and where the results go."""

    segments: tuple[Segment, ...]
    channels: Rows
    rows: Rows
    targets: dict[int, Rows]  # output segment -> which of the rows
    adds_bias: bool = False


@dataclass(frozen=True)
class Plan:
    """Which stream is convolved with which kernels, for one layout of the input and one of the output."""

    source: Layout
    target: Layout
    device: torch.device
    sources: tuple[Source, ...]
    bias_apart: bool  # no choice of sources adds each pair's bias exactly once, so it is added at the end

    def fits(self, source: Layout, target: Layout, device: torch.device) -> bool:
        return self.source is source and self.target is target and self.device == device


def plan(family: Family, source: Layout, target: Layout, device: torch.device) -> Plan:
    sources = []
    reads = dict.fromkeys(range(len(target.segments)), 0)
    for group in source.present:
        readers = [n for n, s in enumerate(target.segments) if _may_read(family, s.group, group, source.merged)]
        if not readers:
            continue
        place = torch.full((target.width,), -1)
        rows: list[Tensor] = []
        count = 0
        targets = {}
        for n in readers:
            segment = target.segments[n]
            kernels = target.kernels[segment.start : segment.stop]
            new = kernels[place[kernels] < 0]
            place[new] = torch.arange(count, count + len(new))
            count += len(new)
            rows.append(new)
            targets[n] = Rows.of(place[kernels], device)
            reads[n] += 1
        segments = source.of_group(group)
        channels = torch.cat([source.kernels[segment.start : segment.stop] for segment in segments])
        sources.append(Source(segments, Rows.of(channels, device), Rows.of(torch.cat(rows), device), targets))
    # The stream of the full set is read by all; without it, a bias goes with the only source of each pair.
    for n, one in enumerate(sources):
        if len(one.targets) == len(target.segments):
            sources[n] = replace(one, adds_bias=True)
            return Plan(source, target, device, tuple(sources), bias_apart=False)
    single = all(count == 1 for count in reads.values())
    return Plan(source, target, device, tuple(replace(one, adds_bias=single) for one in sources), bias_apart=not single)


def _may_read(family: Family, reader: int, source: int, merged: bool) -> bool:
    return reader == source if merged else family.readable[reader][source]


def convolve_streams(
    streams: Streams,
    planned: Plan,
    weight: Tensor,
    bias: Tensor | None,
    convolve: Convolve,
    *,
    kernel_axis: int = 0,
) -> Tensor:
    """The packed output: Σ over the streams h that each pair may read of (gate_h · F_h) * M.

    weight: kernels × channels × …, or channels × kernels × … with kernel_axis 1 (transposed convolution).
    """
    channel_axis = 1 - kernel_axis
    gate = streams.gate
    per_example = gate is not None and gate.shape[0] > 1
    packed = streams.read() if per_example else streams.packed
    pieces: list[list[Tensor]] = [[] for _ in planned.target.segments]
    for source in planned.sources:
        kernels = source.rows.take(source.channels.take(weight, channel_axis), kernel_axis)
        if gate is not None and not per_example:
            # A gate for the whole batch scales the weights, which are fewer than the features.
            shape = [1] * weight.ndim
            shape[channel_axis] = -1
            kernels = kernels * _slices(gate, source.segments).reshape(shape)
        own_bias = source.rows.take(bias, 0) if bias is not None and source.adds_bias else None
        features = convolve(_slices(packed, source.segments), kernels, own_bias)
        for n, rows in source.targets.items():
            pieces[n].append(rows.take(features, 1))
    if not all(pieces):
        _fill_with_nothing(pieces, planned, packed, weight, convolve, kernel_axis)
    summed = [_sum(parts) for parts in pieces]
    result = summed[0] if len(summed) == 1 else torch.cat(summed, 1)
    if bias is not None and planned.bias_apart:
        result = result + bias[planned.target.index(bias.device)[1]].reshape(-1, *[1] * (result.ndim - 2))
    return result


def _slices(packed: Tensor, segments: tuple[Segment, ...]) -> Tensor:
    if len(segments) == 1:
        segment = segments[0]
        return packed if segment.size == packed.shape[1] else packed.narrow(1, segment.start, segment.size)
    return torch.cat([packed.narrow(1, segment.start, segment.size) for segment in segments], 1)


def _sum(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _fill_with_nothing(
    pieces: list[list[Tensor]], planned: Plan, packed: Tensor, weight: Tensor, convolve: Convolve, kernel_axis: int
) -> None:
    """Kernels whose group has nothing to read give 0 before the bias."""
    blank = packed.new_zeros(packed.shape[0], 1, *packed.shape[2:])
    kernel = weight.new_zeros([1, 1, *weight.shape[2:]])
    zero = convolve(blank, kernel, None)
    for parts, segment in zip(pieces, planned.target.segments, strict=True):
        if not parts:
            parts.append(zero.expand(-1, segment.size, *[-1] * (zero.ndim - 2)))
