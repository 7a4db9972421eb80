"""From files to volumes that a network takes: in order, learned on the training part, kept on disk."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filtergroups.data.array_cache import stored
from filtergroups.data.examples import DataError
from filtergroups.data.grid import Grid, read_grid, read_values, to_grid
from filtergroups.data.intensity import correct_bias, normalise, scan_landmarks, standard_landmarks
from filtergroups.data.patches import Scan
from filtergroups.data.patients import PatientFiles, class_indices


@dataclass(frozen=True)
class Preprocessing:
    """All that decides what a file becomes: the settings, and what was learned from the training part."""

    spacing: float | None
    bias_correction: bool
    landmarks: list[float] | None  # None: no histogram normalisation
    label_values: list[int] | None  # class -> value in the label maps
    label_names: list[str] | None  # class -> name

    @property
    def constants(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def before_normalisation(self) -> dict[str, Any]:
        """The settings that decide what an input is before its grey values are normalised."""
        return {"spacing": self.spacing, "bias_correction": self.bias_correction}


def preprocessing_from(constants: dict[str, Any]) -> Preprocessing:
    """The preprocessing of a trained run."""
    try:
        return Preprocessing(**constants)
    except TypeError:
        expected, found = ", ".join(Preprocessing.__dataclass_fields__), ", ".join(constants) or "nothing"
        raise DataError(f"constants: expected {expected}, found {found}; use those of a run on scans") from None


def with_landmarks(
    preprocessing: Preprocessing, inputs: Sequence[Path], folder: Path, report: Callable[[int], None]
) -> Preprocessing:
    """The same with the standard landmarks of these inputs; report is told how many are done."""
    landmarks = []
    for path in inputs:
        make = partial(_stored_landmarks, path, preprocessing, folder)
        landmarks.append(stored(folder, "landmarks", [path], preprocessing.before_normalisation, make).values)
        report(len(landmarks))
    return replace(preprocessing, landmarks=standard_landmarks(landmarks).tolist())


def preprocessed_input(path: Path, preprocessing: Preprocessing) -> NDArray[np.float32]:
    """An input as the network takes it."""
    return normalise(plain_input(path, preprocessing), preprocessing.landmarks)


def plain_input(path: Path, preprocessing: Preprocessing) -> NDArray[np.float32]:
    """An input before its grey values are normalised: what comes after depends on the training part."""
    grid = read_grid(path, preprocessing.spacing)
    values = read_values(path)
    refuse_flat(values, path)
    if preprocessing.bias_correction:
        try:
            values = correct_bias(values, grid.canonical_sizes.tolist())
        except RuntimeError as error:  # of SimpleITK, for scans of a single slice
            reason = str(error).strip().splitlines()[-1]
            raise DataError(
                f"{path}: expected a scan whose bias N4 can correct, found one of shape {values.shape} ({reason}); "
                "remove the patient, or set data.bias_correction to false"
            ) from None
    return to_grid(values, grid)


def preprocessed_target(path: Path, valid: Path | None, grid: Grid) -> NDArray[np.float32]:
    """The image to synthesise, NaN where it is not valid: interpolation must not mix in what was not measured."""
    values = read_values(path, finite=False)
    if valid is not None:
        values = np.where(read_values(valid) > 0.5, values, np.float32(np.nan))
    return to_grid(values, grid)


def preprocessed_labels(path: Path, label_values: Sequence[int], grid: Grid) -> NDArray[np.int16]:
    """A label map as classes, −1 where there is no label."""
    return to_grid(class_indices(read_values(path), label_values, path), grid, nearest=True)


def stored_scan(patient: PatientFiles, preprocessing: Preprocessing, folder: Path) -> Scan:
    """A patient's volumes in the cache, made where they are not there yet."""
    grid = read_grid(patient.input, preprocessing.spacing)
    # The other files are resampled as the input is, whatever rounding their own headers went through.
    space = {"shape": grid.canonical_shape, "steps": grid.steps.tolist()}
    normalisation = {**preprocessing.before_normalisation, "landmarks": preprocessing.landmarks}
    image = stored(
        folder, "image", [patient.input], normalisation,
        lambda: normalise(_stored_input(patient.input, preprocessing, folder), preprocessing.landmarks),
    )  # fmt: skip
    target = labels = None
    if patient.target is not None:
        sources = [patient.target] if patient.valid is None else [patient.target, patient.valid]
        make = partial(preprocessed_target, patient.target, patient.valid, grid)
        target = stored(folder, "target", sources, space, make)
    if patient.labels is not None:
        values = preprocessing.label_values or []
        make_labels = partial(preprocessed_labels, patient.labels, values, grid)
        labels = stored(folder, "labels", [patient.labels], {**space, "values": values}, make_labels)
    return Scan(patient.name, image, target, labels, grid.affine)


def _stored_input(path: Path, preprocessing: Preprocessing, folder: Path) -> NDArray[np.float32]:
    make = partial(plain_input, path, preprocessing)
    return np.ascontiguousarray(stored(folder, "input", [path], preprocessing.before_normalisation, make).values)


def _stored_landmarks(path: Path, preprocessing: Preprocessing, folder: Path) -> NDArray[np.float64]:
    return scan_landmarks(_stored_input(path, preprocessing, folder))


def refuse_flat(values: NDArray[np.float32], path: Path) -> None:
    """Refuse an input without contrast, which no normalisation can mend."""
    if values.min() < values.max():
        landmarks = scan_landmarks(values)
        if landmarks[0] < landmarks[-1]:
            return
    raise DataError(f"{path}: expected an image, found one grey value in (nearly) all of it; remove the patient")
