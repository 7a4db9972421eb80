"""A trained network as a run left it: with its config, its tasks and what it knows of its data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filtergroups.build import build_network
from filtergroups.checkpoint import Progress, load_checkpoint, restore
from filtergroups.config import Config, FacesData, PhantomData, ScansData, TableData
from filtergroups.data.cache_folder import with_own_cache
from filtergroups.data.examples import Data
from filtergroups.data.twice import twice
from filtergroups.network import GroupedNetwork
from filtergroups.run import Run
from filtergroups.schedule import temperature_at
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
        return temperature_at(self.progress.step, self.progress.annealed, self.config.temperature)

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
    network = build_network(config, described_data(config, progress))
    restore(network, progress, tensors, file)
    return Restored(run, checkpoint, config, progress, network.eval())


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
