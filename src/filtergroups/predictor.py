"""How a run predicts: its checkpoint, passes, norms, gates, temperature, seed and corrections, decided in one place.

`evaluate`, `predict`, `calibrate`, `report`, `figures`, `export` and the end of a training ask here: all speak of the
same network, and an image has the same answer wherever it is shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from filtergroups.answers import Answer, answer
from filtergroups.certainty import in_words, passes_in_words
from filtergroups.correction import Correction, load_corrections
from filtergroups.data.examples import Batch, Examples
from filtergroups.measuring import batches_of, predicted
from filtergroups.network import GroupedNetwork
from filtergroups.restored import Restored
from filtergroups.statistics import Kind, Step, use_recalibrated
from filtergroups.tasks import Classification, ImageRegression, Prediction, Segmentation, Task
from filtergroups.volumes import predict_volume

PASSES = 50  # sampled passes of a prediction, as in the paper
Norms = Literal["batch", "running", "recalibrated"]
NORMS = {"batch": "norms of the batch", "running": "running norms", "recalibrated": "recalibrated norms"}


@dataclass(frozen=True)
class Predictor:
    """A run's network as it predicts."""

    restored: Restored
    samples: int  # passes; 0: one of the mode network
    norms: Norms
    corrections: dict[str, Correction]  # by task, where `calibrate` fitted one for this checkpoint
    warnings: list[str]  # of norms that are not those that were asked for
    stale: str | None  # why a correction that is there is not used
    device: torch.device | str = "cpu"

    @property
    def network(self) -> GroupedNetwork:
        return self.restored.network

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.restored.tasks

    @property
    def has_spread(self) -> bool:
        return self.samples > 1

    @property
    def passes(self) -> str:
        """In words."""
        return passes_in_words(self.samples)

    @property
    def notes(self) -> list[str]:
        """What a reader of its numbers must know."""
        if not self.corrections or self.norms == "recalibrated":
            return self.warnings
        fitted = f"corrections were fitted with recalibrated norms, as `predict` has them, not {NORMS[self.norms]}"
        return [*self.warnings, fitted]

    @property
    def lacks_intervals(self) -> bool:
        """Are there real values of which no interval is known, as one pass has no spread?"""
        reals = [task.name for task in self.tasks if not has_classes(task)]
        return not self.has_spread and any(name not in self.corrections for name in reals)

    @property
    def certainty(self) -> str:
        """In words: what its intervals and probabilities are worth, and how to get better ones."""
        fixed = not self.network.passes_differ
        command = f"filtergroups calibrate {self.restored.run.path}{'' if fixed or self.samples else ' --samples 0'}"
        classes = {task.name: has_classes(task) for task in self.tasks}
        return in_words(
            classes, self.corrections, passes=self.samples, fixed=fixed, remedy=f"`{command}`", stale=self.stale or ""
        )

    def images(self, images: Tensor, precision: float | None = None) -> dict[str, Prediction]:
        """Predict a batch of normalised images: none depends on the others, as each batch has the same gates."""
        generator = torch.Generator().manual_seed(self.restored.config.seed)
        found = self.network.predict(
            images.to(self.device), self.samples, generator, temperature=self.restored.temperature, precision=precision
        )
        return {name: prediction.to("cpu") for name, prediction in found.items()}

    def examples(self, part: Examples, most: int = 0) -> Iterator[tuple[list[int], Batch, dict[str, Prediction]]]:
        """A part's examples batch by batch, in a fixed order, with their predictions; most: no more than so many."""
        size = self.restored.config.training.batch_size
        if self.norms == "batch":
            # The paper's way, as training validates: norms and gates are those of a batch that stays together.
            yield from predicted(
                self.network, part, batch_size=size, samples=self.samples, seed=self.restored.config.seed,
                temperature=self.restored.temperature, statistics="batch", most=most, device=self.device,
            )  # fmt: skip
            return
        for indices in batches_of(part, size, most):
            batch = part.batch(indices)
            yield indices, batch, self.images(batch.images)

    def volume(self, image: Tensor, precision: float | None = None) -> dict[str, Prediction]:
        """Predict a preprocessed scan (channels × space)."""
        return predict_volume(
            self.network, image, **self.restored.windows, samples=self.samples, seed=self.restored.config.seed,
            temperature=self.restored.temperature, statistics="batch" if self.norms == "batch" else "running",
            precision=precision, device=self.device,
        )  # fmt: skip

    def answer(self, task: Task, prediction: Prediction, axis: int = 1) -> Answer:
        """What is said of a task's prediction."""
        return answer(prediction, self.corrections.get(task.name), self.samples, axis)


def has_classes(task: Task) -> bool:
    """Does it answer with classes, not with real values?"""
    return isinstance(task, Classification | Segmentation)


def is_map(task: Task) -> bool:
    """Does it answer at every pixel or voxel?"""
    return isinstance(task, Segmentation | ImageRegression)


def predictor_of(
    restored: Restored,
    samples: int = PASSES,
    *,
    norms: Norms | None = None,
    device: torch.device | str = "cpu",
    progress: Step | None = None,
) -> Predictor:
    """How a restored network predicts; it is prepared for that.

    samples: Monte Carlo passes, taken where they differ; 0: the mode network. norms: None takes statistics recalibrated
    over the training data, by which a prediction depends on no other image; running ones where that is impossible.
    """
    if samples < 0:
        raise ValueError(f"samples is 0 (the mode network) or more, found {samples}")
    if norms not in (None, *NORMS):
        raise ValueError(f"statistics is one of {list(NORMS)}, found {norms!r}; choose one")
    samples = restored.passes(samples)
    warnings = []
    chosen: Norms = norms or "recalibrated"
    restored.network.to(device)
    if chosen == "recalibrated" and (warning := use_recalibrated(restored, samples, progress)):
        chosen = "running"
        warnings.append(warning)
    if chosen != "batch":
        # A gate for each example would make a prediction depend on its place in the batch.
        restored.network.per_example = False
    kind: Kind = "sampled" if samples else "mode"
    corrections, stale = load_corrections(restored.run, kind, restored.progress.step)
    return Predictor(restored, samples, chosen, corrections, warnings, stale, device)
