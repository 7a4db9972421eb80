"""A table and its split: what would silently train or score something else is refused in one line."""

import csv

import numpy as np
import pytest
from PIL import Image

from filtergroups.checking import check_data
from filtergroups.config_file import make_config
from filtergroups.data.examples import DataError
from filtergroups.data.load import load_data
from filtergroups.data.splits import part_named, read_split
from filtergroups.data.table import read_table
from filtergroups.evaluation import moved
from tests.data.pictures import picture_table, table_tree


@pytest.fixture
def table(tmp_path):
    return picture_table(tmp_path, count=24)


def tree_for(table, **data):
    tree = table_tree(table.parent, table)
    tree["data"] |= data
    return tree


def rewritten(table, change):
    """The table with its rows changed by a function of number and row."""
    with table.open(newline="") as file:
        rows = [change(n, row) for n, row in enumerate(csv.DictReader(file))]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("text", "part"),
    [("train", "train"), ("Training", "train"), ("VAL", "validation"), (" dev ", "validation"), ("Test", "test"),
     ("", None), ("holdout", None)],
)  # fmt: skip
def test_parts_go_by_their_usual_names(text, part):
    assert part_named(text) == part


def test_a_column_of_parts_may_say_val(table):
    parts = ["Train", "train", "val", "TEST"]
    rewritten(table, lambda n, row: {**row, "split": parts[n % 4]})
    data = load_data(make_config(tree_for(table, split_column="split", group_column=None)))
    assert {part: len(examples) for part, examples in data.parts.items()} == {"train": 12, "validation": 6, "test": 6}


def test_a_split_that_parts_a_group_is_refused(table):
    load_data(make_config(tree_for(table, group_column=None)))  # draws one without groups
    config = make_config(tree_for(table))
    with pytest.raises(DataError, match=r"labels\.split\.csv: expected rows of one subject in one part, found 's\d'"):
        load_data(config)
    assert any("one subject in one part" in problem for problem in check_data(config).problems)
    table.with_suffix(".split.csv").unlink()
    load_data(config)
    assert check_data(config).problems == []


def test_data_check_knows_what_training_will_say_of_the_split(table):
    rewritten(table, lambda n, row: {**row, "split": "train" if n else "later"})
    assert "found 'later'" in check_data(make_config(tree_for(table, split_column="split"))).problems[0]
    rewritten(table, lambda n, row: {**row, "split": "train"})
    found = check_data(make_config(tree_for(table, split_column="split")))
    assert found.problems == []
    assert "expected rows in the part 'validation', found none" in found.warnings[0]
    assert "expected a column 'patient'" in check_data(make_config(tree_for(table, group_column="patient"))).problems[0]


