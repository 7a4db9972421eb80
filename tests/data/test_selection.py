"""The selection set: what chooses a checkpoint is taken out of the training part, and nothing else is looked at."""

import csv
import shutil

import pytest
import torch

from filtergroups.calibrating import calibrate
from filtergroups.checkpoint import load_checkpoint
from filtergroups.config_file import make_config
from filtergroups.data.examples import DataError
from filtergroups.data.load import load_data
from filtergroups.data.phantom import write_phantom
from filtergroups.data.splits import read_split, with_selection
from filtergroups.evaluation import evaluate
from filtergroups.run import Run
from filtergroups.training import train
from tests.data.pictures import face_folder, picture_table, table_tree


def names_of(data):
    return {part: {examples.name(n) for n in range(len(examples))} for part, examples in data.parts.items()}


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    """90 faces, two thirds for training; five have a byte-identical twin under another name."""
    folder = tmp_path_factory.mktemp("faces")
    root = face_folder(folder / "faces", count=90)
    files = sorted(root.iterdir())
    for path in files[:5]:
        shutil.copyfile(path, path.with_name(path.name.replace("2017", "2018")))
    rows = [(path.name, "validation" if n % 3 == 2 else "train") for n, path in enumerate(files)]
    rows += [(path.name.replace("2017", "2018"), "train") for path in files[:5]]
    split = folder / "split.csv"
    with split.open("w", newline="") as file:
        csv.writer(file).writerows([("file", "split"), *rows])
    return root, split


def faces_config(faces, tmp_path, seed=0, **data):
    root, split = faces
    return make_config(
        {
            "seed": seed,
            "data": {"kind": "faces", "root": str(root), "split_file": str(split), "size": 16,
                     "cache": str(tmp_path / "cache"), "selection": 0.2, **data},
            "network": {"name": "vgg11", "width": 0.0625, "hidden": 8},
            "training": {"epochs": 2, "batch_size": 8, "threads": 1, "accelerator": "cpu"},
        }
    )  # fmt: skip


def test_what_is_set_aside_comes_from_the_training_part_alone(faces, tmp_path):
    given = read_split(faces[1])
    parts = names_of(load_data(faces_config(faces, tmp_path), parts=("train", "selection", "validation")))
    assert all(given[name] == "train" for name in parts["train"] | parts["selection"])
    assert parts["validation"] == {name for name, part in given.items() if part == "validation"}
    assert not parts["train"] & parts["selection"]
    assert len(parts["selection"]) == pytest.approx(0.2 * 65, abs=2)


def test_byte_identical_images_stay_on_one_side(faces, tmp_path):
    for seed in range(8):
        parts = names_of(load_data(faces_config(faces, tmp_path, seed), parts=("train", "selection")))
        for name in parts["train"]:
            assert name.replace("2017", "2018") not in parts["selection"]
            assert name.replace("2018", "2017") not in parts["selection"]


def test_seeds_set_different_examples_aside_and_a_seed_the_same(faces, tmp_path):
    one, again, other = (
        names_of(load_data(faces_config(faces, tmp_path, seed), parts=("selection", "train")))["selection"]
        for seed in (1, 1, 2)
    )
    assert one == again != other


def test_a_fraction_is_of_the_whole_training_part_and_leaves_the_selection_set_as_it_is(faces, tmp_path):
    whole = names_of(load_data(faces_config(faces, tmp_path), parts=("train", "selection")))
    small = names_of(load_data(faces_config(faces, tmp_path, fraction=0.4), parts=("train", "selection")))
    assert small["selection"] == whole["selection"]
    assert small["train"] < whole["train"]
    count = sum(part == "train" for part in read_split(faces[1]).values())
    assert len(small["train"]) == round(0.4 * count)


def test_training_calibrating_and_choosing_never_read_the_held_out_images(faces, tmp_path):
    """The held-out images are deleted: whatever touched them would fail."""
    root, split = faces
    given = read_split(split)
    moved = shutil.copytree(root, tmp_path / "without")
    config = faces_config((moved, split), tmp_path)
    for name in (name for name, part in given.items() if part == "validation"):
        (moved / name).unlink()
    run = tmp_path / "run"
    train(config, run)
    assert calibrate(run, samples=2)["part"] == "selection"
    entries = [entry for entry in Run(run).metrics() if entry["kind"] == "validation"]
    assert len(entries) == 2
    with pytest.raises(DataError):
        evaluate(run, split="validation", samples=0)
    assert evaluate(run, split="selection", samples=0)["examples"] > 0


def test_other_labels_of_the_held_out_part_leave_the_run_as_it_was(tmp_path):
    """The same table twice; in the second, every held-out label is wrong. The weights and the choice are the same."""
    runs = []
    for copy in ("right", "wrong"):
        table = picture_table(tmp_path / copy, missing=False)
        rows = list(csv.DictReader(table.read_text().splitlines()))
        for n, row in enumerate(rows):
            row["split"] = "validation" if n // 3 % 4 == 0 else "train"
            if copy == "wrong" and row["split"] == "validation":
                row["level"], row["pattern"] = "0", "plain"
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        tree = table_tree(tmp_path, table, epochs=3)
        tree["data"] |= {"split_column": "split", "selection": 0.25}
        config = make_config(tree)
        parts = names_of(load_data(config, parts=("train", "selection", "validation")))
        subject = {row["image"]: row["subject"] for row in rows}
        assert not {subject[name] for name in parts["train"]} & {subject[name] for name in parts["selection"]}
        train(config, tmp_path / f"run-{copy}")
        runs.append(Run(tmp_path / f"run-{copy}"))
    assert runs[0].metrics() == runs[1].metrics()
    one, two = (load_checkpoint(run.checkpoint("best")) for run in runs)
    assert one[0] == two[0]  # the step that was chosen, and by what
    assert all(torch.equal(one[1][name], two[1][name]) for name in one[1])


def test_patients_are_set_aside_whole_and_teach_no_preprocessing(tmp_path):
    root = tmp_path / "scans"
    write_phantom(root, 8, 0, shape=(32, 32, 8), spacing=(12.0, 12.0, 12.0))
    data = {"kind": "scans", "root": str(root), "patch": 16, "patches_per_patient": 2, "cache": str(tmp_path / "c")}
    tree = {"data": {**data, "selection": 0.3}, "network": {"name": "highresnet", "width": 0.125}}
    found = load_data(make_config(tree), parts=("train", "selection"))
    given = read_split(root / "split.csv", "patient")
    patients = {part: {volume.name for volume in volumes} for part, volumes in found.volumes.items()}
    training = {name for name, part in given.items() if part == "train"}
    assert patients["train"] | patients["selection"] == training
    assert patients["selection"]
    assert not patients["train"] & patients["selection"]
    without = {**given, **dict.fromkeys(patients["selection"], "test")}
    alone = tmp_path / "alone.csv"
    alone.write_text("patient,split\n" + "".join(f"{name},{part}\n" for name, part in without.items()))
    plain = make_config({**tree, "data": {**data, "split_file": str(alone)}})
    assert load_data(plain, parts=("train",)).constants == found.constants


def test_what_cannot_be_parted_is_refused():
    with pytest.raises(DataError, match=r"data\.selection"):
        with_selection({"a": "train", "b": "train"}, 0.5, 0, {"a": "x", "b": "x"})
    assert with_selection({"a": "test"}, 0.5, 0) == {"a": "test"}
    assert torch.initial_seed() == 0  # no global randomness was used
