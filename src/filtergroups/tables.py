"""Results as text tables."""

from typing import Any


def results_table(result: dict[str, Any]) -> str:
    """Every metric beside what one gets without looking at the image."""
    passes = f"{result['samples']} passes" if result["samples"] else "the mode network"
    norms = f", {result['statistics']} norm statistics" if "statistics" in result else ""
    lines = [f"{result['split']} part, {result['examples']} examples, {passes}{norms}"]
    rows: list[tuple[str, ...]] = [("task", "metric", "", "network", "plain answer")]
    for task, metrics in result["tasks"].items():
        for metric, value in metrics.items():
            plain = result["plain"][task].get(metric)
            if isinstance(value, dict):
                for region, of_region in value.items():
                    other = plain.get(region) if isinstance(plain, dict) else None
                    rows.append((task, metric, region, _mean(of_region), _mean(other)))
            elif not isinstance(value, list):
                rows.append((task, metric, "", _number(value), _number(plain)))
    lines += aligned(rows)
    if result.get("calibration"):
        lines += ["", *_calibration(result["calibration"])]
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
    passes = f"{result['samples']} passes" if result["samples"] else "the mode network"
    meaning = {"scale": "interval: ± {} × spread", "constant": "interval: ± {}", "temperature": "temperature {}"}
    lines = [f"fitted on the {result['part']} part, {passes}"]
    rows: list[tuple[str, ...]] = []
    for name, fitted in result["tasks"].items():
        rows.append((name, meaning[fitted["kind"]].format(f"{fitted['value']:.4g}"), f"{fitted['examples']} values"))
    lines += aligned(rows)
    return "\n".join([*lines, "", *_calibration(result["validation"]), *result["notes"]])


def _calibration(by_task: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("task", "calibration", "as predicted", "corrected")]
    for task, found in by_task.items():
        for key, text in CALIBRATION.items():
            if key in found:
                # One pass has no spread, and so no interval of its own.
                given = key in ("ece", "nll") or found["width"]
                rows.append((task, text, _number(found[key] if given else None), _number(found[f"{key}_corrected"])))
    return aligned(rows)


def _natural(text: str) -> tuple[int, str]:
    digits = text.split("-")[0]
    return (int(digits) if digits.isdigit() else 10**9, text)


def _mean(value: dict[str, float] | None) -> str:
    return "–" if value is None else f"{value['mean']:.3f} ± {value['std']:.3f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
