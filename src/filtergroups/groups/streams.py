"""Streams: the features of all groups, carried through ordinary forward code.

A pair (group, kernel) is one channel of one stream. All pairs that a pass computes lie side by side in the channel axis
of one packed tensor, so that pooling, activations and every other channel-wise operation run once, unchanged, whether
a layer keeps all pairs, those that the gates keep, or exactly one pair a kernel. `Streams` shows the shape that
the plain network would have; `packed` is what is computed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from filtergroups.groups.routing import Family

if TYPE_CHECKING:
    from filtergroups.groups.draw import Draw


class CannotLift(ValueError):
    """Something in a network's forward code that streams cannot follow."""


@dataclass(frozen=True)
class Segment:
    """A run of channels of the packed tensor that belong to one group; `first` if its kernels are consecutive."""

    group: int
    start: int
    stop: int
    first: int | None

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class Layout:
    """Which (group, kernel) pair each channel of the packed tensor is; `width` channels in the plain network."""

    width: int
    segments: tuple[Segment, ...]
    kernels: Tensor  # N indices into the plain network's channels, on the CPU
    mixed: bool = False  # past a per-stream module: a channel lives in several streams, so a sum would not do
    merged: bool = False  # each stream holds all that its group may read: nobody else reads it
    origins: Tensor | None = None  # N kernel identities, only while a backbone is surveyed
    _on_device: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(width: int, parts: Iterable[tuple[int, Tensor]], **more: Any) -> "Layout":
        """Lay parts (group, kernels) side by side."""
        segments, kernels, start = [], [], 0
        for group, indices in parts:
            count = len(indices)
            if count == 0:
                continue
            first = int(indices[0])
            consecutive = count == 1 or bool((indices[1:] - indices[:-1] == 1).all())
            segments.append(Segment(group, start, start + count, first if consecutive else None))
            kernels.append(indices)
            start += count
        return Layout(width, tuple(segments), torch.cat(kernels) if kernels else torch.empty(0).long(), **more)

    @staticmethod
    def whole(width: int, groups: Sequence[int], **more: Any) -> "Layout":
        """Every kernel in every one of these groups."""
        return Layout.of(width, [(group, torch.arange(width)) for group in groups], **more)

    @cached_property
    def groups(self) -> Tensor:
        """N group indices, on the CPU."""
        sizes = torch.tensor([segment.size for segment in self.segments])
        return torch.tensor([segment.group for segment in self.segments]).repeat_interleave(sizes)

    @property
    def count(self) -> int:
        return len(self.kernels)

    def index(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(groups, kernels) of every packed channel, on a device."""
        if device not in self._on_device:
            self._on_device[device] = (self.groups.to(device), self.kernels.to(device))
        return self._on_device[device]

    @cached_property
    def present(self) -> tuple[int, ...]:
        """The groups that have a stream here."""
        return tuple(dict.fromkeys(segment.group for segment in self.segments))

    @cached_property
    def is_plain(self) -> bool:
        """One stream with all channels in order: the packed tensor is what the plain network has."""
        return len(self.segments) == 1 and self.segments[0].first == 0 and self.segments[0].size == self.width

    def of_group(self, group: int) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.group == group)

    def parts(self) -> list[tuple[int, Tensor]]:
        return [(segment.group, self.kernels[segment.start : segment.stop]) for segment in self.segments]


class Streams(torch.Tensor):
    """The features of all groups; a tensor to the network's forward code.

    packed: batch × N × space, the un-gated features. gate: [batch or 1] × N, pending: it multiplies what a convolution or a head
    reads, hence acts after every normalisation before it. None means 1.
    """

    packed: Tensor
    pairs: Layout
    gate: Tensor | None
    draw: "Draw"
    stitch: Callable[["Streams"], "Streams"] | None

    @staticmethod
    def __new__(cls, packed: Tensor, pairs: Layout, *args: Any, **kwargs: Any) -> "Streams":
        shape = (packed.shape[0], pairs.width, *packed.shape[2:])
        made: Streams = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=packed.dtype, device=packed.device)
        return made

    def __init__(
        self,
        packed: Tensor,
        pairs: Layout,
        gate: Tensor | None,
        draw: "Draw",
        stitch: Callable[["Streams"], "Streams"] | None = None,
    ) -> None:
        self.packed = packed
        self.pairs = pairs
        self.gate = gate
        self.draw = draw
        self.stitch = stitch

    @staticmethod
    def of_image(image: Tensor, draw: "Draw", origins: Tensor | None = None) -> "Streams":
        """An image belongs to the full set: every group may read it."""
        layout = draw.image_layout(image.shape[1])
        return Streams(image, replace(layout, origins=origins) if origins is not None else layout, None, draw)

    @property
    def family(self) -> Family:
        return self.draw.family

    def like(self, packed: Tensor) -> "Streams":
        """The same pairs with other features."""
        return Streams(packed, self.pairs, self.gate, self.draw, self.stitch)

    def settled(self) -> "Streams":
        """With a pending cross-stitch carried out."""
        return self if self.stitch is None else self.stitch(self)

    def spatial_gate(self) -> Tensor | None:
        """The gate, shaped to multiply the packed features."""
        return None if self.gate is None else self.gate.reshape(*self.gate.shape, *[1] * (self.packed.ndim - 2))

    def read(self) -> Tensor:
        """The packed features as a convolution or a head reads them: gated."""
        gate = self.spatial_gate()
        return self.packed if gate is None else self.packed * gate

    def dense(self, groups: Sequence[int]) -> Tensor:
        """Merge by summation: Σ over these groups of their gated streams, with all the plain network's channels."""
        settled = self.settled()
        layout = settled.pairs
        chosen = [segment for segment in layout.segments if segment.group in groups]
        if layout.is_plain and chosen:
            return settled.read()
        gated = settled.read()
        merged = gated.new_zeros(gated.shape[0], layout.width, *gated.shape[2:])
        kernels = layout.index(gated.device)[1]
        for segment in chosen:
            part = gated.narrow(1, segment.start, segment.size)
            merged = merged.index_add(1, kernels[segment.start : segment.stop], part)
        return merged

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from filtergroups.groups.operations import run  # the rules need this class

        with torch._C.DisableTorchFunctionSubclass():
            return run(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise CannotLift(f"{func} reached the streams below the level that they follow")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        sizes = {self.family.names[s.group]: s.size for s in self.pairs.segments}
        return f"Streams(shape={tuple(self.shape)}, packed={tuple(self.packed.shape)}, groups={sizes})"
