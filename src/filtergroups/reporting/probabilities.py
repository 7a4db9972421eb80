"""Grouping probabilities: triangles for two tasks, heat maps for more."""

from filtergroups.palette import ramp
from filtergroups.reporting.architecture import corners, legend, shown_groups, time_control
from filtergroups.reporting.collect import Record
from filtergroups.reporting.html import Html, note, section, tag


def probabilities_section(record: Record, key: str) -> Html | None:
    """None for one task, where there is nothing to choose, and for cross-stitch, whose kernels are in no groups."""
    if len(record.family) == 1 or record.stitched:
        return None
    title = "How sure it is"
    if record.kind == "fixed":
        words = f"The method {record.method} fixes every kernel's group: probabilities are 0 or 1, none was learned."
        return section(f"{key}-probabilities", title, tag("p", words, class_="lead-in"))
    if record.kind == "constant":
        words = (
            f"The method {record.method} keeps every kernel at the same probability for each of the "
            f"{len(record.family)} groups; none was learned."
        )
        return section(f"{key}-probabilities", title, tag("p", words, class_="lead-in"))
    timeline = record.timeline
    several = len(timeline.steps) > 1
    fixed = (
        note(
            f"After step {timeline.steps[timeline.learned]:,} every kernel was fixed in one group; "
            "shown are the probabilities up to there."
        )
        if timeline.fixed_at is not None
        else None
    )
    if corners(record.family):
        ramp_bar = tag("i", style=f"background:linear-gradient(to right,{','.join(ramp('viridis', 8, 0.0, 0.92))})")
        scale = tag("span", "first step", ramp_bar, "last", class_="scale") if several else None
        figure = tag(
            "div",
            tag("div", time_control() if several else None, scale, class_="controls"),
            tag("div", class_="small-multiples simplexes"),
            data_figure="simplex",
            data_of=key,
        )
        words = (
            "Each point is a kernel, and its distance from a corner is how improbable that group is. On the left their "
            "density at the chosen step; on the right the way that they took from the start."
        )
    else:
        figure = tag(
            "div",
            tag("div", time_control() if several else None, class_="controls"),
            legend(shown_groups(record)),
            tag("div", class_="layers"),
            data_figure="heat",
            data_of=key,
        )
        words = (
            "Each column is a kernel, each row a group; the stronger the colour, the more probable. Kernels are sorted "
            "by the group that they ended in, the certain ones first. Below each map, the entropy of every kernel."
        )
    return section(f"{key}-probabilities", title, tag("p", words, class_="lead-in"), fixed, figure)
