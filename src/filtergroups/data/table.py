"""A table of image paths and label columns: any number of tasks of any kind."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filtergroups.config import ConfigError, TableData, TaskConfig
from filtergroups.data.cells import class_labels, image_path, map_labels, real_labels
from filtergroups.data.decoding import SUFFIXES
from filtergroups.data.examples import SELECTION, SPLITS, Data, DataError
from filtergroups.data.findings import Findings
from filtergroups.data.image_cache import decoded
from filtergroups.data.images import Progress, image_data
from filtergroups.data.splits import part_named, read_split, seeded_split, with_selection, write_split
from filtergroups.naming import plain_cell
from filtergroups.paths import real
from filtergroups.reading import MOST_TABLE, read_text, reading, refuse_large_table
from filtergroups.tasks import Task

Row = dict[str, str]


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV or TSV with a header; the delimiter is guessed."""
    what = "a CSV or TSV file"
    try:
        with reading(path, what, DataError, "mend it"):
            lines = read_text(path, MOST_TABLE).splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path}: expected {what}, found {error.strerror}") from None
    if len(lines) < 2:
        raise DataError(f"{path}: expected a header and at least one row, found {len(lines)} lines")
    delimiter = max(("\t", ";", ","), key=lines[0].count)
    with reading(path, what, DataError, "mend it"):
        refuse_large_table(lines, delimiter)
        reader = csv.DictReader(lines, delimiter=delimiter)
        names = [name.strip() for name in reader.fieldnames or ()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path}: expected columns of different names, found {twice[0]!r} more than once; rename one")
    with reading(path, what, DataError, "mend it"):
        rows = list(reader)
    while rows and not any(value for value in rows[-1].values()):  # what spreadsheets leave at the end
        rows.pop()
    if not rows:
        raise DataError(f"{path}: expected a header and at least one row, found empty rows only")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise DataError(f"{path}, line {number}: expected {len(rows[0])} cells, found another number; check quotes")
    return [{key.strip(): value.strip() for key, value in row.items()} for row in rows]


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
    findings: Findings | None = None,
) -> Data:
    """The images and labels of a table; with a run's constants, or make=False, no split is drawn and written.

    With findings what is wrong goes there, and nothing is refused or written.
    """
    found = Findings() if findings is None else findings
    rows = read_table(config.table)
    names = column(rows, config.image_column, config.table)
    paths = [_path_of(config, name, found) for name in names]
    if findings is None:
        split = table_split(config, rows, names, seed, make=make and constants is None)
    else:
        split = _split_found(config, rows, names, seed, findings)
    if {"train", SELECTION} & set(parts):
        groups = column(rows, config.group_column, config.table) if config.group_column else names
        split = with_selection(split, config.selection, seed, dict(zip(names, groups, strict=True)))
    images, unread = decoded(paths, config.size, config.channels, config.cache, progress=progress)
    outside = {row for row, path in enumerate(paths) if path == config.root}
    bad = {row: [reason] for row, reason in unread.items() if row not in outside}
    known = dict((constants or {}).get("classes", {}))
    made: list[Task] = []
    labels: dict[str, Any] = {}
    class_names: dict[str, list[str]] = {}
    for entry in tasks:
        try:
            values = column(rows, entry.column or entry.name, config.table)
            classes: list[str] | None = entry.labels or known.get(entry.name)
            if entry.kind == "regression":
                labels[entry.name] = real_labels(entry, values, config.table, found)
            elif entry.kind == "classification":
                labels[entry.name], classes = class_labels(entry, values, classes, config.table, found)
            else:
                labels[entry.name], wrong = map_labels(entry, values, paths, config, found, progress)
                for row, reason in wrong.items():
                    bad.setdefault(row, []).append(reason)
            if classes is not None:
                class_names[entry.name] = classes
            made.append(entry.task(len(classes) if classes else None))
        except (DataError, ConfigError) as error:
            labels.pop(entry.name, None)
            found.problem(str(error))
    data = image_data(
        config,
        images,
        bad,
        outside,
        names,
        [split[name] for name in names],
        tuple(made),
        labels,
        class_names,
        columns={key: [row[key] for row in rows] for key in rows[0]},
        constants=constants,
        parts=parts,
        findings=found,
    )
    if findings is None:
        found.refuse()
    return data


