"""Every experiment works from end to end at toy size, and says what the issue of evidence asks for."""

import json
import re
from pathlib import Path

import pytest

import filtergroups as fg
from filtergroups.checkpoint import load_checkpoint
from filtergroups.reproduction.experiment import SCALES, experiment_names, load_experiment, row_config
from filtergroups.run import Run
from tests.reproduction.conftest import FACES, PHANTOM, SCANS, TABLE

NAMES = {
    "faces-small", "faces-full", "scans-head", "scans-prostate", "scans-phantom", "initialisation", "duplicates",
    "planted", "what-matters", "third-task", "learning-mixed", "learning-noise", "learning-friendly", "learning-twins",
    "learning-starts",
}  # fmt: skip
# What is run of each here; a row that comes after another brings it along.
TOYS = {
    "faces-small": (("constant_p", "cross_stitch"), FACES),
    "faces-full": (("one_task",), FACES),
    "scans-head": (("sfg",), SCANS),
    "scans-prostate": (("one_task",), SCANS),
    "scans-phantom": (("constant_p",), (*SCANS, *PHANTOM)),
    "initialisation": (("mask", "specific"), FACES),
    "duplicates": (("ct_twice",), (*SCANS, *PHANTOM)),
    "planted": (("known", "three_tasks", "fresh"), ("steps=3",)),
    "what-matters": (("random_mask",), FACES),
    "third-task": (("added", "together"), FACES),
    "learning-mixed": (("by_hand", "same_everywhere", "one_bank"), TABLE),
    "learning-noise": (("by_kernel", "equal"), TABLE),
    "learning-friendly": (("before", "sfg"), TABLE),
    "learning-twins": (("sfg",), TABLE),
    "learning-starts": (("uniform", "random"), TABLE),
}


def test_the_experiments_are_those_that_were_promised():
    assert set(experiment_names()) == NAMES == set(TOYS)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_row_of_every_experiment_is_a_valid_config_at_both_scales(name):
    experiment = load_experiment(name)
    assert len({row.label for row in experiment.rows}) == len(experiment.rows)
    for scale in SCALES:
        for row in experiment.at(scale).rows if experiment.maker == "training" else ():
            config = row_config(row, 3, scale=scale, data={})
            assert config.seed == 3
            if config.data.kind not in ("phantom", "table"):  # which have a test part of their own
                assert config.chosen_by == "selection"
                assert experiment.split == "validation"
            else:
                assert experiment.split == "test"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", sorted(NAMES - {"planted"}))
def test_no_two_rows_are_the_same_run(name, scale):
    rows = load_experiment(name).at(scale).rows
    taken = {row.label: Path(row.after) if row.after else None for row in rows}
    configs = {row_config(row, 0, scale=scale, data={}, taken=taken[row.label]).model_dump_json() for row in rows}
    assert len(configs) == len(rows)


@pytest.mark.parametrize("scale", SCALES)
def test_added_tasks_have_the_steps_and_weights_of_the_others(scale):
    """3 % of the images for as many steps as 10 % have."""
    rows = {row.name: row for row in load_experiment("third-task").at(scale).rows}
    configs = {
        name: row_config(row, 0, scale=scale, data={}, taken=Path(row.after) if row.after else None)
        for name, row in rows.items()
    }
    steps = {
        name: config.training.epochs * (config.data.fraction * 16594 * 0.95 // config.training.batch_size)
        for name, config in configs.items()
    }
    assert max(steps.values()) / min(steps.values()) < 1.1
    assert len({config.training.task_weights["age"] for name, config in configs.items() if name != "alone"}) == 1


@pytest.mark.parametrize("name", ["faces-small", "faces-full", "scans-head", "scans-prostate", "scans-phantom"])
def test_all_methods_of_a_table_have_the_same_recipe(name):
    experiment = load_experiment(name)
    assert [row.name for row in experiment.rows] == [
        "one_task", "hard_sharing", "constant_mask", "constant_p", "cross_stitch", "sfg",
    ]  # fmt: skip
    recipes = []
    for row in experiment.rows:
        tree = json.loads(row_config(row, 0, scale="cpu", data={}).model_dump_json())
        assert tree["method"].pop("name") == row.name
        if row.name == "constant_p":
            assert tree["training"]["finetune_epochs"] == 0  # it has no mode
        # What means something where gates are sampled only.
        tree.pop("temperature")
        tree["method"].pop("per_example")
        for key in ("finetune_epochs", "probability_factor", "rewind"):
            tree["training"].pop(key)
        recipes.append(tree)
    assert all(recipe == recipes[0] for recipe in recipes)


def test_the_papers_size_is_the_papers():
    faces = row_config(load_experiment("faces-small").row("sfg"), 0, scale="paper", data={})
    assert (faces.data.size, faces.network.width, faces.training.batch_size, faces.training.epochs) == (200, 1, 10, 330)
    assert not faces.method.per_example
    steps = {}
    for name, patients in (("scans-head", 10), ("scans-prostate", 16), ("scans-phantom", 14)):
        config = row_config(load_experiment(name).row("sfg"), 0, scale="paper", data={})
        assert config.data.patch == 128
        assert config.training.batch_size == 10
        steps[name] = config.training.epochs * (patients * config.data.patches_per_patient // 10)
    assert all(abs(count - 200_000) < 200 for count in steps.values()), steps


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_experiment_runs_from_end_to_end(name, toys, tmp_path):
    rows, overrides = TOYS[name]
    summary = fg.reproduce(
        name, seeds=1, data=toys if load_experiment(name).data else None, runs=tmp_path / "runs",
        results=tmp_path / "results", overrides=overrides, rows=rows,
    )  # fmt: skip
    done = [row for row in summary["rows"] if row["runs"]]
    assert {row["name"] for row in done} >= set(rows)
    for row in done:
        assert row["mean"]
        assert row["runs"][0]["seconds"] > 0
        assert row["runs"][0]["parameters"] > 0
    page = (tmp_path / "results" / f"{name}.md").read_text()
    assert f"Unfinished: {summary['finished']} of {summary['of']} runs" in page or summary["finished"] == summary["of"]
    assert "Not the experiment's own settings" in page
    for file in re.findall(r"!\[.*?\]\((.*?)\)", page):
        assert (tmp_path / "results" / file).stat().st_size < 200_000
    assert json.loads((tmp_path / "results" / f"{name}.json").read_text())["finished"] == summary["finished"]
    for run in (tmp_path / "runs").glob("*/*-seed0/results.json"):
        read = {result["split"] for result in Run(run.parent).results()}
        # Beside the held-out part only the one that the checkpoint was chosen by.
        assert read == {load_experiment(run.parent.parent.name).split, Run(run.parent).config().chosen_by}


def test_masks_of_a_trained_network_are_its_own(toys, tmp_path):
    """What-matters: the frozen masks are those that sfg ended with, its weights are not."""
    fg.reproduce(
        "what-matters", seeds=1, data=toys, runs=tmp_path / "runs", results=tmp_path / "results",
        overrides=(*FACES, "method.init=random"), rows=["frozen_mask"],
    )  # fmt: skip
    taken = load_checkpoint(tmp_path / "runs" / "what-matters" / "frozen_mask-seed0" / "best.safetensors")[1]
    given = load_checkpoint(tmp_path / "runs" / "faces-small" / "sfg-seed0" / "best.safetensors")[1]
    masks = [name for name in given if name.endswith("rho")]
    assert len(masks) == 8
    for name in masks:
        assert taken[name].equal(given[name])
        weight = name.replace("assignment.rho", "weight")
        assert not taken[weight].equal(given[weight])
