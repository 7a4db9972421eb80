"""Where a stopped training goes on, and with what: its checkpoint, and changes since that its user accepts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from filtergroups.checkpoint import Progress, load_checkpoint
from filtergroups.config import Config
from filtergroups.config_file import apply_override, dump_config, make_config, read_tree, resolved
from filtergroups.data.cache_folder import with_own_cache
from filtergroups.data.examples import Data
from filtergroups.data.images import Progress as Report
from filtergroups.data.load import load_data
from filtergroups.origin import FIXED, Change, changed, other_versions, settings, versions
from filtergroups.run import Run, RunError

From = Literal["last", "previous"]
LEARNED = ("mean", "deviation", "landmarks")  # constants of the data: a network goes on seeing images as it did
SHOWN = 5  # changes of a message


@dataclass(frozen=True)
class Wish:
    """What `resume` was asked for."""

    overrides: tuple[str, ...] = ()
    accept_changes: bool = False
    checkpoint: From = "last"

    def config(self, run: Run) -> Config:
        """The run's config with the overrides in it."""
        if self.checkpoint not in get_args(From):
            raise RunError(f"--from is last or previous, found {self.checkpoint!r}")
        path = run.place("config.toml")
        tree = read_tree(path)
        for override in self.overrides:
            apply_override(tree, override)
        return with_own_cache(resolved(make_config(tree, str(path)), path.parent))

    def accepts(self, change: Change) -> bool:
        named = {override.partition("=")[0].strip() for override in self.overrides}
        if change.key in FIXED:
            return False
        return self.accept_changes or (change.is_of_the_loop and change.key in named)


@dataclass(frozen=True)
class Point:
    """A checkpoint that a training goes on from."""

    file: Path
    progress: Progress
    tensors: dict[str, Tensor]
    is_last: bool
    notes: tuple[str, ...] = ()


def point_of(run: Run, wish: Wish) -> Point | None:
    """The wanted checkpoint, or the one before it where the last is damaged; None: nothing was saved yet."""
    last, previous = run.checkpoint("last"), run.checkpoint("previous")
    if wish.checkpoint == "previous":
        if not previous.exists():
            raise RunError(f"{previous}: expected the checkpoint before the last, found none; resume without --from")
        return _point(previous)
    if not last.exists():
        if not previous.exists():
            return None
        return _noted(_point(previous), f"{last}: expected a checkpoint, found none")
    try:
        return _point(last)
    except RunError as damaged:
        try:
            point = _point(previous)
        except RunError:
            raise damaged from None
        return _noted(point, str(damaged))


def _noted(point: Point, problem: str) -> Point:
    note = f"{problem}; so it goes on from the one before it, step {point.progress.step}"
    return replace(point, notes=(*point.notes, note))


def _point(file: Path) -> Point:
    progress, tensors = load_checkpoint(file)
    best = {
        name: value for name, value in progress.best.items()
        if _is_of_the_past(file.with_name("best.safetensors" if name == "combined" else f"best-{name}.safetensors"),
                           progress.step)
    }  # fmt: skip
    return Point(file, replace(progress, best=best), tensors, file.stem == "last")


def _is_of_the_past(best: Path, step: int) -> bool:
    """A best checkpoint of a later step is of a future that did not happen (yet): whatever comes replaces it."""
    try:
        return load_checkpoint(best)[0].step <= step
    except RunError:
        return False


def loaded(config: Config, point: Point | None, report: Report) -> Data:
    """A training's data; a resumed network sees images as it did, whatever was changed among them."""
    parts = ("train", config.chosen_by)
    data = load_data(config, parts=parts, make=False, progress=report)
    if point is None:
        return data
    kept = {key: value for key, value in point.progress.constants.items() if key in LEARNED and key in data.constants}
    constants = {**data.constants, **kept}
    if constants == data.constants:
        return data
    return load_data(config, constants=constants, parts=parts, make=False, progress=report)


def going_on(run: Run, point: Point, wish: Wish, config: Config, data: Data) -> tuple[Point, list[Change]]:
    """The point with what holds from now on, and what was changed and accepted; refused where it was not."""
    progress, notes = point.progress, list(point.notes)
    of_earlier = not progress.config
    if of_earlier:
        notes.append("it was begun by an earlier version, so that changes of its data and settings cannot be seen")
        progress = replace(progress, config=settings(run.config()))  # but those that are asked for now
    changes = changed(run, progress, point.tensors, config, data)
    refuse(run, [change for change in changes if not wish.accepts(change)])
    notes += [f"accepted: {change.text}" for change in changes]
    if not of_earlier and (others := other_versions(progress)):
        notes.append(f"other versions than before: {', '.join(others)}; the last digits may differ")
    progress = replace(
        progress, constants=data.constants, names=data.names, config=settings(config), versions=versions()
    )
    return replace(point, progress=progress, notes=tuple(notes)), changes


def refuse(run: Run, changes: Sequence[Change]) -> None:
    if not changes:
        return
    for change in changes:
        if change.key in FIXED:
            raise RunError(f"{run.path}: {change.text}: other numbers would be trained; undo that, or train a new run")
    texts = "; ".join(change.text for change in changes[:SHOWN])
    more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    raise RunError(
        f"{run.path}: expected the data and settings that it was trained with, found changes: {texts}{more}. "
        "Undo them, or accept them with --accept-changes"
    )


def keep(run: Run, config: Config) -> None:
    """Write down the settings that hold from now on."""
    run.write("config.toml", dump_config(config).encode())
