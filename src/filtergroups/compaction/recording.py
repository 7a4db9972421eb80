"""Record what a network does to an image, as steps.

The network runs as it is; every torch function that touches the image's features becomes a step, and every tensor that
does not depend on the image is a weight. So whatever the streams can follow can be recorded, a user's own modules
included. Numbers that change with the size of the image are found by running images of several sizes.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from filtergroups.compaction.steps import ALLOWED, Size, Step, Value, Weight
from filtergroups.groups.operations import ATTRIBUTES, OUT_OF_PLACE, QUERIES, run
from filtergroups.groups.streams import Run, Streams, spread


class CannotExport(ValueError):
    """Something in a network that cannot be written down as steps."""


@dataclass
class Recording:
    """The steps of one pass, its weights, its outputs and the shape of every value."""

    steps: list[Step] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)


# In place and out of place are the same in a recording: whoever reads later reads the latest value.
IN_PLACE = {
    **{name: name.removesuffix("_") for name in OUT_OF_PLACE},
    "__iadd__": "add", "add_": "add", "__isub__": "sub", "sub_": "sub", "__imul__": "mul", "mul_": "mul",
    "__itruediv__": "div", "div_": "div",
}  # fmt: skip
SAME = ("detach", "requires_grad_", "contiguous", "clone", "alias", "float", "to", "type", "cpu")


class Recorder(TorchFunctionMode):
    """While active, torch functions on the image's features are noted."""

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        self.recording = Recording(shapes={0: tuple(image.shape)})
        self._values: dict[int, Value] = {id(image): Value(0)}
        self._weights: dict[int, Weight] = {}
        self._held: list[Any] = [image]  # so that no tensor's identity is used twice
        self._count = 1

    def value(self, tensor: Tensor) -> Value | None:
        return self._values.get(id(tensor))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if any(isinstance(leaf, Streams) for leaf in tree_flatten((args, kwargs))[0]):
            if name in QUERIES or (name == "__get__" and func.__self__.__name__ in ATTRIBUTES):  # type: ignore[attr-defined]  # a bound getset descriptor has it
                return func(*args, **kwargs)
            with self, torch._C.DisableTorchFunctionSubclass():
                return run(func, args, kwargs)
        if func is spread:
            return self._spread(*args)
        if name == "__setitem__" and self.value(args[0]):
            raise CannotExport(
                "an assignment to a part of the features cannot be exported; write the forward code without it"
            )
        result = func(*args, **kwargs)
        if any(isinstance(leaf, Tensor) and self.value(leaf) for leaf in tree_flatten((args, kwargs))[0]):
            self._note(name, func, args, kwargs, result)
        return result

    def _spread(self, tensor: Tensor, at: Run, width: int) -> Tensor:
        result = spread(tensor, at, width)
        if self.value(tensor) is None:
            return result
        place = torch.full((width,), tensor.shape[1])
        place[at.indices()] = torch.arange(at.size)
        self._step("place_channels", (tensor, place.to(tensor.device)), {}, result)
        return result

    def _note(self, name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        tensors = [result] if isinstance(result, Tensor) else list(tree_flatten(result)[0])
        if not any(isinstance(leaf, Tensor) for leaf in tensors):
            return  # a size, a device: a plain number to whoever asked
        if name == "__get__":
            attribute = func.__self__.__name__
            if attribute == "data":
                self._values[id(result)] = self._values[id(args[0])]
                self._held.append(result)
                return
            if attribute not in ("T", "mT"):
                raise CannotExport(f"the attribute '{attribute}' of the features cannot be exported")
            name, args = "transpose", (args[0], -2, -1)
        name = IN_PLACE.get(name, name)
        # What a function does without being asked need not be written down.
        kwargs = {key: value for key, value in kwargs.items() if key not in ("inplace", "return_indices") or value}
        kwargs.pop("inplace", None)
        if name in SAME and not _changes_type(args[0], result):
            self._values[id(result)] = self._values[id(args[0])]
            self._held.append(result)
            return
        if name == "batch_norm":  # torch gives some of its arguments by name: here all have their places
            bound = inspect.signature(F.batch_norm).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = tuple(bound.arguments.values()), {}
        if name not in ALLOWED:
            raise CannotExport(
                f"torch's function '{name}' is not one that a compact network can hold; exchange it for a simpler one"
            )
        if name in ("new_zeros", "new_ones", "new_full"):
            args = (self._held[0], *args[1:])  # the image will do: nothing is read but its type and device
        self._step(name, tuple(args), kwargs, result)

    def _step(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        several = not isinstance(result, Tensor)
        results = list(result) if several else [result]
        numbers = tuple(range(self._count, self._count + len(results)))
        self._count += len(results)
        step = Step(name, self._referred(args), self._referred(kwargs), numbers, several)
        self.recording.steps.append(step)
        for number, tensor in zip(numbers, results, strict=True):
            self._values[id(tensor)] = Value(number)
            self.recording.shapes[number] = tuple(tensor.shape)
            self._held.append(tensor)

    def _referred(self, tree: Any) -> Any:
        """Arguments with features and weights by their names."""

        def refer(leaf: Any) -> Any:
            if isinstance(leaf, torch.Size):
                return tuple(leaf)
            if not isinstance(leaf, Tensor):
                return leaf
            return self._values.get(id(leaf)) or self._weight(leaf)

        return tree_map(refer, tree, is_leaf=lambda leaf: isinstance(leaf, torch.Size))

    def _weight(self, tensor: Tensor) -> Weight:
        if id(tensor) not in self._weights:
            weight = Weight(f"weight_{len(self._weights)}")
            self._weights[id(tensor)] = weight
            self.recording.weights[weight.name] = tensor.detach().clone()
            self._held.append(tensor)
        return self._weights[id(tensor)]


def _changes_type(before: Any, after: Any) -> bool:
    return bool(before.dtype != after.dtype or before.device != after.device)


def record(network: nn.Module, image: Tensor) -> Recording:
    """One pass of a network (images -> tensors by name) as steps."""
    recorder = Recorder(image)
    with torch.no_grad(), recorder:
        outputs: dict[str, Tensor] = network(image)
    for task, output in outputs.items():
        value = recorder.value(output)
        if value is None:
            raise CannotExport(f"the output of task '{task}' does not depend on the image; there is nothing to export")
        recorder.recording.outputs[task] = value
    return recorder.recording


def record_for_any_size(network: nn.Module, image: Tensor) -> tuple[Recording, tuple[int, ...]]:
    """Steps that hold for any batch and, where the network allows it, any image size; and the axes that may vary."""
    batch = image.shape[0]
    first = record(network, image)
    general = _generalised(first, record(network, _resized(image, {0: batch + 1})), 0, batch)
    if general is None:
        raise CannotExport("the network does something else for another number of images; it cannot be exported")
    axes = [0]
    for axis in range(2, image.ndim):
        length = image.shape[axis]
        try:
            other = record(network, _resized(image, {axis: 2 * length}))
        except (RuntimeError, ValueError):
            continue
        wider = _generalised(general, other, axis, length)
        if wider is not None:
            general = wider
            axes.append(axis)
    return general, tuple(axes)


def _resized(image: Tensor, lengths: dict[int, int]) -> Tensor:
    for axis, length in lengths.items():
        image = image.index_select(axis, torch.arange(length, device=image.device) % image.shape[axis])
    return image


def _generalised(first: Recording, other: Recording, axis: int, length: int) -> Recording | None:
    """The first recording, with the numbers that differ in the other one as multiples of the axis that was changed."""
    if [s.function for s in first.steps] != [s.function for s in other.steps]:
        return None
    longer = other.shapes[0][axis]
    steps = []
    for one, two in zip(first.steps, other.steps, strict=True):
        (ours, tree), (theirs, _) = tree_flatten((one.args, one.kwargs)), tree_flatten((two.args, two.kwargs))
        if len(ours) != len(theirs):
            return None
        general = []
        for a, b in zip(ours, theirs, strict=True):
            if isinstance(a, Weight) and isinstance(b, Weight):
                if not _equal(first.weights[a.name], other.weights[b.name]):
                    return None
            elif a != b and not isinstance(a, (Size, slice)):
                if not isinstance(a, int) or not isinstance(b, int) or a * longer != b * length:
                    return None
                a = Size(axis, *_lowest_terms(a, length))
            elif isinstance(a, slice) and a != b:
                return None
            general.append(a)
        args, kwargs = tree_unflatten(general, tree)
        steps.append(Step(one.function, args, kwargs, one.results, one.several))
    return Recording(steps, first.weights, first.outputs, first.shapes)


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and bool(torch.equal(one, two))


def _lowest_terms(number: int, length: int) -> tuple[int, int]:
    from math import gcd

    common = gcd(number, length)
    return number // common, length // common
