"""The numbers of an experiment: means over seeds, paired differences, and what they were made with."""

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from filtergroups.clone import experiments
from filtergroups.reproduction.analyses import ANALYSES
from filtergroups.reproduction.experiment import Experiment, Row
from filtergroups.reproduction.origin import commit, machine, today

if TYPE_CHECKING:
    from filtergroups.reproduction.planning import Job

CONFIDENCE = 0.95
KEPT = (
    "step", "samples", "examples", "seconds", "threads", "parameters", "multiplications", "plain_multiplications",
    "proportions", "commit", "date", "plain", "selection", "statistics", "settings",
)  # fmt: skip


def summarise(
    experiment: Experiment,
    found: Mapping["Job", dict[str, Any]],
    *,
    of: int,
    scale: str,
    command: str,
    overrides: list[str],
) -> dict[str, Any]:
    """Everything that the page says, as JSON values; no number on a page comes from elsewhere.

    found: the outcomes of the runs that are done; of: how many runs there are to be.
    """
    keys = [column.key for column in experiment.columns]
    rows = [_row(experiment, row, {job.seed: outcome for job, outcome in found.items() if job.row is row}, keys)
            for row in experiment.rows]  # fmt: skip
    reference = next((row for row in rows if row["name"] == experiment.reference), None)
    for row in rows:
        row["difference"] = {} if reference is None or row is reference else _differences(row, reference, keys)
    return {
        "experiment": experiment.name, "title": experiment.title, "about": experiment.about, "scale": scale,
        "data": experiment.data or "generated", "split": experiment.split, "reference": experiment.reference,
        "finished": len(found), "of": of,
        "columns": [vars(column) for column in experiment.columns], "rows": rows,
        "plain": _plain(list(found.values()), keys),
        "analysis": ANALYSES[experiment.analysis](rows) if experiment.analysis else None,
        "published": experiment.published, "notes": list(experiment.notes),
        "made": {
            "command": command, "overrides": overrides, "commit": commit(), "date": today(),
            "machine": machine(), "threads": sorted({done["threads"] for done in found.values() if "threads" in done}),
            "run_commits": sorted({done["commit"] for done in found.values() if done.get("commit")}),
        },
    }  # fmt: skip


def _row(experiment: Experiment, row: Row, outcomes: dict[int, dict[str, Any]], keys: list[str]) -> dict[str, Any]:
    runs = [
        {"seed": seed, "values": {key: of["values"][key] for key in keys if key in of["values"]},
         **{key: of[key] for key in KEPT if key in of}}
        for seed, of in sorted(outcomes.items())
    ]  # fmt: skip
    means, deviations = {}, {}
    for key in keys:
        values = [run["values"][key] for run in runs if key in run["values"]]
        if values:
            means[key] = statistics.fmean(values)
            deviations[key] = statistics.stdev(values) if len(values) > 1 else None
    return {
        "name": row.name, "label": row.label, "folder": f"{row.home}/{row.name}", "method": row.method, "runs": runs,
        "mean": means, "sd": deviations, "published": published(experiment.published, row.method, keys),
    }  # fmt: skip


def _differences(row: dict[str, Any], reference: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    """Row minus reference, seed by seed: the same seed has the same examples and the same order of them."""
    found = {}
    theirs = {run["seed"]: run["values"] for run in reference["runs"]}
    for key in keys:
        pairs = [
            run["values"][key] - theirs[run["seed"]][key]
            for run in row["runs"]
            if key in run["values"] and key in theirs.get(run["seed"], {})
        ]
        if pairs:
            found[key] = {"mean": statistics.fmean(pairs), "pairs": len(pairs), **(interval(pairs) or {})}
    return found


def interval(values: Sequence[float]) -> dict[str, float] | None:
    """mean ± t · s / √n; None of fewer than two values."""
    from scipy import stats  # type: ignore[import-untyped]  # scipy brings no types

    if len(values) < 2:
        return None
    mean, count = statistics.fmean(values), len(values)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return {"low": mean - reach, "high": mean + reach}


def _plain(outcomes: Sequence[dict[str, Any]], keys: list[str]) -> dict[str, float]:
    """What giving everyone the same answer reaches."""
    of_key = {key: [of["plain"][key] for of in outcomes if key in of.get("plain", {})] for key in keys}
    return {key: statistics.fmean(values) for key, values in of_key.items() if values}


def published(table: str | None, method: str | None, keys: list[str]) -> dict[str, list[float]]:
    """The paper's numbers of a row: [mean] or [mean, deviation over the test subjects]."""
    if table is None:
        return {}
    tables = tomllib.loads((experiments() / "published.toml").read_text(encoding="utf-8"))["table"]
    for row in next(entry["row"] for entry in tables if entry["name"] == table):
        if row["method"] == method:
            return {key: value for key in keys if (value := _at(row, key.split("."))) is not None}
    return {}


def _at(tree: Any, path: list[str]) -> list[float] | None:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree if isinstance(tree, list) else None
