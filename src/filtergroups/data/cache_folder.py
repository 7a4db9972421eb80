"""Where decoded images and prepared scans are kept: the user's cache, or a folder that the user's own training chose.

A run may come from somebody else, with a config that names a folder of the user's. So its `data.cache` counts only
where the user has trained with it before: the user's cache keeps a list of such folders.
"""

import contextlib
import os
from pathlib import Path

from filtergroups.config import Config
from filtergroups.paths import real
from filtergroups.writing import write_atomically

LIST = "chosen-folders.txt"
MOST_BYTES = 1_000_000


def users_cache() -> Path:
    """As the user's environment has it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "filtergroups"


def cache_folder(given: Path | None) -> Path:
    """The given folder, or the user's cache."""
    return users_cache() if given is None else given


def choose_cache(config: Config) -> None:
    """Note that the user trains with this config's cache folder."""
    given = config.data.cache
    if given is None or _chosen(given):
        return
    with contextlib.suppress(OSError):  # then other commands use the user's cache, and take longer
        write_atomically(users_cache() / LIST, "".join(f"{path}\n" for path in [*_list(), real(given)]).encode())


def with_own_cache(config: Config) -> Config:
    """A config as a run has it, without a cache folder that this user never chose."""
    given = config.data.cache
    if given is None or _chosen(given):
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"cache": None})})


def _chosen(folder: Path) -> bool:
    return str(real(folder)) in _list()


def _list() -> list[str]:
    try:
        with (users_cache() / LIST).open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_BYTES).splitlines()
    except OSError:
        return []
