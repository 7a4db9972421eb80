"""The kernels convolved for every group, in the cheaper of two orders.

What the kernels of group g give is merged_g * M, where merged_g = Σ_{h ⊇ g} gate_h · F_h.
By reader: the streams that g reads are laid side by side and convolved with the kernels that g keeps.
By source: convolution is linear, so Σ_h (gate_h · F_h) * M is the same; each stream h is convolved once, with every
kernel that any of its readers keeps, and the results are added. Cheaper where kernels are kept in several groups.
All groups read one bank of kernels, or, while groups are learned, each a bank of its own: then kernel k of group g is
row g · K + k of the weights, no two readers share a kernel, and where all that a reader reads has the same channels it
is added up first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce

import torch
from torch import Tensor

from filtergroups.groups.routing import Family
from filtergroups.groups.streams import Layout, Run, Streams, over_space

Convolve = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Product:
    """One convolution: of which streams, with which kernels, and which of the results each output stream takes."""

    streams: tuple[int, ...]
    channels: Run
    kernels: Run
    targets: dict[int, Run]  # output stream -> which of the kernels
    split: tuple[int, ...] | None  # the sizes, where the output streams take the results one after the other
    adds_bias: bool = False
    added: bool = False  # the streams have the same channels, and are added up before they are convolved

    @property
    def size(self) -> int:
        return self.channels.size * self.kernels.size


@dataclass(frozen=True)
class Plan:
    """What is convolved with what, for one layout of the input and one of the output."""

    source: Layout
    target: Layout
    products: tuple[Product, ...]
    bias_apart: bool  # no choice of products adds each pair's bias exactly once, so it is added at the end
    own_banks: bool
    rows: Run | None = None  # all kernels in the order of the products, where none is in two of them

    def bank(self, n: int) -> Run:
        """Rows of the weights that output stream n is made by."""
        return _bank(self.target, n, self.own_banks)

    def fits(self, source: Layout, target: Layout) -> bool:
        return self.source is source and self.target is target


def plan(family: Family, source: Layout, target: Layout, own_banks: bool = False) -> Plan:
    """Choose the order with fewer multiplications; by reader where they are equal, as nothing is added then."""
    reads = {
        n: tuple(s for s, h in enumerate(source.groups) if _may_read(family, g, h, source.merged))
        for n, g in enumerate(target.groups)
    }
    by_reader = [_product(source, target, streams, [n], own_banks) for n, streams in reads.items() if streams]
    by_source = [
        _product(source, target, (s,), readers, own_banks)
        for s in range(len(source.groups))
        if (readers := sorted((n for n in reads if s in reads[n]), key=lambda n: -target.kernels[n].size))
    ]
    if own_banks:
        by_reader = [_added(one, source) for one in by_reader]
    if sum(one.size for one in by_reader) <= sum(one.size for one in by_source):
        apart = not all(reads.values())
        products = tuple(replace(one, adds_bias=not apart) for one in by_reader)
        rows = torch.cat([one.kernels.indices() for one in products]) if products else torch.empty(0)
        distinct = len(products) > 1 and len(rows) == len(rows.unique())
        return Plan(source, target, products, apart, own_banks, Run.of(rows) if distinct else None)
    # The stream of the full set is read by all, so the bias can go with it.
    for n, one in enumerate(by_source):
        if len(one.targets) == len(target.groups):
            by_source[n] = replace(one, adds_bias=True)
            return Plan(source, target, tuple(by_source), bias_apart=False, own_banks=own_banks)
    return Plan(source, target, tuple(by_source), bias_apart=True, own_banks=own_banks)


def _may_read(family: Family, reader: int, source: int, merged: bool) -> bool:
    return reader == source if merged else family.readable[reader][source]


def _added(one: Product, source: Layout) -> Product:
    """The same with its streams added up first, where they have the same channels."""
    runs = [source.kernels[s] for s in one.streams]
    same = len(runs) > 1 and all(run is runs[0] for run in runs)
    return replace(one, channels=runs[0], added=True) if same else one


def _bank(target: Layout, n: int, own_banks: bool) -> Run:
    run = target.kernels[n]
    return run.shifted(target.groups[n] * target.width) if own_banks else run


def _product(
    source: Layout, target: Layout, streams: tuple[int, ...], readers: Sequence[int], own_banks: bool
) -> Product:
    """These streams with every kernel that a reader keeps, once: the first reader takes a run of the results."""
    channels = source.kernels[streams[0]]
    if len(streams) > 1:
        channels = Run.of(torch.cat([source.kernels[s].indices() for s in streams]))
    banks = {n: _bank(target, n, own_banks) for n in readers}
    first = banks[readers[0]]
    if all(bank is first for bank in banks.values()):
        return Product(streams, channels, first, {n: Run(0, first.size) for n in readers}, None)
    place = torch.full((target.width * (max(target.groups) + 1 if own_banks else 1),), -1)
    rows: list[Tensor] = []
    count = 0
    targets = {}
    for n in readers:
        kernels = banks[n].indices()
        new = kernels[place[kernels] < 0]
        place[new] = torch.arange(count, count + len(new))
        count += len(new)
        rows.append(new)
        targets[n] = Run.of(place[kernels])
    sizes = tuple(run.size for run in targets.values())
    return Product(streams, channels, Run.of(torch.cat(rows)), targets, sizes if sum(sizes) == count else None)


def convolve_streams(
    streams: Streams, planned: Plan, weight: Tensor, bias: Tensor | None, convolve: Convolve, *, kernel_axis: int = 0
) -> list[Tensor]:
    """Each output stream: Σ over the streams h that its group may read of (gate_h · F_h) * M.

    weight: kernels × channels × …, or channels × kernels × … with kernel_axis 1 (transposed convolution).
    """
    results: list[Tensor | None] = [None] * len(planned.target.groups)
    read = cache(streams.read)
    banks = _banks(planned, weight, kernel_axis)
    biases = [None] * len(banks) if bias is None else _banks(planned, bias, 0)
    for product, bank, bank_bias in zip(planned.products, banks, biases, strict=True):
        kernels = product.channels.take(bank, 1 - kernel_axis)
        if product.added:
            features = reduce(torch.add, map(read, product.streams))
        else:
            copied = product.channels.index is not None
            features, kernels = _gated(streams, read, product.streams, kernels, 1 - kernel_axis, copied)
        own_bias = bank_bias if product.adds_bias else None
        convolved = convolve(features, kernels, own_bias)
        taken = convolved.split(product.split, 1) if product.split else None
        for place, (target, rows) in enumerate(product.targets.items()):
            part = taken[place] if taken else rows.take(convolved, 1)
            so_far = results[target]
            results[target] = part if so_far is None else so_far + part
    filled = _fill_with_nothing(results, planned, streams, weight, convolve)
    if bias is None or not planned.bias_apart:
        return filled
    return [part + over_space(planned.bank(n).take(bias, 0)[None], part) for n, part in enumerate(filled)]


def _banks(planned: Plan, of_kernels: Tensor, axis: int) -> Sequence[Tensor]:
    """The kernels of each product."""
    if planned.rows is None:
        return [product.kernels.take(of_kernels, axis) for product in planned.products]
    sizes = [product.kernels.size for product in planned.products]
    return torch.split(planned.rows.take(of_kernels, axis), sizes, axis)


def _gated(
    streams: Streams,
    read: Callable[[int], Tensor],
    chosen: tuple[int, ...],
    kernels: Tensor,
    channel_axis: int,
    owned: bool,
) -> tuple[Tensor, Tensor]:
    """Some streams side by side, and the kernels that read them, with the gates on the smaller of the two.

    owned: the kernels are a copy that nobody else reads.
    """
    if streams.gates is None:
        return _side_by_side([streams.parts[s] for s in chosen]), kernels
    if streams.gates[0].shape[0] > 1:
        return _side_by_side([read(s) for s in chosen]), kernels
    # A gate for the whole batch scales the kernels, which are fewer numbers than the features.
    shape = [1] * kernels.ndim
    shape[channel_axis] = -1
    gate = _side_by_side([streams.gates[s] for s in chosen]).reshape(shape)
    features = _side_by_side([streams.parts[s] for s in chosen])
    if owned and not torch.is_grad_enabled():
        return features, kernels.mul_(gate)
    return features, kernels * gate


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _fill_with_nothing(
    results: list[Tensor | None], planned: Plan, streams: Streams, weight: Tensor, convolve: Convolve
) -> list[Tensor]:
    """Kernels whose group has nothing to read give 0 before the bias."""
    filled = []
    for n, result in enumerate(results):
        if result is None:
            like = streams.parts[0]
            blank = like.new_zeros(like.shape[0], 1, *like.shape[2:])
            zero = convolve(blank, weight.new_zeros([1, 1, *weight.shape[2:]]), None)
            result = zero.expand(-1, planned.target.kernels[n].size, *[-1] * (zero.ndim - 2)).contiguous()
        filled.append(result)
    return filled
