"""What an experiment works out besides its table: name -> function of the summary's rows, giving JSON values."""

import statistics
from collections.abc import Callable
from itertools import combinations
from typing import Any

from filtergroups.reproduction.proportions import STAGES, distance, distances

Rows = list[dict[str, Any]]
Pairs = list[tuple[dict[str, Any], dict[str, Any]]]  # proportions of two runs
HELD = "mask"  # the initialisation that begins at the vertices, where p has hardly a gradient


def initialisation_distances(rows: Rows) -> dict[str, Any]:
    """How far apart the layer-wise proportions of groups are: at the start, as learned, and at the mode.

    Two initialisations are compared seed by seed; two seeds of one initialisation say how much of it is chance. `free`
    is the mean of the pairs without the constant mask, which hardly moves in the paper either.
    """
    pairs, free = [], []
    for one, other in combinations(rows, 2):
        theirs = {run["seed"]: run["proportions"] for run in other["runs"]}
        both = [(run["proportions"], theirs[run["seed"]]) for run in one["runs"] if run["seed"] in theirs]
        if both:
            pairs.append({"pair": [one["label"], other["label"]], **_distances(both)})
            free += [] if HELD in (one["name"], other["name"]) else both
    seeds = [
        (a["proportions"], b["proportions"]) for row in rows for a, b in combinations(row["runs"], 2)
    ]  # fmt: skip
    mean = {stage: statistics.fmean(pair[stage] for pair in pairs) for stage in STAGES} if pairs else None
    return {
        "kind": "distances", "pairs": pairs, "mean": mean,
        "free": {**_distances(free), "layers": _by_layer(free)} if free else None,
        "two_seeds": _distances(seeds) if seeds else None,
    }  # fmt: skip


def _distances(pairs: Pairs) -> dict[str, Any]:
    means = {stage: statistics.fmean(distance(a[stage], b[stage]) for a, b in pairs) for stage in STAGES}
    return {**means, "count": len(pairs)}


def _by_layer(pairs: Pairs) -> dict[str, list[float]]:
    found = {}
    for stage in STAGES:
        of_pairs = [distances(a[stage], b[stage]) for a, b in pairs]
        found[stage] = [statistics.fmean(of_layer) for of_layer in zip(*of_pairs, strict=True)]
    return found


def sharing(rows: Rows) -> dict[str, Any]:
    """The share of kernels in the group of all tasks by layer and overall, as learned and at the mode."""
    found = []
    for row in rows:
        of_runs = [run["proportions"] for run in row["runs"] if run.get("proportions")]
        if not of_runs or all(of["start"] == of["learned"] for of in of_runs):
            continue  # nothing was learned
        full = of_runs[0]["groups"].index("shared")
        by_layer = {
            stage: [statistics.fmean(of[stage][n][full] for of in of_runs) for n in range(len(of_runs[0]["layers"]))]
            for stage in STAGES
        }
        found.append(
            {"label": row["label"], "layers": of_runs[0]["layers"], "shared": by_layer,
             "overall": {stage: statistics.fmean(by_layer[stage]) for stage in STAGES}}
        )  # fmt: skip
    return {"kind": "sharing", "rows": found}


ANALYSES: dict[str, Callable[[Rows], dict[str, Any]]] = {
    "initialisation": initialisation_distances,
    "sharing": sharing,
}
