"""Tables of tasks of which it is known what they should share, made from pictures that are there.

MultiFashion: two items of Fashion-MNIST in one picture, one at the top left, one at the bottom right. The items want
each other's kernels; the picture's mean brightness, a real value, wants some of its own.
"""

import csv
import gzip
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from filtergroups.data.cache_folder import cache_folder
from filtergroups.data.errors import DataError
from filtergroups.locks import held

FASHION = Path("/usr/share/datasets/fashion-mnist")
PARTS = {
    "train": ("train", 0, 50_000, 4_000),
    "selection": ("train", 50_000, 60_000, 3_000),
    "test": ("t10k", 0, 10_000, 3_000),
}
SIDE, SHIFT = 36, 8
VERSION = 1
NOISE_TASKS = ("shuffled", "noise")

Row = dict[str, Any]


def multi_fashion(given: Path | None, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The settings of [data] for MultiFashion, which is made once, in the cache folder."""
    source = FASHION if given is None else given
    if not (source / "train-images-idx3-ubyte.gz").is_file():
        raise DataError(
            f"expected Fashion-MNIST (train-images-idx3-ubyte.gz, …) in {source}, found none; install Debian's package "
            "dataset-fashion-mnist, or give its folder as --data"
        )

    def make(folder: Path) -> list[Row]:
        say(f"making pictures of two items from {source}")
        return [row for part in PARTS for row in _pictures(source, part, folder)]

    folder = _once(f"multi-fashion-{VERSION}", make)
    return {"table": str(folder / "table.csv"), "root": str(folder)}


def _pictures(source: Path, part: str, folder: Path) -> list[Row]:
    name, first, last, count = PARTS[part]
    with gzip.open(source / f"{name}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)[first:last]
    with gzip.open(source / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)[first:last]
    draw = np.random.default_rng(list(PARTS).index(part))
    (folder / part).mkdir()
    rows = []
    for n in range(count):
        left, right = draw.integers(0, len(images), 2)
        picture = np.zeros((SIDE, SIDE), np.uint8)
        picture[:28, :28] = images[left]
        picture[SHIFT:, SHIFT:] = np.maximum(picture[SHIFT:, SHIFT:], images[right])
        file_name = f"{part}/{n:05}.png"
        Image.fromarray(picture).save(folder / file_name)
        rows.append({
            "image": file_name, "split": "validation" if part == "selection" else part,
            "left": int(labels[left]), "right": int(labels[right]), "left_again": int(labels[left]),
            "brightness": f"{picture.mean():.4f}",
        })  # fmt: skip
    return rows


def noisy_faces(faces: dict[str, Any], say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """A tenth of the faces' training part with age and gender, and two tasks that nothing can be learned of.

    faces: where UTKFace and its split are. The authors' validation part is the test; a twentieth of the training part
    chooses the epoch.
    """
    root = Path(faces["root"])

    def make(folder: Path) -> list[Row]:
        say("drawing labels of noise for faces")
        with open(faces["split_file"], newline="", encoding="utf-8") as file:
            split = [(row["file"], row["split"]) for row in csv.DictReader(file)]
        known = [(name, part) for name, part in split if len(name.strip().split("_")) == 4 and (root / name).is_file()]
        draw = np.random.default_rng(0)
        train = draw.permutation([name for name, part in known if part == "train"]).tolist()
        parts = {
            "train": train[: len(train) // 10],
            "validation": train[-len(train) // 20 :],
            "test": [name for name, part in known if part != "train"],
        }
        rows = []
        for part, names in parts.items():
            genders = [name.strip().split("_")[1] for name in names]
            for name, shuffled in zip(names, draw.permutation(genders), strict=True):
                age, gender = name.strip().split("_")[:2]
                noise = f"{draw.random():.4f}"
                rows.append({
                    "image": name, "split": part, "age": age, "gender": gender, "shuffled": shuffled, "noise": noise,
                })  # fmt: skip
        return rows

    folder = _once(f"noisy-faces-{VERSION}", make)
    return {"table": str(folder / "table.csv"), "root": str(root)}


def _once(name: str, make: Callable[[Path], list[Row]]) -> Path:
    """A folder in the cache with a table and its pictures: made whole or not at all."""
    home = cache_folder(None) / "made"
    home.mkdir(parents=True, exist_ok=True)
    with held(home / f"{name}.lock"):
        if not (home / name).is_dir():
            with tempfile.TemporaryDirectory(dir=home) as aside:
                folder = Path(aside) / name
                folder.mkdir()
                rows = make(folder)
                with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)
                os.replace(folder, home / name)
    return home / name
