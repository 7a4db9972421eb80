"""A table of image paths and label columns: any number of tasks of any kind."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from filtergroups.config import ConfigError, TableData, TaskConfig
from filtergroups.data.examples import SELECTION, SPLITS, Data, DataError
from filtergroups.data.image_cache import decoded
from filtergroups.data.images import Progress, image_data
from filtergroups.data.splits import part_named, read_split, seeded_split, with_selection, write_split
from filtergroups.tasks import Task

Row = dict[str, str]
MISSING = ("", "nan", "na", "n/a")  # cells of numbers, in any case


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV or TSV with a header; the delimiter is guessed."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        raise DataError(f"{path}: expected a CSV or TSV file, found {reason}") from None
    lines = text.splitlines()
    if len(lines) < 2:
        raise DataError(f"{path}: expected a header and at least one row, found {len(lines)} lines")
    delimiter = max(("\t", ";", ","), key=lines[0].count)
    reader = csv.DictReader(lines, delimiter=delimiter)
    names = [name.strip() for name in reader.fieldnames or ()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path}: expected columns of different names, found {twice[0]!r} more than once; rename one")
    rows = list(reader)
    while rows and not any(value for value in rows[-1].values()):  # what spreadsheets leave at the end
        rows.pop()
    if not rows:
        raise DataError(f"{path}: expected a header and at least one row, found empty rows only")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise DataError(f"{path}, line {number}: expected {len(rows[0])} cells, found another number; check quotes")
    return [{key.strip(): value.strip() for key, value in row.items()} for row in rows]


def image_path(root: Path, name: str) -> Path:
    """A path of the table below the root; it may not leave it."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise DataError(f"image paths stay below {root}, found {name!r}; mend the table or set data.root")
    return path


def column(rows: Sequence[Row], name: str, table: Path) -> list[str]:
    if name not in rows[0]:
        raise DataError(f"{table}: expected a column '{name}', found {list(rows[0])}; mend the table or the config")
    return [row[name] for row in rows]


def load_table(
    config: TableData,
    tasks: Sequence[TaskConfig],
    *,
    seed: int = 0,
    constants: dict[str, Any] | None = None,
    parts: Sequence[str] = SPLITS,
    make: bool = True,
    progress: Progress | None = None,
) -> Data:
    """Read a table's images and labels; with a run's constants, or make=False, no split is drawn and written."""
    rows = read_table(config.table)
    names = column(rows, config.image_column, config.table)
    paths = [image_path(config.root, name) for name in names]
    split = table_split(config, rows, names, seed, make=make and constants is None)
    if {"train", SELECTION} & set(parts):
        groups = column(rows, config.group_column, config.table) if config.group_column else names
        split = with_selection(split, config.selection, seed, dict(zip(names, groups, strict=True)))
    images, bad = decoded(paths, config.size, config.channels, config.cache, progress=progress)
    known = dict((constants or {}).get("classes", {}))
    made: list[Task] = []
    labels: dict[str, Any] = {}
    class_names: dict[str, list[str]] = {}
    for entry in tasks:
        values = column(rows, entry.column or entry.name, config.table)
        if entry.kind in ("regression", "classification"):
            found = entry.labels or known.get(entry.name)
            labels[entry.name], classes = cell_labels(entry, values, found, config.table)
            if classes is not None:
                class_names[entry.name] = classes
            made.append(entry.task(len(classes) if classes else None))
        else:
            labels[entry.name], wrong = map_labels(entry, values, paths, config, progress)
            bad.update(wrong)
            if entry.labels is not None:
                class_names[entry.name] = entry.labels
            made.append(entry.task())
    return image_data(
        config,
        images,
        bad,
        names,
        [split[name] for name in names],
        tuple(made),
        labels,
        class_names,
        columns={key: [row[key] for row in rows] for key in rows[0]},
        constants=constants,
        parts=parts,
    )


def prepare_split(config: TableData, seed: int) -> None:
    """Draw and write the split of a table, where it needs one that is not there."""
    rows = read_table(config.table)
    table_split(config, rows, column(rows, config.image_column, config.table), seed)


def table_split(
    config: TableData, rows: Sequence[Row], names: Sequence[str], seed: int, *, make: bool = True
) -> dict[str, str]:
    """The part of each image: one for all, from a column, from a file, or (make) drawn and written to that file."""
    if config.part is not None:
        return dict.fromkeys(names, config.part)
    if config.split_column is not None:
        values = column(rows, config.split_column, config.table)
        parts: dict[str, str] = {}
        for number, (name, value) in enumerate(zip(names, values, strict=True), start=2):
            part = part_named(value)
            if part is None:
                raise DataError(f"{config.table}, line {number}: a split is one of {list(SPLITS)}, found {value!r}")
            parts[name] = part
        _check_groups(config, rows, names, parts, config.table)
        return parts
    path = config.split_file or config.table.with_suffix(".split.csv")
    if path.exists():
        given = read_split(path)
        missing = [name for name in names if name not in given]
        if missing:
            raise DataError(
                f"{path}: expected every image of the table, found none for {missing[0]!r}; delete it or add it"
            )
        _check_groups(config, rows, names, given, path)
        return given
    if not make:
        raise DataError(
            f"{path}: expected the split that the run was trained with, found no file; bring it back, or name it with "
            "--split-file (only `train` draws a new one)"
        )
    groups = column(rows, config.group_column, config.table) if config.group_column else None
    split = seeded_split(names, seed, groups)
    write_split(path, split)
    return split


