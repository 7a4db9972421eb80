"""Leave out what is multiplied by zero.

A merge puts each stream's channels at their places among zeros. Those zeros are followed here through everything that
keeps them zero, up to the convolution that reads them, which then has no weights for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from filtergroups.compaction.recording import Recording
from filtergroups.compaction.steps import Step, Value, Weight
from filtergroups.groups.operations import words

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "linear")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
# A channel of zeros stays one, and no channel looks at another: these run on the channels that are there.
KEEPS_ZEROS = words(
    """
    relu relu6 leaky_relu elu selu celu gelu silu mish hardswish hardshrink softshrink tanhshrink tanh softsign
    sqrt square abs neg sin erf
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d lp_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d interpolate dropout
    """
)
OVER_SPACE = ("mean", "sum", "amax", "amin")


@dataclass(frozen=True)
class Packed:
    """A value without its zeros: which channels of the plain tensor are kept, of how many."""

    value: Value
    kept: Tensor
    width: int

    def places(self) -> Tensor:
        """For each plain channel the kept one that it is; their number stands for a zero."""
        return torch.full((self.width,), len(self.kept)).scatter(0, self.kept, torch.arange(len(self.kept)))


def packed(recording: Recording) -> Recording:
    """Channels that are known to be 0 are left out, and so are the weights that would multiply them."""
    return _Packing(recording).run()


class _Packing:
    """Writes the steps anew; a rule writes its step and says so, or leaves it to be done with zeros."""

    def __init__(self, recording: Recording) -> None:
        self.old = recording
        self.steps: list[Step] = []
        self.weights = dict(recording.weights)
        self.shapes = dict(recording.shapes)  # of what is kept; those of the plain tensors are the recording's
        self.packed: dict[int, Packed] = {}
        self.whole: dict[int, Value] = {}  # packed values that were needed with their zeros
        self.count = 1 + max((number for step in recording.steps for number in step.results), default=0)

    def run(self) -> Recording:
        rules: dict[str, Callable[[Step], bool]] = {
            "place_channels": self._placed, "flatten": self._flattened, "add": self._sum, "__add__": self._sum,
            "cat": self._side_by_side, "prelu": self._prelu,
            **dict.fromkeys((*CONVOLUTIONS, *TRANSPOSED), self._convolution),
            **dict.fromkeys(KEEPS_ZEROS, self._channelwise),
            **dict.fromkeys(OVER_SPACE, self._over_space),
        }  # fmt: skip
        for step in self.old.steps:
            follow = step.function == "place_channels" or any(number in self.packed for number in step.uses())
            if not (follow and step.function in rules and rules[step.function](step)):
                self.steps.append(self._with_zeros(step))
        outputs = {task: self._dense(value) for task, value in self.old.outputs.items()}
        return replace(self.old, steps=self.steps, weights=self.weights, outputs=outputs, shapes=self.shapes)

    def _weight(self, tensor: Tensor) -> Weight:
        name = f"packed_{len(self.weights)}"
        self.weights[name] = tensor.contiguous()
        return Weight(name)

    def _dense(self, value: Value) -> Value:
        """A value with its zeros."""
        here = self.packed.get(value.number)
        if here is None:
            return value
        if value.number not in self.whole:
            whole = Value(self.count)
            self.count += 1
            self.shapes[whole.number] = self.old.shapes[value.number]
            self.steps.append(Step("place_channels", (here.value, self._weight(here.places())), {}, (whole.number,)))
            self.whole[value.number] = whole
        return self.whole[value.number]

    def _with_zeros(self, step: Step) -> Step:
        def dense(leaf: Any) -> Any:
            return self._dense(leaf) if isinstance(leaf, Value) else leaf

        return replace(step, args=tree_map(dense, step.args), kwargs=tree_map(dense, step.kwargs))

    def _write(self, step: Step, *args: Any, kept: Tensor | None = None, width: int = 0, function: str = "") -> bool:
        self.steps.append(replace(step, args=args, function=function or step.function))
        if kept is not None:
            self._keep(step.results[0], kept, width)
        return True

    def _keep(self, number: int, kept: Tensor, width: int) -> None:
        self.packed[number] = Packed(Value(number), kept, width)
        batch, _, *space = self.old.shapes[number]
        self.shapes[number] = (batch, len(kept), *space)

    def _placed(self, step: Step) -> bool:
        source, place = step.args
        places, count = self.weights[place.name].cpu(), self.old.shapes[source.number][1]
        at = (places < count).nonzero().flatten()
        kept = torch.empty(count, dtype=torch.long).scatter(0, places[at], at)
        before = self.packed.get(source.number)
        if before is not None:
            source, kept = before.value, kept[before.kept]
        self.packed[step.results[0]] = Packed(source, kept, len(places))
        return True

    def _convolution(self, step: Step) -> bool:
        source, weight, *rest = step.args
        transposed = step.function in TRANSPOSED
        groups = step.kwargs.get("groups", rest[5 if transposed else 4] if len(rest) > (5 if transposed else 4) else 1)
        flat = step.function != "linear" or len(self.old.shapes[source.number]) == 2
        if groups != 1 or not flat or not isinstance(weight, Weight) or source.number not in self.packed:
            return False
        here, tensor = self.packed[source.number], self.weights[weight.name]
        smaller = tensor.index_select(0 if transposed else 1, here.kept.to(tensor.device))
        return self._write(step, here.value, self._weight(smaller), *rest)

    def _channelwise(self, step: Step) -> bool:
        source, *rest = step.args
        if any(isinstance(leaf, Value) for leaf in rest) or step.several:
            return False
        here = self.packed[source.number]
        return self._write(step, here.value, *rest, kept=here.kept, width=here.width)

    def _prelu(self, step: Step) -> bool:
        source, slope = step.args
        if not isinstance(slope, Weight):
            return False
        here, slopes = self.packed[source.number], self.weights[slope.name]
        if len(slopes) > 1:
            slope = self._weight(slopes[here.kept.to(slopes.device)])
        return self._write(step, here.value, slope, kept=here.kept, width=here.width)

    def _over_space(self, step: Step) -> bool:
        axes = len(self.old.shapes[step.args[0].number])
        given = step.kwargs.get("dim", step.args[1] if len(step.args) > 1 else None)
        dims = [given] if isinstance(given, int) else list(given or ())
        if not dims or any(d % axes < 2 for d in dims):
            return False
        return self._channelwise(step)

    def _flattened(self, step: Step) -> bool:
        """Space joins the channels: a unit is a channel at one position."""
        source, start, *end = (*step.args, *([step.kwargs["start_dim"]] if "start_dim" in step.kwargs else []))
        here, shape = self.packed[source.number], self.old.shapes[source.number]
        if start >= 2:
            return self._write(step, here.value, start, *end, kept=here.kept, width=here.width)
        if start != 1 or (end and end[0] % len(shape) != len(shape) - 1):
            return False
        positions = prod(shape[2:])
        units = (here.kept[:, None] * positions + torch.arange(positions)).flatten()
        return self._write(step, here.value, start, *end, kept=units, width=here.width * positions)

    def _sum(self, step: Step) -> bool:
        """Channels of different places follow each other; the same places are added."""
        left, right, *rest = (*step.args, *step.kwargs.values())
        if rest or not all(isinstance(side, Value) and side.number in self.packed for side in (left, right)):
            return False
        a, b = self.packed[left.number], self.packed[right.number]
        if torch.equal(a.kept, b.kept):
            return self._write(step, a.value, b.value, kept=a.kept, width=a.width)
        both = torch.cat([a.kept, b.kept])
        if a.width != b.width or len(both.unique()) < len(both):
            return False
        return self._write(step, (a.value, b.value), 1, kept=both, width=a.width, function="cat")

    def _side_by_side(self, step: Step) -> bool:
        parts: Sequence[Any] = step.args[0]
        axis = step.args[1] if len(step.args) > 1 else step.kwargs.get("dim", 0)
        if axis != 1 or not all(isinstance(part, Value) for part in parts):
            return False
        kept, values, start = [], [], 0
        for part in parts:
            here, width = self.packed.get(part.number), self.old.shapes[part.number][1]
            kept.append(start + (torch.arange(width) if here is None else here.kept))
            values.append(part if here is None else here.value)
            start += width
        self.steps.append(replace(step, args=(tuple(values), 1), kwargs={}))
        self._keep(step.results[0], torch.cat(kept), start)
        return True
