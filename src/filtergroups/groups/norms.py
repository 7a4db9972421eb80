"""One normalisation a group, and other modules that keep parameters by channel: one set a stream.

Each takes a plain module over and holds its parameters once a group (G × channels); the packed channels take theirs.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from filtergroups.groups.elementwise import one_slope
from filtergroups.groups.passes import Late
from filtergroups.groups.processes import sum_over_processes, world_size
from filtergroups.groups.streams import Run, Streams, remembered


def _for_groups(tensor: Tensor | None, groups: int) -> Tensor | None:
    return None if tensor is None else tensor.detach().expand(groups, *tensor.shape).clone()


def _parameter(tensor: Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor)


class GroupedNorm(nn.Module):
    """Batch or instance normalisation with statistics and parameters of its own for every group."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, module: _NormBase, groups: int) -> None:
        super().__init__()
        self.per_example = isinstance(module, _InstanceNorm)
        self.momentum, self.eps = module.momentum, module.eps
        self.weight = _parameter(_for_groups(module.weight, groups))
        self.bias = _parameter(_for_groups(module.bias, groups))
        self.register_buffer("running_mean", _for_groups(module.running_mean, groups))
        self.register_buffer("running_var", _for_groups(module.running_var, groups))
        tracked = module.num_batches_tracked
        self.register_buffer("num_batches_tracked", None if tracked is None else tracked.clone())
        self.batch_statistics = False  # at evaluation: normalise by the batch, as the paper does, not by running ones

    @remembered
    def forward(self, streams: Streams) -> Streams:
        momentum = self._momentum() if self.training and self.running_mean is not None else 0.0
        pairs = streams.pairs
        parts = [
            self._of_stream(part, group, run, momentum)
            for part, group, run in zip(streams.parts, pairs.groups, pairs.kernels, strict=True)
        ]
        return streams.like(parts)

    def _of_stream(self, part: Tensor, group: int, channels: Run, momentum: float) -> Tensor:
        weight, bias, mean, var = (
            None if tensor is None else channels.take(tensor[group], 0)
            for tensor in (self.weight, self.bias, self.running_mean, self.running_var)
        )
        by_batch = self.training or mean is None or self.batch_statistics
        tracking = self.training and mean is not None
        if by_batch and not tracking:
            mean = var = None
        normalise: Any = F.instance_norm if self.per_example else _batch_norm
        normalised: Tensor = normalise(part, mean, var, weight, bias, by_batch, momentum, self.eps)
        if tracking and channels.index is not None:
            # An index makes copies, which the call has updated; only the channels that were computed move. By .data, as
            # torch's own update is no change to autograd either: in training no gradient goes through these.
            index = channels.index.to(part.device)
            for running, updated in ((self.running_mean, mean), (self.running_var, var)):
                cast(Tensor, running).data[group].index_copy_(0, index, cast(Tensor, updated))
        return normalised

    def _momentum(self) -> float:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        if self.momentum is None:  # a cumulative average, as torch defines it
            return 1.0 / float(self.num_batches_tracked)
        return self.momentum


def _batch_norm(
    features: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    by_batch: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch norm; where several processes train one network, over the batch of all of them."""
    if by_batch and world_size() > 1:
        return _shared_batch_norm(features, mean, var, weight, bias, momentum, eps)
    return F.batch_norm(features, mean, var, weight, bias, by_batch, momentum, eps)


def _shared_batch_norm(
    features: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    count = features.numel() // features.shape[1] * world_size()
    axes = [axis for axis in range(features.ndim) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(features.ndim)]
    batch_mean = sum_over_processes(features.sum(axes)) / count
    centred = features - batch_mean.reshape(shape)
    batch_var = sum_over_processes(centred.square().sum(axes)) / count
    if mean is not None and var is not None:
        with torch.no_grad():
            mean.lerp_(batch_mean, momentum)
            var.lerp_(batch_var * (count / max(count - 1, 1)), momentum)
    scale = (batch_var + eps).rsqrt() if weight is None else (batch_var + eps).rsqrt() * weight
    normalised = centred * scale.reshape(shape)
    return normalised if bias is None else normalised + bias.reshape(shape)


class GroupedGroupNorm(nn.Module):
    """Group normalisation within each stream.

    Its statistics run over several channels, so each channel counts there with its gate: a kernel whose gate is 0 has
    no part in the stream, not even in its mean. With all gates 1 this is the plain module.
    """

    def __init__(self, module: nn.GroupNorm, groups: int) -> None:
        super().__init__()
        self.channel_groups, self.channels, self.eps = module.num_groups, module.num_channels, module.eps
        self.weight = _parameter(_for_groups(module.weight, groups))
        self.bias = _parameter(_for_groups(module.bias, groups))

    @remembered
    def forward(self, streams: Streams) -> Streams:
        if isinstance(streams.stitch, Late):
            streams = streams.settled()  # gates have a part in these statistics
        return streams.like(map(self._of_stream, [streams] * len(streams.parts), range(len(streams.parts))))

    def _of_stream(self, streams: Streams, n: int) -> Tensor:
        part, group, channels = streams.parts[n], streams.pairs.groups[n], streams.pairs.kernels[n]
        weight, bias = (
            None if tensor is None else channels.take(tensor[group], 0) for tensor in (self.weight, self.bias)
        )
        if streams.gates is None and streams.pairs.holds_all(n):
            return F.group_norm(part, self.channel_groups, weight, bias, self.eps)
        bucket = (channels.indices() // (self.channels // self.channel_groups)).to(part.device)
        gate = streams.gate(n).expand(part.shape[0], -1)

        def over_bucket(of_channels: Tensor) -> Tensor:
            """Σ over a bucket's channels, given back to each of them: batch × channels."""
            total = of_channels.new_zeros(of_channels.shape[0], self.channel_groups).index_add(1, bucket, of_channels)
            return total.index_select(1, bucket)

        flat = part.flatten(2)
        total = over_bucket(gate).clamp_min(torch.finfo(gate.dtype).tiny)
        mean = over_bucket(gate * flat.mean(2)) / total
        var = over_bucket(gate * (flat - mean.unsqueeze(2)).square().mean(2)) / total
        scale = (var + self.eps).rsqrt()
        if weight is not None:
            scale = scale * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        return (flat * scale.unsqueeze(2) + shift.unsqueeze(2)).reshape(part.shape)


class GroupedPReLU(nn.Module):
    """PReLU with slopes of its own for every group."""

    def __init__(self, module: nn.PReLU, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(cast(Tensor, _for_groups(module.weight, groups)))
        self.owns_input = False  # nobody else holds what it reads, so it may write there

    @remembered
    def forward(self, streams: Streams) -> Streams:
        pairs = streams.pairs
        if self.weight.shape[1] == 1:
            slopes = (self.weight[group] for group in pairs.groups)
            return streams.like(
                one_slope(part, s, self.owns_input) for part, s in zip(streams.parts, slopes, strict=True)
            )
        slopes = (run.take(self.weight[g], 0) for g, run in zip(pairs.groups, pairs.kernels, strict=True))
        return streams.like(map(F.prelu, streams.parts, slopes))
