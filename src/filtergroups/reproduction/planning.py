"""Which runs an experiment has, what each is made from, and which are still to be made."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filtergroups.config import Config, ConfigError
from filtergroups.reproduction.experiment import Experiment, Row, at_scale, load_experiment, row_config
from filtergroups.reproduction.records import Settings, same, settings, without_places
from filtergroups.reproduction.work import JOB, outcome
from filtergroups.run import Run, RunError
from filtergroups.writing import write_atomically

MadeFrom = tuple[dict[str, Any], Config | None]  # how a run is made and measured, and, for a training, its config


@dataclass(frozen=True, eq=False)
class Job:
    """One run: a row with a seed, and the run that must be there first."""

    row: Row
    seed: int
    folder: Path
    after: Path | None

    @property
    def ready(self) -> bool:
        return self.after is None or outcome(self.after) is not None


def plan(experiment: Experiment, seeds: int, scale: str, runs: Path) -> list[Job]:
    """Every run, a seed after the other, so that a part of them is a table with fewer seeds."""

    def folder(row: Row, seed: int) -> Path:
        return runs / at_scale(row.home, scale) / f"{row.name}-seed{seed}"

    jobs = []
    for seed in range(seeds):
        for row in experiment.rows:
            after = None if row.after is None else folder(experiment.row(row.after), seed)
            jobs.append(Job(row, seed, folder(row, seed), after))
    return jobs


def wanted_jobs(experiment: Experiment, jobs: list[Job], rows: Sequence[str]) -> list[Job]:
    """The runs of some rows (none: of all) and those that they start from."""
    known = [row.name for row in experiment.rows]
    if unknown := [row for row in rows if row not in known]:
        raise ValueError(f"--row is one of {', '.join(known)}, found {unknown[0]!r}; choose one")
    names = set(rows or known)
    names |= {row.after for row in experiment.rows if row.name in names and row.after is not None}
    return [job for job in jobs if job.row.name in names]


def jobs_to_do(wanted: list[Job], elsewhere: set[Job]) -> list[Job]:
    """The runs that are to be made: also one that was made elsewhere, where another starts from its folder."""
    missing = [job for job in wanted if outcome(job.folder) is None]
    started_from = {job.after for job in missing if job not in elsewhere}
    return [job for job in missing if job not in elsewhere or job.folder in started_from]


def describe(experiment: Experiment, job: Job, scale: str, where: dict[str, Any], overrides: Sequence[str]) -> MadeFrom:
    """What a run is made from: how it is made and measured, and, for a training, its config."""
    owner = experiment if job.row.home == experiment.name else load_experiment(job.row.home)
    what = {
        "maker": owner.maker, "split": owner.split, "samples": owner.samples, "seed": job.seed,
        "statistics": "batch" if scale == "paper" else None,
        "options": {**job.row.options, **_options(owner, overrides)} if owner.maker != "training" else {},
    }  # fmt: skip
    if owner.maker != "training":
        return what, None
    return what, row_config(job.row, job.seed, scale=scale, data=where, taken=job.after, overrides=overrides)


def all_settings(made_from: dict[Job, MadeFrom]) -> dict[Job, Settings]:
    """The settings of each run, with those of the run that it starts from."""
    by_folder = {job.folder: of for job, of in made_from.items()}
    return {
        job: settings(*of, None if job.after is None else settings(*by_folder[job.after]))
        for job, of in made_from.items()
    }


def prepare(job: Job, what: dict[str, Any], config: Config | None, after: Settings | None) -> None:
    """Write what a run is made from; a folder that was made from something else is refused."""
    if config is not None:
        if (job.folder / "config.toml").exists():
            _check_same(Run.open(job.folder).config(), config, job.folder)
        else:
            Run.create(job.folder, config)
    file = job.folder / JOB
    if file.is_file():
        found = json.loads(file.read_text(encoding="utf-8"))
        started_from = found.pop("after", None)
        if found != what or (after is not None and (started_from is None or not same(started_from, after))):
            other = "others" if found != what else f"others of {job.after} that it started from"
            raise RunError(
                f"{job.folder}: expected a run of the same settings, found {other}; move it away or use --runs"
            )
    write_atomically(file, json.dumps(what if after is None else {**what, "after": after}, indent=1).encode())


def _options(experiment: Experiment, overrides: Sequence[str]) -> dict[str, Any]:
    from filtergroups.config_file import apply_override
    from filtergroups.reproduction.makers import OPTIONS

    tree: dict[str, Any] = {}
    for override in overrides:
        apply_override(tree, override)
    known = OPTIONS[experiment.maker]
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"--set of {experiment.name} is one of {', '.join(known)}, found {key!r}; choose one")
        kind = type(known[key])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ConfigError(f"--set {key}: expected a value like {known[key]!r}, found {value!r}; change it")
    return tree


def _check_same(found: Config, expected: Config, folder: Path) -> None:
    """Where data lie may change; nothing else may."""
    one, two = without_places(found), without_places(expected)
    for section in two:
        here, there = one[section], two[section]
        if here != there:
            keys = (
                [f"{section}.{k}" for k in there if here.get(k) != there[k]] if isinstance(there, dict) else [section]
            )
            raise RunError(
                f"{folder}: expected a run of the experiment's config, found another {keys[0]}; "
                "move the folder away or use --runs"
            )


def generated(runs: Path, scale: str) -> dict[str, Any]:
    """Generated data lie beside the runs and are written by the first that needs them."""
    return {"root": str((runs / f"phantom-{scale}").resolve())}
