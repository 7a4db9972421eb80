"""The page: sections, style and script in one file that asks no network for anything."""

from importlib.resources import files
from typing import Any

from filtergroups import __version__
from filtergroups.reporting.collect import Record
from filtergroups.reporting.html import Html, joined, json_script, tag

SCRIPTS = ("core.js", "flow.js", "probabilities.js", "curves.js", "pictures.js")
NAVIGATION = {
    "summary": "Summary",
    "architecture": "Sharing",
    "probabilities": "Probabilities",
    "activations": "Activations",
    "predictions": "Predictions",
    "curves": "Training",
    "calibration": "Calibration",
    "cost": "Cost",
}
# The page may show what it brings along and run its own script; it may fetch nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def _file(name: str) -> Html:
    return Html(files("filtergroups.reporting").joinpath("page", name).read_text(encoding="utf-8"))


def assembled(
    title: str, lead: str, comparison: Html | None, runs: list[tuple[str, Record, list[Html], dict[str, Any]]]
) -> str:
    """The whole page. runs: key, record, sections and data of each."""
    several = len(runs) > 1
    articles = [
        tag(
            "article",
            tag("p", record.name, class_="run-name") if several else None,
            *sections,
            id=key,
            class_="run",
            aria_label=record.name,
        )
        for key, record, sections, _ in runs
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="generator", content=f"filtergroups {__version__}"),
        tag("title", title),
        tag("style", _file("style.css")),
    )
    header = tag(
        "header",
        tag("p", "filtergroups report", class_="brand"),
        tag("h1", title),
        tag("p", lead, class_="lead"),
        class_="title inner",
    )
    body = tag(
        "body",
        tag("a", "To the content", href="#content", class_="skip"),
        header,
        _navigation(comparison is not None, runs),
        tag("main", comparison, *articles, id="content", class_="inner"),
        tag("footer", f"Written by filtergroups {__version__}. One file, no network.", class_="inner"),
        *(json_script(data, data_run=key) for key, _, _, data in runs),
        *(tag("script", _file(name)) for name in SCRIPTS),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en")


def _navigation(compared: bool, runs: list[tuple[str, Record, list[Html], dict[str, Any]]]) -> Html:
    first = runs[0][0]
    text = joined(*runs[0][2])
    links = [tag("a", "Comparison", href="#comparison")] if compared else []
    named = NAVIGATION | ({"architecture": "Mixing"} if all(record.stitched for _, record, _, _ in runs) else {})
    links += [
        tag("a", name, href=f"#{first}-{part}", data_part=part)
        for part, name in named.items()
        if len(runs) > 1 or f'id="{first}-{part}"' in text
    ]
    chooser = None
    if len(runs) > 1:
        options = [tag("option", record.name, value=key) for key, record, _, _ in runs]
        chooser = tag("select", *options, id="choose-run", aria_label="run")
    return tag("nav", tag("div", *links, chooser, class_="inner"), class_="top", aria_label="sections")
