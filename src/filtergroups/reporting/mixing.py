"""What cross-stitch units mix: a table of tasks by tasks for each layer."""

from typing import Any

import numpy as np

from filtergroups.palette import task_colour
from filtergroups.reporting.collect import Record
from filtergroups.reporting.html import Html, note, section, tag


def mixing_words(record: Record) -> str:
    """What the numbers say, in words."""
    if len(record.family.tasks) == 1:
        return "There is one task: nothing is mixed."
    text = (
        "Every task has a network of its own, none of whose kernels are shared. After each layer, what a task's next "
        "layer reads is a learned mix of what all tasks have at the same place, channel by channel."
    )
    if record.mixing is None:
        return f"{text} Nothing is saved yet of what was learned."
    first, last = (_own(record.mixing[n]) for n in (0, -1))
    return f"{text} On average over the tasks, their own features count {first} in the first layer, {last} in the last."


def _own(mixing: Any) -> str:
    """The mean over tasks of |α_tt| / Σ_s |α_ts|: how much of what a task reads is its own."""
    sizes = np.abs(np.nan_to_num(mixing))
    totals = sizes.sum(1)
    return f"{float((sizes.diagonal()[totals > 0] / totals[totals > 0]).mean()):.0%}"


def mixing_section(record: Record, key: str) -> Html:
    cards = [_card(record, n) for n in range(len(record.mixing or ()))]
    return section(
        f"{key}-architecture",
        "What is mixed",
        tag("p", mixing_words(record), class_="lead-in"),
        tag("div", *cards, class_="small-multiples mixing") if cards else None,
        note(
            "Each row is a task; along it, the coefficients α of every task's features in what it reads, the mean over "
            "the layer's channels. Training began at 0.9 for a task's own, with 0.1 split among the others."
        )
        if cards
        else None,
    )


def _card(record: Record, layer: int) -> Html:
    assert record.mixing is not None
    mixing, tasks = record.mixing[layer], record.family.tasks
    most = max(1.0, float(np.nanmax(np.abs(mixing))))
    head = tag("tr", tag("td"), *(tag("th", _named(tasks, s), scope="col") for s in range(len(tasks))))
    rows = []
    for t in range(len(tasks)):
        cells = [_cell(float(mixing[t, s]), task_colour(s), most) for s in range(len(tasks))]
        rows.append(tag("tr", tag("th", _named(tasks, t), scope="row"), *cells))
    about = record.timeline.layers[layer]
    title = f"Layer {layer + 1}"
    made = tag("table", tag("thead", head), tag("tbody", *rows), aria_label=f"mixing after layer {layer + 1}")
    scrolling = tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=f"{title}: tasks by tasks")
    return tag("div", tag("h4", title, tag("span", f"  {about.name}", class_="dim")), scrolling, class_="card")


def _named(tasks: tuple[str, ...], n: int) -> list[Html]:
    return [tag("span", class_="swatch", style=f"--c:{task_colour(n)}"), tag("span", tasks[n])]


def _cell(value: float, colour: str, most: float) -> Html:
    if np.isnan(value):
        return tag("td", "–", class_="dim")
    strength = round(100 * abs(value) / most)
    return tag("td", f"{value:.2f}".replace("-", "−"), style=f"--c:{colour};--share:{strength}%")
