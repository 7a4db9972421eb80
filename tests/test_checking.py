"""`data check` and `train` never disagree: each bad data set goes through both, and each odd one is only warned of."""

import csv
import re
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from filtergroups.checking import check_data
from filtergroups.config import ConfigError
from filtergroups.config_file import make_config
from filtergroups.data.findings import Findings
from filtergroups.data.load import load_data
from filtergroups.memory import machine_memory, refuse_large_network, refuse_too_large
from filtergroups.training import train
from tests.data.pictures import face_folder, picture_table, table_tree


def table_of(folder, change=None, **columns):
    """A config for 24 pictures, and its rows changed by a function of number and row; columns: further ones."""
    table = picture_table(folder, count=24, missing=False)
    with table.open(newline="") as file:
        rows = [dict(row) for row in csv.DictReader(file)]
    for n, row in enumerate(rows):
        row |= {key: value(n) for key, value in columns.items()}
        row["split"] = ("train", "train", "validation", "test")[n % 4]
        if change is not None:
            change(n, row)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    tree = table_tree(folder, table, epochs=1)
    tree["data"] |= {"group_column": None, "split_column": "split", "flip": False, "shift": 0.0}
    return tree


def with_task(tree, **task):
    return {**tree, "tasks": [*tree["tasks"], task], "network": {"name": "highresnet", "width": 0.125}}


def with_maps(folder, values, **task):
    """A table whose images all have the same map."""
    tree = table_of(folder, map=lambda n: "map.tif")
    values.save(folder / "images" / "map.tif")
    return with_task(tree, name="map", **task)


def setting(section, **values):
    def bad(folder):
        tree = table_of(folder)
        return {**tree, section: {**tree.get(section, {}), **values}}

    return bad


def cell(key, value, where=lambda n, row: n == 4):
    def bad(folder):
        return table_of(folder, lambda n, row: row.update({key: value}) if where(n, row) else None)

    return bad


def everywhere(n, row):
    return True


def in_training(n, row):
    return row["split"] == "train"


