"""Runs that several tests look at, and the browser they look with."""

import os
import shutil

import pytest
import torch

import filtergroups as fg
from filtergroups.evaluation import evaluate
from tests.backbones import ResNet18
from tests.reporting import runs


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium. CI installs one; elsewhere its tests are skipped where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI installs Chromium for these tests, found none")
        pytest.skip("no Chromium is installed: the report was not looked at in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def pictures(folder):
    runs.picture_table(folder / "pictures", missing=False)
    return folder / "pictures"


@pytest.fixture(scope="session")
def sfg(folder, pictures):
    run = runs.train_table(pictures, folder / "sfg", epochs=5, finetune_epochs=2, probability_factor=50)
    evaluate(run, samples=2)
    return run


@pytest.fixture(scope="session")
def other_seed(folder, pictures):
    run = runs.train_table(pictures, folder / "sfg-1", epochs=5, finetune_epochs=2, probability_factor=50, seed=1)
    evaluate(run, samples=2)
    return run


@pytest.fixture(scope="session")
def hard_sharing(folder, pictures):
    run = runs.train_table(pictures, folder / "hard", method="hard_sharing", epochs=2)
    evaluate(run, samples=0)
    return run


@pytest.fixture(scope="session")
def scans(folder):
    run = runs.scans(folder / "scans", folder / "scans-run")
    evaluate(run, samples=0)
    return run


@pytest.fixture(scope="session")
def unpleasant(folder):
    """Eight tasks whose names and classes would be HTML if they were not escaped; a name has no slash, a class may."""
    names = [
        "a\"quote'",
        f"{runs.SCRIPT}",
        "<b>bold</b>",
        "&amp;",
        "${x}`",
        "</script>",
        "a-rather-long-name-for-one-task",
        "h",
    ]
    where = folder / "unpleasant"
    tasks = runs.wide_table(where, [name.replace("/", "") for name in names])
    return runs.train_table(where, folder / "<i>run & co", tasks=tasks, epochs=2)


@pytest.fixture(scope="session")
def pages(folder, pictures, sfg, other_seed, hard_sharing, scans, unpleasant):
    """Reports of all kinds, by name."""
    three = [
        {"name": "level", "kind": "regression", "scale": 100.0},
        {"name": "pattern", "kind": "classification"},
        {"name": "again", "kind": "regression", "column": "level", "scale": 100.0},
    ]
    one = runs.train_table(pictures, folder / "one", tasks=three[:1], epochs=1)
    subsets = runs.train_table(pictures, folder / "subsets", tasks=three, groups="all_subsets", epochs=2)
    constant = runs.train_table(pictures, folder / "constant", method="constant_p", epochs=1)
    stitched = runs.train_table(pictures, folder / "stitched", method="cross_stitch", epochs=1)
    stopped = runs.unfinished(pictures, folder / "stopped")
    tasks = [fg.Regression("level"), fg.Classification("pattern", classes=2)]
    lifted = fg.lift(ResNet18(width=8), tasks)
    volumes = runs.scans(folder / "scans", folder / "volumes", spatial_dims=3)
    maps = runs.maps(folder / "maps", folder / "maps-run")
    given = {
        "sfg": sfg, "scans": scans, "volumes": volumes, "maps": maps,
        "eight": unpleasant, "one": one, "subsets": subsets, "constant": constant,
        "stitched": stitched, "unfinished": stopped, "lifted": lifted, "several": [sfg, other_seed, hard_sharing],
    }  # fmt: skip
    made = {}
    for name, what in given.items():
        images = torch.rand(2, 3, 32, 32) if name == "lifted" else None
        made[name] = fg.report(what, folder / f"{name}.html", images=images, examples=4, samples=2)
    return made


@pytest.fixture(scope="session")
def large(folder):
    return runs.large(folder / "large")