def _path_of(config: TableData, name: str, findings: Findings) -> Path:
    """Where a row's image is; the root itself where the row names nothing that may be read."""
    try:
        return image_path(config.root, name)
    except DataError as error:
        findings.problem(str(error), file=str(config.table))
        return config.root


def _split_found(
    config: TableData, rows: Sequence[Row], names: Sequence[str], seed: int, findings: Findings
) -> dict[str, str]:
    """The split that is there, or the one that training would draw; nothing is written."""
    try:
        there = config.part or config.split_column or _split_file(config).exists()
        split = table_split(config, rows, names, seed, make=False) if there else drawn_split(config, rows, names, seed)
    except DataError as error:
        findings.problem(str(error))
        split = seeded_split(names, seed)
    return split


def prepare_split(config: TableData, seed: int) -> None:
    """Draw and write the split of a table, where it needs one that is not there."""
    rows = read_table(config.table)
    table_split(config, rows, column(rows, config.image_column, config.table), seed)


def _split_file(config: TableData) -> Path:
    return config.split_file or config.table.with_suffix(".split.csv")


def drawn_split(config: TableData, rows: Sequence[Row], names: Sequence[str], seed: int) -> dict[str, str]:
    """A split by the seed, rows of one group together."""
    groups = column(rows, config.group_column, config.table) if config.group_column else None
    return seeded_split(names, seed, groups)


def table_split(
    config: TableData, rows: Sequence[Row], names: Sequence[str], seed: int, *, make: bool = True
) -> dict[str, str]:
    """The part of each image: one for all, from a column, from a file, or (make) drawn and written to that file."""
    if config.part is not None:
        return dict.fromkeys(names, config.part)
    if config.split_column is not None:
        values = column(rows, config.split_column, config.table)
        unknown = Findings()
        for number, value in enumerate(values, start=2):
            if part_named(value) is None:
                where, what = f"line {number}", f"a split is one of {list(SPLITS)}"
                unknown.problem(what, where, found=repr(value), remedy="mend it", file=str(config.table))
        unknown.refuse()
        parts: dict[str, str] = {}
        for number, (name, value) in enumerate(zip(names, values, strict=True), start=2):
            part = part_named(value) or ""
            if parts.setdefault(name, part) != part:
                raise DataError(
                    f"{config.table}, line {number}: expected each image in one part, found {name!r} in {parts[name]} "
                    f"and {part}; keep one of the rows"
                )
        _check_groups(config, rows, names, parts, config.table)
        return parts
    path = _split_file(config)
    if path.exists():
        written = read_split(path)
        given = {name: written[plain_cell(name)] for name in names if plain_cell(name) in written}
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
    write_split(path, drawn_split(config, rows, names, seed))
    return table_split(config, rows, names, seed, make=False)


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


def say_which_maps_are_left_over(config: TableData, tasks: Sequence[TaskConfig], findings: Findings) -> None:
    """Warnings about maps that lie beside those of a task, and that no row names."""
    rows = read_table(config.table)
    named = {real(config.root / value) for row in rows for value in row.values() if value and "\0" not in value}
    for entry in tasks:
        if entry.kind in ("segmentation", "image_regression"):
            maps = {
                real(config.root / value)
                for row in rows
                if (value := row.get(entry.column or entry.name)) and "\0" not in value
            }
            for folder in sorted({path.parent for path in maps if path.is_relative_to(real(config.root))}):
                for path in sorted(folder.glob("*")):
                    if path.suffix.lower() in SUFFIXES and path not in named:
                        findings.warning(f"a map of task '{entry.name}' that no row of the table names", path.name)
