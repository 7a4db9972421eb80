"""Who the scans are of: patients' folders, the part that each belongs to, and the names of their labels."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from filtergroups.config import ScansData
from filtergroups.data.examples import SELECTION, SPLITS, DataError
from filtergroups.data.splits import read_split, seeded_split, with_selection, write_split
from filtergroups.reading import read_json

MOST_LABELS = 10_000
MOST_VALUE = 2**31 - 1  # of a label, which is written as a 32-bit number


@dataclass(frozen=True)
class PatientFiles:
    """Where the files of one patient are."""

    name: str
    input: Path
    target: Path | None
    labels: Path | None
    valid: Path | None

    @property
    def all(self) -> list[Path]:
        return [path for path in (self.input, self.target, self.labels, self.valid) if path is not None]


def patient_files(config: ScansData, name: str) -> PatientFiles:
    folder = config.root / name

    def inside(file: str | None) -> Path | None:
        return None if file is None else folder / file

    return PatientFiles(name, folder / config.input, inside(config.target), inside(config.labels), inside(config.valid))


def missing_files(patient: PatientFiles) -> list[str]:
    """A line for each file that the patient's folder lacks."""
    return [
        f"{path}: expected a file {path.name} of patient {patient.name}, found none; add it or remove the patient"
        for path in patient.all
        if not path.is_file()
    ]


def patient_names(root: Path) -> list[str]:
    """The folders in the root, hidden ones aside."""
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder that holds one folder a patient, found none; check data.root")
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise DataError(f"{root}: expected one folder a patient, found no folder; check data.root")
    return names


def split_file(config: ScansData) -> Path | None:
    """The file that says which part a patient belongs to, if there is one."""
    if config.split_file is not None:
        return config.split_file
    beside = config.root / "split.csv"
    return beside if beside.is_file() else None


def read_patient_split(path: Path, names: Sequence[str], root: Path) -> dict[str, str]:
    """patient -> part; every patient of the file has a folder."""
    parts = read_split(path, "patient")
    unknown = sorted(set(parts) - set(names))
    if unknown:
        raise DataError(
            f"{path}: expected patients that have a folder in {root}, found {', '.join(unknown)}; "
            "add the folder or remove the line"
        )
    return parts


def patients_by_part(config: ScansData, seed: int, *, keep: bool, aside: bool = True) -> dict[str, list[str]]:
    """part -> patients; aside: with the patients of the selection set taken out of the training part.

    A seeded split is written to split.csv (keep), so that patients added later do not move it.
    """
    names = patient_names(config.root)
    path = split_file(config)
    if path is not None:
        parts = read_patient_split(path, names, config.root)
    else:
        parts = seeded_split(names, seed)
        if keep:
            with suppress(OSError):  # Where it cannot be written, the seed gives the same split again.
                write_split(config.root / "split.csv", parts, "patient")
    if aside:
        parts = with_selection(parts, config.selection, seed)
    return {part: sorted(name for name in parts if parts[name] == part) for part in (*SPLITS, SELECTION)}


def label_table(config: ScansData) -> dict[int, str]:
    """value -> name of every label, by rising value."""
    path = config.root / "labels.json"
    where = "data.label_names" if config.label_names is not None else str(path)
    table = config.label_names
    if table is None:
        try:
            table = read_json(path, "JSON with value -> name", DataError, "mend it")
        except FileNotFoundError:
            raise DataError(
                f"{path}: expected the labels' values and names, found no file; write one, set data.label_names, "
                "or set data.labels to none"
            ) from None
    if not isinstance(table, dict) or not all(str(value).isdecimal() for value in table):
        found = sorted(map(str, table)) if isinstance(table, dict) else type(table).__name__
        raise DataError(f"{where}: expected names by value (0, 1, …), found {found}; mend it (negative: not labelled)")
    if len(table) > MOST_LABELS or any(len(value) > 10 or int(value) > MOST_VALUE for value in table):
        raise DataError(
            f"{where}: expected at most {MOST_LABELS} labels, of values up to {MOST_VALUE}, found others; mend it"
        )
    if len(table) < 2:
        raise DataError(f"{where}: expected at least 2 labels, found {len(table)}; name the background too")
    return {value: str(name) for value, name in sorted((int(value), name) for value, name in table.items())}


def class_indices(values: NDArray[np.float32], known: Sequence[int], path: Path) -> NDArray[np.int16]:
    """Label values as classes 0 … n − 1, by rising value; a negative value is not labelled: −1."""
    present = np.unique(values)
    whole = np.isclose(present, np.rint(present), rtol=0, atol=1e-3)
    strange = present[~whole | ((present > -0.5) & ~np.isin(np.rint(present), known))]
    if len(strange):
        listed = ", ".join(f"{value:g}" for value in strange[:5]) + (", …" if len(strange) > 5 else "")
        raise DataError(
            f"{path}: expected the label values {', '.join(map(str, known))}, found {listed}; "
            "name them in labels.json (or data.label_names), or mend the file"
        )
    classes = np.searchsorted(np.asarray(known), np.rint(values))
    return np.where(np.rint(values) < 0, -1, classes).astype(np.int16)
