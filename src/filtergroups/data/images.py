"""Images from files: decoded once, kept memory-mapped, normalised and augmented in batches."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from filtergroups.config import ImageData
from filtergroups.data.cache_folder import cache_folder
from filtergroups.data.decoding import decode, decode_values, displayed_size, normalised_array
from filtergroups.data.examples import Batch, Data, DataError, Examples
from filtergroups.tasks import Task
from filtergroups.writing import write_atomically

FORMAT = 3  # of the cache: raise it when decoding changes

Progress = Callable[[str, int, int], None]
Kind = Literal["image", "labels", "values"]
DTYPES: dict[Kind, type[np.generic]] = {"image": np.uint8, "labels": np.uint8, "values": np.float32}


def decoded(
    paths: Sequence[Path],
    size: int,
    channels: int,
    cache: Path | None,
    *,
    kind: Kind = "image",
    like: Sequence[Path] = (),
    progress: Progress | None = None,
) -> tuple[np.ndarray[Any, Any], dict[int, str]]:
    """All images as one memory-mapped array (N × size × size × channels), and what was wrong with which.

    Maps of labels (bytes) or of real values (float32) have one channel and no axis for it; like: the image that each
    map is of, whose size it has.

    The cache is keyed by every file's path, size and time and by the settings, so that it is never stale. It is written
    aside and renamed, under a lock: two processes that start at once decode once.
    """
    shape = (len(paths), size, size, channels) if kind == "image" else (len(paths), size, size)
    folder = cache_folder(cache)
    key = _key([*paths, *like], size, channels, kind)
    array_file, bad_file = folder / f"{key}.npy", folder / f"{key}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{key}.lock"):
        kept = _kept(array_file, bad_file, shape, DTYPES[kind])
        if kept is None:
            make = _maker(paths, size, channels, kind, like)
            _decode_all(make, DTYPES[kind], shape, array_file, bad_file, progress)
            kept = _kept(array_file, bad_file, shape, DTYPES[kind])
    if kept is None:
        raise DataError(f"{folder}: expected to read back the decoded images, found them changed; try again")
    return kept


def _key(paths: Sequence[Path], size: int, channels: int, kind: Kind) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, size, channels, kind]).encode())
    for path in paths:
        try:
            state = path.stat()
            digest.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{path}\0missing\n".encode())
    return digest.hexdigest()[:32]


def _kept(
    array_file: Path, bad_file: Path, shape: tuple[int, ...], dtype: type[np.generic]
) -> tuple[np.ndarray[Any, Any], dict[int, str]] | None:
    try:
        array = np.load(array_file, mmap_mode="r", allow_pickle=False)
        bad = json.loads(bad_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if array.shape != shape or array.dtype != dtype:
        return None
    return array, {int(index): reason for index, reason in bad.items()}


def _maker(
    paths: Sequence[Path], size: int, channels: int, kind: Kind, like: Sequence[Path]
) -> Callable[[int], np.ndarray[Any, Any]]:
    """What makes the n-th entry of the cache."""

    def make(index: int) -> np.ndarray[Any, Any]:
        if like:
            refuse_other_size(paths[index], like[index])
        if kind == "values":
            return decode_values(paths[index], size)
        return decode(paths[index], size, channels, labels=kind == "labels")

    return make


def refuse_other_size(path: Path, image: Path) -> None:
    """Refuse a map that has not the size of its image: no one knows which of its pixels belongs to which."""
    width, height = displayed_size(path)
    try:
        expected = displayed_size(image)
    except DataError:  # which is said of the image
        return
    if (width, height) != expected:
        raise DataError(
            f"expected the size of its image, {expected[0]} × {expected[1]}, found {width} × {height}; "
            "save the map at that size"
        )


def _decode_all(
    make: Callable[[int], np.ndarray[Any, Any]],
    dtype: type[np.generic],
    shape: tuple[int, ...],
    array_file: Path,
    bad_file: Path,
    progress: Progress | None,
) -> None:
    aside = array_file.with_suffix(f".{os.getpid()}.part")
    bad: dict[int, str] = {}
    try:
        array = np.lib.format.open_memmap(aside, mode="w+", dtype=dtype, shape=shape)

        def one(index: int) -> tuple[int, str | None]:
            try:
                array[index] = make(index)
            except DataError as error:
                return index, str(error)
            return index, None

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done, (index, reason) in enumerate(pool.map(one, range(len(array))), start=1):
                if reason is not None:
                    bad[index] = reason
                if progress is not None and (done % 50 == 0 or done == len(array)):
                    progress("decoding images", done, len(array))
        array.flush()
        write_atomically(bad_file, json.dumps(bad).encode())
        os.replace(aside, array_file)
    finally:
        aside.unlink(missing_ok=True)


def channel_statistics(images: np.ndarray[Any, Any], rows: Sequence[int]) -> tuple[list[float], list[float]]:
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
        images: np.ndarray[Any, Any],
        rows: Sequence[int],
        names: Sequence[str],
        labels: dict[str, Tensor | np.ndarray[Any, Any]],
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

    def batch(self, indices: Sequence[int], generator: torch.Generator | None = None) -> Batch:
        rows = self.rows[np.asarray(indices, dtype=np.int64)]
        images = normalised(self.images[rows], self.mean, self.deviation)
        labels = {
            name: torch.from_numpy(np.array(values[rows])).long() if isinstance(values, np.ndarray) else values[rows]
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
    images: np.ndarray[Any, Any],
    bad: dict[int, str],
    names: Sequence[str],
    split: Sequence[str],
    tasks: tuple[Task, ...],
    labels: dict[str, Any],
    class_names: dict[str, list[str]],
    *,
    columns: dict[str, list[str]],
    constants: dict[str, Any] | None,
    parts: Sequence[str],
) -> Data:
    """Images with their labels as parts of a data set; without constants normalisation is learned from `train`.

    bad: what is wrong with which image; such images are left out, or refused as the config says.
    """
    if bad and config.on_bad_image == "refuse":
        index, reason = next(iter(bad.items()))
        raise DataError(
            f"{config.root / names[index]}: {reason} ({len(bad)} such files); "
            'mend them or set data.on_bad_image = "skip"'
        )
    of_part = {part: [row for row, own in enumerate(split) if own == part and row not in bad] for part in parts}
    if constants is None:
        if not of_part.get("train"):
            if unread := [row for row, own in enumerate(split) if own == "train" and row in bad]:
                raise DataError(
                    f"{config.root / names[unread[0]]}: {bad[unread[0]]}, and none of the {len(unread)} images of the "
                    "part 'train' can be read; check data.root"
                )
            raise DataError(f"{config.root}: expected images in the part 'train', found none; check the split")
        mean, deviation = channel_statistics(images, of_part["train"])
        constants = {"mean": mean, "deviation": deviation, "size": config.size, "channels": config.channels}
        constants["classes"] = class_names
    examples: dict[str, Examples] = {
        part: ImageExamples(
            images, rows, names, labels, constants["mean"], constants["deviation"],
            flip=config.flip, shift=config.shift, columns=columns,
        )
        for part, rows in of_part.items() if rows
    }  # fmt: skip
    return Data(tasks, config.channels, 2, examples, constants, names=class_names)
