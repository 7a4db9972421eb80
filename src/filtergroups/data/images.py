"""Images of a data set: normalised and augmented in batches."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from filtergroups.config import ImageData
from filtergroups.data.decoding import normalised_array
from filtergroups.data.examples import Batch, Data, DataError, Examples
from filtergroups.data.findings import Findings
from filtergroups.data.fingerprints import IMAGE, Fingerprints, checksums, numbers_of
from filtergroups.data.rows import RowFile
from filtergroups.tasks import Task

Progress = Callable[[str, int, int], None]
Pixels = np.ndarray[Any, Any] | RowFile  # N × size × size × channels bytes


def channel_statistics(images: Pixels, rows: Sequence[int]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation by channel over some images, of values from 0 to 1."""
    total, squares, count = 0.0, 0.0, 0
    for start in range(0, len(rows), 1024):
        values = images[np.sort(np.asarray(rows[start : start + 1024]))].reshape(-1, images.shape[-1]) / 255.0
        total, squares, count = total + values.sum(0), squares + (values**2).sum(0), count + len(values)
    mean = np.asarray(total) / count
    deviation = np.sqrt(np.maximum(np.asarray(squares) / count - mean**2, 1e-8))
    return mean.tolist(), deviation.tolist()


def normalised(images: np.ndarray[Any, Any], mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """N × size × size × channels bytes as N × channels × size × size, zero mean and unit variance by channel."""
    return torch.from_numpy(normalised_array(images, mean, deviation))


class ImageExamples(Examples):
    """Images of one part with their labels."""

    def __init__(
        self,
        images: Pixels,
        rows: Sequence[int],
        names: Sequence[str],
        labels: dict[str, Tensor],
        mean: Sequence[float],
        deviation: Sequence[float],
        *,
        flip: bool = False,
        shift: float = 0.0,
        columns: dict[str, list[str]] | None = None,
    ) -> None:
        self.images, self.rows, self.names, self.labels = images, np.asarray(rows, dtype=np.int64), names, labels
        self.mean, self.deviation, self.flip, self.shift = mean, deviation, flip, shift
        self.columns = columns or {}

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.names[int(self.rows[index])]

    def subgroup(self, column: str) -> list[str]:
        if column not in self.columns:
            raise DataError(f"no column '{column}' to report by; there are {sorted(self.columns)}")
        return [self.columns[column][row] for row in self.rows]

    def fingerprints(self) -> Fingerprints:
        images = self.images
        kept = images.checksums[self.rows].astype(np.int64) if isinstance(images, RowFile) else None
        pixels = checksums(images[[row]] for row in self.rows) if kept is None else kept
        labels = {f"label/{name}": numbers_of(values[self.rows]) for name, values in self.labels.items()}
        return Fingerprints([self.names[row] for row in self.rows], {IMAGE: pixels, **labels})

    def labels_of(self, task: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        for start in range(0, len(self.rows), 1024):
            yield self.labels[task][self.rows[start : start + 1024]], None

    def batch(self, indices: Sequence[int], generator: torch.Generator | None = None) -> Batch:
        rows = self.rows[np.asarray(indices, dtype=np.int64)]
        images = normalised(self.images[rows], self.mean, self.deviation)
        labels = {
            name: values[rows] if values.is_floating_point() else values[rows].long()
            for name, values in self.labels.items()
        }
        if generator is not None:
            images, labels = self._augmented(images, labels, generator)
        return Batch(images, labels)

    def _augmented(
        self, images: Tensor, labels: dict[str, Tensor], generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        maps = {name: label for name, label in labels.items() if label.ndim > 1}
        if self.flip:
            mirrored = torch.rand(len(images), generator=generator) < 0.5
            images[mirrored] = images[mirrored].flip(-1)
            for label in maps.values():
                label[mirrored] = label[mirrored].flip(-1)
        reach = round(self.shift * images.shape[-1])
        if reach:
            offsets = torch.randint(-reach, reach + 1, (len(images), 2), generator=generator).tolist()
            for n, (down, right) in enumerate(offsets):
                images[n] = _shifted(images[n], down, right, 0.0)
                for label in maps.values():
                    label[n] = _shifted(label[n], down, right, -1 if not label.is_floating_point() else float("nan"))
        return images, labels


def _shifted(tensor: Tensor, down: int, right: int, fill: float) -> Tensor:
    """Moved by whole pixels; what comes in from outside is `fill`."""
    moved = torch.full_like(tensor, fill)
    height, width = tensor.shape[-2:]
    to_rows, from_rows = slice(max(down, 0), height + min(down, 0)), slice(max(-down, 0), height + min(-down, 0))
    to_columns, from_columns = (
        slice(max(right, 0), width + min(right, 0)),
        slice(max(-right, 0), width + min(-right, 0)),
    )
    moved[..., to_rows, to_columns] = tensor[..., from_rows, from_columns]
    return moved


def with_normalisation(data: Data, constants: dict[str, Any]) -> Data:
    """The same images, normalised as a run did that had learned how from others."""
    taken = {key: constants[key] for key in ("mean", "deviation")}
    for part in data.parts.values():
        assert isinstance(part, ImageExamples)
        part.mean, part.deviation = taken["mean"], taken["deviation"]
    return replace(data, constants={**data.constants, **taken})


def image_data(
    config: ImageData,
    images: Pixels,
    bad: Mapping[int, Sequence[str]],
    outside: Collection[int],
    names: Sequence[str],
    split: Sequence[str],
    tasks: tuple[Task, ...],
    labels: dict[str, Any],
    class_names: dict[str, list[str]],
    *,
    columns: dict[str, list[str]],
    constants: dict[str, Any] | None,
    parts: Sequence[str],
    findings: Findings,
) -> Data:
    """Images with their labels as parts of a data set; without constants normalisation is learned from `train`.

    bad: all that is wrong with which image and its maps; such images are left out, which is a problem or none as the
    config says.
    outside: images that are left out as well, whose problem is known.
    """
    say = findings.problem if config.on_bad_image == "refuse" else findings.warning
    remedy = 'mend them or set data.on_bad_image = "skip"' if config.on_bad_image == "refuse" else "left out"
    for row, reasons in bad.items():
        for reason in reasons:
            say(reason, names[row], remedy=remedy)
    without = {*bad, *outside}
    of_part = {part: [row for row, own in enumerate(split) if own == part and row not in without] for part in parts}
    if constants is None:
        constants = {"size": config.size, "channels": config.channels, "classes": class_names}
        if train := of_part.get("train"):
            constants["mean"], constants["deviation"] = channel_statistics(images, train)
        else:
            _say_why_nothing_is_left(config, bad, names, split, findings)
            constants["mean"], constants["deviation"] = [0.0] * config.channels, [1.0] * config.channels
    examples: dict[str, Examples] = {
        part: ImageExamples(
            images, rows, names, labels, constants["mean"], constants["deviation"],
            flip=config.flip, shift=config.shift, columns=columns,
        )
        for part, rows in of_part.items() if rows
    }  # fmt: skip
    return Data(tasks, config.channels, 2, examples, constants, names=class_names)


def _say_why_nothing_is_left(
    config: ImageData, bad: Mapping[int, Sequence[str]], names: Sequence[str], split: Sequence[str], findings: Findings
) -> None:
    """Without training images there is nothing to learn normalisation from, nor anything else."""
    unread = [row for row, own in enumerate(split) if own == "train" and row in bad]
    if unread:
        findings.problem(
            f"{config.root / names[unread[0]]}: {bad[unread[0]][0]}, and none of the {len(unread)} images of the "
            "part 'train' can be read; check data.root"
        )
    elif "train" not in split:
        findings.problem(f"{config.root}: expected images in the part 'train', found none; check the split")
