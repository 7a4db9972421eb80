"""The grouped layer: one kernel bank convolved for every group, and gated.

    merged_g = merge of the streams h with g ⊆ h
    F_g      = activation(gate_g · norm_g(merged_g * M))
The gate travels with the stream and multiplies what the next convolution reads (`Streams.gate`): after every
normalisation in between, and around everything that the kernel adds, bias and norm shift included. For an activation
with f(a·x) = a·f(x), a ≥ 0 (ReLU, PReLU), that is the line above to the letter.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from filtergroups.groups.assignment import Assignment, TiedRows
from filtergroups.groups.convolution import Plan, convolve_streams, plan
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import Layout, Run, Streams, remembered

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class GroupedConv(nn.Module):
    """A convolution (or linear layer) whose kernels are assigned to groups.

    Takes the parameters of the plain module over; reads streams and returns streams.
    """

    bias: nn.Parameter | None

    def __init__(self, module: nn.Module, assignment: Assignment | TiedRows, *, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.weight = cast(nn.Parameter, module.weight)
        self.bias = cast("nn.Parameter | None", module.bias)
        self.transposed = isinstance(module, _ConvTransposeNd)
        self._set_geometry(module)
        self.assignment = assignment
        self.banks = 1
        self.stitch: nn.Module | None = None
        self.merge: ConcatMerge | None = None
        self._plan: Plan | None = None

    def _set_geometry(self, module: nn.Module) -> None:
        self.padding_mode = "zeros"
        self.space_padding: list[int] = []
        if isinstance(module, nn.Linear):
            self.spatial_dims = 0
            self.convolve: Any = F.linear
            return
        assert isinstance(module, _ConvNd)
        self.spatial_dims = len(module.kernel_size)
        where: dict[str, Any] = {"stride": module.stride, "padding": module.padding, "dilation": module.dilation}
        if self.transposed:
            where["output_padding"] = module.output_padding
        elif module.padding_mode != "zeros":
            self.padding_mode = module.padding_mode
            self.space_padding = list(module._reversed_padding_repeated_twice)
            where["padding"] = 0
        self.convolve = partial((TRANSPOSED if self.transposed else CONVOLUTIONS)[self.spatial_dims], **where)

    @property
    def kernel_axis(self) -> int:
        return 1 if self.transposed else 0

    @property
    def kernels(self) -> int:
        return self.weight.shape[self.kernel_axis] // self.banks

    @property
    def channels(self) -> int:
        return self.weight.shape[0 if self.transposed else 1]

    @remembered
    def forward(self, streams: Streams) -> Streams:
        check_streams(streams, self.channels, self.spatial_dims, self.name)
        streams = streams.settled()
        pairs, gates = streams.draw.kept(self.assignment)
        if self.merge is not None:
            streams = self.merge.for_groups(streams, pairs.groups)
        if self.space_padding:
            streams = streams.each(lambda part: F.pad(part, self.space_padding, mode=self.padding_mode))
        if self._plan is None or not self._plan.fits(streams.pairs, pairs):
            self._plan = plan(streams.family, streams.pairs, pairs, own_banks=self.banks > 1)
        parts = convolve_streams(
            streams, self._plan, self.weight, self.bias, self.convolve, kernel_axis=self.kernel_axis
        )
        return Streams(parts, pairs, gates, streams.draw, self.stitch or streams.draw.late(self.assignment))

    def give_banks(self, groups: int) -> None:
        """Give every group a bank of kernels of its own, all equal at first (rows g · K … of the weights)."""
        self._take_rows(torch.arange(self.kernels).repeat(groups), banks=groups)

    def join_banks(self) -> None:
        """One bank again: each kernel as its own group, the most probable, has trained it."""
        if self.banks > 1:
            self._take_rows(self.assignment.mode().cpu() * self.kernels + torch.arange(self.kernels), banks=1)

    def drop_banks(self) -> None:
        """One bank again, the first: for weights of a network that never had others."""
        self._take_rows(torch.arange(self.kernels), banks=1)

    @torch.no_grad()
    def _take_rows(self, rows: Tensor, *, banks: int) -> None:
        for name, axis in self._kernel_parameters():
            parameter = getattr(self, name)
            taken = parameter.index_select(axis, rows.to(parameter.device))
            setattr(self, name, nn.Parameter(taken, parameter.requires_grad))
        self.banks, self._plan = banks, None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # One bank of an earlier version, or of a network without banks of their own: every group begins with it.
        for name, axis in self._kernel_parameters() if self.banks > 1 else []:
            found = state_dict.get(prefix + name)
            if found is not None and found.ndim > axis and found.shape[axis] == self.kernels:
                state_dict[prefix + name] = torch.cat([found] * self.banks, axis)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _kernel_parameters(self) -> list[tuple[str, int]]:
        return [("weight", self.kernel_axis)] + ([] if self.bias is None else [("bias", 0)])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def extra_repr(self) -> str:
        return f"{self.channels} -> {self.kernels}, {self.name}"


def check_streams(streams: Streams, channels: int, spatial_dims: int, name: str) -> None:
    if not isinstance(streams, Streams):
        raise TypeError(
            f"layer '{name}' of a grouped network reads streams, found {type(streams).__name__}; call the network"
        )
    if streams.pairs.width != channels or streams.axes != 2 + spatial_dims:
        raise ValueError(
            f"layer '{name}' reads batch × {channels} channels with {spatial_dims} spatial axes, "
            f"found shape {tuple(streams.shape)}"
        )


class DepthwiseConv(nn.Module):
    """A convolution of each channel by itself: its kernels belong to the group of the channel that they read."""

    def __init__(self, module: _ConvNd) -> None:
        super().__init__()
        self.weight = module.weight
        self.bias = module.bias
        self.transposed = isinstance(module, _ConvTransposeNd)
        spatial_dims = len(module.kernel_size)
        where: dict[str, Any] = {"stride": module.stride, "padding": module.padding, "dilation": module.dilation}
        if self.transposed:
            where["output_padding"] = module.output_padding
        self.convolve: Any = partial((TRANSPOSED if self.transposed else CONVOLUTIONS)[spatial_dims], **where)

    @remembered
    def forward(self, streams: Streams) -> Streams:
        return streams.like(map(self._of_stream, streams.parts, streams.pairs.kernels))

    def _of_stream(self, part: Tensor, kernels: Run) -> Tensor:
        bias = None if self.bias is None else kernels.take(self.bias, 0)
        convolved: Tensor = self.convolve(part, kernels.take(self.weight, 0), bias, groups=kernels.size)
        return convolved


class PerStream(nn.Module):
    """A module that is not grouped: a copy for each stream (or one for all), on that stream's own gated features.

    An empty stream stays empty: where all gates of a stream are 0, what the module adds is gated away too.
    """

    def __init__(self, module: nn.Module, groups: int, *, shared: bool = False) -> None:
        super().__init__()
        copies = [module] if shared else [module, *(copy.deepcopy(module) for _ in range(groups - 1))]
        self.streams = nn.ModuleList(copies)

    @remembered
    def forward(self, streams: Streams) -> Streams:
        streams = streams.settled()
        groups = streams.pairs.groups
        parts = [self.streams[group % len(self.streams)](streams.dense([group])) for group in groups]
        width = parts[0].shape[1]
        origins = streams.pairs.origins and (torch.full((width,), -1),) * len(groups)
        pairs = Layout.whole(width, groups, mixed=True, origins=origins)
        alive = streams.gates and tuple(
            (gate.detach() > 0).any(1, keepdim=True).to(gate.dtype).expand(-1, width) for gate in streams.gates
        )
        return Streams(parts, pairs, alive, streams.draw)


class ConcatMerge(nn.Module):
    """Merge by concatenation and a 1×1 convolution, for streams that went through modules of their own.

    merged_g = conv_g([F_h for h ⊇ g]), without an activation. It starts as the sum; a group with one source reads that.
    """

    def __init__(self, readers: Mapping[str, Sequence[int]], width: int, spatial_dims: int) -> None:
        super().__init__()
        self.readers = {name: tuple(sources) for name, sources in readers.items()}
        self.weights = nn.ParameterDict()
        identity = torch.eye(width).reshape(width, width, *[1] * spatial_dims)
        for name, sources in self.readers.items():
            if len(sources) > 1:
                self.weights[name] = nn.Parameter(identity.repeat(1, len(sources), *[1] * spatial_dims))

    def of(self, name: str, streams: Streams) -> Tensor:
        """What one reader reads: batch × width × space."""
        sources = self.readers[name]
        here = [group for group in sources if group in streams.pairs.groups]
        if len(sources) == 1 or not here:
            return streams.dense(sources)
        width = streams.pairs.width
        weight = torch.cat([self.weights[name].narrow(1, sources.index(g) * width, width) for g in here], 1)
        joined = torch.cat([streams.dense([group]) for group in here], 1)
        if joined.ndim == 2:
            return F.linear(joined, weight)
        return CONVOLUTIONS[joined.ndim - 2](joined, weight)

    def for_groups(self, streams: Streams, groups: Sequence[int]) -> Streams:
        """Streams in which each of these groups holds all that it may read, so that it reads no other."""
        merged = [self.of(streams.family.names[group], streams) for group in groups]
        pairs = Layout.whole(streams.pairs.width, groups, merged=True)
        return Streams(merged, pairs, None, streams.draw)


def group_merge(family: Family, width: int, spatial_dims: int) -> ConcatMerge:
    """A merge for the groups of a layer: group g reads every h ⊇ g."""
    reads = {
        name: [h for h, readable in enumerate(family.readable[g]) if readable] for g, name in enumerate(family.names)
    }
    return ConcatMerge(reads, width, spatial_dims)


def task_merge(family: Family, width: int, spatial_dims: int) -> ConcatMerge:
    """A merge for the heads: a task reads every group that contains it."""
    return ConcatMerge({task: family.containing(task) for task in family.tasks}, width, spatial_dims)
