"""One at a time: a lock file that says who holds it, and that a killed process does not keep.

The system frees a lock when its holder ends, however that comes. What the holder said of itself then stays beside it,
so that the next one knows that it did not end in order.
"""

import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from filtergroups.naming import shown
from filtergroups.writing import write_atomically

SAY_AFTER = 1.0  # seconds of waiting
LONGEST = 200  # characters that are read or shown of what a holder said


class Held(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def held(path: Path, *, wait: bool = True) -> Iterator[str | None]:
    """Hold a lock file; gives what the holder before said of itself, if it was killed while it held it.

    wait: else Held is raised where another process has it. Whoever waits says for whom, and on which file.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=SAY_AFTER if wait else 0, poll_interval=0.02)
    except Timeout:
        if not wait:
            raise Held(_said(path) or "another process") from None
        print(f"waiting for {_said(path) or 'another process'}, which holds {shown(path)}", file=sys.stderr, flush=True)
        lock.acquire(poll_interval=0.1)
    try:
        killed = _said(path)
        with contextlib.suppress(OSError):  # a lock that names nobody is a lock as well
            write_atomically(_note(path), f"process {os.getpid()} on {platform.node()} ({_command()})".encode())
        yield killed
    finally:
        with contextlib.suppress(OSError):
            _note(path).unlink()
        lock.release()


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")


def _said(path: Path) -> str | None:
    """What the holder says of itself; the file may be anybody's, so only its first printable characters count."""
    try:
        handle = os.open(_note(path), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as file:
            text = file.read(LONGEST).decode(errors="replace")
    except OSError:
        return None
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text) or None


def _command() -> str:
    name, *rest = sys.argv or ["python"]
    return " ".join([Path(name).name, *rest])[: LONGEST // 2]
