"""Scans of patients as NIfTI: one input, an image to synthesise, a label map, or one of the latter two.

An input is read, turned to RAS, freed of its bias field (option), resampled to cubes (option), and its grey values are
normalised: histogram (Nyúl, option), then zero mean and unit variance over the foreground, which is what lies above the
scan's mean. Targets and label maps are only turned and resampled.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filtergroups.config import ScansData
from filtergroups.data.array_cache import StoredArray
from filtergroups.data.cache_folder import cache_folder
from filtergroups.data.examples import SELECTION, SPLITS, Data, DataError, Examples, Volume, Volumes
from filtergroups.data.findings import Findings
from filtergroups.data.grid import Grid, read_grid, same_place, to_original_grid
from filtergroups.data.images import Progress
from filtergroups.data.intensity import import_simpleitk
from filtergroups.data.patches import PatchExamples, Scan
from filtergroups.data.patients import (
    PatientFiles,
    label_table,
    missing_files,
    patient_files,
    patients_by_part,
)
from filtergroups.data.preprocessing import (
    Preprocessing,
    preprocessed_input,
    preprocessing_from,
    stored_scan,
    with_landmarks,
)
from filtergroups.tasks import ImageRegression, Segmentation, Task

__all__ = ["PatchExamples", "load_scans", "preprocess_volume", "scan_tasks", "to_original_grid"]


def load_scans(
    config: ScansData,
    *,
    seed: int = 0,
    constants: dict[str, Any] | None = None,
    parts: Sequence[str] = SPLITS,
    make: bool = True,
    progress: Progress | None = None,
) -> Data:
    """Read, check and preprocess the scans of some parts.

    With the constants of a run nothing is learned, and nothing is written beside the scans (nor with make=False); the
    settings of preprocessing are then the run's, whatever the config says. A part without patients is left out.
    """
    check_settings(config)
    aside = constants is None or bool({"train", SELECTION} & set(parts))
    patients = {
        part: [patient_files(config, name) for name in names]
        for part, names in patients_by_part(config, seed, keep=make and constants is None, aside=aside).items()
    }
    training = patients["train"] if constants is None else []
    wanted = {part: patients[part] for part in (*SPLITS, SELECTION) if part in parts and patients[part]}
    findings = Findings()
    for patient in {patient.name: patient for part in (training, *wanted.values()) for patient in part}.values():
        for problem in misfits(patient):
            findings.problem(str(problem))
    findings.refuse()
    folder = cache_folder(config.cache) / "scans"
    learn = partial(_learned, config, training, folder, progress)
    preprocessing = learn() if constants is None else preprocessing_from(constants)
    if config.labels is not None and preprocessing.label_values is None:
        raise DataError("constants: expected label values, found none; set data.labels to none, as in the run")
    scans: dict[str, list[Scan]] = {part: [] for part in wanted}
    count = sum(map(len, wanted.values()))
    for part, members in wanted.items():
        for patient in members:
            scans[part].append(stored_scan(patient, preprocessing, folder))
            _report(progress, "preprocessing scans", sum(map(len, scans.values())), count)
    names = {config.labels_task: list(preprocessing.label_names or [])} if config.labels is not None else {}
    return Data(
        tasks=tasks_of(config, preprocessing),
        channels=1,
        spatial_dims=config.spatial_dims,
        parts={part: _patches(config, members) for part, members in scans.items()},
        constants=preprocessing.constants,
        volumes={part: ScanVolumes(members, config.target_task, config.labels_task) for part, members in scans.items()},
        names=names,
    )


def preprocess_volume(path: Path, config: ScansData, constants: dict[str, Any]) -> tuple[Tensor, NDArray[Any], Grid]:
    """An input scan of anyone (or the folder that holds it) as the network takes it.

    Returns 1 × x × y × z, the affine of that grid, and the grid itself, with which `to_original_grid` brings
    predictions back to the file's voxels. Nothing of it is kept on disk.
    """
    preprocessing = preprocessing_from(constants)
    path = path / config.input if path.is_dir() else path
    grid = read_grid(path, preprocessing.spacing)
    image = preprocessed_input(path, preprocessing)
    return torch.from_numpy(np.ascontiguousarray(image)).unsqueeze(0), grid.affine, grid


class ScanVolumes(Volumes):
    """The whole scans of one part."""

    def __init__(self, scans: Sequence[Scan], target_task: str, labels_task: str) -> None:
        self.scans, self.target_task, self.labels_task = list(scans), target_task, labels_task

    def __len__(self) -> int:
        return len(self.scans)

    def __iter__(self) -> Iterator[Volume]:
        for scan in self.scans:
            labels, masks = {}, {}
            if scan.target is not None:
                labels[self.target_task] = _tensor(scan.target)
                masks[self.target_task] = ~labels[self.target_task].isnan()
            if scan.labels is not None:
                labels[self.labels_task] = _tensor(scan.labels).long()
            yield Volume(scan.name, _tensor(scan.image).unsqueeze(0), labels, masks, scan.affine)


def _tensor(array: StoredArray) -> Tensor:
    return torch.from_numpy(np.array(array.values, order="C"))


def scan_tasks(config: ScansData, constants: dict[str, Any]) -> tuple[Task, ...]:
    """The tasks of a run on scans, without the scans."""
    return tasks_of(config, preprocessing_from(constants))


def tasks_of(config: ScansData, preprocessing: Preprocessing) -> tuple[Task, ...]:
    """The tasks that a config has on scans."""
    tasks: list[Task] = []
    if config.target is not None:
        scale, offset, unit = config.target_scale, config.target_offset, config.target_unit
        tasks.append(ImageRegression(config.target_task, scale=scale, offset=offset, unit=unit))
    if config.labels is not None:
        tasks.append(Segmentation(config.labels_task, classes=len(preprocessing.label_values or [])))
    return tuple(tasks)


def _patches(config: ScansData, scans: Sequence[Scan]) -> Examples:
    return PatchExamples(
        scans,
        spatial_dims=config.spatial_dims,
        patch=config.patch,
        patch_depth=config.patch_depth,
        padding=config.padding,
        patches_per_patient=config.patches_per_patient,
        zoom=config.zoom,
        rotation=config.rotation,
        target_task=config.target_task,
        labels_task=config.labels_task,
    )


def _learned(
    config: ScansData, training: Sequence[PatientFiles], folder: Path, progress: Progress | None
) -> Preprocessing:
    """The settings of the config, and the landmarks of the training part."""
    table = label_table(config) if config.labels is not None else None
    values, names = (None, None) if table is None else (list(table), list(table.values()))
    preprocessing = Preprocessing(config.spacing, config.bias_correction, None, values, names)
    if not config.histogram:
        return preprocessing
    refuse_no_training(config, training)
    inputs = [patient.input for patient in training]
    return with_landmarks(
        preprocessing, inputs, folder, lambda done: _report(progress, "learning the histogram", done, len(inputs))
    )


def refuse_no_training(config: ScansData, training: Sequence[Any]) -> None:
    """Without training patients there is no histogram to learn."""
    if not training:
        raise DataError(
            f"{config.root}: expected training patients to learn the histogram from, found none; "
            "add some to the split, or set data.histogram to false"
        )


def misfits(patient: PatientFiles) -> Iterator[DataError]:
    """What is wrong with a patient's files as far as headers tell."""
    yield from map(DataError, missing_files(patient))
    expected = None
    for path in patient.all:
        if not path.is_file():
            continue
        try:
            grid = read_grid(path)
            if path == patient.input:
                expected = grid
            elif expected is not None:
                same_place(path, grid, patient.input, expected)
        except DataError as error:
            yield error


def check_settings(config: ScansData) -> None:
    """Refuse settings that do not go together."""
    if config.target is None and config.labels is None:
        raise DataError("data.target, data.labels: expected at least one file name, found none; there is no task")
    if config.target is not None and config.labels is not None and config.target_task == config.labels_task:
        raise DataError(f"data.labels_task: expected a name of its own, found '{config.labels_task}' for both tasks")
    if config.target is None and (config.valid is not None or config.bone_above is not None):
        key = "valid" if config.valid is not None else "bone_above"
        raise DataError(f"data.{key}: expected a data.target that it is about, found none; remove it")
    if config.bias_correction:
        import_simpleitk()


def _report(progress: Progress | None, what: str, done: int, of: int) -> None:
    if progress is not None:
        progress(what, done, of)
