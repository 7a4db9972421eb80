"""What the network itself tells: dead kernels are nobody's, and cross-stitch is about mixing, not about groups."""

import html
import json
import re

import numpy as np
import pytest
import torch

import filtergroups as fg
from filtergroups.demo import used_by_both
from filtergroups.paper_figures import bars_figure, flow_figure, mixing_figure
from filtergroups.reporting.activations import chosen_kernels
from filtergroups.reporting.architecture import described, payload, shown_groups, shown_sums
from filtergroups.reporting.collect import record_of_network, record_of_run
from filtergroups.reporting.flow import flow
from filtergroups.reporting.learned import with_network
from filtergroups.restored import open_run
from filtergroups.run import Run
from tests.reporting import runs
from tests.reporting.browser import assert_readable, opened


def network_with_dead_kernels(method="sfg"):
    """VGG11 whose third layer has three kernels of one task that nobody reads: those after it are shared."""
    torch.manual_seed(0)
    network = fg.vgg11([fg.Regression("level"), fg.Classification("pattern")], width=0.0625, method=method)
    level, pattern, full = 0, 1, 2
    for n, assignment in enumerate(network.assignments()):
        groups = torch.full((assignment.kernels,), full)
        if n == 2:
            groups[:3] = torch.tensor([level, level, pattern])
        if n == 7:
            groups[:4] = torch.tensor([level, level, level, pattern])
        assignment.fix(groups)
    return network.eval()


@pytest.fixture(scope="module")
def record():
    network = network_with_dead_kernels()
    return with_network(record_of_network(network), network)


def text_of(page):
    """What a reader sees, without styles, data and what a user's own folders and commands say."""
    text = re.sub(r"<(script|style|pre|details).*?</\1>", " ", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"<code>.*?</code>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))


def test_groups_and_dead_kernels_add_up_to_the_layer(record):
    timeline = record.timeline
    assert timeline.dead_counts().tolist() == [0, 0, 3, 0, 0, 0, 0, 0]
    total = timeline.sums().sum(1) + timeline.dead_counts()
    np.testing.assert_allclose(total, [layer.kernels for layer in timeline.layers])
    assert timeline.sums()[2].tolist() == [0, 0, timeline.layers[2].kernels - 3]


def test_who_uses_what_never_counts_a_dead_kernel(record):
    shown = shown_groups(record)
    words = described(record, shown_sums(record, shown), shown)
    assert "Of 172 kernels, 165 are shared by all tasks, 3 are used by level, 1 is used by pattern." in words
    assert "3 of 172 kernels are dead (no task depends on them): 3 in layer 3" in words


def test_the_picture_s_data_have_dead_kernels_apart(record):
    drawn = payload(record, 10**6)
    assert drawn["dead"]["name"] == "dead"
    assert drawn["dead"]["colour"] not in [group["colour"] for group in drawn["groups"]]
    for layer, sizes in zip(drawn["layers"], drawn["sums"][-1], strict=True):
        assert sum(sizes) == pytest.approx(layer["kernels"])
    assert [sizes[-1] for sizes in drawn["sums"][-1]] == [0, 0, 3, 0, 0, 0, 0, 0]


def test_no_band_begins_or_ends_at_a_dead_kernel(record):
    picture = flow(record, shown_groups(record))
    dead = [node for node in picture.nodes if node.dead]
    assert [(node.column, node.size) for node in dead] == [(3, 3.0)]
    assert not any(band.source.dead or band.reader.dead for band in picture.bands)


def test_figures_for_papers_have_them_hatched(record):
    for draw in (flow_figure, bars_figure):
        figure = draw(record)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["level", "shared", "pattern", "dead"]
        hatched = [patch for patch in figure.axes[0].patches if patch.get_hatch() and patch.get_height() > 0]
        assert len(hatched) == 1


def test_dead_kernels_are_not_shown_as_what_a_group_answers_to(record):
    chosen = chosen_kernels(record, network_with_dead_kernels(), 3)
    assert [chosen[2][group].of for group in range(3)] == [0, 0, record.timeline.layers[2].kernels - 3]


def test_what_both_tasks_use_is_shared_and_alive():
    network = network_with_dead_kernels()
    shares = list(used_by_both(network).values())
    assert shares[2] == pytest.approx(13 / 16)
    assert shares[0] == 1


def test_a_run_says_how_many_are_dead_in_log_report_and_numbers(sfg, pages):
    restored = open_run(sfg)
    dead = [int(of_layer.sum()) for of_layer in restored.network.dead_kernels().values()]
    record = with_network(record_of_run(sfg), restored.network)
    assert record.timeline.dead_counts().tolist() == dead
    (line,) = [line for line in (sfg / "log.txt").read_text().splitlines() if "is now fixed" in line]
    assert line.endswith(f"each group has its part of them; {restored.network.liveness()}")
    assert f"{sum(dead)} of 172" in text_of(pages["sfg"])
    assert str(restored.network.liveness()) in text_of(pages["sfg"])
    table = re.search(r"<th scope=\"row\">all</th>(.*?)</tr>", pages["sfg"].read_text())[1]
    assert table.endswith(f"<td>{sum(dead)}</td>")


def test_before_the_first_checkpoint_nothing_is_said_of_them(sfg):
    record = with_network(record_of_run(sfg), None)
    assert record.timeline.dead is None
    assert "dead" not in described(record, shown_sums(record, shown_groups(record)), shown_groups(record))


@pytest.fixture(scope="module")
def stitched(folder, pictures):
    return runs.train_table(pictures, folder / "mixed-run", method="cross_stitch", epochs=2)


def test_nothing_is_said_of_cross_stitch_that_holds_for_groups_only(stitched, tmp_path):
    text = text_of(fg.report(stitched, tmp_path / "report.html", examples=2, samples=0)).replace("filtergroups", "")
    found = re.findall(r"(?i)\bgroups?\b|\bshared?\b|sharing|assigned|certainty|temperature:?", text)
    assert found == ["shared"]
    assert "none of whose kernels are shared" in text
    for entry in Run(stitched).metrics():
        assert not {"shared", "temperature", "entropy"} & set(entry)
    log = (stitched / "log.txt").read_text().replace("filtergroups", "")
    assert not re.search("fixed|dead|shared|group", log)


def test_cross_stitch_shows_its_mixing_by_layer(stitched, tmp_path):
    network = open_run(stitched).network
    with torch.no_grad():
        for n, layer in enumerate(network.grouped_layers()):
            layer.stitch.stitch.alpha[0, 1] = -0.25 - n
    record = with_network(record_of_run(stitched), network)
    assert [mixing[0, 1] for mixing in record.mixing] == [-0.25 - n for n in range(8)]
    assert [axes.get_title() for axes in mixing_figure(record).axes[:8]] == [f"layer {n}" for n in range(1, 9)]
    written = {path.stem for path in fg.figures(stitched, tmp_path, format="svg", samples=0)}
    assert "mixing" in written
    assert not {"flow", "groups", "probabilities", "trajectories"} & written
    page = fg.report(network, tmp_path / "network.html").read_text()
    assert page.count("mixing after layer") == 8
    assert "−7.25" in page


def test_slots_that_only_one_task_has_do_not_count_as_mixed():
    tasks = [fg.Regression(name) for name in "ab"]
    network = fg.lift(
        torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.Conv2d(3, 1, 3)), tasks, method="cross_stitch"
    )
    first, last = network.grouped_layers()
    with torch.no_grad():
        first.stitch.stitch.alpha[:, :, 1] = 100.0  # task b has one kernel here
    record = with_network(record_of_network(network), network)
    assert record.mixing[0][1].tolist() == pytest.approx([0.1, 0.9])
    assert record.mixing[0][0].tolist() == pytest.approx([50.45, 0.1])
    assert np.isnan(record.mixing[1][1]).all()  # nor any kernel there
    assert last.kernels == 1


