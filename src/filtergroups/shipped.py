"""Predictions from a shipped ONNX file: needs onnxruntime, numpy and Pillow, neither the run nor torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from filtergroups.cells import Cells, Maps, class_cells, real_cells
from filtergroups.certainty import in_words
from filtergroups.data.decoding import SUFFIXES, normalised_array
from filtergroups.data.errors import DataError
from filtergroups.listing import Predicted, found_files, predict_table, prepare_output
from filtergroups.shipped_model import About, looked_through, refuse_outputs
from filtergroups.shipped_session import OutOfBounds, TooSlow, bounded_session, run_bounded

CLASSES, MAPS = ("Classification", "Segmentation"), ("Segmentation", "ImageRegression")  # kinds of tasks
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shipped:
    """A network in an ONNX file, and what it knows about itself."""

    session: Any
    about: dict[str, Any]
    checked: About

    @property
    def tasks(self) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = self.about["tasks"]
        return tasks

    def outputs(self, images: Array) -> dict[str, Array]:
        """Each task's raw output for normalised images, batch × channels × space; in halves where memory is short."""
        names = [task["name"] for task in self.tasks]
        try:
            found = dict(zip(names, run_bounded(self.session, names, images), strict=True))
        except OutOfBounds as error:
            if len(images) == 1 or isinstance(error, TooSlow):
                raise DataError(f"the ONNX file {error}; export the run again, or predict smaller images") from None
            middle = len(images) // 2
            parts = [self.outputs(images[:middle]), self.outputs(images[middle:])]
            return {name: np.concatenate([part[name] for part in parts]) for name in names}
        refuse_outputs(self.checked, images, found)
        return found


def open_shipped(path: Path) -> Shipped:
    """Read an ONNX file that `filtergroups export` wrote; anything else is refused before it can do anything."""
    try:
        content, about = looked_through(path)
    except FileNotFoundError:
        raise DataError(f"{path}: expected an ONNX file, found none; check the path") from None
    try:
        session = bounded_session(content)
    except OutOfBounds as error:
        raise DataError(f"{path}: expected an ONNX file, found one that onnxruntime cannot read: {error}") from None
    return Shipped(session, about.model_dump(exclude_unset=False), about)


def predict_with_file(
    path: Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    force: bool = False,
    intervals: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Predicted:
    """Predict images or scans by an exported file; preprocessing scans needs torch, images do not."""
    model = open_shipped(path)
    if intervals and lacks_intervals(model) and not any(task["correction"] for task in model.tasks):
        raise DataError(f"--intervals: {correction_note(model)}")
    if model.about["kind"] == "images":
        done = predict_images(model, inputs, out, force=force, intervals=intervals, progress=progress)
    else:
        from filtergroups.scan_inference import predict_scans_with_file

        done = predict_scans_with_file(model, inputs, out, force=force, intervals=intervals, progress=progress)
    return replace(done, notes=[correction_note(model)])


def predict_images(
    model: Shipped,
    inputs: Sequence[Path],
    out: Path,
    *,
    force: bool = False,
    intervals: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Predicted:
    """Predict images into a CSV with the same columns as `predict` of the run with --samples 0."""
    files = found_files(inputs, SUFFIXES)
    prepare_output(out, force)
    with_maps = [task["name"] for task in model.tasks if task["kind"] in MAPS]
    maps = Maps(out, with_maps, force) if with_maps else None
    constants = model.about["constants"]

    def rows_of(pixels: Array, files: dict[int, Path]) -> list[dict[str, Any]]:
        outputs = model.outputs(normalised_array(pixels, constants["mean"], constants["deviation"]))
        rows: list[dict[str, Any]] = []
        for n, (number, file) in enumerate(files.items()):
            rows.append({})
            for task in model.tasks:
                name, output, labels = task["name"], outputs[task["name"]][n], labels_of(task)
                if maps is None or task["kind"] not in MAPS:
                    rows[-1] |= _cells(task, output, labels)
                else:
                    rows[-1] |= maps.cells(name, number, file, _maps(task, output, intervals), labels or None)
        return rows

    return predict_table(files, out, constants, rows_of, progress)


def labels_of(task: dict[str, Any]) -> list[str]:
    """The names of a task's classes, or their numbers; none of real values."""
    if task["kind"] not in CLASSES:
        return []
    return task["labels"] or [str(n) for n in range(task["classes"])]


def lacks_intervals(model: Shipped) -> bool:
    """Are there real values without a correction? One pass has no spread that could stand for it."""
    return any(task["kind"] not in CLASSES and not task["correction"] for task in model.tasks)


def correction_note(model: Shipped) -> str:
    """A line that says what intervals and probabilities are worth: as `predict` says it of the run at its mode."""
    return in_words(
        {task["name"]: task["kind"] in CLASSES for task in model.tasks},
        [task["name"] for task in model.tasks if task["correction"]],
        passes=0, fixed=False, remedy="calibrating the run with --samples 0 and exporting it again",
    )  # fmt: skip


def _cells(task: dict[str, Any], output: Array, labels: Sequence[str]) -> Cells:
    """One image's cells of one task with one answer; the names are those of the run's own table."""
    name, correction = task["name"], task["correction"]
    if not labels:
        value = (float(output[0]) - task["offset"]) * task["scale"]
        half = correction["value"] if correction else None
        return real_cells(name, value, None, *((None, None) if half is None else (value - half, value + half)))
    probabilities = corrected(output, correction)
    return class_cells(name, labels, int(output.argmax()), probabilities.tolist(), float(entropy(probabilities)), None)


def _maps(task: dict[str, Any], output: Array, intervals: bool) -> dict[str, Array]:
    """What is written of an answer at every pixel, by the end of the file's name; as in `scan_inference.maps_of`."""
    correction = task["correction"]
    if task["kind"] in CLASSES:
        probabilities = corrected(output, correction)
        maps = {"": output.argmax(0), "_entropy": entropy(probabilities)}
        return {**maps, "_probabilities": probabilities} if intervals else maps
    value = (output[0].astype(np.float64) - task["offset"]) * task["scale"]
    if not (intervals and correction):
        return {"": value}
    return {"": value, "_low": value - correction["value"], "_high": value + correction["value"]}


def corrected(output: Array, correction: dict[str, Any] | None) -> Array:
    """Probabilities over the first axis, in double precision, by the temperature that was fitted if there is one."""
    logits = output.astype(np.float64) / (correction["value"] if correction else 1.0)
    shifted = np.exp(logits - logits.max(axis=0, keepdims=True))
    total: Array = shifted / shifted.sum(axis=0, keepdims=True)
    return total


def entropy(probabilities: Array) -> Array:
    """−Σ p log p over the first axis."""
    terms: Array = probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return -np.asarray(terms.sum(axis=0))
