"""Grouping probabilities for papers: on the simplex for two tasks, as heat maps for more."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from filtergroups.palette import ramp
from filtergroups.reporting.architecture import corners, shown_groups
from filtergroups.reporting.canvas import WIDE, grid_of
from filtergroups.reporting.collect import Record


def probabilities_figure(record: Record) -> Figure | None:
    """Density of the probabilities on the simplex of two tasks; for more tasks a heat map a layer."""
    if record.kind != "learned" or len(record.family) == 1:
        return None
    if corners(record.family) is None:
        return heat_figure(record)
    figure, all_axes = triangles(record)
    left, right, top = corners(record.family) or (0, 1, 2)
    for n, axes in enumerate(all_axes):
        p = record.timeline.of_layer(n, record.timeline.learned)[:, [top, left, right]].astype(np.float64)
        places, density = density_on_simplex(p)
        levels = np.linspace(0.02, 1, 12)
        axes.tricontourf(*places.T, (density / density.max()) ** 0.6, levels=levels, cmap="GnBu", extend="max")
        axes.scatter(*p.T, s=1.5, color="#1b1f24", linewidths=0)
    return figure


def density_on_simplex(p: Any, steps: int = 48, width: float = 0.045) -> tuple[Any, Any]:
    """Places all over the triangle, and how many kernels lie near each (a Gaussian of distances in the plane)."""
    places = np.asarray([(a, b, steps - a - b) for a in range(steps + 1) for b in range(steps + 1 - a)]) / steps
    # Between barycentric coordinates the squared distance in a triangle of side 1 is half the sum of squares.
    squares = ((places[:, None] - p[None]) ** 2).sum(-1) / 2
    return places, np.exp(-squares / (2 * width**2)).sum(1)


def trajectories_figure(record: Record) -> Figure | None:
    """The way that every kernel took over the simplex, coloured by step."""
    timeline = record.timeline
    if record.kind != "learned" or corners(record.family) is None or timeline.learned < 1:
        return None
    figure, all_axes = triangles(record)
    left, right, top = corners(record.family) or (0, 1, 2)
    colours = ramp("viridis", max(2, timeline.learned), 0.0, 0.92)
    for n, axes in enumerate(all_axes):
        ways = np.stack([timeline.of_layer(n, time) for time in range(timeline.learned + 1)])
        ways = ways[:, :: -(-ways.shape[1] // 96)]
        for time in range(timeline.learned):
            step = ways[time : time + 2]
            gap = np.full((1, step.shape[1]), np.nan)
            lines = [np.concatenate([step[..., group], gap]).T.ravel() for group in (top, left, right)]
            axes.plot(*lines, color=colours[time], linewidth=0.5, alpha=0.8, rasterized=ways.shape[1] > 48)
    first, last = timeline.steps[0], timeline.steps[timeline.learned]
    scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(first, last), matplotlib.colormaps["viridis"])
    figure.colorbar(scale, ax=all_axes, label="step", shrink=0.6, aspect=30)
    return figure


def heat_figure(record: Record) -> Figure:
    """Kernels × groups, sorted by the group that a kernel ended in."""
    shown, timeline = shown_groups(record), record.timeline
    height = 0.5 + 0.11 * len(shown.names)
    figure, all_axes = grid_of(len(timeline.layers), 2, height)
    figure.set_size_inches(WIDE, height * -(-len(timeline.layers) // 2))
    for n, axes in enumerate(all_axes):
        p = shown.columns(timeline.of_layer(n, timeline.learned))[:, shown.order]
        best = p.argmax(1)
        p = p[np.lexsort((-p.max(1), best))]
        axes.imshow(p.T, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes.set_yticks(range(len(shown.order)), [shown.names[group] for group in shown.order], fontsize=6)
        for label, group in zip(axes.get_yticklabels(), shown.order, strict=True):
            label.set_color(shown.colours[group])
        axes.set_xticks([])
        entropy = float(timeline.entropies(timeline.learned)[n])
        axes.set_title(f"layer {n + 1}: {len(p)} kernels, entropy {entropy:.2f}")
    return figure


def triangles(record: Record) -> tuple[Figure, list[Any]]:
    import mpltern  # noqa: F401  # it registers the projection

    figure, all_axes = grid_of(len(record.timeline.layers), 4, 1.75, projection="ternary")
    left, right, top = (record.family.names[group] for group in corners(record.family) or ())
    for n, axes in enumerate(all_axes):
        axes.set_title(f"layer {n + 1}", pad=14)
        for axis in (axes.taxis, axes.laxis, axes.raxis):
            axis.set_ticks([])
        for name, corner, level in ((top, (1, 0, 0), "bottom"), (left, (0, 1, 0), "top"), (right, (0, 0, 1), "top")):
            axes.annotate(
                name, axes.transProjection.transform(corner), (0, 3 if level == "bottom" else -3), fontsize=6.5,
                textcoords="offset points", ha="center", va=level, annotation_clip=False,
            )  # fmt: skip
    return figure, all_axes
