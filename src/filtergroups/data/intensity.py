"""What the grey values of a scan mean: bias field, histogram (Nyúl), mean and variance.

MR has no units: the same tissue is 300 in one scanner and 900 in another. Everything here but the bias correction
gives the same result for `values` and for `a · values + b` (a > 0).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filtergroups.data.examples import DataError

Values = NDArray[np.float32]

# Nyúl and Udupa's landmarks: the ends are not 0 and 100, which a single bright voxel would move.
PERCENTILES = (1.0, *(float(decile) for decile in range(10, 100, 10)), 99.0)


def foreground(values: Values) -> NDArray[np.bool_]:
    """Where the body is: above the mean of the scan, as in Nyúl's method."""
    return np.asarray(values > values.mean(dtype=np.float64))


def scan_landmarks(values: Values) -> NDArray[np.float64]:
    """The percentiles of a scan's foreground that histogram normalisation maps."""
    inside = values[foreground(values)]
    return np.asarray(np.percentile(inside.astype(np.float64), PERCENTILES), dtype=np.float64)


def standard_landmarks(scans: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Where landmarks go: the mean over scans, each first stretched so that its ends are 0 and 1."""
    stretched = [(landmarks - landmarks[0]) / (landmarks[-1] - landmarks[0]) for landmarks in scans]
    return np.asarray(np.mean(stretched, axis=0), dtype=np.float64)


def match_histogram(values: Values, landmarks: NDArray[np.float64], standard: NDArray[np.float64]) -> Values:
    """Map a scan's landmarks onto the standard ones, linearly between and beyond them."""
    # Equal landmarks (few grey values) leave no line to draw between them: the first stands for all.
    own, first = np.unique(landmarks, return_index=True)
    goal = standard[first]
    slopes = np.diff(goal) / np.diff(own)
    segment = np.clip(np.searchsorted(own, values, side="right") - 1, 0, len(slopes) - 1)
    return np.asarray(goal[segment] + slopes[segment] * (values - own[segment]), dtype=np.float32)


def standardise(values: Values, inside: NDArray[np.bool_]) -> Values:
    """Zero mean and unit variance over the foreground; the background's share of the image then does not matter."""
    mean, deviation = values[inside].mean(dtype=np.float64), values[inside].std(dtype=np.float64)
    return np.asarray((values - mean) / max(float(deviation), 1e-6), dtype=np.float32)


def normalise(values: Values, standard: Sequence[float] | None) -> Values:
    """Histogram normalisation (where there are standard landmarks), then `standardise`."""
    inside = foreground(values)
    if standard is not None:
        values = match_histogram(values, scan_landmarks(values), np.asarray(standard, dtype=np.float64))
    return standardise(values, inside)


def correct_bias(values: Values, spacing: Sequence[float], shrink: int = 4) -> Values:
    """N4: divide by the smooth field that the receiving coils leave on an MR scan.

    The field is smooth, so it is fitted on every `shrink`-th voxel and evaluated on all of them.
    """
    sitk = import_simpleitk()
    # SimpleITK counts axes backwards.
    image = sitk.GetImageFromArray(np.ascontiguousarray(values.T))
    image.SetSpacing([float(size) for size in spacing])
    mask = sitk.GetImageFromArray(np.ascontiguousarray((foreground(values) & (values > 0)).T).astype(np.uint8))
    mask.CopyInformation(image)
    factors = [max(1, min(shrink, size // 16)) for size in values.shape]
    corrector = sitk.N4BiasFieldCorrectionImageFilter()
    corrector.SetMaximumNumberOfIterations([50, 50, 30, 20])
    corrector.Execute(sitk.Shrink(image, factors), sitk.Shrink(mask, factors))
    field = np.exp(sitk.GetArrayFromImage(corrector.GetLogBiasFieldAsImage(image)).T)
    return np.asarray(values / field, dtype=np.float32)


def import_simpleitk() -> Any:
    """SimpleITK, which only bias correction needs."""
    try:
        import SimpleITK
    except ImportError:
        raise DataError(
            "data.bias_correction: expected the package SimpleITK, found none; install it, or set this to false"
        ) from None
    return SimpleITK
