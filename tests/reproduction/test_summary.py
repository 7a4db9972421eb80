"""The numbers on a page: means, paired differences and intervals against scipy, and how they are shown."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from filtergroups.reproduction.analyses import initialisation_distances
from filtergroups.reproduction.experiment import Column, Experiment, Row
from filtergroups.reproduction.page import distance_lines, page, ranked, write_page
from filtergroups.reproduction.planning import Job
from filtergroups.reproduction.proportions import distance
from filtergroups.reproduction.summary import interval, published, summarise

COLUMNS = [
    Column("age.mae", "age (years)", more_is_better=False),
    Column("gender.accuracy", "gender (%)", percent=True),
]


def made(tmp_path, values, published="Table 1(b)", seeds=3):
    """An experiment whose runs have these values: row -> one (age, gender) a seed."""
    rows = [Row(name, name, "made", method=name) for name in values]
    experiment = Experiment("made", "Made up", "For a test.", COLUMNS, rows, published=published)
    found = {}
    for row in rows:
        for seed in range(seeds):
            if seed < len(values[row.name]):
                age, gender = values[row.name][seed]
                found[Job(row, seed, tmp_path / f"{row.name}-{seed}", None)] = {
                    "values": {"age.mae": age, "gender.accuracy": gender}, "seconds": 60.0 * (seed + 1),
                    "parameters": 1000, "plain": {"age.mae": 16.0},
                }  # fmt: skip
    how = {"scale": "cpu", "command": "do it", "overrides": []}
    return experiment, summarise(experiment, found, of=seeds * len(rows), **how)


VALUES = {
    "hard_sharing": [(9.2, 0.85), (9.4, 0.86), (9.0, 0.84)],
    "one_task": [(8.9, 0.86), (9.0, 0.855), (9.1, 0.85)],
    "sfg": [(8.5, 0.87), (8.8, 0.865), (8.4, 0.875)],
}


def test_means_and_paired_intervals_are_those_of_scipy(tmp_path):
    _, summary = made(tmp_path, VALUES)
    for row in summary["rows"]:
        ages = np.array([age for age, _ in VALUES[row["name"]]])
        assert row["mean"]["age.mae"] == pytest.approx(ages.mean())
        assert row["sd"]["age.mae"] == pytest.approx(ages.std(ddof=1))
        if row["name"] == "sfg":
            assert row["difference"] == {}
            continue
        reference = np.array([age for age, _ in VALUES["sfg"]])
        expected = stats.ttest_rel(ages, reference).confidence_interval(0.95)
        found = row["difference"]["age.mae"]
        assert found["mean"] == pytest.approx((ages - reference).mean())
        assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))


def test_one_seed_has_no_interval(tmp_path):
    assert interval([1.0]) is None
    _, summary = made(tmp_path, {name: values[:1] for name, values in VALUES.items()})
    assert summary["rows"][0]["sd"]["age.mae"] is None
    assert "low" not in summary["rows"][0]["difference"]["age.mae"]
    assert summary["finished"] == 3
    assert summary["of"] == 9


def test_differences_pair_the_seeds_that_both_have(tmp_path):
    _, summary = made(tmp_path, {**VALUES, "one_task": VALUES["one_task"][:2]})
    row = next(row for row in summary["rows"] if row["name"] == "one_task")
    assert row["difference"]["age.mae"]["pairs"] == 2
    assert row["difference"]["age.mae"]["mean"] == pytest.approx(((8.9 - 8.5) + (9.0 - 8.8)) / 2)


def test_the_papers_numbers_are_beside_ours(tmp_path):
    keys = [column.key for column in COLUMNS]
    assert published("Table 1(b)", "sfg", keys) == {"age.mae": [8.54], "gender.accuracy": [0.8701]}
    assert published("Table 1(a)", "hard_sharing", keys) == {"age.mae": [7.92], "gender.accuracy": [0.906]}
    assert published("Table 2", "sfg", ["ct.psnr.bone"]) == {"ct.psnr.bone": [32.29, 0.59]}
    assert published("Table 1(b)", "fixed_mask", keys) == {}
    _, summary = made(tmp_path, VALUES)
    text = "\n".join(page(summary, {}))
    assert "| **8.57 ± 0.21** | 8.54 | **87.00 ± 0.50** | 87.01 | 3 |" in text


def test_best_and_second_best_are_marked_and_ties_alike(tmp_path):
    _, summary = made(tmp_path, VALUES)
    assert ranked(summary["rows"], COLUMNS[0]) == {"sfg": 1, "one_task": 2}
    assert ranked(summary["rows"], COLUMNS[1]) == {"sfg": 1, "one_task": 2}
    tied = {**VALUES, "hard_sharing": VALUES["sfg"]}
    (tmp_path / "tied").mkdir()
    _, summary = made(tmp_path / "tied", tied)
    assert ranked(summary["rows"], COLUMNS[0]) == {"sfg": 1, "hard_sharing": 1, "one_task": 2}


def test_a_page_says_what_is_missing_and_how_it_was_made(tmp_path):
    _, summary = made(tmp_path, {**VALUES, "sfg": VALUES["sfg"][:1]})
    path = write_page(summary, tmp_path / "results")
    text = path.read_text()
    assert "**Unfinished: 7 of 9 runs.**" in text
    for part in ("`do it`", "PyTorch", "cores", "made.json", "95 % t-intervals"):
        assert part in text
    assert re.search(r"\d{4}-\d\d-\d\d", text)
    assert json.loads((tmp_path / "results" / "made.json").read_text()) == json.loads(json.dumps(summary))


def test_a_page_says_which_norms_were_used_where_they_differ(tmp_path):
    _, summary = made(tmp_path, VALUES)
    for row in summary["rows"]:
        for run in row["runs"]:
            run["statistics"] = "batch" if row["name"] == "one_task" else "recalibrated"
    text = "\n".join(page(summary, {}))
    assert "Norms in prediction: recalibrated ones; those of the batch for “one_task”." in text


def test_distances_of_proportions():
    here, there = [[0.2, 0.2, 0.6], [1.0, 0.0, 0.0]], [[0.2, 0.2, 0.6], [0.0, 0.0, 1.0]]
    assert distance(here, here) == 0
    assert distance(here, there) == pytest.approx(2 / 6)

    def row(name, *stages):
        runs = [{"seed": n, "proportions": {"start": a, "learned": b, "mode": b}} for n, (a, b) in enumerate(stages)]
        return {"name": name, "label": name.upper(), "runs": runs}

    rows = [row("x", (here, here), (here, here)), row("y", (there, here), (there, here)), row("mask", (there, there))]
    found, away = initialisation_distances(rows), pytest.approx(2 / 6)
    assert found["pairs"] == [
        {"pair": ["X", "Y"], "start": away, "learned": 0.0, "mode": 0.0, "count": 2},
        {"pair": ["X", "MASK"], "start": away, "learned": away, "mode": away, "count": 1},
        {"pair": ["Y", "MASK"], "start": 0.0, "learned": away, "mode": away, "count": 1},
    ]
    assert found["mean"]["learned"] == pytest.approx(4 / 18)
    assert found["free"]["learned"] == 0  # x and y meet, the mask stays where it is
    assert found["free"]["layers"]["start"] == [0, pytest.approx(2 / 3)]
    assert found["two_seeds"]["learned"] == 0
    text = "\n".join(distance_lines(found))
    assert "| **mean without the constant mask** | 0.333 | 0.000 | 0.000 |" in text
    assert "| at the start | 0.00 | 0.67 |" in text
