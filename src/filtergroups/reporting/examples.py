"""Predictions for single images: some at random, and the worst ones shown as such."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from filtergroups.measuring import predicted
from filtergroups.reporting.activations import unnormalised
from filtergroups.reporting.album import Pixels
from filtergroups.reporting.evidence import Evidence
from filtergroups.tasks import Classification, ImageRegression, Prediction, Regression, Segmentation, Task

LOOKED_AT = 256  # examples among which the worst are sought


@dataclass(frozen=True)
class Answer:
    """One task's answer for one example."""

    task: Task
    truth: str
    value: str
    error: float | None  # higher is worse; None: not labelled
    wrong: bool = False
    maps: dict[str, Tensor] = field(default_factory=dict)  # for tasks with an answer at every pixel


@dataclass(frozen=True)
class Example:
    """An image with the answers of all tasks."""

    name: str
    image: Pixels
    answers: list[Answer]


@dataclass(frozen=True)
class Looked:
    """What a look at some examples found."""

    count: int
    samples: int
    some: list[Example]
    worst: dict[str, list[Example]]  # by task


def look(evidence: Evidence, *, count: int, samples: int) -> Looked:
    """Predict some examples and pick the first of them and, by task, the worst."""
    restored, part = evidence.restored, evidence.part
    assert restored is not None
    assert part is not None
    samples = restored.passes(samples)
    found: list[Example] = []
    for indices, batch, predictions in predicted(
        restored.network, part, batch_size=restored.config.training.batch_size, samples=samples,
        seed=restored.config.seed, temperature=restored.temperature, statistics="batch", most=LOOKED_AT,
    ):  # fmt: skip
        for n, index in enumerate(indices):
            answers = [
                _answer(task, predictions[task.name], batch.labels[task.name], n, restored.names, samples)
                for task in restored.tasks
            ]
            image = unnormalised(batch.images[n], restored.progress.constants)
            found.append(Example(part.name(index), image, answers))
    worst = {}
    for place, task in enumerate(restored.tasks):
        labelled = [(example.answers[place].error, example) for example in found]
        known = [(error, example) for error, example in labelled if error is not None]
        worst[task.name] = [example for _, example in sorted(known, key=lambda pair: -pair[0])[:count]]
    return Looked(len(found), samples, found[:count], worst)


def _answer(
    task: Task, prediction: Prediction, labels: Tensor, n: int, names: dict[str, list[str]], samples: int
) -> Answer:
    label, value, spread = labels[n], prediction.value[n], prediction.spread[n]
    if isinstance(task, Regression):
        known = not math.isnan(label.item())
        sure = f" ± {spread.item():.1f}" if samples > 1 else ""
        return Answer(
            task,
            f"{label.item():.4g}" if known else "–",
            f"{value.item():.1f}{sure}",
            abs(value.item() - label.item()) if known else None,
        )
    if isinstance(task, Classification):
        classes = names.get(task.name) or [str(c) for c in range(task.classes)]
        assert prediction.probabilities is not None
        probabilities = prediction.probabilities[n]
        chosen, truth = int(value), int(label)
        return Answer(
            task,
            classes[truth] if truth >= 0 else "–",
            f"{classes[chosen]} ({probabilities[chosen].item():.0%})",
            1 - probabilities[truth].item() if truth >= 0 else None,
            wrong=truth >= 0 and chosen != truth,
        )
    return _map_answer(task, label, value, spread)


def _map_answer(task: Task, label: Tensor, value: Tensor, spread: Tensor) -> Answer:
    maps: dict[str, Any] = {"truth": label, "prediction": value, "spread": spread}
    if isinstance(task, Segmentation):
        known = label >= 0
        score = _mean_dice(value[known], label[known], task.classes) if bool(known.any()) else None
        text = "–" if score is None else f"Dice {score:.2f}"
        return Answer(task, "", text, None if score is None else 1 - score, maps=maps)
    assert isinstance(task, ImageRegression)
    known = ~label.isnan()
    error = (value[known] - label[known]).abs().mean().item() if bool(known.any()) else None
    return Answer(task, "", "–" if error is None else f"error {error:.3g}", error, maps=maps)


def _mean_dice(value: Tensor, label: Tensor, classes: int) -> float:
    scores = []
    for c in range(1, classes):
        both = int((value == c).sum()) + int((label == c).sum())
        if both:
            scores.append(2 * int(((value == c) & (label == c)).sum()) / both)
    return float(torch.tensor(scores).mean()) if scores else 1.0
