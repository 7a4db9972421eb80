"""Any backbone -> its grouped form.

Convolutions, norms and PReLUs are exchanged for their grouped forms; the backbone's own forward code stays and runs on
`Streams`. A survey, one pass with everything shared, finds the order of the layers and which of them are added to each
other, and checks that the result is what the plain backbone gives.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_flatten, tree_map

from filtergroups.groups.assignment import Assignment, TiedRows
from filtergroups.groups.exchange import Choice, Exchange, Ungrouped
from filtergroups.groups.layer import GroupedConv, group_merge
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import REMEDY, CannotLift, Streams
from filtergroups.groups.survey import Survey, evaluated, survey_backbone

EXAMPLE_SIZES = {1: (64, 256, 1024), 2: (64, 32, 128, 224), 3: (32, 64, 96)}


@dataclass
class Lifted:
    """A backbone in grouped form, its layers in network order, and what its features look like."""

    backbone: nn.Module
    layers: list[GroupedConv]
    features: Any  # the backbone's output for the example, as Streams
    example: tuple[int, ...]  # the shape of the images that it was tried on

    @property
    def channels(self) -> int:
        return self.example[1]

    @property
    def spatial_dims(self) -> int:
        return len(self.example) - 2


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
    exchange = Exchange(plain, family, group, per_stream, ungrouped)
    lifted = exchange.run(copy.deepcopy(plain))
    survey = Survey(family)
    features = survey_backbone(lifted, image, survey)
    _check_same(expected, features)
    _assign(survey, family, assign, tie_sums)
    if merge == "concat":
        for layer, width in survey.mixed_reads.items():
            layer.merge = group_merge(family, width, layer.spatial_dims).to(image.device, image.dtype)
    for activation, owned in survey.owned.items():
        activation.owns_input = owned
    lifted.train(backbone.training)
    return Lifted(lifted, list(survey.layers), features, tuple(image.shape))


def _check_option(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is one of {list(allowed)}, found {value!r}; choose one")


def _example_image(backbone: nn.Module, example: Tensor | None) -> Tensor:
    """An image that the backbone can read: the user's, or noise of a size that works."""
    first = next((module for module in backbone.modules() if isinstance(module, _ConvNd)), None)
    if example is not None:
        return example.detach()
    if first is None:
        raise CannotLift("the backbone has no nn.Conv1d, nn.Conv2d or nn.Conv3d; lift takes a CNN")
    weight = first.weight
    generator = torch.Generator().manual_seed(0)
    problem: Exception | None = None
    for size in EXAMPLE_SIZES[len(first.kernel_size)]:
        shape = (2, first.in_channels, *[size] * len(first.kernel_size))
        image = torch.randn(shape, generator=generator).to(weight.device, weight.dtype)
        try:
            evaluated(backbone, image)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything for a size that does not fit
            problem = error
        else:
            return image
    raise CannotLift(
        f"the backbone did not run on images of shape {shape} ({type(problem).__name__}: {problem}); "
        "pass one that it can read as lift(..., example=image)"
    )


def _reference(backbone: nn.Module, image: Tensor) -> Any:
    """What the plain backbone gives; None where it does not give the same twice."""
    first, second = evaluated(backbone, image), evaluated(backbone, image)
    same = all(torch.equal(a, b) for a, b in zip(_tensors(first), _tensors(second), strict=True))
    return first if same else None


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


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
                f"(largest difference {((a - b).abs().max()).item():.3g}): its forward code does something that "
                f"streams cannot follow; {REMEDY}"
            )


def _assign(survey: Survey, family: Family, assign: Callable[[int], Assignment], tie_sums: bool) -> None:
    """Give every layer its assignment; layers that share kernels' identities share rows of one."""
    roots = survey.ties() if tie_sums else list(range(survey.count))
    components = _components(survey, roots)
    for layers in components:
        of_layer = {layer: roots[survey.layers[layer] : survey.layers[layer] + layer.kernels] for layer in layers}
        # Rows in the order of the widest layer, so that equal parts of the rows are equal parts of its kernels.
        order: dict[int, int] = {}
        for layer in sorted(layers, key=lambda layer: -layer.kernels):
            for identity in of_layer[layer]:
                order.setdefault(identity, len(order))
        weight = layers[0].weight
        # Probabilities in single precision at least: a half-precision backbone would lose their small changes.
        precision = torch.promote_types(weight.dtype, torch.float32)
        base = assign(len(order)).to(weight.device, precision)
        views: dict[tuple[int, ...], Assignment | TiedRows] = {tuple(range(len(order))): base}
        for layer in layers:
            rows = tuple(order[identity] for identity in of_layer[layer])
            if rows not in views:
                views[rows] = TiedRows(base, torch.tensor(rows, device=layer.weight.device))
            layer.assignment = views[rows]


def _components(survey: Survey, roots: list[int]) -> list[list[GroupedConv]]:
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
