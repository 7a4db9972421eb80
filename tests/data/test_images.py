"""Faces and tables: labels, splits, the cache, and one line for everything wrong."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from filtergroups.checking import check_data
from filtergroups.config import FacesData
from filtergroups.config_file import make_config
from filtergroups.data.decoding import decode
from filtergroups.data.examples import DataError
from filtergroups.data.faces import load_faces, parse_name
from filtergroups.data.image_cache import decoded
from filtergroups.data.load import load_data
from filtergroups.data.splits import read_split, seeded_split, write_split
from filtergroups.data.table import read_table
from tests.data.pictures import face_folder, picture, picture_table, table_tree


@pytest.fixture
def table(tmp_path):
    return picture_table(tmp_path)


def config_for(table, **changes):
    tree = table_tree(table.parent, table)
    tree["data"].update(changes)
    return make_config(tree)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("100_1_0_20170110183726390.jpg.chip.jpg", (100, 1, 0)),
        ("26_0_2_2017010.jpg", (26, 0, 2)),
        ("55_0_0_20170116232725357jpg.chip.jpg", (55, 0, 0)),
        (" 4_1_3_20161219230343296.jpg.chip.jpg", (4, 1, 3)),
        ("39_1_20170116174525125.jpg.chip.jpg", (39, 1, None)),
        ("61_3_20170109150557335.jpg.chip.jpg", (61, None, 3)),
        ("24_0_1_20170116220224657 .jpg.chip.jpg", (24, 0, 1)),
    ],
)
def test_odd_face_names_are_read(name, expected):
    face = parse_name(name)
    assert (face.age, face.gender, face.race) == expected


@pytest.mark.parametrize("name", ["portrait.jpg", "x_1_0_2017.jpg", "999_1_0_2017.jpg", "٣_1_0_2017.jpg", "_1_0_2.jpg"])
def test_names_without_an_age_are_no_faces(name):
    assert parse_name(name) is None


def test_faces_have_the_labels_of_their_names_and_twins_stay_together(tmp_path):
    root = face_folder(tmp_path / "faces")
    first = sorted(root.iterdir())[0]
    for n in range(5):  # byte-identical twins under other names
        (root / f"{first.name.split('_')[0]}_0_0_99{n}.jpg").write_bytes(first.read_bytes())
    data = load_faces(FacesData(kind="faces", root=root, size=16, cache=tmp_path / "cache"))
    parts = {}
    for split, part in data.parts.items():
        for n in range(len(part)):
            batch = part.batch([n])
            face = parse_name(part.name(n))
            assert batch.labels["age"].item() == face.age
            assert batch.labels["gender"].item() == face.gender
            parts.setdefault((root / part.name(n)).read_bytes(), set()).add(split)
    assert all(len(splits) == 1 for splits in parts.values())
    assert set(data.parts) == {"train", "validation", "test"}


def test_normalisation_comes_from_the_training_part_only(tmp_path):
    root = face_folder(tmp_path / "faces")
    names = sorted(path.name for path in root.iterdir())
    split = tmp_path / "split.csv"
    write_split(split, {name: "train" if n < 30 else "test" for n, name in enumerate(names)})
    config = FacesData(kind="faces", root=root, size=16, split_file=split, cache=tmp_path / "cache")
    data = load_faces(config)
    images = data.parts["train"].batch(range(30)).images
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-3, rtol=0)
    for path in list(root.iterdir()):
        if read_split(split)[path.name] == "test":
            picture(path, 1.0, False, 0)
    assert load_faces(config).constants == data.constants


def test_a_fraction_takes_that_share_of_training_and_all_of_the_rest(tmp_path):
    root = face_folder(tmp_path / "faces")
    sizes = {}
    for fraction in (1.0, 0.25):
        config = FacesData(kind="faces", root=root, size=16, fraction=fraction, cache=tmp_path / "cache")
        sizes[fraction] = {name: len(part) for name, part in load_faces(config).parts.items()}
    assert sizes[0.25]["train"] == round(0.25 * sizes[1.0]["train"])
    assert sizes[0.25]["test"] == sizes[1.0]["test"]


def test_a_table_s_empty_cells_are_missing_labels(table):
    data = load_data(config_for(table))
    labels = {}
    for part in data.parts.values():
        for n in range(len(part)):
            batch = part.batch([n])
            labels[part.name(n)] = (batch.labels["level"].item(), batch.labels["pattern"].item())
    for row in read_table(table):
        level, pattern = labels[row["image"]]
        assert np.isnan(level) if not row["level"] else level == pytest.approx(float(row["level"]))
        assert pattern == (-1 if not row["pattern"] else ["plain", "striped"].index(row["pattern"]))
    assert data.names == {"pattern": ["plain", "striped"]}


def test_a_seeded_split_is_written_reused_and_keeps_groups_together(table):
    data = load_data(config_for(table))
    path = table.with_suffix(".split.csv")
    split = read_split(path)
    of_subject = {}
    for row in read_table(table):
        of_subject.setdefault(row["subject"], set()).add(split[row["image"]])
    assert all(len(parts) == 1 for parts in of_subject.values())
    assert sum(len(part) for part in data.parts.values()) == 60
    moved = {name: "test" if part == "validation" else part for name, part in split.items()}
    path.unlink()
    write_split(path, moved)
    assert set(load_data(config_for(table)).parts) == {"train", "test"}


def test_seeded_splits_have_the_shares_and_do_not_depend_on_the_order():
    names = [f"{n}.png" for n in range(1000)]
    split = seeded_split(names, 0)
    counts = {part: list(split.values()).count(part) for part in ("train", "validation", "test")}
    assert counts == {"train": 700, "validation": 150, "test": 150}
    assert seeded_split(names[::-1], 0) == split
    assert seeded_split(names, 1) != split
    assert sorted(seeded_split(["a", "b", "c"], 0).values()) == ["test", "train", "validation"]


def test_the_same_generator_gives_the_same_augmented_batch(table):
    part = load_data(config_for(table)).parts["train"]
    one, two, other = (part.batch(range(8), torch.Generator().manual_seed(seed)).images for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert not torch.equal(one, part.batch(range(8)).images)


def test_label_maps_and_grey_targets_move_with_their_image(tmp_path):
    rng = np.random.default_rng(0)
    for n in range(24):
        shape = rng.integers(0, 3, (8, 8)).astype(np.uint8).repeat(4, 0).repeat(4, 1)
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(shape * 100).save(tmp_path / "images" / f"{n}.png")
        Image.fromarray(shape).save(tmp_path / "images" / f"{n}_map.png")
    rows = "\n".join(f"{n}.png,{n}_map.png,{n}.png" for n in range(24))
    (tmp_path / "t.csv").write_text(f"image,map,grey\n{rows}\n")
    tree = table_tree(tmp_path, tmp_path / "t.csv")
    tree["data"] |= {"size": 32, "channels": 1, "group_column": None}
    tree["tasks"] = [
        {"name": "map", "kind": "segmentation", "classes": 3},
        {"name": "grey", "kind": "image_regression", "scale": 255.0},
    ]
    part = load_data(make_config(tree)).parts["train"]
    batch = part.batch(range(10), torch.Generator().manual_seed(0))
    known = batch.labels["map"] >= 0
    assert known.float().mean() < 1, "nothing was shifted in"
    assert torch.equal(batch.labels["grey"][known], 100.0 * batch.labels["map"][known])
    assert batch.labels["grey"].isnan().eq(~known).all()
    levels = batch.images[:, 0][known]
    assert torch.corrcoef(torch.stack([levels, batch.labels["map"][known].float()]))[0, 1] > 0.999


def _decode_in_process(folder, barrier, results):
    barrier.wait()
    array, _ = decoded(sorted(Path(folder).glob("*.png")), 8, 3, Path(folder) / "cache")
    results.put(int(np.asarray(array).astype(np.int64).sum()))


def test_two_processes_that_start_at_once_read_the_same(tmp_path):
    for n in range(40):
        picture(tmp_path / f"{n}.png", n / 40, False, n)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_decode_in_process, args=(str(tmp_path), barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    sums = {results.get(timeout=120) for _ in workers}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(sums) == 1
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1


def test_pictures_of_every_kind_decode(tmp_path):
    grey16 = np.linspace(0, 65535, 400).reshape(20, 20).astype(np.uint16)
    Image.fromarray(grey16).save(tmp_path / "grey16.png")
    Image.new("RGBA", (10, 30), (255, 0, 0, 10)).save(tmp_path / "alpha.png")
    Image.new("P", (10, 10)).save(tmp_path / "palette.gif")
    Image.new("CMYK", (10, 10)).save(tmp_path / "print.jpg")
    for path in tmp_path.iterdir():
        assert decode(path, 8, 3).shape == (8, 8, 3)
        assert decode(path, 8, 1).shape == (8, 8, 1)
    assert decode(tmp_path / "grey16.png", 20, 1)[-1, -1, 0] > 250


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.write_text("image,level\n"), "at least one row"),
        (lambda t: t.write_text(t.read_text().replace("level", "lvl", 1)), "column 'level'.*found"),
        (lambda t: t.write_text(t.read_text().replace("000.png", "../../etc/passwd.png", 1)), "stay below"),
        (lambda t: t.write_text(t.read_text().replace("000.png", "nowhere.png", 1)), "nowhere.png.*on_bad_image"),
        (lambda t: (t.parent / "images/000.png").write_bytes(b"not a picture"), "000.png: expected an image"),
        (lambda t: t.write_text(t.read_text() + "x.png,1\n"), "cells"),
        (lambda t: t.write_text(t.read_text().replace("plain", "1e999", 1).replace(",1e999,", ",plain,")), None),
        (lambda t: t.unlink(), "labels.csv"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_one_line(table, spoil, said):
    spoil(table)
    if said is None:
        load_data(config_for(table))
        return
    with pytest.raises(DataError, match=said) as caught:
        load_data(config_for(table))
    assert "\n" not in str(caught.value)


def test_a_number_that_is_none_names_its_line(table):
    lines = table.read_text().splitlines()
    lines[2] = lines[2].replace(lines[2].split(",")[1], "tall", 1)
    table.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="line 3: a label of task 'level' is a number, found 'tall'"):
        load_data(config_for(table))


def test_bad_pictures_are_listed_or_skipped(table):
    (table.parent / "images" / "002.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    problems = check_data(config_for(table)).problems
    assert len(problems) == 1
    assert "002.png" in problems[0]
    data = load_data(config_for(table, on_bad_image="skip"))
    assert sum(len(part) for part in data.parts.values()) == 59


def test_checking_changes_nothing_and_finds_nothing_in_good_data(table):
    before = sorted(path for path in table.parent.rglob("*") if "cache" not in path.parts)
    assert check_data(config_for(table)).problems == []
    assert sorted(path for path in table.parent.rglob("*") if "cache" not in path.parts) == before


def test_a_folder_without_faces_says_so(tmp_path):
    for root in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError, match="expected") as caught:
            load_faces(FacesData(kind="faces", root=root))
        assert "\n" not in str(caught.value)