def broken(*numbers):
    def bad(folder):
        tree = table_of(folder)
        for n in numbers:
            (folder / "images" / f"{n:03d}.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
        return tree

    return bad


def map_of(values, **task):
    return lambda folder: with_maps(folder, Image.fromarray(values), **task)


CLASSES = {"kind": "segmentation", "classes": 2}
PLAIN = np.arange(24 * 24).reshape(24, 24) % 2
SCARLET = np.zeros((24, 24, 3), np.uint8) + np.asarray([200, 0, 0], np.uint8)
BAD = {
    "text among numbers": (cell("level", "tall"), "line 6: a label of task 'level' is a number, found 'tall'"),
    "infinite": (cell("level", "inf"), "is a number, found 'inf'"),
    "too large for 32 bits": (cell("level", "1e39"), "at most 3.4e+38 in size, which a 32-bit float holds, found 1e39"),
    "too large to be squared": (cell("level", "1e25"), "/ scale + offset, which the network learns, is at most 1e+18"),
    "too close for 32 bits": (
        lambda folder: table_of(folder, lambda n, row: row.update(level=f"{1_000_000_000 + n}")),
        "'level' lie too close for 32-bit floats",
    ),
    "no class of these": (
        lambda folder: {**(tree := cell("pattern", "stripd")(folder)), "tasks": [
            {"name": "pattern", "kind": "classification", "labels": ["plain", "striped"]}, tree["tasks"][0]]},
        "is one of ['plain', 'striped'], found 'stripd'",
    ),
    "no label at all": (cell("level", "", everywhere), "'level': expected labels in the part 'train', found none"),
    "no label to train on": (cell("level", "", in_training), "expected labels in the part 'train', found none"),
    "one class": (cell("pattern", "plain", in_training), "found one only (plain 12)"),
    "one class anywhere": (cell("pattern", "plain", everywhere), "'pattern', found one only ('plain' in all); label"),
    "no class anywhere": (cell("pattern", "NA", everywhere), "two classes or more of task 'pattern', found none"),
    "two parts that are none": (
        lambda folder: table_of(folder, lambda n, row: row.update(split="trian" if n in (4, 6) else row["split"])),
        "2 × a split is one of ['train', 'validation', 'test'], found 'trian' (line 6), 'trian' (line 8); mend it",
    ),
    "one number": (cell("level", "3.5", in_training), "found one only (3.5 in all)"),
    "no such column": (
        lambda folder: with_task(table_of(folder), name="colour", kind="regression"), "expected a column 'colour'",
    ),
    "nobody to train on": (cell("split", "test", everywhere), "expected images in the part 'train', found none"),
    "an image in two parts": (cell("image", "000.png", lambda n, row: n == 3), "in one part, found '000.png'"),
    "outside the root": (cell("image", "../secret.png"), "image paths stay below"),
    "no image": (broken(0, 4, 8, 12, 16), "5 × expected an image"),
    "a batch too large": (setting("training", batch_size=16), "at least one batch of 16 training examples, found 12"),
    "one example a batch": (setting("training", batch_size=1), "expected 2 or more examples on each of 1 processes"),
    "weights of no task": (setting("training", task_weights={"colour": 2.0}), "training.task_weights"),
    "a run that is not there": (
        setting("method", name="fixed_mask", mask_from="/nowhere"), "/nowhere: expected a run folder",
    ),
    "maps for a network without space": (
        lambda folder: {**with_maps(folder, Image.fromarray(PLAIN.astype(np.uint8)), **CLASSES),
                        "network": {"name": "vgg11", "width": 0.0625}},
        "task 'map' predicts every pixel, found features without spatial axes",
    ),
    "a mask in colours": (map_of(SCARLET, **CLASSES), "found colours (RGB); save the class numbers as one channel"),
    "a mask of another size": (map_of(np.zeros((24, 12), np.uint8), **CLASSES), "size of its image, 24 × 24, found"),
    "a mask of unknown classes": (map_of((PLAIN * 7).astype(np.uint8), **CLASSES), "hold 0 … 1, found 7"),
    "a mask of one class": (map_of(np.zeros((24, 24), np.uint8), **CLASSES), "found one only"),
    "an infinite map": (
        map_of(np.full((24, 24), np.inf, np.float32), kind="image_regression"), "expected finite values",
    ),
    "masks without classes": (map_of(PLAIN.astype(np.uint8), kind="segmentation"), "expected a number of classes"),
    "maps that are not there": (
        lambda folder: with_task(table_of(folder, m=lambda n: f"m{n}.png"), name="m", **CLASSES), "no readable file",
    ),
    "no map at all": (
        lambda folder: with_task(table_of(folder, m=lambda n: ""), name="m", **CLASSES), "task 'm': expected labels",
    ),
}  # fmt: skip


def both_refuse(tree, said, folder):
    """The problems of `data check`, one of which says this, and is in the words of `train`."""
    config = make_config(tree)
    checked = check_data(config)
    assert any(said in problem for problem in checked.problems), checked
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # what it says is looked at below
        train(config, folder / "run")
    refusal = str(caught.value)
    assert "\n" not in refusal
    assert any(refusal.startswith(problem) for problem in checked.problems), f"{refusal}\n{checked}"
    assert not (folder / "run" / "metrics.jsonl").exists(), "a step was made"
    return checked


@pytest.mark.parametrize("name", BAD)
def test_what_the_check_calls_a_problem_training_refuses_in_the_same_words(tmp_path, name):
    bad, said = BAD[name]
    both_refuse(bad(tmp_path), said, tmp_path)


def is_trained(tree, folder):
    """The warnings about data that are trained on all the same."""
    config = make_config(tree)
    checked = check_data(config)
    assert checked.problems == []
    train(config, folder / "run")
    return checked.warnings


def test_good_data_have_no_findings(tmp_path):
    assert is_trained(table_of(tmp_path), tmp_path) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda n, row: row.update(split="train" if n % 2 else "test"), "expected rows in the part 'validation'"),
        (lambda n, row: row.update(split="train" if n % 2 else "validation"), "no rows are in the part 'test'"),
        (lambda n, row: row.update(pattern="" if row["split"] == "validation" else row["pattern"]),
         "task 'pattern' has no label in the part 'validation'"),
        (lambda n, row: row.update(pattern="dotted") if n == 3 else None, "'train', found none of dotted"),
        (lambda n, row: row.update(pattern="Plain") if n == 3 else None, "found 'Plain' and 'plain'"),
        (lambda n, row: row.update(level=f"{n}00000"), "far from 0 and 1; scale = "),
        (lambda n, row: row.update(image="000.png", level="3") if n == 4 else None, "labels of a task, found 'level'"),
        (lambda n, row: row.update(level=f"{(1 << 24) + 2 * n * n * 5000 + 1}"), "a 32-bit float rounds"),
    ],
)  # fmt: skip
def test_what_is_odd_is_warned_of_and_trained_on(tmp_path, change, said):
    warnings = is_trained(table_of(tmp_path, change), tmp_path)
    assert any(said in warning for warning in warnings), warnings


