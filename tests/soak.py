"""Kill every command at random moments, run it again, and compare with what an undisturbed one gives: `make soak`.

Outside of CI. Stopped, it goes on where it was; a folder that is done, or of other settings, is begun anew.
"""

import argparse
import atexit
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from filtergroups.checkpoint import load_checkpoint
from filtergroups.config_file import dump_config, make_config
from filtergroups.run import Run
from tests.data.pictures import picture_table, table_tree
from tests.test_processes import of_rank

# How the kills are shared out: by stage, of a hundred.
SHARES = {
    "train": 22, "rewind": 16, "two processes": 8, "cache": 12,
    "evaluate": 10, "calibrate": 8, "export": 8, "report": 8, "predict": 8,
}  # fmt: skip
FIX_AT = 0.4  # of the training, the kernels are fixed and the weights begin anew
LEFT_OVER = ("*.part", "*.filtergroups", "*.holder", "tmp*")
SOONER = (
    1.0,
    0.7,
    0.4,
    0.2,
)  # of the drawn moment, where a command had ended by then: the machine is faster than it was
LONGEST = 600  # seconds of one command
MEASURED = ("latency_ms", "time", "seconds")  # what two undisturbed runs differ in, too


@dataclass
class Outcome:
    """One kill: was anything lost, did anything differ, what was left behind."""

    stage: str
    killed: bool
    seconds: float
    lost: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Soak:
    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.seed = home, seed
        self.environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1",
        }  # fmt: skip
        self.run, self.two, self.out = home / "run", home / "two", home / "out"
        self.config, self.config_of_two = home / "one.toml", home / "two.toml"

    # Commands

    def command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "filtergroups.cli", *map(str, words)]

    def of_stage(self, stage: str) -> list[str]:
        """As a user types it."""
        images = self.home / "data" / "images"
        return {
            "cache": self.command("evaluate", self.run, "--samples", 0),
            "evaluate": self.command("evaluate", self.run, "--samples", 0),
            "calibrate": self.command("calibrate", self.run, "--samples", 0),
            "export": self.command("export", self.run, "--force"),
            "report": self.command("report", self.run, "-o", self.out / "report.html", "--force"),
            "predict": self.command("predict", self.run, images, "-o", self.out / "out.csv", "--samples", 0, "--force"),
        }[stage]

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        # To a file, as nobody reads a pipe while a process is waited for.
        errors = (self.home / "errors").open("w")
        with errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, text=True, env=self.environment, cwd=self.home
            )
        atexit.register(self.process.kill)  # where this script is stopped, nobody goes on to write to its folder
        return self.process

    def finish(self, command: list[str]) -> str | None:
        """Run to the end; what went wrong, else nothing."""
        process = self.start(command)
        try:
            code = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"{command[3]} did not end within {LONGEST} s"
        said = (self.home / "errors").read_text(errors="replace").strip().splitlines()
        return None if code == 0 else f"{command[3]} ended with {code}: {said[-1] if said else 'without a word'}"

    def must(self, command: list[str]) -> float:
        began = time.monotonic()
        if problem := self.finish(command):
            raise SystemExit(f"an undisturbed {problem}")
        return time.monotonic() - began

    # What there is to compare with

    def prepare(self) -> None:
        """Data, undisturbed runs, and what the commands give: once."""
        picture_table(self.home / "data", count=160)
        tree = table_tree(self.home / "data", self.home / "data" / "labels.csv")
        tree["data"].pop("cache")
        tree["method"] = {"per_example": True}
        tree["temperature"] = {"noise_warmup": True}
        tree["training"] |= {"epochs": 10, "finetune_epochs": 6, "rewind": True, "checkpoint_every": 7}
        self.config.write_text(dump_config(make_config(tree)))
        tree["training"] |= {"epochs": 5, "finetune_epochs": 3, "devices": 2}
        self.config_of_two.write_text(dump_config(make_config(tree)))
        times = {"train": self.must(self.command("train", self.config, "--run", self.run))}
        self.keep(self.run, "trained")
        self.must(self.command("train", self.config_of_two, "--run", self.two))
        self.keep(self.two, "trained-by-two")
        self.out.mkdir()
        self.must(self.command("evaluate", self.run, "--samples", 0, "--split", "validation"))
        for stage in ("evaluate", "calibrate", "export", "report", "predict"):
            times[stage] = self.must(self.of_stage(stage))
        # Once more: the figures of an evaluation know the calibration, and a report shows what is there.
        for stage in ("evaluate", "report"):
            self.must(self.of_stage(stage))
        self.keep(self.run, "done")
        self.keep(self.out, "out-done")
        self.before_fixing()
        (self.home / "times.json").write_text(json.dumps(times))

    def keep(self, folder: Path, name: str) -> None:
        shutil.copytree(folder, self.home / "kept" / name)

    def back(self, name: str, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.home / "kept" / name, folder)

    def before_fixing(self) -> None:
        """A run that was stopped shortly before its kernels are fixed."""
        run = self.home / "early"
        last = max(entry["step"] for entry in Run(self.run).metrics())
        process = self.start(self.command("train", self.config, "--run", run))
        while process.poll() is None and step_of(run) < FIX_AT * last - 14:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait(LONGEST)
        if step_of(run) >= FIX_AT * last:
            raise SystemExit("the run could not be stopped before its kernels were fixed; try again")
        self.keep(run, "early")

    # Kills

    def outcome(self, stage: str, number: int) -> Outcome:
        draw = random.Random(f"{self.seed}/{stage}/{number}")
        began = time.monotonic()
        self.times: dict[str, float] = json.loads((self.home / "times.json").read_text())
        how: dict[str, Callable[[random.Random], Outcome]] = {
            "train": self.kill_training, "rewind": self.kill_rewind, "two processes": self.kill_one_of_two,
            "cache": self.kill_cache,
        }  # fmt: skip
        outcome = how[stage](draw) if stage in how else self.kill_command(stage, draw)
        outcome.seconds = time.monotonic() - began
        return outcome

    def kill_training(self, draw: random.Random) -> Outcome:
        """At any moment, the first ones of Python's start included."""
        for share in SOONER:
            shutil.rmtree(self.run, ignore_errors=True)
            process = self.start(self.command("train", self.config, "--run", self.run))
            time.sleep(share * draw.uniform(0.1, 1.0) * self.times["train"])
            if killed := kill(process):
                break
        return self.go_on(Outcome("train", killed, 0.0), self.run, self.config, "trained")

    def kill_rewind(self, draw: random.Random) -> Outcome:
        """Around the moment when the kernels are fixed and the weights begin anew."""
        self.back("early", self.run)
        process = self.start(self.command("resume", self.run))
        log = self.run / "log.txt"
        delay = draw.choice([0.0, draw.uniform(0, 0.05), draw.uniform(0, 0.5)])
        while process.poll() is None and "every kernel is now fixed" not in log.read_text():
            time.sleep(0.001)
        time.sleep(delay)
        return self.go_on(Outcome("rewind", kill(process), 0.0), self.run, self.config, "trained")

    def kill_one_of_two(self, draw: random.Random) -> Outcome:
        shutil.rmtree(self.two, ignore_errors=True)
        outcome = Outcome("two processes", False, 0.0)
        process = self.start(self.command("train", self.config_of_two, "--run", self.two))
        while process.poll() is None and not Run(self.two).checkpoint("last").exists():
            time.sleep(0.05)
        time.sleep(draw.uniform(0, 3))
        if process.poll() is None:
            ranks = [of_rank(self.two, number) for number in (0, 1)]
            victim = draw.choice(ranks)
            os.kill(victim, signal.SIGKILL)
            outcome.killed = True
            until = time.monotonic() + 60
            process.wait(LONGEST)
            while any(Path(f"/proc/{rank}").exists() for rank in ranks) and time.monotonic() < until:
                time.sleep(0.1)
            if any(Path(f"/proc/{rank}").exists() for rank in ranks):
                outcome.lost.append("a process was there a minute after the other was killed")
            lines = (self.home / "errors").read_text().splitlines()
            if sum("go on with" in line for line in lines) != 1:
                outcome.lost.append(f"{sum('go on with' in line for line in lines)} lines said how to go on")
        return self.go_on(outcome, self.two, self.config_of_two, "trained-by-two")

    def go_on(self, outcome: Outcome, run: Path, config: Path, kept: str) -> Outcome:
        """As the message says: resume, or train where nothing was begun."""
        words = ("resume", run) if (run / "config.toml").exists() else ("train", config, "--run", run)
        if problem := self.finish(self.command(*words)):
            outcome.lost.append(problem)
            return outcome
        outcome.differs += differences(self.home / "kept" / kept, run)
        outcome.left += left_over(run, self.home / "cache")
        return outcome

    def kill_cache(self, draw: random.Random) -> Outcome:
        self.back("done", self.run)
        shutil.rmtree(self.home / "cache", ignore_errors=True)
        process = self.start(self.of_stage("cache"))
        while process.poll() is None and not any((self.home / "cache").rglob("*.*")):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.3))
        return self.again("cache", Outcome("cache", kill(process), 0.0))

    def kill_command(self, stage: str, draw: random.Random) -> Outcome:
        """From a third of its time on: before that Python is still importing."""
        for share in SOONER:
            self.back("done", self.run)
            self.back("out-done", self.out)
            process = self.start(self.of_stage(stage))
            time.sleep(share * draw.uniform(0.35, 1.0) * self.times[stage])
            if killed := kill(process):
                break
        return self.again(stage, Outcome(stage, killed, 0.0))

    def again(self, stage: str, outcome: Outcome) -> Outcome:
        if problem := self.finish(self.of_stage(stage)):
            outcome.lost.append(problem)
            return outcome
        outcome.differs += differences(self.home / "kept" / "done", self.run)
        if self.out.exists() and stage != "cache":
            outcome.differs += differences(self.home / "kept" / "out-done", self.out)
        outcome.left += left_over(self.run, self.out, self.home / "cache")
        return outcome


