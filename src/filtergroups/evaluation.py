"""How good a trained network is: on any part of its data, or on data that it never saw."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from filtergroups.calibration import CalibrationMeter, batch_of_one
from filtergroups.config import Config, FacesData, PhantomData, ScansData, TableData
from filtergroups.data.examples import SPLITS, Data, DataError, Examples, Volumes
from filtergroups.data.load import load_data
from filtergroups.data.table import read_table
from filtergroups.measuring import Meter, measure_plain
from filtergroups.paths import AnyPath, as_path, optional_path, real
from filtergroups.predictor import PASSES, Norms, Predictor, predictor_of
from filtergroups.restored import open_run
from filtergroups.run import RunError
from filtergroups.volumes import measure_volume, over_patients, plain_predictions

Step = Callable[[str, int, int], None]


def evaluate(
    run: AnyPath,
    *,
    data: AnyPath | None = None,
    split_file: AnyPath | None = None,
    table: AnyPath | None = None,
    split: str = "test",
    samples: int = PASSES,
    by: str | None = None,
    checkpoint: str = "best",
    statistics: Norms | None = None,
    progress: Step | None = None,
) -> dict[str, Any]:
    """Metrics of a run on a part of its data, or of a folder of the same kind that it never saw.

    table: other labels for a run of a table: all its rows, unless a split_file or the run's split column parts them.
    samples: Monte Carlo passes; 0: the mode network. by: a column to report results by. statistics: of the norms; None:
    recalibrated over the training data, as `predict` has them; `batch` is the paper's way. The result is also kept in
    the run's results.json; its calibration is as predicted and, after `calibrate`, as corrected.
    """
    data, split_file, table = (optional_path(given) for given in (data, split_file, table))
    restored = open_run(as_path(run), checkpoint)
    config = restored.config if table is None else with_table(restored.config, table, split)
    config = moved(config, data, split_file)
    if data is not None and isinstance(config.data, FacesData):  # a share is one of the run's own training part
        config = config.model_copy(update={"data": config.data.model_copy(update={"fraction": 1.0, "labelled": {}})})
    found = load_data(config, constants=restored.progress.constants, parts=(split,), progress=progress)
    if split not in found.parts:
        raise DataError(f"expected examples in the part '{split}', found none; use --split or --split-file")
    predictor = predictor_of(restored, samples, norms=statistics, progress=progress)
    elsewhere = table or data
    result = measured(predictor, found, split, by=by, elsewhere=elsewhere, progress=progress)
    try:
        restored.run.save_result(result)
    except OSError as error:
        raise RunError(f"{restored.run.path}: could not write results.json: {error.strerror}") from None
    return result


def measured(
    predictor: Predictor,
    data: Data,
    split: str,
    *,
    by: str | None = None,
    elsewhere: Path | None = None,
    progress: Step | None = None,
) -> dict[str, Any]:
    """Metrics of what a run predicts of a part, with their calibration; elsewhere: the place of other data."""
    restored = predictor.restored
    meter = CalibrationMeter(predictor.tasks, predictor.corrections, has_spread=predictor.has_spread)
    if split in data.volumes:
        if by is not None:
            raise DataError(f"--by: a column is for images, found {by!r} for scans; leave it out: they have regions")
        result = _of_volumes(predictor, data.volumes[split], meter, progress)
    else:
        result = _of_images(predictor, data.parts[split], by, meter, progress)
    notes = list(predictor.notes)
    if predictor.stale or predictor.lacks_intervals:
        notes.append(predictor.certainty)
    if predictor.corrections and split == restored.config.chosen_by and elsewhere is None:
        notes.append("corrections were fitted on this part: what is called corrected here is not held-out")
    return {
        "split": split,
        "samples": predictor.samples,
        "checkpoint": restored.checkpoint,
        "step": restored.progress.step,
        "data": None if elsewhere is None else str(elsewhere),
        "statistics": predictor.norms,
        **result,
        "calibration": meter.results(),
        "notes": notes,
    }


def moved(config: Config, root: Path | None, split_file: Path | None) -> Config:
    """The same config for data elsewhere."""
    update: dict[str, Any] = {}
    if root is not None:
        if not root.is_dir():
            raise DataError(
                f"{root}: expected a folder, found {'a file' if root.exists() else 'nothing'}; check --data"
            )
        update["root"] = real(root)
        # A table names the same images wherever they lie; other faces or scans have another split.
        if isinstance(config.data, FacesData | ScansData) and split_file is None:
            update["split_file"] = None
    if split_file is not None:
        if isinstance(config.data, PhantomData):
            raise DataError("the phantom has its own split; leave --split-file out")
        if not split_file.is_file():
            raise DataError(f"{split_file}: expected a split file, found none; check --split-file")
        update["split_file"] = real(split_file)
        if isinstance(config.data, TableData):
            update |= {"split_column": None, "part": None}
    return config.model_copy(update={"data": config.data.model_copy(update=update)})


def with_table(config: Config, table: Path, part: str) -> Config:
    """The same config for another table of labels; where nothing splits it, all its rows are of one part."""
    if not isinstance(config.data, TableData):
        raise DataError(f"--table is for a run of a table, found one of {config.data.kind}; use --data")
    if part not in SPLITS:
        raise DataError(f"--table: the part to evaluate is one of {list(SPLITS)}, found {part!r}; set --split")
    update: dict[str, Any] = {"table": real(table), "split_file": None, "group_column": None}
    if config.data.split_column not in read_table(table)[0]:
        update |= {"split_column": None, "part": part}
    return config.model_copy(update={"data": config.data.model_copy(update=update)})


def _of_images(
    predictor: Predictor, part: Examples, by: str | None, calibration: CalibrationMeter, progress: Step | None
) -> dict[str, Any]:
    tasks, restored = predictor.tasks, predictor.restored
    meter = Meter(tasks)
    groups = part.subgroup(by) if by else []
    meters = {group: Meter(tasks) for group in sorted(set(groups))}
    done = 0
    for indices, batch, predictions in predictor.examples(part):
        meter.add(predictions, batch)
        calibration.add(predictions, batch.labels, batch.masks)
        for group in {groups[index] for index in indices} if by else ():
            chosen = torch.tensor([n for n, index in enumerate(indices) if groups[index] == group])
            meters[group].add({k: p.chosen(chosen) for k, p in predictions.items()}, batch.chosen(chosen))
        done += len(indices)
        if progress is not None:
            progress("evaluating", done, len(part))
    plain = measure_plain(part, tasks, restored.progress.plain, batch_size=restored.config.training.batch_size)
    result: dict[str, Any] = {
        "examples": len(part),
        "tasks": meter.results(),
        "standard_errors": meter.standard_errors(),
        "plain": plain,
    }
    if by:
        result["by"] = {by: {group: of.results() for group, of in meters.items()}}
    return result


def _of_volumes(
    predictor: Predictor, volumes: Volumes, calibration: CalibrationMeter, progress: Step | None
) -> dict[str, Any]:
    restored, tasks = predictor.restored, predictor.tasks
    assert restored.scans is not None
    bone = restored.scans.bone_above
    patients, plain = [], []
    for number, volume in enumerate(volumes, start=1):
        predictions = predictor.volume(volume.image)
        patients.append(measure_volume(tasks, predictions, volume, restored.names, bone))
        calibration.add(*batch_of_one(predictions, volume))
        answers = plain_predictions(tasks, volume, restored.progress.plain)
        plain.append(measure_volume(tasks, answers, volume, restored.names, bone))
        if progress is not None:
            progress("evaluating", number, len(volumes))
    return {"examples": len(patients), "tasks": over_patients(patients), "plain": over_patients(plain)}