def test_twins_small_images_and_left_over_maps_are_warned_of(tmp_path):
    tree = with_maps(tmp_path, Image.fromarray(PLAIN.astype(np.uint8)), **CLASSES)
    tree["data"]["size"] = 32
    shutil.copy(tmp_path / "images" / "000.png", tmp_path / "images" / "002.png")
    Image.new("L", (24, 24)).save(tmp_path / "images" / "old_map.png")
    warnings = "\n".join(is_trained(tree, tmp_path))
    assert "000.png (train) and 002.png (validation)" in warnings or "002.png (validation) and 000.png" in warnings
    assert "24 × an image smaller than data.size = 32" in warnings
    assert "old_map.png: a map of task 'map' that no row of the table names" in warnings


def test_images_that_are_skipped_are_warned_of(tmp_path):
    tree = broken(0, 4, 8, 12)(tmp_path)
    tree["data"]["on_bad_image"] = "skip"
    (warning,) = is_trained(tree, tmp_path)
    assert warning.startswith("4 × expected an image")
    assert warning.endswith("left out: 000.png, 004.png, 008.png and 1 more")


def test_all_bad_values_of_a_task_are_named_within_bounds(tmp_path):
    checked = check_data(make_config(table_of(tmp_path, lambda n, row: row.update(level=f"x{n}") if n < 9 else None)))
    (problem,) = checked.problems
    assert (
        "9 × a label of task 'level' is a number, found 'x0' (line 2), 'x1' (line 3), 'x2' (line 4) and 6 more"
        in problem
    )


def test_of_one_row_everything_that_is_wrong_is_named_at_once(tmp_path):
    tree = table_of(tmp_path, lambda n, row: row.update(image="000.png", map="small.png") if n == 0 else None,
                    map=lambda n: "map.png", other=lambda n: "gone.png" if n in (0, 4) else "map.png")  # fmt: skip
    for name, width in (("map", 24), ("small", 12)):
        Image.fromarray(PLAIN[:, :width].astype(np.uint8)).save(tmp_path / "images" / f"{name}.png")
    (tmp_path / "images" / "000.png").write_bytes(b"broken")
    for name in ("map", "other"):
        tree = with_task(tree, name=name, kind="image_regression")
    text = "\n".join(check_data(make_config(tree)).problems)
    for what in ("000.png: expected an image", "other.*000.png, 004.png"):
        assert re.search(what, text), text


