"""What is read of an experiment: Markdown and figures, every number from the summary."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filtergroups.reproduction.experiment import Column, at_scale
from filtergroups.reproduction.proportions import STAGES
from filtergroups.writing import write_atomically

NORMS = {"batch": "those of the batch", "running": "running ones", "recalibrated": "recalibrated ones"}
BESIDE = 3  # with more columns the paper's numbers get a table of their own
MASKED = (
    "Weights that a kernel's group keeps from being read are trained all the same and counted under parameters; "
    "multiplications are without them, and an export leaves them out."
)
PAPER_SIZE = (
    "This is the paper's own setting. On the machines of this project it has been checked for a few steps only; "
    "it wants a GPU."
)


def page_name(summary: dict[str, Any]) -> str:
    return at_scale(summary["experiment"], summary["scale"])


def write_page(summary: dict[str, Any], folder: Path) -> Path:
    """Write NAME.json, the figures and NAME.md; what a stopped experiment has so far is written too."""
    from filtergroups.reproduction.pictures import draw

    name = page_name(summary)
    write_atomically(folder / f"{name}.json", (json.dumps(summary, indent=1) + "\n").encode())
    figures = draw(summary, folder, name)
    text = "\n".join(page(summary, figures)) + "\n"
    write_atomically(folder / f"{name}.md", text.encode())
    return folder / f"{name}.md"


def page(summary: dict[str, Any], figures: dict[str, str]) -> Iterator[str]:
    """The page's lines; figures: file -> what it shows."""
    columns = [Column(**column) for column in summary["columns"]]
    yield f"# {summary['title']}"
    yield from ("", summary["about"])
    if summary["finished"] < summary["of"]:
        yield from ("", f"**Unfinished: {summary['finished']} of {summary['of']} runs.**")
    if summary["made"]["overrides"]:
        yield from ("", f"**Not the experiment's own settings: {', '.join(summary['made']['overrides'])}.**")
    if summary["scale"] == "paper":
        yield from ("", PAPER_SIZE)
    yield from ("", *results_table(summary, columns))
    yield from ("", _legend(summary))
    if any(row["published"] for row in summary["rows"]) and len(columns) > BESIDE:
        yield from ("", f"## What the paper reports ({summary['published']})", "", *paper_table(summary, columns))
    if any(row["difference"] for row in summary["rows"]):
        yield from ("", f"## Differences to {_label(summary, summary['reference'])}", "")
        yield from difference_table(summary, columns)
        yield from (
            "",
            "Row minus reference, paired by seed, with 95 % t-intervals; \\*: the interval leaves 0 out.",
        )
    if summary["analysis"]:
        yield from ("", *analysis_lines(summary["analysis"]))
    for file, shows in figures.items():
        yield from ("", f"![{shows}]({file})")
    yield from ("", "## What it costs", "", *cost_table(summary))
    if any("multiplications" in run for row in summary["rows"] for run in row["runs"]):
        yield from ("", MASKED)
    if summary["notes"]:
        yield from ("", "## Notes", "", *(f"- {note}" for note in summary["notes"]))
    yield from ("", "## How it was made", "", *origin_lines(summary))


