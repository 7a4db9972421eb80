"""Several processes: they train what one trains, and they end as one does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from filtergroups.config_file import dump_config, make_config
from filtergroups.restored import open_run
from filtergroups.run import Run
from filtergroups.statistics import statistics_for
from filtergroups.training import train
from tests.data.pictures import picture_table, table_tree
from tests.several import CASES, name_of, trained

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
CLI = ["-m", "filtergroups.cli", "--"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def done(command, **how):
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False, **how
    )


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """What two real processes trained, each with half of every batch."""
    file = tmp_path_factory.mktemp("several") / "states.pt"
    ended = done([*TORCHRUN, "-m", "tests.several", file])
    assert ended.returncode == 0, ended.stderr[-3000:]
    return torch.load(file)


def is_bias_before_a_norm(name, state):
    """It has no gradient but rounding, which Adam turns into steps without any effect on what follows the norm."""
    return name.startswith("backbone.") and name.replace(".bias", ".assignment.rho") in state and "bias" in name


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_two_processes_with_half_a_batch_each_train_what_one_does(of_two, case):
    """In double precision, so that rounding is all that may differ: sums of halves, at 1e-16 of a number.

    Adam divides small gradients by their own size: after five steps 1e-8 of a parameter was the most that was seen, and
    1e-13 of a loss. Where each process draws gates of its own, losses differ by a tenth.
    """
    alone, found = trained(case), of_two[name_of(case)]
    assert alone.keys() == found.keys()
    torch.testing.assert_close(found["losses"], alone["losses"], rtol=1e-10, atol=0)
    for name, value in alone.items():
        if not is_bias_before_a_norm(name, alone):
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    picture_table(folder)
    return folder


def tree_for(folder, *, method=None, temperature=None, **training):
    tree = table_tree(folder, folder / "labels.csv", **training)
    return {**tree, "method": method or {}, "temperature": temperature or {}}


def written(folder, path, **settings):
    path.write_text(dump_config(make_config(tree_for(folder, **settings))))
    return path


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"method": {"per_example": False}},
        {"method": {"own_banks": False}, "temperature": {"noise_warmup": True}},
        {"method": {"estimator": "gumbel_rao"}},
    ],
    ids=["example", "batch", "one bank", "gumbel_rao"],
)
def test_two_processes_of_a_run_train_the_network_that_one_does(folder, tmp_path, how):
    """To the end of the run, through the fixing of the kernels and fresh weights: the same up to rounding in float32,
    1e-7 of a number and what ten steps of Adam make of that, a tenth of a step (1e-3) at most for nearly all."""
    settings = {"epochs": 3, "finetune_epochs": 1, "rewind": True, "learning_rate": 1e-3, **how}
    one, two = tmp_path / "one", tmp_path / "two"
    train(make_config(tree_for(folder, **settings)), one)
    config = written(folder, tmp_path / "c.toml", devices=2, **settings)
    ended = done([*TORCHRUN, *CLI, "train", config, "--run", two])
    assert ended.returncode == 0, ended.stderr[-2000:]
    statistics = Run(two).statistics("best").read_bytes()  # made by one of the processes, as if it were alone
    Run(two).statistics("best").unlink()
    statistics_for(open_run(two), "mode")
    assert Run(two).statistics("best").read_bytes() == statistics
    first, second = (load_file(Run(run).checkpoint("last")) for run in (one, two))
    compared = 0
    for name, value in first.items():
        if name.startswith("network/") and ("weight" in name or "rho" in name):
            torch.testing.assert_close(second[name], value, atol=2e-4, rtol=1e-3)
            compared += 1
    assert compared > 20
    for a, b in zip(Run(one).metrics(), Run(two).metrics(), strict=True):
        if a["kind"] == "train":
            assert b["losses"] == pytest.approx(a["losses"], rel=1e-3)


def started(folder, tmp_path, launcher, run, **settings):
    """The command that a user types: the config asks for two processes, or torchrun starts them."""
    if launcher == "devices":
        config = written(folder, tmp_path / "c.toml", devices=2, **settings)
        return [sys.executable, *CLI[:2], "train", config, "--run", run]
    return [*TORCHRUN, *CLI, "train", written(folder, tmp_path / "c.toml", **settings), "--run", run]


def said(ended):
    """The lines of errors that are ours: torchrun adds a summary of its own."""
    return [line for line in ended.stderr.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("launcher", ["devices", "torchrun"])
@pytest.mark.parametrize("mistake", ["an existing run", "an unknown key", "too few images"])
def test_a_mistake_is_said_once_by_the_first_process(folder, tmp_path, launcher, mistake):
    run = tmp_path / "run"
    command = started(folder, tmp_path, launcher, run, batch_size=50 if mistake == "too few images" else 8)
    if mistake == "an existing run":
        run.mkdir()
        (run / "config.toml").write_text("")
        (run / "metrics.jsonl").write_text("")
    if mistake == "an unknown key":
        command += ["--set", "training.epoch=3"]
    ended = done(command)
    (line,) = said(ended)
    expected = {"an existing run": "expected a new folder", "an unknown key": "epoch", "too few images": "batch of 50"}
    assert expected[mistake] in line
    assert "gloo" not in ended.stderr.lower()
    assert ended.returncode == (2 if launcher == "devices" else 1)  # torchrun's own
    if launcher == "devices":
        assert "Traceback" not in ended.stderr
    else:
        assert "failed (exitcode: 2) local_rank: 0" in ended.stderr


def of_rank(run, number):
    """The process of this training with that rank."""
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run).encode() in command and not any(b"torch.distributed.run" in part for part in command):
            ranks = [e for e in environment if e.startswith(b"LOCAL_RANK=")]
            if (ranks or [b"LOCAL_RANK=0"])[0] == f"LOCAL_RANK={number}".encode():
                return int(entry.name)
    raise AssertionError(f"no process of rank {number}")


def begun(command, run, errors):
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=errors, env=ENVIRONMENT)
    until = time.monotonic() + 120
    while not Run(run).checkpoint("last").exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    return process


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes by /proc")
@pytest.mark.parametrize(("launcher", "victim"), [("devices", 1), ("devices", 0), ("torchrun", 1), ("torchrun", 0)])
def test_where_one_process_is_killed_the_other_says_how_to_go_on_and_ends(folder, tmp_path, launcher, victim):
    run, errors = tmp_path / "run", tmp_path / "errors"
    with errors.open("w") as file:
        process = begun(started(folder, tmp_path, launcher, run, epochs=500), run, file)
        survivor = of_rank(run, 1 - victim)
        os.kill(of_rank(run, victim), signal.SIGKILL)
        process.wait(60)
        until = time.monotonic() + 60
        while Path(f"/proc/{survivor}").exists():
            assert time.monotonic() < until
            time.sleep(0.2)
    lines = [line for line in errors.read_text().splitlines() if "go on with" in line]
    assert len(lines) == 1, errors.read_text()
    assert lines[0].startswith("error: another process of this training has ended")
    assert f"resume {run}" in lines[0]
    assert ("torchrun --nproc_per_node=2" in lines[0]) == (launcher == "torchrun")


def test_asked_to_stop_all_processes_stop_after_the_same_step(folder, tmp_path):
    """A signal to one of them, as a batch system sends it."""
    whole, cut, errors = tmp_path / "whole", tmp_path / "cut", tmp_path / "errors"
    settings = {"epochs": 6, "checkpoint_every": 3}
    ended = done(started(folder, tmp_path, "devices", whole, **settings))
    assert ended.returncode == 0, ended.stderr
    with errors.open("w") as file:
        process = begun(started(folder, tmp_path, "devices", cut, **settings), cut, file)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, errors.read_text()
    assert errors.read_text().splitlines()[-1].endswith(f"go on with: filtergroups resume {cut}")
    ended = done([sys.executable, *CLI[:2], "resume", cut])
    assert ended.returncode == 0, ended.stderr
    one, two = (load_file(Run(run).checkpoint("last")) for run in (whole, cut))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