def test_columns_of_one_name_are_refused_and_empty_rows_at_the_end_are_none(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("image,age, age\na.png,3,4\n")
    with pytest.raises(DataError, match="found 'age' more than once"):
        read_table(path)
    path.write_text("image,age\na.png,3\n,\n,\n")
    assert read_table(path) == [{"image": "a.png", "age": "3"}]
    path.write_text("image,age\n,\n")
    with pytest.raises(DataError, match="found empty rows only"):
        read_table(path)


def test_missing_numbers_may_be_written_out(table):
    rewritten(table, lambda n, row: {**row, "level": "NA" if n == 5 else row["level"] or "1"})
    data = load_data(make_config(tree_for(table)))
    levels = np.concatenate([part.labels["level"][part.rows] for part in data.parts.values()])
    assert np.isnan(levels).sum() == 1


def test_data_elsewhere_keep_the_table_s_split(table, tmp_path):
    config = make_config(tree_for(table, group_column=None))
    load_data(config)
    mine = tmp_path / "mine.csv"
    names = sorted(read_split(table.with_suffix(".split.csv")))
    mine.write_text("\n".join(["file,split", *(f"{name},{'test' if n else 'train'}" for n, name in enumerate(names))]))
    config = make_config(tree_for(table, group_column=None, split_file=str(mine)))
    assert moved(config, table.parent / "images", None).data.split_file == mine


def test_a_split_file_that_is_given_is_read(table, tmp_path):
    rewritten(table, lambda n, row: {**row, "split": ("train", "validation", "test")[n // 3 % 3]})
    config = make_config(tree_for(table, split_column="split"))
    with pytest.raises(DataError, match=r"tpyo\.csv: expected a split file, found none; check --split-file"):
        moved(config, None, tmp_path / "tpyo.csv")
    all_test = tmp_path / "all.csv"
    names = [row["image"] for row in read_table(table)]
    all_test.write_text("\n".join(["file,split", *(f"{name},test" for name in names)]))
    data = load_data(
        moved(config, None, all_test), constants=load_data(config).constants, parts=("test",)
    )  # fmt: skip
    assert len(data.parts["test"]) == len(names)


def test_a_wrong_folder_is_said_so_where_bad_images_are_skipped(table):
    with pytest.raises(DataError, match=r"none of the .* images of the part 'train' can be read; check data\.root"):
        load_data(make_config(tree_for(table, root="/nope", on_bad_image="skip")))


@pytest.mark.parametrize(("classes", "said"), [({"labels": ["bg", "a"]}, "hold 0 … 1, found 255"), ({}, "number of")])
def test_label_maps_that_do_not_fit_are_found_before_training(table, classes, said):
    mask = np.zeros((24, 24), np.uint8)
    mask[4:9] = 255
    Image.fromarray(mask).save(table.parent / "images" / "mask.png")
    rewritten(table, lambda n, row: {**row, "mask": "mask.png"})
    tree = tree_for(table)
    tree["tasks"] = [{"name": "mask", "kind": "segmentation", **classes}]
    problem, *_ = check_data(make_config(tree)).problems
    assert said in problem
    with pytest.raises(ValueError, match=said):
        load_data(make_config(tree))


def test_whole_numbers_that_would_be_black_are_refused(table):
    values = np.arange(24 * 24, dtype=np.int32).reshape(24, 24) % 200
    Image.fromarray(values).save(table.parent / "images" / "dark.tif")
    rewritten(table, lambda n, row: {**row, "image": "dark.tif" if n == 0 else row["image"]})
    assert any("save 8 bits a channel" in problem for problem in check_data(make_config(tree_for(table))).problems)


def map_tree(table, kind, values):
    """Every image with the same map."""
    Image.fromarray(values).save(table.parent / "images" / "map.tif")
    rewritten(table, lambda n, row: {**row, "depth": "map.tif"})
    tree = tree_for(table)
    tree["tasks"] = [{"name": "depth", "kind": kind, **({"classes": 2} if kind == "segmentation" else {})}]
    tree["data"] |= {"size": 24, "shift": 0.0, "flip": False}
    return tree


@pytest.mark.parametrize(("kind", "top"), [(np.uint16, 65535), (np.float32, 1e6)])
def test_a_map_of_real_values_reaches_training_with_all_its_bits(table, kind, top):
    depth = (np.random.default_rng(0).uniform(0, 1, (24, 24)) * top).astype(kind)
    part = load_data(make_config(map_tree(table, "image_regression", depth))).parts["train"]
    labels = part.batch([0, 1]).labels["depth"].numpy()
    assert np.array_equal(labels, np.stack([depth.astype(np.float32)] * 2))


@pytest.mark.parametrize("kind", ["segmentation", "image_regression"])
def test_a_map_of_another_size_than_its_image_is_refused(table, kind):
    config = make_config(map_tree(table, kind, np.zeros((24, 23), np.uint8)))
    with pytest.raises(DataError, match="expected the size of its image, 24 × 24, found 23 × 24"):
        load_data(config)
    assert any("found 23 × 24" in problem for problem in check_data(config).problems)
