"""Two commands at once on one run or one cache: nothing is lost, nobody waits without a word or for the dead."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from filtergroups.config import TableData
from filtergroups.config_file import make_config
from filtergroups.correction import Correction, load_corrections, save_corrections
from filtergroups.data.splits import read_split
from filtergroups.data.table import table_split
from filtergroups.locks import held
from filtergroups.run import Run
from filtergroups.training import train
from tests.data.pictures import picture_table, table_tree

HOLDER = """
import sys, time
from pathlib import Path
from filtergroups.data.splits import read_split
from filtergroups.data.table import table_split
from filtergroups.locks import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""
ROUNDS = 20
SPLITS = ("train", "selection", "validation", "test")  # what each writer has


@pytest.fixture
def holder():
    started = []

    def hold(path, seconds=60):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def test_who_waits_says_within_two_seconds_for_whom_and_on_which_file(tmp_path, holder, capfd):
    path = tmp_path / "a.lock"
    other = holder(path, seconds=3)
    began = time.monotonic()
    with held(path):
        waited = time.monotonic() - began
    assert waited < 10
    said = capfd.readouterr().err
    assert said.startswith(f"waiting for process {other.pid} on ")
    assert said.endswith(f"which holds {path}\n")
    assert said.count("\n") == 1


def test_a_short_wait_is_not_spoken_of(tmp_path, holder, capfd):
    other = holder(tmp_path / "a.lock", seconds=0)
    with held(tmp_path / "a.lock"):
        pass
    other.wait()
    assert capfd.readouterr().err == ""


def test_the_lock_of_a_killed_process_is_not_waited_for(tmp_path, holder, capfd):
    path = tmp_path / "a.lock"
    other = holder(path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    began = time.monotonic()
    with held(path) as killed:
        assert time.monotonic() - began < 1
        assert f"process {other.pid} " in killed
    with held(path) as killed:
        assert killed is None  # the one before ended in order
    assert capfd.readouterr().err == ""
    assert [file.name for file in tmp_path.iterdir()] == ["a.lock"]


def test_what_a_holder_says_is_shown_harmlessly(tmp_path, holder, capfd):
    """A lock may lie in a folder of somebody else's."""
    path = tmp_path / "a.lock"
    holder(path, seconds=2)
    (tmp_path / "a.lock.holder").write_text("\x1b[2J\nrm -rf" + 5000 * "x")
    with held(path):
        pass
    said = capfd.readouterr().err
    assert "\x1b" not in said
    assert said.count("\n") == 1
    assert len(said) < 400 + len(str(path))


def saves(path, number, rounds, start):
    run = Run(path)
    start.wait()
    for turn in range(rounds):
        result = {"split": SPLITS[number], "samples": turn, "checkpoint": "best", "data": None, "statistics": "running"}
        run.save_result({**result, "examples": 9, "tasks": {}, "plain": {}, "calibration": {}, "notes": []})
        save_corrections(run, ("mode", "sampled")[number % 2], turn, {"age": Correction("scale", number, 9)})


def test_results_of_many_processes_are_all_kept(tmp_path):
    """Real processes, many rounds: each reads, adds and writes the same files."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(len(SPLITS))
    writers = [context.Process(target=saves, args=(tmp_path, n, ROUNDS, start)) for n in range(len(SPLITS))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    found = {(result["split"], result["samples"]) for result in Run(tmp_path).results()}
    assert found == {(split, turn) for split in SPLITS for turn in range(ROUNDS)}
    for kind in ("mode", "sampled"):
        assert load_corrections(Run(tmp_path), kind, ROUNDS - 1)[0]
    assert {file.name for file in tmp_path.iterdir()} == {"results.json", "calibration.json", ".results.lock"}


def draws(table, seed, rounds, start, found):
    rows = [{"image": f"{n}.png"} for n in range(40)]
    for turn in range(rounds):
        config = TableData(kind="table", table=table, root=table.parent, split_file=table.with_name(f"{turn}.csv"))
        start.wait()
        found.put((turn, tuple(sorted(table_split(config, rows, [row["image"] for row in rows], seed).items()))))


def test_of_two_trainings_that_draw_a_split_at_once_both_go_by_the_one_that_is_kept(tmp_path):
    """Else one of them would later be evaluated on what it was trained on."""
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(2), context.Queue()
    drawers = [context.Process(target=draws, args=(tmp_path / "t.csv", seed, ROUNDS, start, found)) for seed in (0, 1)]
    for drawer in drawers:
        drawer.start()
    used = [found.get(timeout=120) for _ in range(2 * ROUNDS)]
    for drawer in drawers:
        drawer.join(60)
    assert drawers[0].exitcode == drawers[1].exitcode == 0
    for turn, split in used:
        assert dict(split) == read_split(tmp_path / f"{turn}.csv")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    picture_table(folder)
    train(make_config(table_tree(folder, folder / "labels.csv", epochs=1)), folder / "run")
    return folder / "run"


def test_two_evaluations_and_others_at_once_lose_no_result(run, tmp_path):
    """As a user types them, all at the same time."""
    commands = [
        ["evaluate", run, "--samples", "0"],
        ["evaluate", run, "--samples", "2"],
        ["evaluate", run, "--samples", "2", "--split", "validation"],
        ["evaluate", run, "--samples", "2", "--checkpoint", "last"],
        ["calibrate", run, "--samples", "0"],
        ["calibrate", run, "--samples", "2"],
        ["export", run, "--to", "safetensors"],
        ["export", run, "--to", "safetensors", "--task", "level"],
        ["predict", run, run.parent / "images", "-o", tmp_path / "out.csv", "--samples", "2"],
        ["report", run, "-o", tmp_path / "report.html"],
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "filtergroups.cli", *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for command in commands
    ]  # fmt: skip
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    found = {(result["split"], result["samples"], result["checkpoint"]) for result in Run(run).results()}
    of_training = ("validation", 4, "best")
    mine = {("test", 0, "best"), ("test", 2, "best"), ("validation", 2, "best"), ("test", 2, "last")}
    assert found == {of_training, *mine}
    assert set(json.loads((run / "calibration.json").read_text())) == {"mode", "sampled", "step"}
    assert len(json.loads((run / "export.json").read_text())) == 2
    left = [file.name for file in run.iterdir() if file.name.endswith((".filtergroups", ".part", ".holder"))]
    assert left == []
