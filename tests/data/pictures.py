"""Small picture sets with known labels, made on the spot."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, brightness: float, stripes: bool, seed: int, size: int = 24) -> None:
    """A noisy picture: how bright it is and whether it is striped can be learned."""
    rng = np.random.default_rng(seed)
    pixels = np.full((size, size, 3), 255 * brightness) + rng.normal(0, 10, (size, size, 3))
    if stripes:
        pixels[::4] += 70
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def picture_table(folder: Path, count: int = 60, seed: int = 0, *, missing: bool = True) -> Path:
    """folder/labels.csv and folder/images: `level` (0 to 100) and `pattern` (plain, striped)."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(count):
        level, striped = rng.uniform(0.1, 0.7), bool(rng.integers(2))
        name = f"sub/{n:03d}.png" if n % 2 else f"{n:03d}.png"
        picture(folder / "images" / name, level, striped, n)
        label = "" if missing and n % 10 == 3 else f"{100 * level:.2f}"
        pattern = "" if missing and n % 10 == 7 else ("striped" if striped else "plain")
        rows.append({"image": name, "level": label, "pattern": pattern, "subject": f"s{n // 3}"})
    table = folder / "labels.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return table


def face_folder(folder: Path, count: int = 48, seed: int = 0) -> Path:
    """UTKFace-like names: brighter is older, stripes are female."""
    rng = np.random.default_rng(seed)
    for n in range(count):
        age, gender, race = int(rng.integers(1, 90)), int(rng.integers(2)), int(rng.integers(5))
        picture(folder / f"{age}_{gender}_{race}_2017011{n:010d}.jpg.chip.jpg", 0.1 + age / 150, bool(gender), n)
    return folder


def table_tree(folder: Path, table: Path, **training: object) -> dict:
    """A config for the table above that trains in a second or two."""
    return {
        "data": {
            "kind": "table", "table": str(table), "root": str(table.parent / "images"), "size": 16,
            "cache": str(folder / "cache"), "flip": True, "shift": 0.1, "group_column": "subject",
        },
        "tasks": [
            {"name": "level", "kind": "regression", "scale": 100.0},
            {"name": "pattern", "kind": "classification"},
        ],
        "network": {"name": "vgg11", "width": 0.0625, "hidden": 8},
        "training": {
            "epochs": 4, "batch_size": 8, "checkpoint_every": 3, "threads": 1, "accelerator": "cpu", **training,
        },
    }  # fmt: skip
