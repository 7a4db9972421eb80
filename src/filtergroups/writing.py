"""Files that are written whole or not at all, with the rights that the user's umask gives them.

A folder may come from somebody else: what is written `below` it follows no link that leads out of it.
"""

import contextlib
import errno
import glob
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filtergroups.paths import real

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed anyway
    fcntl = None  # type: ignore[assignment]  # as mypy takes a module for a constant

ASIDE = re.compile(r"\..*\.[0-9a-f]{8}\.filtergroups")
_swept: set[Path] = set()


def write_atomically(path: Path, content: bytes, *, below: Path | None = None, before: Path | None = None) -> None:
    """The whole file or nothing: never a part of it, whenever the process ends.

    before: where the file goes that was in its place; a whole file is in both places at any time.
    """
    with written_aside(path, below=below) as file:
        file.write(content)
        if before is not None and path.exists():
            _also_at(path, before)


def _also_at(path: Path, other: Path) -> None:
    """A file in two places: what is written anew at one of them leaves the other as it is."""
    temporary = other.with_name(f".{other.name}.{secrets.token_hex(4)}.filtergroups")
    with path.open("rb") as file:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # held, so that nobody sweeps its second name away
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.link(path, temporary)
        except OSError:  # a file system without hard links
            write_atomically(other, file.read())
            return
        os.replace(temporary, other)
        temporary.unlink(missing_ok=True)  # which is still there where both were the same file already


@contextmanager
def written_aside(path: Path, *, below: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write to (and read from) that takes its place once the block ends well.

    Where the process is killed, what it left is removed by the next one that writes to this folder.
    """
    if below is not None:
        place_below(path.parent, below)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary, handle = _new_file(path)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name == "posix":  # still locked: nobody takes it for one that was left behind
                os.replace(temporary, path)
        if os.name != "posix":
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # A full disk is said of a file, and that is the one that was meant.
        if isinstance(error, OSError) and error.filename in (None, temporary, str(temporary)):
            error.filename = str(path)
        raise


def write_new(path: Path, content: bytes) -> None:
    """The whole file, where there is none yet: one that another process has written meanwhile stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, handle = _new_file(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def append(path: Path, text: str, *, below: Path) -> None:
    """Add to the end of a file below a folder; through no link, and to no pipe or device."""
    place_below(path, below)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags, 0o666)
    with open(handle, "ab") as file:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "expected a file to add to, found a pipe or device; remove it", str(path))
        if state.st_nlink == 1:
            file.write(text.encode(errors="backslashreplace"))
            return
    # The file has a second name, perhaps outside: that one stays as it is.
    write_atomically(path, path.read_bytes() + text.encode(errors="backslashreplace"), below=below)


def place_below(path: Path, folder: Path) -> Path:
    """Where a path really is; refused where links lead it out of the folder."""
    place = real(path)
    if not place.is_relative_to(real(folder)):
        raise LeadsOut(errno.ELOOP, f"leads out of {folder}, to {place}; replace the link by what is meant", str(path))
    return place


class LeadsOut(OSError):
    """A link out of a folder that may come from somebody else."""


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder: only files of ours that nobody holds any more."""
    place = real(folder)
    if fcntl is None or place in _swept:
        return
    _swept.add(place)
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if ASIDE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_free(entry.path)


def _remove_if_free(path: str) -> None:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(handle)


@contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """A new folder to fill beside the one that is meant; what a killed process left of its own is removed before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.unfinished"):
        with contextlib.suppress(OSError), _held_folder(left):
            shutil.rmtree(left)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    aside.mkdir()
    try:
        with _held_folder(aside):
            yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _held_folder(folder: Path) -> Iterator[None]:
    """Nobody takes the folder for one that was left behind; refused (BlockingIOError) where another process has it."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.ENOTSUP:  # some network file systems have no locks
                raise
        yield
    finally:
        os.close(handle)


def _new_file(path: Path) -> tuple[Path, int]:
    """A file beside the one that is meant, held until it is closed."""
    name = path.name.encode(errors="surrogateescape")[:100].decode(errors="ignore")
    while True:
        temporary = path.with_name(f".{name}.{secrets.token_hex(4)}.filtergroups")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        if fcntl is None:
            return temporary, handle
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:  # else somebody swept it before it was held
            return temporary, handle
        os.close(handle)
