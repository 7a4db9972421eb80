"""Fewer and larger convolutions: features that several of them read are convolved once.

Convolution is linear: [a, b] * [Ma, Mb] = a * Ma + b * Mb. Where a, the shared stream say, is read by several groups
beside their own, a is convolved once with all their kernels, and what each group takes of that is added to its own.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from filtergroups.compaction.packing import CONVOLUTIONS
from filtergroups.compaction.recording import Recording
from filtergroups.compaction.steps import Step, Value, Weight


def joined(recording: Recording) -> Recording:
    """Features that several convolutions read are convolved once."""
    return _Joining(recording).run()


class _Joining:
    def __init__(self, recording: Recording) -> None:
        self.old = recording
        self.weights = dict(recording.weights)
        self.shapes = dict(recording.shapes)
        self.count = 1 + max((number for step in recording.steps for number in step.results), default=0)
        self.cats = {
            step.results[0]: step.args[0]
            for step in recording.steps
            if step.function == "cat" and len(step.args) == 2 and step.args[1] == 1 and _all_values(step.args[0])
        }

    def run(self) -> Recording:
        return self._siblings(self._apart())

    def _weight(self, tensor: Tensor) -> Weight:
        name = f"joined_{len(self.weights)}"
        self.weights[name] = tensor.contiguous()
        return Weight(name)

    def _value(self, like: int, channels: int) -> Value:
        value = Value(self.count)
        self.count += 1
        batch, _, *space = self.shapes[like]
        self.shapes[value.number] = (batch, channels, *space)
        return value

    def _plain(self, step: Step) -> bool:
        """A convolution of features with known weights, over the channel axis, in one group."""
        if step.function not in CONVOLUTIONS or len(step.args) not in (2, 3) or step.kwargs.get("groups", 1) != 1:
            return False
        source, *weights = step.args
        axes = len(self.shapes[source.number]) if isinstance(source, Value) else 0
        known = all(weight is None or isinstance(weight, Weight) for weight in weights)
        return known and (axes == 2 if step.function == "linear" else axes > 2)

    def _kind(self, step: Step, source: Value) -> tuple[Any, ...]:
        """What convolutions must have in common to be one."""
        size = tuple(self.weights[step.args[1].name].shape[2:])
        return (step.function, source, size, str(sorted(step.kwargs.items())))

    def _sources(self, step: Step) -> list[Value]:
        source = step.args[0]
        return list(self.cats.get(source.number, (source,)))

    def _apart(self) -> list[Step]:
        """Convolutions over features side by side, taken apart where some of those are read by others too."""
        convolutions = [step for step in self.old.steps if self._plain(step)]
        readers = Counter(self._kind(step, source) for step in convolutions for source in self._sources(step))
        steps: list[Step] = []
        for step in self.old.steps:
            shared = [s for s in self._sources(step) if readers[self._kind(step, s)] > 1] if self._plain(step) else []
            if shared and step.args[0].number in self.cats:
                steps += self._in_parts(step, shared)
            else:
                steps.append(step)
        return steps

    def _in_parts(self, step: Step, shared: list[Value]) -> list[Step]:
        sources, bank = self._sources(step), self.weights[step.args[1].name]
        bias = step.args[2] if len(step.args) == 3 else None
        widths = [self.shapes[source.number][1] for source in sources]
        banks = dict(zip(sources, bank.split(widths, 1), strict=True))
        own = [source for source in sources if source not in shared]
        steps: list[Step] = []
        parts: list[Value] = []
        for together in [[source] for source in shared] + ([own] if own else []):
            source = together[0]
            if len(together) > 1:
                source = self._value(source.number, sum(self.shapes[s.number][1] for s in together))
                steps.append(Step("cat", (tuple(together), 1), {}, (source.number,)))
            part = self._value(step.results[0], bank.shape[0])
            weight = self._weight(torch.cat([banks[one] for one in together], 1))
            steps.append(replace(step, args=(source, weight, None if parts else bias), results=(part.number,)))
            parts.append(part)
        total = parts[0]
        for part in parts[1:]:
            here = Value(step.results[0]) if part is parts[-1] else self._value(step.results[0], bank.shape[0])
            steps.append(Step("add", (total, part), {}, (here.number,)))
            total = here
        if len(parts) == 1:
            steps[-1] = replace(steps[-1], results=step.results)
        return steps

    def _siblings(self, steps: list[Step]) -> Recording:
        """Convolutions of the same features as one, whose results are split."""
        together: dict[Any, list[int]] = {}
        for n, step in enumerate(steps):
            if self._plain(step):
                together.setdefault(self._kind(step, step.args[0]), []).append(n)
        first = {places[0]: places for places in together.values() if len(places) > 1}
        others = {n for places in first.values() for n in places[1:]}
        kept: list[Step] = []
        for n, step in enumerate(steps):
            if n in first:
                kept += self._one([steps[place] for place in first[n]])
            elif n not in others:
                kept.append(step)
        return replace(self.old, steps=kept, weights=self.weights, shapes=self.shapes)

    def _one(self, parts: list[Step]) -> list[Step]:
        banks = [self.weights[part.args[1].name] for part in parts]
        biases = [
            self.weights[part.args[2].name] if len(part.args) == 3 and part.args[2] is not None else None
            for part in parts
        ]
        bias: Weight | None = None
        if any(one is not None for one in biases):
            none = [bank.new_zeros(bank.shape[0]) for bank in banks]
            bias = self._weight(torch.cat([n if b is None else b for b, n in zip(biases, none, strict=True)]))
        sizes = tuple(bank.shape[0] for bank in banks)
        whole = self._value(parts[0].results[0], sum(sizes))
        step = replace(parts[0], args=(parts[0].args[0], self._weight(torch.cat(banks)), bias), results=(whole.number,))
        results = tuple(part.results[0] for part in parts)
        return [step, Step("split", (whole, sizes, 1), {}, results, several=True)]


def _all_values(parts: Any) -> bool:
    return all(isinstance(part, Value) for part in parts)
