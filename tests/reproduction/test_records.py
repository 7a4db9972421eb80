"""Runs of a results file count as done where their settings are the same."""

import json
import shutil

import pytest

import filtergroups as fg
from filtergroups.reproduction import runner
from filtergroups.reproduction.models import selection_score
from filtergroups.reproduction.work import outcome
from filtergroups.run import RunError
from tests.reproduction.conftest import FACES


def small(toys, folder, name="faces-small", **options):
    given = {"seeds": 1, "data": toys, "runs": folder / "runs", "results": folder / "results", "overrides": FACES}
    return fg.reproduce(name, **{"rows": ["one_task"], **given, **options})


@pytest.fixture(scope="module")
def made(toys, tmp_path_factory):
    """One finished row whose run folders are gone: only the results are left."""
    folder = tmp_path_factory.mktemp("made")
    small(toys, folder)
    shutil.rmtree(folder / "runs")
    return folder


@pytest.fixture
def left(made, tmp_path):
    return shutil.copytree(made, tmp_path / "left")


def runs_of(summary, name):
    return next(row["runs"] for row in summary["rows"] if row["name"] == name)


def test_a_recorded_run_is_not_made_again(toys, left, monkeypatch):
    before = json.loads((left / "results" / "faces-small.json").read_text())
    monkeypatch.setattr(runner, "perform", lambda *args: pytest.fail("a recorded run was made again"))
    after = small(toys, left, go_on=True)
    assert runs_of(after, "one_task") == runs_of(before, "one_task")
    assert after["plain"] == before["plain"]
    assert not (left / "runs").exists()
    assert after["made"]["command"].startswith("filtergroups reproduce faces-small --seeds 1 --set")


def test_without_being_asked_every_run_is_made_here(toys, left):
    small(toys, left)
    assert outcome(left / "runs" / "faces-small" / "one_task-seed0") is not None


def test_results_that_a_new_page_lacks_are_kept_aside(toys, left):
    path, kept = left / "results" / "faces-small.json", left / "results" / "faces-small-earlier.json"
    before = path.read_text()
    small(toys, left, rows=["hard_sharing"])
    assert kept.read_text() == before
    small(toys, left, rows=["hard_sharing"])  # nothing is missing now
    assert not (left / "results" / "faces-small-earlier-2.json").exists()
    kept.replace(path)
    assert len(runs_of(small(toys, left, rows=["hard_sharing"], go_on=True), "one_task")) == 1
    assert not kept.exists()


def test_recorded_seeds_stay_on_the_page(toys, tmp_path):
    small(toys, tmp_path, seeds=2)
    shutil.rmtree(tmp_path / "runs")
    summary = small(toys, tmp_path, seeds=1, rows=["hard_sharing"], go_on=True)
    assert [len(runs_of(summary, row)) for row in ("one_task", "hard_sharing")] == [2, 1]
    assert summary["of"] == 12
    assert "--seeds 2" in summary["made"]["command"]


def test_a_record_of_other_settings_does_not_count(toys, left):
    small(toys, left, go_on=True, overrides=(*FACES, "training.learning_rate=0.002"))
    assert outcome(left / "runs" / "faces-small" / "one_task-seed0") is not None


def test_a_record_from_before_a_key_was_there_counts_with_its_default(toys, left):
    path = left / "results" / "faces-small.json"
    tree = json.loads(path.read_text())
    recorded = runs_of(tree, "one_task")[0]["settings"]["config"]["training"]
    assert recorded.pop("rewind") is False
    path.write_text(json.dumps(tree))
    small(toys, left, go_on=True)
    assert not (left / "runs").exists()


def test_new_rows_stand_beside_recorded_ones(toys, left):
    summary = small(toys, left, go_on=True, rows=["hard_sharing"])
    assert len(runs_of(summary, "one_task")) == len(runs_of(summary, "hard_sharing")) == 1
    assert not (left / "runs" / "faces-small" / "one_task-seed0").exists()


def test_a_run_that_others_start_from_is_made_even_where_it_is_recorded(toys, tmp_path):
    small(toys, tmp_path, "what-matters", rows=["sfg"])
    shutil.rmtree(tmp_path / "runs")
    small(toys, tmp_path, "what-matters", rows=["frozen_mask"], go_on=True)
    assert outcome(tmp_path / "runs" / "faces-small" / "sfg-seed0") is not None
    shutil.rmtree(tmp_path / "runs")
    small(toys, tmp_path, "what-matters", rows=["frozen_mask"], go_on=True)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_started_from_a_run_of_other_settings_is_refused(toys, tmp_path):
    """Its own config is the same; what it took its masks from is not what the experiment has there now."""
    small(toys, tmp_path, "what-matters", rows=["frozen_mask"])
    file = tmp_path / "runs" / "what-matters" / "frozen_mask-seed0" / "job.json"
    written = json.loads(file.read_text())
    written["after"]["config"]["training"]["rewind"] = False
    for after in (written["after"], None):  # others, and from before it was written down
        file.write_text(json.dumps({**written, "after": after}))
        with pytest.raises(
            RunError, match=r"frozen_mask-seed0: expected .* found others of .*sfg-seed0 that it starte"
        ):
            small(toys, tmp_path, "what-matters", rows=["frozen_mask"])


def test_a_model_stays_where_a_recorded_run_is_better(toys, left, tmp_path):
    path = left / "results" / "faces-small.json"
    tree = json.loads(path.read_text())
    runs_of(tree, "one_task")[0]["selection"] = 0.0
    path.write_text(json.dumps(tree))
    small(toys, left, seeds=2, go_on=True, models=tmp_path / "models")
    assert outcome(left / "runs" / "faces-small" / "one_task-seed1") is not None
    assert not (tmp_path / "models").exists()


def test_a_model_is_kept_of_a_run_that_is_here_and_recorded(toys, tmp_path):
    small(toys, tmp_path)
    small(toys, tmp_path, go_on=True, models=tmp_path / "models")
    assert (tmp_path / "models" / "faces-small" / "one_task" / "best.safetensors").is_file()


def test_a_model_of_a_record_without_a_score_stays_where_it_is_better(toys, tmp_path):
    small(toys, tmp_path, seeds=2, models=tmp_path / "models")
    kept = tmp_path / "models" / "faces-small" / "one_task"
    score = selection_score(kept)
    better = next(seed for seed in (0, 1) if selection_score(run_of(tmp_path, seed)) == score)
    path = tmp_path / "results" / "faces-small.json"
    tree = json.loads(path.read_text())
    for run in runs_of(tree, "one_task"):
        del run["selection"]
    path.write_text(json.dumps(tree))
    shutil.rmtree(run_of(tmp_path, better))
    small(toys, tmp_path, seeds=2, go_on=True, models=tmp_path / "models")
    assert selection_score(kept) == score


def run_of(folder, seed):
    return folder / "runs" / "faces-small" / f"one_task-seed{seed}"


def test_a_file_that_holds_no_results_is_said_so_in_one_line(toys, left):
    for content in ("{", "[]", '{"rows": 3}'):
        (left / "results" / "faces-small.json").write_text(content)
        with pytest.raises(RunError, match=r"faces-small\.json: expected the results .* leave out --go-on"):
            small(toys, left, go_on=True)
