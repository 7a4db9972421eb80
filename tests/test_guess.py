"""The config that `filtergroups init` writes."""

import statistics
import tomllib

import pytest
from PIL import Image

from filtergroups.guess import guess_config


@pytest.mark.parametrize(("rows", "epochs_for_groups"), [(60, 20), (400, 20), (1600, 9), (4000, 4)])
def test_the_groups_have_some_300_steps_and_at_most_half_of_the_epochs(tmp_path, rows, epochs_for_groups):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    lines = [f"a.png,{n % 7}.5" for n in range(rows)]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["image,level", *lines]) + "\n")
    training = tomllib.loads(guess_config(table, tmp_path))["training"]
    assert training["epochs"] - training["finetune_epochs"] == epochs_for_groups
    steps_per_epoch = int(0.7 * rows) // training["batch_size"]
    assert epochs_for_groups == 20 or 300 <= epochs_for_groups * steps_per_epoch < 300 + steps_per_epoch


def tasks_of(tmp_path, header, rows):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    table = tmp_path / "labels.csv"
    table.write_text("\n".join([header, *rows]) + "\n")
    text = guess_config(table, tmp_path)
    return tomllib.loads(text), text


def test_a_split_by_its_usual_names_is_no_task(tmp_path):
    rows = [f"a.png,{n % 7}.5,{('Train', 'val', 'test')[n % 3]}" for n in range(30)]
    tree, _ = tasks_of(tmp_path, "image,level,split", rows)
    assert tree["data"]["split_column"] == "split"
    assert [task["name"] for task in tree["tasks"]] == ["level"]


def test_the_groups_have_as_many_steps_whatever_share_a_split_column_trains_on(tmp_path):
    rows = [f"a.png,{n % 7}.5,{'train' if n < 1000 else 'test'}" for n in range(4000)]
    tree, _ = tasks_of(tmp_path, "image,level,split", rows)
    training = tree["training"]
    steps = (training["epochs"] - training["finetune_epochs"]) * (1000 // training["batch_size"])
    assert 300 <= steps < 300 + 1000 // training["batch_size"]


def test_columns_that_are_no_labels_are_said_so(tmp_path):
    rows = [f"{n};a.png;{n % 9}.25;{1000 + n};{n % 5},{n};{n if n % 9 else 'unknown'}" for n in range(90)]
    tree, text = tasks_of(tmp_path, ";image;level;patient_id;comma;mixed", rows)
    assert [task["name"] for task in tree["tasks"]] == ["level"]
    assert "# column '' looks like a running number" in text
    assert "# column 'patient_id' looks like a running number" in text
    assert "# column 'comma' has numbers with a decimal comma" in text
    assert "# column 'mixed' holds numbers mostly, but also 'unknown'" in text


def test_missing_values_that_are_written_out_change_no_task(tmp_path):
    rows = [f"a.png,{'nan' if n == 0 else f'{n}.5'},{'NA' if n % 5 == 0 else n % 2}" for n in range(60)]
    tree, _ = tasks_of(tmp_path, "image,age,sick", rows)
    age, sick = tree["tasks"]
    assert age["kind"] == "regression"
    learned = [(n + 0.5) / age["scale"] + age["offset"] for n in range(1, 60)]
    assert statistics.fmean(learned) == pytest.approx(0, abs=0.01)
    assert statistics.pstdev(learned) == pytest.approx(1, abs=0.01)
    assert (sick["kind"], sick["labels"]) == ("classification", ["0", "1"])


def test_names_that_no_task_may_have_are_changed(tmp_path):
    tree, _ = tasks_of(tmp_path, "image,error,FEV1/FVC", [f"a.png,{n % 7}.5,{n % 9}.5" for n in range(30)])
    assert [(task["name"], task["column"]) for task in tree["tasks"]] == [
        ("error_", "error"), ("FEV1_FVC", "FEV1/FVC"),
    ]  # fmt: skip


@pytest.mark.parametrize("values", [[1e9 + n for n in range(30)], [1e-7 * n for n in range(30)], [-5.0, 5.5] * 15])
def test_numbers_of_any_size_are_learned_as_ones_of_spread_one(tmp_path, values):
    tree, _ = tasks_of(tmp_path, "image,level", [f"a.png,{value!r}" for value in values])
    (level,) = tree["tasks"]
    learned = [value / level["scale"] + level["offset"] for value in values]
    assert statistics.pstdev(learned) == pytest.approx(1, abs=0.01)
    assert abs(statistics.fmean(learned)) < 0.05


@pytest.mark.parametrize("kinds", [2, 3, 7, 20])
def test_whole_numbers_that_hardly_recur_are_real_values(tmp_path, kinds):
    for rows in (kinds, 4 * kinds, 5 * kinds):
        tree, _ = tasks_of(tmp_path, "image,level", [f"a.png,{10 + n % kinds}" for n in range(rows)])
        (level,) = tree["tasks"]
        assert level["kind"] == ("classification" if rows == 5 * kinds else "regression")
