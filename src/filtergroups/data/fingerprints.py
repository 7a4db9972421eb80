"""What examples are, in a few bytes each: is every image and label what a training saw, and which is not?"""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filtergroups.naming import shown

IMAGE = "image"  # beside the labels of tasks, which are called label/TASK
VOXELS = "voxel size"  # of scans: patches are turned in mm
SHOWN = 3  # names of a message


@dataclass(frozen=True)
class Fingerprints:
    """The examples of one part, in their order: what the user calls each, and a number for its image and its labels."""

    names: list[str]
    numbers: dict[str, NDArray[np.int64]]

    def tensors(self) -> dict[str, Tensor]:
        """To be kept in a checkpoint."""
        names = np.frombuffer(json.dumps(self.names).encode(), np.uint8)
        kept = {"names": torch.from_numpy(names.copy())}
        return kept | {kind: torch.from_numpy(numbers) for kind, numbers in self.numbers.items()}

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> "Fingerprints":
        """What `tensors` made; a checkpoint may be anybody's, so they are checked (ValueError, KeyError)."""
        names = json.loads(tensors["names"].numpy().tobytes())
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("names of examples that are no list of texts")
        numbers = {kind: tensor.numpy() for kind, tensor in tensors.items() if kind != "names"}
        for kind, of in numbers.items():
            if of.shape != (len(names),) or of.dtype != np.int64:
                raise ValueError(f"fingerprints '{kind}' that are not one number for each of {len(names)} examples")
        return Fingerprints(names, numbers)


def numbers_of(values: Tensor) -> NDArray[np.int64]:
    """One number for each example of a tensor: the value itself where it is one, else a checksum."""
    array = np.ascontiguousarray(values.detach().cpu().numpy())
    if array.ndim == 1:
        return array.view(f"i{array.itemsize}").astype(np.int64)
    return np.array([zlib.crc32(row.tobytes()) for row in array], np.int64)


def changes_of(part: str, before: Fingerprints, now: Fingerprints) -> Iterator[str]:
    """What of a part is not what it was, a line a kind."""
    was, there = Counter(before.names), Counter(now.names)
    for kind, names in (("gone", was - there), ("new", there - was)):
        if count := names.total():
            verb = "is" if count == 1 else "are"
            yield f"{_rows(count)} of the part '{part}' {verb} {kind}: {_listed(sorted(names.elements()))}"
    if was == there and before.names != now.names:
        yield f"the rows of the part '{part}' are in another order"
    if before.names == now.names:
        rows = np.arange(len(now.names))
        at = rows
    else:  # of rows of the same name, the first
        first = {name: row for row, name in reversed(list(enumerate(before.names)))}
        rows = np.array([row for row, name in enumerate(now.names) if name in first], dtype=np.int64)
        at = np.array([first[now.names[row]] for row in rows], dtype=np.int64)
    for kind in now.numbers:
        if kind in before.numbers:
            changed = rows[now.numbers[kind][rows] != before.numbers[kind][at]]
            if len(changed):
                task = kind.removeprefix("label/")
                what = f"the {kind}" if task == kind else f"the label of task '{task}'"
                of = f"{len(changed)} of {len(now.names)} rows of the part '{part}'"
                yield f"{what} changed in {of}: {_listed([now.names[row] for row in changed])}"


def checksums(rows: Iterable[NDArray[Any]]) -> NDArray[np.int64]:
    return np.array([zlib.crc32(np.ascontiguousarray(row).tobytes()) for row in rows], np.int64)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(f"'{shown(name)}'" for name in names[:SHOWN])
    return some + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
