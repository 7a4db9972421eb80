"""A pelvis phantom: T2-weighted MR, CT and organ labels of men who do not exist, so that nothing need be downloaded."""

import gzip
import json
import reprlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]  # scipy has no types

from filtergroups.data.examples import DataError
from filtergroups.data.pelvis.distances import space_of
from filtergroups.data.pelvis.man import draw_man
from filtergroups.data.pelvis.painting import BLADDER, LEFT_FEMUR_HEAD, PROSTATE, RECTUM, RIGHT_FEMUR_HEAD, paint
from filtergroups.data.pelvis.shapes import Array, Field
from filtergroups.reading import read_json
from filtergroups.writing import folder_aside

LABEL_NAMES = {
    0: "background",
    LEFT_FEMUR_HEAD: "left femur head",
    RIGHT_FEMUR_HEAD: "right femur head",
    PROSTATE: "prostate",
    BLADDER: "bladder",
    RECTUM: "rectum",
}
SHAPE = (288, 288, 62)
SPACING = (1.46, 1.46, 1.46)  # mm
VERSION = 1  # counts up when the same settings give other images
WORKERS = 2


@dataclass(frozen=True)
class Phantom:
    """One patient's scans: x (left to right) × y (back to front) × z (foot to head).

    The affine is RAS+, as NIfTI has it: world x grows towards the patient's right, so his left femur head is at x < 0.
    """

    mr: NDArray[np.float32]  # arbitrary units
    ct: NDArray[np.int16]  # HU
    labels: NDArray[np.uint8]
    affine: NDArray[np.float64]


def generate(
    seed: int,
    patient: int,
    shape: tuple[int, int, int] = SHAPE,
    spacing: tuple[float, float, float] = SPACING,
) -> Phantom:
    """One patient; the same man for the same seed and number, whatever the voxels.

    The field of view is shape × spacing mm and lies around the prostate's level.
    """
    if seed < 0:
        raise DataError(f"seed of the phantom: expected 0 or more, found {seed}; choose another")
    rng = np.random.default_rng([seed, patient])
    man = draw_man(rng)
    x, y, z = (
        ((np.arange(count) - (count - 1) / 2) * size).astype(np.float32)
        for count, size in zip(shape, spacing, strict=True)
    )
    # Nothing but air lies outside this box, so nothing is computed there.
    box = (*(slice(*np.searchsorted(axis, ends)) for axis, ends in zip((x, y), man.sides(), strict=True)), slice(None))
    signal, hu = np.zeros(shape, np.float32), np.full(shape, -1000, np.float32)
    labels = np.zeros(shape, np.uint8)
    signal[box], hu[box], labels[box] = paint(man, space_of(man, (x[box[0]], y[box[1]], z), spacing))
    # What depends on the number of voxels is drawn last: the man must not change with it.
    scale = float(800 * np.exp(0.5 * rng.standard_normal()))
    # Whole numbers, as scanners store them: files a third of the size.
    mr = np.rint(scale * rician(bias_field(rng, (x, y, z)) * blurred(signal), 0.009, rng))
    ct = np.clip(np.rint(blurred(hu) + ct_noise(rng, shape)), -1024, 3071).astype(np.int16)
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = [-(count - 1) / 2 * size for count, size in zip(shape, spacing, strict=True)]
    return Phantom(mr.astype(np.float32, copy=False), ct, labels, affine)


def bias_field(rng: np.random.Generator, axes: tuple[Array, Array, Array]) -> Array:
    """How sensitive the coil is: smooth, from 0.9 to 1.1."""
    field = Field.draw(rng, (120, 120, 120)).on(axes)
    low, high = field.min(), field.max()
    bias: Array = 0.9 + 0.2 * (field - low) / max(high - low, 1e-6)
    return bias


def blurred(image: Array) -> Array:
    """Partial volume: a voxel sees a little of its neighbours."""
    mixed: Array = gaussian_filter(image, 0.45, truncate=3.0)
    return mixed


def rician(signal: Array, sigma: float, rng: np.random.Generator) -> Array:
    """Magnitude of a complex signal with Gaussian noise in both channels."""
    real = signal + sigma * rng.standard_normal(signal.shape, np.float32)
    magnitude: Array = np.hypot(real, sigma * rng.standard_normal(signal.shape, np.float32))
    return magnitude


