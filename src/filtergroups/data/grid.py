"""Where the voxels of a scan are: reading NIfTI, turning to RAS, resampling, and the way back."""

import logging
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from nibabel import orientations
from nibabel.affines import voxel_sizes
from nibabel.filebasedimages import ImageFileError
from nibabel.openers import ImageOpener
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError
from numpy.typing import NDArray
from torch import Tensor

from filtergroups.data.examples import DataError

# nibabel's remarks on headers go to stderr, and do not say which file they are about.
nib.imageglobals.logger.setLevel(logging.CRITICAL)

# What nibabel, gzip and numpy raise for files that are cut short or are something else.
UNREADABLE = (
    OSError, EOFError, ValueError, TypeError, OverflowError, MemoryError,
    zlib.error, ImageFileError, HeaderDataError, WrapStructError,
)  # fmt: skip
MOST_BYTES = 2_000_000_000  # of a scan in memory: a header can claim any size, and a small .nii.gz can hold it
DEFLATE_RATIO = 1032  # what gzip packs a byte of zeros by, at most
MOST_BYTES_IN_FRONT = 100_000_000  # of the voxels: extensions of the header, which are read with it


@dataclass(frozen=True, eq=False)
class Grid:
    """The voxels of a file, and those that it is preprocessed to: RAS, and isotropic where a spacing is given."""

    file_shape: tuple[int, ...]
    file_affine: NDArray[np.float64]
    spacing: float | None = None

    @property
    def orientation(self) -> NDArray[np.float64]:
        """Axis order and flips from the file to RAS."""
        return np.asarray(orientations.io_orientation(self.file_affine))

    @property
    def canonical_shape(self) -> tuple[int, ...]:
        order = self.orientation[:, 0].astype(int)
        return tuple(self.file_shape[int(np.flatnonzero(order == axis)[0])] for axis in range(3))

    @property
    def canonical_affine(self) -> NDArray[np.float64]:
        return np.asarray(self.file_affine @ orientations.inv_ornt_aff(self.orientation, self.file_shape))

    @property
    def canonical_sizes(self) -> NDArray[np.float64]:
        return np.asarray(voxel_sizes(self.canonical_affine), dtype=np.float64)

    @property
    def resampled(self) -> bool:
        return self.spacing is not None and not np.allclose(self.canonical_sizes, self.spacing, rtol=1e-4)

    @property
    def steps(self) -> NDArray[np.float64]:
        """How many voxels of the canonical grid one preprocessed voxel spans."""
        return np.asarray(self.spacing, dtype=np.float64) / self.canonical_sizes if self.resampled else np.ones(3)

    @property
    def shape(self) -> tuple[int, ...]:
        extents = np.array(self.canonical_shape) / self.steps
        return tuple(max(1, int(extent)) for extent in np.rint(extents))

    @property
    def first(self) -> NDArray[np.float64]:
        """Where the first preprocessed voxel is, in voxels of the canonical grid: both have the same centre."""
        return (np.array(self.canonical_shape) - 1 - (np.array(self.shape) - 1) * self.steps) / 2

    @property
    def affine(self) -> NDArray[np.float64]:
        """Of the preprocessed grid."""
        move = np.diag([*self.steps, 1.0])
        move[:3, 3] = self.first
        return np.asarray(self.canonical_affine @ move)


def read_grid(path: Path, spacing: float | None = None) -> Grid:
    """The grid of a NIfTI file, from its header."""
    image = _open(path)
    affine = np.asarray(image.affine, dtype=np.float64)
    if len(image.shape) != 3:
        raise DataError(f"{path}: expected a scan with 3 axes, found {_times(image.shape)}; split it into volumes")
    if min(image.shape) < 1:
        raise DataError(f"{path}: expected a scan with voxels, found {_times(image.shape)}; export it again")
    _refuse_large(path, image.shape, image.get_data_dtype().itemsize, "crop it")
    _refuse_small_file(path, image)
    if not _places_voxels(affine):
        raise DataError(f"{path}: expected an affine that places the voxels, found a singular one; mend the header")
    grid = Grid(tuple(image.shape), affine, spacing)
    # Resampling goes axis by axis: on its way a volume is as large as the larger of the two along each.
    on_the_way = [max(sizes) for sizes in zip(grid.canonical_shape, grid.shape, strict=True)]
    voxel = "×".join(f"{millimetres:.3g}" for millimetres in grid.canonical_sizes)
    _refuse_large(path, on_the_way, 4, f"mend its voxel size, {voxel} mm")
    return grid