@pytest.mark.parametrize("method", ["one_task", "constant_mask", "fixed_mask", "hard_sharing"])
def test_what_was_fixed_is_not_said_to_be_learned(method, folder, pictures, tmp_path):
    run = runs.train_table(pictures, folder / f"fixed-{method}", method=method, epochs=1)
    text = text_of(fg.report(run, tmp_path / "report.html", examples=2, samples=0))
    assert "they were not learned" in text
    assert not re.search(r"What level and pattern share|What is shared|certainty|most certain|Temperature", text)
    assert not re.search(r"(?<!not )(?<!none was )(?<!nothing was )\blearned\b", text)
    assert all("temperature" not in entry for entry in Run(run).metrics())
    assert "every kernel is fixed in its group from the start" in (run / "log.txt").read_text()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_dead_kernels_and_mixing_can_be_read_in_a_browser(browser, stitched, tmp_path, width, scheme):
    network = network_with_dead_kernels()
    page = fg.report([network, stitched], tmp_path / "report.html", images=torch.rand(1, 3, 32, 32), samples=0)
    with opened(browser, page, width, scheme) as seen:
        assert_readable(seen)
        labels = seen.eval_on_selector_all("svg .node", "nodes => nodes.map((node) => node.ariaLabel)")
        assert [label for label in labels if "dead" in label] == [
            "Layer 3 · dead: kernels 3 of 16; share of the layer 19%; no task depends on them; layers.8"
        ]
        assert "dead" in seen.inner_text(".legend")
        data = json.loads(seen.inner_text("script[data-run=r0]"))
        assert data["dead"]["name"] == "dead"
