"""Answers at every pixel are files, and the table, the report and an exported file speak of the same ones."""

import re

import numpy as np
import pytest
from PIL import Image

import filtergroups as fg
from filtergroups.data.errors import DataError
from filtergroups.run import Run
from tests.answers.reading import PASSES, Tiles, dice, read_map, rows_of, same


def truth(maps, name, task):
    return read_map(maps.data, name.replace("image/", f"{task}/"))


def test_maps_are_files_that_the_table_names_and_evaluate_measured(maps):
    found = {name: read_map(maps.data, row["where"]) for name, row in maps.rows.items()}
    assert {values.dtype.name for values in found.values()} == {"uint8"}
    both = [np.stack([values[name] == 1 for name in maps.names])
            for values in (found, {name: truth(maps, name, "where") for name in maps.names})]  # fmt: skip
    assert dice(*both) == pytest.approx(maps.result["tasks"]["where"]["dice"], rel=1e-4)
    errors = []
    for name, row in maps.rows.items():
        assert float(row["where_share_1"]) == pytest.approx((found[name] == 1).mean(), rel=1e-3)
        assert float(row["where_share_0"]) + float(row["where_share_1"]) == pytest.approx(1, abs=1e-3)
        assert "where_mean" not in row  # the mean of class numbers means nothing
        grey = read_map(maps.data, row["grey"])
        assert grey.dtype == np.float32
        assert float(row["grey_mean"]) == pytest.approx(grey.mean(), rel=1e-4)
        errors.append(np.abs(grey - truth(maps, name, "grey")).mean())
    assert np.mean(errors) == pytest.approx(maps.result["tasks"]["grey"]["mae"], rel=1e-4)


def test_a_report_s_maps_have_the_scores_of_the_files(maps, tmp_path):
    tiles = Tiles(fg.report(maps.run, tmp_path / "report.html", examples=len(maps.names)).read_text())
    assert set(tiles.found["Some, drawn at random"]) == set(maps.names)
    for name, told in tiles.all.items():
        found = re.fullmatch(r"where , predicted Dice (\S+), grey , predicted error (\S+)", told)
        assert found is not None, told
        here = read_map(maps.data, maps.rows[name]["where"]) == 1
        assert same(found[1], dice(here, truth(maps, name, "where") == 1))
        assert same(found[2], np.abs(read_map(maps.data, maps.rows[name]["grey"]) - truth(maps, name, "grey")).mean())
    assert ("Maps: truth, prediction, entropy, spread." in "".join(tiles.words)) == (maps.kind == "sampled")


def test_an_exported_file_writes_the_same_maps(maps, tmp_path):
    fg.export(maps.run, out=tmp_path / "model.onnx", measure=False)
    for model, out in ((maps.run, "run.csv"), (tmp_path / "model.onnx", "file.csv")):
        fg.predict(model, maps.files, tmp_path / out, samples=0)
    for left, right in zip(rows_of(tmp_path / "run.csv"), rows_of(tmp_path / "file.csv"), strict=True):
        assert list(left) == list(right)
        grey, where = ([read_map(tmp_path, row[task]) for row in (left, right)] for task in ("grey", "where"))
        np.testing.assert_allclose(*grey, rtol=1e-3, atol=1e-2)
        assert (where[0] == where[1]).mean() > 0.99


def test_intervals_of_pixels_are_written_where_they_are_known(maps, tmp_path):
    kept = Run(maps.run).calibration.read_bytes()
    Run(maps.run).calibration.unlink()
    try:
        if maps.kind == "fixed":
            with pytest.raises(ValueError, match=r"--intervals: no spread: .*calibrate"):
                fg.predict(maps.run, maps.files, tmp_path / "no.csv", intervals=True)
    finally:
        Run(maps.run).calibration.write_bytes(kept)
    fg.predict(maps.run, maps.files[:3], tmp_path / "out.csv", samples=PASSES, intervals=True)
    for row in rows_of(tmp_path / "out.csv"):
        start = row["grey"].removesuffix(".tif")
        low, middle, high = (read_map(tmp_path, f"{start}{end}.tif") for end in ("_low", "", "_high"))
        assert (low < middle).all()
        assert (middle < high).all()
        with Image.open(tmp_path / row["where"].replace(".png", "_probabilities.tif")) as pages:
            assert pages.n_frames == 2


def test_a_folder_of_maps_is_not_written_over(maps, tmp_path):
    (tmp_path / "out_maps").mkdir()
    with pytest.raises(DataError, match=r"out_maps: expected a new folder, found one; use --force"):
        fg.predict(maps.run, maps.files[:1], tmp_path / "out.csv", samples=0)
    assert not (tmp_path / "out.csv").exists()
    fg.predict(maps.run, maps.files[:1], tmp_path / "out.csv", samples=0, force=True)
    assert (tmp_path / rows_of(tmp_path / "out.csv")[0]["where"]).is_file()
