"""What a user sees of long work: a live display on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any, Protocol

from filtergroups.naming import shown, shown_lines


class Reporter(Protocol):
    """Told how training goes."""

    def start(self, steps: int, done: int) -> None: ...
    def preparing(self, what: str, done: int, of: int) -> None: ...
    def step(self, step: int, text: str) -> None: ...
    def say(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Silent:
    """Says nothing: for libraries and tests."""

    def start(self, steps: int, done: int) -> None: ...
    def preparing(self, what: str, done: int, of: int) -> None: ...
    def step(self, step: int, text: str) -> None: ...
    def say(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Lines:
    """Plain lines, at most one every few seconds."""

    def __init__(self, every: float = 10.0) -> None:
        self.every = every
        self.last = 0.0

    def start(self, steps: int, done: int) -> None:
        self.steps, self.began, self.done = steps, time.monotonic(), done

    def preparing(self, what: str, done: int, of: int) -> None:
        if done == of or time.monotonic() - self.last > self.every:
            self.last = time.monotonic()
            self.say(f"{what}: {done} of {of}")

    def step(self, step: int, text: str) -> None:
        now = time.monotonic()
        if now - self.last > self.every and step > self.done:
            self.last = now
            left = (now - self.began) / (step - self.done) * (self.steps - step)
            self.say(f"step {step}/{self.steps}, {left:.0f} s left: {text}")

    def say(self, text: str) -> None:
        print(shown_lines(text), file=sys.stderr, flush=True)

    def stop(self) -> None: ...


class Live:
    """A progress bar that stays at the bottom of the terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True, highlight=False)
        columns: list[Any] = [
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[text]}", markup=False),
        ]  # fmt: skip
        self.progress = Progress(*columns, console=self.console)
        self.bars: dict[str, Any] = {}

    def _bar(self, name: str, total: int) -> Any:
        if name not in self.bars:
            self.progress.start()
            self.bars[name] = self.progress.add_task(shown(name), total=total, text="")
        return self.bars[name]

    def start(self, steps: int, done: int) -> None:
        self.progress.update(self._bar("training", steps), completed=done)

    def preparing(self, what: str, done: int, of: int) -> None:
        self.progress.update(self._bar(what, of), completed=done, visible=done < of)

    def step(self, step: int, text: str) -> None:
        self.progress.update(self.bars["training"], completed=step, text=shown(text))

    def say(self, text: str) -> None:
        self.console.print(shown_lines(text), soft_wrap=True, markup=False, emoji=False)

    def stop(self) -> None:
        self.progress.stop()
        # What comes next, such as the next of several runs, begins with bars of its own.
        for bar in self.bars.values():
            self.progress.remove_task(bar)
        self.bars.clear()


def reporter() -> Reporter:
    return Live() if sys.stderr.isatty() else Lines()
