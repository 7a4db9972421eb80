"""How good a trained network is: on any part of its data, or on data that it never saw."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from filtergroups.build import build_network
from filtergroups.checkpoint import Progress, load_checkpoint, restore
from filtergroups.config import Config, PhantomData, ScansData
from filtergroups.data.examples import Data, DataError, Volumes
from filtergroups.data.load import BONE_ABOVE, load_data
from filtergroups.measuring import Meter, batches_of, measure_plain
from filtergroups.network import GroupedNetwork, Statistics
from filtergroups.run import Run, RunError
from filtergroups.schedule import temperature_at
from filtergroups.volumes import measure_volume, over_patients, plain_predictions, predict_volume

Step = Callable[[str, int, int], None]


def evaluate(
    run: Path,
    *,
    data: Path | None = None,
    split_file: Path | None = None,
    split: str = "test",
    samples: int = 50,
    by: str | None = None,
    checkpoint: str = "best",
    statistics: Statistics | None = None,
    progress: Step | None = None,
) -> dict[str, Any]:
    """Metrics of a run on a part of its data, or of a folder of the same kind that it never saw.

    samples: Monte Carlo passes; 0: the mode network. by: a column to report results by. statistics: of the norms; None:
    those of the batch for images, as in the paper, and running ones for scans. The result is also kept in the run's
    results.json.
    """
    opened = Run.open(run)
    config = moved(opened.config(), data, split_file)
    reached, tensors = load_checkpoint(opened.checkpoint(checkpoint))
    found = load_data(config, constants=reached.constants, parts=(split,), progress=progress)
    if split not in found.parts and split not in found.volumes:
        raise DataError(f"expected examples in the part '{split}', found none; use --split or --split-file")
    network = build_network(config, found)
    restore(network, reached, tensors, opened.checkpoint(checkpoint))
    if not network.is_random:
        samples = 0  # every pass would be the same
    if found.volumes:
        result = _of_volumes(network, config, found, reached, split, samples, statistics or "running", progress)
    else:
        result = _of_images(network, config, found, reached, split, samples, statistics or "batch", by, progress)
    result = {
        "split": split,
        "samples": samples,
        "checkpoint": checkpoint,
        "data": str(data) if data else None,
        **result,
    }
    try:
        opened.save_result(result)
    except OSError as error:
        raise RunError(f"{opened.path}: could not write results.json: {error.strerror}") from None
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
        if hasattr(config.data, "split_file") and split_file is None:
            update["split_file"] = None
    if split_file is not None:
        if isinstance(config.data, PhantomData):
            raise DataError("the phantom has its own split; leave --split-file out")
        update["split_file"] = split_file.resolve()
    return config.model_copy(update={"data": config.data.model_copy(update=update)})


def _temperature(config: Config, reached: Progress) -> float:
    """The temperature that the checkpoint was trained at, as in the paper."""
    return temperature_at(reached.step, reached.annealed, config.temperature)


def _of_images(
    network: GroupedNetwork,
    config: Config,
    data: Data,
    reached: Progress,
    split: str,
    samples: int,
    statistics: Statistics,
    by: str | None,
    progress: Step | None,
) -> dict[str, Any]:
    part = data.parts[split]
    size = config.training.batch_size
    meter = Meter(network.tasks)
    groups = part.subgroup(by) if by else []
    meters = {group: Meter(network.tasks) for group in sorted(set(groups))}
    generator = torch.Generator().manual_seed(config.seed)
    done = 0
    for indices in batches_of(part, size):
        batch = part.batch(indices)
        how: Statistics = statistics if len(indices) > 2 else "running"
        predictions = network.predict(
            batch.images, samples, generator, temperature=_temperature(config, reached), statistics=how
        )
        meter.add(predictions, batch)
        for group in {groups[index] for index in indices} if by else ():
            chosen = torch.tensor([n for n, index in enumerate(indices) if groups[index] == group])
            meters[group].add({k: p.chosen(chosen) for k, p in predictions.items()}, batch.chosen(chosen))
        done += len(indices)
        if progress is not None:
            progress("evaluating", done, len(part))
    plain = measure_plain(part, network.tasks, reached.plain, batch_size=size)
    result: dict[str, Any] = {"examples": len(part), "tasks": meter.results(), "plain": plain}
    if by:
        result["by"] = {by: {group: of.results() for group, of in meters.items()}}
    return result


def _of_volumes(
    network: GroupedNetwork,
    config: Config,
    data: Data,
    reached: Progress,
    split: str,
    samples: int,
    statistics: Statistics,
    progress: Step | None,
) -> dict[str, Any]:
    volumes: Volumes = data.volumes[split]
    bone = bone_threshold(config)
    patients, plain = [], []
    for number, volume in enumerate(volumes, start=1):
        predictions = predict_volume(
            network, volume.image, **window_of(config), samples=samples, seed=config.seed,
            temperature=_temperature(config, reached), statistics=statistics,
        )  # fmt: skip
        patients.append(measure_volume(network.tasks, predictions, volume, data.names, bone))
        answers = plain_predictions(network.tasks, volume, reached.plain)
        plain.append(measure_volume(network.tasks, answers, volume, data.names, bone))
        if progress is not None:
            progress("evaluating", number, len(volumes))
    return {"examples": len(patients), "tasks": over_patients(patients), "plain": over_patients(plain)}


def bone_threshold(config: Config) -> float | None:
    if isinstance(config.data, PhantomData):
        return BONE_ABOVE
    return config.data.bone_above if isinstance(config.data, ScansData) else None


def window_of(config: Config) -> dict[str, Any]:
    """The size and padding of the patches that a scan network saw in training."""
    data = config.data
    assert isinstance(data, (ScansData, PhantomData))
    flat = (data.patch, data.patch)
    return {"window": flat if data.spatial_dims == 2 else (*flat, data.patch_depth), "padding": data.padding}
