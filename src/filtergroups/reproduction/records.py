"""Runs that a results file has already: made before or elsewhere, they count where their settings are the same."""

import json
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filtergroups.config import Config, ConfigError
from filtergroups.config_file import PATHS, RUNS, make_config, merged
from filtergroups.run import RunError
from filtergroups.writing import write_atomically

if TYPE_CHECKING:
    from filtergroups.reproduction.planning import Job

Settings = dict[str, Any]
BEFORE = {"pooled": False, "own_banks": False}  # of [method]: what was done before there was the key


def settings(work: dict[str, Any], config: Config | None, after: Settings | None = None) -> Settings:
    """All that a run is made from, wherever its data lie; after: the settings of the run that it starts from."""
    return {"work": work, "config": None if config is None else without_places(config), "after": after}


def without_places(config: Config) -> dict[str, Any]:
    """A config as JSON values, without the paths of data and of other runs."""
    tree: dict[str, Any] = json.loads(config.model_dump_json())
    for section, keys in (("data", PATHS), ("method", RUNS)):
        tree[section] = {key: value for key, value in tree[section].items() if key not in keys}
    return tree


def recorded(files: Iterable[Path], wanted: Mapping["Job", Settings]) -> dict["Job", dict[str, Any]]:
    """The outcomes in results files of those jobs whose settings are the recorded run's."""
    known = [entry for file in files if file.is_file() for entry in _runs(file)]
    found = {}
    for job, expected in wanted.items():
        place = (f"{job.row.home}/{job.row.name}", job.seed)
        runs = (run for where, run in known if where == place and same(run["settings"], expected))
        if (first := next(runs, None)) is not None:
            found[job] = first
    return found


def recorded_seeds(file: Path) -> int:
    """How many seeds the rows of a results file have at most."""
    return max((seed + 1 for (_, seed), _ in _runs(file)), default=0) if file.is_file() else 0


def set_aside(file: Path, summary: Mapping[str, Any]) -> tuple[int, Path] | None:
    """Keep a results file under another name where it has runs that a new summary lacks: how many, and where."""
    try:
        before = _identities(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no results: nothing to keep
    lacking = before - _identities(summary)
    if not lacking:
        return None
    names = (f"{file.stem}-earlier{f'-{n}' if n > 1 else ''}.json" for n in count(1))
    aside = next(path for name in names if not (path := file.with_name(name)).exists())
    write_atomically(aside, file.read_bytes())
    return len(lacking), aside


def _identities(summary: Mapping[str, Any]) -> set[str]:
    return {
        json.dumps([row["folder"], run["seed"], run.get("date"), run["values"]], sort_keys=True)
        for row in summary["rows"]
        for run in row["runs"]
    }


def _runs(file: Path) -> list[tuple[tuple[str, int], dict[str, Any]]]:
    """Row and seed of each run of a results file that says what it was made from, and its outcome."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return [((row["folder"], run["seed"]), run) for row in rows for run in row["runs"] if run.get("settings")]
    except (ValueError, KeyError, TypeError):
        raise RunError(
            f"{file}: expected the results of an experiment, found something else; move it away or leave out --go-on"
        ) from None


def same(found: Settings, expected: Settings) -> bool:
    """Are these one run's settings? A key that came later counts with the value that did what was done before."""
    if (found["after"] is None) != (expected["after"] is None) or found["work"] != expected["work"]:
        return False
    if expected["after"] is not None and not same(found["after"], expected["after"]):
        return False
    if found["config"] is None or expected["config"] is None:
        return bool(found["config"] == expected["config"])
    try:
        before = {"method": BEFORE, "data": {"root": "."}}  # a config names a place
        config = make_config(merged(merged(before, found["config"]), {"data": {"root": "."}}))
        return bool(without_places(config) == expected["config"])
    except ConfigError:
        return False
