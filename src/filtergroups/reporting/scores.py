"""A run's results as one flat list of scores, whatever the task."""

import math
from dataclasses import dataclass
from typing import Any

from filtergroups.certainty import passes_in_words
from filtergroups.predictor import NORMS
from filtergroups.reporting.collect import Record

METRICS = {"mae": "mean abs. error", "psnr": "PSNR (dB)", "dice": "Dice"}  # as they are written
MORE_IS_BETTER = {"accuracy", "dice", "psnr"}


@dataclass(frozen=True)
class Score:
    """One number: of a task, a metric and (for scans) a region."""

    task: str
    metric: str
    region: str
    value: float
    error: float | None = None  # over patients the standard deviation, over examples the standard error
    plain: float | None = None  # without looking at the image

    @property
    def key(self) -> tuple[str, str, str]:
        return self.task, self.metric, self.region

    @property
    def name(self) -> str:
        where = f", {self.region}" if self.region not in ("", "overall") else ""
        return f"{self.task} {METRICS.get(self.metric, self.metric)}{where}"


@dataclass(frozen=True)
class Scored:
    """Scores and what they were measured on."""

    where: str
    scores: list[Score]
    samples: int
    result: dict[str, Any]
    evaluated: bool = True  # by `filtergroups evaluate`, not in passing during training


def scored(record: Record) -> list[Scored]:
    """What was measured: the evaluations, in their order; else the last validation."""
    if record.results:
        return [
            Scored(measured_on(record, found), list(_scores(found)), found["samples"], found)
            for found in in_order(record)
        ]
    validations = record.entries("validation")
    if not validations:
        return []
    last = validations[-1]
    found = {"tasks": last["results"], "plain": {}}
    part = "validation" if record.config is None else record.config.chosen_by
    how = f", {NORMS[last['norms']]}, {passes_in_words(last['samples'])}" if {"norms", "samples"} <= set(last) else ""
    return [Scored(f"{part} at step {last['step']:,}{how}", list(_scores(found)), 0, found, evaluated=False)]


def in_order(record: Record) -> list[dict[str, Any]]:
    """The evaluations: on the run's own data first, then those of the network that the page shows, then test first."""
    order = {"test": 0, "validation": 1, "selection": 1, "train": 2}

    def place(found: dict[str, Any]) -> tuple[Any, ...]:
        shown = _is_best(found) and _is_current(record, found) and _norms(found) == "recalibrated"
        return found["data"] is not None, not shown, order.get(found["split"], 3), -found["samples"]

    return sorted(record.results, key=place)


def _is_best(result: dict[str, Any]) -> bool:
    return bool(result.get("checkpoint", "best") == "best")


def _is_current(record: Record, result: dict[str, Any]) -> bool:
    """Is the best checkpoint still the one that was measured? A run that was resumed may have another."""
    return None in (record.best_step, result.get("step")) or bool(result["step"] == record.best_step)


def _norms(result: dict[str, Any]) -> str:
    return str(result.get("statistics", "recalibrated"))


def measured_on(record: Record, result: dict[str, Any]) -> str:
    data = f" of {result['data']}" if result["data"] else ""
    if not _is_best(result):
        checkpoint = f", checkpoint {result['checkpoint']}"
    elif _is_current(record, result):
        checkpoint = ""
    else:
        checkpoint = f", of step {result['step']:,}: the best checkpoint is now of step {record.best_step:,}"
    norms = "" if _norms(result) == "recalibrated" else f", {NORMS[_norms(result)]}"
    passes = passes_in_words(result["samples"])
    return f"{result['split']} part{data}, {result['examples']} examples, {passes}{norms}{checkpoint}"


def _scores(result: dict[str, Any]) -> Any:
    errors = result.get("standard_errors", {})
    for task, metrics in result["tasks"].items():
        plain = result["plain"].get(task, {})
        for metric, value in metrics.items():
            if isinstance(value, dict):
                for region, of_region in value.items():
                    if of_region is not None:
                        without = (plain.get(metric) or {}).get(region)
                        spread = of_region["std"] if of_region["patients"] > 1 else None
                        yield Score(task, metric, region, of_region["mean"], spread, without and without["mean"])
            elif isinstance(value, float) and math.isfinite(value):
                yield Score(task, metric, "", value, errors.get(task, {}).get(metric), plain.get(metric))


def written(metric: str, value: float) -> str:
    """A value with as many digits as make sense; accuracies in per cent."""
    if metric == "accuracy":
        return f"{100 * value:.1f}%"
    if metric == "dice":
        return f"{value:.3f}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def with_error(metric: str, value: float, error: float | None) -> str:
    if error is None:
        return written(metric, value)
    if metric == "accuracy":
        return f"{100 * value:.1f} ± {100 * error:.1f}%"
    return f"{written(metric, value)} ± {written(metric, error)}"