def _label(summary: dict[str, Any], name: str) -> str:
    return next((row["label"] for row in summary["rows"] if row["name"] == name), name)


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| --- |{' ---: |' * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def results_table(summary: dict[str, Any], columns: list[Column]) -> Iterator[str]:
    """Mean ± standard deviation over seeds; the best of a column in bold, the second in italics."""
    beside = len(columns) <= BESIDE
    told = {c.key for c in columns if beside and any(c.key in row["published"] for row in summary["rows"])}
    head = [""]
    for column in columns:
        head += [column.label, *(["paper"] if column.key in told else [])]
    marks = {column.key: ranked(summary["rows"], column) for column in columns}
    rows = []
    for row in summary["rows"]:
        cells = [row["label"]]
        for column in columns:
            cells.append(_marked(_spread(row, column), marks[column.key].get(row["label"])))
            if column.key in told:
                cells.append(_paper(row, column))
        rows.append([*cells, str(len(row["runs"]))])
    if summary["plain"]:
        cells = ["*the same answer for everyone*"]
        for column in columns:
            plain = summary["plain"].get(column.key)
            cells += ["" if plain is None else column.shown(plain), *([""] if column.key in told else [])]
        rows.append([*cells, ""])
    return table([*head, "seeds"], rows)


def ranked(rows: list[dict[str, Any]], column: Column) -> dict[str, int]:
    """The best and second best by mean: label -> 1 or 2."""
    known = {row["label"]: column.shown(row["mean"][column.key]) for row in rows if column.key in row["mean"]}
    # What is shown the same is ranked the same.
    best = sorted(set(known.values()), key=float, reverse=column.more_is_better)[:2]
    return {label: best.index(shown) + 1 for label, shown in known.items() if shown in best} if len(known) > 2 else {}


def _marked(text: str, place: int | None) -> str:
    return {1: f"**{text}**", 2: f"*{text}*"}.get(place or 0, text)


def _spread(row: dict[str, Any], column: Column) -> str:
    if column.key not in row["mean"]:
        return "—"
    mean, deviation = row["mean"][column.key], row["sd"][column.key]
    return column.shown(mean) + ("" if deviation is None else f" ± {column.shown(deviation)}")


def _paper(row: dict[str, Any], column: Column) -> str:
    return " ± ".join(column.shown(value) for value in row["published"].get(column.key, ())) or "—"


def _legend(summary: dict[str, Any]) -> str:
    part = {"validation": "the file's validation part, which neither training nor the choice of the epoch has seen",
            "test": "the test part"}.get(summary["split"], summary["split"])  # fmt: skip
    norms = _norms(summary["rows"])
    return f"Mean ± standard deviation over seeds, on {part}. **Best** and *second best* of a column by the mean." + (
        f" Norms in prediction: {norms}." if norms else ""
    )


def _norms(rows: list[dict[str, Any]]) -> str:
    """Which statistics the norms had, with the rows where these differ."""
    labels = dict[str, list[str]]()
    for row in rows:
        for kind in dict.fromkeys(run["statistics"] for run in row["runs"] if run.get("statistics")):
            labels.setdefault(NORMS.get(kind, kind), []).append(f"“{row['label']}”")
    most, *others = sorted(labels, key=lambda kind: -len(labels[kind])) or [""]
    return "; ".join([most, *(f"{kind} for {' and '.join(labels[kind])}" for kind in others)])


def paper_table(summary: dict[str, Any], columns: list[Column]) -> Iterator[str]:
    told = [c for c in columns if any(c.key in row["published"] for row in summary["rows"])]
    rows = [[row["label"], *(_paper(row, c) for c in told)] for row in summary["rows"] if row["published"]]
    return table(["", *(column.label for column in told)], rows)


def difference_table(summary: dict[str, Any], columns: list[Column]) -> Iterator[str]:
    rows = []
    for row in summary["rows"]:
        if row["difference"]:
            rows.append([row["label"], *(_difference(row["difference"].get(c.key), c) for c in columns)])
    return table(["", *(column.label for column in columns)], rows)


def _difference(found: dict[str, Any] | None, column: Column) -> str:
    if found is None:
        return "—"
    mean = _signed(column, found["mean"])
    if "low" not in found:
        return f"{mean} (one seed)"
    away = found["low"] > 0 or found["high"] < 0
    return f"{mean} [{_signed(column, found['low'])}, {_signed(column, found['high'])}]" + (" \\*" if away else "")


def _signed(column: Column, value: float) -> str:
    shown = column.shown(abs(value))
    return ("−" if value < 0 else "+") + shown


def cost_table(summary: dict[str, Any]) -> Iterator[str]:
    """Time, size and multiplications: means over seeds."""
    rows = []
    for row in summary["rows"]:
        runs = row["runs"]
        cells = [row["label"]]
        for key, form in (("seconds", _minutes), ("parameters", "{:,.0f}".format), ("multiplications", _millions)):
            values = [run[key] for run in runs if key in run]
            cells.append(form(sum(values) / len(values)) if values else "—")
        shares = [r["multiplications"] / r["plain_multiplications"] for r in runs if r.get("plain_multiplications")]
        cells.append(f"{sum(shares) / len(shares):.2f}" if shares else "—")
        rows.append(cells)
    head = ["", "training (minutes)", "parameters, as trained", "multiplications of an image (millions, at the mode)"]
    return table([*head, "of the plain network's"], rows)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def _millions(count: float) -> str:
    return f"{count / 1e6:.1f}"


def analysis_lines(analysis: dict[str, Any]) -> Iterator[str]:
    if analysis["kind"] == "distances":
        yield from distance_lines(analysis)
    else:
        yield from sharing_lines(analysis)


def distance_lines(analysis: dict[str, Any]) -> Iterator[str]:
    yield "## Do they meet?"
    yield ""
    yield "Mean absolute difference of the layer-wise proportions of groups, over layers and groups, and over seeds."
    yield ""
    entries = [(" – ".join(pair["pair"]), pair) for pair in analysis["pairs"]]
    entries += [("**mean of the pairs**", analysis["mean"])] if analysis["mean"] else []
    free = analysis["free"]
    entries += [("**mean without the constant mask**", free)] if free else []
    entries += [("one initialisation, two seeds", analysis["two_seeds"])] if analysis["two_seeds"] else []
    rows = [[label, *(f"{of[stage]:.3f}" for stage in STAGES)] for label, of in entries]
    yield from table(["pair", *STAGES.values()], rows)
    if free:
        yield ""
        yield "The same by layer, from the image on: mean of the pairs without the constant mask."
        yield ""
        layers = [[of, *(f"{value:.2f}" for value in free["layers"][stage])] for stage, of in STAGES.items()]
        yield from table(["", *(f"{n}" for n in range(1, len(layers[0])))], layers)


def sharing_lines(analysis: dict[str, Any]) -> Iterator[str]:
    yield "## What is shared"
    yield ""
    yield "Share of the kernels in the group of all tasks, by layer in the order of the network; mean over seeds."
    yield ""
    rows = []
    for row in analysis["rows"]:
        for stage in ("learned", "mode"):
            layers = ", ".join(f"{share:.2f}" for share in row["shared"][stage])
            rows.append([row["label"], STAGES[stage], layers, f"{row['overall'][stage]:.2f}"])
    yield from table(["", "", "layers", "all layers"], rows)


def origin_lines(summary: dict[str, Any]) -> Iterator[str]:
    made, machine = summary["made"], summary["made"]["machine"]
    yield f"`{made['command']}`"
    yield ""
    where = f"{machine['processor']}, {machine['cores']} cores" + (f", {machine['gpu']}" if machine["gpu"] else "")
    yield f"{made['date']}; {where}; Python {machine['python']}, PyTorch {machine['torch']}."
    if made["threads"]:
        yield f"Threads of a run: {' or '.join(map(str, made['threads']))}; others may have run beside it."
    if made["run_commits"]:
        yield f"Runs of commit {', '.join(made['run_commits'])}; page of {made['commit'] or 'no clone'}."
    yield f"All numbers are in [{page_name(summary)}.json]({page_name(summary)}.json)."
