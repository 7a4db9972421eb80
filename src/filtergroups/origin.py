"""What a run is trained on and by: its data, its settings and its libraries, kept in its checkpoint.

A resumed run is told from it what has changed since.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor

from filtergroups import __version__
from filtergroups.checkpoint import Progress
from filtergroups.config import Config, ConfigError
from filtergroups.config_file import PATHS, RUNS, make_config
from filtergroups.data.examples import Data
from filtergroups.data.fingerprints import Fingerprints, changes_of
from filtergroups.reading import reading
from filtergroups.run import Run, RunError

PREFIX = "data/"  # of the tensors
LIBRARIES = ("torch", "lightning-fabric", "numpy", "pillow", "monai", "nibabel", "SimpleITK")
# Where files lie says nothing of what they hold, and the machine nothing of what is learned.
FREE = {f"data.{key}" for key in PATHS} | {f"method.{key}" for key in RUNS} | {
    f"training.{key}" for key in ("accelerator", "devices", "nodes", "threads", "checkpoint_every")
}  # fmt: skip
# What there is to train depends on them.
FIXED = ("method.name", "training.uncertainty_weighting")
SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class Change:
    """Something that is not what it was; key: of the config, where it is a setting."""

    text: str
    key: str | None = None

    @property
    def is_of_the_loop(self) -> bool:
        """A setting that may well be another from some step on: a learning rate, the number of epochs."""
        key = self.key or ""
        return key.startswith(("training.", "temperature.")) and key != "training.batch_size"


@cache
def versions() -> dict[str, str]:
    found = {"filtergroups": __version__}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # an extra that is not installed
            continue
    return found


def settings(config: Config) -> dict[str, Any]:
    """A config as JSON values, without where things lie."""
    tree: dict[str, Any] = json.loads(config.model_dump_json())
    for key in FREE:
        section, name = key.split(".")
        tree[section].pop(name, None)
    return tree


def data_tensors(data: Data) -> dict[str, Tensor]:
    """Fingerprints of all examples, for a checkpoint."""
    return {
        f"{PREFIX}{part}/{kind}": tensor
        for part, examples in data.parts.items() for kind, tensor in examples.fingerprints().tensors().items()
    }  # fmt: skip


def changed(run: Run, progress: Progress, tensors: dict[str, Tensor], config: Config, data: Data) -> list[Change]:
    """What is not as a checkpoint has it."""
    found = list(_changed_settings(run, progress, config))
    with reading(run.checkpoint("last"), "a whole checkpoint", RunError, "resume with --from previous"):
        before = _parts(tensors)
    for task, names in data.names.items():
        if task in progress.names and progress.names[task] != names:
            found.append(Change(f"the classes of task '{task}' were {_list(progress.names[task])}, are {_list(names)}"))
    for part, examples in data.parts.items() if before else ():
        if part in before:
            found += map(Change, changes_of(part, before[part], examples.fingerprints()))
        else:
            found.append(Change(f"the part '{part}' is new"))
    found += [Change(f"the part '{part}' is gone") for part in before if part not in data.parts]
    return found


def other_versions(progress: Progress) -> list[str]:
    """Libraries that are not those of a checkpoint: numbers may differ in their last digits."""
    now = versions()
    names = [name for name in {**progress.versions, **now} if progress.versions.get(name) != now.get(name)]
    return [f"{name} {progress.versions.get(name, 'not there')} → {now.get(name, 'not there')}" for name in names]


def _changed_settings(run: Run, progress: Progress, config: Config) -> Iterator[Change]:
    try:
        # Through today's model: a setting that is new has its default on both sides.
        before = settings(make_config(_completed(progress.config, config)))
    except (ConfigError, TypeError):
        before = progress.config
    was, now = (dict(_flat(tree)) for tree in (before, settings(config)))
    for key in dict.fromkeys([*was, *now]):
        if was.get(key) != now.get(key):
            yield Change(f"{key} was {_short(was.get(key))}, is {_short(now.get(key))}", key)


def _completed(tree: dict[str, Any], config: Config) -> dict[str, Any]:
    """With what `settings` left out, from the config of today."""
    full: dict[str, Any] = json.loads(config.model_dump_json())
    result = {section: dict(of) if isinstance(of, dict) else of for section, of in tree.items()}
    for section, name in (key.split(".") for key in FREE):
        if name in full[section] and section in result:
            result[section][name] = full[section][name]
    return result


def _parts(tensors: dict[str, Tensor]) -> dict[str, Fingerprints]:
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(PREFIX):
            part, _, kind = name.removeprefix(PREFIX).partition("/")
            parts.setdefault(part, {})[kind] = tensor
    return {part: Fingerprints.of(of) for part, of in parts.items()}


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; tasks are named, not numbered."""
    if path == "tasks" and isinstance(tree, list) and all(isinstance(task, dict) for task in tree):
        for task in tree:
            yield from _flat(task, f"tasks.{task.get('name')}")
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}" if path else key)
    else:
        yield path, tree


def _short(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _list(names: Collection[str]) -> str:
    return _short(list(names))
