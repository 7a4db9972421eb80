"""Where the experiments' data are: a folder, or an archive that is unpacked once."""

import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filtergroups.clone import clone
from filtergroups.data.cache_folder import cache_folder
from filtergroups.data.errors import DataError
from filtergroups.locks import held
from filtergroups.reproduction.mixtures import multi_fashion, noisy_faces

VARIABLE = "FILTERGROUPS_DATA"
# What a folder of any name is known by.
CONTENT = {"UTKFace": "*_*_*_*.jpg*", "head-mr-ct": "*/mr.nii.gz", "prostate-t2-adc": "*/t2.nii.gz"}
SPLIT_FILES = {"UTKFace": "utkface-split.csv"}  # the authors' own split; scans bring theirs along


def locate(name: str, given: Path | None = None, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The settings of [data] that say where a data set is.

    given: the data set's folder, or one that holds it (or its archive NAME.tar); None: $FILTERGROUPS_DATA, the clone's
    data folder, or ../shared/data beside the clone.
    """
    if name == "MultiFashion":
        return multi_fashion(given, say)
    if name == "noisy UTKFace":
        return noisy_faces(locate("UTKFace", given, say), say)
    places = [given] if given is not None else default_places()
    for place in places:
        root = _root(name, place, say)
        if root is None:
            continue
        found: dict[str, Any] = {"root": str(root.resolve())}
        if name in SPLIT_FILES:
            found["split_file"] = str(_split_file(SPLIT_FILES[name], [place, root, root.parent, *default_places()]))
        return found
    looked = ", ".join(map(str, places)) or "nowhere"
    raise DataError(f"expected the data set {name} or {name}.tar, found neither in {looked}; give its folder as --data")


def default_places() -> list[Path]:
    given = os.environ.get(VARIABLE)
    root = clone()
    of_clone = [root / "data", root.parent / "shared" / "data"] if root else []
    return ([Path(given)] if given else []) + of_clone


def _root(name: str, place: Path, say: Callable[[str], None]) -> Path | None:
    place = place.expanduser()
    if (place / name).is_dir():
        return place / name
    if (place / f"{name}.tar").is_file():
        return unpacked(place / f"{name}.tar", say)
    if place.is_dir() and (place.name == name or any(place.glob(CONTENT[name]))):
        return place
    return None


def _split_file(name: str, places: list[Path]) -> Path:
    for place in places:
        if (place / name).is_file():
            return (place / name).resolve()
    # A split of our own would not be the authors', and results would not compare.
    raise DataError(f"expected the split file {name} beside the data, found none; put it into the folder of --data")


def unpacked(archive: Path, say: Callable[[str], None] = lambda text: None) -> Path:
    """An archive's content, unpacked once into the cache folder: all of it or nothing, and never outside of it."""
    state = archive.stat()
    home = cache_folder(None) / "unpacked"
    folder = home / f"{archive.stem}-{state.st_size}-{state.st_mtime_ns}"
    home.mkdir(parents=True, exist_ok=True)
    with held(home / f"{folder.name}.lock"):
        if not folder.is_dir():
            say(f"unpacking {archive}")
            with tempfile.TemporaryDirectory(dir=home) as aside:
                try:
                    with tarfile.open(archive) as tar:
                        tar.extractall(aside, filter="data")
                except (tarfile.TarError, EOFError) as error:
                    raise DataError(f"{archive}: expected a tar archive to unpack, found {error}") from None
                # The archive may hold the folder itself or what is in it.
                inner = Path(aside) / archive.stem
                os.replace(inner if inner.is_dir() else aside, folder)
                Path(aside).mkdir(exist_ok=True)  # the context wants to remove it
    return folder
