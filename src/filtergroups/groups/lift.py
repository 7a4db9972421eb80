"""Any backbone -> its grouped form.

Convolutions, norms and PReLUs are exchanged for their grouped forms; the backbone's own forward code stays and runs on
`Streams`. A survey, one pass with everything shared, finds the order of the layers and which of them are added to each
other, and checks that the result is what the plain backbone gives.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_flatten, tree_map

from filtergroups.groups.assignment import Assignment, TiedRows, one_hot
from filtergroups.groups.draw import Draw, Gates
from filtergroups.groups.layer import DepthwiseConv, GroupedConv, PerStream, group_merge
from filtergroups.groups.norms import GroupedGroupNorm, GroupedNorm, GroupedPReLU
from filtergroups.groups.operations import REMEDY
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import CannotLift, Layout, Streams

Choice = str | Iterable[str] | Callable[[str, nn.Module], bool] | None
Ungrouped = Literal["per_stream", "shared"]

EXAMPLE_SIZES = {1: (64, 256, 1024), 2: (64, 32, 128, 224), 3: (32, 64, 96)}


@dataclass
class Lifted:
    """A backbone in grouped form, its layers in network order, and what its features look like."""

    backbone: nn.Module
    layers: list[GroupedConv]
    features: Any  # the backbone's output for the example, as Streams
    channels: int
    spatial_dims: int


def lift_backbone(
    backbone: nn.Module,
    family: Family,
    assign: Callable[[int], Assignment],
    *,
    group: Choice = None,
    ungrouped: Ungrouped = "per_stream",
    per_stream: Choice = (),
    tie_sums: bool = True,
    merge: Literal["concat", "sum"] = "concat",
    example: Tensor | None = None,
) -> Lifted:
    """Exchange a copy of the backbone's modules and give its kernels their assignments.

    assign(K) makes the assignment of K kernels; layers whose outputs are added share one (`tie_sums`).
    """
    _check_option("ungrouped", ungrouped, ("per_stream", "shared"))
    _check_option("merge", merge, ("concat", "sum"))
    plain = copy.deepcopy(backbone)
    image = _example_image(plain, example)
    expected = _reference(plain, image)
    exchange = _Exchange(plain, family, group, per_stream, ungrouped)
    lifted = exchange.run(copy.deepcopy(plain))
    survey = _Survey(family)
    features = _survey(lifted, image, survey)
    _check_same(expected, features)
    _assign(survey, family, assign, tie_sums)
    if merge == "concat":
        for layer, width in survey.mixed_reads.items():
            layer.merge = group_merge(family, width, layer.spatial_dims).to(image.device, image.dtype)
    for activation, owned in survey.owned.items():
        activation.owns_input = owned
    lifted.train(backbone.training)
    return Lifted(lifted, list(survey.layers), features, image.shape[1], image.ndim - 2)


def _check_option(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is one of {list(allowed)}, found {value!r}; choose one")


class _Exchange:
    """Replaces modules by their grouped forms."""

    def __init__(
        self, backbone: nn.Module, family: Family, group: Choice, per_stream: Choice, ungrouped: Ungrouped
    ) -> None:
        self.family = family
        self.ungrouped = ungrouped
        kernels = {name: m for name, m in backbone.named_modules() if isinstance(m, (_ConvNd, nn.Linear))}
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
        raise CannotLift(_at(module, name, f"this norm is not supported; use batch, instance or group norm, or {REMEDY}"))

    def _convolution(self, module: _ConvNd | nn.Linear, name: str) -> nn.Module:
        parts = getattr(module, "groups", 1)
        if parts > 1 and name in self.grouped and _is_depthwise(module):
            return DepthwiseConv(module)
        if name not in self.grouped:
            return PerStream(module, len(self.family), shared=self.ungrouped == "shared")
        if parts > 1:
            raise CannotLift(
                _at(module, name, f"a convolution with groups={parts} cannot be grouped by task; {REMEDY}")
            )
        kernels = module.out_features if isinstance(module, nn.Linear) else module.out_channels
        return GroupedConv(module, _all_shared(self.family, kernels), name=name)


def _is_depthwise(module: nn.Module) -> bool:
    return (
        isinstance(module, _ConvNd)
        and module.groups == module.in_channels == module.out_channels
        and module.padding_mode == "zeros"
    )


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
            raise ValueError(
                f"{option}={pattern!r} matches no module; the names are {_some(list(modules))}"
            )
        chosen |= matches
    return chosen


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def _at(module: nn.Module, name: str, problem: str) -> str:
    return f"cannot lift module '{name or '(the backbone itself)'}' ({type(module).__name__}): {problem}"


def _check_standard(module: nn.Module, name: str) -> None:
    """Refuse what would be lost with the module's own forward: other code, parametrisations, hooks."""
    base = next(cls for cls in type(module).__mro__ if cls.__module__.startswith("torch.nn.modules"))
    if type(module).forward is not base.forward:
        raise CannotLift(_at(module, name, f"its class changes the forward of {base.__name__}; {REMEDY}"))
    if parametrize.is_parametrized(module) or hasattr(module, "weight_g"):
        raise CannotLift(_at(module, name, "its weight is parametrised; call remove_parametrizations (or fold it) first"))
    if module._forward_hooks or module._forward_pre_hooks:
        raise CannotLift(_at(module, name, "it has forward hooks, which lifting would drop; remove them first"))
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise CannotLift(_at(module, name, "it is lazy and has no weights yet; run the backbone once before lifting"))


