"""Preprocessed volumes on disk: made once, read slice by slice after that, never stale and never half-written."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filtergroups.data.contents import content_of
from filtergroups.data.examples import DataError
from filtergroups.data.rows import RowFile, RowsChanged, rows_written

FORMAT = 2  # raise it when preprocessing changes: entries of other formats are not read


@dataclass(frozen=True)
class StoredArray:
    """An array in the cache, x × y × z or of one axis. It travels to other processes as its path, not as its values.

    On disk its axes are reversed: the slices along z are rows, each with its checksum, which every read checks.
    """

    path: Path

    @cached_property
    def file(self) -> RowFile:
        return RowFile(self.path)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(reversed(self.file.shape))

    @property
    def values(self) -> NDArray[Any]:
        """All of it, read now."""
        return np.asarray(self.file).T

    def slices(self, first: int, last: int) -> NDArray[Any]:
        """The slices from first up to last, z × y × x, read now."""
        return self.file[range(first, last)]

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredArray, (self.path,)


def stored(
    folder: Path, kind: str, sources: Sequence[Path], settings: dict[str, Any], make: Callable[[], NDArray[Any]]
) -> StoredArray:
    """What is made of some files with some settings; made if it is not there or not as it was written."""
    path = folder / _name(folder, kind, sources, settings)
    if not _intact(path):
        array = make()
        # What was made of other files than were looked at would be found under the wrong name ever after.
        if _name(folder, kind, sources, settings) != path.name:
            raise DataError(
                f"{sources[0]}: expected a file that stays, found that it was changed while it was read; try again"
            )
        try:
            _write(path, array.T)
        except OSError as error:
            raise DataError(
                f"{folder}: expected room for {math.ceil(array.nbytes / 1e6)} MB of preprocessed scans, "
                f"found {error.strerror or error}; make room there, or set data.cache to another folder"
            ) from None
    return StoredArray(path)


def _name(folder: Path, kind: str, sources: Sequence[Path], settings: dict[str, Any]) -> str:
    """A name that changes with what the files hold and with every setting, so that an old entry is not found again."""
    contents = [content_of(source, folder) for source in sources]
    text = json.dumps([FORMAT, kind, contents, settings], sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.npy"


def _write(path: Path, rows: NDArray[Any]) -> None:
    with rows_written(path, rows.shape, rows.dtype) as writer:
        for row, values in enumerate(rows):
            writer.put(row, values)


def _intact(path: Path) -> bool:
    try:
        return not RowFile(path).damaged()
    except (OSError, RowsChanged):  # not there, or cut short
        return False
