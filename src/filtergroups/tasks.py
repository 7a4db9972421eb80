"""What is predicted: a task knows its head, its loss, its metrics, and how several passes combine.

Labels that are missing (NaN, a negative class, a mask of 0) drop out of the task's mean.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from torchmetrics import Metric

POINTWISE = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@dataclass(frozen=True)
class Prediction:
    """A task's prediction: value and spread by example (and position), in the label's units.

    Real values: mean and standard deviation over the passes. Classes: the mode of the passes' classes and the
    predictive entropy in nats; then also the mean class probabilities (classes in axis 1) and the mutual information.
    After one pass a standard deviation and a mutual information are 0, which says nothing: no two passes were compared.
    """

    value: Tensor
    spread: Tensor
    probabilities: Tensor | None = None
    mutual_information: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Prediction":
        """The same change made to every field."""
        more = (None if field is None else change(field) for field in (self.probabilities, self.mutual_information))
        return Prediction(change(self.value), change(self.spread), *more)

    def chosen(self, indices: Tensor) -> "Prediction":
        """Some of the examples."""
        return self.each(lambda field: field[indices])

    def to(self, device: torch.device | str) -> "Prediction":
        return self.each(lambda field: field.to(device))


class Accumulator(ABC):
    """Collects the outputs of several passes in memory that does not grow with them."""

    @abstractmethod
    def add(self, output: Tensor) -> None: ...

    @abstractmethod
    def prediction(self) -> Prediction: ...

    @abstractmethod
    def error(self) -> float:
        """The largest standard error of the estimate, of the network's output or of a class probability."""


class RealAccumulator(Accumulator):
    """Running mean and standard deviation (Welford)."""

    def __init__(self, scale: float, offset: float) -> None:
        self.scale, self.offset = scale, offset
        self.count = 0

    def add(self, output: Tensor) -> None:
        self.count += 1
        if self.count == 1:
            self.mean, self.squares = output.clone(), torch.zeros_like(output)
            return
        step = output - self.mean
        self.mean += step / self.count
        self.squares += step * (output - self.mean)

    def prediction(self) -> Prediction:
        variance = self.squares / max(self.count - 1, 1)
        value, spread = (self.mean - self.offset) * self.scale, variance.sqrt() * abs(self.scale)
        return Prediction(value.squeeze(1), spread.squeeze(1))

    def error(self) -> float:
        return standard_error(self.squares, self.count)


