"""Is a network as sure as it should be? Measured on any part, and corrected by one number a task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from filtergroups.correction import (
    BOUNDS,
    Correction,
    fit_interval,
    fit_temperature,
    half_width,
    negative_log_likelihood,
    save_corrections,
    tempered,
)
from filtergroups.data.examples import Data, DataError, Volume
from filtergroups.data.load import load_data
from filtergroups.measuring import predicted
from filtergroups.paths import AnyPath, as_path
from filtergroups.restored import Restored, open_run
from filtergroups.statistics import Kind, Step, use_recalibrated
from filtergroups.tasks import Prediction, Task
from filtergroups.volumes import predict_volume

BINS = 15
MOST_VOXELS = 200_000  # of a patient (or a batch of images): neighbours tell little more
MOST_VALUES = 2_000_000  # kept in all for fitting


@dataclass(frozen=True)
class Labelled:
    """Predictions of what is labelled, flat. Classes have probabilities (examples × classes)."""

    truth: Tensor
    value: Tensor
    spread: Tensor
    probabilities: Tensor | None

    @staticmethod
    def of(task: Task, prediction: Prediction, label: Tensor, mask: Tensor | None, most: int, seed: int) -> "Labelled":
        """A batch's labelled values, at most so many, chosen by a seed."""
        where = task.known(label, mask).flatten().nonzero().flatten().cpu()
        if len(where) > most:
            order = torch.randperm(len(where), generator=torch.Generator().manual_seed(seed))
            where = where[order[:most].sort().values]
        probabilities = prediction.probabilities
        if probabilities is not None:
            by_example = probabilities.reshape(*probabilities.shape[:2], -1).cpu()
            places = by_example.shape[2]
            probabilities = by_example[where // places, :, where % places]
        truth, value, spread = (t.flatten().cpu()[where] for t in (label, prediction.value, prediction.spread))
        return Labelled(truth, value, spread, probabilities)

    @staticmethod
    def joined(parts: "Sequence[Labelled]") -> "Labelled":
        kept = [part.probabilities for part in parts if part.probabilities is not None]
        truth, value, spread = (torch.cat([getattr(p, name) for p in parts]) for name in ("truth", "value", "spread"))
        return Labelled(truth, value, spread, torch.cat(kept) if kept else None)


class Coverage:
    """How often 90 % intervals hold the true value, and how wide they are."""

    def __init__(self) -> None:
        self.count, self.inside, self.total = 0, 0, 0.0

    def add(self, truth: Tensor, value: Tensor, half: Tensor) -> None:
        self.count += len(truth)
        self.inside += int(((truth.double() - value.double()).abs() <= half.double()).sum())
        self.total += 2 * half.double().sum().item()

    @property
    def coverage(self) -> float | None:
        return self.inside / self.count if self.count else None

    @property
    def width(self) -> float | None:
        return self.total / self.count if self.count else None


class Reliability:
    """Confidence against accuracy, in equally wide bins of the confidence."""

    def __init__(self, bins: int = BINS) -> None:
        self.edges = torch.linspace(0, 1, bins + 1)
        self.sums = torch.zeros(3, bins, dtype=torch.float64)  # examples, confidence, right answers

    def add(self, probabilities: Tensor, truth: Tensor) -> None:
        confidence, answer = probabilities.max(1)
        # As torchmetrics has it: a bin holds its lower edge, and the last one also 1.
        bins = (torch.bucketize(confidence.float(), self.edges, right=True) - 1).clamp_max(len(self.edges) - 2)
        right = (answer == truth).double()
        self.sums.index_add_(1, bins, torch.stack([torch.ones_like(right), confidence.double(), right]))

    @property
    def error(self) -> float | None:
        """Expected calibration error: Σ share of the bin · |accuracy − confidence|."""
        count, confidence, right = self.sums
        return ((right - confidence).abs().sum() / count.sum()).item() if count.any() else None

    def bins(self) -> list[dict[str, float]]:
        """For a reliability diagram: the bins that hold anything."""
        return [
            {"confidence": confidence / count, "accuracy": right / count, "count": int(count)}
            for count, confidence, right in self.sums.T.tolist()
            if count
        ]


class CalibrationMeter:
    """Collects the calibration of all tasks, as predicted and as corrected."""

    def __init__(self, tasks: Sequence[Task], corrections: Mapping[str, Correction]) -> None:
        self.tasks, self.corrections = tasks, corrections
        self.coverage = {task.name: (Coverage(), Coverage()) for task in tasks}
        self.reliability = {task.name: (Reliability(), Reliability()) for task in tasks}
        self.classes: set[str] = set()
        self.seen = 0

    def add(
        self, predictions: Mapping[str, Prediction], labels: Mapping[str, Tensor], masks: Mapping[str, Tensor]
    ) -> None:
        """A batch."""
        self.seen += 1
        for task in self.tasks:
            name = task.name
            self.add_labelled(
                name, Labelled.of(task, predictions[name], labels[name], masks.get(name), MOST_VOXELS, self.seen)
            )

    def add_labelled(self, name: str, found: Labelled) -> None:
        correction = self.corrections.get(name)
        if found.probabilities is None:
            plain, corrected = self.coverage[name]
            plain.add(found.truth, found.value, half_width(found.spread, None))
            if correction is not None:
                corrected.add(found.truth, found.value, half_width(found.spread, correction))
            return
        self.classes.add(name)
        before, after = self.reliability[name]
        before.add(found.probabilities, found.truth)
        if correction is not None:
            after.add(tempered(found.probabilities, correction.value), found.truth)

    def results(self) -> dict[str, dict[str, Any]]:
        """By task; None where nothing was labelled or corrected."""
        found: dict[str, dict[str, Any]] = {}
        for task in self.tasks:
            if task.name in self.classes:
                before, after = self.reliability[task.name]
                found[task.name] = {"ece": before.error, "ece_corrected": after.error, "bins": before.bins()}
            else:
                plain, corrected = self.coverage[task.name]
                found[task.name] = {
                    "coverage": plain.coverage, "coverage_corrected": corrected.coverage,
                    "width": plain.width, "width_corrected": corrected.width,
                }  # fmt: skip
        return found


OfBatch = tuple[dict[str, Prediction], dict[str, Tensor], dict[str, Tensor]]  # predictions, labels, masks


def batch_of_one(predictions: Mapping[str, Prediction], volume: Volume) -> OfBatch:
    """A volume's predictions, labels and masks as those of a batch."""

    def added(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.unsqueeze(0)

    batched = {
        name: Prediction(p.value.unsqueeze(0), p.spread.unsqueeze(0), added(p.probabilities))
        for name, p in predictions.items()
    }
    labels, masks = ({name: t.unsqueeze(0) for name, t in of.items()} for of in (volume.labels, volume.masks))
    return batched, labels, masks


def calibrate(
    run: AnyPath, *, samples: int = 50, checkpoint: str = "best", progress: Step | None = None
) -> dict[str, Any]:
    """Fit a correction for every task on the part that chose the checkpoint and keep it in the run's calibration.json.

    samples: Monte Carlo passes; 0: the mode network, which has corrections of its own. `predict` and `evaluate` use
    them. The figures in the answer are of the part that was fitted to: `evaluate` gives held-out ones.
    """
    restored = open_run(as_path(run), checkpoint)
    samples = restored.passes(samples)
    kind: Kind = "sampled" if samples else "mode"
    warning = use_recalibrated(restored, samples, progress)
    part = restored.config.chosen_by
    data = load_data(restored.config, constants=restored.progress.constants, parts=(part,), progress=progress)
    collected = _collected(restored, data, samples, progress)
    corrections: dict[str, Correction] = {}
    notes = [] if warning is None else [warning]
    for task in restored.tasks:
        try:
            corrections[task.name] = _fitted(collected[task.name])
        except ValueError as problem:
            notes.append(f"task '{task.name}' is not corrected: {problem} in the {part} part")
    if not corrections:
        raise DataError(f"nothing to calibrate: {notes[-1]}; enlarge that part and try again")
    save_corrections(restored.run, kind, restored.progress.step, corrections)
    notes += [
        f"task '{name}': the temperature is at its bound, as every example was predicted right"
        for name, correction in corrections.items()
        if correction.kind == "temperature" and min(correction.value / BOUNDS[0], BOUNDS[1] / correction.value) < 1.001
    ]
    return {
        "kind": kind, "samples": samples, "checkpoint": checkpoint, "step": restored.progress.step, "part": part,
        "notes": notes,
        "tasks": {name: asdict(correction) for name, correction in corrections.items()},
        "validation": _before_and_after(restored.tasks, collected, corrections),
    }  # fmt: skip


def _collected(restored: Restored, data: Data, samples: int, progress: Step | None) -> dict[str, Labelled]:
    found: dict[str, list[Labelled]] = {task.name: [] for task in restored.tasks}
    calls, of_part = _predictions(restored, data, samples)
    most = min(MOST_VOXELS, max(MOST_VALUES // calls, 1))
    for number, (predictions, labels, masks) in enumerate(of_part, start=1):
        for task in restored.tasks:
            name = task.name
            found[name].append(Labelled.of(task, predictions[name], labels[name], masks.get(name), most, number))
        if progress is not None:
            progress("predicting the part that chose the checkpoint", number, calls)
    return {name: Labelled.joined(parts) for name, parts in found.items()}


def _predictions(restored: Restored, data: Data, samples: int) -> tuple[int, Iterator[OfBatch]]:
    """How many batches (or patients) the part has that is fitted to, and their predictions, labels and masks."""
    how: dict[str, Any] = {
        "samples": samples, "seed": restored.config.seed, "temperature": restored.temperature, "statistics": "running",
    }  # fmt: skip
    chosen_by = restored.config.chosen_by
    if chosen_by not in data.parts:
        raise DataError(f"expected examples in the part '{chosen_by}', found none; add some to the split")
    if chosen_by in data.volumes:
        volumes = data.volumes[chosen_by]

        def of_volumes() -> Iterator[OfBatch]:
            for volume in volumes:
                found = predict_volume(restored.network, volume.image, **restored.windows, **how)
                yield batch_of_one(found, volume)

        return len(volumes), of_volumes()
    part, size = data.parts[chosen_by], restored.config.training.batch_size

    def of_images() -> Iterator[OfBatch]:
        for _, batch, found in predicted(restored.network, part, batch_size=size, **how):
            yield found, batch.labels, batch.masks

    return -(-len(part) // size), of_images()


def _fitted(found: Labelled) -> Correction:
    if found.probabilities is not None:
        return fit_temperature(found.probabilities, found.truth.long())
    return fit_interval(found.truth.double() - found.value.double(), found.spread)


def _before_and_after(
    tasks: Sequence[Task], collected: Mapping[str, Labelled], corrections: Mapping[str, Correction]
) -> dict[str, dict[str, Any]]:
    meter = CalibrationMeter(tasks, corrections)
    for name, found in collected.items():
        meter.add_labelled(name, found)
    results = meter.results()
    for name, correction in corrections.items():
        found = collected[name]
        if found.probabilities is not None:
            truth = found.truth.long()
            results[name]["nll"] = negative_log_likelihood(found.probabilities, truth)
            results[name]["nll_corrected"] = negative_log_likelihood(
                tempered(found.probabilities, correction.value), truth
            )
    return results
