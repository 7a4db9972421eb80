"""Files of equal rows with a checksum a row: written whole or not at all; read, never mapped.

A mapped file that somebody cuts short ends the process (SIGBUS). A read of it ends in an error that says so, and a file
that is open stays readable when it is deleted or replaced.
"""

import errno
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filtergroups.data.errors import DataError
from filtergroups.writing import written_aside

CHECKSUM = np.dtype("<u4")
LONGEST_HEADER = 4096
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_turn = threading.Lock()  # of those who read and write where there is no pread


class RowFile:
    """Rows of one shape and kind: an .npy file, its rows' checksums behind it, and the checksum of all but the rows.

    Opening it checks its length; `damaged` checks every row, and so does every read of a row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self.handle)
        start = BytesIO(_read(self.handle, LONGEST_HEADER, 0))
        try:
            np.lib.format.read_magic(start)
            self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(start)
        except ValueError:
            raise self._changed("none") from None
        self.first, self.row_shape = start.tell(), self.shape[1:]
        self.row_bytes = int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize
        end = self.first + len(self) * self.row_bytes
        behind = _read(self.handle, (len(self) + 1) * CHECKSUM.itemsize + 1, end)  # one more than there should be
        if len(behind) != (len(self) + 1) * CHECKSUM.itemsize:
            raise self._changed("another length")
        self.checksums = np.frombuffer(behind[: -CHECKSUM.itemsize], CHECKSUM)
        header = start.getvalue()[: self.first]
        if _number(zlib.crc32(self.checksums.tobytes(), zlib.crc32(header))) != behind[-CHECKSUM.itemsize :]:
            raise self._changed("another header")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
        """Some rows, each checked."""
        found = np.empty((len(rows), *self.row_shape), self.dtype)
        for place, row in enumerate(rows):
            content = self._row(int(row))
            if content is None:
                raise self._changed(f"another row {row}")
            found[place] = np.frombuffer(content, self.dtype).reshape(self.row_shape)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self[range(len(self))]
        return values if dtype is None else values.astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowFile, (self.path,)  # it travels to other processes as its path, not as its values

    def damaged(self) -> list[int]:
        """The rows that are not as they were written."""
        return [row for row in range(len(self)) if self._row(row) is None]

    def _row(self, row: int) -> bytes | None:
        try:
            content = _read(self.handle, self.row_bytes, self.first + row * self.row_bytes)
        except OSError as error:
            raise DataError(f"{self.path}: could not be read while it was in use: {error.strerror}") from None
        intact = len(content) == self.row_bytes and zlib.crc32(content) == self.checksums[row]
        return content if intact else None

    def _changed(self, found: str) -> "RowsChanged":
        return RowsChanged(
            f"{self.path}: expected what was kept there, found {found}: the file was cut short or written over; "
            "start again (or resume), and it is made anew"
        )


class RowsChanged(DataError):
    """A kept file is no longer what was written."""


class RowWriter:
    """Writes rows in any order and from any thread."""

    def __init__(self, handle: int, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        start = BytesIO()
        description = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(start, description)
        self.header = start.getvalue()
        self.row_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        self.end = len(self.header) + self.shape[0] * self.row_bytes
        # Rows that nobody writes are zeros.
        self.checksums = np.full(self.shape[0], zlib.crc32(bytes(self.row_bytes)), CHECKSUM)
        self.handle = handle
        # A full disk is met now, not after an hour of work.
        _reserve(handle, self.end + (self.shape[0] + 1) * CHECKSUM.itemsize)
        _write(handle, self.header, 0)

    def put(self, row: int, values: NDArray[Any]) -> None:
        content = np.ascontiguousarray(values, self.dtype).tobytes()
        self.checksums[row] = zlib.crc32(content)
        _write(self.handle, content, len(self.header) + row * self.row_bytes)

    def finish(self) -> None:
        behind = self.checksums.tobytes()
        _write(self.handle, behind + _number(zlib.crc32(behind, zlib.crc32(self.header))), self.end)


@contextmanager
def rows_written(path: Path, shape: Sequence[int], dtype: Any) -> Iterator[RowWriter]:
    """A new file of rows, at its place once the block ends well."""
    with written_aside(path) as file:
        writer = RowWriter(file.fileno(), shape, dtype)
        yield writer
        writer.finish()


def _number(checksum: int) -> bytes:
    return checksum.to_bytes(CHECKSUM.itemsize, "little")


def _reserve(handle: int, size: int) -> None:
    """Make sure of the room where the file system can; where it cannot, writing tells."""
    allocate: Callable[[int, int, int], None] | None = getattr(os, "posix_fallocate", None)
    if allocate is None:
        return
    try:
        allocate(handle, 0, size)
    except OSError as error:
        if error.errno in FULL:
            raise


def _read(handle: int, count: int, offset: int) -> bytes:
    """Up to so many bytes: fewer where the file ends."""
    parts: list[bytes] = []
    while count > 0:
        part = _read_once(handle, count, offset)
        if not part:
            break
        parts.append(part)
        count, offset = count - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(handle: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = _write_once(handle, view, offset)
        view, offset = view[written:], offset + written


def _read_once(handle: int, count: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, count, offset)
    with _turn:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, count)


def _write_once(handle: int, content: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(handle, content, offset)
    with _turn:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.write(handle, content)
