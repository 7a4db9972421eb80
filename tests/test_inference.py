"""Predicting files of strangers: one that cannot be read stops no other, and nothing is written over by accident."""

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import filtergroups as fg
from filtergroups.build import build_network
from filtergroups.checkpoint import Progress, save_checkpoint
from filtergroups.cli import app
from filtergroups.config import Config
from filtergroups.config_file import make_config
from filtergroups.data.load import load_data
from filtergroups.run import Run
from tests.data.pictures import picture, picture_table, table_tree
from tests.data.test_grid import claims, long_front
from tests.data.test_scans import SHAPE, smooth_noise, write, write_patient


def untrained_run(path: Path, config: Config) -> Path:
    """A run as training leaves it, but for the training."""
    data = load_data(config)
    run = Run.create(path, config)
    progress = Progress(constants=data.constants, names=data.names)
    save_checkpoint(run.checkpoint("best"), build_network(config, data), progress)
    return path


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    return untrained_run(folder / "run", make_config(table_tree(folder, picture_table(folder, count=12))))


@pytest.fixture(scope="module")
def scan_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scans")
    root = folder / "scans"
    for seed, name in enumerate(("ada", "bob", "cyd")):
        write_patient(root, name, seed)
    (root / "labels.json").write_text(json.dumps({"0": "background", "1": "bright"}))
    (root / "split.csv").write_text("patient,split\nada,train\nbob,validation\ncyd,test\n")
    data = {"kind": "scans", "root": str(root), "cache": str(folder / "cache"), "patch": 12, "spacing": 2.0}
    return untrained_run(folder / "run", make_config({"data": data, "network": {"name": "highresnet", "width": 0.125}}))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Ten files of which two cannot be read."""
    folder = tmp_path / "pictures"
    for n in range(10):
        picture(folder / f"{n}.png", n / 10, False, n)
    (folder / "3.png").write_bytes(b"no picture")
    (folder / "7.png").write_bytes((folder / "6.png").read_bytes()[:200])
    return folder


def predict(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["predict", *map(str, arguments), "--samples", "0"])
    assert done.exit_code == code, f"{done.output}\n{done.exception}"
    return done


def refused(*arguments: object, said: str) -> None:
    """In one line, with exit code 2."""
    done = predict(*arguments, code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert done.stdout == ""


def said(done: Result) -> list[str]:
    """The lines on stderr but for the progress."""
    progress = ("predicting: ", "recalibrating norms: ", "preprocessing scans: ", "decoding images: ")
    return [line for line in done.stderr.splitlines() if not line.startswith(progress)]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def test_files_that_cannot_be_read_keep_their_rows_and_stop_no_other(image_run: Path, pictures: Path, tmp_path: Path):
    out = tmp_path / "out.csv"
    done = predict(image_run, pictures, "-o", out, code=1)
    assert said(done) == [f"2 of 10 files could not be read: see the error column of {out}"]
    assert "predicted" not in done.stdout
    rows = rows_of(out)
    assert [row["file"] for row in rows] == [str(pictures / f"{n}.png") for n in range(10)]
    assert [n for n, row in enumerate(rows) if row["error"]] == [3, 7]
    assert "expected an image" in rows[3]["error"]
    assert rows[3]["level"] == ""
    # The others are as they are alone, whatever stands between them.
    predict(image_run, *(pictures / f"{n}.png" for n in (8, 0)), "-o", tmp_path / "two.csv")
    assert rows_of(tmp_path / "two.csv") == [rows[8], rows[0]]
    assert list(rows[0])[-1] == "error"


def test_rows_follow_the_inputs_whatever_they_are(image_run: Path, pictures: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (pictures / "folder.png").mkdir()  # in a folder of images, a folder is no image
    os.mkfifo(tmp_path / "pipe.png")
    one, gone, pipe = pictures / "1.png", tmp_path / "gone.png", tmp_path / "pipe.png"
    out = tmp_path / "new" / "folder" / "out.csv"
    inputs = [one, gone, one, tmp_path / "empty", pipe, tmp_path / ("x" * 300), pictures / "2.png"]
    done = predict(image_run, *inputs, "-o", out, code=1)
    assert "4 of 7 files" in done.stderr
    rows = rows_of(out)
    assert [row["file"] for row in rows] == list(map(str, inputs))
    assert rows[0] == rows[2]
    errors = [row["error"].partition("found ")[2] for row in rows]
    assert errors == ["", "no readable file (No such file or directory)", "", "a folder",
                      "a pipe, socket or device", "no readable file (File name too long)", ""]  # fmt: skip


def test_a_batch_without_one_readable_file_is_only_rows(image_run: Path, pictures: Path, tmp_path: Path):
    inputs = [pictures / "3.png"] * 40 + [pictures / "0.png"]
    assert "40 of 41" in predict(image_run, *inputs, "-o", tmp_path / "out.csv", code=1).stderr
    assert [bool(row["error"]) for row in rows_of(tmp_path / "out.csv")] == [True] * 40 + [False]


def test_odd_names_stay_one_cell_and_no_formula(image_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    odd = ["a,b.png", 'a"b.png', "a\nb.png", "a\rb.png", "ü 漢.png", "=HYPERLINK(1).png", "+1.png", "@x.png", " a.png"]
    monkeypatch.chdir(tmp_path)
    for name in odd:
        picture(Path(name), 0.5, False, 0)
    raw = os.fsdecode(b"\xff.png")  # names are bytes: this one is not UTF-8
    shutil.copy(" a.png", raw)
    predict(image_run, *odd, raw, "-o", "out.csv")
    rows = rows_of(Path("out.csv"))
    assert len(rows) == len(odd) + 1
    for name, row in zip(odd, rows, strict=False):
        assert Path(row["file"]) == Path(name)
        assert row["file"][0] not in "=+-@"
        assert row["error"] == ""
    assert rows[-1]["file"] == r"\udcff.png"


def test_outputs_are_refused_before_any_work(
    image_run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("filtergroups.listing.decode", lambda *_: pytest.fail("work was done"))
    kept = tmp_path / "kept.csv"
    kept.write_text("mine")
    refused(image_run, pictures, "-o", kept, said="use --force")
    assert kept.read_text() == "mine"
    for force in ([], ["--force"]):
        refused(image_run, pictures, "-o", tmp_path, *force, said="expected a file to write, found a folder")
        refused(image_run, pictures, "-o", "/dev/null", *force, said="found a folder or device")
        refused(image_run, pictures, "-o", kept / "out.csv", *force, said="expected a folder to write to")
        refused(image_run, pictures, "-o", "/proc/out.csv", *force, said="expected a folder to write to")
    assert not Path("/dev/null").is_file()


def test_force_replaces_the_output(image_run: Path, pictures: Path, tmp_path: Path):
    out = tmp_path / "out.csv"
    out.write_text("old")
    done = predict(image_run, pictures / "0.png", "-o", out, "--force")
    assert done.stdout.endswith(f"\npredicted 1 files into {out}\n")
    assert len(rows_of(out)) == 1


def test_folders_without_images_and_runs_that_are_none_are_refused(image_run: Path, pictures: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    out = tmp_path / "new" / "out.csv"
    refused(image_run, tmp_path / "empty", "-o", out, said="expected files to predict, found none in")
    refused(tmp_path / "nowhere", pictures, "-o", out, said="expected a run folder")
    refused(pictures / "0.png", pictures, "-o", out, said="expected a run folder")
    refused(pictures, pictures, "-o", out, said="expected a run folder")
    copy = tmp_path / "copy"
    shutil.copytree(image_run, copy)
    (copy / "best.safetensors").write_bytes(b"\xff" * 100)
    refused(copy, pictures, "-o", out, said="expected a whole checkpoint")
    (copy / "best.safetensors").unlink()
    refused(copy, pictures, "-o", out, said="expected a checkpoint, found none; train first")
    (copy / "config.toml").write_text("data = [")
    refused(copy, pictures, "-o", out, said="config.toml")
    assert not out.parent.exists()


# Scans


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (cut, "expected a readable NIfTI file"),
    "not NIfTI": (lambda path: path.write_bytes(b"hello" * 200), "expected a readable NIfTI file"),
    "empty": (lambda path: path.write_bytes(b""), "expected a readable NIfTI file"),
    "4 axes": (lambda path: write(path, np.zeros((*SHAPE, 2), np.float32)), "3 axes"),
    "2 axes": (lambda path: write(path, np.zeros((9, 9), np.float32)), "3 axes"),
    "NaN": (lambda path: write(path, np.full(SHAPE, np.nan, np.float32)), "expected finite values"),
    "a bomb": (lambda path: claims(path, (30_000, 30_000, 30_000)), "at most 2000000000 bytes, found 108"),
    "a smaller bomb": (lambda path: claims(path, (700, 700, 700)), "too short for its 700×700×700 voxels"),
    "huge voxels": (lambda path: write(path, smooth_noise(0), np.diag([9e4, 9e4, 9e4, 1])), "mend its voxel size"),
    "long front": (long_front, "expected voxels behind the header"),
    "missing": (Path.unlink, "expected a NIfTI file, found none"),
}


def test_scans_that_cannot_be_read_stop_no_other(scan_run: Path, tmp_path: Path):
    files = []
    for seed, (damage, _) in enumerate([*DAMAGES.values(), (lambda _: None, "")]):
        write_patient(tmp_path, f"patient{seed}", seed)
        files.append(tmp_path / f"patient{seed}" / "mr.nii.gz")
        damage(files[-1])
    out = tmp_path / "out"
    done = predict(scan_run, *files, "-o", out, code=1)
    *problems, last = said(done)
    assert last == f"{len(DAMAGES)} of {len(files)} files could not be read"
    for problem, file, (_, reason) in zip(problems, files[:-1], DAMAGES.values(), strict=True):
        assert problem.startswith(f"error: {file}: expected")
        assert reason in problem
    assert [path.name for path in out.iterdir()] == [files[-1].parent.name]
    predicted, given = nib.load(out / files[-1].parent.name / "organs.nii.gz"), nib.load(files[-1])
    assert predicted.shape == given.shape
    assert np.allclose(predicted.affine, given.affine)


def test_maps_of_how_sure_a_scan_s_prediction_is(scan_run: Path, tmp_path: Path):
    write_patient(tmp_path, "eve", 5)
    fg.predict(scan_run, [tmp_path / "eve"], tmp_path / "out", samples=3, intervals=True)
    maps = {path.name.removesuffix(".nii.gz"): nib.load(path).get_fdata() for path in (tmp_path / "out/eve").iterdir()}
    assert set(maps) == {
        *(f"ct{kind}" for kind in ("", "_std", "_low", "_high")),
        *(f"organs{kind}" for kind in ("", "_entropy", "_mutual_information", "_probabilities")),
    }
    np.testing.assert_allclose(maps["ct_high"] - maps["ct"], 1.645 * maps["ct_std"], rtol=1e-3, atol=0.05)
    probabilities = maps["organs_probabilities"]
    assert probabilities.shape == (*maps["organs"].shape, 2)
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-4)
    assert (maps["organs_mutual_information"] <= maps["organs_entropy"] + 1e-5).all()


def test_label_maps_have_the_values_of_the_training_s(tmp_path: Path):
    root = tmp_path / "scans"
    for seed, name in enumerate(("ada", "bob", "cyd")):
        write_patient(root, name, seed)
        labels = nib.load(root / name / "labels.nii.gz")
        values = np.where(np.asarray(labels.dataobj) > 0, 500, 7).astype(np.int16)
        nib.save(nib.Nifti1Image(values, labels.affine), root / name / "labels.nii.gz")
    (root / "labels.json").write_text(json.dumps({"7": "background", "500": "bright"}))
    data = {"kind": "scans", "root": str(root), "cache": str(tmp_path / "cache"), "patch": 12, "target": "none"}
    config = make_config({"data": data, "network": {"name": "highresnet", "width": 0.125}})
    run = untrained_run(tmp_path / "run", config)
    assert Run.open(run).config().data.target is None
    fg.predict(run, [root / "ada"], tmp_path / "out", samples=0)
    assert [path.name for path in sorted((tmp_path / "out/ada").iterdir())] == [
        "organs.nii.gz",
        "organs_entropy.nii.gz",
    ]
    predicted = np.asarray(nib.load(tmp_path / "out/ada/organs.nii.gz").dataobj)
    assert set(np.unique(predicted)) <= {7, 500}
    with pytest.raises(ValueError, match="--by: a column is for images, found 'sex' for scans"):
        fg.evaluate(run, samples=0, by="sex")


def test_scans_are_not_written_over(scan_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("one", "two"):
        write_patient(tmp_path / folder, "ada", 0)
    ada, other = tmp_path / "one" / "ada", tmp_path / "two" / "ada"
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    # The same scan named three ways is predicted once.
    assert "predicted 1 files" in predict(scan_run, ada, ada / "mr.nii.gz", tmp_path / "one", "-o", out).stdout
    monkeypatch.setattr("filtergroups.volumes.predict_volume", lambda *_, **__: pytest.fail("work was done"))
    refused(scan_run, ada, "-o", out, said="use --force")
    refused(scan_run, ada, other, "-o", out, "--force", said="expected scans of different names")
    refused(scan_run, tmp_path / "empty", "-o", out, said="expected scans named mr.nii.gz, found none")
    refused(scan_run, ada, "-o", ada / "mr.nii.gz" / "x", said="expected a folder to write to")
    (tmp_path / "file").write_text("")
    refused(scan_run, ada, "-o", tmp_path / "file", said="expected a folder to write to")


def test_a_folder_without_scans_is_told_beside_the_others(scan_run: Path, tmp_path: Path):
    write_patient(tmp_path, "ada", 0)
    (tmp_path / "empty").mkdir()
    done = predict(scan_run, tmp_path / "empty", tmp_path / "ada", "-o", tmp_path / "out", code=1)
    assert "1 of 2 files" in done.stderr
    assert (tmp_path / "out" / "ada" / "ct.nii.gz").is_file()
