"""Images that are the same, byte for byte, or too small: training goes on with them, but its results may mean less."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from filtergroups.config import ImageData
from filtergroups.data.decoding import displayed_size, read_content
from filtergroups.data.examples import Data, DataError
from filtergroups.data.findings import Findings
from filtergroups.data.images import ImageExamples, Progress


@dataclass(frozen=True)
class Row:
    """A row of the data: the name of its image, its part, and its labels."""

    name: str
    part: str
    labels: Mapping[str, float]  # by task; missing ones are not there


def say_what_is_odd(config: ImageData, data: Data, findings: Findings, progress: Progress | None) -> None:
    """Warnings about twins and small images."""
    rows = list(_rows(data))
    known: dict[str, str] = {}
    of_content: dict[str, list[Row]] = {}
    for number, row in enumerate(rows, start=1):
        if row.name not in known:
            path = config.root / row.name
            known[row.name] = hashlib.sha256(read_content(path)).hexdigest()
            _say_that_it_is_small(config, path, row.name, findings)
        of_content.setdefault(known[row.name], []).append(row)
        if progress is not None and (number % 200 == 0 or number == len(rows)):
            progress("comparing images", number, len(rows))
    for twins in of_content.values():
        for other in twins[1:]:
            _say_that_they_are_twins(twins[0], other, findings)


def _rows(data: Data) -> Iterator[Row]:
    for part, examples in data.parts.items():
        while not isinstance(examples, ImageExamples):
            examples = examples.examples  # type: ignore[attr-defined]  # of one task given twice
        for index, row in enumerate(examples.rows.tolist()):
            labels = {name: _known(values[row]) for name, values in examples.labels.items() if values.ndim == 1}
            yield Row(examples.name(index), part, {name: value for name, value in labels.items() if value is not None})


def _known(label: Tensor) -> float | None:
    value = label.item()
    return None if value != value or (value < 0 and not label.is_floating_point()) else value


def _say_that_it_is_small(config: ImageData, path: Path, name: str, findings: Findings) -> None:
    try:
        width, height = displayed_size(path)
    except DataError:
        return
    if min(width, height) < config.size:
        findings.warning(
            f"an image smaller than data.size = {config.size}", name, found=f"{width} × {height}",
            remedy="it gets enlarged",
        )  # fmt: skip


def _say_that_they_are_twins(one: Row, other: Row, findings: Findings) -> None:
    both = f"{one.name} and {other.name}" if one.name != other.name else f"{one.name}, in two rows"
    differing = [task for task, label in one.labels.items() if other.labels.get(task, label) != label]
    if differing:
        findings.warning("one and the same image has two labels of a task", both, found=", ".join(map(repr, differing)))
    if one.part != other.part:
        findings.warning(
            "one and the same image is in two parts",
            f"{one.name} ({one.part}) and {other.name} ({other.part})",
            remedy="results there look better than they are",
        )
    else:
        findings.warning("one and the same image is there twice", both)