def ct_noise(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    noise: Array = 28 * gaussian_filter(rng.standard_normal(shape, np.float32), 0.6, truncate=2.0)
    return noise


def write_phantom(
    folder: Path,
    patients: int = 15,
    seed: int = 0,
    *,
    shape: tuple[int, int, int] = SHAPE,
    spacing: tuple[float, float, float] = SPACING,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a phantom data set: a folder a patient, split.csv, labels.json and the settings in phantom.json.

    A folder with the same settings is kept as it is; progress is told (patients done, patients).
    """
    folder = Path(folder)
    settings = _settings(patients, seed, shape, spacing)
    if _is_there(folder, settings):
        return folder
    try:
        with folder_aside(folder) as unfinished:
            _fill(unfinished, patients, seed, shape, spacing, progress)
            _write_json(unfinished / "phantom.json", settings)
            if folder.exists():
                folder.rmdir()  # empty, or it would have been refused
            unfinished.rename(folder)
    except OSError as error:
        # Another process may have finished the same phantom meanwhile.
        if not _is_there(folder, settings):
            raise DataError(f"{folder}: expected a folder to write the phantom to, found {error.strerror}") from None
    return folder


def _fill(
    folder: Path,
    patients: int,
    seed: int,
    shape: tuple[int, int, int],
    spacing: tuple[float, float, float],
    progress: Callable[[int, int], None] | None,
) -> None:
    def write(patient: int) -> None:
        _write_patient(folder / name_of(patient), generate(seed, patient, shape, spacing))

    # Threads: numpy, scipy and zlib work outside the interpreter's lock, and a caller needs no __main__ guard.
    with ThreadPoolExecutor(WORKERS) as pool:
        for done, _ in enumerate(pool.map(write, range(patients)), start=1):
            if progress is not None:
                progress(done, patients)
    rows = "".join(f"{name_of(patient)},{part}\n" for patient, part in enumerate(split(patients)))
    (folder / "split.csv").write_text("patient,split\n" + rows, encoding="utf-8")
    _write_json(folder / "labels.json", {str(value): name for value, name in LABEL_NAMES.items()})


def has_phantom(
    folder: Path, patients: int, seed: int, *, shape: tuple[int, int, int], spacing: tuple[float, float, float]
) -> bool:
    """Is the phantom with these settings in the folder? Another one, or other files, are refused."""
    return _is_there(folder, _settings(patients, seed, shape, spacing))


def _settings(
    patients: int, seed: int, shape: tuple[int, int, int], spacing: tuple[float, float, float]
) -> dict[str, Any]:
    return {"version": VERSION, "patients": patients, "seed": seed, "shape": [*shape], "spacing": [*spacing]}


def name_of(patient: int) -> str:
    return f"patient_{patient:03d}"


def split(patients: int) -> list[str]:
    """The first two thirds train, half of the rest validate, the others test; from three on none is empty."""
    train = max(1, min(2 * patients // 3, patients - 2))
    validation = max(1, (patients - train) // 2)
    return (["train"] * train + ["validation"] * validation + ["test"] * patients)[:patients]


def _is_there(folder: Path, settings: dict[str, Any]) -> bool:
    """Is this very phantom in the folder? Anything else in it is not to be overwritten."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = read_json(folder / "phantom.json", "the settings of a phantom", DataError, "choose another folder")
    except (OSError, DataError):
        found = None
    if found == settings:
        return True
    other = "other files" if not isinstance(found, dict) else f"one with {_differences(found, settings)}"
    raise DataError(
        f"{folder}: expected no folder, an empty one or the phantom with these settings, found {other}; "
        "choose another folder or delete this one"
    )


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    differing = (key for key in wanted if found.get(key) != wanted[key])
    named = ", ".join(f"{key} {reprlib.repr(found.get(key))} instead of {wanted[key]}" for key in differing)
    return named or "unknown settings"


def _write_patient(folder: Path, phantom: Phantom) -> None:
    folder.mkdir()
    for name, array in (("mr", phantom.mr), ("ct", phantom.ct), ("labels", phantom.labels)):
        image = nib.Nifti1Image(array, phantom.affine)
        image.header.set_xyzt_units("mm")
        # Level 1: noise hardly compresses, and time matters more; no time stamp: the same phantom, the same bytes.
        (folder / f"{name}.nii.gz").write_bytes(gzip.compress(image.to_bytes(), compresslevel=1, mtime=0))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
