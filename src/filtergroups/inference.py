"""Predictions for a user's own files: a table for images, volumes for scans, both with the spread."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from filtergroups.config import ScansData
from filtergroups.correction import Correction, half_width, load_corrections, tempered
from filtergroups.data.decoding import SUFFIXES, decode
from filtergroups.data.examples import DataError
from filtergroups.data.images import normalised
from filtergroups.listing import Predicted, as_csv, as_name, found_files, prepare_folder, prepare_output
from filtergroups.restored import Restored, open_run
from filtergroups.run import RunError
from filtergroups.statistics import use_recalibrated
from filtergroups.tasks import Classification, Prediction, Regression, Segmentation, Task
from filtergroups.writing import write_atomically

BATCH = 32


def predict(
    run: Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    samples: int = 50,
    checkpoint: str = "best",
    force: bool = False,
    intervals: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Predicted:
    """Predict files (or folders of them): images into one CSV, scans into NIfTI volumes in a folder.

    Norms use statistics of the training data, so that a prediction does not depend on the other files. Nor does a file
    stop them that cannot be read: it is among the problems, and an image keeps its row, which says why under `error`.
    Intervals (90 %) and probabilities are corrected after `calibrate`; intervals: write those of scans too.
    """
    restored = open_run(run, checkpoint)
    samples = restored.passes(samples)
    corrections, notes = _corrections(restored, samples)
    if intervals and restored.scans is not None and not samples and not corrections:
        raise RunError(f"--intervals: {notes[0]}")
    if restored.scans is None:
        prepare_output(out, force)
    if warning := use_recalibrated(restored, samples, progress):
        notes.append(warning)
    # A gate for each example would make a prediction depend on its place among the files.
    restored.network.per_example = False
    if restored.scans is not None:
        done = _predict_scans(restored, restored.scans, inputs, out, samples, force, progress, corrections, intervals)
    else:
        done = _predict_images(restored, inputs, out, samples, progress, corrections)
    return replace(done, notes=notes)


def _corrections(restored: Restored, samples: int) -> tuple[dict[str, Correction], list[str]]:
    """The tasks' corrections, and a line that says what they are."""
    run = restored.run
    found, stale = load_corrections(run, "sampled" if samples else "mode", restored.progress.step)
    names = [task.name for task in restored.tasks]
    remedy = f"`filtergroups calibrate {run.path}{'' if samples else ' --samples 0'}` corrects them"
    without = [name for name in names if name not in found]
    if not without:
        return found, ["90 % intervals and probabilities are corrected on the validation part"]
    if found:
        return found, [f"90 % intervals and probabilities are corrected, but not those of {', '.join(without)}"]
    what = "are not corrected" if samples else "are not corrected: one pass has no spread, so there are no intervals"
    return found, [f"90 % intervals and probabilities {what}; {stale + '; ' if stale else ''}{remedy}"]


def _predict_images(
    restored: Restored,
    inputs: Sequence[Path],
    out: Path,
    samples: int,
    progress: Callable[[str, int, int], None] | None,
    corrections: Mapping[str, Correction],
) -> Predicted:
    files = found_files(inputs, SUFFIXES)
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
            predictions = network.predict(images, samples, generator, temperature=restored.temperature)
            predicted = image_rows(
                network.tasks, predictions, [files[number] for number in readable], restored.names, corrections
            )
            for number, row in zip(readable, predicted, strict=True):
                rows[number] |= row
            result.count += len(readable)
        if progress is not None:
            progress("predicting", min(start + BATCH, len(files)), len(files))
    write_atomically(out, as_csv(rows).encode(errors="backslashreplace"))  # names need not be UTF-8
    return result


def image_rows(
    tasks: Sequence[Task],
    predictions: dict[str, Prediction],
    files: Sequence[Path],
    names: dict[str, list[str]],
    corrections: Mapping[str, Correction],
) -> list[dict[str, Any]]:
    """A row a file: value and spread of each task, the 90 % interval or the probabilities of classes."""
    rows: list[dict[str, Any]] = [{"file": as_name(file)} for file in files]
    for task in tasks:
        prediction, correction = predictions[task.name], corrections.get(task.name)
        low, high = interval(prediction, correction)
        probabilities = prediction.probabilities
        if probabilities is not None and correction is not None:
            probabilities = tempered(probabilities, correction.value)
        for n, row in enumerate(rows):
            if isinstance(task, Regression):
                row[task.name] = f"{prediction.value[n].item():.6g}"
                row[f"{task.name}_std"] = f"{prediction.spread[n].item():.4g}"
                # One pass without a correction knows nothing of its error: an interval of no width would be a lie.
                known = correction is not None or bool(prediction.spread[n] > 0)
                row[f"{task.name}_low"] = f"{low[n].item():.6g}" if known else ""
                row[f"{task.name}_high"] = f"{high[n].item():.6g}" if known else ""
            elif isinstance(task, Classification):
                assert probabilities is not None
                assert prediction.mutual_information is not None
                classes = names.get(task.name) or [str(c) for c in range(task.classes)]
                row[task.name] = classes[int(prediction.value[n])]
                row[f"{task.name}_entropy"] = f"{prediction.spread[n].item():.4g}"
                row[f"{task.name}_mutual_information"] = f"{prediction.mutual_information[n].item():.4g}"
                for c, label in enumerate(classes):
                    row[f"{task.name}_p_{label}"] = f"{probabilities[n, c].item():.4g}"
            else:
                row[f"{task.name}_mean"] = f"{prediction.value[n].float().mean().item():.6g}"
                row[f"{task.name}_mean_spread"] = f"{prediction.spread[n].mean().item():.4g}"
    return rows


def interval(prediction: Prediction, correction: Correction | None) -> tuple[Tensor, Tensor]:
    """The lower and upper end of the 90 % interval of real values."""
    half = half_width(prediction.spread, correction)
    return prediction.value - half, prediction.value + half


def _predict_scans(
    restored: Restored,
    scans: ScansData,
    inputs: Sequence[Path],
    out: Path,
    samples: int,
    force: bool,
    progress: Callable[[str, int, int], None] | None,
    corrections: Mapping[str, Correction],
    intervals: bool,
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
            network, image, **restored.windows, samples=samples, seed=restored.config.seed,
            temperature=restored.temperature,
        )  # fmt: skip
        for task in network.tasks:
            prediction = predictions[task.name]
            labels = isinstance(task, Segmentation)
            spread = "entropy" if labels else "std"
            volumes = [("", prediction.value, labels), (f"_{spread}", prediction.spread, False)]
            if intervals and not labels:
                low, high = interval(prediction, corrections.get(task.name))
                volumes += [("_low", low, False), ("_high", high, False)]
            for suffix, values, nearest in volumes:
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
