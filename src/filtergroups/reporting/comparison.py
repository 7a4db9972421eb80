"""Several runs side by side: seeds together, best and second best marked, the paper's numbers beside ours."""

import json
import statistics
from dataclasses import dataclass
from typing import Any

from filtergroups.reporting.collect import Record
from filtergroups.reporting.html import Html, joined, note, section, table, tag
from filtergroups.reporting.published import Published, published_for
from filtergroups.reporting.scores import METRICS, MORE_IS_BETTER, Score, Scored, scored, with_error
from filtergroups.reporting.summary import network_name, paper_cell


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed only."""

    records: list[Record]
    measured: list[Scored | None]

    @property
    def name(self) -> str:
        return self.records[0].method

    def values(self, key: tuple[str, str, str]) -> list[Score]:
        return [score for found in self.measured if found for score in found.scores if score.key == key]

    def mean(self, key: tuple[str, str, str]) -> float | None:
        values = [score.value for score in self.values(key)]
        return statistics.fmean(values) if values else None


def same_but_seed(record: Record) -> str:
    """Equal for runs that differ in nothing but their seed."""
    if record.config is None:
        return f"network {record.name}"
    tree = json.loads(record.config.model_dump_json(exclude={"seed": True, "data": {"cache"}}))
    tree["training"] = {k: v for k, v in tree["training"].items() if k not in ("threads", "accelerator", "devices")}
    return json.dumps(tree, sort_keys=True)


def rows_of(records: list[Record]) -> list[Row]:
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(same_but_seed(record), []).append(record)
    return [Row(members, [_comparable(record) for record in members]) for members in grouped.values()]


def _comparable(record: Record) -> Scored | None:
    found = scored(record)
    return found[0] if found else None


def comparison_section(records: list[Record]) -> Html:
    rows = rows_of(records)
    keys = _keys(rows)
    papers = [published_for(row.records[0]) for row in rows]
    ranks = {key: _ranked(rows, key) for key in keys}
    with_paper = [key for key in keys if any(paper and key in paper.values for paper in papers)]
    head: list[Any] = [
        "",
        "seeds",
        *(_heading(key) for key in keys),
        *(f"paper: {_heading(key)}" for key in with_paper),
    ]
    body = []
    for n, row in enumerate(rows):
        cells: list[Any] = [_named(rows, row, records), str(len(row.records))]
        cells += [_cell(row, key, ranks[key].get(n)) for key in keys]
        cells += [_of_paper(papers[n], key) for key in with_paper]
        body.append(cells)
    where = sorted({found.where for row in rows for found in row.measured if found})
    words = (
        "± is the standard deviation over seeds, or over patients (examples: the standard error) where there is one "
        "seed. "
    )
    marks = joined(
        tag("span", "Best", class_="best"), " and ", tag("span", "second best", class_="second"), " are marked. "
    )
    mixed = note("These runs were not all measured on the same: " + "; ".join(where) + ".") if len(where) > 1 else None
    paper = next((paper for paper in papers if paper and with_paper), None)
    about = f"Paper: {paper.table}, {paper.about}." if paper else ""
    return section(
        "comparison",
        "Comparison",
        tag("p", f"{len(records)} runs" + (f" on the {where[0]}." if len(where) == 1 else "."), class_="lead-in"),
        table(head, body, class_="wide", caption="Results by run"),
        note(marks, words if keys else "Nothing was measured yet. ", about),
        mixed,
        _unfinished(records),
    )


def _keys(rows: list[Row]) -> list[tuple[str, str, str]]:
    """What is compared: every score of images; of scans, the whole and not each region."""
    keys = [score.key for row in rows for found in row.measured if found for score in found.scores]
    return list(dict.fromkeys(key for key in keys if key[2] in ("", "overall")))


def _heading(key: tuple[str, str, str]) -> str:
    return f"{key[0]} {METRICS.get(key[1], key[1])} {'↑' if key[1] in MORE_IS_BETTER else '↓'}"


def _ranked(rows: list[Row], key: tuple[str, str, str]) -> dict[int, str]:
    """Which rows are best and second best; equals share a mark."""
    means = {n: mean for n, row in enumerate(rows) if (mean := row.mean(key)) is not None}
    ordered = sorted(set(means.values()), reverse=key[1] in MORE_IS_BETTER)
    marks = dict(zip(ordered, ("best", "second"), strict=False)) if len(ordered) > 1 else {}
    return {n: marks[mean] for n, mean in means.items() if mean in marks}


def _cell(row: Row, key: tuple[str, str, str], mark: str | None) -> Any:
    values = row.values(key)
    if not values:
        return "–"
    several = len(values) > 1
    error = statistics.stdev(score.value for score in values) if several else values[0].error
    text = with_error(key[1], statistics.fmean(score.value for score in values), error)
    return tag("span", text, class_=mark) if mark else text


def _of_paper(paper: Published | None, key: tuple[str, str, str]) -> Any:
    return tag("span", paper_cell(paper.values.get(key) if paper else None, key[1]), class_="dim")


def _named(rows: list[Row], row: Row, records: list[Record]) -> Html:
    """The method, more where other rows have the same one, and links to each run's own part."""
    same = [other for other in rows if other.name == row.name and other is not row]
    label = row.name if not same else f"{row.name} · {network_name(row.records[0])}"
    links = []
    for record in row.records:
        index = records.index(record)
        text = record.name if record.config is None else f"{record.name} (seed {record.config.seed})"
        links.append(tag("a", text, href=f"#r{index}", data_run_link=f"r{index}"))
    return joined(label, tag("small", [joined(tag("br"), link) for link in links], class_="dim"))


def _unfinished(records: list[Record]) -> Html | None:
    names = [record.name for record in records if not record.finished]
    if not names:
        return None
    return tag("p", f"Not finished: {', '.join(names)}. Their numbers are where they stand.", class_="callout")
