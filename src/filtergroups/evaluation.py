"""How good a trained network is: on any part of its data, or on data that it never saw."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from filtergroups.calibration import CalibrationMeter, batch_of_one
from filtergroups.config import Config, FacesData, PhantomData, ScansData, TableData
from filtergroups.correction import load_corrections
from filtergroups.data.examples import SPLITS, DataError, Examples, Volumes
from filtergroups.data.load import load_data
from filtergroups.data.table import read_table
from filtergroups.measuring import Meter, measure_plain, predicted
from filtergroups.network import Statistics
from filtergroups.paths import AnyPath, as_path, optional_path
from filtergroups.restored import Restored, open_run
from filtergroups.run import RunError
from filtergroups.statistics import Kind, use_recalibrated
from filtergroups.volumes import measure_volume, over_patients, plain_predictions, predict_volume

Step = Callable[[str, int, int], None]
Norms = Literal["batch", "running", "recalibrated"]
NORMS = ("batch", "running", "recalibrated")


def evaluate(
    run: AnyPath,
    *,
    data: AnyPath | None = None,
    split_file: AnyPath | None = None,
    table: AnyPath | None = None,
    split: str = "test",
    samples: int = 50,
    by: str | None = None,
    checkpoint: str = "best",
    statistics: Norms | None = None,
    progress: Step | None = None,
) -> dict[str, Any]:
    """Metrics of a run on a part of its data, or of a folder of the same kind that it never saw.

    table: other labels for a run of a table: all its rows, unless a split_file or the run's split column parts them.
    samples: Monte Carlo passes; 0: the mode network. by: a column to report results by. statistics: of the norms; None:
    recalibrated over the training data, and those of the batch for sampled passes over images (each pass has features
    of its own gates, which statistics of all gates fit badly). The result is also kept in the run's results.json; its
    calibration is as predicted and, after `calibrate`, as corrected.
    """
    if statistics not in (None, *NORMS):
        raise ValueError(f"statistics is one of {list(NORMS)}, found {statistics!r}; choose one")
    data, split_file, table = (optional_path(given) for given in (data, split_file, table))
    restored = open_run(as_path(run), checkpoint)
    config = restored.config if table is None else with_table(restored.config, table, split)
    config = moved(config, data, split_file)
    found = load_data(config, constants=restored.progress.constants, parts=(split,), progress=progress)
    samples = restored.passes(samples)
    if split not in found.parts:
        raise DataError(f"expected examples in the part '{split}', found none; use --split or --split-file")
    statistics = statistics or ("batch" if samples and split not in found.volumes else "recalibrated")
    notes = []
    if statistics == "recalibrated" and (warning := use_recalibrated(restored, samples, progress)):
        statistics = "running"
        notes.append(warning)
    norms: Statistics = "batch" if statistics == "batch" else "running"
    kind: Kind = "sampled" if samples else "mode"
    corrections, stale = load_corrections(restored.run, kind, restored.progress.step)
    notes += [stale] if stale else []
    if corrections and statistics == "batch":
        notes.append("corrections were fitted with recalibrated norms, as `predict` has them, not those of the batch")
    meter = CalibrationMeter(restored.tasks, corrections)
    if split in found.volumes:
        if by is not None:
            raise DataError(f"--by: a column is for images, found {by!r} for scans; leave it out: they have regions")
        result = _of_volumes(restored, found.volumes[split], samples, norms, meter, progress)
    else:
        result = _of_images(restored, found.parts[split], samples, norms, by, meter, progress)
    result = {
        "split": split,
        "samples": samples,
        "checkpoint": checkpoint,
        "data": str(table or data) if table or data else None,
        "statistics": statistics,
        **result,
        "calibration": meter.results(),
        "notes": notes,
    }
    try:
        restored.run.save_result(result)
    except OSError as error:
        raise RunError(f"{restored.run.path}: could not write results.json: {error.strerror}") from None
    return result


def moved(config: Config, root: Path | None, split_file: Path | None) -> Config:
    """The same config for data elsewhere."""
    update: dict[str, Any] = {}
    if root is not None:
        if not root.is_dir():
            raise DataError(
                f"{root}: expected a folder, found {'a file' if root.exists() else 'nothing'}; check --data"
            )
        update["root"] = root.resolve()
        # A table names the same images wherever they lie; other faces or scans have another split.
        if isinstance(config.data, FacesData | ScansData) and split_file is None:
            update["split_file"] = None
    if split_file is not None:
        if isinstance(config.data, PhantomData):
            raise DataError("the phantom has its own split; leave --split-file out")
        if not split_file.is_file():
            raise DataError(f"{split_file}: expected a split file, found none; check --split-file")
        update["split_file"] = split_file.resolve()
        if isinstance(config.data, TableData):
            update |= {"split_column": None, "part": None}
    return config.model_copy(update={"data": config.data.model_copy(update=update)})


def with_table(config: Config, table: Path, part: str) -> Config:
    """The same config for another table of labels; where nothing splits it, all its rows are of one part."""
    if not isinstance(config.data, TableData):
        raise DataError(f"--table is for a run of a table, found one of {config.data.kind}; use --data")
    if part not in SPLITS:
        raise DataError(f"--table: the part to evaluate is one of {list(SPLITS)}, found {part!r}; set --split")
    update: dict[str, Any] = {"table": table.resolve(), "split_file": None, "group_column": None}
    if config.data.split_column not in read_table(table)[0]:
        update |= {"split_column": None, "part": part}
    return config.model_copy(update={"data": config.data.model_copy(update=update)})


def _of_images(
    restored: Restored,
    part: Examples,
    samples: int,
    statistics: Statistics,
    by: str | None,
    calibration: CalibrationMeter,
    progress: Step | None,
) -> dict[str, Any]:
    size, tasks = restored.config.training.batch_size, restored.tasks
    meter = Meter(tasks)
    groups = part.subgroup(by) if by else []
    meters = {group: Meter(tasks) for group in sorted(set(groups))}
    done = 0
    for indices, batch, predictions in predicted(
        restored.network, part, batch_size=size, samples=samples, seed=restored.config.seed,
        temperature=restored.temperature, statistics=statistics,
    ):  # fmt: skip
        meter.add(predictions, batch)
        calibration.add(predictions, batch.labels, batch.masks)
        for group in {groups[index] for index in indices} if by else ():
            chosen = torch.tensor([n for n, index in enumerate(indices) if groups[index] == group])
            meters[group].add({k: p.chosen(chosen) for k, p in predictions.items()}, batch.chosen(chosen))
        done += len(indices)
        if progress is not None:
            progress("evaluating", done, len(part))
    plain = measure_plain(part, tasks, restored.progress.plain, batch_size=size)
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
    restored: Restored,
    volumes: Volumes,
    samples: int,
    statistics: Statistics,
    calibration: CalibrationMeter,
    progress: Step | None,
) -> dict[str, Any]:
    assert restored.scans is not None
    tasks, bone = restored.tasks, restored.scans.bone_above
    patients, plain = [], []
    for number, volume in enumerate(volumes, start=1):
        predictions = predict_volume(
            restored.network, volume.image, **restored.windows, samples=samples, seed=restored.config.seed,
            temperature=restored.temperature, statistics=statistics,
        )  # fmt: skip
        patients.append(measure_volume(tasks, predictions, volume, restored.names, bone))
        calibration.add(*batch_of_one(predictions, volume))
        answers = plain_predictions(tasks, volume, restored.progress.plain)
        plain.append(measure_volume(tasks, answers, volume, restored.names, bone))
        if progress is not None:
            progress("evaluating", number, len(volumes))
    return {"examples": len(patients), "tasks": over_patients(patients), "plain": over_patients(plain)}
