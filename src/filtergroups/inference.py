"""Predictions for a user's own files: a table for images, volumes for scans, both with the spread."""

import csv
import io
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from filtergroups.config import ScansData
from filtergroups.data.decoding import SUFFIXES, decode
from filtergroups.data.examples import DataError
from filtergroups.data.images import normalised
from filtergroups.data.splits import write_atomically
from filtergroups.restored import Restored, open_run
from filtergroups.tasks import Classification, Prediction, Regression, Segmentation, Task

BATCH = 32


@dataclass
class Predicted:
    """What was written, and what could not be read."""

    written: list[Path] = field(default_factory=list)
    count: int = 0
    problems: list[str] = field(default_factory=list)


def predict(
    run: Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    samples: int = 50,
    checkpoint: str = "best",
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Predicted:
    """Predict files (or folders of them): images into one CSV, scans into NIfTI volumes in a folder.

    Norms use their running statistics, so that a prediction does not depend on the other files. Nor does a file stop
    them that cannot be read: it is among the problems, and an image keeps its row, which says why under `error`.
    """
    restored = open_run(run, checkpoint)
    if restored.scans is not None:
        return _predict_scans(restored, restored.scans, inputs, out, samples, force, progress)
    return _predict_images(restored, inputs, out, samples, force, progress)


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


def _predict_images(
    restored: Restored,
    inputs: Sequence[Path],
    out: Path,
    samples: int,
    force: bool,
    progress: Callable[[str, int, int], None] | None,
) -> Predicted:
    files = found_files(inputs, SUFFIXES)
    prepare_output(out, force)
    constants, network = restored.progress.constants, restored.network
    result = Predicted(written=[out])
    rows: list[dict[str, Any]] = []
    for start in range(0, len(files), BATCH):
        readable: dict[int, Any] = {}
        for number, file in enumerate(files[start : start + BATCH], start=start):
            rows.append({"file": as_name(file), "error": ""})
            try:
                readable[number] = decode(file, constants["size"], constants["channels"])
            except DataError as error:
                rows[number]["error"] = str(error)
                result.problems.append(f"{file}: {error}")
        if readable:
            images = normalised(np.stack(list(readable.values())), constants["mean"], constants["deviation"])
            generator = torch.Generator().manual_seed(restored.config.seed)
            predictions = network.predict(images, restored.passes(samples), generator)
            predicted = image_rows(network.tasks, predictions, [files[number] for number in readable], restored.names)
            for number, row in zip(readable, predicted, strict=True):
                rows[number] |= row
            result.count += len(readable)
        if progress is not None:
            progress("predicting", min(start + BATCH, len(files)), len(files))
    write_atomically(out, as_csv(rows).encode(errors="backslashreplace"))  # names need not be UTF-8
    return result


def as_name(file: Path) -> str:
    """A file's path as a cell: still its path, but never what a spreadsheet takes for a formula (=, +, −, @)."""
    return f"./{file}" if str(file)[:1] in "=+-@\t\r" else str(file)


def image_rows(
    tasks: Sequence[Task], predictions: dict[str, Prediction], files: Sequence[Path], names: dict[str, list[str]]
) -> list[dict[str, Any]]:
    """A row a file: value and spread of each task, and the probabilities of classes."""
    rows: list[dict[str, Any]] = [{"file": as_name(file)} for file in files]
    for task in tasks:
        prediction = predictions[task.name]
        for n, row in enumerate(rows):
            if isinstance(task, Regression):
                row[task.name] = f"{prediction.value[n].item():.6g}"
                row[f"{task.name}_std"] = f"{prediction.spread[n].item():.4g}"
            elif isinstance(task, Classification):
                assert prediction.probabilities is not None
                classes = names.get(task.name) or [str(c) for c in range(task.classes)]
                row[task.name] = classes[int(prediction.value[n])]
                row[f"{task.name}_entropy"] = f"{prediction.spread[n].item():.4g}"
                for c, label in enumerate(classes):
                    row[f"{task.name}_p_{label}"] = f"{prediction.probabilities[n, c].item():.4g}"
            else:
                row[f"{task.name}_mean"] = f"{prediction.value[n].float().mean().item():.6g}"
                row[f"{task.name}_mean_spread"] = f"{prediction.spread[n].mean().item():.4g}"
    return rows


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table, `error` last."""
    header = sorted(dict.fromkeys(key for row in rows for key in row), key=lambda name: name == "error")
    text = io.StringIO()
    # A lone carriage return ends a line for readers of CSV, but does not make Python's writer quote.
    returns = any("\r" in str(value) for row in rows for value in row.values())
    writer = csv.DictWriter(
        text, header, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _predict_scans(
    restored: Restored,
    scans: ScansData,
    inputs: Sequence[Path],
    out: Path,
    samples: int,
    force: bool,
    progress: Callable[[str, int, int], None] | None,
) -> Predicted:
    import nibabel

    from filtergroups.data.scans import preprocess_volume, to_original_grid
    from filtergroups.volumes import predict_volume

    network = restored.network
    files = _scan_files(inputs, scans)
    result = Predicted()
    for folder in (out / name for name in files):
        if folder.exists() and not force:
            raise DataError(f"{folder}: expected a new folder, found one; use --force to replace it")
    prepare_folder(out)
    for number, (name, file) in enumerate(files.items(), start=1):
        folder = out / name
        try:
            image, _, way_back = preprocess_volume(file, scans, restored.progress.constants)
        except DataError as error:
            result.problems.append(str(error))
            continue
        predictions = predict_volume(
            network, image, **restored.windows, samples=restored.passes(samples), seed=restored.config.seed
        )
        for task in network.tasks:
            prediction = predictions[task.name]
            labels = isinstance(task, Segmentation)
            spread = "entropy" if labels else "std"
            for suffix, values, nearest in (("", prediction.value, labels), (f"_{spread}", prediction.spread, False)):
                array = to_original_grid(values, way_back)
                path = folder / f"{task.name}{suffix}.nii.gz"
                dtype = np.uint8 if nearest else np.float32
                image_out = nibabel.Nifti1Image(array.astype(dtype), way_back.file_affine)
                write_atomically(path, _gzipped(image_out))
                result.written.append(path)
        result.count += 1
        if progress is not None:
            progress("predicting", number, len(files))
    return result


def _gzipped(image: Any) -> bytes:
    import gzip

    content: bytes = image.to_bytes()
    return gzip.compress(content, compresslevel=3)


def _scan_files(inputs: Sequence[Path], scans: ScansData) -> dict[str, Path]:
    """Patient -> file: of a patient's folder, a folder of those, or NIfTI files."""
    found: list[tuple[str, Path]] = []
    for path in inputs:
        if (path / scans.input).is_file():
            found.append((path.resolve().name, path / scans.input))
        elif os.path.isdir(path):
            inside = [folder / scans.input for folder in sorted(path.iterdir()) if (folder / scans.input).is_file()]
            found += [(file.parent.name, file) for file in inside] or [(path.resolve().name, path / scans.input)]
        elif path.name == scans.input:
            found.append((path.resolve().parent.name, path))
        else:
            found.append((path.name.removesuffix(".gz").removesuffix(".nii") or path.name, path))
    if all(map(os.path.isdir, inputs)) and not any(file.is_file() for _, file in found):
        raise DataError(
            f"expected scans named {scans.input}, found none in {', '.join(map(str, inputs))}; check the paths"
        )
    files: dict[str, Path] = {}
    for name, file in found:
        if files.setdefault(name, file).resolve() != file.resolve():
            raise DataError(
                f"expected scans of different names, found {files[name]} and {file}, which would both be written to "
                f"{name}; predict them one at a time"
            )
    return files
