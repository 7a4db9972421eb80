"""Whole scans: predicted by sliding windows, and measured by patient and region."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from filtergroups.data.examples import Volume
from filtergroups.network import GroupedNetwork, Statistics
from filtergroups.tasks import ImageRegression, Prediction, Segmentation, Task, precise

OVERLAP = 0.25
PASSES_AT_ONCE = 5  # passes whose volumes are held at once


class ModeNetwork(Protocol):
    """What a prediction without samples needs of a network."""

    tasks: tuple[Task, ...]
    spatial_dims: int

    def __call__(self, images: Tensor) -> dict[str, Tensor]: ...
    def evaluating(self, statistics: Statistics) -> AbstractContextManager[None]: ...


def predict_volume(
    network: GroupedNetwork | ModeNetwork,
    image: Tensor,
    *,
    window: tuple[int, ...],
    padding: int,
    samples: int,
    seed: int = 0,
    temperature: float = 0.1,
    statistics: Statistics = "running",
    windows_at_once: int = 8,
    precision: float | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Prediction]:
    """Predict a scan (channels × space) window by window; a 2-D network takes its axial slices.

    A window is what a patch was in training, zero padding included: a network whose kernels see the whole patch
    learns its border too. All windows of one pass have the same gates. precision: stop early, as in
    `GroupedNetwork.predict`. device: where the network is; the scan itself stays where it is.
    """
    accumulators = {task.name: task.accumulator() for task in network.tasks}
    flat = network.spatial_dims == 2 and image.ndim == 4
    stack = image.permute(3, 0, 1, 2) if flat else image.unsqueeze(0)
    with network.evaluating(statistics), torch.no_grad():
        if not samples:
            for name, output in slide(stack, window, padded(network, padding), windows_at_once, device).items():
                accumulators[name].add(output)
        else:
            assert isinstance(network, GroupedNetwork)
            passes = network.passes(temperature, torch.Generator().manual_seed(seed))
            for first in range(0, samples, PASSES_AT_ONCE):
                passes.draw(min(PASSES_AT_ONCE, samples - first))

                def every_pass(windows: Tensor) -> dict[str, Tensor]:
                    """The outputs of all passes that were drawn, side by side in the channel axis."""
                    passes.forget()
                    outputs = list(network.sampled(windows, passes))
                    return {task.name: torch.cat([one[task.name] for one in outputs], 1) for task in network.tasks}

                blended = slide(stack, window, padded(every_pass, padding), windows_at_once, device)
                for name, accumulator in accumulators.items():
                    for output in blended[name].chunk(passes.drawn, 1):
                        accumulator.add(output)
                if precise(accumulators, precision):
                    break
    predictions = {name: accumulator.prediction() for name, accumulator in accumulators.items()}
    return {name: _as_volume(prediction, flat) for name, prediction in predictions.items()}


def padded(predictor: Callable[[Tensor], dict[str, Tensor]], padding: int) -> Callable[[Tensor], dict[str, Tensor]]:
    """A predictor that surrounds its windows with zeros, as training does its patches, and cuts its outputs back."""
    if not padding:
        return predictor

    def predict(windows: Tensor) -> dict[str, Tensor]:
        axes = windows.ndim - 2
        outputs = predictor(F.pad(windows, [padding] * (2 * axes)))
        inside: Any = (..., *[slice(padding, -padding)] * axes)
        return {name: output[inside] for name, output in outputs.items()}

    return predict


def slide(
    stack: Tensor,
    window: tuple[int, ...],
    predictor: Callable[[Tensor], Any],
    at_once: int,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Overlapping windows, blended by a Gaussian (MONAI's sliding window inference)."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MONAI's imports warn of other packages' future
        from monai.inferers.utils import sliding_window_inference

        blended: Any = sliding_window_inference(
            stack, window, at_once, predictor, overlap=OVERLAP, mode="gaussian", sw_device=device,
            device=torch.device("cpu"),
        )  # fmt: skip
    return dict(blended)


def _as_volume(prediction: Prediction, flat: bool) -> Prediction:
    """Space first, and for slices the axial axis last; classes stay in front."""

    def moved(values: Tensor) -> Tensor:
        return values.movedim(0, -1) if flat else values.squeeze(0)

    return prediction.each(moved)


def psnr(predicted: Tensor, truth: Tensor, where: Tensor, peak: float) -> float | None:
    """10 log10(peak² / mean squared error) inside a region; None where the region is empty."""
    if not bool(where.any()):
        return None
    error = (predicted[where] - truth[where]).square().mean().item()
    return 10 * math.log10(peak**2 / max(error, 1e-12))


def dice(predicted: Tensor, truth: Tensor, where: Tensor) -> float | None:
    """2 |A ∩ B| / (|A| + |B|); None where neither has the label."""
    a, b = predicted & where, truth & where
    both = int(a.sum()) + int(b.sum())
    return None if both == 0 else 2 * int((a & b).sum()) / both


def measure_volume(
    tasks: Iterable[Task],
    predictions: dict[str, Prediction],
    volume: Volume,
    names: dict[str, list[str]],
    bone_above: float | None,
) -> dict[str, dict[str, dict[str, float | None]]]:
    """One patient's scores: PSNR by region and Dice by label."""
    tasks = list(tasks)
    segmented = next((task for task in tasks if isinstance(task, Segmentation)), None)
    regions: dict[str, Tensor] = {}
    if segmented is not None:
        labels = volume.labels[segmented.name]
        known = names.get(segmented.name) or [str(n) for n in range(segmented.classes)]
        regions["organs"] = labels > 0
        regions |= {known[value]: labels == value for value in range(1, segmented.classes)}
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for task in tasks:
        truth, predicted = volume.labels[task.name], predictions[task.name].value
        if isinstance(task, ImageRegression):
            where = ~truth.isnan()
            if task.name in volume.masks:
                where &= volume.masks[task.name].bool()
            inside = truth[where]
            peak = float(inside.max() - inside.min()) if len(inside) else 1.0
            bone = {"bone": truth > bone_above} if bone_above is not None else {}
            found[task.name] = {
                "psnr": {
                    "overall": psnr(predicted, truth, where, peak),
                    **{
                        name: psnr(predicted, truth, where & region, peak)
                        for name, region in {**bone, **regions}.items()
                    },
                },
                "mae": {"overall": (predicted[where] - truth[where]).abs().mean().item() if len(inside) else None},
            }
        elif isinstance(task, Segmentation):
            where = truth >= 0
            scores = {known[v]: dice(predicted == v, truth == v, where) for v in range(1, task.classes)}
            present = [score for score in scores.values() if score is not None]
            found[task.name] = {"dice": {"overall": sum(present) / len(present) if present else None, **scores}}
    return found


def over_patients(patients: list[dict[str, dict[str, dict[str, float | None]]]]) -> dict[str, Any]:
    """Mean and standard deviation over the patients, by task, metric and region."""
    summary: dict[str, Any] = {}
    for task, metrics in patients[0].items():
        summary[task] = {}
        for metric, regions in metrics.items():
            summary[task][metric] = {}
            for region in regions:
                values = torch.tensor(
                    [v for patient in patients if (v := patient[task][metric].get(region)) is not None],
                    dtype=torch.float64,
                )
                spread = values.std().item() if len(values) > 1 else 0.0
                summary[task][metric][region] = (
                    {"mean": values.mean().item(), "std": spread, "patients": len(values)} if len(values) else None
                )
    return summary


def plain_predictions(tasks: Iterable[Task], volume: Volume, answers: dict[str, float]) -> dict[str, Prediction]:
    """The same answer everywhere: the mean of the training labels, the background."""
    made = {}
    for task in tasks:
        label = volume.labels[task.name]
        value = torch.full(label.shape, answers[task.name])
        made[task.name] = Prediction(
            value if isinstance(task, ImageRegression) else value.long(), torch.zeros(label.shape)
        )
    return made