def kill(process: subprocess.Popen[str]) -> bool:
    """Was it there to be killed?"""
    there = process.poll() is None
    process.kill()
    process.wait()
    return there


def step_of(run: Path) -> int:
    file = Run(run).checkpoint("last")
    return load_checkpoint(file)[0].step if file.exists() else 0


def differences(kept: Path, found: Path) -> list[str]:
    """What files of two folders hold differently, or only one has."""
    names = {
        str(path.relative_to(folder)) for folder in (kept, found) for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
        and path.name not in ("log.txt", "hparams.yaml") and "tensorboard" not in path.parts
    }  # fmt: skip
    return sorted(name for name in names if fingerprint(kept / name) != fingerprint(found / name))


def fingerprint(path: Path) -> object:
    """What a file holds, without times."""
    if not path.exists():
        return None
    if path.suffix == ".safetensors":
        return {name: digest(tensor.numpy().tobytes()) for name, tensor in load_file(path).items()}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: digest(arrays[name].tobytes()) for name in arrays}
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return [sorted_entries(timeless(json.loads(line))) for line in lines]
    return digest(path.read_bytes())


def timeless(value: object) -> object:
    if isinstance(value, dict):
        return {key: timeless(of) for key, of in value.items() if key not in MEASURED}
    return [timeless(of) for of in value] if isinstance(value, list) else value


