"""Headers of scans that claim more than is there: refused before memory is asked for."""

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from filtergroups.data.examples import DataError
from filtergroups.data.grid import read_grid, read_values
from tests.data.test_scans import smooth_noise


def claims(path: Path, shape: tuple[int, ...], voxel: float = 1.0) -> None:
    """A few bytes that say they are a scan of this shape."""
    header = nib.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape(shape)
    header.set_sform(np.diag([voxel, voxel, voxel, 1]), code=1)
    header["vox_offset"] = 352
    header["magic"] = b"n+1"
    path.write_bytes(gzip.compress(header.binaryblock + bytes(1000)))


def long_front(path: Path) -> None:
    image = nib.Nifti1Image(smooth_noise(0), np.eye(4))
    content = bytearray(image.to_bytes())
    content[108:112] = np.float32(4e9).tobytes()
    path.write_bytes(gzip.compress(bytes(content)))


def filled_front(path: Path) -> None:
    """An extension of 300 MB in front of the voxels, all of it there."""
    content = bytearray(nib.Nifti1Image(smooth_noise(0), np.eye(4)).to_bytes())
    content[108:112] = np.float32(300_000_352).tobytes()
    extension = np.array([300_000_000, 6], dtype="<i4").tobytes()
    path.write_bytes(gzip.compress(bytes(content[:348]) + b"\1\0\0\0" + extension + bytes(300_000_000), 1))


BOMBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "terabytes": (
        lambda path: claims(path, (30_000, 30_000, 30_000)),
        "2000000000 bytes, found 108000000000000",
    ),
    "more than the file can hold": (lambda path: claims(path, (700, 700, 700)), "too short for its 700×700×700 voxels"),
    "negative": (lambda path: claims(path, (-5, 700, 700)), "expected"),
    "a long front": (long_front, "expected voxels behind the header, found them 4e\\+09 bytes on"),
    "a filled front": (filled_front, "expected voxels behind the header"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_scans_that_would_not_fit_are_refused_before_memory_is_asked_for(tmp_path: Path, name: str) -> None:
    write, said = BOMBS[name]
    path = tmp_path / "mr.nii.gz"
    write(path)
    tracemalloc.start()
    with pytest.raises(DataError, match=said) as caught:
        read_values(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < 10_000_000


def test_voxels_that_resampling_would_multiply_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mr.nii.gz"
    nib.save(nib.Nifti1Image(smooth_noise(0), np.diag([1000.0, 1000.0, 0.001, 1.0])), path)
    assert read_grid(path).shape == smooth_noise(0).shape
    with pytest.raises(DataError, match=r"mend its voxel size, 1e\+03×1e\+03×0.001 mm"):
        read_grid(path, 1.0)
