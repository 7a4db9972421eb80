"""One normalisation a group, and other modules that keep parameters by channel: one set a stream.

Each takes a plain module over and holds its parameters once a group (G × channels); the packed channels take theirs.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from filtergroups.groups.operations import gate_or_ones
from filtergroups.groups.streams import Streams


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

    def forward(self, streams: Streams) -> Streams:
        at = None if streams.pairs.is_plain else streams.pairs.index(streams.packed.device)
        group = streams.pairs.segments[0].group

        def here(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor[group] if at is None else tensor[at]

        mean, var = here(self.running_mean), here(self.running_var)
        by_batch = self.training or mean is None or self.batch_statistics
        tracking = self.training and mean is not None
        if by_batch and not tracking:
            mean = var = None
        momentum = self._momentum() if tracking else 0.0
        normalise: Any = F.instance_norm if self.per_example else F.batch_norm
        packed = normalise(
            streams.packed, mean, var, here(self.weight), here(self.bias), by_batch, momentum, self.eps
        )
        if tracking and at is not None:
            assert self.running_mean is not None and self.running_var is not None
            # Indexing made copies, which the call updated; only the pairs that were computed move.
            self.running_mean[at], self.running_var[at] = cast(Tensor, mean), cast(Tensor, var)
        return streams.like(packed)

    def _momentum(self) -> float:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        if self.momentum is None:  # a cumulative average, as torch defines it
            return 1.0 / float(self.num_batches_tracked)
        return self.momentum


class GroupedGroupNorm(nn.Module):
    """Group normalisation within each stream.

    Its statistics run over several channels, so each channel counts there with its gate: a kernel whose gate is 0 has no part in
    the stream, not even in its mean. With all gates 1 this is the plain module.
    """

    def __init__(self, module: nn.GroupNorm, groups: int) -> None:
        super().__init__()
        self.channel_groups, self.channels, self.eps = module.num_groups, module.num_channels, module.eps
        self.weight = _parameter(_for_groups(module.weight, groups))
        self.bias = _parameter(_for_groups(module.bias, groups))

    def forward(self, streams: Streams) -> Streams:
        pairs, packed = streams.pairs, streams.packed
        of_stream, of_channel = pairs.index(packed.device)
        weight = None if self.weight is None else self.weight[of_stream, of_channel]
        bias = None if self.bias is None else self.bias[of_stream, of_channel]
        if pairs.is_plain and streams.gate is None:
            return streams.like(F.group_norm(packed, self.channel_groups, weight, bias, self.eps))
        bucket = of_stream * self.channel_groups + of_channel // (self.channels // self.channel_groups)
        gate = gate_or_ones(streams).expand(packed.shape[0], -1)
        buckets = (int(pairs.groups.max()) + 1) * self.channel_groups

        def over_bucket(of_channels: Tensor) -> Tensor:
            """Σ over a bucket's channels, given back to each of them: batch × N."""
            total = of_channels.new_zeros(of_channels.shape[0], buckets).index_add(1, bucket, of_channels)
            return total.index_select(1, bucket)

        flat = packed.flatten(2)
        total = over_bucket(gate).clamp_min(torch.finfo(gate.dtype).tiny)
        mean = over_bucket(gate * flat.mean(2)) / total
        var = over_bucket(gate * (flat - mean.unsqueeze(2)).square().mean(2)) / total
        scale = (var + self.eps).rsqrt()
        if weight is not None:
            scale = scale * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        normalised = flat * scale.unsqueeze(2) + shift.unsqueeze(2)
        return streams.like(normalised.reshape(packed.shape))


class GroupedPReLU(nn.Module):
    """PReLU with slopes of its own for every group."""

    def __init__(self, module: nn.PReLU, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(cast(Tensor, _for_groups(module.weight, groups)))

    def forward(self, streams: Streams) -> Streams:
        pairs = streams.pairs
        if pairs.is_plain:
            return streams.like(F.prelu(streams.packed, self.weight[pairs.segments[0].group]))
        of_stream, of_channel = pairs.index(streams.packed.device)
        slopes = self.weight[of_stream, of_channel if self.weight.shape[1] > 1 else 0]
        return streams.like(F.prelu(streams.packed, slopes))
