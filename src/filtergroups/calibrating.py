"""Fit the one number a task that makes a run's uncertainty honest, on the part that chose its checkpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from filtergroups.calibration import MOST_VOXELS, CalibrationMeter, Labelled, OfBatch, batch_of_one
from filtergroups.correction import (
    BOUNDS,
    Correction,
    fit_interval,
    fit_temperature,
    negative_log_likelihood,
    save_corrections,
    tempered,
)
from filtergroups.data.examples import Data, DataError
from filtergroups.data.load import load_data
from filtergroups.paths import AnyPath, as_path
from filtergroups.predictor import PASSES, Predictor, predictor_of
from filtergroups.restored import open_run
from filtergroups.statistics import Kind, Step

MOST_VALUES = 2_000_000  # kept in all for fitting


def calibrate(
    run: AnyPath, *, samples: int = PASSES, checkpoint: str = "best", progress: Step | None = None
) -> dict[str, Any]:
    """Fit a correction for every task on the part that chose the checkpoint and keep it in the run's calibration.json.

    samples: Monte Carlo passes; 0: the mode network, which has corrections of its own. `predict` and `evaluate` use
    them. The figures in the answer are of the part that was fitted to: `evaluate` gives held-out ones.
    """
    predictor = predictor_of(open_run(as_path(run), checkpoint), samples, progress=progress)
    restored, samples = predictor.restored, predictor.samples
    kind: Kind = "sampled" if samples else "mode"
    part = restored.config.chosen_by
    data = load_data(restored.config, constants=restored.progress.constants, parts=(part,), progress=progress)
    collected = _collected(predictor, data, progress)
    corrections: dict[str, Correction] = {}
    notes = list(predictor.warnings)
    for task in restored.tasks:
        try:
            corrections[task.name] = _fitted(collected[task.name])
        except ValueError as problem:
            notes.append(f"task '{task.name}' is not corrected: {problem} in the {part} part")
    if not corrections:
        raise DataError(f"nothing to calibrate: {notes[-1]}; enlarge that part and try again")
    save_corrections(restored.run, kind, restored.progress.step, corrections)
    for name, correction in corrections.items():
        bound = f"task '{name}': the temperature is at its bound, as"
        if correction.kind == "temperature" and correction.value < 1.001 * BOUNDS[0]:
            notes.append(f"{bound} every example, or nearly every one, was predicted right")
        if correction.kind == "temperature" and correction.value > BOUNDS[1] / 1.001:
            notes.append(f"{bound} equal probabilities of all classes do better")
    return {
        "kind": kind, "samples": samples, "checkpoint": checkpoint, "step": restored.progress.step, "part": part,
        "notes": notes,
        "tasks": {name: asdict(correction) for name, correction in corrections.items()},
        "validation": _before_and_after(predictor, collected, corrections),
    }  # fmt: skip


def _collected(predictor: Predictor, data: Data, progress: Step | None) -> dict[str, Labelled]:
    found: dict[str, list[Labelled]] = {task.name: [] for task in predictor.tasks}
    calls, of_part = _predictions(predictor, data)
    most = min(MOST_VOXELS, max(MOST_VALUES // calls, 1))
    for number, (predictions, labels, masks) in enumerate(of_part, start=1):
        for task in predictor.tasks:
            name = task.name
            found[name].append(Labelled.of(task, predictions[name], labels[name], masks.get(name), most, number))
        if progress is not None:
            progress("predicting the part that chose the checkpoint", number, calls)
    return {name: Labelled.joined(parts) for name, parts in found.items()}


def _predictions(predictor: Predictor, data: Data) -> tuple[int, Iterator[OfBatch]]:
    """How many batches (or patients) the part has that is fitted to, and their predictions, labels and masks."""
    config = predictor.restored.config
    if config.chosen_by not in data.parts:
        raise DataError(f"expected examples in the part '{config.chosen_by}', found none; add some to the split")
    if config.chosen_by in data.volumes:
        volumes = data.volumes[config.chosen_by]
        return len(volumes), (batch_of_one(predictor.volume(volume.image), volume) for volume in volumes)
    part = data.parts[config.chosen_by]
    batches = ((found, batch.labels, batch.masks) for _, batch, found in predictor.examples(part))
    return -(-len(part) // config.training.batch_size), batches


def _fitted(found: Labelled) -> Correction:
    if found.probabilities is not None:
        return fit_temperature(found.probabilities, found.truth.long())
    return fit_interval(found.truth.double() - found.value.double(), found.spread)


def _before_and_after(
    predictor: Predictor, collected: Mapping[str, Labelled], corrections: Mapping[str, Correction]
) -> dict[str, dict[str, Any]]:
    meter = CalibrationMeter(predictor.tasks, corrections, has_spread=predictor.has_spread)
    for name, found in collected.items():
        meter.add_labelled(name, found)
    results = meter.results()
    for name, correction in corrections.items():
        found = collected[name]
        if found.probabilities is not None:
            truth = found.truth.long()
            results[name]["nll"] = negative_log_likelihood(found.probabilities, truth)
            results[name]["nll_corrected"] = negative_log_likelihood(
                tempered(found.probabilities, correction.value), truth
            )
    return results
