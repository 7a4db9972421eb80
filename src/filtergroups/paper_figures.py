"""The report's figures for papers: vector graphics with their fonts inside, in the report's colours."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline

from filtergroups.palette import task_colour
from filtergroups.paths import AnyPath, as_path, optional_path
from filtergroups.reporting.activations import chosen_kernels, feature_maps, input_picture, map_picture
from filtergroups.reporting.architecture import shown_groups, shown_sums
from filtergroups.reporting.canvas import HATCHED, STYLE, WIDE, grid_of, group_legend
from filtergroups.reporting.collect import Record, record_of_run
from filtergroups.reporting.curves import curves
from filtergroups.reporting.evidence import Evidence, Step, chosen_inputs, evidence_for
from filtergroups.reporting.examples import Example, look
from filtergroups.reporting.flow import Band, flow
from filtergroups.reporting.learned import with_network
from filtergroups.reporting.predictions import in_full, map_pixels
from filtergroups.reporting.scores import in_order
from filtergroups.reporting.simplex import probabilities_figure, trajectories_figure
from filtergroups.reporting.slices import look_at_scans
from filtergroups.run import RunError
from filtergroups.writing import write_atomically

Format = Literal["pdf", "svg", "png"]
NAMES = (
    "flow", "groups", "mixing", "probabilities", "trajectories", "activations", "predictions", "curves", "calibration",
)  # fmt: skip


def figures(
    run: AnyPath,
    out: AnyPath,
    *,
    format: Format | str = "pdf",
    data: AnyPath | None = None,
    split: str | None = None,
    samples: int | None = None,
    force: bool = False,
    progress: Step | None = None,
) -> list[Path]:
    """Draw a run's figures into a folder, one file each; those that do not apply to the run are left out."""
    if format not in get_args(Format):
        raise ValueError(f"--format is one of {list(get_args(Format))}, found {format!r}; choose one")
    out, data = as_path(out), optional_path(data)
    existing = sorted(path for path in out.glob(f"*.{format}") if path.stem in NAMES)
    if existing and not force:
        raise RunError(f"{existing[0]}: expected a new file, found one; use --force or -o")
    record = record_of_run(as_path(run))
    evidence = evidence_for(record, data=data, split=split, samples=samples, progress=progress)
    record = with_network(record, evidence.network)
    drawers: dict[str, Callable[[], Figure | None]] = {
        "flow": lambda: None if record.stitched else flow_figure(record),
        "groups": lambda: None if record.stitched else bars_figure(record),
        "mixing": lambda: mixing_figure(record),
        "probabilities": lambda: probabilities_figure(record),
        "trajectories": lambda: trajectories_figure(record),
        "activations": lambda: activations_figure(record, evidence),
        "predictions": lambda: predictions_figure(evidence),
        "curves": lambda: curves_figure(record),
        "calibration": lambda: calibration_figure(record),
    }
    assert tuple(drawers) == NAMES
    written = []
    with matplotlib.rc_context(STYLE):
        for name, draw in drawers.items():
            figure = draw()
            if figure is not None:
                written.append(_written(figure, out / f"{name}.{format}", str(format)))
    return written


def _written(figure: Figure, path: Path, format: str) -> Path:
    content = io.BytesIO()
    # No date inside: the same run gives the same file.
    metadata: Any = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": None}[format]
    figure.savefig(content, format=format, metadata=metadata)
    write_atomically(path, content.getvalue())
    return path