def _example_image(backbone: nn.Module, example: Tensor | None) -> Tensor:
    """An image that the backbone can read: the user's, or noise of a size that works."""
    convolution = next(((n, m) for n, m in backbone.named_modules() if isinstance(m, _ConvNd)), None)
    if example is not None:
        return example.detach()
    if convolution is None:
        raise CannotLift("the backbone has no nn.Conv1d, nn.Conv2d or nn.Conv3d; lift takes a CNN")
    name, first = convolution
    weight = first.weight
    generator = torch.Generator().manual_seed(0)
    problem: Exception | None = None
    for size in EXAMPLE_SIZES[len(first.kernel_size)]:
        shape = (2, first.in_channels, *[size] * len(first.kernel_size))
        image = torch.randn(shape, generator=generator).to(weight.device, weight.dtype)
        try:
            _run_plain(backbone, image)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything for a size that does not fit
            problem = error
        else:
            return image
    raise CannotLift(
        f"the backbone did not run on images of shape {shape} ({type(problem).__name__}: {problem}); "
        "pass one that it can read as lift(..., example=image)"
    )


def _run_plain(backbone: nn.Module, image: Tensor) -> Any:
    training = {module: module.training for module in backbone.modules()}
    backbone.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return backbone(image)
    finally:
        for module, mode in training.items():
            module.training = mode


def _reference(backbone: nn.Module, image: Tensor) -> Any:
    """What the plain backbone gives; None where it does not give the same twice."""
    first, second = _run_plain(backbone, image), _run_plain(backbone, image)
    same = all(torch.equal(a, b) for a, b in zip(_tensors(first), _tensors(second), strict=True))
    return first if same else None


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


class _Survey(Draw):
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


def _survey(lifted: nn.Module, image: Tensor, survey: _Survey) -> Any:
    """Run the lifted backbone once with everything shared; whatever it cannot follow names the module it is in."""
    names = {module: name for name, module in lifted.named_modules()}
    stack: list[nn.Module] = []
    with _hooks(lifted, stack, survey):
        try:
            features = _run_plain_streams(lifted, image, survey)
        except CannotLift as error:
            raise _located(error, stack, names) from None
        except Exception as error:  # noqa: BLE001  # the user's forward code may raise anything when it meets streams
            raise _located(error, stack, names) from error
    if not any(isinstance(leaf, Streams) for leaf in tree_flatten(features)[0]):
        raise CannotLift("the backbone's output does not come from its convolutions; return their features")
    return features


def _located(error: Exception, stack: list[nn.Module], names: dict[nn.Module, str]) -> CannotLift:
    text = str(error) if isinstance(error, CannotLift) else f"{type(error).__name__}: {error}; {REMEDY}"
    if text.startswith("cannot lift"):
        return CannotLift(text)
    module = stack[-1]
    return CannotLift(_at(module, names.get(module, "?"), text))


def _run_plain_streams(lifted: nn.Module, image: Tensor, survey: _Survey) -> Any:
    class _Entered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = lifted

        def forward(self, x: Tensor) -> Any:
            return self.inner(Streams.of_image(x, survey))

    return _run_plain(_Entered(), image)


@contextmanager
def _hooks(lifted: nn.Module, stack: list[nn.Module], survey: _Survey) -> Iterator[None]:
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


def _check_same(expected: Any, features: Any) -> None:
    """Everything shared must give what the plain backbone gives."""
    if expected is None:
        return
    found = tree_map(lambda leaf: leaf.dense([leaf.family.full]) if isinstance(leaf, Streams) else leaf, features)
    plain, grouped = _tensors(expected), _tensors(found)
    for a, b in zip(plain, grouped, strict=True):
        scale = a.abs().max().clamp_min(1e-6)
        if a.shape != b.shape or ((a - b).abs().max() / scale).item() > 1e-3:
            raise CannotLift(
                "the lifted backbone does not give what the plain one gives when everything is shared "
                f"(largest difference {((a - b).abs().max()).item():.3g}); its forward code does something that streams "
                f"cannot follow, so lift refuses it; {REMEDY}"
            )


def _assign(survey: _Survey, family: Family, assign: Callable[[int], Assignment], tie_sums: bool) -> None:
    """Give every layer its assignment; layers that share kernels' identities share rows of one."""
    roots = survey.ties() if tie_sums else list(range(survey.count))
    components = _components(survey, roots)
    for layers in components:
        of_layer = {
            layer: roots[survey.layers[layer] : survey.layers[layer] + layer.kernels] for layer in layers
        }
        # Rows in the order of the widest layer, so that equal parts of the rows are equal parts of its kernels.
        order: dict[int, int] = {}
        for layer in sorted(layers, key=lambda layer: -layer.kernels):
            for identity in of_layer[layer]:
                order.setdefault(identity, len(order))
        base = assign(len(order)).to(layers[0].weight.device)
        views: dict[tuple[int, ...], Assignment | TiedRows] = {tuple(range(len(order))): base}
        for layer in layers:
            rows = tuple(order[identity] for identity in of_layer[layer])
            if rows not in views:
                views[rows] = TiedRows(base, torch.tensor(rows, device=layer.weight.device))
            layer.assignment = views[rows]


def _components(survey: _Survey, roots: list[int]) -> list[list[GroupedConv]]:
    """Layers that share a kernel's identity, directly or through others."""
    of_root: dict[int, set[GroupedConv]] = {}
    for layer, first in survey.layers.items():
        for identity in roots[first : first + layer.kernels]:
            of_root.setdefault(identity, set()).add(layer)
    component = {layer: {layer} for layer in survey.layers}
    for together in of_root.values():
        joined = set().union(*(component[layer] for layer in together))
        if len(joined) > len(component[next(iter(together))]):
            for layer in joined:
                component[layer] = joined
    seen: dict[int, set[GroupedConv]] = {id(layers): layers for layers in component.values()}
    return sorted(
        ([layer for layer in survey.layers if layer in layers] for layers in seen.values()),
        key=lambda layers: survey.layers[layers[0]],
    )
