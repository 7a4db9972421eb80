"""What a report says, without looking at it."""

import json
import re
import shutil

import numpy as np
import pytest

import filtergroups as fg
from filtergroups.checkpoint import load_checkpoint
from filtergroups.palette import SHARED, TASKS, group_colours, vertical_order
from filtergroups.reporting.architecture import payload, reads_of, shown_groups
from filtergroups.reporting.collect import record_of_network, record_of_run
from filtergroups.reporting.comparison import rows_of
from filtergroups.reporting.flow import flow
from filtergroups.reporting.published import published_for
from filtergroups.run import Run, RunError
from filtergroups.writing import write_atomically
from tests.answers.reading import Tiles
from tests.answers.reading import rows_of as rows_of_table
from tests.answers.reading import tested as is_tested
from tests.laws import randomise
from tests.reporting import runs


def test_a_page_asks_for_nothing_and_is_small(pages):
    for page in pages.values():
        text = page.read_text()
        assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)
        assert len(text) < 15e6


def network(tasks=2, groups="tasks+shared"):
    names = [fg.Regression(f"t{n}") for n in range(tasks)]
    net = fg.vgg11(names, width=0.125, groups=groups)
    randomise(net)
    return net


@pytest.mark.parametrize(
    ("tasks", "groups"), [(1, "tasks+shared"), (2, "tasks+shared"), (3, "all_subsets"), (8, "tasks+shared")]
)
def test_bands_are_divided_without_rest_and_follow_the_reading_rule(tasks, groups):
    record = record_of_network(network(tasks, groups))
    shown = shown_groups(record)
    picture = flow(record, shown)
    heads = len(record.timeline.layers) + 1
    for node in picture.nodes:
        arriving = [band for band in picture.bands if band.reader is node]
        leaving = [band for band in picture.bands if band.source is node]
        if node.column > 0 and arriving:
            assert sum(band.arriving for band in arriving) == pytest.approx(node.size)
        if node.column < heads and leaving:
            assert sum(band.leaving for band in leaving) == pytest.approx(node.size)
        if 1 < node.column < heads:
            sources = {band.source.name for band in arriving}
            group = record.family.sets[record.family.names.index(node.name)]
            before = [other.name for other in picture.nodes if other.column == node.column - 1]
            assert sources == {name for name in before if group <= record.family.sets[record.family.names.index(name)]}


def test_the_page_has_every_probability_within_half_a_byte(sfg):
    import base64

    record = record_of_run(sfg)
    data = payload(record, 10**7)
    packed = np.frombuffer(base64.b64decode(data["p"]), np.uint8).reshape(len(data["steps"]), -1, len(data["groups"]))
    for time, step in enumerate(data["steps"]):
        exact = record.timeline.probabilities[record.timeline.steps.index(step)]
        assert np.abs(packed[time] / 255 - exact).max() <= 0.5 / 255 + 1e-6
    assert sum(data["sums"][-1][0]) == pytest.approx(data["layers"][0]["kernels"], abs=0.05)


def test_of_all_subsets_of_eight_tasks_the_largest_are_shown_and_the_rest_added_up():
    record = record_of_network(network(8, "all_subsets"))
    shown = shown_groups(record)
    assert len(shown.names) == 25
    assert "shared" in shown.names
    assert sorted(member for members in shown.members for member in members) == list(range(255))
    columns = shown.columns(record.timeline.probabilities[0])
    np.testing.assert_allclose(columns.sum(1), 1, atol=1e-4)
    assert reads_of(record.family, shown)[-1] == []


def test_the_last_free_step_is_found_and_steps_after_it_are_dropped(sfg):
    timeline = record_of_run(sfg).timeline
    assert timeline.fixed_at == len(timeline.steps) - 1
    assert not np.isin(timeline.probabilities[timeline.learned], (0, 1)).all()
    assert np.isin(timeline.probabilities[-1], (0, 1)).all()
    saved = sorted((sfg / "assignments").iterdir())
    assert len(saved) > len(timeline.steps)


