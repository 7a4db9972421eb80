"""What is kept of an experiment can be measured by anyone who has the data, and holds nothing of them."""

import json

import filtergroups as fg
from filtergroups.reproduction import models
from filtergroups.run import Run
from tests.reproduction.conftest import FACES


def test_the_best_run_by_the_selection_set_is_kept_and_can_be_measured(toys, tmp_path):
    given = {"data": toys, "runs": tmp_path / "runs", "results": tmp_path / "results", "overrides": FACES, "jobs": 2}
    fg.reproduce("faces-small", seeds=2, rows=["hard_sharing"], models=tmp_path / "models", **given)
    kept = tmp_path / "models" / "faces-small" / "hard_sharing"
    runs = [tmp_path / "runs" / "faces-small" / f"hard_sharing-seed{seed}" for seed in (0, 1)]
    best = min(runs, key=models.selection_score)
    assert models.selection_score(kept) == min(map(models.selection_score, runs))
    found = fg.evaluate(
        kept, split="validation", samples=2, data=toys / "UTKFace", split_file=toys / "utkface-split.csv"
    )
    known = json.loads((best / "outcome.json").read_text())["values"]
    assert found["tasks"]["age"]["mae"] == known["age.mae"]
    assert found["tasks"]["gender"]["accuracy"] == known["gender.accuracy"]


def test_a_kept_model_does_not_say_where_the_data_were(toys, tmp_path):
    given = {"data": toys, "runs": tmp_path / "runs", "results": tmp_path / "results", "overrides": FACES}
    for _ in range(2):  # the second time in the place of the first
        fg.reproduce("faces-small", seeds=1, rows=["one_task"], models=tmp_path / "models", **given)
    kept = tmp_path / "models" / "faces-small" / "one_task"
    assert not [file for file in kept.rglob("*") if file.is_file() and str(toys).encode() in file.read_bytes()]
    assert str(Run.open(kept).config().data.root).endswith("data/UTKFace")
