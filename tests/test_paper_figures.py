"""Figures for papers."""

import re

import pytest

import filtergroups as fg
from filtergroups.paper_figures import NAMES
from filtergroups.reporting.collect import record_of_network
from filtergroups.reporting.simplex import probabilities_figure
from filtergroups.run import RunError
from tests.reporting import runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    runs.picture_table(folder, missing=False)
    return runs.train_table(folder, folder / "run", epochs=2)


def test_figures_are_written_with_their_fonts_inside(run, tmp_path):
    written = fg.figures(run, tmp_path, format="pdf")
    names = {path.name for path in written}
    assert names == {f"{name}.pdf" for name in NAMES} - {"mixing.pdf"}  # which is of cross-stitch only
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"%PDF")
        fonts = re.findall(rb"/Type /FontDescriptor", content)
        assert fonts
        assert len(re.findall(rb"/FontFile2", content)) >= len(fonts)
        assert b"/Type3" not in content
    with pytest.raises(RunError, match="--force"):
        fg.figures(run, tmp_path, format="pdf")


def test_letters_of_an_svg_are_paths(run, tmp_path):
    for path in fg.figures(run, tmp_path, format="svg"):
        text = path.read_text()
        assert "<text" not in text
        assert "http" not in re.sub(
            r"xmlns[^=]*=\"[^\"]*\"|<metadata>.*?</metadata>|<!DOCTYPE.*?>", "", text, flags=re.DOTALL
        )


def test_an_unknown_format_is_one_line(run, tmp_path):
    with pytest.raises(ValueError, match="found 'gif'"):
        fg.figures(run, tmp_path, format="gif")


def test_more_than_two_tasks_and_pixelwise_ones_have_their_figures(tmp_path):
    net = fg.vgg11([fg.Regression(name) for name in "abc"], width=0.125, groups="all_subsets")
    figure = probabilities_figure(record_of_network(net))
    assert figure is not None
    assert len(figure.axes) == 8
    written = fg.figures(runs.maps(tmp_path / "maps", tmp_path / "run"), tmp_path / "figures", format="png")
    assert {"activations.png", "predictions.png"} <= {path.name for path in written}
