"""The cells of a table of predictions, for a run's network and an exported file alike; nothing here needs torch."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from filtergroups.data.errors import DataError
from filtergroups.listing import prepare_folder
from filtergroups.naming import path_cell
from filtergroups.writing import write_atomically

Array = np.ndarray[Any, Any]
Cells = dict[str, str]
READABLE = 40  # characters of an image's name that stay in the name of its map


def real_cells(name: str, value: float, deviation: float | None, low: float | None, high: float | None) -> Cells:
    """A real value, its deviation over the passes and its 90 % interval, as far as they are known."""
    cells = {name: f"{value:.6g}"}
    if deviation is not None:
        cells[f"{name}_std"] = f"{deviation:.4g}"
    if low is not None and high is not None:
        cells |= {f"{name}_low": f"{low:.6g}", f"{name}_high": f"{high:.6g}"}
    return cells


def class_cells(
    name: str,
    labels: Sequence[str],
    value: int,
    probabilities: Sequence[float],
    entropy: float,
    mutual_information: float | None,
) -> Cells:
    """A class, how sure it is, and the probability of each."""
    cells = {name: labels[value], f"{name}_entropy": f"{entropy:.4g}"}
    if mutual_information is not None:
        cells[f"{name}_mutual_information"] = f"{mutual_information:.4g}"
    return cells | {f"{name}_p_{label}": f"{p:.4g}" for label, p in zip(labels, probabilities, strict=True)}


class Maps:
    """Answers at every pixel: a folder beside the table, named like it, with a file for each map of each image.

    Maps of classes are PNG whose pixels are the classes, as training reads them; real values are TIFF of 32 bits. They
    have the size that the network sees.
    """

    def __init__(self, table: Path, tasks: Sequence[str], force: bool) -> None:
        self.folder = table.parent / f"{table.stem}_maps"
        self.names: dict[str, str] = {}  # folder by task: each has its own, however alike their names are
        for task in tasks:
            taken = readable(task) in self.names.values()
            self.names[task] = f"{readable(task)}_{len(self.names)}" if taken else readable(task)
        if self.folder.exists() and not force:
            raise DataError(f"{self.folder}: expected a new folder, found one; use --force to replace its files")
        prepare_folder(self.folder)

    def cells(
        self, task: str, number: int, file: Path, maps: Mapping[str, Array], labels: Sequence[str] | None
    ) -> Cells:
        """Write an image's maps of one task; the cells name the first and sum it up.

        maps: by the end of the file's name, the value first. labels: of the classes; None for real values.
        """
        start = f"{self.names[task]}/{number:06d}_{readable(file.stem)}"
        written = {end: self._write(f"{start}{end}", values) for end, values in maps.items()}
        cells: Cells = {task: path_cell(written[""])}
        value = maps[""]
        if labels is None:
            cells[f"{task}_mean"] = f"{value.mean(dtype=np.float64):.6g}"
        else:
            shares = np.bincount(value.ravel(), minlength=len(labels)) / value.size
            cells |= {f"{task}_share_{label}": f"{share:.4g}" for label, share in zip(labels, shares, strict=True)}
        for end in ("_entropy", "_std"):
            if end in maps:
                cells[f"{task}_mean{end}"] = f"{maps[end].mean(dtype=np.float64):.4g}"
        return cells

    def _write(self, name: str, values: Array) -> Path:
        """The path as the table names it: from the table's own folder."""
        from PIL import Image

        content = io.BytesIO()
        if np.issubdtype(values.dtype, np.integer):
            name += ".png"
            Image.fromarray(values.astype(np.uint8 if values.max() < 256 else np.uint16)).save(content, "png")
        else:
            name += ".tif"
            layers = values if values.ndim == 3 else values[None]  # probabilities: a page a class
            first, *others = (Image.fromarray(layer.astype(np.float32)) for layer in layers)
            first.save(content, "tiff", save_all=True, append_images=others)
        write_atomically(self.folder / name, content.getvalue(), below=self.folder)
        return Path(self.folder.name) / name


def readable(name: str) -> str:
    """A name that is one plain part of a path, whatever it was."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)[:READABLE]
