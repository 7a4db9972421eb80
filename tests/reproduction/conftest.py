"""Toy data in the place of the real sets: generated pictures with UTKFace's names, and small phantoms."""

import gzip
import json
import shutil

import numpy as np
import pytest

from filtergroups.data.phantom import write_phantom
from filtergroups.reproduction import mixtures
from tests.data.pictures import face_folder

FACES = (
    "data.size=32", "data.selection=0.2", "data.fraction=0.5", "network.width=0.0625", "network.hidden=8",
    "training.epochs=2", "training.finetune_epochs=1", "training.batch_size=8", "training.threads=1",
)  # fmt: skip
SCANS = (
    "data.patch=16", "data.patches_per_patient=4", "network.width=0.125", "training.epochs=2", "training.threads=1",
    "training.finetune_epochs=1", "training.batch_size=4", "training.validate_every=0",
)  # fmt: skip
TABLE = (
    "data.size=32", "network.width=0.0625", "network.hidden=8", "training.epochs=2", "training.finetune_epochs=1",
    "training.batch_size=4", "training.threads=1", "training.validate_every=0",
)  # fmt: skip
PHANTOM = ("data.shape=[32,32,8]", "data.spacing=[12.0,12.0,12.0]", "data.patients=4")


@pytest.fixture(scope="session")
def toys(tmp_path_factory):
    """A folder with UTKFace, head-mr-ct and prostate-t2-adc; as in the real sets no part is called test."""
    folder = tmp_path_factory.mktemp("toys")
    names = sorted(path.name for path in face_folder(folder / "UTKFace", count=120).iterdir())
    lines = [f"{name},{'validation' if n % 4 == 3 else 'train'}" for n, name in enumerate(names)]
    (folder / "utkface-split.csv").write_text("\n".join(["file,split", *lines]) + "\n")
    write_fashion(folder)
    head = folder / "head-mr-ct"
    write_phantom(head, 6, 0, shape=(32, 32, 8), spacing=(12.0, 12.0, 12.0))
    tissues = ["background", "soft_tissue", "bone", "air_cavity", "intracranial", "more"]
    _relabelled(head, tissues)
    prostate = folder / "prostate-t2-adc"
    shutil.copytree(head, prostate)
    _relabelled(prostate, ["background", "peripheral_zone", "transition_zone", "a", "b", "c"])
    for patient in (path for path in prostate.iterdir() if path.is_dir()):
        (patient / "mr.nii.gz").rename(patient / "t2.nii.gz")
        (patient / "ct.nii.gz").rename(patient / "adc.nii.gz")
        shutil.copyfile(patient / "labels.nii.gz", patient / "valid.nii.gz")
    return folder


def write_fashion(folder):
    """Files of Fashion-MNIST's form with 40 pictures, of which each is as bright as its class."""
    labels = np.arange(40, dtype=np.uint8) % 10
    for part in ("train", "t10k"):
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(bytes(16) + np.repeat(labels * 20, 28 * 28).tobytes())
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(bytes(8) + labels.tobytes())


@pytest.fixture(autouse=True)
def _few_pictures(monkeypatch):
    few = {"train": ("train", 0, 30, 12), "selection": ("train", 30, 40, 5), "test": ("t10k", 0, 40, 6)}
    monkeypatch.setattr(mixtures, "PARTS", few)


def _relabelled(folder, names):
    (folder / "labels.json").write_text(json.dumps({str(n): name for n, name in enumerate(names)}))
    split = (folder / "split.csv").read_text()
    (folder / "split.csv").write_text(split.replace(",test", ",validation"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
