"""Several processes, one network: sums and batches over all of them that a gradient goes through."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_alone = ContextVar("alone", default=False)


def world_size() -> int:
    return dist.get_world_size() if not _alone.get() and dist.is_available() and dist.is_initialized() else 1


@contextmanager
def alone() -> Iterator[None]:
    """What one process does by itself: it waits for no other."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def rows_of_this_process(count: int) -> slice:
    """Where its `count` examples are in the batch of all processes, each of which has as many."""
    return slice(rank() * count, (rank() + 1) * count)


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Σ over the processes, on each of them."""
    if world_size() == 1:
        return tensor
    summed: Tensor = _Sum.apply(tensor)
    return summed


def batch_of_all(tensor: Tensor) -> Tensor:
    """The processes' parts of a batch, one after the other, on each of them."""
    if world_size() == 1:
        return tensor
    gathered: Tensor = _Gather.apply(tensor)
    return gathered


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed)
        return summed


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.size = tensor.shape[0]
        parts = [torch.empty_like(tensor) for _ in range(world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed)
        start = rank() * ctx.size
        return summed[start : start + ctx.size]
