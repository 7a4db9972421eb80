"""The benchmark of cost against metrics: it runs, goes on where it was, and keeps to one config."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.pictures import face_folder

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "tradeoff.py"
TINY = ("data.size=16", "data.fraction=1.0", "network.width=0.0625", "training.epochs=4", "training.batch_size=8",
        "training.threads=1", "training.learning_rate=0.01")  # fmt: skip


def tradeoff(folder, *more):
    command = [sys.executable, str(BENCHMARK), "--data", str(face_folder(folder / "faces")), "--runs"]
    command += [str(folder / "runs"), "--targets", "0.6", "--factor", "1.0", *more]
    for override in (*TINY, f"data.cache={folder / 'cache'}"):
        command += ["--set", override]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tradeoff")
    finished = tradeoff(folder)
    assert finished.returncode == 0, finished.stderr
    return folder, json.loads(finished.stdout.splitlines()[-1])


def test_every_point_has_its_cost_and_metrics(done):
    folder, points = done
    assert list(points) == ["nothing", "0.6"]
    assert points["0.6"]["ratio"] < points["nothing"]["ratio"]
    for found in points.values():
        assert found["tasks"].keys() == {"age", "gender"}
        assert 0 <= found["tasks"]["gender"]["accuracy"] <= 1
    assert (folder / "runs" / "tradeoff.png").stat().st_size > 5000


def test_started_again_it_goes_on_where_it_was(done):
    folder, points = done
    finished = folder / "runs" / "cost_nothing" / "last.safetensors"
    before = finished.stat().st_mtime_ns
    (folder / "runs" / "cost_0.6" / "tradeoff.json").unlink()
    again = tradeoff(folder)
    assert json.loads(again.stdout.splitlines()[-1]) == points
    assert finished.stat().st_mtime_ns == before


def test_runs_of_another_config_are_refused(done):
    folder, _ = done
    refused = tradeoff(folder, "--set", "seed=1")
    assert refused.returncode == 2
    assert "expected a run of this config" in refused.stderr.strip().splitlines()[-1]