class ClassAccumulator(Accumulator):
    """Votes, mean probabilities (Welford, as for real values) and mean entropy."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.count = 0

    def add(self, output: Tensor) -> None:
        probabilities = output.softmax(1)
        votes = F.one_hot(output.argmax(1), self.classes).movedim(-1, 1).to(output.dtype)
        entropy = class_entropy(probabilities)
        self.count += 1
        if self.count == 1:
            self.mean, self.squares = probabilities, torch.zeros_like(probabilities)
            self.votes, self.entropy = votes, entropy
            return
        step = probabilities - self.mean
        self.mean = self.mean + step / self.count
        self.squares += step * (probabilities - self.mean)
        self.votes += votes
        self.entropy += entropy

    def prediction(self) -> Prediction:
        spread = class_entropy(self.mean)
        # Where two classes have equally many votes, the more probable one is taken.
        value = (self.votes + self.mean).argmax(1)
        return Prediction(value, spread, self.mean, (spread - self.entropy / self.count).clamp_min(0))

    def error(self) -> float:
        return standard_error(self.squares, self.count)


def precise(accumulators: Mapping[str, Accumulator], precision: float | None) -> bool:
    """Is every standard error at most this, so that further passes are not needed? Never without a precision."""
    return precision is not None and max(one.error() for one in accumulators.values()) <= precision


def standard_error(squares: Tensor, count: int) -> float:
    """The largest √(variance / count), from the sum of squared deviations; unknown after one pass."""
    return float("inf") if count < 2 else (squares.max() / (count - 1) / count).sqrt().item()


def class_entropy(probabilities: Tensor) -> Tensor:
    """Entropy over the class axis 1."""
    return -torch.xlogy(probabilities, probabilities).sum(1)


@dataclass(frozen=True)
class Task(ABC):
    """Base of all tasks; see `Regression`, `Classification`, `Segmentation` and `ImageRegression`."""

    name: str

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many values the head gives by example (and position)."""

    @abstractmethod
    def head(self, features: int, spatial_dims: int, *, hidden: int | None = None) -> nn.Module:
        """The usual head on features with so many channels and spatial axes."""

    @abstractmethod
    def check(self, output: Tensor, label: Tensor, mask: Tensor | None) -> None:
        """Refuse labels that do not fit the output, before anything is computed."""

    @abstractmethod
    def loss(self, output: Tensor, label: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mean over the labelled examples; 0 where there is none."""

    @abstractmethod
    def accumulator(self) -> Accumulator: ...

    @abstractmethod
    def metrics(self) -> "dict[str, Metric]":
        """Fresh metrics by name; feed each with `measured`."""

    @abstractmethod
    def known(self, label: Tensor, mask: Tensor | None = None) -> Tensor:
        """Where there is a label: true or false, in the label's shape."""

    @abstractmethod
    def measured(self, prediction: Prediction, label: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predicted and true values of what is labelled, flat, as the metrics take them."""

    def _shape_error(self, expected: tuple[Any, ...], label: Tensor) -> ValueError:
        return ValueError(
            f"labels of task '{self.name}' have shape {expected}, found {tuple(label.shape)}; reshape them"
        )

    def _check_output(self, output: Tensor) -> None:
        if output.ndim < 2 or output.shape[1] != self.outputs:
            raise ValueError(
                f"the head of task '{self.name}' gives batch × {self.outputs} (× space), found {tuple(output.shape)}; "
                "mend the head"
            )

    def _check_mask(self, label: Tensor, mask: Tensor | None) -> None:
        if mask is not None and mask.shape != label.shape:
            raise ValueError(
                f"the mask of task '{self.name}' has the labels' shape {tuple(label.shape)}, "
                f"found {tuple(mask.shape)}; give one value a label"
            )


@dataclass(frozen=True)
class _Real(Task):
    """Real values; the network learns label / scale + offset, and predictions come back in the label's units."""

    scale: float = 1.0
    offset: float = 0.0
    unit: str = ""  # of the label: years, HU

    def __post_init__(self) -> None:
        if not self.scale:
            raise ValueError(f"the scale of task '{self.name}' is not 0, found {self.scale}; use 1 for no scaling")

    @property
    def outputs(self) -> int:
        return 1

    def check(self, output: Tensor, label: Tensor, mask: Tensor | None) -> None:
        self._check_output(output)
        shape = (output.shape[0], *output.shape[2:])
        if tuple(label.shape) != shape:
            raise self._shape_error(shape, label)
        if label.dtype == torch.bool or label.is_complex():
            raise ValueError(f"labels of task '{self.name}' are real numbers, found {label.dtype}; convert them")
        self._check_mask(label, mask)

    def loss(self, output: Tensor, label: Tensor, mask: Tensor | None = None) -> Tensor:
        """Root mean squared error over what is labelled, on label / scale + offset."""
        label = label.to(output.dtype)
        known = _known(label, mask)
        target = torch.where(known, label / self.scale + self.offset, 0)
        squares = torch.where(known, (output.squeeze(1) - target).square(), 0)
        # Divide by the labelled count: an unlabelled example must not dilute its task.
        mean = squares.sum() / known.sum().clamp_min(1)
        # The root's gradient is infinite at 0, which is also where there is no label.
        return mean.clamp_min(1e-12).sqrt() * (mean > 0)

    def accumulator(self) -> Accumulator:
        return RealAccumulator(self.scale, self.offset)

    def known(self, label: Tensor, mask: Tensor | None = None) -> Tensor:
        return _known(label, mask)

    def measured(self, prediction: Prediction, label: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        known = _known(label, mask)
        return prediction.value[known], label[known].to(prediction.value.dtype)


def _known(label: Tensor, mask: Tensor | None) -> Tensor:
    known = ~label.isnan() if label.is_floating_point() else torch.ones_like(label, dtype=torch.bool)
    return known if mask is None else known & mask.bool()


@dataclass(frozen=True)
class Regression(_Real):
    """One real value an image: RMSE, mean absolute error. The paper's age is `Regression("age", scale=100)`."""

    def head(self, features: int, spatial_dims: int, *, hidden: int | None = None) -> nn.Module:
        return dense_head(features, self.outputs, spatial_dims, hidden)

    def metrics(self) -> "dict[str, Metric]":
        from torchmetrics import MeanAbsoluteError

        return {"mae": MeanAbsoluteError()}


@dataclass(frozen=True)
class ImageRegression(_Real):
    """One real value a pixel or voxel: RMSE, PSNR. The paper's CT is `ImageRegression("ct", scale=1024, offset=1)`."""

    peak: float | None = None  # the range of values for PSNR; None: what the scale makes 1

    def head(self, features: int, spatial_dims: int, *, hidden: int | None = None) -> nn.Module:
        return pointwise_head(self.name, features, self.outputs, spatial_dims)

    def metrics(self) -> "dict[str, Metric]":
        from torchmetrics import MeanAbsoluteError
        from torchmetrics.image import PeakSignalNoiseRatio

        return {"psnr": PeakSignalNoiseRatio(data_range=self.peak or abs(self.scale)), "mae": MeanAbsoluteError()}


@dataclass(frozen=True)
class _Classes(Task):
    """Classes 0 … classes − 1; a negative label is missing."""

    classes: int = 2

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ValueError(f"task '{self.name}' has at least 2 classes, found {self.classes}; binary is 2")

    @property
    def outputs(self) -> int:
        return self.classes

    def check(self, output: Tensor, label: Tensor, mask: Tensor | None) -> None:
        self._check_output(output)
        shape = (output.shape[0], *output.shape[2:])
        if tuple(label.shape) != shape:
            raise self._shape_error(shape, label)
        if label.is_floating_point() or label.dtype == torch.bool:
            raise ValueError(f"labels of task '{self.name}' are integers, found {label.dtype}; call .long() on them")
        if label.numel() and int(label.max()) >= self.classes:
            raise ValueError(
                f"labels of task '{self.name}' lie in 0 … {self.classes - 1} (negative: missing), "
                f"found {int(label.max())}; raise classes or mend the labels"
            )
        self._check_mask(label, mask)

    def _target(self, label: Tensor, mask: Tensor | None) -> Tensor:
        return label.long() if mask is None else torch.where(mask.bool(), label.long(), -1)

    def accumulator(self) -> Accumulator:
        return ClassAccumulator(self.classes)

    def known(self, label: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._target(label, mask) >= 0

    def measured(self, prediction: Prediction, label: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        target = self._target(label, mask)
        return prediction.value[target >= 0], target[target >= 0]


def masked_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Mean over targets that are not negative; 0 where there is none."""
    total = F.cross_entropy(output, target.clamp_min(-1), ignore_index=-1, reduction="sum")
    return total / (target >= 0).sum().clamp_min(1)


@dataclass(frozen=True)
class Classification(_Classes):
    """One class an image: cross entropy, accuracy."""

    def head(self, features: int, spatial_dims: int, *, hidden: int | None = None) -> nn.Module:
        return dense_head(features, self.outputs, spatial_dims, hidden)

    def loss(self, output: Tensor, label: Tensor, mask: Tensor | None = None) -> Tensor:
        return masked_cross_entropy(output, self._target(label, mask))

    def metrics(self) -> "dict[str, Metric]":
        from torchmetrics.classification import MulticlassAccuracy

        return {"accuracy": MulticlassAccuracy(self.classes, average="micro")}


@dataclass(frozen=True)
class Segmentation(_Classes):
    """One class a pixel or voxel: Dice + cross entropy, Dice score by class."""

    def head(self, features: int, spatial_dims: int, *, hidden: int | None = None) -> nn.Module:
        return pointwise_head(self.name, features, self.outputs, spatial_dims)

    def loss(self, output: Tensor, label: Tensor, mask: Tensor | None = None) -> Tensor:
        target = self._target(label, mask)
        return soft_dice_loss(output, target) + masked_cross_entropy(output, target)

    def metrics(self) -> "dict[str, Metric]":
        from torchmetrics.classification import MulticlassF1Score

        # The F1 score of a class over all its pixels is its Dice score.
        return {"dice": MulticlassF1Score(self.classes, average="none")}


def soft_dice_loss(output: Tensor, target: Tensor, smooth: float = 1e-5) -> Tensor:
    """1 − mean over the labelled examples and the classes of (2 Σ p·y + s) / (Σ p + Σ y + s).

    The sums run over what is labelled.
    """
    known = (target >= 0).unsqueeze(1)
    probabilities = torch.where(known, output.softmax(1), 0).flatten(2)
    truth = F.one_hot(target.clamp_min(0), output.shape[1]).movedim(-1, 1)
    truth = torch.where(known, truth, 0).to(output.dtype).flatten(2)
    overlap = (2 * (probabilities * truth).sum(2) + smooth) / (probabilities.sum(2) + truth.sum(2) + smooth)
    labelled = known.flatten(1).any(1)
    return ((1 - overlap.mean(1)) * labelled).sum() / labelled.sum().clamp_min(1)


def dense_head(features: int, outputs: int, spatial_dims: int, hidden: int | None) -> nn.Module:
    """Global average pooling where there is space, then two fully connected layers (one for hidden=0)."""
    pool: list[nn.Module] = [GlobalAverage()] if spatial_dims else []
    if hidden == 0:
        return nn.Sequential(*pool, nn.Linear(features, outputs))
    hidden = hidden or features
    return nn.Sequential(*pool, nn.Linear(features, hidden), nn.PReLU(), nn.Linear(hidden, outputs))


class GlobalAverage(nn.Module):
    """Mean over all spatial axes."""

    def forward(self, features: Tensor) -> Tensor:
        return features.flatten(2).mean(2)


def pointwise_head(name: str, features: int, outputs: int, spatial_dims: int) -> nn.Module:
    if spatial_dims == 0:
        raise ValueError(
            f"task '{name}' predicts every pixel, found features without spatial axes; "
            "use a backbone that keeps them, or pass heads={...}"
        )
    return POINTWISE[spatial_dims](features, outputs, 1)
