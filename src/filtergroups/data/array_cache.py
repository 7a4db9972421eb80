"""Preprocessed volumes on disk: made once, memory-mapped after that, never stale and never half-written."""

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filtergroups.data.examples import DataError

FORMAT = 1  # raise it when preprocessing changes: entries of other formats are not read
CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class StoredArray:
    """An array in the cache. It travels to other processes as its path, not as its values."""

    path: Path

    @cached_property
    def values(self) -> NDArray[Any]:
        array: NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return array

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredArray, (self.path,)


def entry_name(kind: str, sources: list[Path], settings: dict[str, Any]) -> str:
    """A name that changes with every source file and every setting, so that an old entry is never found again."""
    # ctime too: a copy that keeps size and time of the file it replaces still changes it.
    states = [
        (str(path.resolve()), (state := path.stat()).st_size, state.st_mtime_ns, state.st_ctime_ns) for path in sources
    ]
    text = json.dumps([FORMAT, kind, states, settings], sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.npy"


def stored(folder: Path, name: str, make: Callable[[], NDArray[Any]]) -> StoredArray:
    """The entry of this name; made if it is not there or not intact."""
    path = folder / name
    if not _intact(path):
        array = make()
        try:
            _write(path, array)
        except OSError as error:
            raise DataError(
                f"{folder}: expected a folder to keep preprocessed scans in, found {error.strerror or error}; "
                "make room there, or set data.cache to another folder"
            ) from None
    return StoredArray(path)


def _write(path: Path, array: NDArray[Any]) -> None:
    """An .npy file and a checksum behind it, written aside and renamed: others see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".part")
    try:
        with os.fdopen(handle, "w+b") as file:
            # Axial slices then lie together: x runs fastest, as in NIfTI.
            np.save(file, np.asfortranarray(array), allow_pickle=False)
            file.flush()
            file.seek(0)
            checksum = _checksum(file.read())
            file.write(checksum)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _intact(path: Path) -> bool:
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError):  # not there, or empty
        return False
    return content[-CHECKSUM_BYTES:].tobytes() == _checksum(content[:-CHECKSUM_BYTES])


def _checksum(content: Any) -> bytes:
    return zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")
