"""Predictions for single images: some at random, and the worst ones shown as such."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from filtergroups.answers import Answer
from filtergroups.predictor import has_classes, is_map
from filtergroups.reporting.activations import unnormalised
from filtergroups.reporting.album import Pixels
from filtergroups.reporting.evidence import Evidence
from filtergroups.tasks import ImageRegression, Segmentation, Task

LOOKED_AT = 256  # examples among which the worst are sought


@dataclass(frozen=True)
class Shown:
    """One task's answer for one example, in words and maps."""

    task: Task
    truth: str
    value: str
    error: float | None  # higher is worse; None: not labelled
    sure: str = ""  # how sure it is
    wrong: bool = False
    maps: dict[str, Tensor] = field(default_factory=dict)  # for tasks with an answer at every pixel


@dataclass(frozen=True)
class Example:
    """An image with the answers of all tasks."""

    name: str
    image: Pixels
    answers: list[Shown]


@dataclass(frozen=True)
class Looked:
    """What a look at some examples found."""

    count: int
    some: list[Example]
    worst: dict[str, list[Example]]  # by task
    labelled: dict[str, int]  # by task, how many the worst are chosen from


def look(evidence: Evidence, *, count: int) -> Looked:
    """Predict some examples and pick the first of them and, by task, the worst."""
    predictor, part = evidence.predictor, evidence.part
    assert predictor is not None
    assert part is not None
    restored = predictor.restored
    found: list[Example] = []
    for indices, batch, predictions in predictor.examples(part, LOOKED_AT):
        answers = {task.name: predictor.answer(task, predictions[task.name]) for task in predictor.tasks}
        for n, index in enumerate(indices):
            shown = [
                _shown(task, answers[task.name].of(n), batch.labels[task.name][n], restored.names)
                for task in predictor.tasks
            ]
            image = unnormalised(batch.images[n], restored.progress.constants)
            found.append(Example(part.name(index), image, shown))
    worst, count_of = {}, {}
    for place, task in enumerate(predictor.tasks):
        labelled = [(example.answers[place].error, example) for example in found]
        known = [(error, example) for error, example in labelled if error is not None]
        count_of[task.name] = len(known)
        worst[task.name] = [example for _, example in sorted(known, key=lambda pair: -pair[0])[:count]]
    return Looked(len(found), found[:count], worst, count_of)


def _shown(task: Task, answer: Answer, label: Tensor, names: dict[str, list[str]]) -> Shown:
    if is_map(task):
        return _shown_map(task, answer, label)
    if not has_classes(task):
        value, known = answer.value.item(), not math.isnan(label.item())
        error = abs(value - label.item()) if known else None
        return Shown(task, f"{label.item():.4g}" if known else "–", f"{value:.4g}", error, _interval(answer))
    assert answer.probabilities is not None
    classes = names.get(task.name) or [str(c) for c in range(task.outputs)]
    chosen, truth = int(answer.value), int(label)
    return Shown(
        task,
        classes[truth] if truth >= 0 else "–",
        classes[chosen],
        1 - answer.probabilities[truth].item() if truth >= 0 else None,
        f"{answer.probabilities[chosen].item():.1%}",
        wrong=truth >= 0 and chosen != truth,
    )


def _interval(answer: Answer) -> str:
    """The 90 % interval in words; nothing where none is known."""
    if answer.low is None or answer.high is None:
        return ""
    return f"{answer.low.item():.4g} to {answer.high.item():.4g}"


def _shown_map(task: Task, answer: Answer, label: Tensor) -> Shown:
    maps = {"truth": label, "prediction": answer.value, "spread": answer.deviation, "entropy": answer.entropy}
    there = {name: values for name, values in maps.items() if values is not None}
    value = answer.value
    if isinstance(task, Segmentation):
        known = label >= 0
        score = _mean_dice(value[known], label[known], task.classes) if bool(known.any()) else None
        text = "–" if score is None else f"Dice {score:.3f}"
        return Shown(task, "", text, None if score is None else 1 - score, maps=there)
    assert isinstance(task, ImageRegression)
    known = ~label.isnan()
    error = (value[known] - label[known]).abs().mean().item() if bool(known.any()) else None
    return Shown(task, "", "–" if error is None else f"error {error:.4g}", error, maps=there)


def _mean_dice(value: Tensor, label: Tensor, classes: int) -> float:
    scores = []
    for c in range(1, classes):
        both = int((value == c).sum()) + int((label == c).sum())
        if both:
            scores.append(2 * int(((value == c) & (label == c)).sum()) / both)
    return float(torch.tensor(scores).mean()) if scores else 1.0
