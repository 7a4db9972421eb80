"""Tables of tasks whose right sharing is known."""

import csv

import numpy as np
import pytest
from PIL import Image

from filtergroups.data.errors import DataError
from filtergroups.reproduction.datasets import locate
from tests.reproduction.conftest import write_fashion


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def fashion(cache):
    folder = cache / "fashion"
    folder.mkdir()
    write_fashion(folder)
    return folder


def rows_of(where):
    with open(where["table"], newline="") as file:
        return list(csv.DictReader(file))


def test_pictures_show_the_items_that_the_table_names(fashion):
    where = locate("MultiFashion", fashion)
    rows = rows_of(where)
    assert [sum(row["split"] == part for row in rows) for part in ("train", "validation", "test")] == [12, 5, 6]
    for row in rows:
        picture = np.asarray(Image.open(f"{where['root']}/{row['image']}")).astype(int)
        assert picture.shape == (36, 36)
        assert picture[0, 0] == 20 * int(row["left"]) == 20 * int(row["left_again"])
        assert picture[-1, -1] == 20 * int(row["right"])
        assert float(row["brightness"]) == pytest.approx(picture.mean(), abs=1e-3)


def test_a_table_is_made_once_and_the_same_each_time(fashion, monkeypatch):
    said = []
    first = rows_of(locate("MultiFashion", fashion, said.append))
    assert rows_of(locate("MultiFashion", fashion, said.append)) == first
    assert len(said) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(fashion / "other"))
    assert rows_of(locate("MultiFashion", fashion, said.append)) == first


def test_missing_pictures_are_said_with_the_remedy(cache):
    with pytest.raises(DataError, match="dataset-fashion-mnist"):
        locate("MultiFashion", cache)


def test_noise_has_nothing_of_the_faces(cache):
    folder = cache / "UTKFace"
    folder.mkdir()
    lines = ["file,split"]
    for n in range(400):
        name = f"{n % 90 + 1}_{n % 2}_0_{n:017}.jpg"
        Image.new("RGB", (8, 8)).save(folder / name)
        lines.append(f"{name},{'train' if n < 300 else 'validation'}")
    (cache / "utkface-split.csv").write_text("\n".join(lines))
    rows = rows_of(locate("noisy UTKFace", cache))
    assert [sum(row["split"] == part for row in rows) for part in ("train", "validation", "test")] == [30, 15, 100]
    assert len({row["image"] for row in rows}) == len(rows)
    tested = [row for row in rows if row["split"] == "test"]
    assert all(row["gender"] == row["image"].split("_")[1] for row in rows)
    assert sorted(row["shuffled"] for row in tested) == sorted(row["gender"] for row in tested)
    assert 30 < sum(row["shuffled"] == row["gender"] for row in tested) < 70