def test_a_task_of_one_class_hides_no_other_problem(tmp_path):
    tree = table_of(tmp_path, lambda n, row: row.update(pattern="plain", level="tall" if n == 4 else row["level"]))
    problems = check_data(make_config(tree)).problems
    assert len(problems) == 2, problems


def test_a_map_that_is_missing_may_be_written_out(tmp_path):
    tree = table_of(tmp_path, map=lambda n: "NA" if n % 5 == 0 else "map.png")
    Image.fromarray(PLAIN.astype(np.uint8)).save(tmp_path / "images" / "map.png")
    checked = check_data(make_config(with_task(tree, name="map", **CLASSES)))
    assert checked.problems == []
    row = next(line for line in checked.table.splitlines() if line.startswith("map"))
    assert row.split()[2:4] == ["9", "3"]


def test_batches_that_several_processes_cannot_share_are_named(tmp_path):
    problems = check_data(make_config(setting("training", devices=3)(tmp_path))).problems
    assert problems == ["training.batch_size: expected a multiple of the 3 processes, found 8"]


def test_nothing_is_changed_by_a_check(tmp_path):
    tree = table_of(tmp_path)
    tree["data"]["split_column"] = None
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "cache" not in path.parts}
    check_data(make_config(tree))
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "cache" not in path.parts}


def test_the_table_of_eight_tasks_fits_80_columns(tmp_path):
    names = [f"a task with a long name {n}" for n in range(7)]
    tree = table_of(tmp_path, **{name: lambda n: f"class {n % 12}" for name in names})
    tree["tasks"] = [tree["tasks"][0], *({"name": name, "kind": "classification"} for name in names)]
    table = check_data(make_config(tree)).table
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[1:4]] == [["train", "12"], ["validation", "6"], ["test", "6"]]
    assert sum("6 classes" in line for line in lines) >= 7
    assert sum(" to " in line for line in lines) == 3


# Faces and scans


def faces_tree(folder, **data):
    return {
        "data": {"kind": "faces", "root": str(folder / "faces"), "size": 16, "cache": str(folder / "cache"), **data},
        "network": {"name": "vgg11", "width": 0.0625, "hidden": 8},
        "training": {"epochs": 1, "batch_size": 8, "threads": 1, "accelerator": "cpu"},
    }


def parts_of(tree):
    """Write the drawn split of faces to a file, and give its lines."""
    data = load_data(make_config(tree))
    lines = [f"{part.name(n)},{name}" for name, part in data.parts.items() for n in range(len(part))]
    Path(tree["data"]["root"]).with_name("split.csv").write_text("\n".join(["file,split", *lines]) + "\n")
    return lines


def test_faces_are_refused_alike(tmp_path):
    root = face_folder(tmp_path / "faces", count=24)
    tree = faces_tree(tmp_path)
    first = sorted(root.iterdir())[0]
    shutil.copy(first, root / "no_face.txt")
    shutil.copy(first, root / "7__2_20170101.jpg")
    warnings = "\n".join(is_trained(tree, tmp_path))
    assert "no_face.txt: a file that is not named" in warnings
    assert "7__2_20170101.jpg: a name without gender" in warnings
    assert "one and the same image has two labels of a task, found 'age'" in warnings
    name = next(line.split(",")[0] for line in parts_of(tree) if line.endswith(",train"))
    content = (root / name).read_bytes()
    (root / name).write_bytes(b"broken")
    tree["data"]["split_file"] = str(tmp_path / "split.csv")
    both_refuse(tree, "expected an image", tmp_path / "again")
    (root / name).write_bytes(content)
    tree["data"]["split_file"] = None
    for path in root.glob("*.jpg"):
        path.rename(path.with_name("_".join([path.name.split("_")[0], "1", *path.name.split("_")[2:]])))
    both_refuse(
        tree, "task 'gender': expected labels that differ in the part 'train', found one only (female", tmp_path / "one"
    )


