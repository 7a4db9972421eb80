"""Is a network as sure as it should be? Measured on any part, as predicted and as corrected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from filtergroups.correction import Correction, half_width, tempered
from filtergroups.data.examples import Volume
from filtergroups.tasks import Prediction, Task

BINS = 15
MOST_VOXELS = 200_000  # of a patient (or a batch of images): neighbours tell little more


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

    def add(self, truth: Tensor, value: Tensor, half: Tensor | float) -> None:
        """half: of the intervals' width, of each or of all."""
        halves = torch.as_tensor(half, dtype=torch.float64).expand(truth.shape)
        self.count += len(truth)
        self.inside += int(((truth.double() - value.double()).abs() <= halves).sum())
        self.total += 2 * halves.sum().item()

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
    """Collects the calibration of all tasks, as predicted and as corrected.

    has_spread: are there several passes? One has none, so that its real values have no interval before a correction.
    """

    def __init__(
        self, tasks: Sequence[Task], corrections: Mapping[str, Correction], *, has_spread: bool = True
    ) -> None:
        self.tasks, self.corrections, self.has_spread = tasks, corrections, has_spread
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
            spread = found.spread if self.has_spread else None
            halves = (half_width(spread, None), half_width(spread, correction) if correction is not None else None)
            for coverage, half in zip(self.coverage[name], halves, strict=True):
                if half is not None:
                    coverage.add(found.truth, found.value, half)
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

    batched = {name: p.each(lambda field: field.unsqueeze(0)) for name, p in predictions.items()}
    labels, masks = ({name: t.unsqueeze(0) for name, t in of.items()} for of in (volume.labels, volume.masks))
    return batched, labels, masks
