"""Figures of an experiment: groups keep their colour, and nothing is made of differences that are nothing."""

import pytest

from filtergroups.reproduction.pictures import scores, shares


def row(label, groups, values=(), **more):
    proportions = {stage: [[1 / len(groups)] * len(groups)] * 2 for stage in ("start", "learned", "mode")}
    runs = [{"values": {"age.mae": value}, "proportions": {"groups": groups, "layers": ["a", "b"], **proportions}}
            for value in values or [1.0]]  # fmt: skip
    return {"name": label, "label": label, "runs": runs, "published": {}, **more}


def test_a_group_has_one_colour_in_all_rows_and_a_colour_one_group():
    figure = shares([row("x", ["ct", "again", "shared"]), row("y", ["ct", "organs", "shared"])])
    seen = {}
    for panel in figure.axes:
        for bars, group in zip(*panel.get_legend_handles_labels(), strict=True):
            seen.setdefault(group, set()).add(bars.patches[0].get_facecolor())
    assert {len(colours) for colours in seen.values()} == {1}
    assert len(set.union(*seen.values())) == len(seen) == 4
    (key,) = figure.legends
    assert [text.get_text() for text in key.get_texts()] == ["ct", "again", "organs", "shared"]
    for bars, text in zip(key.legend_handles, key.get_texts(), strict=True):
        assert {bars.get_facecolor()} == seen[text.get_text()]


@pytest.mark.parametrize(("values", "spread"), [((7.0, 7.001), False), ((7.0, 9.0), True)])
def test_values_that_hardly_differ_are_drawn_close_together(values, spread):
    column = {"key": "age.mae", "label": "age", "more_is_better": False, "digits": 2, "percent": False}
    figure = scores({"columns": [column], "rows": [row("x", ["shared"], values)], "reference": None})
    low, high = figure.axes[0].get_xlim()
    assert ((values[1] - values[0]) > 0.5 * (high - low)) == spread
    assert low < min(values)
    assert high > max(values)
