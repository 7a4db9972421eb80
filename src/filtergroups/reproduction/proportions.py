"""Who shares what, layer by layer: the proportions of the groups, as a run's snapshots tell."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filtergroups.network import GroupedNetwork

Layers = dict[str, NDArray[Any]]  # layer -> kernels × groups
STAGES = {"start": "at the start", "learned": "as learned (mean of p)", "mode": "kernels at their mode"}


def proportions(run: Path, network: GroupedNetwork) -> dict[str, Any]:
    """Proportions of the groups by layer: at the start, as learned (the mean of p), and with each kernel at its mode.

    A run that ends with every kernel fixed has learned what it knew when they were fixed.
    """
    files = sorted((run / "assignments").glob("step_*.npz"))
    if not files:
        return {}
    snapshots = [_read(file) for file in (files[0], files[-1])]
    learned = next((layers for file in reversed(files) if not _is_fixed(layers := _read(file))), snapshots[-1])
    return {
        "groups": list(network.family.names),
        "layers": list(snapshots[0]),
        "start": _means(snapshots[0]),
        "learned": _means(learned),
        "mode": _means({name: np.eye(p.shape[1])[p.argmax(1)] for name, p in snapshots[-1].items()}),
    }


def _read(file: Path) -> Layers:
    with np.load(file, allow_pickle=False) as content:
        return {name: content[name].astype(np.float64) for name in content.files}


def _is_fixed(layers: Layers) -> bool:
    return all(bool(((p == 0) | (p == 1)).all()) for p in layers.values())


def _means(layers: Layers) -> list[list[float]]:
    return [p.mean(0).tolist() for p in layers.values()]


def distances(one: list[list[float]], other: list[list[float]]) -> list[float]:
    """By layer the mean absolute difference of two networks' proportions, over groups."""
    return [float(value) for value in np.abs(np.asarray(one) - np.asarray(other)).mean(1)]


def distance(one: list[list[float]], other: list[list[float]]) -> float:
    """The mean absolute difference of two networks' proportions, over layers and groups."""
    return float(np.mean(distances(one, other)))
