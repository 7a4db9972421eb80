"""A run's network and some of its data, where they can still be found."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from filtergroups.data.examples import DataError, Examples, Volume, Volumes
from filtergroups.data.load import load_data
from filtergroups.evaluation import moved
from filtergroups.network import GroupedNetwork
from filtergroups.predictor import PASSES, Predictor, predictor_of
from filtergroups.reporting.collect import Record, evenly
from filtergroups.reporting.scores import scored
from filtergroups.restored import Restored, open_run
from filtergroups.run import RunError

Step = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Evidence:
    """What activations and predictions are made from; `problem` says in one line why there is none."""

    split: str = "test"
    network: GroupedNetwork | None = None  # for what is shown at the mode
    predictor: Predictor | None = None
    part: Examples | None = None
    volumes: Volumes | None = None
    images: Tensor | None = None  # given by hand, for networks of other code
    problem: str | None = None


def evidence_for(
    record: Record, *, data: Path | None, split: str | None, samples: int | None, progress: Step | None = None
) -> Evidence:
    """Open the best (else the last) checkpoint and a part of the data: the named one, or test, else validation.

    samples: passes of its predictions; None: those of the scores that are shown first, so that both are of one network.
    """
    samples = samples_shown(record) if samples is None else samples
    if split is not None:
        return _evidence(record, data, split, samples, progress)
    found = _evidence(record, data, "test", samples, progress)
    other = found if found.problem is None else _evidence(record, data, "validation", samples, progress)
    return other if other.problem is None else found


def samples_shown(record: Record) -> int:
    """How many passes the scores have that the page shows first; where nothing was measured, those of `evaluate`."""
    found = scored(record)
    return found[0].samples if found and found[0].evaluated else PASSES


def _evidence(record: Record, data: Path | None, split: str, samples: int, progress: Step | None) -> Evidence:
    assert record.run is not None
    try:
        restored = open_run(record.run.path, "best" if record.run.checkpoint("best").exists() else "last")
    except RunError as error:
        return Evidence(split, problem=f"There is no network yet: {error}")
    config = restored.config
    root = data or config.data.root
    try:
        if not root.is_dir():
            raise DataError(f"{root}: expected the run's data, found no such folder; say where it is with --data")
        found = load_data(
            moved(config, data, None), constants=restored.progress.constants, parts=(split,), progress=progress
        )
        if split not in found.parts:
            raise DataError(f"expected examples in the part '{split}', found none; use --split")
    except (DataError, OSError) as error:
        return Evidence(split, restored.network, problem=f"The data could not be read: {error}")
    predictor = predictor_of(restored, samples, progress=progress)
    network = restored.network
    if predictor.samples:  # sampled gates have norm statistics of their own: the mode is another network
        network = predictor_of(open_run(record.run.path, restored.checkpoint), 0, progress=progress).network
    return Evidence(split, network, predictor, found.parts.get(split), found.volumes.get(split))


def evidence_of_network(network: GroupedNetwork, images: Tensor | None) -> Evidence:
    problem = None if images is not None else "No images were given: pass images=... to see what the kernels answer to."
    return Evidence(network=network, images=images, problem=problem)


@dataclass(frozen=True)
class Input:
    """One example that activations are shown for."""

    name: str
    image: Tensor  # 1 × channels × space, as the network takes it


def chosen_inputs(evidence: Evidence, count: int = 2) -> list[Input]:
    """A few inputs: the first images, or slices of the first scan."""
    if evidence.images is not None:
        return [Input(f"image {n}", evidence.images[n : n + 1]) for n in range(min(count, len(evidence.images)))]
    if evidence.volumes is not None and evidence.predictor is not None:
        return slices_of(next(iter(evidence.volumes)), evidence.predictor.restored, count)
    assert evidence.part is not None
    order = torch.randperm(len(evidence.part), generator=torch.Generator().manual_seed(0)).tolist()[:count]
    return [Input(evidence.part.name(index), evidence.part.batch([index]).images) for index in order]


def slices_of(volume: Volume, restored: Restored, count: int) -> list[Input]:
    """Slices at the thirds of a scan; of a 3-D network's scan the middle window."""
    depth = volume.image.shape[-1]
    if restored.network.spatial_dims == 3:
        window = restored.windows["window"]
        middle: list[slice] = [slice(None)]
        for size, wanted in zip(volume.image.shape[1:], window, strict=True):
            start = max(0, (size - wanted) // 2)
            middle.append(slice(start, start + wanted))
        return [Input(f"{volume.name}, the middle", volume.image[tuple(middle)].unsqueeze(0))]
    places = [depth * (n + 1) // (count + 1) for n in range(count)] if depth > count else evenly(depth, count)
    return [Input(f"{volume.name}, slice {z + 1}", volume.image[..., z].unsqueeze(0)) for z in places]


def upright(values: Tensor) -> Tensor:
    """A slice x × y as it is looked at: rows from front to back, the patient's right on the left."""
    return values.flip(0, 1).transpose(0, 1)
