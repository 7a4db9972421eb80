"""The paper's numbers, where a run is comparable."""

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from filtergroups.clone import experiments
from filtergroups.config import FacesData
from filtergroups.reporting.collect import Record


@dataclass(frozen=True)
class Published:
    """One row of the paper for a method."""

    table: str
    about: str
    row: str
    values: dict[tuple[str, str, str], list[float]]  # (task, metric, region) -> mean and, for some, its deviation


@cache
def _tables() -> list[dict[str, Any]]:
    text = (experiments() / "published.toml").read_text(encoding="utf-8")
    tables: list[dict[str, Any]] = tomllib.loads(text)["table"]
    return tables


def published_for(record: Record) -> Published | None:
    """The row of the same method on the same kind of data, if the paper has one."""
    if record.config is None:
        return None
    data = record.config.data
    for entry in _tables():
        low, high = entry.get("fraction", (0.0, 1.0))
        used = data.fraction if isinstance(data, FacesData) else 1.0
        if data.kind not in entry["data"] or not low < used <= high:
            continue
        for row in entry["row"]:
            if row["method"] == record.method:
                return Published(entry["name"], entry["about"], row["row"], _values(row))
    return None


def _values(row: dict[str, Any]) -> dict[tuple[str, str, str], list[float]]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for task, metrics in row.items():
        for metric, value in metrics.items() if isinstance(metrics, dict) else ():
            for region, numbers in value.items() if isinstance(value, dict) else {"": value}.items():
                found[task, metric, region] = numbers
    return found
