"""Runs are made once, can be stopped and gone on with, alone or side by side."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import filtergroups as fg
from filtergroups.reproduction import runner, work
from filtergroups.reproduction.datasets import locate
from filtergroups.reproduction.experiment import load_experiment
from filtergroups.reproduction.planning import describe, plan, prepare
from filtergroups.reproduction.work import outcome, perform
from filtergroups.run import RunError
from filtergroups.signals import Stopped
from tests.reproduction.conftest import FACES

ROWS = ("hard_sharing", "one_task")


def small(toys, folder, **options):
    given = {"seeds": 1, "data": toys, "runs": folder / "runs", "results": folder / "results", "overrides": FACES}
    return fg.reproduce("faces-small", **{"rows": ROWS, **given, **options})


def test_what_is_done_is_not_done_again(toys, tmp_path, monkeypatch):
    first = small(toys, tmp_path)
    monkeypatch.setattr(runner, "perform", lambda *args: pytest.fail("a finished run was run again"))
    again = small(toys, tmp_path)
    assert [row["runs"] for row in again["rows"]] == [row["runs"] for row in first["rows"]]
    assert again["finished"] == 2
    assert again["of"] == 6


def test_a_folder_of_another_config_is_refused(toys, tmp_path):
    small(toys, tmp_path, rows=["one_task"])
    with pytest.raises(RunError, match=r"one_task-seed0: expected .* found another training\.learning_rate"):
        small(toys, tmp_path, rows=["one_task"], overrides=(*FACES, "training.learning_rate=0.1"))


def test_data_that_moved_are_the_same_data(toys, tmp_path):
    small(toys, tmp_path, rows=["one_task"])
    moved = tmp_path / "moved"
    moved.symlink_to(toys, target_is_directory=True)
    assert small(moved, tmp_path, rows=["one_task"])["finished"] == 1


def test_a_stopped_experiment_says_how_to_go_on_and_its_end_is_the_same(toys, tmp_path, monkeypatch):
    whole = small(toys, tmp_path / "whole", rows=["hard_sharing"])
    from filtergroups.training import Trainer

    step = Trainer._step

    def interrupted(self, number):
        step(self, number)
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_step", interrupted)
    with pytest.raises(
        Stopped, match=r"go on with: filtergroups reproduce faces-small --seeds 1 .*--row hard"
    ) as error:
        small(toys, tmp_path / "stopped", rows=["hard_sharing"])
    assert error.value.exit_code == 128 + signal.SIGTERM
    page = (tmp_path / "stopped" / "results" / "faces-small.md").read_text()
    assert "Unfinished: 0 of 6 runs" in page
    folder = tmp_path / "stopped" / "runs" / "faces-small" / "hard_sharing-seed0"
    before = work.spent(folder)
    assert before > 0
    monkeypatch.setattr(Trainer, "_step", step)
    gone_on = small(toys, tmp_path / "stopped", rows=["hard_sharing"])
    values = [next(row for row in of["rows"] if row["runs"])["runs"][0]["values"] for of in (whole, gone_on)]
    assert values[0] == values[1]
    assert outcome(folder)["seconds"] > before


def test_runs_side_by_side_give_what_one_by_one_gives(toys, tmp_path):
    one = small(toys, tmp_path / "one")
    two = small(toys, tmp_path / "two", jobs=2)
    assert [[run["values"] for run in row["runs"]] for row in one["rows"]] == [
        [run["values"] for run in row["runs"]] for row in two["rows"]
    ]
    assert two["made"]["threads"] == [1]


def test_a_run_that_fails_beside_others_is_named(toys, tmp_path):
    options = (*FACES, "training.batch_size=4000")
    with pytest.raises(RunError, match=r"seed0: the run failed: error: expected at least one batch of 4000"):
        small(toys, tmp_path, jobs=2, rows=ROWS[:1], overrides=options)


def test_a_terminated_command_stops_its_processes_and_goes_on_later(toys, tmp_path):
    command = [
        sys.executable, "-m", "filtergroups.cli", "reproduce", "faces-small", "--seeds", "1", "--data", str(toys),
        "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--jobs", "2",
        "--row", "sfg", "--row", "one_task",
    ]  # fmt: skip
    settings = [word for override in (*FACES, "training.epochs=4000") for word in ("--set", override)]
    process = subprocess.Popen([*command, *settings], stderr=subprocess.PIPE, text=True)
    metrics = [tmp_path / "runs" / "faces-small" / f"{row}-seed0" / "metrics.jsonl" for row in ("sfg", "one_task")]
    waited = time.monotonic() + 60
    while not all(file.exists() and file.stat().st_size for file in metrics) and time.monotonic() < waited:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "go on with: filtergroups reproduce faces-small" in said
    for file in metrics:
        assert (file.parent / "last.safetensors").exists()  # the step was finished and saved
        assert "stopped at step" in (file.parent / "work.log").read_text()


def test_a_job_is_done_from_its_folder_alone(toys, tmp_path):
    experiment = load_experiment("faces-small")
    job = next(job for job in plan(experiment, 1, "cpu", tmp_path) if job.row.name == "sfg")
    prepare(job, *describe(experiment, job, "cpu", locate("UTKFace", toys), FACES), None)
    result = perform(job.folder)
    assert set(result["values"]) == {"age.mae", "gender.accuracy"}
    assert result["split"] == "validation"
    assert json.loads((job.folder / "outcome.json").read_text()) == result
    assert len(result["proportions"]["learned"]) == len(result["proportions"]["layers"]) == 8


def test_wrong_words_are_answered_in_one_line(toys, tmp_path):
    for wrong, said in (
        ({"scale": "gpu"}, "--scale is one of"), ({"seeds": 0}, "1 or more"), ({"rows": ["sgf"]}, "--row is one of"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            small(toys, tmp_path, **wrong)
    for name in ("faces", "../experiments/faces-small"):
        with pytest.raises(ValueError, match="an experiment is one of duplicates, faces-full"):
            fg.reproduce(name)
    for given, said in (
        ({"overrides": ["stepz=3"]}, "--set of planted is one of tasks, groups"),
        ({"overrides": ["steps='few'"]}, "--set steps: expected a value like 1200, found 'few'"),
        ({"scale": "paper"}, "planted has one size"), ({"models": tmp_path}, "no networks to keep"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            fg.reproduce("planted", runs=tmp_path / "runs", results=tmp_path / "results", **given)
    assert not (tmp_path / "results").exists()
