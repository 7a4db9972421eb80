"""What a training does with its best network once the steps are done: its norm statistics, and how good it is."""

from typing import Any

import torch

from filtergroups.build import build_network
from filtergroups.certainty import passes_in_words
from filtergroups.checkpoint import load_checkpoint, restore
from filtergroups.config import Config
from filtergroups.data.examples import Data
from filtergroups.evaluation import measured
from filtergroups.journal import Journal
from filtergroups.predictor import NORMS, predictor_of
from filtergroups.restored import open_run
from filtergroups.run import Run
from filtergroups.schedule import temperature_at
from filtergroups.starting import kept_statistics
from filtergroups.statistics import load_statistics, recalibrated, save_statistics

SAMPLES = 4  # sampled passes of a validation; `evaluate` takes more


def recalibrate_best(run: Run, config: Config, data: Data, device: torch.device | str, journal: Journal) -> None:
    """Norm statistics of the network that will be used, over the training data; made once a checkpoint."""
    file, path = run.checkpoint("best"), run.statistics("best")
    progress, tensors = load_checkpoint(file)
    network = build_network(config, data)
    restore(network, progress, tensors, file)
    if load_statistics(path, network, progress.step) is not None:
        return
    sets = recalibrated(
        network.to(device), data.parts["train"], batch_size=config.training.batch_size,
        temperature=temperature_at(progress.step, progress.annealed, config.annealing),
        seed=config.seed, progress=journal.report.preparing,
    )  # fmt: skip
    save_statistics(path, kept_statistics(sets, network, config.method), progress.step)
    journal.say(f"norm statistics of 'best' (step {progress.step}) recalibrated over the training data")


def measure_best(run: Run, config: Config, data: Data, device: torch.device | str, journal: Journal) -> None:
    """What `evaluate` says of the part that chose the checkpoint; kept in results.json, made once a checkpoint.

    Validations in training are of norms of the batch, and choose; this is of the network that predicts.
    """
    part = config.chosen_by
    if part not in data.parts:
        return
    predictor = predictor_of(open_run(run.path), SAMPLES, device=device, progress=journal.report.preparing)
    known = {
        "split": part, "samples": predictor.samples, "checkpoint": "best", "data": None,
        "statistics": predictor.norms, "step": predictor.restored.progress.step,
    }  # fmt: skip
    if any(all(old.get(key) == value for key, value in known.items()) for old in run.results()):
        return
    result = measured(predictor, data, part, progress=journal.report.preparing)
    run.save_result(result)
    shown = ", ".join(f"{task} {name} {value:.4g}" for task, name, value in overall(result["tasks"]))
    journal.say(f"best checkpoint, step {result['step']}: {part} {shown}")
    samples = f" --samples {predictor.samples}" if predictor.samples else ""
    how = f"{NORMS[predictor.norms]}, {passes_in_words(predictor.samples)}"
    journal.say(f"  ({how}; as in: filtergroups evaluate {run.path} --split {part}{samples})")


def overall(tasks: dict[str, dict[str, Any]]) -> list[tuple[str, str, float]]:
    """Task, metric and value of every metric that is one number; of scans, the mean over patients of the whole."""
    found = []
    for task, metrics in tasks.items():
        for name, value in metrics.items():
            whole = value.get("overall") if isinstance(value, dict) else None
            value = whole["mean"] if whole is not None else value
            if isinstance(value, float):
                found.append((task, name, value))
    return found
