"""Being asked to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Stopped(Exception):
    """Training was asked to stop; what was done is saved."""

    def __init__(self, run: Path, step: int, number: int) -> None:
        super().__init__(f"stopped at step {step}; go on with: filtergroups resume {run}")
        self.exit_code = 128 + number


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that a step is finished and saved; a second one interrupts at once."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        # Outside the main thread signals are left to whoever runs it.
        if threading.current_thread() is threading.main_thread():
            before[number] = signal.signal(number, note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