def scans_tree(folder):
    """Four patients of random values: two to train on."""
    rng = np.random.default_rng(0)
    for name in ("ada", "bob", "cyd", "dee"):
        (folder / "scans" / name).mkdir(parents=True)
        values = rng.gamma(2.0, 50.0, (20, 20, 6)).astype(np.float32)
        save(folder / "scans" / name / "mr.nii.gz", values)
        save(folder / "scans" / name / "ct.nii.gz", 2 * values)
        save(folder / "scans" / name / "labels.nii.gz", (values > 90).astype(np.uint8))
    (folder / "scans" / "labels.json").write_text('{"0": "background", "1": "bright"}')
    (folder / "scans" / "split.csv").write_text("patient,split\nada,train\nbob,train\ncyd,validation\ndee,test\n")
    data = {"kind": "scans", "root": str(folder / "scans"), "patch": 8, "padding": 0, "patches_per_patient": 4}
    return {
        "data": {**data, "cache": str(folder / "cache")},
        "network": {"name": "highresnet", "width": 0.0625},
        "training": {"epochs": 1, "batch_size": 4, "threads": 1, "accelerator": "cpu"},
    }


def save(path, values, affine=None):
    nib.save(nib.Nifti1Image(values, np.diag([2.0, 2.0, 3.0, 1.0]) if affine is None else affine), path)


def values_of(path):
    return np.asarray(nib.load(path).dataobj).copy()


def spoil(name, change):
    def bad(root):
        for patient in ("ada", "bob"):
            save(root / patient / name, change(values_of(root / patient / name)))

    return bad


BAD_SCANS = {
    "not finite": (spoil("mr.nii.gz", lambda v: np.where(v > 100, np.nan, v)), "expected finite values"),
    "of another shape": (spoil("ct.nii.gz", lambda v: v[:, :, 1:]), "expected the shape of mr.nii.gz"),
    "elsewhere": (
        lambda root: save(root / "bob" / "ct.nii.gz", values_of(root / "bob" / "ct.nii.gz"), np.diag([2.0, 2, 9, 1])),
        "expected the voxels to be where those of mr.nii.gz are",
    ),
    "of unknown labels": (spoil("labels.nii.gz", lambda v: v * 5), "expected the label values 0, 1, found 5"),
    "of one label": (spoil("labels.nii.gz", np.zeros_like), "task 'organs': expected labels that differ"),
    "of one target value": (spoil("ct.nii.gz", np.ones_like), "task 'ct': expected labels that differ"),
    "without a target": (spoil("ct.nii.gz", lambda v: v * np.nan), "task 'ct': expected labels in the part 'train'"),
    "flat": (spoil("mr.nii.gz", np.ones_like), "found one grey value"),
    "missing": (lambda root: (root / "ada" / "ct.nii.gz").unlink(), "expected a file ct.nii.gz of patient ada"),
    "all tested": (
        lambda root: (root / "split.csv").write_text("patient,split\nada,test\nbob,test\n"),
        "expected training patients to learn the histogram from",
    ),
}


@pytest.mark.parametrize("name", BAD_SCANS)
def test_scans_are_refused_alike(tmp_path, name):
    tree = scans_tree(tmp_path)
    bad, said = BAD_SCANS[name]
    bad(tmp_path / "scans")
    both_refuse(tree, said, tmp_path)


def test_what_is_odd_about_scans_is_warned_of(tmp_path):
    tree = scans_tree(tmp_path)
    root = tmp_path / "scans"
    assert is_trained(tree, tmp_path) == []
    shutil.copy(root / "ada" / "mr.nii.gz", root / "cyd" / "mr.nii.gz")
    (root / "dee" / "ct.nii.gz").unlink()  # which training does not read
    tree["data"]["patch"] = 24
    warnings = "\n".join(is_trained(tree, tmp_path / "odd"))
    assert "ada (train) and cyd (validation): one and the same scan is in two parts" in warnings
    assert "expected a file ct.nii.gz of patient dee" in warnings
    assert "4 × a scan smaller than a patch (24 × 24), found 20 × 20 × 6 (ada)" in warnings


