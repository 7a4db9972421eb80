"""One number a task that makes a network's uncertainty honest: a temperature for classes, a factor for intervals.

Classes: softmax(log p / T) with the T of least negative log likelihood (Guo et al. 2017). Real values: ± q · spread,
with the split-conformal 90 % quantile q of |error| / spread; where there is no spread, ± the quantile of |error|.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from filtergroups.kept import Corrections, as_kept
from filtergroups.reading import read_model
from filtergroups.run import Run, RunError
from filtergroups.statistics import Kind

LEVEL = 0.9  # of the intervals
NORMAL_QUANTILE = 1.645  # standard deviations on either side that hold 90 % of a normal distribution
BOUNDS = (0.05, 20.0)  # of T: where every example is predicted right, the likelihood would have it at 0
FEWEST = 9  # = LEVEL / (1 − LEVEL): with fewer examples no interval is sure to hold 90 % of the next
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Correction:
    """What was fitted for one task, on so many examples (or voxels)."""

    kind: Literal["scale", "constant", "temperature"]
    value: float
    examples: int


def tempered(probabilities: Tensor, temperature: float, axis: int = 1) -> Tensor:
    """softmax(log p / T) over the class axis; the most probable class stays the same."""
    return (probabilities.double().clamp_min(TINY).log() / temperature).softmax(axis)


def half_width(spread: Tensor | None, correction: Correction | None) -> Tensor | float | None:
    """Half of the 90 % interval around a real value, in the label's units; None where nothing is known of it.

    spread: over at least two passes; None: there was one, so that an interval made of its spread would have no width.
    """
    if correction is not None and correction.kind == "constant":
        return correction.value
    if spread is None:
        return None
    return (NORMAL_QUANTILE if correction is None else correction.value) * spread


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """Mean over the examples of −log p(label); examples × classes."""
    return F.nll_loss(probabilities.double().clamp_min(TINY).log(), labels).item()


def conformal_quantile(scores: Tensor, level: float = LEVEL) -> float:
    """The ⌈(n + 1) · level⌉-th smallest of n scores: the next one lies below it with that probability, or infinity."""
    place = math.ceil((len(scores) + 1) * level - 1e-9)
    return torch.kthvalue(scores, place).values.item() if place <= len(scores) else math.inf


def fit_interval(error: Tensor, spread: Tensor) -> Correction:
    """The factor of the spread whose intervals hold; a constant where too many examples have no spread."""
    if len(error) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} labelled examples for a 90 % interval, found {len(error)}")
    error, spread = error.double().abs(), spread.double()
    if spread.any():
        # Without any spread the interval is a point: it holds where the error is 0, else no factor helps.
        scores = torch.where(error == 0, 0, error / spread)
        if math.isfinite(factor := conformal_quantile(scores)):
            return Correction("scale", factor, len(error))
    return Correction("constant", conformal_quantile(error), len(error))


def fit_temperature(probabilities: Tensor, labels: Tensor) -> Correction:
    """The temperature of least negative log likelihood within the bounds: examples × classes, examples."""
    if len(labels) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} labelled examples for a temperature, found {len(labels)}")
    if len(labels.unique()) < 2:
        raise ValueError("expected labels of at least two classes for a temperature, found one")
    log_probabilities = probabilities.double().clamp_min(TINY).log()

    def loss(log_temperature: float) -> float:
        return F.nll_loss((log_probabilities / math.exp(log_temperature)).log_softmax(1), labels).item()

    # The loss is convex in 1 / T, so that it has one valley in log T too.
    best = valley(loss, math.log(BOUNDS[0]), math.log(BOUNDS[1]))
    return Correction("temperature", math.exp(best) if loss(best) < loss(0.0) else 1.0, len(labels))


def valley(function: Callable[[float], float], low: float, high: float, steps: int = 36) -> float:
    """Where a function with one valley is lowest: golden section search."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(steps):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2


def save_corrections(run: Run, kind: Kind, step: int, corrections: Mapping[str, Correction]) -> None:
    """Keep the corrections of the mode network or of sampled passes beside those of the other."""
    try:
        with run.changing():
            try:
                kept = read_corrections(run)
            except RunError:  # what cannot be read is replaced
                kept = {}
            kept[kind] = {name: asdict(correction) for name, correction in corrections.items()}
            kept["step"] = {**kept.get("step", {}), kind: step}
            run.write("calibration.json", json.dumps(kept, indent=1).encode())
    except OSError as error:
        raise RunError(f"{run.calibration}: could not write: {error.strerror}") from None


def load_corrections(run: Run, kind: Kind, step: int) -> tuple[dict[str, Correction], str | None]:
    """The corrections by task that were fitted to this checkpoint; and a line where there are only another's."""
    kept = read_corrections(run)
    fitted = kept.get("step", {}).get(kind)
    if fitted != step:
        stale = f"{run.calibration} belongs to step {fitted}, this checkpoint is of step {step}: it is not used"
        return {}, None if fitted is None else stale
    return {name: Correction(**entry) for name, entry in kept.get(kind, {}).items()}, None


def read_corrections(run: Run) -> dict[str, Any]:
    """calibration.json: corrections by kind and task, and the steps that they belong to; {} where there is none."""
    what, remedy = "what `filtergroups calibrate` writes", "run that again"
    try:
        found: dict[str, Any] = as_kept(
            read_model(Corrections, run.calibration, what, RunError, remedy, below=run.path)
        )
    except FileNotFoundError:
        return {}
    return found
