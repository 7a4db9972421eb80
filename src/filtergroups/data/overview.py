"""What the parts of a data set hold: examples, and by task their labels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from filtergroups.data.examples import SPLITS, Data
from filtergroups.tasks import Task

WIDTH = 80


@dataclass
class Labels:
    """The labels that a part has of a task: how many examples have one (or a pixel of one), and which."""

    task: Task
    examples: int = 0
    labelled: int = 0
    classes: dict[int, int] = field(default_factory=dict)  # class -> images, or pixels
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    values: int = 0

    def add(self, label: Tensor, mask: Tensor | None) -> None:
        """Some examples more."""
        known = self.task.known(label, mask)
        self.examples += len(label)
        self.labelled += int(known.flatten(1).any(1).sum()) if known.ndim > 1 else int(known.sum())
        present = label[known]
        if not len(present):
            return
        if label.is_floating_point():
            values = present.double()
            self.low, self.high = min(self.low, values.min().item()), max(self.high, values.max().item())
            self.total, self.squares = self.total + values.sum().item(), self.squares + values.square().sum().item()
            self.values += len(values)
            return
        for number, count in enumerate(torch.bincount(present.flatten().long()).tolist()):
            if count:
                self.classes[number] = self.classes.get(number, 0) + count

    @property
    def differ(self) -> bool:
        """Are there two labels that are not the same?"""
        return len(self.classes) > 1 or self.low < self.high

    @property
    def mean(self) -> float:
        return self.total / self.values if self.values else math.nan

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self.squares / self.values - self.mean**2, 0.0)) if self.values else math.nan

    def described(self, names: Sequence[str], width: int) -> str:
        """Classes with their numbers, or the range of values, in so many characters."""
        if self.values:
            return f"{self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}"
        whole = sum(self.classes.values())
        of_pixels = whole > self.labelled
        listed = []
        for number, count in sorted(self.classes.items()):
            name = names[number] if number < len(names) else str(number)
            listed.append(f"{name} {f'{count / whole:.1%}' if of_pixels else count}")
        text = ", ".join(listed)
        for shown in range(len(listed) - 1, -1, -1):
            if len(text) <= width:
                break
            text = ", ".join([*listed[:shown], f"{len(listed)} classes"])
        return text


@dataclass
class Part:
    """A part of the data: its rows (images, scans), the examples that training draws of them, and its labels."""

    rows: int
    examples: int
    labels: dict[str, Labels]


def overview(data: Data, *, briefly: bool = False) -> dict[str, Part]:
    """The parts of a data set. briefly: no further than to know that the labels of a task differ."""
    parts = {}
    for name, examples in data.parts.items():
        labels = {}
        for task in data.tasks:
            labels[task.name] = Labels(task)
            for label, mask in examples.labels_of(task.name):
                labels[task.name].add(label, mask)
                if briefly and labels[task.name].differ:
                    break
        parts[name] = Part(len(data.volumes.get(name, examples)), len(examples), labels)
    return parts


def overview_table(parts: Mapping[str, Part], names: Mapping[str, Sequence[str]]) -> str:
    """Rows, labels, missing labels and classes (or range) of each part and task, in 80 columns."""
    order = [part for part in ("train", "selection", *SPLITS[1:]) if part in parts]
    lines = [f"{'part':<12}{'rows':>8}"]
    lines += [f"{part:<12}{parts[part].rows:>8}" for part in order]
    lines += ["", f"{'task':<17}{'part':<11}{'labelled':>8}{'missing':>9}  classes or range"]
    for task in next((part.labels for part in parts.values()), {}):
        for n, part in enumerate(order):
            labels = parts[part].labels[task]
            start = f"{'' if n else shortened(task, 16):<17}{part:<11}{labels.labelled:>8}"
            start += f"{labels.examples - labels.labelled:>9}  "
            lines.append((start + labels.described(names.get(task, ()), WIDTH - len(start))).rstrip())
    return "\n".join(lines)


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
