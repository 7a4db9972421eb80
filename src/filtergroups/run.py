"""The run folder: where training, evaluation and reports meet.

config.toml  metrics.jsonl  assignments/  results.json  log.txt  tensorboard/
last.safetensors  previous.safetensors  best.safetensors  best-TASK.safetensors  statistics-CHECKPOINT.safetensors
calibration.json
"""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filtergroups.config import Config
from filtergroups.config_file import dump_config, load_config
from filtergroups.kept import Result, as_kept, entry_of
from filtergroups.locks import Held, held
from filtergroups.naming import shown
from filtergroups.paths import AnyPath, as_path
from filtergroups.reading import read_bytes, read_model, reading, reason_of
from filtergroups.writing import append, place_below, write_atomically

MOST_METRICS = 200_000_000  # bytes of metrics.jsonl
MOST_BAD_LINES = 20_000  # of metrics.jsonl
STEP = re.compile(r"step_\d{8,15}\.npz")


class RunError(ValueError):
    """A run folder that cannot be used: one line, with what to do."""


def what_and_where(config: Config | AnyPath, run: AnyPath | None) -> tuple[Config, Path]:
    """What to train and in which folder, from what a caller gives."""
    if isinstance(config, Config):
        if run is None:
            raise RunError("expected a run folder beside a Config, found none; name one: train(config, 'runs/my')")
        return config, as_path(run)
    return load_config(config), default_run(config) if run is None else as_path(run)


def default_run(config: AnyPath) -> Path:
    """Where a config file's run goes if nobody says: my.toml's to runs/my, below the current folder."""
    return Path("runs") / as_path(config).stem


