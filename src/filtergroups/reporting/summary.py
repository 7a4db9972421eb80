"""What was trained, on what, for how long, how good it is, and how to do it again."""

import shlex
from typing import Any

from filtergroups.config import Config, FacesData, PhantomData, TableData
from filtergroups.config_file import dump_config
from filtergroups.palette import task_colour
from filtergroups.reporting.collect import Record
from filtergroups.reporting.html import Html, joined, note, section, table, tag
from filtergroups.reporting.published import published_for
from filtergroups.reporting.scores import Scored, scored, with_error, written

NETWORKS = {"vgg11": "VGG11", "highresnet": "HighResNet", "lifted": "lifted network"}


def network_name(record: Record) -> str:
    name = NETWORKS.get(record.network, record.network)
    width = record.config.network.width if record.config else 1.0
    return name if width == 1 else f"{name} × {width:g}"


def data_name(config: Config | None) -> tuple[str, str | None]:
    """What the data are called, and a word more."""
    if config is None:
        return "other code's data", None
    data = config.data
    if isinstance(data, PhantomData):
        return "pelvis phantom", f"{data.patients} generated patients"
    if isinstance(data, FacesData):
        return data.root.name, "faces" if data.fraction == 1 else f"{data.fraction:.0%} of its training faces"
    return (data.table.name, "images") if isinstance(data, TableData) else (data.root.name, "scans")


def summary_section(record: Record, key: str) -> Html:
    return section(
        f"{key}-summary",
        "Summary",
        unfinished(record),
        facts(record),
        results(record),
        again(record),
    )


def unfinished(record: Record) -> Html | None:
    if record.finished:
        return None
    of = f" of {record.planned:,}" if record.planned else ""
    how = f"filtergroups resume {shlex.quote(str(record.run.path))}" if record.run else ""
    text = joined(
        f"This run is not finished: it has done {record.step:,}{of} steps, and what follows is where it stands. ",
        "Go on with ", tag("code", how), ".",
    )  # fmt: skip
    return tag("p", text, class_="callout")


def facts(record: Record) -> Html:
    name, more = data_name(record.config)
    rows: list[tuple[str, Any, str | None]] = [
        ("method", record.method, _method_words(record)),
        ("network", network_name(record), _parameters(record)),
        ("tasks", ", ".join(record.family.tasks), None if record.stitched else f"{len(record.family)} groups"),
        ("data", name, "; ".join(text for text in (more, _examples(record)) if text)),
    ]
    if record.run is not None:
        of = f" of {record.planned:,}" if record.planned and not record.finished else ""
        epochs = f"{record.config.training.epochs} epochs planned" if record.config else None
        rows.append(("steps", f"{record.step:,}{of}", epochs))
        rows.append(("time", _duration(record), record.log[0][0].strftime("%-d %B %Y, %H:%M") if record.log else None))
    if record.timeline.dead is not None:
        gone = int(record.timeline.dead_counts().sum())
        kernels = sum(layer.kernels for layer in record.timeline.layers)
        rows.append(("dead kernels", f"{gone} of {kernels}", "at the mode, no task depends on them"))
    cells = [
        tag("div", tag("dt", name), tag("dd", value, tag("small", more) if more else None))
        for name, value, more in rows
    ]
    return tag("dl", *cells, class_="facts")


def _method_words(record: Record) -> str:
    if record.stitched:
        return "a network a task, mixed by what was learned"
    words = {"learned": "groups are learned", "constant": "constant probabilities", "fixed": "groups are fixed"}
    return words[record.kind]


def _said(record: Record, pattern: str) -> str | None:
    import re

    for _, text in record.log:
        if match := re.search(pattern, text):
            return match[1]
    return None


def _parameters(record: Record) -> str | None:
    found = _said(record, r"([\d,]+) parameters")
    return f"{found} parameters" if found else None


def _examples(record: Record) -> str | None:
    found = _said(record, r"parameters, (.*) examples")
    return f"{found} examples" if found else None


