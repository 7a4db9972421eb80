"""An image has one answer, wherever it is shown: evaluate, predict, report, figures, ONNX and the log agree."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import filtergroups as fg
from filtergroups import paper_figures
from filtergroups.run import Run
from tests.answers.reading import PASSES, Tiles, rows_of, same, section_of


@pytest.fixture
def truth(table):
    return {row["image"]: row for row in rows_of(table.data / "labels.csv") if row["image"] in table.names}


def test_what_evaluate_measures_is_what_predict_says(table, truth):
    tasks, calibration, rows = table.result["tasks"], table.result["calibration"], table.rows
    levels = {name: float(truth[name]["level"]) for name in rows}
    errors = [abs(float(row["level"]) - levels[name]) for name, row in rows.items()]
    assert np.mean(errors) == pytest.approx(tasks["level"]["mae"], rel=1e-4)
    right = [row["pattern"] == truth[name]["pattern"] for name, row in rows.items()]
    assert np.mean(right) == pytest.approx(tasks["pattern"]["accuracy"])
    inside = [float(row["level_low"]) <= levels[name] <= float(row["level_high"]) for name, row in rows.items()]
    assert np.mean(inside) == pytest.approx(calibration["level"]["coverage_corrected"])
    widths = [float(row["level_high"]) - float(row["level_low"]) for row in rows.values()]
    assert np.mean(widths) == pytest.approx(calibration["level"]["width_corrected"], rel=1e-3)
    for row in rows.values():
        p = np.array([float(row[f"pattern_p_{name}"]) for name in ("plain", "striped")])
        assert p.sum() == pytest.approx(1, abs=1e-3)
        assert -(p * np.log(p.clip(1e-12))).sum() == pytest.approx(float(row["pattern_entropy"]), abs=2e-3)


def told_of(row: dict[str, str], truth: dict[str, str], told: str) -> None:
    """A tile's words against the table of predictions and the user's labels."""
    found = re.fullmatch(
        r"level (\S+), predicted (\S+) \((\S+) to (\S+)\), pattern (\w+), predicted (\w+) \((\S+)%\)", told
    )
    assert found is not None, told
    level, value, low, high, pattern, chosen, confidence = found.groups()
    assert same(level, float(truth["level"]))
    assert same(value, float(row["level"]))
    assert same(low, float(row["level_low"]))
    assert same(high, float(row["level_high"]))
    assert (pattern, chosen) == (truth["pattern"], row["pattern"])
    assert float(confidence) == pytest.approx(100 * float(row[f"pattern_p_{chosen}"]), abs=0.06)


def test_a_report_s_images_are_those_of_the_table(table, truth, tmp_path):
    rows, count = table.rows, len(table.names)
    text = fg.report(table.run, tmp_path / "report.html", examples=count).read_text()
    tiles = Tiles(text)
    assert set(tiles.found["Some, drawn at random"]) == set(rows)
    for name, told in tiles.all.items():
        told_of(rows[name], truth[name], told)
    # The worst are the worst of what predict says, worst first.
    errors = {name: abs(float(row["level"]) - float(truth[name]["level"])) for name, row in rows.items()}
    doubts = {name: 1 - float(row[f"pattern_p_{truth[name]['pattern']}"]) for name, row in rows.items()}
    for task, worst in (("level", errors), ("pattern", doubts)):
        shown = [worst[name] for name in tiles.found[f"The worst for {task}, of {count} examples"]]
        assert shown == pytest.approx(sorted(worst.values(), reverse=True), abs=1e-3)
    # And the headline is the table's, of the same passes.
    summary = section_of(text, "summary")
    assert f"{table.result['tasks']['level']['mae']:.2f} ±" in summary
    passes = {"sampled": f"{PASSES} passes", "fixed": "the mode network"}[table.kind]
    assert f">On the test part, {count} examples, {passes}<" in summary
    assert f"by {passes}:" in "".join(tiles.words)


def test_a_report_s_first_numbers_are_of_the_network_that_it_shows(table, tmp_path):
    """Not those of other norms, nor of a best checkpoint that training has replaced since: these are named as such."""
    run = Run(shutil.copytree(table.run, tmp_path / "run"))
    measured = {**table.result, "step": table.result["step"] - 1}
    others = [{**table.result, "statistics": "batch"}, {**table.result, "checkpoint": "last"}]
    validation = next(result for result in run.results() if result["split"] == "validation")
    run.write("results.json", json.dumps([measured, *others, validation]).encode())
    text = fg.report(run.path, tmp_path / "report.html", examples=1).read_text()
    samples = {"sampled": "4 passes", "fixed": "the mode network"}[table.kind]
    for part in ("summary", "calibration"):
        found = re.findall(r"(\w+ part, \d+ examples, [^<\"]*)", section_of(text, part))
        first, rest = found[0], "; ".join(found[1:])
        assert first == f"validation part, {validation['examples']} examples, {samples}"
        now = f"the best checkpoint is now of step {table.result['step']}"
        for words in ("norms of the batch", "checkpoint last", f"of step {measured['step']}: {now}"):
            assert words in rest, words
    assert f"From the test part, by {samples}:" in section_of(text, "predictions")
    again = section_of(text, "summary")
    assert "--statistics batch" in again
    assert "--checkpoint last" in again


def test_figures_show_the_same_images(table, truth, tmp_path, monkeypatch):
    titles = []

    def seen(figure, path, format):
        if path.stem == "predictions":
            titles.extend(axes.get_title() for axes in figure.axes)
        return path

    monkeypatch.setattr(paper_figures, "_written", seen)
    fg.figures(table.run, tmp_path, format="svg")
    by_level = {f"{float(of['level']):.4g}": name for name, of in truth.items()}
    assert len(titles) == 8
    for title in titles:
        level, pattern = title.split("\n")
        name = by_level[level.split()[1]]
        told = f"{level}, {pattern}".replace(": ", " ").replace(" →", ", predicted")
        told_of(table.rows[name], truth[name], told)


def test_an_answer_depends_neither_on_its_place_nor_on_the_others(table, tmp_path):
    names, files = table.names[::-1][:5], table.files[::-1][:5]
    fg.predict(table.run, files, tmp_path / "few.csv", samples=PASSES)
    for name, row in zip(names, rows_of(tmp_path / "few.csv"), strict=True):
        for column, cell in row.items():
            if column.startswith(("level", "pattern_")):
                assert float(cell) == pytest.approx(float(table.rows[name][column]), rel=1e-3, abs=1e-3), column


def test_the_number_at_the_end_of_a_training_is_evaluate_s(table):
    log = (table.run / "log.txt").read_text()
    line = r"best checkpoint, step (\d+): validation level mae (\S+), pattern accuracy (\S+)\n.*\((.*)\)"
    found = re.search(line, log)
    assert found is not None, log
    step, mae, accuracy, how = found.groups()
    command = how.partition("filtergroups evaluate ")[2].split()
    assert Path(command[0]) == table.run
    samples = int(command[command.index("--samples") + 1]) if "--samples" in command else 50
    result = fg.evaluate(table.run, split=command[command.index("--split") + 1], samples=samples)
    assert result["step"] == int(step)
    assert f"{result['tasks']['level']['mae']:.4g}" == mae
    assert f"{result['tasks']['pattern']['accuracy']:.4g}" == accuracy
    assert {"sampled": "recalibrated norms, 4 passes", "fixed": "recalibrated norms, the mode network"}[
        table.kind
    ] in how


def test_validations_on_the_way_say_what_they_were_by(table):
    entries = [entry for entry in Run(table.run).metrics() if entry["kind"] == "validation"]
    expected = {("batch", 4)} if table.kind == "sampled" else {("batch", 4), ("batch", 0)}
    assert {(entry["norms"], entry["samples"]) for entry in entries} == expected
    assert "(norms of the batch, 4 passes)" in (table.run / "log.txt").read_text()


def test_a_validation_on_the_way_is_evaluate_s_of_that_checkpoint(table, tmp_path):
    run = Run(shutil.copytree(table.run, tmp_path / "run"))
    last = [entry for entry in run.metrics() if entry["kind"] == "validation"][-1]
    how = {"samples": last["samples"], "statistics": last["norms"]}
    result = fg.evaluate(run.path, split="validation", checkpoint="last", **how)
    assert result["step"] == last["step"]
    for task, metrics in last["results"].items():
        assert metrics == pytest.approx(result["tasks"][task], rel=1e-6), task


def test_results_are_kept_with_their_step_and_norms(table):
    kept = Run(table.run).results()
    assert {result["split"] for result in kept} >= {"validation", "test"}
    assert {result["statistics"] for result in kept} == {"recalibrated"}
    assert all(result["step"] > 0 for result in kept)
    of_batch = fg.evaluate(table.run, samples=PASSES, statistics="batch")
    assert of_batch in Run(table.run).results()
    assert table.result in Run(table.run).results()


def test_an_exported_file_says_what_the_mode_says(table, tmp_path):
    fg.calibrate(table.run, samples=0)
    fg.export(table.run, out=tmp_path / "model.onnx", measure=False)
    one, two = tmp_path / "run.csv", tmp_path / "file.csv"
    done = [fg.predict(table.run, table.files, one, samples=0), fg.predict(tmp_path / "model.onnx", table.files, two)]
    assert done[0].notes == done[1].notes
    for left, right in zip(rows_of(one), rows_of(two), strict=True):
        assert list(left) == list(right)
        for column in left:
            if column not in ("file", "pattern", "error"):
                assert float(left[column]) == pytest.approx(float(right[column]), rel=1e-3, abs=1e-3), column
