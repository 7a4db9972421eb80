"""What all figures for papers have in common: their style, their width, grids of axes."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from filtergroups.palette import DEAD
from filtergroups.reporting.architecture import ShownGroups

STYLE: dict[Any, Any] = {
    "font.size": 8.0,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # TrueType inside the file: journals refuse matplotlib's default
    "ps.fonttype": 42,
    "svg.fonttype": "path",  # glyphs as paths look the same everywhere
    "svg.hashsalt": "filtergroups",  # the same figure is the same file
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
}
WIDE = 7.0  # inches: the text width of a two-column paper


# Dead kernels.
HATCHED: dict[str, Any] = {"facecolor": "white", "edgecolor": DEAD, "hatch": "////////", "linewidth": 0.4}


def group_legend(figure: Figure, shown: ShownGroups, *, dead: bool = False) -> None:
    handles = [Rectangle((0, 0), 1, 1, color=shown.colours[group]) for group in shown.order]
    names = [shown.names[group] for group in shown.order]
    if dead:
        handles.append(Rectangle((0, 0), 1, 1, **HATCHED))
        names.append("dead")
    figure.legend(
        handles, names, loc="outside upper left", ncols=min(8, len(names)), handlelength=0.9, handleheight=0.9
    )


def grid_of(count: int, columns: int, height: float, **more: Any) -> tuple[Figure, list[Any]]:
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDE * columns / max(columns, 4), height * rows + 0.3), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, n + 1, **more) for n in range(count)]
