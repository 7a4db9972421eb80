"""The README runs as it stands: its Python block after block, its commands one after the other."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from filtergroups.config_file import make_config
from tests.data.pictures import face_folder, picture_table

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
# What a test has no time for: full training, full-size scans and pictures.
FASTER = [
    (r"epochs = \d+", "epochs = 2"),
    (r"finetune_epochs = \d+", "finetune_epochs = 1"),
    (r"width = 0\.\d+", "width = 0.0625"),
]
FASTER_CONFIG = [*FASTER, (r"patch = \d+", "patch = 16\npatches_per_patient = 2"), (r"size = 64", "size = 16")]


def test_the_python_of_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 5
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert "('age', 'gender', 'shared')" in printed


def python_of(page):
    """The Python blocks of a page of the docs."""
    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


class OwnNet(nn.Module):
    """A network with what the page about backbones names in its examples."""

    def __init__(self):
        super().__init__()
        for n in (1, 2, 3, 4):
            conv = nn.Conv2d(3 if n == 1 else 6, 6, 3, padding=1)
            setattr(self, f"layer{n}", nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU()))
        self.stage3 = nn.ModuleDict({"attention": nn.Sequential(nn.Conv2d(6, 6, 1), nn.Sigmoid())})

    def forward(self, x):
        x = self.layer2(self.layer1(x))
        x = self.stage3["attention"](x)
        return self.layer4(self.layer3(x)).mean((2, 3))


def test_the_python_about_backbones_runs():
    import filtergroups as fg

    tasks = [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]
    blocks = python_of("your-backbone.md")
    assert len(blocks) == 3
    for block in blocks:
        heads = {"head_a": nn.Linear(6, 1), "head_g": nn.Linear(6, 2)}
        scope = {"fg": fg, "tasks": tasks, "net": OwnNet(), "my_backbone": OwnNet(), **heads}
        exec(compile(block, "your-backbone.md", "exec"), scope)


def test_the_python_about_shipping_gives_what_predict_gives(tmp_path, monkeypatch, capsys):
    import filtergroups as fg
    from tests.data.pictures import table_tree

    picture_table(tmp_path, count=40)
    config = make_config(table_tree(tmp_path, tmp_path / "labels.csv", epochs=1))
    monkeypatch.chdir(tmp_path)
    run = fg.train(config, "runs/my")
    fg.export(run, out="model.onnx", measure=False)
    shutil.copy(min((tmp_path / "images").iterdir()), "image.png")
    fg.predict("model.onnx", "image.png", "out.csv")
    (block,) = python_of("shipping.md")
    capsys.readouterr()
    exec(compile(block, "shipping.md", "exec"), {})
    printed = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
    (row,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert set(printed) == {"level", "pattern"}
    assert float(printed["level"]) == pytest.approx(float(row["level"]), rel=1e-3)
    assert printed["pattern"] == row["pattern"]


def test_every_page_with_python_has_a_test():
    pages = sorted(page.name for page in (Path(__file__).parents[1] / "docs").glob("*.md") if python_of(page.name))
    assert pages == ["shipping.md", "your-backbone.md"]


def section(title):
    found = re.search(rf"^## {title}\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def redirected(words):
    """A command, and the file that its output goes to, as a shell takes it."""
    return (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)


def run_section(title, folder):
    """Write the section's config files and type its commands, in their order."""
    ran = []
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "100"}
    for kind, block in re.findall(r"```(sh|toml)\n(.*?)```", section(title), re.DOTALL):
        if kind == "toml":
            name = block.splitlines()[0].removeprefix("# ")
            (folder / name).write_text(faster(block))
            continue
        for line in block.splitlines():
            command = shlex.split(line, comments=True)
            assert command[0] == "filtergroups"
            if command[1:3] == ["data", "phantom"]:
                small_phantom(folder / command[3])
                continue
            command, goes_to = redirected(command)
            done = subprocess.run(
                [sys.executable, "-m", "filtergroups.cli", *command[1:]],
                cwd=folder, capture_output=True, text=True, env=environment, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            if goes_to:
                (folder / goes_to).write_text(done.stdout)
            ran.append(command[1])
            if command[1] == "init":
                config = folder / "my.toml"
                config.write_text(faster(config.read_text()))
    return ran


def faster(config):
    for pattern, replacement in FASTER_CONFIG:
        config = re.sub(rf"(?m)^{pattern}", replacement, config)
    return config


def small_phantom(folder):
    from filtergroups.data.phantom import write_phantom

    write_phantom(folder, 6, 0, shape=(48, 48, 12), spacing=(8.4, 8.4, 8.4))


def test_the_commands_for_a_table_run(tmp_path):
    picture_table(tmp_path, count=150)
    others = picture_table(tmp_path / "elsewhere", count=8, seed=1)
    others.rename(tmp_path / "others.csv")
    (others.parent / "images").rename(tmp_path / "other_images")
    ran = run_section("Your own table of images", tmp_path)
    wanted = ["init", "data", "train", "calibrate", "evaluate", "evaluate", "predict", "export", "predict", "report"]
    assert ran == wanted
    assert (tmp_path / "predictions.csv").read_text().count("\n") == 151


def test_the_commands_for_faces_run(tmp_path):
    face_folder(tmp_path / "UTKFace", count=700)
    names = sorted(path.name for path in face_folder(tmp_path / "others", count=12, seed=3).iterdir())
    (tmp_path / "others.csv").write_text("file,split\n" + "".join(f"{name},test\n" for name in names))
    assert run_section("Faces", tmp_path) == ["train", "evaluate", "evaluate"]


def test_the_commands_for_scans_run(tmp_path):
    assert run_section("Scans", tmp_path) == ["data", "train", "evaluate", "predict", "schema"]
    assert json.loads((tmp_path / "config.schema.json").read_text())["title"] == "Config"
    written = {path.name for path in (tmp_path / "out" / "patient_000").iterdir()}
    assert written == {"ct.nii.gz", "organs.nii.gz", "organs_entropy.nii.gz"}


@pytest.mark.parametrize("target", ["demo", "test", "bench"])
def test_the_targets_that_the_readme_names_exist(target):
    assert f"make {target}" in README
    assert f"\n{target}:" in (Path(__file__).parents[1] / "Makefile").read_text()
