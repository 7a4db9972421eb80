"""A config as a TOML file: what it extends, what overrides it, its checks and its paths."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from filtergroups.config import (
    Config,
    ConfigError,
    FacesData,
    MethodConfig,
    NetworkConfig,
    PhantomData,
    ScansData,
    Section,
    TableData,
    TaskConfig,
    TemperatureConfig,
    TrainingConfig,
)
from filtergroups.naming import brief, found_repr
from filtergroups.paths import AnyPath, as_path, at_home, real
from filtergroups.reading import parse_toml, read_text, reading, reason_of

PATHS = ("root", "table", "split_file", "cache")  # of [data]
MOST_FILES = 16  # that extend each other
RUNS = ("mask_from", "extend")  # of [method]: runs that a run starts from
PRESET, PRESETS = "preset:", Path(__file__).parent / "presets"


def load_config(path: AnyPath, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file; overrides are 'section.key=value' with TOML values (bare text is text).

    Relative paths in the file are taken from the file's folder. `extends = "other.toml"` takes everything from another
    file that this one does not say itself.
    """
    path = as_path(path)
    tree = read_tree(path)
    for override in overrides:
        apply_override(tree, override)
    return resolved(make_config(tree, str(path)), path.parent)


def read_tree(path: Path, below: Sequence[Path] = ()) -> dict[str, Any]:
    """A TOML file with what it extends, before it is checked; paths of the extended file are absolute."""
    if len(below) > MOST_FILES:
        raise ConfigError(f"{path}: extends: expected at most {MOST_FILES} files one after the other, found more")
    try:
        with reading(path, "a readable TOML file", ConfigError, "check the path"):
            text = read_text(path)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: expected a readable TOML file, found {reason_of(error)}") from None
    with reading(path, "TOML", ConfigError, "mend it"):
        tree = parse_toml(text)
    above = tree.pop("extends", None)
    if above is None:
        return tree
    if not isinstance(above, str):
        raise ConfigError(f"{path}: extends: expected the name of a TOML file, found {found_repr(above)}")
    if real(path) in below:
        raise ConfigError(f"{path}: extends: expected files that end somewhere, found one that extends itself")
    extended = _preset(path, above) if above.startswith(PRESET) else path.parent / above
    parent = read_tree(extended, (*below, real(path)))
    return merged(_with_absolute_paths(parent, extended.parent), tree)


def _preset(path: Path, name: str) -> Path:
    """The file of `extends = "preset:NAME"`."""
    known = {f"{PRESET}{file.stem}": file for file in sorted(PRESETS.glob("*.toml"))}
    if name not in known:
        raise ConfigError(f"{path}: extends: expected one of {', '.join(known)}, found {name!r}; choose one")
    return known[name]


def merged(tree: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of tables with the values of another over its own."""
    result = dict(tree)
    for key, value in over.items():
        own = result.get(key)
        result[key] = merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return result


def _with_absolute_paths(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    def absolute(section: str, keys: Sequence[str]) -> dict[str, Any]:
        return {
            key: str(real(folder / at_home(Path(value)))) if key in keys and isinstance(value, str) else value
            for key, value in tree[section].items()
        }

    sections = {section: keys for section, keys in (("data", PATHS), ("method", RUNS)) if section in tree}
    return {**tree, **{section: absolute(section, keys) for section, keys in sections.items()}}


def make_config(tree: Mapping[str, Any], where: str = "config") -> Config:
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_problem(error)}") from None


def resolved(config: Config, folder: Path) -> Config:
    """The same with absolute paths."""
    data = {
        key: real(folder / at_home(value)) if isinstance(value, Path) else value
        for key, value in dict(config.data).items()
    }
    runs = {key: getattr(config.method, key) for key in RUNS}
    taken = {key: real(folder / at_home(run)) for key, run in runs.items() if run is not None}
    method = config.method.model_copy(update=taken)
    return config.model_copy(update={"data": config.data.model_copy(update=data), "method": method})


def apply_override(tree: dict[str, Any], text: str) -> None:
    """Set one key of a tree: 'section.key=value' with a TOML value (bare text is text)."""
    key, equals, value = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: expected section.key=value; for example --set training.epochs=5")
    node = tree
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {text}: '{part}' is a value, not a section; check the key")
    try:
        node[path[-1]] = parse_toml(f"x = {value}")["x"]
    except ValueError:  # no TOML, or too much of it
        node[path[-1]] = value.strip()


def _first_problem(error: ValidationError) -> str:
    """One line for the first of pydantic's findings: the key, what is allowed, what was found."""
    problem = error.errors()[0]
    more = error.error_count() - 1
    kinds = {"table", "faces", "scans", "phantom"}
    key = ".".join(brief(part) for part in problem["loc"] if part not in kinds or problem["loc"][0] != "data")
    message = brief(problem["msg"].removeprefix("Value error, "), 2000)
    if problem["type"] == "extra_forbidden":
        known = _known_keys(problem["loc"])
        message = f"unknown key; allowed here: {', '.join(known)}" if known else "unknown key; remove it"
    elif problem["type"] == "missing":
        message = "expected a value, found none; add it"
    elif problem["type"] != "value_error":
        message = f"{message}, found {found_repr(problem['input'])}"
    return f"{key or 'config'}: {message}" + (f" (and {more} more)" if more else "")


def _known_keys(location: Sequence[Any]) -> list[str]:
    sections: dict[str, type[Section]] = {
        "network": NetworkConfig,
        "method": MethodConfig,
        "temperature": TemperatureConfig,
        "training": TrainingConfig,
        "tasks": TaskConfig,
        "table": TableData,
        "faces": FacesData,
        "scans": ScansData,
        "phantom": PhantomData,
    }
    for part in reversed(location[:-1]):
        if part in sections:
            return list(sections[part].model_fields)
    return list(Config.model_fields) if len(location) == 1 else []


def dump_config(config: Config) -> str:
    """The complete config as TOML."""
    import tomli_w

    tree = json.loads(config.model_dump_json())
    if isinstance(config.data, ScansData):  # whose defaults are files: that there is none has to be said
        tree["data"] |= {key: "none" for key in ("target", "labels") if tree["data"][key] is None}
    return tomli_w.dumps(_without_none(tree))


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_none(value) for key, value in tree.items() if value is not None}
    return [_without_none(item) for item in tree] if isinstance(tree, list) else tree
