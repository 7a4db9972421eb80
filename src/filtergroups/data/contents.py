"""What a file holds, known by its hash; a file that has not changed since is not read again."""

import hashlib
import json
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from filtergroups.data.errors import DataError
from filtergroups.writing import write_atomically

State = tuple[int, ...]

# The clocks of file systems are coarse: what is written twice within a tick keeps its time. A file is known by its
# times only if they were this old when it was read; git protects its index in the same way.
SETTLED = 2_000_000_000  # ns; the coarsest clock in use, FAT's, has ticks of 2 s


def state_of(path: Path) -> State | None:
    """Size, times and inode of a file that would not look the same after a change; None: its content decides.

    The time of change (ctime) is what a copy that keeps size and time cannot keep.
    """
    if os.name == "nt":  # where that is the time of creation
        return None
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return None
    if max(state.st_mtime_ns, state.st_ctime_ns) > time.time_ns() - SETTLED:
        return None
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def content_of(path: Path, folder: Path) -> str:
    """The hash of a file, kept in a folder for as long as the file does not change."""
    state = state_of(path)
    note = folder / f"{hash_of(os.fsencode(path.absolute()))}.content"
    kept = read_checked(note)
    if state is not None and kept is not None and kept[0] == list(state):
        return str(kept[1])
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise DataError(f"{path}: expected a file that can be read, found {error.strerror}") from None
    if state is not None:
        with suppress(OSError):  # then it is read again the next time
            write_checked(note, [state, found])
    return found


def write_checked(path: Path, content: Any) -> None:
    """JSON behind its checksum: a note that a disk changed is no note."""
    text = json.dumps(content).encode()
    write_atomically(path, f"{zlib.crc32(text):08x}\n".encode() + text)


def read_checked(path: Path) -> Any:
    """What `write_checked` wrote; None where that is not there or not whole."""
    try:
        checksum, _, text = path.read_bytes().partition(b"\n")
        return json.loads(text) if checksum == f"{zlib.crc32(text):08x}".encode() else None
    except (OSError, ValueError):
        return None
