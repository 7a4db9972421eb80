"""All runs of an experiment: what is done is skipped, what was stopped goes on, and one page says how far it is."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filtergroups.paths import AnyPath, as_path, optional_path
from filtergroups.progress import Reporter, Silent
from filtergroups.reproduction.datasets import locate
from filtergroups.reproduction.experiment import SCALES, at_scale, load_experiment
from filtergroups.reproduction.planning import (
    Job,
    all_settings,
    describe,
    generated,
    jobs_to_do,
    plan,
    prepare,
    wanted_jobs,
)
from filtergroups.reproduction.records import recorded, recorded_seeds, set_aside
from filtergroups.reproduction.work import outcome, perform
from filtergroups.run import RunError
from filtergroups.signals import Stopped

RUNS, RESULTS = Path("runs/reproduce"), Path("docs/results")
DEFAULTS: dict[str, Any] = {
    "--scale": "cpu", "--data": None, "--runs": RUNS, "--results": RESULTS, "--jobs": 1, "--models": None,
}  # fmt: skip
# glibc gives large blocks back to the system after each step and asks for them again in the next: let it keep them.
KEEPING_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2 * 10**9), "MALLOC_TOP_PAD_": str(2**26),
}  # fmt: skip


class StoppedAmongRuns(Stopped):
    """An experiment was asked to stop; what was done is saved."""

    def __init__(self, command: str, number: int) -> None:
        Exception.__init__(self, f"stopped, and all is saved; go on with: {command}")
        self.exit_code = 128 + number


def reproduce(
    name: str,
    *,
    seeds: int = 3,
    scale: str = "cpu",
    data: AnyPath | None = None,
    runs: AnyPath = RUNS,
    results: AnyPath = RESULTS,
    overrides: Sequence[str] = (),
    jobs: int = 1,
    rows: Sequence[str] = (),
    models: AnyPath | None = None,
    go_on: bool = False,
    report: Reporter | None = None,
) -> dict[str, Any]:
    """Make every run of an experiment and write RESULTS/NAME.json and NAME.md; the summary is returned.

    seeds: runs of each row. scale: `cpu` or the `paper`'s own size. data: the data set's folder or one that holds it.
    overrides: 'section.key=value' for every row; the page then says so. jobs: runs at once, a process and a core each.
    rows: only these (and what they start from) are run; the page has all that are done. models: each row's best run of
    those that are done is copied to MODELS/NAME/ROW, without anything of the data. go_on: runs that a results file has
    with the same settings count as done, wherever they were made; of other seeds, too, they stay on the page.
    """
    from filtergroups.reproduction.models import keep_models
    from filtergroups.reproduction.page import write_page
    from filtergroups.reproduction.summary import summarise

    if scale not in SCALES:
        raise ValueError(f"--scale is one of {list(SCALES)}, found {scale!r}; choose one")
    if seeds < 1 or jobs < 1:
        raise ValueError(f"--seeds and --jobs are 1 or more, found {seeds} and {jobs}")
    told = report or Silent()
    data, runs, results, models = optional_path(data), as_path(runs), as_path(results), optional_path(models)
    experiment = load_experiment(name).at(scale)
    if not experiment.rows:
        raise ValueError(f"{name} has one size, found --scale {scale}; leave it out")
    if experiment.maker != "training" and (scale != "cpu" or models is not None):
        raise ValueError(f"{name} has one size and no networks to keep; leave out --scale and --models")
    where = locate(experiment.data, data, told.say) if experiment.data else generated(runs, scale)
    file = results / f"{at_scale(name, scale)}.json"
    planned = plan(experiment, max(seeds, recorded_seeds(file) if go_on else 0), scale, runs)
    made_from = {job: describe(experiment, job, scale, where, overrides) for job in planned}
    expected = all_settings(made_from)
    homes = dict.fromkeys([name, *(row.home for row in experiment.rows)])
    files = [results / f"{at_scale(home, scale)}.json" for home in homes]
    elsewhere = recorded(files, expected) if go_on else {}
    on_page = max([seeds, *(job.seed + 1 for job in elsewhere)])
    planned = [job for job in planned if job.seed < on_page]
    wanted = wanted_jobs(experiment, [job for job in planned if job.seed < seeds], rows)
    for job in planned:
        if job.folder.exists():
            prepare(job, *made_from[job], expected[job]["after"])
    # What makes the whole page, wherever and in however many parts it was made; and what goes on with this part.
    command = _command(name, on_page, scale, overrides)
    here = {"--data": data, "--runs": runs, "--results": results, "--jobs": jobs, "--models": models}
    again = _command(name, seeds, scale, overrides, here, rows, go_on)

    def publish() -> dict[str, Any]:
        done = {job: of for job in planned if (of := outcome(job.folder) or elsewhere.get(job)) is not None}
        summary = summarise(
            experiment, {job: {**of, "settings": expected[job]} for job, of in done.items()}, of=len(planned),
            scale=scale, command=command, overrides=list(overrides),
        )  # fmt: skip
        if (kept := set_aside(file, summary)) is not None:
            how = "" if go_on else "; to count them as done, move it back and give --go-on"
            told.say(f"{file}: {kept[0]} of its runs are not among these; kept as {kept[1]}{how}")
        write_page(summary, results)
        return summary

    todo = jobs_to_do(wanted, set(elsewhere))
    for job in todo:
        prepare(job, *made_from[job], expected[job]["after"])
    told.say(f"{name}: {len(wanted) - len(todo)} of {len(wanted)} runs are done")
    summary = publish()
    try:
        with terminating():
            for job in _one_by_one(todo, told) if jobs == 1 else _side_by_side(todo, jobs, told):
                summary = publish()
                values = ", ".join(_shown(summary, job))
                told.say(f"{job.folder.name}: {values} ({summary['finished']} of {summary['of']} runs)")
    except Stopped as stopped:
        raise StoppedAmongRuns(again, stopped.exit_code - 128) from None
    except KeyboardInterrupt:
        raise StoppedAmongRuns(again, signal.SIGINT) from None
    if models is not None:
        own = [job for job in wanted if job.row.home == name]
        for folder in keep_models(own, models / at_scale(name, scale), experiment.data, elsewhere):
            told.say(f"{folder}: kept")
    return summary


def _one_by_one(jobs: list[Job], report: Reporter) -> Iterator[Job]:
    for job in jobs:
        report.say(f"{job.folder}")
        perform(job.folder, report)
        yield job


def _side_by_side(jobs: list[Job], at_once: int, report: Reporter) -> Iterator[Job]:
    """A process and a core for each run; when one ends the next begins."""
    waiting, running = list(jobs), dict[Job, subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            for job in [job for job in waiting if job.ready][: at_once - len(running)]:
                waiting.remove(job)
                running[job] = _process(job.folder)
                report.say(f"{job.folder}")
            done = _first_done(running)
            code = running.pop(done).returncode
            if code:
                raise RunError(f"{done.folder}: the run failed: {_last_line(done.folder / 'work.log')}")
            yield done
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)  # a training finishes its step and saves
        for process in running.values():
            process.wait()


def _process(folder: Path) -> "subprocess.Popen[bytes]":
    # One thread each: two processes of two threads on two cores slow each other down several times.
    environment = {**KEEPING_MEMORY, **os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "filtergroups.reproduction.work", str(folder)]
    with (folder / "work.log").open("ab") as log:
        # A session of its own: Ctrl-C reaches this process only, which then tells the others in order.
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def _first_done(running: "dict[Job, subprocess.Popen[bytes]]") -> Job:
    while True:
        for job, process in running.items():
            if process.poll() is not None:
                return job
        time.sleep(0.2)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


@contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM between trainings ends the work as Ctrl-C does; during one, training itself listens."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped("", 0, number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _shown(summary: dict[str, Any], job: Job) -> Iterator[str]:
    row = next(row for row in summary["rows"] if row["folder"] == f"{job.row.home}/{job.row.name}")
    values = next(run["values"] for run in row["runs"] if run["seed"] == job.seed)
    for column in summary["columns"][:4]:
        if column["key"] in values:
            yield f"{column['label']} {values[column['key']]:.4g}"


def _command(
    name: str,
    seeds: int,
    scale: str,
    overrides: Sequence[str],
    options: Mapping[str, Any] | None = None,
    rows: Sequence[str] = (),
    go_on: bool = False,
) -> str:
    """What a user types; options that have their default are left out."""
    words = ["filtergroups", "reproduce", name, "--seeds", str(seeds)]
    for option, value in {"--scale": scale, **(options or {})}.items():
        words += [option, str(value)] if value != DEFAULTS[option] else []
    words += ["--go-on"] if go_on else []
    for option, several in (("--row", rows), ("--set", overrides)):
        for value in several:
            words += [option, value]
    return shlex.join(words)