def test_colours_belong_to_tasks():
    for count in range(2, 9):
        family = fg.family([f"t{n}" for n in range(count)])
        colours = group_colours(family)
        assert colours[:count] == list(TASKS[:count])
        assert colours[family.full] == SHARED
        assert len(set(colours)) == len(colours)
        order = vertical_order(family)
        assert order[0] == 0
        assert abs(order.index(family.full) - count / 2) <= 0.5


def test_seeds_make_one_row_with_mean_and_deviation(sfg, other_seed, hard_sharing, pages):
    rows = rows_of([record_of_run(path) for path in (sfg, other_seed, hard_sharing)])
    assert [len(row.records) for row in rows] == [2, 1]
    values = [Run(path).results()[-1]["tasks"]["level"]["mae"] for path in (sfg, other_seed)]
    text = pages["several"].read_text()
    assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in text
    assert text.count('class="best"') >= 2
    assert text.count('class="second"') >= 2


def test_results_come_with_their_standard_error(sfg, pages):
    result = Run(sfg).results()[-1]
    errors = result["standard_errors"]
    accuracy, n = result["tasks"]["pattern"]["accuracy"], result["examples"]
    assert errors["pattern"]["accuracy"] == pytest.approx((accuracy * (1 - accuracy) / (n - 1)) ** 0.5)
    assert f"{result['tasks']['level']['mae']:.2f} ± {errors['level']['mae']:.2f}" in pages["sfg"].read_text()


def test_an_unfinished_run_says_so_and_a_finished_one_does_not(pages):
    assert "This run is not finished: it has done" in pages["unfinished"].read_text()
    assert "This run is not finished" not in pages["sfg"].read_text()


def test_baselines_say_that_their_groups_are_not_learned(pages, hard_sharing, tmp_path):
    assert "they were not learned" in fg.report(hard_sharing, tmp_path / "hard.html").read_text()
    assert "constant probabilities" in pages["constant"].read_text()
    assert "not learned" not in pages["sfg"].read_text()


def test_one_task_has_no_grouping_probabilities(pages):
    assert "r0-probabilities" not in pages["one"].read_text()


def test_data_that_are_gone_are_a_line_and_the_report_is_written(sfg, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(sfg, run)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub(r'root = ".*"', 'root = "/nowhere"', config))
    text = fg.report(run, tmp_path / "report.html").read_text()
    assert "The data could not be read: /nowhere: expected the run&#x27;s data" in text
    assert "r0-architecture" in text


