"""Paths as callers give them: text or `Path`, one or several."""

import os
from collections.abc import Iterable
from pathlib import Path

AnyPath = str | os.PathLike[str]


def as_path(given: AnyPath) -> Path:
    """Every public function that takes a path takes it through here; ~ is the user's home."""
    if not isinstance(given, str | os.PathLike):
        raise ValueError(f"a path is text or a pathlib.Path, found {type(given).__name__}; give one of these")
    return at_home(Path(given))


def at_home(path: Path) -> Path:
    """A path whose ~ is the user's home; where there is no such user it stays as it is."""
    return Path(os.path.expanduser(path))


def real(path: Path) -> Path:
    """Where a path really is. As `Path.resolve`, but a link that leads to itself stays: whoever opens it is told so."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        raise ValueError(f"expected a path, found one with a NUL byte: {str(path)!r:.200}; mend it") from None


def optional_path(given: AnyPath | None) -> Path | None:
    return None if given is None else as_path(given)


def as_paths(given: AnyPath | Iterable[AnyPath]) -> list[Path]:
    """One path or several."""
    return [as_path(given)] if isinstance(given, str | os.PathLike) else [as_path(one) for one in given]
