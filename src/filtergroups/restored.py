"""A trained network as a run left it: with its config, its tasks and what it knows of its data."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from filtergroups.build import build_network
from filtergroups.checkpoint import Progress, load_checkpoint, restore
from filtergroups.config import Config, FacesData, PhantomData, ScansData, TableData
from filtergroups.data.cache_folder import with_own_cache
from filtergroups.data.examples import Data
from filtergroups.data.twice import twice
from filtergroups.network import GroupedNetwork
from filtergroups.networks.highresnet import HighResNet
from filtergroups.networks.vgg import VGG11
from filtergroups.reading import checked, reading
from filtergroups.run import Run, RunError
from filtergroups.schedule import temperature_at
from filtergroups.shipped_model import ImageConstants, ScanConstants
from filtergroups.tasks import Task


@dataclass(frozen=True)
class Restored:
    """One checkpoint of a run, ready to be evaluated, to predict or to be exported."""

    run: Run
    checkpoint: str
    config: Config
    progress: Progress
    network: GroupedNetwork

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.network.tasks

    @property
    def names(self) -> dict[str, list[str]]:
        """The names of the classes, by task."""
        return self.progress.names

    @property
    def temperature(self) -> float:
        """The temperature that the checkpoint was trained at, as in the paper."""
        return temperature_at(self.progress.step, self.progress.annealed, self.config.annealing)

    @property
    def scans(self) -> ScansData | None:
        """How scans were read; None for images."""
        data = self.config.data
        if isinstance(data, PhantomData):
            from filtergroups.data.load import scans_settings

            return scans_settings(data)
        return data if isinstance(data, ScansData) else None

    @property
    def windows(self) -> dict[str, Any]:
        """The size and padding of the patches that a scan network saw in training."""
        scans = self.scans
        assert scans is not None
        flat = (scans.patch, scans.patch)
        return {"window": flat if scans.spatial_dims == 2 else (*flat, scans.patch_depth), "padding": scans.padding}

    def passes(self, samples: int) -> int:
        """How many passes a prediction needs: one of the mode network (0) where all passes would be the same."""
        return samples if self.network.passes_differ else 0


def open_run(path: Path, checkpoint: str = "best") -> Restored:
    """Read a run's network; it needs none of the data."""
    run = Run.open(path)
    config = with_own_cache(run.config())
    file = run.checkpoint(checkpoint)
    progress, tensors = load_checkpoint(file)
    network = build_network(config, _fitting(config, progress, tensors, file))
    restore(network, progress, tensors, file)
    return Restored(run, checkpoint, config, progress, network.eval())


def _fitting(config: Config, progress: Progress, tensors: dict[str, Tensor], file: Path) -> Data:
    """What a network needs to know of its data; refused where the network would be larger than its checkpoint.

    A config and a checkpoint of somebody else need not belong together, and memory is asked for by the config.
    """
    scans = not isinstance(config.data, TableData | FacesData)
    with reading(file, "a whole checkpoint", RunError, "use another, or train again"):
        checked(ScanConstants if scans else ImageConstants, json.dumps(progress.constants))
    if isinstance(config.data, TableData | FacesData):  # which says how large the images are that are decoded and kept
        for key in ("size", "channels"):
            if getattr(config.data, key) != progress.constants[key]:
                raise RunError(
                    f"{file}: expected data.{key} = {progress.constants[key]}, by which it was trained, found "
                    f"{getattr(config.data, key)} in config.toml; mend that"
                )
    data = described_data(config, progress)
    held = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("network/"))
    with torch.device("meta"):
        vgg = config.network.name == "vgg11"
        width = config.network.width
        plain = VGG11(data.channels, width, config.network.extra) if vgg else HighResNet(data.spatial_dims, 1, width)
    needed = sum(parameter.numel() for parameter in plain.parameters())
    needed += sum((config.network.hidden or 1) * task.outputs for task in data.tasks)
    if needed > held:
        raise RunError(
            f"{file}: expected the weights of this config's network, found others: {held:,} numbers where it has at "
            f"least {needed:,}"
        )
    return data


def described_data(config: Config, progress: Progress) -> Data:
    """What a network needs to know of its data, without the data."""
    described = _described(config, progress)
    return described if config.data.twice is None else twice(described, config.data.twice)


def _described(config: Config, progress: Progress) -> Data:
    data = config.data
    tasks: tuple[Task, ...]
    if isinstance(data, FacesData):
        from filtergroups.data.faces import TASKS

        tasks = tuple(TASKS[name] for name in data.tasks)
        return Data(tasks, data.channels, 2, {}, progress.constants, names=progress.names)
    if isinstance(data, TableData):
        tasks = tuple(entry.task(len(progress.names.get(entry.name, ())) or None) for entry in config.tasks)
        return Data(tasks, data.channels, 2, {}, progress.constants, names=progress.names)
    from filtergroups.data.load import scans_settings
    from filtergroups.data.scans import scan_tasks

    scans = scans_settings(data) if isinstance(data, PhantomData) else data
    return Data(
        scan_tasks(scans, progress.constants), 1, data.spatial_dims, {}, progress.constants, names=progress.names
    )
