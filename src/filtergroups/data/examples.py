"""What training and evaluation see of any data set."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from filtergroups.data.errors import DataError
from filtergroups.data.fingerprints import Fingerprints
from filtergroups.tasks import Task

__all__ = ["SELECTION", "SPLITS", "Batch", "Data", "DataError", "Examples", "Volume", "Volumes"]

SPLITS = ("train", "validation", "test")  # parts that a split file names
SELECTION = "selection"  # the part that is set aside of the training part, where a config asks for one


@dataclass(frozen=True)
class Batch:
    """Images and, by task, labels and (for some) masks of where they hold."""

    images: Tensor
    labels: dict[str, Tensor]
    masks: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> "Batch":
        def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}

        return Batch(self.images.to(device, non_blocking=True), moved(self.labels), moved(self.masks))

    def chosen(self, indices: Tensor) -> "Batch":
        """Some of the examples."""
        return Batch(
            self.images[indices],
            {name: label[indices] for name, label in self.labels.items()},
            {name: mask[indices] for name, mask in self.masks.items()},
        )


class Examples(ABC):
    """One part of a data set (train, selection, validation or test), by index."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str:
        """What the user calls this example: a file's name, a patient."""

    @abstractmethod
    def batch(self, indices: Sequence[int], generator: torch.Generator | None = None) -> Batch:
        """Some examples; with a generator they are augmented (and, for patches, placed) by its draws."""

    def unaugmented(self, indices: Sequence[int], generator: torch.Generator) -> Batch:
        """Some examples as they are; patches are placed by the generator, but neither scaled nor turned."""
        return self.batch(indices)

    def labels_of(self, task: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The labels of a task, some examples at a time, and masks of where they hold."""
        for start in range(0, len(self), 256):
            batch = self.batch(range(start, min(start + 256, len(self))))
            yield batch.labels[task], batch.masks.get(task)

    @abstractmethod
    def fingerprints(self) -> Fingerprints:
        """What the examples are, to tell later whether they are the same; of patches, the scans."""

    def subgroup(self, column: str) -> list[str]:
        """For each example its value in a column of the user's table, to report results by."""
        raise DataError(f"these data have no column '{column}' to report results by")


@dataclass(frozen=True)
class Volume:
    """A whole scan, preprocessed as in training; arrays are channels × space or space."""

    name: str
    image: Tensor  # channels × space
    labels: dict[str, Tensor]  # by task, space; in the label's units
    masks: dict[str, Tensor]  # by task, space; 1 where the label holds
    affine: np.ndarray[Any, Any]  # 4 × 4, of the preprocessed grid


class Volumes(ABC):
    """The whole scans of one part, loaded one at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Volume]: ...


@dataclass(frozen=True)
class Data:
    """A data set as a run needs it."""

    tasks: tuple[Task, ...]
    channels: int
    spatial_dims: int
    parts: dict[str, Examples]
    constants: dict[str, Any]  # JSON values: what preprocessing learned from the training part
    volumes: dict[str, Volumes] = field(default_factory=dict)  # for scans: the same parts as whole volumes
    names: dict[str, list[str]] = field(default_factory=dict)  # task -> names of its classes, where there are any
