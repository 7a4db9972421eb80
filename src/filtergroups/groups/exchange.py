"""Modules and their grouped forms: what is exchanged, what stays, what is refused by name."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize

from filtergroups.groups.assignment import Assignment, one_hot
from filtergroups.groups.layer import DepthwiseConv, GroupedConv, PerStream
from filtergroups.groups.norms import GroupedGroupNorm, GroupedNorm, GroupedPReLU
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import REMEDY, CannotLift

Choice = str | Iterable[str] | Callable[[str, nn.Module], bool] | None
Ungrouped = Literal["per_stream", "shared"]


def at_module(module: nn.Module, name: str, problem: str) -> str:
    """A problem, with the name of the module that has it."""
    return f"cannot lift module '{name or '(the backbone itself)'}' ({type(module).__name__}): {problem}"


class Exchange:
    """Replaces modules by their grouped forms."""

    def __init__(
        self, backbone: nn.Module, family: Family, group: Choice, per_stream: Choice, ungrouped: Ungrouped
    ) -> None:
        self.family = family
        self.ungrouped = ungrouped
        kernels: dict[str, nn.Module] = {
            name: m for name, m in backbone.named_modules() if isinstance(m, (_ConvNd, nn.Linear))
        }
        self.grouped = _chosen(group, kernels, "group") if group is not None else set(kernels)
        everything = {name: m for name, m in backbone.named_modules() if name}
        self.opaque = _chosen(per_stream, everything, "per_stream")
        self.done: dict[int, nn.Module] = {}

    def run(self, module: nn.Module, name: str = "") -> nn.Module:
        if id(module) in self.done:  # a module used in several places stays one module
            return self.done[id(module)]
        replacement = self._replacement(module, name)
        if replacement is None:
            for child_name, child in module.named_children():
                path = f"{name}.{child_name}" if name else child_name
                module._modules[child_name] = self.run(child, path)
            replacement = module
        self.done[id(module)] = replacement
        return replacement

    def _replacement(self, module: nn.Module, name: str) -> nn.Module | None:
        groups = len(self.family)
        if name in self.opaque:
            return PerStream(module, groups)
        if not isinstance(module, (_ConvNd, nn.Linear, _NormBase, nn.GroupNorm, nn.PReLU, nn.LayerNorm)):
            return None
        _check_standard(module, name)
        if isinstance(module, (_ConvNd, nn.Linear)):
            return self._convolution(module, name)
        if isinstance(module, nn.GroupNorm):
            return GroupedGroupNorm(module, groups)
        if isinstance(module, nn.PReLU):
            return GroupedPReLU(module, groups)
        if isinstance(module, (_BatchNorm, _InstanceNorm)) and not isinstance(module, nn.SyncBatchNorm):
            return GroupedNorm(module, groups)
        raise CannotLift(
            at_module(module, name, f"this norm is not supported; use batch, instance or group norm, or {REMEDY}")
        )

    def _convolution(self, module: _ConvNd | nn.Linear, name: str) -> nn.Module:
        parts = getattr(module, "groups", 1)
        if name in self.grouped and isinstance(module, _ConvNd) and _is_depthwise(module):
            return DepthwiseConv(module)
        if name not in self.grouped:
            return PerStream(module, len(self.family), shared=self.ungrouped == "shared")
        if parts > 1:
            raise CannotLift(
                at_module(module, name, f"a convolution with groups={parts} cannot be grouped by task; {REMEDY}")
            )
        kernels = module.out_features if isinstance(module, nn.Linear) else module.out_channels
        return GroupedConv(module, _all_shared(self.family, kernels), name=name)


def _is_depthwise(module: _ConvNd) -> bool:
    return 1 < module.groups == module.in_channels == module.out_channels and module.padding_mode == "zeros"


def _all_shared(family: Family, kernels: int) -> Assignment:
    return Assignment(family, one_hot(torch.full((kernels,), family.full), torch.zeros(kernels, len(family))), "fixed")


def _chosen(choice: Choice, modules: dict[str, nn.Module], option: str) -> set[str]:
    """Names of the modules that a pattern, a list of patterns or a predicate chooses."""
    if choice is None:
        return set()
    if callable(choice):
        return {name for name, module in modules.items() if choice(name, module)}
    patterns = [choice] if isinstance(choice, str) else list(choice)
    chosen: set[str] = set()
    for pattern in patterns:
        matches = {name for name in modules if fnmatchcase(name, pattern)}
        if not matches:
            raise ValueError(f"{option}={pattern!r} matches no module; the names are {_some(list(modules))}")
        chosen |= matches
    return chosen


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def _check_standard(module: nn.Module, name: str) -> None:
    """Refuse what would be lost with the module's own forward: other code, parametrisations, hooks."""
    base: Any = next(cls for cls in type(module).__mro__ if cls.__module__.startswith("torch.nn.modules"))
    if type(module).forward is not base.forward:
        raise CannotLift(at_module(module, name, f"its class changes the forward of {base.__name__}; {REMEDY}"))
    if parametrize.is_parametrized(module) or hasattr(module, "weight_g"):
        raise CannotLift(
            at_module(module, name, "its weight is parametrised; call remove_parametrizations (or fold it) first")
        )
    if module._forward_hooks or module._forward_pre_hooks:
        raise CannotLift(at_module(module, name, "it has forward hooks, which lifting would drop; remove them first"))
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise CannotLift(
            at_module(module, name, "it is lazy and has no weights yet; run the backbone once before lifting")
        )
