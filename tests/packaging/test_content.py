"""What is in the two files that are published."""

import os
import re
import subprocess
import sys
import zipfile

import pytest

from tests.packaging.building import (
    ROOT,
    Failed,
    build,
    check_content,
    compare,
    content_of_sdist,
    content_of_wheel,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist"), isolated=False)


def test_the_sdist_and_the_wheel_hold_the_sources_and_nothing_else(built):
    check_content(*built)


def test_no_model_result_or_picture_is_published(built):
    names = content_of_sdist(built[0]) | content_of_wheel(built[1])
    assert {name.split("/")[0] for name in names if "/" in name} == {"src", "tests", "experiments", "filtergroups"}
    assert not [name for name in names if re.search(r"\.(safetensors|npz|png|svg|jsonl|md)$", name) and "/" in name]


@pytest.mark.parametrize(
    "name",
    [
        "py.typed",
        "config.schema.json",
        "presets/paper.toml",
        "experiments/published.toml",
        "experiments/faces-small/experiment.toml",
        "reporting/page/core.js",
        "reporting/page/style.css",
    ],
)
def test_the_wheel_has_what_the_package_reads(built, name):
    assert f"filtergroups/{name}" in content_of_wheel(built[1])
    with zipfile.ZipFile(built[1]) as archive:
        beside = "" if name.startswith("experiments") else "src/filtergroups/"
        assert archive.read(f"filtergroups/{name}") == (ROOT / f"{beside}{name}").read_bytes()


def test_a_file_too_many_or_too_few_is_found(built):
    found = content_of_wheel(built[1])
    with pytest.raises(Failed, match=r"\['filtergroups/py.typed'\] missing"):
        compare(built[1], found - {"filtergroups/py.typed"}, found)
    with pytest.raises(Failed, match=r"\['models/a'\] besides"):
        compare(built[0], found | {"models/a"}, found)


def test_an_installed_package_takes_nothing_from_what_lies_above_it(built, tmp_path):
    """Neither somebody's `experiments` and `data` folders nor their commit."""
    site = tmp_path / "project" / "lib" / "site-packages"
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(site)
    for folder in (site.parent, site.parent.parent):
        (folder / "experiments").mkdir()
        (folder / "data" / "UTKFace").mkdir(parents=True)
        (folder / "pyproject.toml").write_text("")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *command], cwd=tmp_path / "project", check=True)
    asked = """
from filtergroups.reproduction import datasets, experiment, origin
from filtergroups.reporting.published import _tables
print(origin.commit(), datasets.default_places(), len(experiment.experiment_names()) > 5, len(_tables()) > 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "None [] True True\n", done.stderr