def read_values(path: Path, *, finite: bool = True) -> NDArray[np.float32]:
    """The values of a NIfTI file in RAS order; refused where they are not finite, or NaN there with finite=False."""
    grid = read_grid(path)
    image = _open(path)
    if image.get_data_dtype().kind not in "iufb":
        raise DataError(f"{path}: expected one real number a voxel, found {image.get_data_dtype()}; convert it")
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.asarray(image.dataobj, dtype=np.float32)
    except UNREADABLE as error:
        raise _unreadable(path, error) from None
    known = np.isfinite(values)
    if finite and not known.all():
        count = int((~known).sum())
        raise DataError(f"{path}: expected finite values, found {count} voxels with NaN or infinity; mend the scan")
    canonical = orientations.apply_orientation(values if finite else np.where(known, values, np.nan), grid.orientation)
    return np.asarray(canonical, dtype=np.float32)


def same_place(path: Path, grid: Grid, reference: Path, expected: Grid) -> None:
    """Refuse a file whose voxels are not where the reference's are."""
    if grid.canonical_shape != expected.canonical_shape:
        raise DataError(
            f"{path}: expected the shape of {reference.name}, {_times(expected.canonical_shape)}, "
            f"found {_times(grid.canonical_shape)}; resample it to that grid"
        )
    corners = np.array([(*corner, 1) for corner in product(*((0, size - 1) for size in grid.canonical_shape))])
    apart = np.linalg.norm(corners @ (grid.canonical_affine - expected.canonical_affine).T, axis=1).max()
    # Headers differ by rounding; from half a voxel on, a voxel is its neighbour.
    if apart > 0.5 * expected.canonical_sizes.min():
        raise DataError(
            f"{path}: expected the voxels to be where those of {reference.name} are, found them up to {apart:.3g} mm "
            "away; resample it to that grid, or copy the header if only that is wrong"
        )


def to_grid(values: NDArray[Any], grid: Grid, *, nearest: bool = False) -> NDArray[Any]:
    """From the canonical to the preprocessed grid, linear or nearest."""
    if not grid.resampled:
        return values
    positions = [
        first + step * torch.arange(size, dtype=torch.float64)
        for first, step, size in zip(grid.first, grid.steps, grid.shape, strict=True)
    ]
    return interpolate(torch.from_numpy(np.ascontiguousarray(values)), positions, nearest=nearest).numpy()


def to_original_grid(volume: Tensor, grid: Grid) -> NDArray[Any]:
    """Bring a prediction on the preprocessed grid back to the voxels of the input file.

    Real values are interpolated linearly, integers (labels) keep the nearest. Axes before the three of space, such as
    classes, stay in front.
    """
    if tuple(volume.shape[-3:]) != grid.shape:
        raise ValueError(f"the volume has the preprocessed shape {grid.shape}, found {tuple(volume.shape[-3:])}")
    volume = volume.detach().cpu()
    if grid.resampled:
        positions = [
            (torch.arange(size, dtype=torch.float64) - first) / step
            for first, step, size in zip(grid.first, grid.steps, grid.canonical_shape, strict=True)
        ]
        volume = interpolate(volume, positions, nearest=not volume.is_floating_point())
    values = volume.numpy().reshape(-1, *grid.canonical_shape)
    # nibabel turns the first axes and leaves those behind them alone.
    back = orientations.ornt_transform(orientations.axcodes2ornt("RAS"), grid.orientation)
    turned = np.moveaxis(orientations.apply_orientation(np.moveaxis(values, 0, -1), back), -1, 0)
    return np.ascontiguousarray(turned.reshape(*volume.shape[:-3], *grid.file_shape))