def test_a_phantom_that_is_not_there_is_checked_as_it_will_be(tmp_path):
    data = {"kind": "phantom", "root": str(tmp_path / "phantom"), "patch": 16, "cache": str(tmp_path / "cache")}
    tree = {"data": data, "network": {"name": "highresnet", "width": 0.0625}}
    checked = check_data(make_config(tree))
    assert checked.problems == []
    assert "training generates it" in checked.warnings[0]
    assert not (tmp_path / "phantom").exists()
    checked = check_data(make_config({**tree, "network": {"name": "vgg11", "width": 0.0625}}))
    assert "predicts every pixel" in checked.problems[0]


# Memory


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network": {"width": 64}}, r"network\.width = 64, .* GB for weights\), found .*; lower network\.width"),
        ({"data": {"size": 16384}}, r"data\.size = 16384 and .*; lower data\.size or training\.batch_size"),
        ({"training": {"batch_size": 1_000_000}, "data": {"size": 512}}, r"training\.batch_size = 1000000 need"),
    ],
)
def test_what_exceeds_the_machine_is_refused_before_it_is_allocated(tmp_path, changes, said):
    tree = table_of(tmp_path)
    for section, values in changes.items():
        tree[section] = {**tree[section], **values}
    both_refuse(tree, "need at least", tmp_path)
    with pytest.raises(ConfigError, match=said):
        refuse_too_large(make_config(tree))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"threads": 1024}, r"training\.threads: expected at most 32 on this machine"),
        ({"devices": 1024, "batch_size": 1024}, r"training\.devices = 1024: as many processes need at least .* GB"),
        ({"devices": 3, "batch_size": 8}, "a multiple of the 3 processes, found 8"),
    ],
)
def test_what_no_machine_can_share_is_refused_before_processes_are_started(tmp_path, monkeypatch, settings, said):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("filtergroups.memory.machine_memory", lambda: 16_000_000_000)
    monkeypatch.setattr("filtergroups.training.make_fabric", lambda *_: pytest.fail("processes were started"))
    tree = table_of(tmp_path)
    tree["training"] |= settings
    with pytest.raises(ValueError, match=said):
        train(make_config(tree), tmp_path / "run")
    assert any(re.search(said, problem) for problem in check_data(make_config(tree)).problems)


def test_the_memory_asked_for_is_a_lower_bound_of_what_training_takes(tmp_path, monkeypatch):
    """What trains here is not refused on a machine of just the memory that it really took."""
    config = make_config(table_of(tmp_path))
    refuse_too_large(config)
    refuse_large_network(config)
    assert machine_memory() is None or machine_memory() > 1e8
    monkeypatch.setattr("filtergroups.memory.machine_memory", lambda: 2_000_000)
    refuse_too_large(config)
    monkeypatch.setattr("filtergroups.memory.machine_memory", lambda: 100_000)
    with pytest.raises(ConfigError, match="need at least 0"):
        refuse_too_large(config)


def test_findings_that_differ_in_numbers_are_one_line_and_tasks_stay_apart():
    findings = Findings()
    for n in range(12):
        findings.problem(f"broken ({n} bytes left)", f"{n}.png")
        findings.problem(f"a label of task 't{n % 2}' is a number", f"line {n}", found="'x'", file="t.csv")
    assert findings.problems == [
        "12 × broken (0 bytes left) (or alike): 0.png, 1.png, 2.png and 9 more",
        "t.csv: 6 × a label of task 't0' is a number, found 'x' (line 0), 'x' (line 2), 'x' (line 4) and 3 more",
        "t.csv: 6 × a label of task 't1' is a number, found 'x' (line 1), 'x' (line 3), 'x' (line 5) and 3 more",
    ]
