"""Reading what a user gets: tables, maps, volumes and the numbers of a report's page, without our own functions."""

import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

PASSES = 6


class Tiles(HTMLParser):
    """The pictures' descriptions of a report's predictions, by heading."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inside, self.heading, self.in_heading = False, "", False
        self.found: dict[str, dict[str, str]] = {}
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "section":
            self.inside = str(values.get("id", "")).endswith("-predictions")
        self.in_heading = tag == "h3"
        if self.in_heading:
            self.heading = ""
        if tag == "img" and self.inside and values.get("loading") == "lazy":
            name, _, told = str(values["alt"]).partition(": ")
            self.found.setdefault(self.heading, {})[name] = told

    def handle_endtag(self, tag):
        self.in_heading = self.in_heading and tag != "h3"

    def handle_data(self, data):
        if self.in_heading:
            self.heading += data
        if self.inside:
            self.words.append(data)

    @property
    def all(self) -> dict[str, str]:
        return {name: told for tiles in self.found.values() for name, told in tiles.items()}


def section_of(text: str, name: str) -> str:
    found = re.search(rf'<section id="r0-{name}".*?</section>', text, re.DOTALL)
    assert found is not None
    return found[0]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def same(shown: str, exact: float) -> bool:
    """Is a number the other one to the digits that it is shown with?"""
    digits = len(shown.partition("e")[0].lstrip("-0.").replace(".", "").replace("-", ""))
    return float(shown) == pytest.approx(exact, rel=1.1 * 10 ** (1 - max(digits, 1)), abs=2e-4)


def read_map(folder: Path, cell: str) -> np.ndarray:
    with Image.open(folder / cell) as image:
        return np.asarray(image)


def volume(path: Path) -> np.ndarray:
    return np.asarray(nibabel.load(path).dataobj)


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return 2 * (a & b).sum() / (a.sum() + b.sum())


def tested(split: Path) -> list[str]:
    """The names in a split file that belong to the test part."""
    return [row[next(iter(row))] for row in rows_of(split) if row["split"] == "test"]
