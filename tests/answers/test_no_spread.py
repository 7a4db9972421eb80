"""A run whose passes are all the same has no spread, and nothing pretends that it had one."""

import re

import pytest

import filtergroups as fg
from filtergroups.run import Run
from filtergroups.tables import results_table
from tests.answers.reading import PASSES, read_map, rows_of, section_of, volume

SPREADS = ("_std", "_mutual_information")


@pytest.fixture(params=("table", "maps", "scans"))
def case(request, table, maps, scans):
    return {"table": table, "maps": maps, "scans": scans}[request.param]


@pytest.mark.parametrize("samples", [0, 1, PASSES])
def test_nothing_that_predict_writes_is_a_spread_of_zero(case, tmp_path, samples):
    """With several passes that differ there is a spread; else none is named, and no column is empty."""
    out = tmp_path / ("out" if case.out.is_dir() else "out.csv")
    fg.predict(case.run, case.files[:4], out, samples=samples)
    spreads = 0
    if out.is_file():
        rows = rows_of(out)
        for column in rows[0]:
            assert column == "error" or all(row[column] for row in rows), column
            if column.endswith(SPREADS):
                spreads += 1
                assert any(float(row[column]) > 0 for row in rows), column
    for path in tmp_path.rglob("*.*"):
        stem = path.name.partition(".")[0]
        if path.is_file() and stem.endswith(SPREADS):
            spreads += 1
            assert (volume(path) if path.suffix == ".gz" else read_map(path.parent, path.name)).any(), path
    assert (spreads > 0) == (case.kind == "sampled" and samples > 1)


def test_a_report_shows_no_spread_where_there_is_none(case, tmp_path):
    text = section_of(fg.report(case.run, tmp_path / "report.html", examples=2).read_text(), "predictions")
    shown = any(words in text for words in ("ct: uncertainty", 'title="spread"', "standard deviation"))
    assert shown == (case.kind == "sampled" and not {"level"} & set(case.result["tasks"]))


def test_without_a_correction_evaluate_and_predict_say_what_is_missing_and_how_to_get_it(case, tmp_path):
    if case.kind == "sampled":
        pytest.skip("has a spread")
    kept = Run(case.run).calibration.read_bytes()
    Run(case.run).calibration.unlink()
    task = next(name for name in case.result["tasks"] if name in ("level", "grey", "ct"))
    result = fg.evaluate(case.run)
    assert set(result["calibration"][task].values()) == {None}
    (note,) = result["notes"]
    assert note.startswith("no spread: every kernel is fixed, so that all passes are the same; `filtergroups calibrate")
    assert f"`filtergroups calibrate {case.run}` gives 90 % intervals" in note
    assert not re.search("interval|coverage", results_table(result).replace(note, ""))
    out = tmp_path / ("out" if case.out.is_dir() else "out.csv")
    done = fg.predict(case.run, case.files[:1], out)
    assert done.notes == [note]
    if out.is_file():
        assert not [column for column in rows_of(out)[0] if column.endswith(("_low", "_high", *SPREADS))]
    Run(case.run).calibration.write_bytes(kept)
    again = fg.evaluate(case.run)
    assert again["notes"] == []
    assert again["calibration"][task]["coverage"] is None
    assert again["calibration"][task]["coverage_corrected"] == case.result["calibration"][task]["coverage_corrected"]
    assert "90 % interval, coverage" in results_table(again)


def test_corrected_figures_of_the_part_that_was_fitted_to_are_said_not_to_be_held_out(table):
    (note,) = fg.evaluate(table.run, split="validation", samples=PASSES)["notes"]
    assert "corrections were fitted on this part" in note
    assert table.result["notes"] == []
