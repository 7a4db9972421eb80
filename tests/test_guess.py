"""The config that `filtergroups init` writes."""

import re
import statistics
import tomllib

import pytest
from PIL import Image

from filtergroups.checking import check_data
from filtergroups.config_file import load_config
from filtergroups.data.examples import DataError
from filtergroups.guess import guess_config
from tests.data.pictures import picture


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
    rows = [f"{n};a.png;{n % 9}.25;{1000 + n};{n % 5},{n};{n if n % 9 else 'unknown'};d{n}.tif" for n in range(90)]
    tree, text = tasks_of(tmp_path, ";image;level;patient_id;comma;mixed;depth", rows)
    assert [task["name"] for task in tree["tasks"]] == ["level"]
    assert "# column '' looks like a running number" in text
    assert "# column 'patient_id' looks like a running number" in text
    assert "# column 'comma' has numbers with a comma: write 1.5 for 1,5" in text
    assert "# column 'depth' holds image paths; for label maps add a task of kind 'segmentation', for real" in text
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


@pytest.mark.parametrize(
    "values", [[1e9 + 1e6 * n for n in range(30)], [1e-7 * n for n in range(30)], [-5.0, 5.5] * 15]
)
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


ODD = {
    "two rows": ("image,age", lambda n: f"{n}.png,{n}", 2),
    "all missing": ("image,age", lambda n: f"{n}.png,", 60),
    "one column": ("image", lambda n: f"{n}.png", 60),
    "texts": ("image,age", lambda n: f"{n}.png,{n} years", 60),
    "dates": ("image,day", lambda n: f"{n}.png,2024-01-{n % 28 + 1:02d}", 60),
    "booleans": ("image,sick", lambda n: f"{n}.png,{n % 3 == 0}", 60),
    "spaces": (" image , the age ", lambda n: f" {n}.png, {n} ", 60),
    "quotes": ('image,"the ""age"", say"', lambda n: f'{n}.png,"{n}"', 60),
    "semicolons": ("image;age", lambda n: f"{n}.png;{n}", 60),
    "tabs": ("image\tage", lambda n: f"{n}.png\t{n}", 60),
    "a byte order mark": ("\ufeffimage,age", lambda n: f"{n}.png,{n}", 60),
    "thousands": ("image,price", lambda n: f'{n}.png,"{n + 1},{n * 7:03d}"', 60),
    "few whole numbers": ("image,grade", lambda n: f"{n}.png,{n % 19}", 60),
    "written as missing": ("image,sick", lambda n: f"{n}.png,{('NA', 'yes', 'no')[n % 3]}", 60),
    "names that become one": ("image,a.b,a+b", lambda n: f"{n}.png,{n},{n + 0.5}", 60),
    "names of ours": ("image,shared,file,error", lambda n: f"{n}.png,{n},{n}.5,{n}", 60),
    "what cannot be seen": ("image,a\\b\x1b[31m", lambda n: f"{n}.png," + ("x\x1b[31m", "y\u202e")[n % 2], 60),
    "an infinite one": ("image,age", lambda n: f"{n}.png,{n or 'inf'}", 60),
    "huge": ("image,x", lambda n: f"{n}.png,{n + 1}e300", 60),
    "tiny": ("image,x", lambda n: f"{n}.png,{n + 1}e-300", 60),
    "times": ("image,time", lambda n: f"{n}.png,{1_700_000_000 + n}", 60),
    "one picture": ("image,x", lambda n: f"0.png,{n}", 60),
    "training only": ("image,x,split", lambda n: f"{n}.png,{n},train", 60),
    "tested only": ("image,x,split", lambda n: f"{n}.png,{n},test", 60),
    "a rare class": ("image,x", lambda n: f"{n}.png,{'ab'[n == 0]}", 60),
    "many columns": ("image," + ",".join(f"c{n}" for n in range(40)), lambda n: f"{n}.png" + f",{n % 7}.5" * 40, 60),
}


NO_TASK = (
    "two rows", "all missing", "one column", "texts", "dates", "thousands", "an infinite one", "huge", "tiny", "times",
    "tested only", "a rare class",
)  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for n in range(60):
        picture(folder / f"{n}.png", n / 60, False, n)
    return folder


@pytest.mark.parametrize("name", ODD)
def test_an_odd_table_gives_a_config_that_the_check_accepts_or_one_clear_line(tmp_path, pictures, name):
    header, row, rows = ODD[name]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join([header, *map(row, range(rows))]) + "\n")
    text, refused = "", ""
    try:
        text = guess_config(table, pictures)
    except DataError as error:
        refused = str(error)
    assert bool(refused) == (name in NO_TASK)
    if refused:
        assert re.fullmatch(r"[^\n]*labels\.csv: expected [^\n]+, found [^\n]+", refused)
        return
    (tmp_path / "my.toml").write_text(text)
    config = load_config(tmp_path / "my.toml", ["data.size=16", "network.width=0.0625", "training.batch_size=2"])
    checked = check_data(config)
    assert checked.problems == [], text
