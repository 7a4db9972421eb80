"""Streams: the features of all groups, carried through ordinary forward code.

A pair (group, kernel) is one channel of one stream. Each stream is a tensor of the pairs that a pass computes: all
kernels, those that the gates keep, or just the kernels of that group. Pooling, activations and every other channel-wise
operation run unchanged on each. To the network's forward code `Streams` is one tensor, of the shape that the
plain network has there.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from filtergroups.groups.routing import Family

if TYPE_CHECKING:
    from filtergroups.groups.draw import Draw


REMEDY = "name the module that holds it in lift(..., per_stream=[...]) to run a copy of it on each stream"


class CannotLift(ValueError):
    """Something in a network's forward code that streams cannot follow."""


@dataclass(frozen=True)
class Run:
    """Some of a tensor's channels: the run start … start + size, or an index where they are not consecutive."""

    start: int
    size: int
    index: Tensor | None = None  # on the CPU
    _on_device: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(indices: Tensor) -> "Run":
        size = len(indices)
        start = int(indices[0]) if size else 0
        if size < 2 or (int(indices[-1]) - start == size - 1 and bool((indices[1:] > indices[:-1]).all())):
            return Run(start, size)
        return Run(start, size, indices)

    def take(self, tensor: Tensor, axis: int) -> Tensor:
        if self.index is None:
            whole = self.start == 0 and self.size == tensor.shape[axis]
            return tensor if whole else tensor.narrow(axis, self.start, self.size)
        if tensor.device not in self._on_device:
            self._on_device[tensor.device] = self.index.to(tensor.device)
        return tensor.index_select(axis, self._on_device[tensor.device])

    def shifted(self, by: int) -> "Run":
        return Run(self.start + by, self.size, None if self.index is None else self.index + by)

    def indices(self) -> Tensor:
        return torch.arange(self.start, self.start + self.size) if self.index is None else self.index


@dataclass(frozen=True, eq=False)
class Layout:
    """Which kernels each stream holds; `width` channels in the plain network."""

    width: int
    groups: tuple[int, ...]  # the groups that have a stream here
    kernels: tuple[Run, ...]  # for each of them, indices into the plain network's channels
    mixed: bool = False  # past a per-stream module: a channel lives in several streams, so a sum would not do
    merged: bool = False  # each stream holds all that its group may read: nobody else reads it
    origins: tuple[Tensor, ...] | None = None  # for each stream its kernels' identities, while a backbone is surveyed

    @staticmethod
    def of(width: int, kernels: Iterable[tuple[int, Tensor]], **more: Any) -> "Layout":
        """From (group, kernels); empty streams are left out."""
        present = [(group, indices) for group, indices in kernels if len(indices)]
        return Layout(width, tuple(g for g, _ in present), tuple(Run.of(indices) for _, indices in present), **more)

    @staticmethod
    def whole(width: int, groups: Iterable[int], **more: Any) -> "Layout":
        """Every kernel in every one of these groups."""
        groups = tuple(groups)
        return Layout(width, groups, (Run(0, width),) * len(groups), **more)

    @cached_property
    def is_plain(self) -> bool:
        """One stream with all channels in order: its tensor is what the plain network has."""
        return len(self.groups) == 1 and self.holds_all(0)

    def holds_all(self, stream: int) -> bool:
        run = self.kernels[stream]
        return run.index is None and run.start == 0 and run.size == self.width


