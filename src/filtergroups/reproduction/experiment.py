"""An experiment as data: its rows, what they are made from, and what is reported of them."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filtergroups.clone import experiments
from filtergroups.config import Config, ConfigError
from filtergroups.config_file import apply_override, make_config, merged, read_tree, resolved

SCALES = ("cpu", "paper")


@dataclass(frozen=True)
class Column:
    """One number of a run: `task.metric` or `task.metric.region`, and how it is shown."""

    key: str
    label: str
    more_is_better: bool = True
    digits: int = 2
    percent: bool = False

    def shown(self, value: float, digits: int | None = None) -> str:
        return f"{100 * value if self.percent else value:.{self.digits if digits is None else digits}f}"


@dataclass(frozen=True, eq=False)
class Row:
    """One line of the table: where its runs go, and what they are made from."""

    name: str
    label: str
    home: str  # the experiment that the runs belong to: another one's runs may be a row here
    config: Path | None = None  # None: the experiment's own maker reads `options`
    options: dict[str, Any] = field(default_factory=dict)
    after: str | None = None  # the row whose run of the same seed must be there first
    method: str | None = None  # the row of the paper's table that it stands beside
    scale: str | None = None  # the only scale that has it; None: both
    paper: dict[str, Any] = field(default_factory=dict)  # what else differs at the paper's own size


@dataclass(frozen=True)
class Experiment:
    """Everything about an experiment but its data and its runs."""

    name: str
    title: str
    about: str
    columns: list[Column]
    rows: list[Row]
    data: str | None = None  # the data set's name; None: generated
    split: str = "validation"
    samples: int = 50
    reference: str | None = "sfg"  # the row that differences are taken to
    published: str | None = None  # the paper's table
    analysis: str | None = None  # what is worked out besides the table
    maker: str = "training"
    notes: tuple[str, ...] = ()
    cpu_notes: tuple[str, ...] = ()  # true at that scale only
    paper: dict[str, Any] = field(default_factory=dict)  # what differs at the paper's own size

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def at(self, scale: str) -> "Experiment":
        """The experiment with the rows and notes of one scale."""
        notes = (*self.cpu_notes, *self.notes) if scale == "cpu" else self.notes
        return replace(self, rows=[row for row in self.rows if row.scale in (None, scale)], notes=notes, cpu_notes=())


def at_scale(name: str, scale: str) -> str:
    """What the runs and results of an experiment are called: those of the two scales are kept apart."""
    return name if scale == "cpu" else f"{name}-{scale}"


def experiment_names() -> list[str]:
    return sorted(path.parent.name for path in experiments().glob("*/experiment.toml"))


def load_experiment(name: str) -> Experiment:
    """Read an experiment and the rows that it has from others."""
    path = experiments() / name / "experiment.toml"
    if name not in experiment_names():  # a path to one is no name: runs would go where it points
        raise ConfigError(f"an experiment is one of {', '.join(experiment_names())}, found '{name}'; choose one")
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    columns = [Column(**entry) for entry in tree.pop("column")]
    rows = [_row(entry, name, path.parent) for entry in tree.pop("row")]
    if isinstance(tree.get("paper"), str):
        tree["paper"] = load_experiment(tree["paper"]).paper
    tree |= {key: tuple(tree.get(key, ())) for key in ("notes", "cpu_notes")}
    return Experiment(name=name, columns=columns, rows=rows, **tree)


def _row(entry: dict[str, Any], experiment: str, folder: Path) -> Row:
    if "from" in entry:
        home, _, other = entry["from"].partition("/")
        return replace(load_experiment(home).row(other), label=entry["label"])
    known = {key: entry[key] for key in ("name", "label", "after", "scale", "paper") if key in entry}
    options = {key: value for key, value in entry.items() if key not in {*known, "config", "method"}}
    config = folder / entry["config"] if "config" in entry else None
    return Row(home=experiment, config=config, options=options, method=entry.get("method", entry["name"]), **known)


def row_config(
    row: Row, seed: int, *, scale: str, data: dict[str, Any], taken: Path | None = None, overrides: Sequence[str] = ()
) -> Config:
    """A row's config for a seed: its file, the scale's changes, where the data are, and what the user overrides.

    taken: the run that it starts from, for a row that comes after another.
    """
    assert row.config is not None
    tree = read_tree(row.config)
    if scale == "paper":
        tree = merged(merged(tree, load_experiment(row.home).paper), row.paper)
    tree = merged(tree, {"data": data, "seed": seed})
    if taken is not None:
        tree = merged(tree, {"method": {row.options["takes"]: str(taken.resolve())}})
    for override in overrides:
        apply_override(tree, override)
    return resolved(make_config(tree, str(row.config)), row.config.parent)
