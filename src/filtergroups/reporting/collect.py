"""What a run folder says, as plain data; nothing here needs the network or its data set."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filtergroups.baselines import METHODS
from filtergroups.checkpoint import load_checkpoint
from filtergroups.config import Config, FacesData, ScansData, TableData
from filtergroups.correction import read_corrections
from filtergroups.exporting import read_exports
from filtergroups.groups.routing import Family, family
from filtergroups.network import GroupedNetwork
from filtergroups.paths import real
from filtergroups.reading import read_arrays, read_bytes, reading
from filtergroups.run import Run, RunError, saved_assignments, step_of

MOST_TIMES = 120  # saved steps that are shown

Probabilities = NDArray[np.float32]  # kernels of all layers one after the other × groups


@dataclass(frozen=True)
class Layer:
    """A grouped layer: its name in the network and how many kernels it has."""

    name: str
    kernels: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """The grouping probabilities at saved steps."""

    layers: tuple[Layer, ...]
    steps: tuple[int, ...]
    probabilities: tuple[Probabilities, ...]  # by step
    fixed_at: int | None = None  # index of the first step with every kernel fixed in one group, if they were fixed
    dead: tuple[NDArray[np.bool_], ...] | None = None  # by step, of all kernels at their mode; None: not known

    @property
    def learned(self) -> int:
        """Index of the last step at which probabilities were still free."""
        return len(self.steps) - 1 if self.fixed_at is None else self.fixed_at - 1

    def of_layer(self, layer: int, time: int = -1) -> Probabilities:
        start = sum(other.kernels for other in self.layers[:layer])
        return self.probabilities[time][start : start + self.layers[layer].kernels]

    def sums(self, time: int = -1) -> NDArray[np.float64]:
        """Layers × groups: the expected number of kernels, as in the paper's figure; dead ones are in no group."""
        live = self.probabilities[time] if self.dead is None else self.probabilities[time] * ~self.dead[time][:, None]
        return np.add.reduceat(live.astype(np.float64), self._starts, axis=0)

    def dead_counts(self, time: int = -1) -> NDArray[np.int64]:
        """By layer, how many kernels are dead."""
        if self.dead is None:
            return np.zeros(len(self.layers), np.int64)
        return np.add.reduceat(self.dead[time].astype(np.int64), self._starts)

    @property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(layer.kernels for layer in self.layers)])[:-1]

    def entropies(self, time: int = -1) -> NDArray[np.float64]:
        """By layer, the mean over kernels of H(p) in nats."""
        values = []
        for layer in range(len(self.layers)):
            p = self.of_layer(layer, time).astype(np.float64)
            values.append(float(-(p * np.log(np.maximum(p, 1e-12))).sum(1).mean()))
        return np.asarray(values)


@dataclass(frozen=True, eq=False)
class Record:
    """One run, or one network that was trained by other code, as the report needs it."""

    name: str
    method: str
    network: str
    family: Family
    timeline: Timeline
    run: Run | None = None
    config: Config | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)
    exports: list[dict[str, Any]] = field(default_factory=list)
    best_step: int | None = None  # of the best checkpoint; None: there is none that can be read
    log: list[tuple[datetime, str]] = field(default_factory=list)
    mixing: tuple[NDArray[np.float32], ...] | None = None  # of cross-stitch, by layer: tasks × tasks

    @property
    def stitched(self) -> bool:
        """Networks of their own, mixed: not one whose kernels are in groups."""
        return self.method in METHODS and METHODS[self.method].cross_stitch

    problems: list[str] = field(default_factory=list)  # what could not be read of the run

    @property
    def kind(self) -> str:
        """learned, constant or fixed."""
        return METHODS[self.method].kind if self.method in METHODS else "learned"

    @property
    def step(self) -> int:
        return max((entry["step"] for entry in self.metrics), default=self.timeline.steps[-1])

    @property
    def planned(self) -> int | None:
        """How many steps the run was to take, as its log says."""
        found = [match for _, text in self.log if (match := re.search(r"(\d+) steps$", text))]
        return int(found[-1][1]) if found else None

    @property
    def finished(self) -> bool:
        if self.run is None:
            return True
        return self.planned is not None and self.step >= self.planned

    def entries(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.metrics if entry["kind"] == kind]