def sorted_entries(value: object) -> object:
    """The entries of a list of results come in the order in which they were made."""
    return sorted(value, key=lambda one: json.dumps(one, sort_keys=True)) if isinstance(value, list) else value


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def left_over(*folders: Path) -> list[str]:
    return [str(path) for folder in folders for pattern in LEFT_OVER for path in folder.rglob(pattern)]


def planned(kills: int) -> list[tuple[str, int]]:
    """Stage and number of each kill; every stage has one at least, and they take turns."""
    counts = {stage: max(1, round(share * kills / sum(SHARES.values()))) for stage, share in SHARES.items()}
    most = max(counts.values())
    return [(stage, number) for number in range(most) for stage, count in counts.items() if number < count]


def outcomes_of(file: Path) -> Iterator[Outcome]:
    for line in file.read_text().splitlines() if file.exists() else []:
        yield Outcome(**json.loads(line))


def table(outcomes: list[Outcome]) -> str:
    lines = [
        f"{'stage':<14} {'tried':>6} {'kills':>6} {'losses':>7} {'differences':>12} {'left over':>10} {'seconds':>8}"
    ]
    for stage in (*SHARES, "all"):
        of = [one for one in outcomes if stage in (one.stage, "all")]
        numbers = (len(of), sum(one.killed for one in of), *(sum(bool(getattr(one, what)) for one in of)
                   for what in ("lost", "differs", "left")), sum(one.seconds for one in of))  # fmt: skip
        lines.append("{:<14} {:>6} {:>6} {:>7} {:>12} {:>10} {:>8.0f}".format(stage, *numbers))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30, help="no kill is begun after these; call again to go on")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "filtergroups-soak")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began, home, todo = time.monotonic(), asked.folder.resolve(), planned(asked.kills)
    file, settings = home / "outcomes.jsonl", json.dumps([asked.kills, asked.seed])
    known = home / "settings.json"
    going_on = known.exists() and known.read_text() == settings and len(list(outcomes_of(file))) < len(todo)
    soak = Soak(home, asked.seed)
    if not going_on:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        print("undisturbed runs to compare with ...", flush=True)
        soak.prepare()
        known.write_text(settings)
    outcomes = list(outcomes_of(file))
    for number, (stage, of_stage) in enumerate(todo[len(outcomes) :], start=len(outcomes) + 1):
        if time.monotonic() - began > 60 * asked.minutes:
            print(f"{asked.minutes:g} minutes are over; the same command goes on")
            break
        outcome = soak.outcome(stage, of_stage)
        outcomes.append(outcome)
        with file.open("a") as lines:
            lines.write(json.dumps(vars(outcome)) + "\n")
        problems = "; ".join([*outcome.lost, *(f"differs: {name}" for name in outcome.differs),
                              *(f"left over: {name}" for name in outcome.left)])  # fmt: skip
        was = "killed" if outcome.killed else "had ended"
        print(f"{number}/{len(todo)} {stage}: {was}, {outcome.seconds:.0f} s: {problems or 'the same'}", flush=True)
    print(table(outcomes))
    bad = any(one.lost or one.differs or one.left for one in outcomes)
    return 1 if bad else 0 if len(outcomes) == len(todo) else 3


if __name__ == "__main__":
    sys.exit(main())
