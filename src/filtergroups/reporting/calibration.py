"""Calibration (do the stated uncertainties hold?) and cost (what a shipped network saves)."""

import shlex
from typing import Any

from filtergroups.palette import task_colour
from filtergroups.reporting.collect import Record
from filtergroups.reporting.html import Html, joined, note, section, table, tag
from filtergroups.reporting.scores import in_order, measured_on

COVERED = 0.9  # the interval that real values are measured by
NO_INTERVAL = "no interval"  # one pass has no spread, and no correction was fitted


def calibration_section(record: Record, key: str) -> Html | None:
    if record.run is None:
        return None
    measured = [result for result in in_order(record) if result.get("calibration")]
    title = "Do its uncertainties hold?"
    lead = (
        f"Intervals of {COVERED:.0%} are to hold the truth in {COVERED:.0%} of all cases; of answers given with "
        "80% confidence, 80% are to be right; the expected calibration error says how far they are off on average."
    )
    folder = shlex.quote(str(record.run.path))
    if not measured and not record.calibration:
        words = "Nothing was measured yet. Calibrate on the validation part, then evaluate: "
        how = f"filtergroups calibrate {folder} && filtergroups evaluate {folder}"
        return section(f"{key}-calibration", title, note(words, tag("code", how)))
    parts: list[Any] = []
    for n, result in enumerate(measured):
        shown = _of_result(record, result)
        parts += shown if n == 0 else [tag("details", tag("summary", measured_on(record, result)), *shown)]
    corrections = _corrections(record.calibration)
    how = tag("code", f"filtergroups calibrate {folder} && filtergroups evaluate {folder}")
    parts.append(corrections or note("Before any correction; to correct it on the validation part: ", how))
    return section(f"{key}-calibration", title, tag("p", lead, class_="lead-in"), *parts)


def _of_result(record: Record, result: dict[str, Any]) -> list[Html]:
    real, classes, pictures = [], [], []
    colours = {task: task_colour(n) for n, task in enumerate(record.family.tasks)}
    for task, found in result["calibration"].items():
        if "coverage" in found:
            if found["coverage"] is None and found.get("coverage_corrected") is None:
                real.append([task, NO_INTERVAL, "–", "–", "–"])
                continue
            covered = [_share(found["coverage"]), _share(found.get("coverage_corrected"))]
            real.append([task, *covered, _number(found.get("width")), _number(found.get("width_corrected"))])
        if found.get("ece") is not None:
            classes.append([task, _number(found["ece"]), _number(found.get("ece_corrected"))])
        if found.get("bins"):
            pictures.append(reliability(task, found["bins"], colours.get(task, "#888888")))
    where = measured_on(record, result)
    parts = []
    if any(row[1] != NO_INTERVAL for row in real):
        head = ["", "coverage before", "after", "width before", "after"]
        parts.append(table(head, real, caption=f"Share of values inside the {COVERED:.0%} interval · {where}"))
    if classes:
        head = ["", "before", "after"]
        parts.append(table(head, classes, caption=f"Expected calibration error · {where}"))
    if pictures:
        parts.append(tag("div", *pictures, class_="small-multiples"))
    return parts


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def _corrections(calibration: dict[str, Any]) -> Html | None:
    rows = [
        [f"{task}, {name}", found["kind"], f"{found['value']:.4g}"]
        for how, name in (("mode", "mode network"), ("sampled", "sampled passes"))
        for task, found in calibration.get(how, {}).items()
    ]
    if not rows:
        return None
    return tag(
        "details",
        tag("summary", "The corrections that were learned on the validation part"),
        table(["", "kind", "value"], rows, caption="Corrections"),
    )


def reliability(task: str, bins: list[dict[str, float]], colour: str) -> Html:
    """A reliability diagram: confidence against accuracy, the area of a dot by how many there are."""
    size, pad = 210, 34
    most = max(entry["count"] for entry in bins) or 1

    def place(x: float, y: float) -> tuple[float, float]:
        return pad + x * (size - pad - 8), 8 + (1 - y) * (size - pad - 8)

    dots = []
    for entry in bins:
        if not entry["count"]:
            continue
        x, y = place(entry["confidence"], entry["accuracy"])
        radius = 2.5 + 6 * (entry["count"] / most) ** 0.5
        told = f"confidence {entry['confidence']:.2f}, accuracy {entry['accuracy']:.2f}, {entry['count']} examples"
        dots.append(tag("circle", tag("title", told), cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{radius:.1f}", fill=colour))
    (x0, y0), (x1, y1) = place(0, 0), place(1, 1)
    middle = (y0 + y1) / 2
    lines = [
        tag("line", x1=x0, y1=y0, x2=x1, y2=y1, class_="axis", stroke_dasharray="4 4"),
        tag("line", x1=x0, y1=y0, x2=x1, y2=y0, class_="grid"),
        tag("line", x1=x0, y1=y0, x2=x0, y2=y1, class_="grid"),
    ]
    labels = [
        tag("text", "0", x=x0, y=y0 + 16, text_anchor="middle"),
        tag("text", "confidence", x=(x0 + x1) / 2, y=y0 + 16, text_anchor="middle"),
        tag("text", "1", x=x1, y=y0 + 16, text_anchor="middle"),
        tag("text", "1", x=x0 - 8, y=y1 + 4, text_anchor="end"),
        tag("text", "accuracy", x=14, y=middle, text_anchor="middle", transform=f"rotate(-90 14 {middle})"),
    ]
    picture = tag(
        "svg",
        *lines,
        *dots,
        *labels,
        viewBox=f"0 0 {size} {size}",
        width=size,
        height=size,
        role="img",
        aria_label=f"reliability of {task}",
    )
    return tag("div", tag("h4", f"Reliability · {task}"), picture, class_="card")


def cost_section(record: Record, key: str) -> Html | None:
    """Before and after, for every exported file."""
    if not record.exports:
        return None
    parts: list[Html] = []
    for export in record.exports:
        rows = export["rows"]
        sizes = list(dict.fromkeys(size for row in rows for size in row.get("latency_ms", {})))
        head = ["", "parameters", "multiplications", "file", *(f"ms, batch {size}" for size in sizes)]
        first = rows[0] if rows else {}
        body = [
            [
                row["name"],
                _against(row["parameters"], first["parameters"], f"{row['parameters']:,}"),
                _against(row["multiplications"], first["multiplications"], _large(row["multiplications"])),
                _against(row["bytes"], first["bytes"], f"{row['bytes'] / 1e6:.2f} MB"),
                *(
                    _against(
                        row["latency_ms"].get(size), first["latency_ms"].get(size), _ms(row["latency_ms"].get(size))
                    )
                    for size in sizes
                ),
            ]
            for row in rows
        ]
        caption = f"{export['file']} ({export['format']}), tasks {', '.join(export['tasks'])}"
        parts.append(table(list(head), body, class_="wide", caption=caption))
    return section(f"{key}-cost", "What it costs", *parts)


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _large(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def _against(value: float | None, before: float | None, text: str) -> Html:
    """A value, and how it compares with the first row's."""
    if not value or not before or value == before:
        return joined(text)
    return joined(text, tag("span", f"  ×{value / before:.2f}", class_="dim"))
