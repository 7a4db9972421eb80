"""Results as text tables."""

from typing import Any

from filtergroups.certainty import passes_in_words
from filtergroups.naming import shown


def results_table(result: dict[str, Any]) -> str:
    """Every metric beside what one gets without looking at the image."""
    norms = f", {result['statistics']} norm statistics" if "statistics" in result else ""
    lines = [f"{result['split']} part, {result['examples']} examples, {passes_in_words(result['samples'])}{norms}"]
    rows: list[tuple[str, ...]] = [("task", "metric", "", "network", "plain answer")]
    for task, metrics in result["tasks"].items():
        for metric, value in metrics.items():
            plain = result["plain"].get(task, {}).get(metric)
            if isinstance(value, dict):
                for region, of_region in value.items():
                    other = plain.get(region) if isinstance(plain, dict) else None
                    rows.append((task, metric, region, _mean(of_region), _mean(other)))
            elif not isinstance(value, list):
                rows.append((task, metric, "", _number(value), _number(plain)))
    lines += aligned(rows)
    if result.get("calibration"):
        lines += _calibration(result["calibration"])
    for column, groups in result.get("by", {}).items():
        metrics = [
            (task, metric)
            for task, found in result["tasks"].items()
            for metric, v in found.items()
            if isinstance(v, float)
        ]
        table: list[tuple[str, ...]] = [(column, *(f"{task} {metric}" for task, metric in metrics))]
        for group in sorted(groups, key=_natural):
            table.append((group, *(_number(groups[group][task][metric]) for task, metric in metrics)))
        lines += ["", *aligned(table)]
    return "\n".join([*lines, *result.get("notes", ())])


CALIBRATION = {
    "coverage": "90 % interval, coverage",
    "width": "90 % interval, width",
    "ece": "expected calibration error",
    "nll": "negative log likelihood",
}


def calibration_table(result: dict[str, Any]) -> str:
    """What was fitted, and the calibration of the part that it was fitted to."""
    meaning = {"scale": "interval: ± {} × spread", "constant": "interval: ± {}", "temperature": "temperature {}"}
    lines = [f"fitted on the {result['part']} part, {passes_in_words(result['samples'])}"]
    rows: list[tuple[str, ...]] = []
    for name, fitted in result["tasks"].items():
        rows.append((name, meaning[fitted["kind"]].format(f"{fitted['value']:.4g}"), f"{fitted['examples']} values"))
    lines += aligned(rows)
    return "\n".join([*lines, *_calibration(result["validation"]), *result["notes"]])


def _calibration(by_task: dict[str, Any]) -> list[str]:
    """What was measured: one pass has no spread, and so no interval before a correction."""
    rows: list[tuple[str, ...]] = [("task", "calibration", "as predicted", "corrected")]
    for task, found in by_task.items():
        for key, text in CALIBRATION.items():
            values = [found.get(key), found.get(f"{key}_corrected")]
            if values != [None, None]:
                rows.append((task, text, *map(_number, values)))
    return ["", *aligned(rows)] if len(rows) > 1 else []


def _natural(text: str) -> tuple[int, str]:
    digits = text.split("-")[0]
    return (int(digits) if digits.isdigit() else 10**9, text)


def _mean(value: dict[str, float] | None) -> str:
    """Over the patients; one alone has no deviation."""
    if value is None:
        return "–"
    return f"{value['mean']:.3f}" + (f" ± {value['std']:.3f}" if value["patients"] > 1 else "")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    rows = [tuple(shown(cell) for cell in row) for row in rows]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
