"""Sums and products of streams: what skip connections and gates of a network's own do."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from filtergroups.groups.streams import REMEDY, CannotLift, Layout, Run, Streams, over_space, spread


def of_channels(tensor: Tensor, axis: int, streams: Streams) -> list[Tensor]:
    """A tensor with one entry a channel of the plain network (or one for all), as each stream's channels need it."""
    if tensor.shape[axis] == 1:
        return [tensor] * len(streams.parts)
    return [run.take(tensor, axis) for run in streams.pairs.kernels]


def origins_of(pairs: Layout, stream: int) -> Tensor:
    """The identities of a stream's kernels; -1 where they have none."""
    return torch.full((pairs.kernels[stream].size,), -1) if pairs.origins is None else pairs.origins[stream]


def same_batch(gates: list[Tensor]) -> list[Tensor]:
    """Gates of the batch and of its examples, made to stand side by side."""
    batch = max(gate.shape[0] for gate in gates)
    return [gate.expand(batch, -1) for gate in gates]


def _scaled(value: Any, factor: Any) -> Any:
    if factor == 1:
        return value
    return value.each(lambda part: part * factor) if isinstance(value, Streams) else value * factor


def addition(func: Callable[..., Any], left: Any, right: Any, *, alpha: Any = 1) -> Streams:
    return combine(left, _scaled(right, alpha), torch.add)


def subtraction(func: Callable[..., Any], left: Any, right: Any, *, alpha: Any = 1) -> Streams:
    return combine(left, _scaled(right, alpha), torch.sub)


def reversed_subtraction(func: Callable[..., Any], right: Any, left: Any) -> Streams:
    return combine(left, right, torch.sub)


def multiplication(func: Callable[..., Any], left: Any, right: Any) -> Streams:
    return combine(left, right, torch.mul)


def division(func: Callable[..., Any], left: Any, right: Any) -> Streams:
    if isinstance(right, Streams):
        raise CannotLift(f"features are divided by a number or a tensor, found features; {REMEDY}")
    return combine(left, right, torch.div)


def in_place(rule: Callable[..., Streams]) -> Callable[..., Streams]:
    """`a += b` changes a itself, as user code may hold another name of it."""

    def run_in_place(func: Callable[..., Any], left: Streams, right: Any, **kwargs: Any) -> Streams:
        result = rule(func, left, right, **kwargs)
        if not isinstance(left, Streams) or result.parts[0].shape[2:] != left.parts[0].shape[2:]:
            raise CannotLift(f"'{func.__name__}' would change the shape of a tensor in place; write a + b")
        left.__dict__.update(result.__dict__)
        return left

    return run_in_place


def combine(left: Any, right: Any, operation: Callable[[Any, Any], Tensor]) -> Streams:
    """Elementwise arithmetic of streams with streams, tensors or numbers."""
    if not isinstance(left, Streams):
        streams: Streams = right
        return streams.like(operation(a, b) for a, b in zip(_beside(left, streams), streams.parts, strict=True))
    if not isinstance(right, Streams):
        return left.like(operation(a, b) for a, b in zip(left.parts, _beside(right, left), strict=True))
    return _of_streams(left, right, operation)


def _of_streams(left: Streams, right: Streams, operation: Callable[[Any, Any], Tensor]) -> Streams:
    left.draw.joined(left, right)
    if left.stitch is not right.stitch:
        left, right = left.settled(), right.settled()
    if left.pairs is right.pairs and left.gates is right.gates:
        return left.like(operation(a, b) for a, b in zip(left.parts, right.parts, strict=True))
    return _with_different_gates(left.settled(), right.settled(), operation)


def _beside(value: Any, streams: Streams) -> list[Any]:
    """A tensor that broadcasts with the plain network's features, as each stream needs it."""
    axis = value.ndim - (streams.axes - 1) if isinstance(value, Tensor) else -1
    return [value] * len(streams.parts) if axis < 0 else of_channels(value, axis, streams)


def _with_different_gates(left: Streams, right: Streams, operation: Callable[[Any, Any], Tensor]) -> Streams:
    """Sum or product of features that do not share their gates or their pairs, stream by stream.

    What is read of a sum is gate_l · left + gate_r · right. It keeps a pending gate, the larger of the two, so that a
    norm after it cannot bring back what the gates closed: features (gate_l · left + gate_r · right) / max, gate max.
    A product has the product of the gates; where one side has no such pair it is 0.
    """
    if left.pairs.width != right.pairs.width:
        raise CannotLift(
            f"features of {left.pairs.width} and {right.pairs.width} channels meet in one operation; {REMEDY}"
        )
    width = left.pairs.width
    surveyed = left.pairs.origins or right.pairs.origins
    groups = sorted({*left.pairs.groups, *right.pairs.groups})
    parts, kernels, gates, origins = [], [], [], []
    for group in groups:
        sides = [(s, s.pairs.groups.index(group)) for s in (left, right) if group in s.pairs.groups]
        union = torch.cat([s.pairs.kernels[n].indices() for s, n in sides]).unique()
        features, opened, met = [], [], []
        for s, n in sides:
            at = Run.of(torch.searchsorted(union, s.pairs.kernels[n].indices()))
            features.append(spread(s.parts[n], at, len(union)))
            opened.append(spread(s.gate(n), at, len(union)))
            if surveyed:
                met.append(torch.full((len(union),), -1).index_copy(0, at.indices(), origins_of(s.pairs, n)))
        if len(sides) == 1:
            if operation is torch.mul:
                continue
            negative = operation is torch.sub and sides[0][0] is right
            parts.append(-features[0] if negative else features[0])
            gates.append(opened[0])
        elif operation is torch.mul:
            parts.append(features[0] * features[1])
            gates.append(opened[0] * opened[1])
        elif left.gates is None and right.gates is None:
            parts.append(operation(features[0], features[1]))
            gates.append(opened[0])
        else:
            opened = same_batch(opened)
            larger = torch.maximum(*opened)
            safe = larger.clamp_min(torch.finfo(larger.dtype).tiny)
            shares = [over_space(gate / safe, feature) for gate, feature in zip(opened, features, strict=True)]
            parts.append(operation(shares[0] * features[0], shares[1] * features[1]))
            gates.append(larger)
        kernels.append((group, union))
        if surveyed:
            meet = left.draw.multiplied if operation is torch.mul else left.draw.united
            origins.append(met[0] if len(met) == 1 else meet(*met))
    if not parts:  # a product of features that no group has in common
        parts, gates = [left.parts[0].narrow(1, 0, 1) * 0], [left.gate(0).narrow(1, 0, 1)]
        kernels, origins = [(left.pairs.groups[0], torch.tensor([0]))], [torch.tensor([-1])]
    mixed = left.pairs.mixed or right.pairs.mixed
    pairs = Layout.of(width, kernels, mixed=mixed, origins=tuple(origins) if surveyed else None)
    return Streams(parts, pairs, tuple(gates) if left.gates or right.gates else None, left.draw)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "__add__", "__radd__"), addition),
    **dict.fromkeys(("sub", "__sub__", "subtract"), subtraction),
    **dict.fromkeys(("rsub", "__rsub__"), reversed_subtraction),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), multiplication),
    **dict.fromkeys(("div", "__div__", "__truediv__", "true_divide", "divide"), division),
    **dict.fromkeys(("add_", "__iadd__"), in_place(addition)),
    **dict.fromkeys(("sub_", "__isub__"), in_place(subtraction)),
    **dict.fromkeys(("mul_", "__imul__"), in_place(multiplication)),
    **dict.fromkeys(("div_", "__itruediv__", "__idiv__"), in_place(division)),
}
