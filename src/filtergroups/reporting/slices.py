"""Predictions for whole scans, slice by slice: the first patient and the worst one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from filtergroups.answers import Answer
from filtergroups.data.examples import Volume
from filtergroups.palette import label_colour, rgb
from filtergroups.predictor import Predictor
from filtergroups.reporting.album import Pixels, as_bytes, coloured, stretched
from filtergroups.reporting.collect import evenly
from filtergroups.reporting.evidence import Evidence, Step, upright
from filtergroups.restored import Restored
from filtergroups.tasks import ImageRegression, Prediction, Segmentation
from filtergroups.volumes import measure_volume

MOST_SLICES = 24
MOST_PATIENTS = 6  # among which the worst is sought


@dataclass(frozen=True)
class Panel:
    """One row of pictures: slices × H × W (× 3)."""

    title: str
    about: str
    stack: Pixels


@dataclass(frozen=True)
class Patient:
    """What is shown of one patient."""

    name: str
    slices: list[int]  # counted from 1
    aspect: float  # width by height of a slice in space
    panels: list[Panel]
    scores: dict[str, Any]
    badness: float
    whole: bool  # are the scores of the whole scan, not of the slices shown?


def look_at_scans(evidence: Evidence, *, progress: Step | None = None) -> list[Patient]:
    """Predict some patients of a part, in their order."""
    predictor, volumes = evidence.predictor, evidence.volumes
    assert predictor is not None
    assert volumes is not None
    found = []
    count = min(len(volumes), MOST_PATIENTS)
    for number, volume in enumerate(volumes):
        if number >= count:
            break
        found.append(_patient(volume, predictor))
        if progress is not None:
            progress("predicting scans", number + 1, count)
    return found


def _patient(volume: Volume, predictor: Predictor) -> Patient:
    """A 2-D network is asked about the shown slices only; a 3-D one about the whole scan."""
    restored = predictor.restored
    chosen = evenly(volume.image.shape[-1], MOST_SLICES)
    flat = restored.network.spatial_dims == 2
    whole = not flat or len(chosen) == volume.image.shape[-1]
    if flat:
        volume = _sliced(volume, chosen)
    predictions = predictor.volume(volume.image)
    assert restored.scans is not None
    scores = measure_volume(restored.tasks, predictions, volume, restored.names, restored.scans.bone_above)
    if not flat:
        volume = _sliced(volume, chosen)
        predictions = {name: found.each(lambda values: values[..., chosen]) for name, found in predictions.items()}
    spacing = np.linalg.norm(volume.affine[:3, :3], axis=0)
    aspect = float(volume.image.shape[1] * spacing[0] / (volume.image.shape[2] * spacing[1]))
    panels = _panels(volume, predictor, predictions)
    return Patient(volume.name, [z + 1 for z in chosen], aspect, panels, scores, _badness(scores, restored), whole)


def _sliced(volume: Volume, chosen: list[int]) -> Volume:
    return Volume(
        volume.name,
        volume.image[..., chosen],
        {name: label[..., chosen] for name, label in volume.labels.items()},
        {name: mask[..., chosen] for name, mask in volume.masks.items()},
        volume.affine,
    )


def _badness(scores: dict[str, Any], restored: Restored) -> float:
    """How much of the plain answer's usual error is left, roughly: absolute error by its scale, 1 − Dice."""
    parts = []
    for task in restored.tasks:
        if isinstance(task, ImageRegression):
            error = scores[task.name]["mae"]["overall"]
            parts.append(0.0 if error is None else error / abs(task.scale))
        elif isinstance(task, Segmentation):
            dice = scores[task.name]["dice"]["overall"]
            parts.append(0.0 if dice is None else 1 - dice)
    return sum(parts)


def stacked(values: Tensor) -> NDArray[Any]:
    """x × y × z as slices × rows × columns, as they are looked at."""
    return np.stack([upright(values[..., z]).numpy() for z in range(values.shape[-1])])


def _panels(volume: Volume, predictor: Predictor, predictions: dict[str, Prediction]) -> list[Panel]:
    image = stretched(stacked(volume.image[0]))
    panels = [Panel("input", "", image)]
    for task in predictor.tasks:
        truth, found = volume.labels[task.name], predictor.answer(task, predictions[task.name], axis=0)
        if isinstance(task, ImageRegression):
            panels += _synthesis(task, truth, found)
        elif isinstance(task, Segmentation):
            panels += _outlines(task.name, image, truth, found, task.classes)
    return panels


def _signed(value: float) -> str:
    return f"{value:.3g}".replace("-", "−") if abs(value) < 100 else f"{value:.0f}".replace("-", "−")


def _synthesis(task: ImageRegression, truth: Tensor, found: Answer) -> list[Panel]:
    name, unit = task.name, f" {task.unit}" if task.unit else ""
    target, made = stacked(truth), stacked(found.value)
    known = target[np.isfinite(target)]
    low, high = (float(v) for v in np.quantile(known, (0.01, 0.995))) if known.size else (0.0, 1.0)
    error = np.abs(made - target)
    worst = float(np.nanquantile(error, 0.995)) if known.size else 1.0
    panels = [
        Panel(f"{name}: target", f"{_signed(low)} to {_signed(high)}{unit}", as_bytes(target, low, high)),
        Panel(f"{name}: synthesised", "same window", as_bytes(made, low, high)),
        Panel(
            f"{name}: absolute error", f"0 to {_signed(worst)}{unit}", coloured(as_bytes(error, 0, worst), "inferno")
        ),
    ]
    if found.deviation is not None:
        spread = stacked(found.deviation)
        top = float(np.quantile(spread, 0.995))
        about = f"standard deviation over passes, 0 to {_signed(top)}{unit}"
        panels.append(Panel(f"{name}: uncertainty", about, coloured(as_bytes(spread, 0, top), "viridis")))
    return panels


def _outlines(task: str, image: Pixels, truth: Tensor, found: Answer, classes: int) -> list[Panel]:
    assert found.entropy is not None
    entropy = stacked(found.entropy)
    top = float(np.log(classes))
    return [
        Panel(f"{task}: labels", "", painted(image, stacked(truth))),
        Panel(f"{task}: predicted", "", painted(image, stacked(found.value))),
        Panel(
            f"{task}: uncertainty",
            f"entropy, 0 to {top:.2f} nats",
            coloured(as_bytes(entropy, 0, top), "viridis"),
        ),
    ]


def painted(image: Pixels, labels: NDArray[Any]) -> Pixels:
    """Label colours over a grey picture; background and unlabelled stay grey."""
    made = np.repeat(image[..., None], 3, -1).astype(np.float64)
    for value in np.unique(labels):
        if value > 0:
            where = labels == value
            made[where] = 0.35 * made[where] + 0.65 * np.asarray(rgb(label_colour(int(value) - 1)))
    return made.astype(np.uint8)
