"""A network as a list of steps: plain tensor functions on the image's features, with their weights.

A step names a torch function; its arguments refer to earlier values, to weights, or are plain numbers. The list can be
looked through and rewritten, runs as an ordinary module, and is JSON beside its tensors: no code travels with it.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map

from filtergroups.groups import elementwise
from filtergroups.groups.operations import CHANNELWISE, OUT_OF_PLACE, words


@dataclass(frozen=True)
class Value:
    """The image (0) or a result of a step."""

    number: int


@dataclass(frozen=True)
class Size:
    """A number that follows the image's size: factor × its length along an axis, divided by a divisor."""

    axis: int
    factor: int = 1
    divisor: int = 1


@dataclass(frozen=True)
class Weight:
    """A tensor that does not depend on the image, by its name."""

    name: str


@dataclass
class Step:
    """One function call. `results` are the numbers of its values; several where the function returns a tuple."""

    function: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...]
    several: bool = False

    def uses(self) -> list[int]:
        return [leaf.number for leaf in leaves((self.args, self.kwargs)) if isinstance(leaf, Value)]


def leaves(tree: Any) -> list[Any]:
    return tree_flatten(tree)[0]


def place_channels(features: Tensor, place: Tensor) -> Tensor:
    """Channels in a new order; the number of channels itself stands for a channel of zeros."""
    return torch.cat([features, features.narrow(1, 0, 1) * 0], 1).index_select(1, place)


OURS: dict[str, Callable[..., Any]] = {
    "place_channels": place_channels,
    "max_pool2d": elementwise.max_pool2d,  # faster on the CPU, the same numbers
}
ALLOWED = (
    CHANNELWISE - set(OUT_OF_PLACE)
    | set(OURS)
    | words(
        """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul __matmul__ bmm einsum
        batch_norm group_norm layer_norm instance_norm local_response_norm normalize prelu
        mean sum amax amin std var logsumexp flip roll softmax log_softmax cumsum
        view reshape flatten squeeze unsqueeze permute transpose movedim t pad cat stack chunk split __getitem__ narrow
        expand expand_as repeat repeat_interleave unbind select index_select index_add index_copy gather unflatten
        add sub mul div __add__ __radd__ __sub__ __rsub__ rsub __mul__ __rmul__ __truediv__ __rtruediv__
        maximum minimum where masked_fill new_zeros new_ones new_full zeros_like ones_like full_like
        pixel_shuffle pixel_unshuffle unfold fold addmm baddbmm scaled_dot_product_attention
        """
    )
)


def function_named(name: str) -> Callable[..., Any]:
    """A tensor function by its name; only those of the list above, so that a file cannot call anything else."""
    if name not in ALLOWED:
        raise ValueError(f"a step's function is one of torch's on tensors, found {name!r}; the file is not ours")
    if name in OURS:
        return OURS[name]
    found: Callable[..., Any] = next(getattr(home, name) for home in (F, torch, torch.Tensor) if hasattr(home, name))
    return found


class CompactNetwork(nn.Module):
    """Images -> each task's output, by a list of steps."""

    def __init__(self, steps: Sequence[Step], weights: Mapping[str, Tensor], outputs: Mapping[str, Value]) -> None:
        super().__init__()
        self.image_shape: tuple[int, ...] = ()  # channels and space that it was recorded with
        self.varies: tuple[int, ...] = (0,)  # axes of the images that may have another length
        self.multiplications = 0  # for one image of that shape
        self.steps = list(steps)
        self.outputs = dict(outputs)
        self.program = fx.GraphModule(dict(weights), self._graph())  # the steps as a line of code each

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.program(images)
        return outputs

    @property
    def weights(self) -> dict[str, Tensor]:
        return dict(self.program.named_buffers())

    def _graph(self) -> fx.Graph:
        graph = fx.Graph()
        nodes: dict[int, fx.Node] = {0: graph.placeholder("images")}

        def given(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return nodes[leaf.number]
            if isinstance(leaf, Weight):
                return graph.get_attr(leaf.name)
            if isinstance(leaf, Size):
                size = graph.call_method("size", (nodes[0], leaf.axis))
                if leaf.factor != 1:
                    size = graph.call_function(operator.mul, (size, leaf.factor))
                return size if leaf.divisor == 1 else graph.call_function(operator.floordiv, (size, leaf.divisor))
            if isinstance(leaf, slice):
                return slice(given(leaf.start), given(leaf.stop), given(leaf.step))
            return leaf

        for step in self.steps:
            args, kwargs = tree_map(given, step.args), tree_map(given, step.kwargs)
            function = function_named(step.function)
            if function is getattr(torch.Tensor, step.function, None):
                node = graph.call_method(step.function, args, kwargs)
            else:
                node = graph.call_function(function, args, kwargs)
            if step.several:
                for place, number in enumerate(step.results):
                    nodes[number] = graph.call_function(operator.getitem, (node, place))
            else:
                nodes[step.results[0]] = node
        graph.output({task: nodes[value.number] for task, value in self.outputs.items()})
        return graph


def as_json(tree: Any) -> Any:
    """A step's arguments as JSON values."""
    if isinstance(tree, Value):
        return {"value": tree.number}
    if isinstance(tree, Weight):
        return {"weight": tree.name}
    if isinstance(tree, Size):
        return {"size": [tree.axis, tree.factor, tree.divisor]}
    if isinstance(tree, slice):
        return {"slice": [as_json(tree.start), as_json(tree.stop), as_json(tree.step)]}
    if isinstance(tree, (list, tuple)):
        return [as_json(item) for item in tree]
    if tree is Ellipsis:
        return {"ellipsis": True}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise ValueError(f"a step's arguments are numbers, text or features, found {type(tree).__name__}; cannot be saved")


def from_json(tree: Any) -> Any:
    if isinstance(tree, list):
        return tuple(from_json(item) for item in tree)
    if not isinstance(tree, dict):
        return tree
    (kind, content), *_ = tree.items()
    if kind == "slice":
        return slice(*(from_json(item) for item in content))
    makers: dict[str, Callable[[], Any]] = {
        "value": lambda: Value(content), "weight": lambda: Weight(content), "size": lambda: Size(*content),
        "ellipsis": lambda: Ellipsis,
    }  # fmt: skip
    return makers[kind]()
