"""PReLU and max pooling for the CPU: the same numbers as torch's in less time and memory.

Every stream runs them, so that they are a third of a training step. Elsewhere than on the CPU torch's own are used.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import has_torch_function_unary


def _here(features: Tensor) -> bool:
    """On the CPU, and not while somebody records or compiles what is done: they know torch's own functions."""
    return features.is_cpu and not has_torch_function_unary(features) and not torch.compiler.is_compiling()


def one_slope(features: Tensor, slope: Tensor, in_place: bool = False) -> Tensor:
    """PReLU with one slope for all channels."""
    if not _here(features):
        return F.prelu(features, slope)
    if not torch.is_grad_enabled():
        return F.leaky_relu_(features, float(slope)) if in_place else F.leaky_relu(features, float(slope))
    result: Tensor = _OneSlope.apply(features, slope, in_place)
    return result


class _OneSlope(torch.autograd.Function):
    """torch's own makes the slope's gradient for every element before it sums them.

    A result in place of the features tells where they were negative as long as the slope is positive.
    """

    SMALLEST = 1e-3  # below this slope the features cannot be had back from the result with enough digits

    @staticmethod
    def forward(ctx: Any, features: Tensor, slope: Tensor, in_place: bool) -> Tensor:
        ctx.slope = float(slope)
        ctx.in_place = in_place and ctx.slope > _OneSlope.SMALLEST
        if ctx.in_place:
            result = F.leaky_relu_(features, ctx.slope)
            ctx.mark_dirty(features)
            ctx.save_for_backward(result)
            return result
        ctx.save_for_backward(features)
        return F.leaky_relu(features, ctx.slope)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (saved,) = ctx.saved_tensors
        buffer = saved.clamp_max(0).mul_(gradient)
        of_slope = buffer.sum() / (ctx.slope if ctx.in_place else 1.0)
        of_features = torch.ops.aten.leaky_relu_backward.grad_input(
            gradient, saved, ctx.slope, ctx.in_place, grad_input=buffer
        )
        return of_features, of_slope.reshape(1), None


def halves(features: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> bool:
    """Is this max pooling over disjoint 2 × 2 windows that cover the image?"""
    return (
        _here(features)
        and features.ndim == 4
        and kernel_size in (2, (2, 2), [2, 2])
        and stride in (None, 2, (2, 2), [2, 2], [], ())
        and padding in (0, (0, 0), [0, 0])
        and dilation in (1, (1, 1), [1, 1])
        and not ceil_mode
        and features.shape[2] % 2 == features.shape[3] % 2 == 0
    )


def max_pool2d(
    features: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    if not halves(features, kernel_size, stride, padding, dilation, ceil_mode):
        return F.max_pool2d(features, kernel_size, stride, padding, dilation, ceil_mode)
    if not (torch.is_grad_enabled() and features.requires_grad):
        columns = torch.maximum(features[..., 0::2], features[..., 1::2])
        return torch.maximum(columns[..., 0::2, :], columns[..., 1::2, :])
    result: Tensor = _HalvingMaxPool.apply(features)
    return result


class _HalvingMaxPool(torch.autograd.Function):
    """The larger of two columns, then of two rows; of equal values the first has the gradient, as in torch.

    Keeps which side won, a byte each, where torch keeps the features and 64-bit indices.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        left, right = features[..., 0::2], features[..., 1::2]
        columns = torch.maximum(left, right)
        upper, lower = columns[..., 0::2, :], columns[..., 1::2, :]
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(right > left, lower > upper)
        return torch.maximum(upper, lower)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        is_right, is_lower = ctx.saved_tensors
        of_columns = gradient.new_empty(is_right.shape)
        chosen = gradient * is_lower
        of_columns[..., 1::2, :] = chosen
        of_columns[..., 0::2, :] = torch.sub(gradient, chosen, out=chosen)
        of_features = gradient.new_empty(*is_right.shape[:-1], 2 * is_right.shape[-1])
        chosen = of_columns * is_right
        of_features[..., 1::2] = chosen
        of_features[..., 0::2] = of_columns.sub_(chosen)
        return of_features