def test_a_run_without_a_checkpoint_is_reported(sfg, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(sfg, run, ignore=shutil.ignore_patterns("*.safetensors"))
    assert "There is no network yet" in fg.report(run, tmp_path / "report.html").read_text()


def test_what_is_there_is_not_replaced_unless_forced(sfg, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(RunError, match="--force"):
        fg.report(sfg, out)
    assert out.read_text() == "mine"
    fg.report(sfg, out, force=True)
    assert "<!doctype html>" in out.read_text()


def test_a_folder_that_is_no_run_is_one_line(tmp_path):
    with pytest.raises(RunError, match=r"expected a run folder with config\.toml"):
        fg.report(tmp_path, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("fraction", "method", "age"), [(1.0, "sfg", 6.00), (0.1, "sfg", 8.54), (0.1, "one_task", 8.79)]
)
def test_the_paper_s_row_is_found_by_data_and_method(large, fraction, method, age):
    from dataclasses import replace

    record = record_of_run(large)
    assert record.config is not None
    config = record.config.model_copy(update={"data": record.config.data.model_copy(update={"fraction": fraction})})
    found = published_for(replace(record, config=config, method=method))
    assert found is not None
    assert found.values["age", "mae", ""] == [age]


def test_the_paper_has_no_row_for_a_user_s_table(sfg):
    assert published_for(record_of_run(sfg)) is None


def test_calibration_and_cost_show_before_and_after(sfg, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(sfg, run)
    results = Run(run).results()
    results[-1]["calibration"] = {
        "level": {"coverage": 0.5, "coverage_corrected": 0.91, "width": 3.0, "width_corrected": 9.0},
        "pattern": {"ece": 0.2, "ece_corrected": 0.03, "bins": [{"confidence": 0.9, "accuracy": 0.7, "count": 12}]},
    }
    write_atomically(run / "results.json", json.dumps(results).encode())
    corrections = {
        "level": {"kind": "constant", "value": 2.5, "examples": 9},
        "pattern": {"kind": "temperature", "value": 1.5, "examples": 9},
    }
    step = load_checkpoint(Run(run).checkpoint("best"))[0].step
    (run / "calibration.json").write_text(json.dumps({"mode": corrections, "step": {"mode": step}}))
    row = {
        "name": "as trained",
        "parameters": 1000,
        "multiplications": 5_000_000,
        "bytes": 4000,
        "latency_ms": {"1": 2.0},
    }
    less = {**row, "name": "compact", "parameters": 500, "latency_ms": {"1": 1.0}}
    export = [{"file": "net.onnx", "format": "onnx", "tasks": ["level"], "rows": [row, less]}]
    (run / "export.json").write_text(json.dumps(export))
    text = fg.report(run, tmp_path / "report.html").read_text()
    for shown in ("50.0%", "91.0%", "0.2<", "0.03<", "Reliability · pattern", "net.onnx (onnx)", "×0.50", "2.5"):
        assert shown in text
    assert "filtergroups calibrate" not in text


def test_a_real_export_is_shown_with_what_it_saves(sfg, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(sfg, run)
    fg.export(run, to="safetensors", out=tmp_path / "model.safetensors")
    text = fg.report(run, tmp_path / "report.html").read_text()
    assert "What it costs" in text
    assert "grouped network at its mode" in text
    assert "model.safetensors (safetensors)" in text


def test_without_calibration_it_says_how_to_get_it(pages):
    for kind in ("sfg", "unfinished"):  # evaluated, and not
        assert "filtergroups calibrate" in pages[kind].read_text()


def test_the_same_run_gives_the_same_page(sfg, tmp_path):
    assert fg.report(sfg, tmp_path / "a.html").read_bytes() == fg.report(sfg, tmp_path / "b.html").read_bytes()


def test_the_worst_are_chosen_and_counted_among_the_labelled(tmp_path):
    table = runs.picture_table(tmp_path, count=40)
    run = runs.train_table(tmp_path, tmp_path / "run", epochs=1)
    names = is_tested(table.with_suffix(".split.csv"))
    rows = rows_of_table(table)
    for row in rows:
        if row["image"] in names:
            row["pattern"] = ""
    of = sum(row["image"] in names and row["level"] != "" for row in rows)
    assert 0 < of < len(names)
    table.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]))
    text = fg.report(run, tmp_path / "report.html", split="test", samples=0).read_text()
    tiles = Tiles(text)
    assert {heading: len(found) for heading, found in tiles.found.items()} == {
        "Some, drawn at random": len(names),
        f"The worst for level, of {of} labelled examples": of,
    }
    assert f"None of the {len(names)} examples has a label of pattern." in text


@pytest.mark.parametrize("every", [True, False])
def test_lines_of_training_without_a_temperature_are_left_out_of_its_curve(sfg, tmp_path, every):
    run = Run(shutil.copytree(sfg, tmp_path / "run"))
    file = run.path / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    ours = [line for line in lines if line["kind"] == "train" and "temperature" in line]
    for line in ours if every else ours[:1]:
        del line["temperature"]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = fg.report(run.path, tmp_path / "page.html", examples=2, samples=0).read_text()
    assert ("Temperature" in page) is not every
