"""Predictions from a shipped ONNX file: needs onnxruntime, numpy and Pillow, neither the run nor torch."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from filtergroups.data.decoding import SUFFIXES, normalised_array
from filtergroups.data.errors import DataError
from filtergroups.listing import Predicted, found_files, predict_table, prepare_output

KEY, FORMAT = "filtergroups", "filtergroups compact 1"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shipped:
    """A network in an ONNX file, and what it knows about itself."""

    session: Any
    about: dict[str, Any]

    @property
    def tasks(self) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = self.about["tasks"]
        return tasks

    def outputs(self, images: Array) -> dict[str, Array]:
        """Each task's raw output for normalised images, batch × channels × space."""
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, {"images": images}), strict=True))


def open_shipped(path: Path) -> Shipped:
    """Read an ONNX file that `filtergroups export` wrote."""
    import onnxruntime

    if not path.is_file():
        raise DataError(f"{path}: expected an ONNX file, found none; check the path")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong with a file is said below, in one line
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  # onnxruntime raises kinds of its own that share no base
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"{path}: expected an ONNX file, found one that onnxruntime cannot read: {reason}") from None
    try:
        about = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
        ours = about["format"] == FORMAT
    except (KeyError, ValueError, TypeError):
        ours = False
    if not ours:
        raise DataError(f"{path}: expected an ONNX file of `filtergroups export`, found another; export the run first")
    return Shipped(session, about)


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
    if model.about["kind"] == "images":
        return predict_images(model, inputs, out, force=force, progress=progress)
    from filtergroups.scan_inference import predict_scans_with_file

    done = predict_scans_with_file(model, inputs, out, force=force, intervals=intervals, progress=progress)
    return replace(done, notes=[correction_note(model)])


def predict_images(
    model: Shipped,
    inputs: Sequence[Path],
    out: Path,
    *,
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Predicted:
    """Predict images into a CSV with the same columns as `predict` of the run with --samples 0."""
    files = found_files(inputs, SUFFIXES)
    prepare_output(out, force)
    constants = model.about["constants"]

    def rows_of(pixels: Array, files: list[Path]) -> list[dict[str, Any]]:
        outputs = model.outputs(normalised_array(pixels, constants["mean"], constants["deviation"]))
        rows: list[dict[str, Any]] = [{} for _ in files]
        for n, row in enumerate(rows):
            for task in model.tasks:
                row |= _cells(task, outputs[task["name"]][n])
        return rows

    return replace(predict_table(files, out, constants, rows_of, progress), notes=[correction_note(model)])


def correction_note(model: Shipped) -> str:
    """A line that says whether intervals and probabilities are corrected."""
    if all(task["correction"] for task in model.tasks):
        return "90 % intervals and probabilities are corrected, as `calibrate` fitted them"
    return "90 % intervals and probabilities are not corrected: calibrate the run with --samples 0, then export again"


def _cells(task: dict[str, Any], output: Array) -> dict[str, str]:
    """One image's cells of one task; the names are those of the run's own table."""
    name, correction = task["name"], task["correction"]
    if task["kind"] == "Regression":
        value = (float(output[0]) - task["offset"]) * task["scale"]
        half = correction["value"] if correction else None
        ends = (f"{value - half:.6g}", f"{value + half:.6g}") if half is not None else ("", "")
        return {name: f"{value:.6g}", f"{name}_std": "0", f"{name}_low": ends[0], f"{name}_high": ends[1]}
    if task["kind"] == "Classification":
        probabilities = softmax(output)
        corrected = softmax(output / correction["value"]) if correction else probabilities
        labels = task["labels"] or [str(n) for n in range(task["classes"])]
        entropy = -float(np.sum(probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))))
        return {
            name: labels[int(output.argmax())],
            f"{name}_entropy": f"{entropy:.4g}",
            f"{name}_mutual_information": "0",
            **{f"{name}_p_{label}": f"{p:.4g}" for label, p in zip(labels, corrected, strict=True)},
        }
    if task["kind"] == "Segmentation":
        probabilities = softmax(output)
        entropy = -np.sum(probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)), axis=0)
        return {f"{name}_mean": f"{output.argmax(0).mean():.6g}", f"{name}_mean_spread": f"{entropy.mean():.4g}"}
    value = (output[0].astype(np.float64).mean() - task["offset"]) * task["scale"]
    return {f"{name}_mean": f"{value:.6g}", f"{name}_mean_spread": "0"}


def softmax(output: Array) -> Array:
    """Probabilities over the first axis, in double precision."""
    shifted = np.exp(output.astype(np.float64) - output.max(axis=0, keepdims=True))
    total: Array = shifted / shifted.sum(axis=0, keepdims=True)
    return total
