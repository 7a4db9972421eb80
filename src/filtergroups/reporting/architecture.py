"""The learned architecture: how many kernels of each layer belong to which group, and who reads whom."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from filtergroups.groups.routing import Family
from filtergroups.palette import DEAD, OTHERS, group_colours, ramp, rgb, task_colour, vertical_order
from filtergroups.reporting.collect import Probabilities, Record, evenly
from filtergroups.reporting.html import Html, note, section, table, tag
from filtergroups.reporting.learned import dead_words

MOST_GROUPS = 24  # shown one by one; of all 255 subsets of eight tasks the rest are added up


@dataclass(frozen=True)
class ShownGroups:
    """The groups of a family that are shown one by one; what is left is added up as one more."""

    names: list[str]
    colours: list[str]
    members: list[list[int]]  # for each shown group the columns of the probabilities that it adds up
    order: list[int]  # from top to bottom

    def columns(self, probabilities: Probabilities) -> Probabilities:
        return np.stack([probabilities[:, member].sum(1) for member in self.members], 1)


def shown_groups(record: Record) -> ShownGroups:
    known = record.family
    colours, order = group_colours(known), vertical_order(known)
    kept = list(range(len(known)))
    if len(kept) > MOST_GROUPS:
        sizes = record.timeline.probabilities[-1].sum(0)
        kept = sorted(np.argsort(-sizes, kind="stable")[:MOST_GROUPS].tolist())
        if known.full not in kept:
            kept = sorted([*kept[:-1], known.full])
    left = [group for group in range(len(known)) if group not in kept]
    return ShownGroups(
        names=[known.names[group] for group in kept] + ([f"{len(left)} others"] if left else []),
        colours=[colours[group] for group in kept] + ([OTHERS] if left else []),
        members=[[group] for group in kept] + ([left] if left else []),
        order=[kept.index(group) for group in order if group in kept] + ([len(kept)] if left else []),
    )


def payload(record: Record, budget: int) -> dict[str, Any]:
    """What the page's figures of groups are drawn from; probabilities as bytes, thinned in time to the budget."""
    timeline, shown = record.timeline, shown_groups(record)
    size = len(timeline.probabilities[0]) * len(shown.names)
    last = len(timeline.steps) - 1
    chosen = evenly(timeline.learned + 1, max(2, budget // size))
    chosen += [last] if last > timeline.learned else []
    columns = [shown.columns(timeline.probabilities[time]) for time in chosen]
    dies = any(timeline.dead_counts(time).any() for time in chosen)
    packed = np.stack([np.rint(values * 255).clip(0, 255).astype(np.uint8) for values in columns])
    reads = reads_of(record.family, shown)
    tasks = [
        {"name": task, "colour": task_colour(n), "groups": serving(record.family, shown, task)}
        for n, task in enumerate(record.family.tasks)
    ]
    return {
        "groups": [
            {
                "name": name,
                "colour": shown.colours[g],
                "reads": reads[g],
                "readers": max(1, sum(g in task["groups"] for task in tasks)),
            }
            for g, name in enumerate(shown.names)
        ],
        "tasks": tasks,
        "order": shown.order,
        "layers": [{"name": layer.name, "kernels": layer.kernels} for layer in timeline.layers],
        "steps": [timeline.steps[time] for time in chosen],
        "fixedAt": len(chosen) - 1 if timeline.fixed_at is not None else None,
        "learned": len(chosen) - (2 if timeline.fixed_at is not None else 1),
        "dead": {"name": "dead", "colour": DEAD} if dies else None,
        "sums": [_sizes(record, shown, time, dies) for time in chosen],
        "p": base64.b64encode(packed.tobytes()).decode(),
        "corners": corners(record.family),
        "ramp": [rgb(colour) for colour in ramp("viridis", 64)],
        "steep": ramp("viridis", 32, 0.0, 0.92),
    }


def _sizes(record: Record, shown: ShownGroups, time: int, dies: bool) -> list[list[float]]:
    """By layer, how many kernels each group has and, where any are, how many are dead."""
    sizes = shown_sums(record, shown, time)
    if dies:
        sizes = np.concatenate([sizes, record.timeline.dead_counts(time)[:, None]], 1)
    rounded: list[list[float]] = np.round(sizes, 2).tolist()
    return rounded


def corners(known: Family) -> list[int] | None:
    """Left, right and top of the triangle of two tasks and what they share."""
    return [*known.specialists, known.full] if len(known.tasks) == 2 and len(known) == 3 else None


def reads_of(known: Family, shown: ShownGroups) -> list[list[int]]:
    """For each shown group the shown groups that it may read; what is added up is not followed."""
    single = [member[0] if len(member) == 1 else None for member in shown.members]
    return [
        [h for h, source in enumerate(single) if g is not None and source is not None and known.readable[g][source]]
        for g in single
    ]


def serving(known: Family, shown: ShownGroups, task: str) -> list[int]:
    serving = set(known.containing(task))
    return [g for g, member in enumerate(shown.members) if len(member) == 1 and member[0] in serving]


def time_control(label: str = "Training time") -> Html:
    """The slider over training time; the page's script fills it in."""
    return tag(
        "div",
        tag("button", "▶", type="button", class_="play", aria_label="play"),
        tag("label", tag("span", label, class_="dim"), tag("input", type="range", min=0, step=1, aria_label=label)),
        tag("output"),
        class_="time",
    )


def legend(shown: ShownGroups, *, dead: bool = False) -> Html:
    items = [
        tag("li", tag("span", class_="swatch", style=f"--c:{shown.colours[group]}"), shown.names[group])
        for group in shown.order
    ]
    if dead:
        items.append(tag("li", tag("span", class_="swatch dead"), "dead"))
    return tag("ul", *items, class_="legend", aria_label="groups")


def architecture_section(record: Record, key: str) -> Html:
    shown, timeline = shown_groups(record), record.timeline
    sums = shown_sums(record, shown)
    dies = any(timeline.dead_counts(time).any() for time in range(len(timeline.steps)))
    alt = "Flow of features through the groups, layer by layer; the numbers are in the table below."
    picture = tag(
        "div",
        tag(
            "div",
            time_control() if len(timeline.steps) > 1 and record.kind == "learned" else None,
            tag(
                "div",
                tag("button", "kernels", type="button", data_value="kernels", aria_pressed="true"),
                tag("button", "shares", type="button", data_value="share", aria_pressed="false"),
                class_="choice",
                role="group",
                aria_label="width of the bands",
            ),
            class_="controls",
        ),
        legend(shown, dead=dies),
        tag("div", class_="drawing"),
        class_="card",
        data_figure="flow",
        data_of=key,
        data_alt=alt,
    )
    return section(
        f"{key}-architecture",
        "What is shared" if record.kind == "learned" else "Who shares what",
        tag("p", described(record, sums, shown), class_="lead-in"),
        picture,
        note(
            "A band is as high as its group has kernels (the sum of their probabilities). Between layers it divides "
            "among the groups that may read it and joins what else they read: a kernel reads the features of every "
            "group that serves all of its tasks. Layers are in the order in which they run"
            + ("; skip connections are not drawn." if record.network == "lifted" else ".")
            + " Below, the share of each group in its layer."
            + (
                " Dead kernels are in none: with every kernel in its most probable group, no task depends on them."
                if dies
                else ""
            )
        ),
        tag("details", tag("summary", "The numbers as a table"), numbers_table(record, shown, sums)),
    )


def numbers_table(record: Record, shown: ShownGroups, sums: Probabilities) -> Html:
    """Kernels by layer and group, dead ones apart, and the totals."""
    layers, known = record.timeline.layers, record.timeline.dead is not None
    dead = record.timeline.dead_counts()

    def row(name: str, kernels: int, sizes: Any, gone: int) -> list[Any]:
        return [name, str(kernels), *(f"{size:.1f}" for size in sizes[shown.order]), *([str(gone)] if known else [])]

    rows = [row(f"{n + 1} · {layer.name}", layer.kernels, sums[n], dead[n]) for n, layer in enumerate(layers)]
    rows.append(row("all", sum(layer.kernels for layer in layers), sums.sum(0), dead.sum()))
    head = ["layer", "kernels", *(shown.names[group] for group in shown.order), *(["dead"] if known else [])]
    return table(head, rows, caption="Kernels by layer and group")


def shown_sums(record: Record, shown: ShownGroups, time: int = -1) -> Probabilities:
    sums = record.timeline.sums(time)
    return np.stack([sums[:, member].sum(1) for member in shown.members], 1)


def described(record: Record, sums: Probabilities, shown: ShownGroups) -> str:
    """What the picture shows, in words."""
    total = sum(layer.kernels for layer in record.timeline.layers)
    dead = dead_words(record)
    last = "" if dead is None else f" At the mode, {dead}."
    if len(record.family.tasks) == 1:
        return f"There is one task, so that all {total} kernels belong to it."
    if record.kind == "fixed":
        return (
            f"The method {record.method} fixes the groups; they were not learned. Of {total} kernels, "
            + _counted(sums.sum(0), shown)
            + "."
            + last
        )
    if record.kind == "constant":
        return (
            f"The method {record.method} draws every kernel's group anew at each step, with constant probabilities "
            "that were not learned. The widths are expected numbers of kernels."
        )
    full = next(g for g, member in enumerate(shown.members) if member == [record.family.full])
    share = sums[:, full] / [layer.kernels for layer in record.timeline.layers]
    turn = f"from {share[0]:.0%} of the first layer to {share[-1]:.0%} of the last"
    return f"Of {total} kernels, {_counted(sums.sum(0), shown)}.{last} The shared part goes {turn}."


def _counted(sizes: Any, shown: ShownGroups) -> str:
    """The largest groups: '210 are shared by all tasks, 200 are age's own'."""
    largest = sorted(shown.order, key=lambda group: -sizes[group])[:4]
    parts = []
    for group in largest:
        if sizes[group] < 0.5:
            continue
        name = shown.names[group]
        whom = "by all tasks" if name == "shared" else f"by {name.replace('+', ' and ')}"
        verb = "is" if round(float(sizes[group])) == 1 else "are"
        parts.append(f"{sizes[group]:.0f} {verb} {'shared' if name == 'shared' else 'used'} {whom}")
    return ", ".join(parts)
