"""Cells of a table as labels: numbers, classes, and maps of either; what is wrong with them goes to the findings."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from filtergroups.config import TableData, TaskConfig
from filtergroups.data.examples import DataError
from filtergroups.data.findings import Findings
from filtergroups.data.image_cache import decoded
from filtergroups.data.images import Progress
from filtergroups.paths import real

MISSING = ("", "nan", "na", "n/a")  # cells without a label, in any case
LARGEST_LABEL = float(np.finfo(np.float32).max)
LARGEST_LEARNED = 1e18  # the loss squares it
WHOLE = 1 << 24  # up to here a 32-bit float holds every whole number
BLURRED = 0.01  # of the labels' spread: what rounding may move them by


def image_path(root: Path, name: str) -> Path:
    """A path of the table below the root; it may not leave it."""
    if "\0" in name or not (path := real(root / name)).is_relative_to(real(root)):
        raise DataError(f"image paths stay below {root}, found {name!r}; mend the table or set data.root")
    return path


def real_labels(entry: TaskConfig, values: Sequence[str], table: Path, findings: Findings) -> Tensor:
    """A column of numbers; empty cells are missing."""
    numbers = np.full(len(values), math.nan)
    task = f"a label of task '{entry.name}'"
    for row, value in enumerate(values):
        if value.lower() in MISSING:
            continue
        line, number = f"line {row + 2}", number_of(value)
        if number is None:
            findings.problem(f"{task} is a number", line, found=repr(value), remedy="mend it", file=str(table))
        elif abs(number) > LARGEST_LABEL:
            findings.problem(
                f"{task} is at most {LARGEST_LABEL:.2g} in size, which a 32-bit float holds", line, found=value,
                remedy="mend it, or write the column in another unit", file=str(table),
            )  # fmt: skip
        elif abs(number / entry.scale + entry.offset) > LARGEST_LEARNED:
            findings.problem(
                f"{task} / scale + offset, which the network learns, is at most {LARGEST_LEARNED:.0g} in size", line,
                found=value, remedy="mend it, or the task's scale", file=str(table),
            )  # fmt: skip
        else:
            numbers[row] = number
    _say_what_rounding_does(entry, numbers, table, findings)
    return torch.from_numpy(numbers.astype(np.float32))


def number_of(value: str) -> float | None:
    """The number that a cell holds, as it is written in tables; None: it holds none, or no finite one."""
    try:
        number = float(value)
    except ValueError:
        return None
    plain = value.isascii() and "_" not in value  # Python reads more than tables hold
    return number if plain and math.isfinite(number) else None


def rounding_of(numbers: Any) -> float:
    """What 32-bit floats move numbers by, at most, as a share of their standard deviation."""
    known = numbers[~np.isnan(numbers)]
    moved = np.abs(known.astype(np.float32).astype(np.float64) - known).max(initial=0.0)
    spread = known.std() if len(known) else 0.0
    return float(moved / spread) if spread > 0 else 0.0


def _say_what_rounding_does(entry: TaskConfig, numbers: Any, table: Path, findings: Findings) -> None:
    share = rounding_of(numbers)
    if share > BLURRED:
        findings.problem(
            f"{table}: labels of task '{entry.name}' lie too close for 32-bit floats, which move them by up to "
            f"{share:.0%} of their standard deviation; subtract a constant from the column"
        )
        return
    whole = np.isfinite(numbers) & (numbers == np.rint(numbers)) & (np.abs(numbers) > WHOLE)
    for row in np.flatnonzero(whole & (numbers.astype(np.float32).astype(np.float64) != numbers)):
        findings.warning(
            f"a label of task '{entry.name}' is a whole number that a 32-bit float rounds", f"line {row + 2}",
            found=f"{numbers[row]:.0f}", file=str(table),
        )  # fmt: skip


def class_labels(
    entry: TaskConfig, values: Sequence[str], known: list[str] | None, table: Path, findings: Findings
) -> tuple[Tensor, list[str]]:
    """A column of classes and their names; what is not known is sorted as found. Empty cells are missing."""
    declared = set(known or ())
    values = [value if value in declared or value.lower() not in MISSING else "" for value in values]
    classes = known or sorted({value for value in values if value}, key=_natural)
    index = {value: n for n, value in enumerate(classes)}
    listed = f"{classes[:9]}" if len(classes) < 10 else f"{classes[:9]} and {len(classes) - 9} more"
    for row, value in enumerate(values):
        if value and value not in index:
            findings.problem(
                f"a label of task '{entry.name}' is one of {listed}", f"line {row + 2}", found=repr(value),
                remedy="mend it", file=str(table),
            )  # fmt: skip
    if entry.classes is not None and len(classes) > entry.classes:
        findings.problem(
            f"{table}: task '{entry.name}' has {entry.classes} classes, found {len(classes)}: {listed}; "
            "mend the labels, or set classes"
        )
        index = {value: n for value, n in index.items() if n < entry.classes}
    if known is None and entry.classes is None and len(classes) < 2:
        found = f"one only ({classes[0]!r} in all)" if classes else "none"
        raise DataError(
            f"{table}: expected labels of two classes or more of task '{entry.name}', found {found}; label some, set "
            "labels, or leave the task out"
        )
    _say_which_names_are_alike(entry, classes, table, findings)
    return torch.tensor([index.get(value, -1) for value in values]), classes


def _say_which_names_are_alike(entry: TaskConfig, classes: Sequence[str], table: Path, findings: Findings) -> None:
    alike: dict[str, str] = {}
    for name in classes:
        first = alike.setdefault(" ".join(name.lower().split()), name)
        if first != name:
            findings.warning(
                f"classes of task '{entry.name}' differ by more than case and spaces", found=f"{first!r} and {name!r}",
                remedy="make them one", file=str(table),
            )  # fmt: skip


def _natural(value: str) -> tuple[int, float, str]:
    """Numbers in their order, then texts."""
    number = number_of(value)
    return (1, 0.0, value) if number is None else (0, number, value)


def map_labels(
    entry: TaskConfig,
    values: Sequence[str],
    images: Sequence[Path],
    config: TableData,
    findings: Findings,
    progress: Progress | None,
) -> tuple[Tensor, dict[int, str]]:
    """A column of paths to label maps (pixel = class) or maps of real values; empty cells are missing.

    Also what is wrong with the map of which row.
    """
    wrong: dict[int, str] = {}
    paths: dict[int, Path] = {}
    for row, value in enumerate(values):
        if value.lower() not in MISSING:
            try:
                paths[row] = image_path(config.root, value)
            except DataError as error:
                wrong[row] = str(error)
    segmentation, shape = entry.kind == "segmentation", (len(values), config.size, config.size)
    maps = torch.full(shape, -1, dtype=torch.int16) if segmentation else torch.full(shape, math.nan)
    if not paths:
        return maps, wrong
    rows = list(paths)
    kept, bad = decoded(
        list(paths.values()), config.size, 1, config.cache, kind="labels" if segmentation else "values",
        like=[images[row] for row in rows], progress=progress,
    )  # fmt: skip
    wrong |= {rows[n]: f"task '{entry.name}': {paths[rows[n]]}: {reason}" for n, reason in bad.items()}
    array = np.asarray(kept)
    maps[rows] = torch.from_numpy(array.astype(np.int16 if segmentation else np.float32))
    if segmentation and entry.known_classes:
        top = entry.known_classes - 1
        for n in np.flatnonzero(array.reshape(len(rows), -1).max(1) > top):
            if n not in bad:
                findings.problem(
                    f"label maps of task '{entry.name}' hold 0 … {top}", str(paths[rows[n]]), found=f"{array[n].max()}",
                    remedy="mend them, or raise classes",
                )  # fmt: skip
        maps[maps > top] = -1
    return maps, wrong
