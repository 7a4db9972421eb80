"""Files to predict, and the table that is written of them; nothing here needs torch."""

import csv
import io
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from filtergroups.data.decoding import decode
from filtergroups.data.errors import DataError
from filtergroups.naming import cell, path_cell
from filtergroups.writing import write_atomically

BATCH = 32
MOST_PIXELS = 4_000_000  # of a batch, however large its images are: with three channels 48 MB as 32-bit floats
Array = np.ndarray[Any, Any]


@dataclass
class Predicted:
    """What was written, and what could not be read."""

    written: list[Path] = field(default_factory=list)
    count: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a reader of the values should know


def found_files(inputs: Sequence[Path], suffixes: Collection[str]) -> list[Path]:
    files: list[Path] = []
    for path in inputs:
        if os.path.isdir(path):  # which never raises
            inside = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in suffixes and not file.is_dir()]
            files += inside or [path]  # a folder without any gets a row that says so
        else:
            files.append(path)
    if all(map(os.path.isdir, files)):
        raise DataError(f"expected files to predict, found none in {', '.join(map(str, inputs))}; check the paths")
    return files


def prepare_output(out: Path, force: bool) -> None:
    """Before any work: refuse a file that cannot be written or is there already; make its folder."""
    if out.exists():
        if not out.is_file():  # nor would a device survive to be replaced
            raise DataError(f"{out}: expected a file to write, found a folder or device; add a name such as out.csv")
        if not force:
            raise DataError(f"{out}: expected a new file, found one; use --force to replace it")
    prepare_folder(out.parent)


def prepare_folder(folder: Path) -> None:
    """Before any work: make a folder to write to, or refuse it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"{folder}: expected a folder to write to, found {error.strerror}; choose another -o") from None


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table, `error` last; no cell, a header's neither, is a formula for a spreadsheet."""
    header = sorted(dict.fromkeys(key for row in rows for key in row), key=lambda name: name == "error")
    cells = [{cell(key): value if key == "file" else cell(value) for key, value in row.items()} for row in rows]
    text = io.StringIO()
    # A lone carriage return ends a line for readers of CSV, some split at ; or tabs: Python's writer quotes neither.
    others = any(set("\r\t;") & set(str(value)) for row in cells for pair in row.items() for value in pair)
    writer = csv.DictWriter(
        text,
        [cell(key) for key in header],
        restval="",
        lineterminator="\n",
        quoting=csv.QUOTE_ALL if others else csv.QUOTE_MINIMAL,
    )
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue()


def predict_table(
    files: Sequence[Path],
    out: Path,
    constants: Mapping[str, Any],
    rows_of: Callable[[Array, dict[int, Path]], list[dict[str, Any]]],
    progress: Callable[[str, int, int], None] | None,
) -> Predicted:
    """Decode images batch by batch, predict them by `rows_of` (pixels, files by row -> a row each), write the table.

    A file that cannot be read keeps its row, which says why under `error`.
    """
    result = Predicted(written=[out])
    rows: list[dict[str, Any]] = []
    batch = max(min(MOST_PIXELS // constants["size"] ** 2, BATCH), 1)
    for start in range(0, len(files), batch):
        readable: dict[int, Array] = {}
        for number, file in enumerate(files[start : start + batch], start=start):
            rows.append({"file": path_cell(file), "error": ""})
            try:
                readable[number] = decode(file, constants["size"], constants["channels"])
            except DataError as error:
                rows[number]["error"] = str(error)
                result.problems.append(f"{file}: {error}")
        if readable:
            predicted = rows_of(np.stack(list(readable.values())), {number: files[number] for number in readable})
            for number, row in zip(readable, predicted, strict=True):
                rows[number] |= row
            result.count += len(readable)
        if progress is not None:
            progress("predicting", min(start + batch, len(files)), len(files))
    write_atomically(out, as_csv(rows).encode(errors="backslashreplace"))  # names need not be UTF-8
    return result