def interpolate(values: Tensor, positions: Sequence[Tensor], *, nearest: bool = False) -> Tensor:
    """Values at the crossings of positions along the last axes, in voxels; beyond the border, the border's value."""
    for axis, position in zip(range(-len(positions), 0), positions, strict=True):
        position = position.clamp(0, values.shape[axis] - 1)
        if nearest:
            values = values.index_select(axis, (position + 0.5).floor().long().clamp_max(values.shape[axis] - 1))
            continue
        lower = position.floor()
        weight = (position - lower).to(values.dtype)
        # A neighbour of weight 0 is not read: it may be NaN.
        upper = (lower + (weight > 0)).long()
        shape = [-1 if other == axis else 1 for other in range(-values.ndim, 0)]
        values = torch.lerp(
            values.index_select(axis, lower.long()), values.index_select(axis, upper), weight.reshape(shape)
        )
    return values


def _open(path: Path) -> Any:
    if not os.path.isfile(path):  # which never raises
        raise DataError(f"{path}: expected a NIfTI file, found none; add it")
    if (size := os.path.getsize(path)) > MOST_BYTES + MOST_BYTES_IN_FRONT:  # all of it is read for its fingerprint
        raise DataError(f"{path}: expected a file of at most {MOST_BYTES + MOST_BYTES_IN_FRONT} bytes, found {size}")
    try:
        _refuse_long_front(path)
        image = nib.load(path, mmap=False)  # a file that changes while it is mapped would end the process
    except DataError:
        raise
    except UNREADABLE as error:
        raise _unreadable(path, error) from None
    if not isinstance(image, nib.nifti1.Nifti1Pair):
        raise DataError(f"{path}: expected a NIfTI file, found {type(image).__name__}; convert it")
    return image


def _refuse_long_front(path: Path) -> None:
    """Before nibabel reads all that its header says lies in front of the voxels."""
    with ImageOpener(str(path)) as file:
        start = file.read(nib.Nifti2Header.sizeof_hdr)
    for kind in (nib.Nifti1Header, nib.Nifti2Header):
        if kind.may_contain_header(start):
            offset = float(kind(start[: kind.sizeof_hdr], check=False)["vox_offset"])
            if not offset <= MOST_BYTES_IN_FRONT:
                raise DataError(f"{path}: expected voxels behind the header, found them {offset:.4g} bytes on; mend it")


def _refuse_large(path: Path, shape: Sequence[int], itemsize: int, remedy: str) -> None:
    size = math.prod(map(int, shape)) * max(itemsize, 4)  # voxels become 32-bit floats
    if size > MOST_BYTES:
        raise DataError(
            f"{path}: expected a scan of at most {MOST_BYTES} bytes, found {size} ({_times(shape)} voxels); {remedy}"
        )


def _refuse_small_file(path: Path, image: Any) -> None:
    """Before memory is asked for: a file that cannot hold the voxels that its header claims."""
    file = Path(image.file_map["image"].filename)
    size = math.prod(image.shape) * image.get_data_dtype().itemsize
    most = {".nii": 1, ".img": 1, ".gz": DEFLATE_RATIO}.get(file.suffix.lower())
    if most is not None and file.is_file() and size > most * file.stat().st_size:
        raise DataError(
            f"{path}: expected a readable NIfTI file, found one too short for its {_times(image.shape)} voxels; "
            "export it again"
        )


def _places_voxels(affine: NDArray[np.float64]) -> bool:
    if not (np.abs(affine) < 1e9).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        return False
    return bool(np.isfinite(orientations.io_orientation(affine)).all())


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).replace(str(path), "the file").split()) or type(error).__name__
    return DataError(f"{path}: expected a readable NIfTI file, found a broken one ({reason}); export it again")


def _times(shape: Sequence[int]) -> str:
    return "×".join(str(size) for size in shape)
