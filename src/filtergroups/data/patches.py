"""Training examples from scans: patches at random places, scaled and turned, with their labels alongside."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from filtergroups.data.array_cache import StoredArray
from filtergroups.data.examples import Batch, Examples
from filtergroups.data.fingerprints import IMAGE, VOXELS, Fingerprints, checksums

# The weight of known voxels from which an interpolated value counts as known; below 1 for rounding only.
KNOWN = 0.999


@dataclass(frozen=True, eq=False)
class Scan:
    """A preprocessed patient: x × y × z volumes on one grid."""

    name: str
    image: StoredArray  # float32
    target: StoredArray | None  # float32; NaN: missing
    labels: StoredArray | None  # int16; negative: missing
    affine: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.image.shape

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Of a voxel, in mm."""
        return np.asarray(np.linalg.norm(self.affine[:3, :3], axis=0))


@dataclass(frozen=True, eq=False)
class Placement:
    """Where patches come from: patch position p (in voxels from its centre) reads voxel centre + matrix · p."""

    centres: Tensor  # batch × 3
    matrices: Tensor  # batch × 3 × 3


def place(scans: Sequence[Scan], size: Tensor, draws: Tensor, *, zoom: float, rotation: float) -> Placement:
    """Turn draws from [0, 1) (batch × 5: place along x, y, z, scale, angle) into placements.

    The patch lies inside the scan before it is scaled by 1 ± zoom and turned about z by ± rotation degrees; along an
    axis that is shorter than the patch it lies centred. Draws of ½ mean: in the middle, as it is.
    """
    shapes = torch.tensor([scan.shape for scan in scans], dtype=torch.float64)
    free = shapes - size
    starts = torch.where(free > 0, (draws[:, :3] * (free + 1)).floor(), (free / 2).floor())
    scales = 1 + zoom * (2 * draws[:, 3] - 1)
    angles = math.radians(rotation) * (2 * draws[:, 4] - 1)
    turns = torch.zeros(len(scans), 3, 3, dtype=torch.float64)
    turns[:, 0, 0] = turns[:, 1, 1] = angles.cos()
    turns[:, 1, 0], turns[:, 0, 1] = angles.sin(), -angles.sin()
    turns[:, 2, 2] = 1
    # Voxels need not be cubes: the anatomy turns, so the turn is in mm.
    voxels = torch.tensor(np.stack([scan.sizes for scan in scans]))
    matrices = turns * voxels[:, None, :] / voxels[:, :, None] / scales[:, None, None]
    return Placement(starts + (size - 1) / 2, matrices)


