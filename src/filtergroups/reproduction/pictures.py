"""Small figures of an experiment: scores with their spread over seeds, and who shares what by layer."""

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from filtergroups.palette import SHARED, task_colour
from filtergroups.reproduction.experiment import Column
from filtergroups.reproduction.proportions import STAGES
from filtergroups.writing import write_atomically

MOST_PANELS, PANELS_A_LINE = 6, 3
LEAST_SPAN = 0.05  # of the values: less would make much of differences that are nothing
LABEL_WIDTH = 20  # characters of a row's name that fit beside its panels
ROW_WIDTH = 32  # the same, beside all panels of the scores
PLAIN_LOOK: Any = {
    "font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 110,
}  # fmt: skip


def draw(summary: dict[str, Any], folder: Path, name: str) -> dict[str, str]:
    """Write the figures that there are numbers for: file -> what it shows."""
    drawn: dict[str, str] = {}
    if any(row["mean"] for row in summary["rows"]):
        _save(scores(summary), folder / f"{name}-scores.png")
        drawn[f"{name}-scores.png"] = "Scores of every run, their means, and the paper's numbers"
    learned = [row for row in summary["rows"] if _is_learned(row)]
    if learned:
        _save(shares(learned), folder / f"{name}-sharing.png")
        drawn[f"{name}-sharing.png"] = "Proportions of the groups by layer: at the start and as learned"
    return drawn


def _save(figure: Any, path: Path) -> None:
    content = io.BytesIO()
    figure.savefig(content, format="png", bbox_inches="tight", metadata={"Software": None})
    write_atomically(path, content.getvalue())


def scores(summary: dict[str, Any]) -> Any:
    """A panel a column, a line a row: each seed a dot, the mean a bar, the paper a diamond."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = [Column(**c) for c in summary["columns"]][:MOST_PANELS]
    rows = summary["rows"]
    with mpl.rc_context(PLAIN_LOOK):
        across = min(len(columns), PANELS_A_LINE)
        down = math.ceil(len(columns) / across)
        size = (2.6 + 2.4 * across, 0.4 + down * (0.6 + 0.32 * len(rows)))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
        for panel in panels[len(columns) :]:
            panel.remove()
        for panel, column in zip(panels, columns, strict=False):
            factor = 100 if column.percent else 1
            for place, row in enumerate(rows):
                values = [factor * run["values"][column.key] for run in row["runs"] if column.key in run["values"]]
                colour = task_colour(1) if row["name"] == summary["reference"] else task_colour(0)
                panel.plot(values, [place] * len(values), "o", color=colour, alpha=0.5, markersize=4, mew=0)
                if values:
                    panel.plot([np.mean(values)], [place], "|", color=colour, markersize=12, mew=2)
                if row["published"].get(column.key):
                    panel.plot([factor * row["published"][column.key][0]], [place], "D", mfc="none", mec=SHARED, ms=5)
            panel.set_title(f"{column.label} {'→' if column.more_is_better else '←'} better", fontsize=8)
            panel.grid(axis="x", color="#EEEEEE")
            panel.set_xlim(*_wide_enough(*panel.get_xlim()))
        panels[0].set_yticks(range(len(rows)), [textwrap.fill(row["label"], ROW_WIDTH) for row in rows])
        panels[0].set_ylim(len(rows) - 0.5, -0.5)
        _key_of_scores(figure, any(row["published"] for row in rows))
    return figure


def _wide_enough(low: float, high: float) -> tuple[float, float]:
    middle, reach = (low + high) / 2, max(high - low, LEAST_SPAN * max(abs(low), abs(high))) / 2
    return middle - reach, middle + reach


def _key_of_scores(figure: Any, has_published: bool) -> None:
    from matplotlib.lines import Line2D

    colour = task_colour(0)
    handles = [
        Line2D([], [], ls="", marker="o", color=colour, alpha=0.5, markersize=4, mew=0, label="a seed"),
        Line2D([], [], ls="", marker="|", color=colour, markersize=10, mew=2, label="mean"),
    ]
    if has_published:
        handles.append(Line2D([], [], ls="", marker="D", mfc="none", mec=SHARED, ms=5, label="the paper's"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


def _is_learned(row: dict[str, Any]) -> bool:
    """Has it probabilities that moved?"""
    return any(run.get("proportions") and run["proportions"]["start"] != run["proportions"]["learned"]
               for run in row["runs"])  # fmt: skip


def shares(rows: Sequence[dict[str, Any]]) -> Any:
    """For each row three panels of stacked bars: proportions of the groups by layer, mean over seeds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Rows may have different groups: one that several have looks the same in all of them.
    known = dict.fromkeys(group for row in rows for run in row["runs"] for group in _groups(run) if group != "shared")
    colours = {group: task_colour(n) for n, group in enumerate(known)} | {"shared": SHARED}
    with mpl.rc_context(PLAIN_LOOK):
        figure = Figure(figsize=(7.2, 0.4 + 1.3 * len(rows)), layout="constrained")
        panels = figure.subplots(len(rows), len(STAGES), sharey=True, squeeze=False)
        for line, row in zip(panels, rows, strict=True):
            of_runs = [run["proportions"] for run in row["runs"] if run.get("proportions")]
            groups, layers = of_runs[0]["groups"], range(1, len(of_runs[0]["layers"]) + 1)
            for panel, stage in zip(line, STAGES, strict=True):
                means = np.mean([of[stage] for of in of_runs], axis=0)  # layers × groups
                below = np.zeros(len(means))
                for n, group in enumerate(groups):
                    panel.bar(layers, means[:, n], bottom=below, color=colours[group], label=group, width=0.85)
                    below += means[:, n]
                panel.set_ylim(0, 1)
                panel.set_xticks(list(layers))
            line[0].set_ylabel(textwrap.fill(row["label"], LABEL_WIDTH), fontsize=7)
        for panel, stage in zip(panels[0], STAGES.values(), strict=True):
            panel.set_title(stage, fontsize=8)
        for panel in panels[-1]:
            panel.set_xlabel("layer")
        drawn = {
            label: bars for line in panels for bars, label in zip(*line[0].get_legend_handles_labels(), strict=True)
        }
        labels = [group for group in colours if group in drawn]
        handles = [drawn[label] for label in labels]
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4), frameon=False)
    return figure


def _groups(run: dict[str, Any]) -> list[str]:
    return run["proportions"]["groups"] if run.get("proportions") else []