class Streams(torch.Tensor):
    """The features of all groups; one tensor to the network's forward code.

    parts: for each group of the layout, batch × kernels × space, un-gated. gates: for each, [batch or 1] × kernels,
    pending: they multiply what a convolution or a head reads, hence act after every normalisation before it. None
    means 1.
    """

    parts: tuple[Tensor, ...]
    pairs: Layout
    gates: tuple[Tensor, ...] | None
    draw: "Draw"
    stitch: Callable[["Streams"], "Streams"] | None
    same_in_every_pass: bool

    @staticmethod
    def __new__(
        cls, parts: Sequence[Tensor], pairs: Layout, gates: Any, draw: "Draw", *args: Any, **kwargs: Any
    ) -> "Streams":
        first = parts[0]
        batch = first.shape[0] * (draw.copies if draw.computing_once else 1)
        shape = (batch, pairs.width, *first.shape[2:])
        made: Streams = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=first.dtype, device=first.device)
        return made

    def __init__(
        self,
        parts: Sequence[Tensor],
        pairs: Layout,
        gates: tuple[Tensor, ...] | None,
        draw: "Draw",
        stitch: Callable[["Streams"], "Streams"] | None = None,
    ) -> None:
        self.parts = tuple(parts)
        self.pairs = pairs
        self.gates = gates
        self.draw = draw
        self.stitch = stitch
        self.same_in_every_pass = draw.computing_once

    @staticmethod
    def of_image(image: Tensor, draw: "Draw") -> "Streams":
        """An image belongs to the full set: every group may read it."""
        return Streams([image], draw.image_layout(image.shape[1]), None, draw)

    @property
    def family(self) -> Family:
        return self.draw.family

    @property
    def axes(self) -> int:
        return self.parts[0].ndim

    def like(self, parts: Iterable[Tensor]) -> "Streams":
        """The same pairs with other features."""
        return Streams(tuple(parts), self.pairs, self.gates, self.draw, self.stitch)

    def each(self, function: Callable[[Tensor], Tensor]) -> "Streams":
        """The same pairs with a function of each stream's features."""
        return self.like(map(function, self.parts))

    def settled(self) -> "Streams":
        """With a pending cross-stitch carried out."""
        return self if self.stitch is None else self.stitch(self)

    def gate(self, stream: int) -> Tensor:
        """A stream's gate, ones where none is pending."""
        if self.gates is None:
            return self.parts[stream].new_ones(1, self.pairs.kernels[stream].size)
        return self.gates[stream]

    def read(self, stream: int) -> Tensor:
        """A stream as a convolution or a head reads it: gated."""
        part = self.parts[stream]
        return part if self.gates is None else part * over_space(self.gates[stream], part)

    def dense(self, groups: Sequence[int]) -> Tensor:
        """Merge by summation: Σ over these groups of their gated streams, with all the plain network's channels."""
        streams = self.settled()
        merged: Tensor | None = None
        for n, group in enumerate(streams.pairs.groups):
            if group in groups:
                part = spread(streams.read(n), streams.pairs.kernels[n], streams.pairs.width)
                merged = part if merged is None else merged + part
        if merged is None:
            like = streams.parts[0]
            return like.new_zeros(like.shape[0], streams.pairs.width, *like.shape[2:])
        return merged

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from filtergroups.groups.operations import run  # the rules need this class

        with torch._C.DisableTorchFunctionSubclass():
            return first_streams((*args, *(kwargs or {}).values())).draw.once(run, func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch leaves it untyped
        raise CannotLift(f"{func} reached the streams below the level that they follow")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch leaves it untyped
        sizes = {
            self.family.names[group]: run.size for group, run in zip(self.pairs.groups, self.pairs.kernels, strict=True)
        }
        return f"Streams(width={self.pairs.width}, part={tuple(self.parts[0].shape)}, kernels={sizes})"


def first_streams(values: Iterable[Any]) -> Streams:
    """The first streams among a torch function's arguments, which may be in a list."""
    for value in values:
        if isinstance(value, Streams):
            return value
        if isinstance(value, (list, tuple)) and any(isinstance(item, Streams) for item in value):
            return first_streams(value)
    raise TypeError("expected streams among the arguments, found none")


def remembered(forward: Callable[[Any, Streams], Streams]) -> Callable[[Any, Streams], Streams]:
    """A layer's forward that several passes share where they can."""

    @functools.wraps(forward)
    def once(layer: Any, streams: Streams) -> Streams:
        if not isinstance(streams, Streams):
            return forward(layer, streams)  # which says what is wrong
        result: Streams = streams.draw.once(forward, layer, streams)
        return result

    return once


def over_space(of_channels: Tensor, features: Tensor) -> Tensor:
    """[batch or 1] × channels, shaped to broadcast with features."""
    return of_channels.reshape(*of_channels.shape, *[1] * (features.ndim - 2))


def spread(tensor: Tensor, at: Run, width: int) -> Tensor:
    """Put channels at their places among `width`, zeros elsewhere."""
    if at.index is None and at.start == 0 and at.size == width:
        return tensor
    if has_torch_function_unary(tensor):  # whoever records what is done sees this as one function
        placed: Tensor = handle_torch_function(spread, (tensor,), tensor, at, width)
        return placed
    target = tensor.new_zeros(tensor.shape[0], width, *tensor.shape[2:])
    return target.index_copy(1, at.indices().to(tensor.device), tensor)
