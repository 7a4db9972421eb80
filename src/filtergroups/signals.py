"""Being asked to stop."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SAME = 1.0  # seconds in which signals count as one


class Stopped(Exception):
    """Training was asked to stop; what was done is saved."""

    def __init__(self, how_to_resume: str, step: int, number: int) -> None:
        super().__init__(f"stopped at step {step}; go on with: {how_to_resume}")
        self.exit_code = 128 + number


@contextmanager
def stop_signals(*, several: bool = False) -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that a step is finished and saved; a second one later interrupts at once.

    several: where another process of a training has ended, what started them ends this one too, but not before it has
    said so.
    """
    asked: list[int] = []
    first = math.inf

    def note(number: int, frame: Any) -> None:
        nonlocal first
        # What started several processes passes on a Ctrl-C that the terminal has sent them already.
        if time.monotonic() > first + SAME:
            raise KeyboardInterrupt
        first = min(first, time.monotonic())
        asked.append(number)

    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        # Outside the main thread signals are left to whoever runs it.
        if threading.current_thread() is threading.main_thread():
            before[number] = signal.signal(number, note)
    try:
        yield asked
    except RuntimeError:
        if several and before:
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for stopped_by, handler in before.items():
            signal.signal(stopped_by, handler)
