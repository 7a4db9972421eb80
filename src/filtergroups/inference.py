"""Predictions for a user's own files: a table for images, volumes for scans, both with what is known of their error."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from filtergroups.answers import Answer
from filtergroups.cells import Cells, Maps, class_cells, real_cells
from filtergroups.data.decoding import SUFFIXES
from filtergroups.data.images import normalised
from filtergroups.listing import Array, Predicted, found_files, predict_table, prepare_output
from filtergroups.naming import path_cell
from filtergroups.paths import AnyPath, as_path, as_paths
from filtergroups.predictor import PASSES, Predictor, has_classes, is_map, predictor_of
from filtergroups.restored import Restored, open_run
from filtergroups.run import RunError
from filtergroups.scan_inference import maps_of, predict_scans
from filtergroups.shipped import predict_with_file
from filtergroups.tasks import Task

Step = Callable[[str, int, int], None]


def predict(
    run: AnyPath,
    inputs: AnyPath | Sequence[AnyPath],
    out: AnyPath,
    *,
    samples: int = PASSES,
    checkpoint: str = "best",
    force: bool = False,
    intervals: bool = False,
    precision: float | None = None,
    progress: Step | None = None,
) -> Predicted:
    """Predict files or folders of them, one or several: images into one CSV, scans into NIfTI volumes in a folder.

    Norms use statistics of the training data, so that a prediction does not depend on the other files. Nor does a file
    stop them that cannot be read: it is among the problems, and an image keeps its row, which says why under `error`.
    Intervals (90 %) and probabilities are corrected after `calibrate`. Answers at every pixel are files beside the CSV,
    which names them; intervals: write those of pixels and voxels too.
    run: a run folder, or an ONNX file that `export` wrote. precision: end before `samples` passes once the estimate is
    this stable.
    """
    run, inputs, out = as_path(run), as_paths(inputs), as_path(out)
    if run.suffix == ".onnx":
        return predict_with_file(run, inputs, out, force=force, intervals=intervals, progress=progress)
    restored = open_run(run, checkpoint)
    if restored.scans is not None:
        predictor = _with_intervals(predictor_of(restored, samples, progress=progress), intervals)
        done = predict_scans(
            partial(predictor.volume, precision=precision), predictor.answer, predictor.tasks, restored.scans,
            restored.progress.constants, inputs, out, force=force, intervals=intervals, progress=progress,
        )  # fmt: skip
    else:
        files = found_files(inputs, SUFFIXES)
        prepare_output(out, force)
        with_maps = [task.name for task in restored.tasks if is_map(task)]
        maps = Maps(out, with_maps, force) if with_maps else None
        predictor = _with_intervals(predictor_of(restored, samples, progress=progress), intervals and maps is not None)
        done = _predict_images(predictor, files, out, maps, precision, intervals, progress)
    return replace(done, notes=[predictor.certainty, *predictor.notes])


def _with_intervals(predictor: Predictor, asked: bool) -> Predictor:
    """Refuse to promise intervals where none is known."""
    if asked and predictor.lacks_intervals and not predictor.corrections:
        raise RunError(f"--intervals: {predictor.certainty}")
    return predictor


def _predict_images(
    predictor: Predictor,
    files: Sequence[Path],
    out: Path,
    maps: Maps | None,
    precision: float | None,
    intervals: bool,
    progress: Step | None,
) -> Predicted:
    constants = predictor.restored.progress.constants

    def rows_of(pixels: Array, files: dict[int, Path]) -> list[dict[str, Any]]:
        images = normalised(pixels, constants["mean"], constants["deviation"])
        predictions = predictor.images(images, precision)
        rows: list[dict[str, Any]] = [{"file": path_cell(file)} for file in files.values()]
        for task in predictor.tasks:
            answer, labels = predictor.answer(task, predictions[task.name]), labels_of(task, predictor.restored)
            for n, (row, (number, file)) in enumerate(zip(rows, files.items(), strict=True)):
                one = answer.of(n)
                if maps is None or not is_map(task):
                    row |= cells(task, one, labels)
                else:
                    arrays = {end: values.numpy() for end, values in maps_of(one, intervals).items()}
                    row |= maps.cells(task.name, number, file, arrays, labels or None)
        return rows

    return predict_table(files, out, constants, rows_of, progress)


def labels_of(task: Task, restored: Restored) -> list[str]:
    """The names of a task's classes, or their numbers; none of real values."""
    if not has_classes(task):
        return []
    return restored.names.get(task.name) or [str(c) for c in range(task.outputs)]


def cells(task: Task, answer: Answer, labels: Sequence[str]) -> Cells:
    """What a table says of one image."""
    if answer.probabilities is None:
        return real_cells(task.name, *map(_number, (answer.value, answer.deviation, answer.low, answer.high)))
    information = _number(answer.mutual_information)
    return class_cells(
        task.name, labels, int(answer.value), answer.probabilities.tolist(), _number(answer.entropy), information
    )


def _number(value: torch.Tensor | None) -> Any:
    return None if value is None else value.item()