def windows(scans: Sequence[Scan], starts: NDArray[np.int64], size: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Boxes cut out of scans, batch × channels × z × y × x, 0 outside the scan.

    The first tensor is for linear interpolation: image, inside, target where it is known, known. The second holds
    label + 1.
    """
    reals = np.zeros((len(scans), 4, *size[::-1]), dtype=np.float32)
    labels = np.zeros((len(scans), 1, *size[::-1]), dtype=np.float32)
    for scan, start, real, label in zip(scans, starts, reals, labels, strict=True):
        first, last = np.maximum(start, 0), np.minimum(start + size, scan.shape)
        if (first >= last).any():
            continue
        slices = int(first[2]), int(last[2])
        source = (slice(None), slice(first[1], last[1]), slice(first[0], last[0]))
        box = tuple(slice(a, b) for a, b in zip((first - start)[::-1], (last - start)[::-1], strict=True))
        real[0][box] = scan.image.slices(*slices)[source]
        real[1][box] = 1
        if scan.target is not None:
            target = scan.target.slices(*slices)[source]
            known = ~np.isnan(target)
            real[2][box] = np.where(known, target, 0)
            real[3][box] = known
        if scan.labels is not None:
            label[0][box] = scan.labels.slices(*slices)[source] + 1
    return torch.from_numpy(reals), torch.from_numpy(labels)


def sample(scans: Sequence[Scan], placement: Placement, size: Tensor) -> tuple[Tensor, Tensor]:
    """Read patches (batch × channels × x × y × z) at their placements: `windows`, interpolated once."""
    reach = placement.matrices.abs() @ ((size - 1) / 2)
    starts = (placement.centres - reach).floor()
    box = ((placement.centres + reach).ceil() - starts).amax(0) + 1
    reals, labels = windows(scans, starts.long().numpy(), box.long().numpy())
    offsets = [torch.arange(int(n), dtype=torch.float32) - (int(n) - 1) / 2 for n in size.flip(0)]
    patch = torch.stack(torch.meshgrid(*offsets, indexing="ij")[::-1], dim=-1)  # z × y × x × 3
    # grid_sample counts from −1 to 1, from edge to edge of the box: that is part of the affine map.
    centres = (2 * (placement.centres - starts) + 1) / box - 1
    matrices = 2 * placement.matrices / box[:, None]
    positions = patch.reshape(-1, 3) @ matrices.float().mT + centres.float()[:, None]
    grid = positions.reshape(len(scans), *patch.shape)
    reals = F.grid_sample(reals, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    labels = F.grid_sample(labels, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return reals.permute(0, 1, 4, 3, 2), labels.permute(0, 1, 4, 3, 2)


def _draws(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand((count, 5), generator=generator, device=generator.device, dtype=torch.float64).cpu()


class PatchExamples(Examples):
    """Patches of the scans of one part: axial ones in 2-D, sub-volumes in 3-D.

    With a generator a patch lies anywhere and is scaled and turned by its draws. Without one, the patches of a patient
    lie in the middle of evenly spaced slices, as they are. Zeros are added on every side of the image; there, and where
    a patch leaves the scan, every label is missing.
    """

    def __init__(
        self,
        scans: Sequence[Scan],
        *,
        spatial_dims: int = 2,
        patch: int = 64,
        patch_depth: int = 16,
        padding: int = 4,
        patches_per_patient: int = 16,
        zoom: float = 0.1,
        rotation: float = 10.0,
        target_task: str = "ct",
        labels_task: str = "organs",
    ) -> None:
        self.scans, self.spatial_dims, self.patches_per_patient = list(scans), spatial_dims, patches_per_patient
        self.size = torch.tensor([patch, patch, patch_depth if spatial_dims == 3 else 1], dtype=torch.float64)
        self.padding, self.zoom, self.rotation = padding, zoom, rotation
        self.target_task, self.labels_task = target_task, labels_task

    def __len__(self) -> int:
        return len(self.scans) * self.patches_per_patient

    def name(self, index: int) -> str:
        return self.scans[index // self.patches_per_patient].name

    def fingerprints(self) -> Fingerprints:
        stored: dict[str, list[StoredArray | None]] = {
            IMAGE: [scan.image for scan in self.scans],
            f"label/{self.target_task}": [scan.target for scan in self.scans],
            f"label/{self.labels_task}": [scan.labels for scan in self.scans],
        }
        numbers = {
            kind: checksums(array.file.checksums for array in arrays if array is not None)
            for kind, arrays in stored.items()
            if None not in arrays
        }
        numbers[VOXELS] = checksums(scan.sizes for scan in self.scans)
        return Fingerprints([scan.name for scan in self.scans], numbers)

    def labels_of(self, task: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Of the whole scans: patches are cut out of them."""
        for scan in self.scans:
            stored = scan.target if task == self.target_task else scan.labels
            if stored is not None:
                yield torch.from_numpy(np.array(stored.values))[None], None

    def batch(self, indices: Sequence[int], generator: torch.Generator | None = None) -> Batch:
        if generator is not None:
            return self._placed(indices, _draws(len(indices), generator))
        draws = torch.full((len(indices), 5), 0.5, dtype=torch.float64)
        draws[:, 2] = (torch.tensor(list(indices)) % self.patches_per_patient + 0.5) / self.patches_per_patient
        return self._placed(indices, draws)

    def unaugmented(self, indices: Sequence[int], generator: torch.Generator) -> Batch:
        draws = _draws(len(indices), generator)
        draws[:, 3:] = 0.5
        return self._placed(indices, draws)

    def _placed(self, indices: Sequence[int], draws: Tensor) -> Batch:
        scans = [self.scans[index // self.patches_per_patient] for index in indices]
        placement = place(scans, self.size, draws, zoom=self.zoom, rotation=self.rotation)
        return self._batch(scans, *sample(scans, placement, self.size))

    def _batch(self, scans: Sequence[Scan], reals: Tensor, classes: Tensor) -> Batch:
        image, inside, target, known = reals.unbind(1)
        within = inside > KNOWN
        labels, masks = {}, {}
        if scans[0].target is not None:
            holds = known > KNOWN
            labels[self.target_task] = self._padded(torch.where(holds, target, math.nan), math.nan)
            masks[self.target_task] = self._padded(holds, False)
        if scans[0].labels is not None:
            labels[self.labels_task] = self._padded(torch.where(within, classes[:, 0].long() - 1, -1), -1)
        return Batch(self._padded(torch.where(within, image, 0), 0.0).unsqueeze(1), labels, masks)

    def _padded(self, values: Tensor, fill: Any) -> Tensor:
        if self.spatial_dims == 2:
            values = values.squeeze(-1)
        return F.pad(values, [self.padding] * (2 * self.spatial_dims), value=fill).contiguous()
