"""One task as two: what a network shares when everything could be shared."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from filtergroups.data.examples import Batch, Data, DataError, Examples, Volume, Volumes
from filtergroups.data.fingerprints import Fingerprints

AGAIN = "_again"


def twice(data: Data, name: str) -> Data:
    """The same examples with one of their tasks only, and that task again under a second name."""
    task = next((task for task in data.tasks if task.name == name), None)
    if task is None:
        raise DataError(f"data.twice: expected one of the tasks {[t.name for t in data.tasks]}, found '{name}'")
    return replace(
        data,
        tasks=(task, replace(task, name=name + AGAIN)),
        parts={part: ExamplesTwice(examples, name) for part, examples in data.parts.items()},
        volumes={part: VolumesTwice(volumes, name) for part, volumes in data.volumes.items()},
        names={key: data.names[name] for key in (name, name + AGAIN) if name in data.names},
    )


def _both(labels: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {name: labels[name], name + AGAIN: labels[name]} if name in labels else {}


class ExamplesTwice(Examples):
    """Examples whose labels of one task are given twice."""

    def __init__(self, examples: Examples, task: str) -> None:
        self.examples, self.task = examples, task

    def __len__(self) -> int:
        return len(self.examples)

    def name(self, index: int) -> str:
        return self.examples.name(index)

    def batch(self, indices: Sequence[int], generator: torch.Generator | None = None) -> Batch:
        return self._twice(self.examples.batch(indices, generator))

    def unaugmented(self, indices: Sequence[int], generator: torch.Generator) -> Batch:
        return self._twice(self.examples.unaugmented(indices, generator))

    def labels_of(self, task: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        return self.examples.labels_of(self.task)

    def fingerprints(self) -> Fingerprints:
        return self.examples.fingerprints()

    def subgroup(self, column: str) -> list[str]:
        return self.examples.subgroup(column)

    def _twice(self, batch: Batch) -> Batch:
        return Batch(batch.images, _both(batch.labels, self.task), _both(batch.masks, self.task))


class VolumesTwice(Volumes):
    """Whole scans whose labels of one task are given twice."""

    def __init__(self, volumes: Volumes, task: str) -> None:
        self.volumes, self.task = volumes, task

    def __len__(self) -> int:
        return len(self.volumes)

    def __iter__(self) -> Iterator[Volume]:
        for volume in self.volumes:
            yield replace(volume, labels=_both(volume.labels, self.task), masks=_both(volume.masks, self.task))
