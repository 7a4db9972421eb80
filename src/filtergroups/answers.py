"""What is said of a prediction: the value, and whatever is known of its uncertainty, corrected where that was fitted.

Every number that a user sees of one image or scan comes from here; only what is measured over many looks deeper.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from filtergroups.correction import Correction, half_width, tempered
from filtergroups.tasks import Prediction


@dataclass(frozen=True)
class Answer:
    """One task's answer by example (and position), in the label's units. None: nothing is known of it.

    One pass has no deviation, and no mutual information: it has nobody to disagree with.
    """

    value: Tensor
    deviation: Tensor | None = None  # of real values: over the passes
    low: Tensor | None = None  # ends of the 90 % interval
    high: Tensor | None = None
    probabilities: Tensor | None = None  # of classes
    entropy: Tensor | None = None  # of these probabilities, in nats
    mutual_information: Tensor | None = None  # of the passes, before any correction

    def of(self, example: int) -> "Answer":
        """That of one example."""
        first, *others = (getattr(self, field.name) for field in fields(self))
        return Answer(first[example], *(None if values is None else values[example] for values in others))


def answer(prediction: Prediction, correction: Correction | None, passes: int, axis: int = 1) -> Answer:
    """What is said of a prediction by so many passes (0: one of the mode network); axis: that of the classes."""
    several = passes > 1
    if prediction.probabilities is None:
        spread = prediction.spread if several else None
        half = half_width(spread, correction)
        if half is None:
            return Answer(prediction.value, spread)
        return Answer(prediction.value, spread, prediction.value - half, prediction.value + half)
    probabilities, entropy = prediction.probabilities, prediction.spread
    if correction is not None:
        probabilities = tempered(probabilities, correction.value, axis)
        entropy = -torch.xlogy(probabilities, probabilities).sum(axis)
    information = prediction.mutual_information if several else None
    return Answer(prediction.value, None, None, None, probabilities, entropy, information)
