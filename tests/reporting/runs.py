"""Small runs, really trained, for every kind of report; and a large one, generated."""

import csv
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from filtergroups.config_file import dump_config, make_config
from filtergroups.data.phantom import write_phantom
from filtergroups.progress import Silent
from filtergroups.training import train
from tests.data.pictures import picture, picture_table, table_tree

SCRIPT = "<script>alert(1)</script>"


def train_table(
    folder: Path, run: Path, *, method="sfg", seed=0, groups="tasks+shared", tasks=None, **training
) -> Path:
    tree = table_tree(folder, folder / "labels.csv", **{"epochs": 3, **training})
    tree |= {"seed": seed, "method": {"name": method, "groups": groups}}
    if tasks is not None:
        tree["tasks"] = tasks
    train(make_config(tree), run)
    return run


def wide_table(folder: Path, names: list[str], count: int = 40) -> list[dict]:
    """folder/labels.csv with one column a task: real values and classes, some with unpleasant names."""
    rng = np.random.default_rng(0)
    rows = []
    for n in range(count):
        level = rng.uniform(0.1, 0.7)
        picture(folder / "images" / f"{n:03d}.png", level, bool(n % 2), n, size=16)
        row = {"image": f"{n:03d}.png", "subject": f"s{n}"}
        for place, name in enumerate(names):
            row[name] = f"{100 * level:.1f}" if place % 2 == 0 else (SCRIPT, "b'\"&c")[(n + place) % 2]
        rows.append(row)
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    kinds = ("regression", "classification")
    return [{"name": name, "kind": kinds[place % 2], "scale": 100.0} for place, name in enumerate(names)]


class StopAfter(Silent):
    """Interrupts training at a step, as a user would."""

    def __init__(self, step: int) -> None:
        self.limit = step

    def step(self, step: int, text: str) -> None:
        if step > self.limit:
            raise KeyboardInterrupt


def unfinished(folder: Path, run: Path) -> Path:
    tree = table_tree(folder, folder / "labels.csv", epochs=12, checkpoint_every=5)
    try:
        train(make_config(tree), run, report=StopAfter(30))
    except KeyboardInterrupt:
        return run
    raise AssertionError("the run was to be interrupted")


def scans(folder: Path, run: Path, *, spatial_dims: int = 2) -> Path:
    """Few small patients and a narrow HighResNet."""
    write_phantom(folder / "phantom", 4, 0, shape=(32, 24, 8), spacing=(12.6, 11.2, 10.5))
    data = {
        "kind": "scans", "root": str(folder / "phantom"), "patch": 16, "padding": 2, "patches_per_patient": 4,
        "cache": str(folder / "cache"), "spatial_dims": spatial_dims, "patch_depth": 8,
    }  # fmt: skip
    training = {
        "epochs": 4 - spatial_dims,
        "batch_size": 4,
        "threads": 1,
        "accelerator": "cpu",
        "probability_factor": 50,
    }
    tree = {"data": data, "network": {"name": "highresnet", "width": 0.125}, "training": training}
    train(make_config(tree), run)
    return run


def maps(folder: Path, run: Path) -> Path:
    """Images with an answer at every pixel: where it is bright, and how bright."""
    rng = np.random.default_rng(0)
    lines = ["image,where,grey"]
    for n in range(24):
        pixels = np.full((16, 16), 60.0) + rng.normal(0, 8, (16, 16))
        left = int(rng.integers(8))
        pixels[4:12, left : left + 8] += 120
        where = np.zeros((16, 16), np.uint8)
        where[4:12, left : left + 8] = 1
        grey = pixels.clip(0, 255).astype(np.uint8)
        for name, values in (("image", np.stack([grey] * 3, -1)), ("where", where), ("grey", 255 - grey)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(folder / name / f"{n}.png")
        lines.append(f"image/{n}.png,where/{n}.png,grey/{n}.png")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    tree = {
        "data": {
            "kind": "table", "table": str(folder / "labels.csv"), "root": str(folder), "size": 16,
            "cache": str(folder / "cache"),
        },
        "tasks": [
            {"name": "where", "kind": "segmentation", "classes": 2},
            {"name": "grey", "kind": "image_regression", "scale": 255.0},
        ],
        "network": {"name": "highresnet", "width": 0.125},
        "training": {"epochs": 2, "batch_size": 8, "threads": 1, "accelerator": "cpu"},
    }  # fmt: skip
    train(make_config(tree), run)
    return run


def large(run: Path, layers: int = 20, kernels: int = 250, times: int = 500) -> Path:
    """20 layers, 5,000 kernels, 500 saved steps: what training writes, without the training."""
    config = make_config(
        {
            "data": {"kind": "faces", "root": str(run / "nowhere")},
            "network": {"name": "vgg11"},
            "training": {"epochs": times},
        }
    )
    (run / "assignments").mkdir(parents=True)
    (run / "config.toml").write_text(dump_config(config))
    rng = np.random.default_rng(0)
    target = rng.dirichlet((0.3, 0.3, 0.4), (layers, kernels))
    lines = []
    for time in range(times):
        share = time / (times - 1)
        p = ((1 - share) * np.asarray([0.2, 0.2, 0.6]) + share * target).astype(np.float16)
        content = io.BytesIO()
        np.savez(content, **{f"layers.{n}": p[n] for n in range(layers)})
        step = 20 * time
        (run / "assignments" / f"step_{step:08d}.npz").write_bytes(content.getvalue())
        losses = {"age": 1 / (1 + share), "gender": 0.7 / (1 + share)}
        shared = {f"layers.{n}": 0.6 for n in range(layers)}
        lines.append({
            "step": step + 1, "kind": "train", "epoch": time, "losses": losses, "weights": 1e-3, "entropy": -1e-2,
            "temperature": 1 - 0.9 * share, "learning_rate": 1e-3, "shared": shared,
        })  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "log.txt").write_text(
        f"2026-01-01 00:00:00  sfg on vgg11: 1 parameters, 1 train examples, {20 * times} steps\n"
    )
    return run


__all__ = ["SCRIPT", "large", "maps", "picture_table", "scans", "train_table", "unfinished", "wide_table"]