def bars_figure(record: Record) -> Figure:
    """The paper's learned kernel grouping: by layer, the proportion of each group."""
    shown = shown_groups(record)
    sums = shown_sums(record, shown)
    kernels = np.asarray([layer.kernels for layer in record.timeline.layers])
    shares, dead = sums / kernels[:, None], record.timeline.dead_counts() / kernels
    figure = Figure(figsize=(WIDE / 2, 2.0), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(shares)) + 1
    floor = np.zeros(len(shares))
    for group in reversed(shown.order):
        axes.bar(places, shares[:, group], 0.72, floor, color=shown.colours[group], edgecolor="white", linewidth=0.5)
        floor += shares[:, group]
    axes.bar(places, dead, 0.72, floor, **HATCHED)
    axes.set(xlabel="layer", ylabel="share of kernels", ylim=(0, 1), xlim=(0.4, len(shares) + 0.6))
    axes.set_xticks(places[:: -(-len(places) // 20)])
    group_legend(figure, shown, dead=bool(dead.any()))
    return figure


def mixing_figure(record: Record) -> Figure | None:
    """The mean coefficients of cross-stitch units, tasks by tasks for each layer."""
    if record.mixing is None:
        return None
    tasks = record.family.tasks
    figure, all_axes = grid_of(len(record.mixing), 4, 1.7)
    most = max(1.0, *(float(np.nanmax(np.abs(mixing))) for mixing in record.mixing))
    for n, (axes, mixing) in enumerate(zip(all_axes, record.mixing, strict=True), start=1):
        shown = axes.imshow(mixing, cmap="RdBu", vmin=-most, vmax=most)
        for t, s in np.ndindex(mixing.shape) if len(tasks) <= 4 else ():
            colour = "white" if abs(mixing[t, s]) > 0.6 * most else "black"
            axes.text(s, t, f"{mixing[t, s]:.2f}", ha="center", va="center", fontsize=6, color=colour)
        axes.set_xticks(range(len(tasks)), tasks, fontsize=6, rotation=90 if len(tasks) > 3 else 0)
        axes.set_yticks(range(len(tasks)), tasks, fontsize=6)
        axes.set_title(f"layer {n}")
    figure.colorbar(shown, ax=all_axes, label="mean α", shrink=0.6, aspect=30)
    return figure


def flow_figure(record: Record) -> Figure:
    """Bands as wide as their groups have kernels, which split and merge as routing does."""
    shown = shown_groups(record)
    picture = flow(record, shown)
    figure = Figure(figsize=(WIDE, 2.7), layout="constrained")
    axes = figure.add_subplot()
    wide = 0.14
    for band in picture.bands:
        axes.add_patch(PathPatch(_ribbon(band, wide), facecolor=band.reader.colour, alpha=0.4, linewidth=0))
    for node in picture.nodes:
        look: Any = HATCHED if node.dead else {"color": node.colour, "linewidth": 0}
        axes.add_patch(Rectangle((node.column - wide / 2, node.low), wide, node.size, **look))
    layers = len(record.timeline.layers)
    for node in picture.nodes:
        if node.column in (0, layers + 1):
            side = -1 if node.column == 0 else 1
            where: Any = {"va": "center", "ha": "right" if side < 0 else "left"}
            axes.text(node.column + side * wide, node.low + node.size / 2, node.name, **where)
    axes.set(xlim=(-0.7, layers + 1.9), ylim=(picture.lowest, picture.highest), xlabel="layer")
    every = -(-layers // 20)
    axes.set_xticks(range(1, layers + 1, every))
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    group_legend(figure, shown, dead=any(node.dead for node in picture.nodes))
    return figure


def _ribbon(band: Band, wide: float) -> Outline:
    x0, x1 = band.source.column + wide / 2, band.reader.column - wide / 2
    middle = (x0 + x1) / 2
    (a0, b0), (a1, b1) = (band.leaves, band.leaves + band.leaving), (band.arrives, band.arrives + band.arriving)
    points = [(x0, a0), (middle, a0), (middle, a1), (x1, a1), (x1, b1), (middle, b1), (middle, b0), (x0, b0), (x0, a0)]
    to, curve = Outline.LINETO, Outline.CURVE4
    return Outline(points, [Outline.MOVETO, curve, curve, curve, to, curve, curve, curve, Outline.CLOSEPOLY])


def activations_figure(record: Record, evidence: Evidence) -> Figure | None:
    """The first, the middle and the last layer: the most certain kernels of each group."""
    if evidence.problem is not None or evidence.network is None or record.kind == "constant":
        return None
    item = chosen_inputs(evidence, 1)[0]
    maps: list[Any] = list(feature_maps(evidence.network, item.image))
    choices = chosen_kernels(record, evidence.network, 3)
    layers = sorted({0, len(choices) // 2, len(choices) - 1})
    shown = shown_groups(record)
    listed = [shown.members[group][0] for group in shown.order if len(shown.members[group]) == 1]
    rows = [
        (layer, choices[layer][group])
        for layer in layers
        if maps[layer] is not None
        for group in listed
        if choices[layer][group].most
    ]
    picture = input_picture(item, evidence)
    height = 0.2 + 0.8 * picture.shape[0] / picture.shape[1]
    figure = Figure(figsize=(WIDE * 0.85, height * (len(rows) + 1)), layout="constrained")
    grid: Any = figure.subplots(len(rows) + 1, 7, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    _show(grid[0][1], picture)
    grid[0][0].text(1, 0.5, "input", transform=grid[0][0].transAxes, ha="right", va="center")
    for row, (layer, chosen) in enumerate(rows, start=1):
        label = f"layer {layer + 1}\n{record.family.names[chosen.group]}"
        grid[row][0].text(1, 0.5, label, transform=grid[row][0].transAxes, ha="right", va="center", fontsize=7)
        for column, kernel in [*enumerate(chosen.most, start=1), *enumerate(chosen.least, start=4)]:
            grid[row][column].imshow(map_picture(maps[layer][kernel], evidence), cmap="magma", interpolation="nearest")
            if record.kind == "learned":
                grid[row][column].set_title(f"{chosen.certainty[kernel]:.2f}", fontsize=5.5, pad=1.5)
    headings = {2: "most certain", 5: "least certain"} if record.kind == "learned" else {2: "the first"}
    for column, heading in headings.items():
        grid[0][column].text(0.5, 0.0, heading, transform=grid[0][column].transAxes, ha="center")
    return figure


def _show(axes: Any, pixels: Any) -> None:
    axes.imshow(pixels, cmap="gray" if pixels.ndim == 2 else None, vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()


def predictions_figure(evidence: Evidence) -> Figure | None:
    """Some examples with truth and prediction; of scans the middle slice of the first patient."""
    if evidence.problem is not None or evidence.predictor is None:
        return None
    if evidence.volumes is not None:
        patient = look_at_scans(evidence)[0]
        figure, all_axes = grid_of(len(patient.panels), 4, 1.5)
        for axes, panel in zip(all_axes, patient.panels, strict=True):
            _show(axes, panel.stack[len(panel.stack) // 2])
            axes.set_title(panel.title)
        return figure
    looked = look(evidence, count=8)
    if any(answer.maps for answer in looked.some[0].answers):
        return _maps_figure(looked.some[:3])
    figure, all_axes = grid_of(len(looked.some), 4, 2.0)
    for axes, example in zip(all_axes, looked.some, strict=True):
        _show(axes, example.image)
        told = [f"{a.task.name}: {a.truth} → {in_full(a)}" for a in example.answers]
        axes.set_title("\n".join(told), fontsize=6.5)
    return figure


def _maps_figure(examples: list[Example]) -> Figure:
    """A row an example: the image, then the maps of every task with an answer at every pixel."""
    rows = [
        {"input": example.image}
        | {f"{a.task.name}: {n}": p for a in example.answers if a.maps for n, p in map_pixels(a).items()}
        for example in examples
    ]
    figure = Figure(figsize=(WIDE, WIDE / len(rows[0]) * len(rows) + 0.3), layout="constrained")
    grid: Any = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for number, row in enumerate(rows):
        for axes, (title, pixels) in zip(grid[number], row.items(), strict=True):
            _show(axes, pixels)
            if number == 0:
                axes.set_title(title, fontsize=6.5)
    return figure


def curves_figure(record: Record) -> Figure | None:
    charts = [chart for chart in curves(record) if chart["series"]]
    if not charts:
        return None
    figure, all_axes = grid_of(len(charts), 3, 1.6)
    figure.set_size_inches(WIDE, figure.get_figheight())
    for axes, chart in zip(all_axes, charts, strict=True):
        for one in chart["series"]:
            faint = bool(one.get("faint"))
            values = [np.nan if y is None else y for y in one["y"]]
            named = None if faint or len(chart["series"]) > 6 else one["name"]
            dot = "o" if one.get("dots") else None
            axes.plot(
                one["x"], values, color=one["colour"], alpha=0.3 if faint else 1, label=named, marker=dot, markersize=2
            )
        axes.set_title(chart["title"], fontsize=7)
        axes.set_yscale("log" if chart.get("log") else "linear")
        axes.tick_params(labelsize=6)
        if chart.get("log"):
            axes.legend(fontsize=5.5)
    for axes in all_axes[-3:]:
        axes.set_xlabel("step", fontsize=7)
    return figure


def calibration_figure(record: Record) -> Figure | None:
    """Reliability diagrams of the classes, where they were measured."""
    bins = {
        task: found["bins"]
        for result in reversed(in_order(record))  # what the report shows first is kept
        for task, found in result.get("calibration", {}).items()
        if found.get("bins")
    }
    if not bins:
        return None
    figure, all_axes = grid_of(len(bins), 4, 1.9)
    tasks = list(record.family.tasks)
    for axes, (task, entries) in zip(all_axes, bins.items(), strict=True):
        most = max(entry["count"] for entry in entries) or 1
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--")
        filled = [entry for entry in entries if entry["count"]]
        axes.scatter(
            [entry["confidence"] for entry in filled],
            [entry["accuracy"] for entry in filled],
            s=[4 + 40 * entry["count"] / most for entry in filled],
            color=task_colour(tasks.index(task)) if task in tasks else "#888888",
        )
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", title=task, aspect="equal")
    return figure
