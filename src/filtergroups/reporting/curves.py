"""Curves over training: losses, the terms of eq. 5, temperature, entropy by layer, validation metrics."""

from typing import Any

from filtergroups.palette import SHARED, ramp, task_colour
from filtergroups.predictor import NORMS
from filtergroups.reporting.collect import Record, evenly
from filtergroups.reporting.html import Html, section, tag

MOST_POINTS = 400
SMOOTH = 0.06  # share of the points that a smoothed value looks back on

Series = dict[str, Any]


def series(name: str, colour: str, points: list[tuple[int, float | None]], **more: Any) -> Series:
    kept = [points[index] for index in evenly(len(points), MOST_POINTS)]
    return {"name": name, "colour": colour, "x": [x for x, _ in kept], "y": [_rounded(y) for _, y in kept], **more}


def _rounded(value: float | None) -> float | None:
    return None if value is None or value != value else float(f"{value:.5g}")


def smoothed(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Means of the latest points."""
    reach = max(1, round(SMOOTH * len(points)))
    made, total = [], 0.0
    for n, (x, y) in enumerate(points):
        total += y - (points[n - reach][1] if n >= reach else 0.0)
        made.append((x, total / min(n + 1, reach)))
    return made


def curves(record: Record) -> list[dict[str, Any]]:
    """All charts as data: title, series, and a sentence for those who cannot see them."""
    charts: list[dict[str, Any]] = []
    colours = {task: task_colour(n) for n, task in enumerate(record.family.tasks)}
    training = record.entries("train")
    if training:
        for task in record.family.tasks:
            points = [(entry["step"], entry["losses"][task]) for entry in training if task in entry["losses"]]
            if points:
                charts.append(_loss(task, colours[task], points))
        charts.append(_terms(training))
        if record.kind != "fixed":  # nothing is drawn at a temperature
            charts += _plain(training, "temperature", "Temperature", zero=True)
        charts += _cost(training)
    charts += _validation(record, colours)
    timeline = record.timeline
    if record.kind == "learned" and len(timeline.steps) > 1 and len(record.family) > 1:
        charts.append(_entropy(record))
    return charts


def _loss(task: str, colour: str, points: list[tuple[int, float]]) -> dict[str, Any]:
    means = smoothed(points)
    return {
        "title": f"Training loss · {task}",
        "alt": f"from {means[0][1]:.3g} to {means[-1][1]:.3g}",
        "series": [series(f"{task}, each batch", colour, list(points), faint=True), series(task, colour, list(means))],
    }


def _terms(training: list[dict[str, Any]]) -> dict[str, Any]:
    steps = [entry["step"] for entry in training]
    tasks = smoothed(list(zip(steps, [sum(entry["losses"].values()) for entry in training], strict=True)))
    lines = [
        series("Σ task losses", "#0072B2", list(tasks)),
        series("λ₁ Σ‖M‖²", "#E69F00", [(entry["step"], entry["weights"]) for entry in training]),
        series("λ₂ Σ H(p), subtracted", "#009E73", [(entry["step"], -entry.get("entropy", 0.0)) for entry in training]),
    ]
    if any("cost" in entry for entry in training):
        lines.append(series("cost", "#CC79A7", [(entry["step"], entry.get("cost")) for entry in training]))
    # Kernels fixed for good have no entropy left, and a logarithm has no 0.
    lines = [
        {**line, "y": [None if y is None or y <= 0 else y for y in line["y"]]}
        for line in lines
        if any(y is not None and y > 0 for y in line["y"])
    ]
    return {"title": "Terms of eq. 5", "alt": "sizes on a logarithmic scale", "series": lines, "log": True}


def _cost(training: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Multiplications against the plain network's, where training asked for few."""
    named = (("expected_cost", "expected", "#0072B2"), ("mode_cost", "mode network", "#D55E00"))
    lines = [
        series(name, colour, [(entry["step"], entry[key]) for entry in training if key in entry])
        for key, name, colour in named
        if any(key in entry for entry in training)
    ]
    alt = "expected, and of the mode network"
    return [{"title": "Multiplications, share of the plain network's", "alt": alt, "series": lines}] if lines else []


def _plain(training: list[dict[str, Any]], field: str, title: str, **more: Any) -> list[dict[str, Any]]:
    points = [(entry["step"], entry[field]) for entry in training if field in entry]  # not of every method
    if not points:
        return []
    alt = f"from {points[0][1]:.3g} to {points[-1][1]:.3g}"
    return [{"title": title, "alt": alt, "series": [series(title, SHARED, list(points))], **more}]


def _validation(record: Record, colours: dict[str, str]) -> list[dict[str, Any]]:
    entries = record.entries("validation")
    norms = f" ({NORMS[entries[-1]['norms']]})" if entries and "norms" in entries[-1] else ""
    charts = []
    for task in record.family.tasks:
        metrics = {name for entry in entries for name, v in entry["results"].get(task, {}).items() if _is_real(v)}
        for metric in sorted(metrics):
            points = [
                (entry["step"], entry["results"][task][metric])
                for entry in entries
                if _is_real(entry["results"].get(task, {}).get(metric))
            ]
            charts.append(
                {
                    "title": f"Validation · {task} {metric}{norms}",
                    "alt": f"from {points[0][1]:.4g} to {points[-1][1]:.4g}",
                    "series": [series(f"{task} {metric}", colours[task], list(points), dots=len(points) < 40)],
                }
            )
    return charts


def _is_real(value: Any) -> bool:
    return isinstance(value, float) and value == value


def _entropy(record: Record) -> dict[str, Any]:
    timeline = record.timeline
    times = range(timeline.learned + 1)
    values = [timeline.entropies(time) for time in times]
    colours = ramp("viridis", max(2, len(timeline.layers)), 0.0, 0.92)
    lines = [
        series(f"layer {n + 1}", colours[n], [(timeline.steps[time], float(values[time][n])) for time in times])
        for n in range(len(timeline.layers))
    ]
    return {
        "title": "Entropy H(p), mean of each layer's kernels (nats)",
        "alt": f"all layers, from {values[0].mean():.2f} to {values[-1].mean():.2f} on average",
        "series": lines,
        "scale": ["first layer", "last layer", colours],
        "zero": True,
    }


def curves_section(record: Record, key: str) -> Html | None:
    if not record.metrics and len(record.timeline.steps) == 1:
        return None
    figure = tag("div", tag("div", class_="small-multiples"), data_figure="curves", data_of=key)
    words = "Against the training step; losses are smoothed, with each batch's value behind."
    return section(f"{key}-curves", "Training", tag("p", words, class_="lead-in"), figure)