def record_of_run(path: Path) -> Record:
    """Read a run folder, finished or not."""
    run = Run.open(path)
    config = run.config()
    names = task_names(config)
    metrics, problem = run.metrics_and_problem()
    return Record(
        name=real(path).name,
        method=config.method.name,
        network=config.network.name,
        family=family(names, config.method.groups),
        timeline=read_timeline(run, learned=METHODS[config.method.name].kind == "learned"),
        run=run,
        config=config,
        metrics=metrics,
        results=run.results(),
        calibration=read_corrections(run),
        exports=read_exports(run),
        best_step=_best_step(run),
        log=read_log(run),
        problems=[problem] if problem else [],
    )


def _best_step(run: Run) -> int | None:
    with contextlib.suppress(RunError):
        return load_checkpoint(run.checkpoint("best"))[0].step
    return None


def record_of_network(network: GroupedNetwork, name: str = "network") -> Record:
    """A network that was not trained by `filtergroups train`: what it has learned, without its history."""
    layers = list(network.grouped_layers())
    found = [layer.assignment.probabilities().detach().cpu().float().numpy() for layer in layers]
    timeline = Timeline(
        tuple(Layer(layer.name, len(p)) for layer, p in zip(layers, found, strict=True)), (0,), (np.concatenate(found),)
    )
    return Record(name, network.method, "lifted", network.family, timeline)


def task_names(config: Config) -> list[str]:
    data = config.data
    if isinstance(data, FacesData):
        return list(data.tasks)
    if isinstance(data, TableData):
        return [task.name for task in config.tasks]
    if not isinstance(data, ScansData):
        from filtergroups.data.load import scans_settings

        data = scans_settings(data)
    named = ((data.target, data.target_task), (data.labels, data.labels_task))
    return [task for file, task in named if file is not None]


def read_log(run: Run) -> list[tuple[datetime, str]]:
    path = run.path / "log.txt"
    try:
        with reading(path, "the run's log", RunError, "remove it"):
            lines = read_bytes(path, below=run.path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    found = []
    for line in lines:
        stamp, _, text = line.partition("  ")
        if len(stamp) != len("2026-01-01 10:00:00"):  # cheaper than to try
            continue
        try:
            found.append((datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S"), text))
        except ValueError:
            continue
    return found


def read_timeline(run: Run, *, learned: bool, most: int = MOST_TIMES) -> Timeline:
    """The saved assignments, thinned to `most`; of those after the kernels were fixed only the first is kept."""
    files = saved_assignments(run)
    if not files:
        raise RunError(f"{run.path}: expected saved assignments, found none; train first (`filtergroups train`)")
    fixed = _first_fixed(files) if learned else len(files)
    free = files[: max(fixed, 1)]
    chosen = [free[index] for index in evenly(len(free), most)]
    if 0 < fixed < len(files):
        chosen.append(files[fixed])
    read = [_read(file) for file in chosen]
    layers = tuple(Layer(name, len(p)) for name, p in read[0].items())
    for file, of_layers in zip(chosen, read, strict=True):
        if {name: p.shape for name, p in of_layers.items()} != {name: p.shape for name, p in read[0].items()}:
            raise RunError(f"{file}: expected the layers of {chosen[0].name}, found others; remove one of the files")
    return Timeline(
        layers,
        tuple(step_of(file) for file in chosen),
        tuple(np.concatenate(list(of_layers.values())) for of_layers in read),
        fixed_at=len(chosen) - 1 if 0 < fixed < len(files) else None,
    )


def _read(file: Path) -> dict[str, Probabilities]:
    with reading(file, "saved assignments", RunError, "remove the file"):
        found = {name: p.astype(np.float32) for name, p in read_arrays(file, below=file.parent).items()}
        groups = {p.shape[1:] for p in found.values()}
        if len(groups) != 1 or any(p.ndim != 2 or not p.size for p in found.values()):
            raise ValueError(f"arrays of the shapes {sorted({p.shape for p in found.values()})[:4]}")
        if not all(((p >= 0) & (p <= 1)).all() for p in found.values()):
            raise ValueError("numbers that are no probabilities")
        return found


def _first_fixed(files: Sequence[Path]) -> int:
    """Index of the first file with every kernel in one group: once fixed they stay, so halving finds it."""

    def is_fixed(file: Path) -> bool:
        return all(bool(((p == 0) | (p == 1)).all()) for p in _read(file).values())

    low, high = 0, len(files)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_fixed(files[middle]) else (middle + 1, high)
    return low


def evenly(count: int, most: int) -> list[int]:
    """At most so many of the indices below count, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(n * (count - 1) / (most - 1)) for n in range(most)}) if most > 1 else [count - 1]