class Run:
    """One run folder, itself a path. It may come from somebody else: no link in it is followed out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)

    @staticmethod
    def create(path: Path, config: Config) -> "Run":
        """A new folder with the complete config in it."""
        run = Run(path)
        run.refuse_begun()
        try:
            path.mkdir(parents=True, exist_ok=True)
            with run.locked():  # by nobody who is about to begin
                write_atomically(path / "config.toml", dump_config(config).encode())
        except OSError as error:
            raise RunError(
                f"{path}: expected a folder to write to, found {error.strerror}; choose another --run"
            ) from None
        return run

    @staticmethod
    def open(path: Path) -> "Run":
        if not (path / "config.toml").is_file():
            raise RunError(f"{path}: expected a run folder with config.toml, found none; check the path")
        return Run(path)

    def config(self) -> Config:
        return load_config(self.place("config.toml"))

    def place(self, name: str) -> Path:
        """Where a file of the run is; refused where a link leads out of the folder."""
        try:
            place_below(self.path / name, self.path)
        except OSError as error:
            raise RunError(f"{self.path / name}: {error.strerror}") from None
        return self.path / name

    def write(self, name: str, content: bytes) -> None:
        """A file of the run, whole or not at all."""
        write_atomically(self.path / name, content, below=self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains here meanwhile; a killed process leaves no lock behind."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held(self.place(".lock"), wait=False))
            except Held as other:
                raise RunError(
                    f"{self.path}: another process is training here: {other}; wait for it or choose another --run"
                ) from None
            except OSError as error:
                raise RunError(f"{self.path}: expected a folder to write to, found {error.strerror}") from None
            yield

    def changing(self) -> contextlib.AbstractContextManager[str | None]:
        """While a file of results is read, added to and written again: one process at a time."""
        return held(self.place(".results.lock"))

    def refuse_begun(self) -> None:
        if self.begun:
            raise RunError(
                f"{self.path}: expected a new folder, found a run; use `filtergroups resume {self.path}` or another "
                "--run"
            )

    @property
    def begun(self) -> bool:
        """Has it been trained at all? One that failed before its first step has a config and nothing to lose."""
        return (self.path / "config.toml").exists() and (
            (self.path / "metrics.jsonl").exists() or any(self.path.glob("*.safetensors"))
        )

    def checkpoint(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"

    def statistics(self, checkpoint: str) -> Path:
        """Norm statistics of a checkpoint, recalibrated over the training data."""
        return self.path / f"statistics-{checkpoint}.safetensors"

    @property
    def calibration(self) -> Path:
        return self.path / "calibration.json"

    def log(self, text: str) -> None:
        append(self.path / "log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {shown(text)}\n", below=self.path)

    def record(self, entry: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        append(self.path / "metrics.jsonl", json.dumps(entry) + "\n", below=self.path)

    def metrics(self) -> list[dict[str, Any]]:
        return self.metrics_and_problem()[0]

    def metrics_and_problem(self) -> tuple[list[dict[str, Any]], str | None]:
        """The entries of metrics.jsonl, and a line where some could not be read: they are left out."""
        entries, problem = self._entries()
        return [entry for _, entry in entries], problem

    def _entries(self) -> tuple[list[tuple[str, dict[str, Any]]], str | None]:
        """Lines of metrics.jsonl with what they say, and what is wrong with others."""
        entries, bad, first = [], 0, ""
        for number, line in enumerate(self._complete_lines(), start=1):
            try:
                entries.append((line, entry_of(line)))
            except ValueError as error:
                bad, first = bad + 1, first or f"line {number}: {reason_of(error)}"
            if bad == MOST_BAD_LINES:  # whatever this file is: millions of such lines would take minutes
                break
        more = ", and all that follow," if bad == MOST_BAD_LINES else ""
        problem = f"metrics.jsonl: {bad} lines cannot be read{more} and are left out; {first}" if bad else None
        return entries, problem

    def _complete_lines(self) -> list[str]:
        path = self.path / "metrics.jsonl"
        try:
            with reading(path, "what training writes", RunError, "remove it"):
                text = read_bytes(path, MOST_METRICS, below=self.path).decode(errors="replace")
        except FileNotFoundError:
            return []
        return text[: text.rfind("\n") + 1].split("\n")[:-1]

    def forget_after(self, step: int) -> str | None:
        """Drop what was written after a checkpoint: the steps are about to be done again.

        Lines that cannot be read are dropped too; the answer says so.
        """
        entries, problem = self._entries()
        kept = [line for line, entry in entries if entry["step"] <= step]
        self.write("metrics.jsonl", "".join(f"{line}\n" for line in kept).encode())
        for file in saved_assignments(self):
            if step_of(file) > step:
                file.unlink()
        return problem

    def forget_results_after(self, step: int) -> None:
        """Drop what was measured of later checkpoints, which will be others: results, norm statistics, calibration."""
        with self.changing():
            results = self.results()
            kept = [result for result in results if result.get("step", 0) <= step]
            if len(kept) < len(results):
                self.write("results.json", json.dumps(kept, indent=1).encode())
        for file in (*self.path.glob("statistics-*.safetensors"), self.calibration):
            file.unlink(missing_ok=True)  # which are made again when they are needed

    def results(self) -> list[dict[str, Any]]:
        path = self.path / "results.json"
        remedy = "move it away, then `filtergroups evaluate` again"
        try:
            found = read_model(list[Result], path, "what `evaluate` writes", RunError, remedy, below=self.path)
        except FileNotFoundError:
            return []
        return [as_kept(result) for result in found]

    def save_result(self, result: dict[str, Any]) -> None:
        """Keep a result beside those of other splits, samples, checkpoints and norms."""
        same = ("split", "samples", "checkpoint", "data", "statistics")
        with self.changing():
            others = [old for old in self.results() if any(old.get(key) != result.get(key) for key in same)]
            self.write("results.json", json.dumps([*others, result], indent=1).encode())


def saved_assignments(run: Run) -> list[Path]:
    """The files with p at some steps, in their order; names that are not ours are left alone."""
    return sorted(file for file in run.place("assignments").glob("step_*.npz") if STEP.fullmatch(file.name))


def step_of(file: Path) -> int:
    return int(file.stem.removeprefix("step_"))
