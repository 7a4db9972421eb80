"""Small runs, really trained, whose passes differ (`sampled`) or are all the same (`fixed`); evaluated, predicted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import filtergroups as fg
from filtergroups.config_file import make_config
from filtergroups.data.phantom import write_phantom
from filtergroups.training import train
from tests.answers.reading import PASSES, rows_of, tested
from tests.data.pictures import picture_table, table_tree


@dataclass(frozen=True)
class Case:
    """A run, its test part, and what evaluate and predict say of that."""

    kind: str
    run: Path
    data: Path
    names: list[str]  # of the test part
    files: list[Path]
    out: Path  # what predict wrote
    result: dict[str, Any]  # of evaluate

    @property
    def rows(self) -> dict[str, dict[str, str]]:
        return dict(zip(self.names, rows_of(self.out), strict=True))


MADE: dict[tuple[str, Path], Case] = {}  # pytest makes a fixture anew whenever its parameter comes back


def made(kind: str, data: Path, tree: dict[str, Any], split: Path, images: Path, suffix: str) -> Case:
    if (kind, data) in MADE:
        return MADE[kind, data]
    how = {"finetune_epochs": 1, "probability_factor": 50} if kind == "fixed" else {}
    run = data / kind
    method = {
        **tree.get("method", {}),
        "init": "shared",
    }  # of gates that are sampled to the end the mode is then no accident
    train(make_config({**tree, "method": method, "training": {**tree["training"], **how}}), run)
    fg.calibrate(run, samples=PASSES)
    names = tested(split)
    result = fg.evaluate(run, samples=PASSES)
    assert result["examples"] == len(names)
    files = [images / name for name in names]
    fg.predict(run, files, data / f"{kind}{suffix}", samples=PASSES)
    MADE[kind, data] = Case(kind, run, data, names, files, data / f"{kind}{suffix}", result)
    return MADE[kind, data]


@pytest.fixture(scope="session", params=("sampled", "fixed"))
def kind(request):
    return request.param


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    picture_table(folder, count=150, missing=False)
    return folder


@pytest.fixture(scope="session")
def table(kind, pictures):
    """One real value and one class an image."""
    tree = table_tree(pictures, pictures / "labels.csv", epochs=3, learning_rate=3e-3)
    # What `init` writes: a gate an example in training must not make predictions depend on their place.
    tree["method"] = {"per_example": True}
    return made(kind, pictures, tree, pictures / "labels.split.csv", pictures / "images", ".csv")


@pytest.fixture(scope="session")
def drawings(tmp_path_factory):
    """Images with a label map and a grey map: where it is bright, and how bright it is not."""
    folder = tmp_path_factory.mktemp("drawings")
    rng = np.random.default_rng(0)
    lines = ["image,where,grey"]
    for n in range(60):
        pixels = np.full((16, 16), 60.0) + rng.normal(0, 8, (16, 16))
        left = int(rng.integers(8))
        pixels[4:12, left : left + 8] += 120
        where = np.zeros((16, 16), np.uint8)
        where[4:12, left : left + 8] = 1
        grey = pixels.clip(0, 255).astype(np.uint8)
        for name, values in (("image", np.stack([grey] * 3, -1)), ("where", where), ("grey", 255 - grey)):
            (folder / name).mkdir(exist_ok=True)
            Image.fromarray(values).save(folder / name / f"{n}.png")
        lines.append(f"image/{n}.png,where/{n}.png,grey/{n}.png")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def maps(kind, drawings):
    """Tasks that answer at every pixel."""
    tree = {
        "data": {"kind": "table", "table": str(drawings / "labels.csv"), "root": str(drawings), "size": 16,
                 "cache": str(drawings / "cache")},
        "tasks": [{"name": "where", "kind": "segmentation", "classes": 2},
                  {"name": "grey", "kind": "image_regression", "scale": 255.0}],
        "network": {"name": "highresnet", "width": 0.125},
        "training": {"epochs": 3, "batch_size": 8, "threads": 1, "accelerator": "cpu", "learning_rate": 1e-2},
    }  # fmt: skip
    return made(kind, drawings, tree, drawings / "labels.split.csv", drawings, ".csv")


@pytest.fixture(scope="session")
def patients(tmp_path_factory):
    folder = tmp_path_factory.mktemp("patients")
    write_phantom(folder / "scans", 7, 0, shape=(32, 24, 8), spacing=(12.6, 11.2, 10.5))
    return folder


@pytest.fixture(scope="session")
def scans(kind, patients):
    """A synthesis and an outline."""
    tree = {
        "data": {"kind": "scans", "root": str(patients / "scans"), "patch": 16, "padding": 2, "patches_per_patient": 4,
                 "cache": str(patients / "cache")},
        "network": {"name": "highresnet", "width": 0.125},
        "training": {"epochs": 3, "batch_size": 4, "threads": 1, "accelerator": "cpu", "learning_rate": 1e-2},
    }  # fmt: skip
    return made(kind, patients, tree, patients / "scans" / "split.csv", patients / "scans", "-out")
