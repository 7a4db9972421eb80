"""Metrics of a network on a part of the data, and of predicting without looking at the image."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from filtergroups.data.examples import Batch, Examples
from filtergroups.network import GroupedNetwork, Statistics
from filtergroups.tasks import Classification, Prediction, Regression, Segmentation, Task

# The metric that a task is judged by, and whether more of it is better.
JUDGED_BY = {
    "Regression": ("mae", False),
    "Classification": ("accuracy", True),
    "ImageRegression": ("mae", False),
    "Segmentation": ("dice", True),
}

Results = dict[str, dict[str, Any]]


class Meter:
    """Collects predictions and labels of all tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.metrics = {task.name: task.metrics() for task in tasks}
        for metric in (metric for of_task in self.metrics.values() for metric in of_task.values()):
            # Each process measures the whole part; the first may do so while the others wait for it elsewhere.
            metric.distributed_available_fn = _never
        self.counts = {task.name: 0 for task in tasks}
        self.scores: dict[str, list[Tensor]] = {task.name: [] for task in tasks}

    def add(self, predictions: Mapping[str, Prediction], batch: Batch) -> None:
        for task in self.tasks:
            predicted, truth = task.measured(
                predictions[task.name], batch.labels[task.name], batch.masks.get(task.name)
            )
            if len(truth):
                self.counts[task.name] += len(truth)
                for metric in self.metrics[task.name].values():
                    metric.update(predicted.cpu(), truth.cpu())
                if isinstance(task, Regression | Classification):
                    score = (predicted - truth).abs() if isinstance(task, Regression) else predicted == truth
                    self.scores[task.name].append(score.double().cpu())

    def results(self) -> Results:
        """By task and metric; None where nothing was labelled. Dice also by class, its mean without the background."""
        found: Results = {}
        for task in self.tasks:
            found[task.name] = {}
            for name, metric in self.metrics[task.name].items():
                if not self.counts[task.name]:
                    found[task.name][name] = None
                    continue
                value = metric.compute()
                if value.ndim:
                    found[task.name][f"{name}_by_class"] = value.tolist()
                    value = value[1:].mean()
                found[task.name][name] = value.item()
        return found

    def standard_errors(self) -> dict[str, dict[str, float]]:
        """Of means over examples, for tasks with one answer an image: deviation by the root of their number."""
        found = {}
        for task in self.tasks:
            scores = torch.cat(self.scores[task.name]) if self.scores[task.name] else torch.empty(0)
            if len(scores) > 1:
                found[task.name] = {JUDGED_BY[type(task).__name__][0]: scores.std().item() / len(scores) ** 0.5}
        return found


def _never() -> bool:
    return False


def batches_of(part: Examples, size: int, most: int = 0) -> Iterator[list[int]]:
    """Indices in order of a fixed shuffle, so that a batch is a fair sample of the part."""
    order = torch.randperm(len(part), generator=torch.Generator().manual_seed(0)).tolist()
    order = order[:most] if most else order
    for start in range(0, len(order), size):
        yield order[start : start + size]


def predicted(
    network: GroupedNetwork,
    part: Examples,
    *,
    batch_size: int,
    samples: int,
    seed: int = 0,
    temperature: float = 0.1,
    statistics: Statistics = "batch",
    most: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[list[int], Batch, dict[str, Prediction]]]:
    """A part's examples batch by batch, with the network's predictions."""
    generator = torch.Generator().manual_seed(seed)
    for indices in batches_of(part, batch_size, most):
        batch = part.batch(indices).to(device)
        # A last batch of one or two has no statistics of its own.
        how: Statistics = statistics if len(indices) > 2 else "running"
        yield (
            indices,
            batch,
            network.predict(batch.images, samples, generator, temperature=temperature, statistics=how),
        )


def measure(network: GroupedNetwork, part: Examples, **how: Any) -> Results:
    """Metrics of a network's predictions on a part; `how` as for `predicted`."""
    meter = Meter(network.tasks)
    for _, batch, predictions in predicted(network, part, **how):
        meter.add(predictions, batch)
    return meter.results()


def plain_answers(part: Examples, tasks: Sequence[Task], batch_size: int, most: int = 2048) -> dict[str, float]:
    """What one would say without looking: the mean of the labels, the most frequent class, the background."""
    reals: dict[str, list[Tensor]] = {task.name: [] for task in tasks}
    for indices in batches_of(part, batch_size, most):
        batch = part.batch(indices)
        for task in tasks:
            label = batch.labels[task.name]
            blank = torch.zeros(label.shape, device=label.device)
            _, truth = task.measured(Prediction(blank, blank), label, batch.masks.get(task.name))
            reals[task.name].append(truth)
    answers = {}
    for task in tasks:
        values = torch.cat(reals[task.name])
        if not len(values) or isinstance(task, Segmentation):
            answers[task.name] = 0.0
        elif values.is_floating_point():
            answers[task.name] = values.mean().item()
        else:
            answers[task.name] = float(torch.bincount(values).argmax())
    return answers


def measure_plain(
    part: Examples, tasks: Sequence[Task], answers: Mapping[str, float], *, batch_size: int, most: int = 0
) -> Results:
    """Metrics of giving everyone the same answer."""
    meter = Meter(tasks)
    for indices in batches_of(part, batch_size, most):
        batch = part.batch(indices)
        predictions = {}
        for task in tasks:
            label = batch.labels[task.name]
            value = torch.full(label.shape, answers[task.name])
            value = value if JUDGED_BY[type(task).__name__][0] == "mae" else value.long()
            predictions[task.name] = Prediction(value, torch.zeros(label.shape))
        meter.add(predictions, batch)
    return meter.results()


def criteria(tasks: Sequence[Task], results: Results, plain: Results) -> dict[str, float]:
    """How much of the plain answer's error is left, by task and (`combined`) on average: lower is better."""
    left = {}
    for task in tasks:
        name, more_is_better = JUDGED_BY[type(task).__name__]
        value, without = results[task.name][name], plain[task.name][name]
        if value is None or without is None:
            continue
        error, most = (1 - value, 1 - without) if more_is_better else (value, without)
        left[task.name] = error / max(most, 1e-12)
    return {**left, "combined": sum(left.values()) / len(left)} if left else {}
