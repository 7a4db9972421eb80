"""Make a recording smaller, each pass giving the same outputs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from filtergroups.compaction.joining import joined
from filtergroups.compaction.packing import CONVOLUTIONS, TRANSPOSED, packed
from filtergroups.compaction.recording import Recording
from filtergroups.compaction.steps import Step, Value, Weight, leaves


def compacted(recording: Recording, tasks: Sequence[str]) -> Recording:
    """What some tasks need: no dead kernel, no zero multiplied, norms folded into convolutions."""
    asked = replace(recording, outputs={task: recording.outputs[task] for task in tasks})
    for one_pass in (
        without_dead_steps,
        packed,
        with_norms_folded,
        joined,
        with_plain_slopes,
        without_dead_steps,
        renamed,
    ):
        asked = one_pass(asked)
    return asked


def without_dead_steps(recording: Recording) -> Recording:
    """Only what an output depends on, and the weights of that."""
    needed = {value.number for value in recording.outputs.values()}
    kept = []
    for step in reversed(recording.steps):
        if needed.intersection(step.results):
            kept.append(step)
            needed.update(step.uses())
    steps = kept[::-1]
    names = {leaf.name for step in steps for leaf in leaves((step.args, step.kwargs)) if isinstance(leaf, Weight)}
    weights = {name: tensor for name, tensor in recording.weights.items() if name in names}
    return replace(recording, steps=steps, weights=weights)


def with_norms_folded(recording: Recording) -> Recording:
    """norm(x * M + b) = x * (s M) + (s (b − mean) + shift), s = scale / √(var + eps), where nobody else reads x * M."""
    readers = Counter(number for step in recording.steps for number in step.uses())
    readers.update(value.number for value in recording.outputs.values())
    maker = {step.results[0]: n for n, step in enumerate(recording.steps)}
    steps: list[Step | None] = list(recording.steps)
    weights = dict(recording.weights)
    for n, step in enumerate(recording.steps):
        source = step.args[0] if step.args else None
        if step.function != "batch_norm" or not isinstance(source, Value) or readers[source.number] != 1:
            continue
        before = maker.get(source.number)
        convolution = None if before is None else steps[before]
        if convolution is None or not _can_take(convolution, step):
            continue
        folded = _folded(convolution, step, weights)
        steps[before] = None  # type: ignore[index]  # it is an index where there is a convolution
        steps[n] = replace(folded, results=step.results)
        maker[step.results[0]] = n
    return replace(recording, steps=[step for step in steps if step is not None], weights=weights)


def _can_take(convolution: Step, norm: Step) -> bool:
    if convolution.function not in (*CONVOLUTIONS, *TRANSPOSED) or len(norm.args) != 8:
        return False
    _, mean, var, *_, by_batch, _, _ = norm.args
    known = all(isinstance(tensor, Weight) for tensor in (mean, var, convolution.args[1]))
    # A grouped transposed convolution has the kernels of a group in its second axis, not all of them.
    plain = convolution.function not in TRANSPOSED or not ("groups" in convolution.kwargs or len(convolution.args) > 6)
    return known and plain and not by_batch


def _folded(convolution: Step, norm: Step, weights: dict[str, Tensor]) -> Step:
    def tensor(of: Any) -> Tensor | None:
        return weights[of.name] if isinstance(of, Weight) else None

    _, mean, var, scale, shift, _, _, eps = norm.args
    bank, bias = tensor(convolution.args[1]), tensor(convolution.args[2] if len(convolution.args) > 2 else None)
    moved, spread, stretch, added = tensor(mean), tensor(var), tensor(scale), tensor(shift)
    assert bank is not None
    assert moved is not None
    assert spread is not None
    factor = (spread.double() + eps).rsqrt()  # in double precision: folding must not round twice
    factor = factor if stretch is None else factor * stretch
    offset = -moved * factor if bias is None else (bias - moved) * factor
    offset = offset if added is None else offset + added
    shape = [1] * bank.ndim
    shape[1 if convolution.function in TRANSPOSED else 0] = -1
    names = []
    for made in (bank * factor.reshape(shape), offset):
        names.append(f"folded_{len(weights)}")
        weights[names[-1]] = made.to(bank.dtype)
    return replace(convolution, args=(convolution.args[0], Weight(names[0]), Weight(names[1]), *convolution.args[3:]))


def with_plain_slopes(recording: Recording) -> Recording:
    """A PReLU with one slope is a leaky ReLU with that number."""
    steps = []
    for step in recording.steps:
        if (
            step.function == "prelu"
            and isinstance(step.args[1], Weight)
            and recording.weights[step.args[1].name].numel() == 1
        ):
            slope = float(recording.weights[step.args[1].name])
            step = replace(step, function="leaky_relu", args=(step.args[0], slope))
        steps.append(step)
    return replace(recording, steps=steps)


def renamed(recording: Recording) -> Recording:
    """Weights by the step that reads them first: conv2d_3_weight, conv2d_3_bias, …"""
    names: dict[str, str] = {}
    steps = []
    for n, step in enumerate(recording.steps):
        found = [leaf.name for leaf in leaves((step.args, step.kwargs)) if isinstance(leaf, Weight)]
        for place, name in enumerate(found):
            role = ("weight", "bias")[place] if step.function in (*CONVOLUTIONS, *TRANSPOSED) else str(place)
            names.setdefault(name, f"{step.function.strip('_')}_{n}_{role}")
        steps.append(step)

    def rename(leaf: Any) -> Any:
        return Weight(names[leaf.name]) if isinstance(leaf, Weight) else leaf

    steps = [replace(s, args=tree_map(rename, s.args), kwargs=tree_map(rename, s.kwargs)) for s in steps]
    return replace(recording, steps=steps, weights={names[name]: tensor for name, tensor in recording.weights.items()})


def multiplications(recording: Recording) -> int:
    """Multiplications of convolutions and linear layers for one image of the recorded size."""
    total = 0
    for step in recording.steps:
        if step.function in (*CONVOLUTIONS, *TRANSPOSED, "matmul") and isinstance(step.args[1], Weight):
            weight = recording.weights[step.args[1].name]
            shape = recording.shapes[step.args[0].number if step.function in TRANSPOSED else step.results[0]]
            total += weight.numel() * int(torch.tensor(shape[2:]).prod())
    return total