def _duration(record: Record) -> str:
    """From the first line of the log to the last one about training: other commands write there too."""
    trained = [time for time, text in record.log if text.startswith(("done:", "step "))]
    if not trained:
        return "–"
    seconds = (trained[-1] - record.log[0][0]).total_seconds()
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def results(record: Record) -> Html:
    found = scored(record)
    if not found:
        words = "Nothing was measured yet" + ("" if record.run is None else ": ")
        how = None if record.run is None else tag("code", f"filtergroups evaluate {shlex.quote(str(record.run.path))}")
        return note(words, how, ".")
    parts = [tag("h3", "Results")]
    parts.append(results_table(record, found[0]))
    if not found[0].evaluated or found[0].result["split"] != "test":
        parts.append(
            note(
                "" if found[0].evaluated else "Measured in passing during training. ",
                "For the test part: ",
                tag("code", f"filtergroups evaluate {shlex.quote(str(record.run.path) if record.run else 'RUN')}"),
            )
        )
    for more in found[1:]:
        parts.append(tag("details", tag("summary", more.where), results_table(record, more)))
    return joined(parts)


def results_table(record: Record, measured: Scored) -> Html:
    paper = published_for(record)
    colours = {task: task_colour(n) for n, task in enumerate(record.family.tasks)}
    has_plain = any(score.plain is not None for score in measured.scores)
    has_paper = paper is not None and any(score.key in paper.values for score in measured.scores)
    rows = []
    for score in measured.scores:
        swatch = tag("span", class_="swatch", style=f"--c:{colours.get(score.task, '#888888')}")
        row: list[Any] = [joined(swatch, score.name), with_error(score.metric, score.value, score.error)]
        if has_plain:
            row.append(tag("span", "–" if score.plain is None else written(score.metric, score.plain), class_="dim"))
        if has_paper:
            assert paper is not None
            row.append(paper_cell(paper.values.get(score.key), score.metric))
        rows.append(row)
    head: list[Any] = ["", "this run"] + (["without looking"] if has_plain else [])
    head += [f"paper, {paper.table}"] if has_paper and paper else []
    made = table(head, rows, class_="results", caption=f"On the {measured.where}")
    return joined(made, note(_explained(measured, has_plain), f" Paper: {paper.about}." if has_paper and paper else ""))


def paper_cell(numbers: list[float] | None, metric: str) -> str:
    if numbers is None:
        return "–"
    return with_error(metric, numbers[0], numbers[1] if len(numbers) > 1 else None)


def _explained(measured: Scored, has_plain: bool) -> str:
    with_errors = [score for score in measured.scores if score.error is not None]
    words = ""
    if with_errors:
        words = "± is the standard deviation over patients." if with_errors[0].region else "± is the standard error."
    return words + (" Without looking: the same answer for every image." if has_plain else "")


def again(record: Record) -> Html | None:
    if record.run is None or record.config is None:
        return None
    folder = shlex.quote(str(record.run.path))
    lines = [f"filtergroups train {folder}/config.toml --run {shlex.quote(str(record.run.path) + '-again')}"]
    for result in record.results:
        more = f" --data {shlex.quote(result['data'])}" if result["data"] else ""
        for option, usual in (("checkpoint", "best"), ("statistics", "recalibrated")):
            if (found := result.get(option, usual)) != usual:
                more += f" --{option} {shlex.quote(found)}"
        lines.append(
            f"filtergroups evaluate {shlex.quote(str(record.run.path) + '-again')} --split {result['split']} "
            f"--samples {result['samples']}{more}"
        )
    return joined(
        tag("h3", "Do it again"),
        tag("pre", tag("code", "\n".join(lines)), tabindex="0"),
        tag(
            "details",
            tag("summary", "The complete config"),
            tag("pre", tag("code", dump_config(record.config)), tabindex="0"),
        ),
    )