def _check_groups(
    config: TableData, rows: Sequence[Row], names: Sequence[str], parts: dict[str, str], where: Path
) -> None:
    """A split that was made before (or without) the groups may have one of them on both sides."""
    if config.group_column is None:
        return
    first: dict[str, str] = {}
    for name, group in zip(names, column(rows, config.group_column, config.table), strict=True):
        if (other := first.setdefault(group, parts[name])) != parts[name]:
            raise DataError(
                f"{where}: expected rows of one {config.group_column} in one part, found {group!r} in {other} and "
                f"{parts[name]}; delete the split for a new one, mend it, or leave out data.group_column"
            )


def cell_labels(
    entry: TaskConfig, values: Sequence[str], known: list[str] | None, table: Path
) -> tuple[torch.Tensor, list[str] | None]:
    """A column of cells as labels; empty cells are missing."""
    if entry.kind == "regression":
        return torch.tensor([_real(value, entry, n, table) for n, value in enumerate(values, start=2)]), None
    classes = known or sorted({value for value in values if value}, key=_natural)
    index = {value: n for n, value in enumerate(classes)}
    numbers = []
    for n, value in enumerate(values, start=2):
        if value and value not in index:
            raise DataError(
                f"{table}, line {n}: a label of task '{entry.name}' is one of {classes}, found {value!r}; mend it"
            )
        numbers.append(index.get(value, -1))
    if entry.classes is not None and len(classes) > entry.classes:
        raise DataError(
            f"{table}: task '{entry.name}' has {entry.classes} classes, found {len(classes)}: {classes[:9]}"
        )
    return torch.tensor(numbers), classes


def _real(value: str, entry: TaskConfig, line: int, table: Path) -> float:
    if value.lower() in MISSING:
        return math.nan
    try:
        number = float(value)
    except ValueError:
        number = math.inf
    if math.isinf(number):
        raise DataError(f"{table}, line {line}: a label of task '{entry.name}' is a number, found {value!r}; mend it")
    return number


def _natural(value: str) -> tuple[int, float, str]:
    """Numbers in their order, then texts."""
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)


def map_labels(
    entry: TaskConfig, values: Sequence[str], images: Sequence[Path], config: TableData, progress: Progress | None
) -> tuple[Any, dict[int, str]]:
    """A column of paths to label maps (pixel = class) or maps of real values; empty cells are missing."""
    present = [n for n, value in enumerate(values) if value]
    paths = [image_path(config.root, values[n]) for n in present]
    segmentation = entry.kind == "segmentation"
    array, bad = decoded(
        paths, config.size, 1, config.cache, kind="labels" if segmentation else "values",
        like=[images[n] for n in present], progress=progress,
    )  # fmt: skip
    wrong = {present[index]: f"{paths[index]}: {reason}" for index, reason in bad.items()}
    if segmentation:
        maps = torch.full((len(values), config.size, config.size), -1)
        maps[present] = torch.from_numpy(np.asarray(array)).long()
        count = entry.known_classes
        if count and present and int(maps.max()) >= count:
            raise DataError(
                f"label maps of task '{entry.name}' hold 0 … {count - 1}, found {int(maps.max())}; mend them"
            )
        return maps, wrong
    reals = torch.full((len(values), config.size, config.size), math.nan)
    reals[present] = torch.from_numpy(np.asarray(array))
    return reals, wrong


def check_table(config: TableData, tasks: Sequence[TaskConfig]) -> list[str]:
    """Every problem of the table and its files, a line each."""
    rows = read_table(config.table)
    problems: list[str] = []
    names = column(rows, config.image_column, config.table)
    paths: list[Path] = []
    for line, name in enumerate(names, start=2):
        try:
            paths.append(image_path(config.root, name))
        except DataError as error:
            problems.append(f"line {line}: {error}")
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    problems += [f"{name}: is in the table more than once" for name in twice[:20]]
    _, bad = decoded(paths, config.size, config.channels, config.cache)
    problems += [f"{paths[index]}: {reason}" for index, reason in bad.items()]
    for entry in tasks:
        try:
            values = column(rows, entry.column or entry.name, config.table)
            if entry.kind in ("regression", "classification"):
                cell_labels(entry, values, entry.labels, config.table)
            else:
                entry.task()  # which wants to know its classes
                problems += list(map_labels(entry, values, paths, config, None)[1].values())
        except (DataError, ConfigError) as error:
            problems.append(str(error))
    problems += _split_problems(config, rows, names)
    return problems


def _split_problems(config: TableData, rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """What is wrong with a split that is there already; one that is to be drawn has no problems."""
    drawn = config.split_column is None and not (config.split_file or config.table.with_suffix(".split.csv")).exists()
    try:
        if config.group_column is not None:
            column(rows, config.group_column, config.table)
        parts = set() if drawn else set(table_split(config, rows, names, 0, make=False).values())
    except DataError as error:
        return [str(error)]
    needed = ["train"] if config.selection else ["train", "validation"]
    return [f"expected rows in the part '{part}', found none" for part in needed if not drawn and part not in parts]
