"""A survey: one pass of a lifted backbone with everything shared, that takes note of its structure."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from filtergroups.groups.assignment import Assignment, TiedRows
from filtergroups.groups.draw import Draw, Gates
from filtergroups.groups.exchange import at_module
from filtergroups.groups.layer import GroupedConv
from filtergroups.groups.norms import GroupedNorm, GroupedPReLU
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import REMEDY, CannotLift, Layout, Streams


def evaluated(backbone: nn.Module, image: Tensor) -> Any:
    """Run a backbone once at evaluation, without a gradient, and leave it and the random state as they were."""
    training = {module: module.training for module in backbone.modules()}
    backbone.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return backbone(image)
    finally:
        for module, mode in training.items():
            module.training = mode


class Survey(Draw):
    """A pass with everything shared that takes note of the order of layers and of what is added to what."""

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.layers: dict[GroupedConv, int] = {}  # layer -> its first kernel's identity
        self.mixed_reads: dict[GroupedConv, int] = {}
        self.count = 0
        self.sums: list[tuple[Tensor, Tensor]] = []
        self.normalised: Streams | None = None  # the latest result of a norm
        self.owned: dict[GroupedPReLU, bool] = {}  # does it read a norm's result that nobody else reads?

    def visited(self, layer: GroupedConv, streams: Streams) -> None:
        if layer not in self.layers:
            self.layers[layer] = self.count
            self.count += layer.kernels
        if streams.pairs.mixed:
            self.mixed_reads[layer] = streams.pairs.width
        self.current = layer

    def kept(self, assignment: Assignment | TiedRows) -> tuple[Layout, Gates]:
        kernels = assignment.kernels
        first = self.layers[self.current]
        return Layout.whole(kernels, [self.family.full], origins=(torch.arange(first, first + kernels),)), None

    def joined(self, left: Streams, right: Streams) -> None:
        """Note the kernels that meet in a channel."""
        identities = []
        for streams in (left, right):
            of_channel = torch.full((streams.pairs.width,), -1)
            for run, origins in zip(streams.pairs.kernels, streams.pairs.origins or (), strict=False):
                of_channel[run.indices()] = origins
            identities.append(of_channel)
        if len(identities[0]) == len(identities[1]):
            both = (identities[0] >= 0) & (identities[1] >= 0)
            self.sums.append((identities[0][both], identities[1][both]))

    def ties(self) -> list[int]:
        """For every kernel the smallest identity among the kernels that it is tied to."""
        parent = list(range(self.count))

        def root(kernel: int) -> int:
            while parent[kernel] != kernel:
                parent[kernel] = parent[parent[kernel]]
                kernel = parent[kernel]
            return kernel

        for left, right in self.sums:
            for a, b in zip(left.tolist(), right.tolist(), strict=True):
                low, high = sorted((root(a), root(b)))
                parent[high] = low
        return [root(kernel) for kernel in range(self.count)]


def survey_backbone(lifted: nn.Module, image: Tensor, survey: Survey) -> Any:
    """Run the lifted backbone once with everything shared; whatever it cannot follow names the module it is in."""
    names = {module: name for name, module in lifted.named_modules()}
    stack: list[nn.Module] = []
    with _hooks(lifted, stack, survey):
        try:
            features = _run_plain_streams(lifted, image, survey)
        except CannotLift as error:
            raise _located(error, stack, names) from None
        except Exception as error:  # the user's forward code may raise anything when it meets streams
            raise _located(error, stack, names) from error
    if not any(isinstance(leaf, Streams) for leaf in tree_flatten(features)[0]):
        raise CannotLift("the backbone's output does not come from its convolutions; return their features")
    return features


def _located(error: Exception, stack: list[nn.Module], names: dict[nn.Module, str]) -> CannotLift:
    text = str(error) if isinstance(error, CannotLift) else f"{type(error).__name__}: {error}; {REMEDY}"
    if text.startswith("cannot lift"):
        return CannotLift(text)
    module = stack[-1]
    return CannotLift(at_module(module, names.get(module, "?"), text))


def _run_plain_streams(lifted: nn.Module, image: Tensor, survey: Survey) -> Any:
    class _Entered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = lifted

        def forward(self, x: Tensor) -> Any:
            return self.inner(Streams.of_image(x, survey))

    return evaluated(_Entered(), image)


@contextmanager
def _hooks(lifted: nn.Module, stack: list[nn.Module], survey: Survey) -> Iterator[None]:
    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, GroupedPReLU):
            # A Sequential hands a norm's result to the next module and to nobody else.
            alone = isinstance(stack[-1], nn.Sequential) and type(stack[-1]).forward is nn.Sequential.forward
            survey.owned[module] = survey.owned.get(module, True) and alone and args[0] is survey.normalised
        stack.append(module)
        if isinstance(module, GroupedConv) and args and isinstance(args[0], Streams):
            survey.visited(module, args[0])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        stack.pop()
        if isinstance(module, GroupedNorm):
            survey.normalised = output

    handles = []
    for module in lifted.modules():
        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
