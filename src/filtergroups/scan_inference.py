"""Predictions for a user's own scans, as NIfTI volumes, by a run's network or by an exported file."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from filtergroups.answers import Answer, answer
from filtergroups.config import ScansData
from filtergroups.correction import Correction
from filtergroups.data.examples import DataError
from filtergroups.listing import Predicted, prepare_folder
from filtergroups.network import Statistics
from filtergroups.paths import real
from filtergroups.reading import problem_of
from filtergroups.shipped import Shipped
from filtergroups.tasks import Classification, ImageRegression, Prediction, Regression, Segmentation, Task
from filtergroups.volumes import predict_volume
from filtergroups.writing import write_atomically

Array = np.ndarray[Any, Any]


def predict_scans(
    predict_one: Callable[[Tensor], dict[str, Prediction]],
    answer_of: Callable[..., Answer],
    tasks: Sequence[Task],
    scans: ScansData,
    constants: dict[str, Any],
    inputs: Sequence[Path],
    out: Path,
    *,
    force: bool,
    intervals: bool,
    progress: Callable[[str, int, int], None] | None,
) -> Predicted:
    """Predict each scan by `predict_one` (preprocessed image -> predictions) and write the volumes of its answers."""
    import nibabel

    from filtergroups.data.scans import preprocess_volume, to_original_grid

    files = scan_files(inputs, scans)
    result = Predicted()
    for folder in (out / name for name in files):
        if folder.exists() and not force:
            raise DataError(f"{folder}: expected a new folder, found one; use --force to replace it")
    prepare_folder(out)
    for number, (name, file) in enumerate(files.items(), start=1):
        folder = out / name
        try:
            image, _, way_back = preprocess_volume(file, scans, constants)
        except DataError as error:
            result.problems.append(str(error))
            continue
        predictions = predict_one(image)
        for task in tasks:
            prediction = predictions[task.name]
            for suffix, values in maps_of(answer_of(task, prediction, axis=0), intervals).items():
                if values.ndim > prediction.value.ndim:  # classes in front: the last axis of a NIfTI file
                    array = np.stack([to_original_grid(one, way_back) for one in values], -1)
                else:
                    array = to_original_grid(values, way_back)
                path = folder / f"{task.name}{suffix}.nii.gz"
                made = array.astype(np.float32) if values.is_floating_point() else _label_map(array, constants)
                image_out = nibabel.Nifti1Image(made, way_back.file_affine)
                write_atomically(path, _gzipped(image_out), below=out)
                result.written.append(path)
        result.count += 1
        if progress is not None:
            progress("predicting", number, len(files))
    return result


def _label_map(classes: Array, constants: dict[str, Any]) -> Array:
    """A map of classes with the values that the training's label maps had for them."""
    values = np.asarray(constants["label_values"])
    kind = next(kind for kind in (np.uint8, np.int16, np.int32) if values.max() <= np.iinfo(kind).max)
    labels: Array = values.astype(kind)[classes.astype(np.int64)]
    return labels


def maps_of(answer: Answer, intervals: bool) -> dict[str, Tensor]:
    """What is written of an answer at every place, by the end of the file's name: the value, and how sure it is."""
    maps = {"": answer.value, "_std": answer.deviation, "_entropy": answer.entropy}
    maps["_mutual_information"] = answer.mutual_information
    if intervals:
        maps |= {"_low": answer.low, "_high": answer.high, "_probabilities": answer.probabilities}
    return {end: values for end, values in maps.items() if values is not None}


def scan_files(inputs: Sequence[Path], scans: ScansData) -> dict[str, Path]:
    """Patient -> file: of a patient's folder, a folder of those, or NIfTI files."""
    found: list[tuple[str, Path]] = []
    for path in inputs:
        if (path / scans.input).is_file():
            found.append((real(path).name, path / scans.input))
        elif os.path.isdir(path):
            inside = [folder / scans.input for folder in sorted(path.iterdir()) if (folder / scans.input).is_file()]
            found += [(file.parent.name, file) for file in inside] or [(real(path).name, path / scans.input)]
        elif path.name == scans.input:
            found.append((real(path).parent.name, path))
        else:
            found.append((path.name.removesuffix(".gz").removesuffix(".nii") or path.name, path))
    if all(map(os.path.isdir, inputs)) and not any(file.is_file() for _, file in found):
        raise DataError(
            f"expected scans named {scans.input}, found none in {', '.join(map(str, inputs))}; check the paths"
        )
    files: dict[str, Path] = {}
    for name, file in found:
        if name.strip() in ("", ".", ".."):
            raise DataError(f"{file}: expected a scan whose name can be a folder's, found '{name}'; rename it")
        if real(files.setdefault(name, file)) != real(file):
            raise DataError(
                f"expected scans of different names, found {files[name]} and {file}, which would both be written to "
                f"{name}; predict them one at a time"
            )
    return files


def _gzipped(image: Any) -> bytes:
    import gzip

    content: bytes = image.to_bytes()
    return gzip.compress(content, compresslevel=3)


def predict_scans_with_file(
    model: Shipped,
    inputs: Sequence[Path],
    out: Path,
    *,
    force: bool,
    intervals: bool,
    progress: Callable[[str, int, int], None] | None,
) -> Predicted:
    """Predict scans by an exported ONNX file: what the run's mode network would say."""
    network = ShippedNetwork(model)
    try:
        scans = ScansData.model_validate({**model.about["scans"], "root": "."})
    except ValidationError as error:
        raise DataError(f"expected an ONNX file with the settings of scans, found {problem_of(error)}") from None
    window, padding = tuple(model.about["windows"]["window"]), model.about["windows"]["padding"]
    return predict_scans(
        partial(predict_volume, network, window=window, padding=padding, samples=0), network.answer,
        network.tasks, scans, model.about["constants"], inputs, out,
        force=force, intervals=intervals, progress=progress,
    )  # fmt: skip


class ShippedNetwork:
    """An ONNX file where a network at its mode is expected."""

    def __init__(self, model: Shipped) -> None:
        self.model = model
        self.tasks = tuple(_task(entry) for entry in model.tasks)
        self.spatial_dims = len(model.about["image_shape"]) - 1
        self.corrections = {e["name"]: Correction(**e["correction"]) for e in model.tasks if e["correction"]}

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        return {name: torch.from_numpy(output) for name, output in self.model.outputs(images.numpy()).items()}

    def answer(self, task: Task, prediction: Prediction, axis: int = 1) -> Answer:
        return answer(prediction, self.corrections.get(task.name), 0, axis)

    @contextmanager
    def evaluating(self, statistics: Statistics) -> Iterator[None]:
        yield


def _task(entry: dict[str, Any]) -> Task:
    kinds = {kind.__name__: kind for kind in (Regression, Classification, Segmentation, ImageRegression)}
    kind = kinds[entry["kind"]]
    task: Task = kind(**{field.name: entry[field.name] for field in fields(kind)})
    return task
