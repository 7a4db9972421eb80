"""Predictions for a user's own files: a table for images, volumes for scans, both with the spread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from filtergroups.correction import Correction, interval, load_corrections, tempered
from filtergroups.data.decoding import SUFFIXES
from filtergroups.data.images import normalised
from filtergroups.listing import Array, Predicted, as_name, found_files, predict_table, prepare_output
from filtergroups.paths import AnyPath, as_path, as_paths
from filtergroups.restored import Restored, open_run
from filtergroups.run import RunError
from filtergroups.scan_inference import predict_scans
from filtergroups.shipped import predict_with_file
from filtergroups.statistics import use_recalibrated
from filtergroups.tasks import Classification, Prediction, Regression, Task
from filtergroups.volumes import predict_volume


def predict(
    run: AnyPath,
    inputs: AnyPath | Sequence[AnyPath],
    out: AnyPath,
    *,
    samples: int = 50,
    checkpoint: str = "best",
    force: bool = False,
    intervals: bool = False,
    precision: float | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Predicted:
    """Predict files or folders of them, one or several: images into one CSV, scans into NIfTI volumes in a folder.

    Norms use statistics of the training data, so that a prediction does not depend on the other files. Nor does a file
    stop them that cannot be read: it is among the problems, and an image keeps its row, which says why under `error`.
    Intervals (90 %) and probabilities are corrected after `calibrate`; intervals: write those of scans too.
    run: a run folder, or an ONNX file that `export` wrote. precision: end before `samples` passes once the estimate is
    this stable.
    """
    run, inputs, out = as_path(run), as_paths(inputs), as_path(out)
    if run.suffix == ".onnx":
        return predict_with_file(run, inputs, out, force=force, intervals=intervals, progress=progress)
    restored = open_run(run, checkpoint)
    samples = restored.passes(samples)
    corrections, notes = _corrections(restored, samples)
    if intervals and restored.scans is not None and not samples and not corrections:
        raise RunError(f"--intervals: {notes[0]}")
    files = []
    if restored.scans is None:
        files = found_files(inputs, SUFFIXES)
        prepare_output(out, force)
    if warning := use_recalibrated(restored, samples, progress):
        notes.append(warning)
    # A gate for each example would make a prediction depend on its place among the files.
    restored.network.per_example = False
    if restored.scans is not None:
        volumes = partial(
            predict_volume, restored.network, **restored.windows,
            samples=samples, seed=restored.config.seed, temperature=restored.temperature, precision=precision,
        )  # fmt: skip
        done = predict_scans(
            volumes, restored.tasks, restored.scans, restored.progress.constants, inputs, out,
            force=force, corrections=corrections, intervals=intervals, progress=progress,
        )  # fmt: skip
    else:
        done = _predict_images(restored, files, out, samples, precision, progress, corrections)
    return replace(done, notes=notes)


def _corrections(restored: Restored, samples: int) -> tuple[dict[str, Correction], list[str]]:
    """The tasks' corrections, and a line that says what they are."""
    run = restored.run
    found, stale = load_corrections(run, "sampled" if samples else "mode", restored.progress.step)
    names = [task.name for task in restored.tasks]
    remedy = f"`filtergroups calibrate {run.path}{'' if samples else ' --samples 0'}` corrects them"
    without = [name for name in names if name not in found]
    if not without:
        return found, ["90 % intervals and probabilities are corrected, as `calibrate` fitted them"]
    if found:
        return found, [f"90 % intervals and probabilities are corrected, but not those of {', '.join(without)}"]
    what = "are not corrected" if samples else "are not corrected: one pass has no spread, so there are no intervals"
    return found, [f"90 % intervals and probabilities {what}; {stale + '; ' if stale else ''}{remedy}"]


def _predict_images(
    restored: Restored,
    files: Sequence[Path],
    out: Path,
    samples: int,
    precision: float | None,
    progress: Callable[[str, int, int], None] | None,
    corrections: Mapping[str, Correction],
) -> Predicted:
    constants, network = restored.progress.constants, restored.network

    def rows_of(pixels: Array, files: list[Path]) -> list[dict[str, Any]]:
        images = normalised(pixels, constants["mean"], constants["deviation"])
        generator = torch.Generator().manual_seed(restored.config.seed)
        predictions = network.predict(images, samples, generator, temperature=restored.temperature, precision=precision)
        return image_rows(network.tasks, predictions, files, restored.names, corrections)

    return predict_table(files, out, constants, rows_of, progress)


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
