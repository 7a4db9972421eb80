"""Scans: laws of patches, preprocessing, the cache and the errors, on small NIfTI files."""

import gzip
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

from filtergroups.config import ScansData
from filtergroups.data import preprocessing as preprocessing_module
from filtergroups.data.examples import DataError, Volume
from filtergroups.data.findings import Findings
from filtergroups.data.grid import interpolate, read_grid
from filtergroups.data.intensity import (
    correct_bias,
    foreground,
    match_histogram,
    normalise,
    scan_landmarks,
    standard_landmarks,
)
from filtergroups.data.scan_check import examined_scans
from filtergroups.data.scans import load_scans, preprocess_volume, to_original_grid
from filtergroups.tasks import ImageRegression, Segmentation
from tests.laws import generator

SHAPE = (30, 26, 7)
LPS = np.diag([-2.0, -2.0, 3.0, 1.0])


def check_scans(config: ScansData) -> list[str]:
    """Problems and warnings of the scans alone."""
    findings = Findings()
    with suppress(DataError):
        examined_scans(config, 0, "validation", findings)
    return findings.problems + findings.warnings


def write(path: Path, values: np.ndarray, affine: np.ndarray = LPS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values, affine), path)


def smooth_noise(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Positive values with a histogram, more alike between neighbours than noise is."""
    noise = np.random.default_rng(seed).gamma(2.0, 50.0, shape)
    for axis in range(3):
        noise = (noise + np.roll(noise, 1, axis)) / 2
    return noise.astype(np.float32)


def write_patient(root: Path, name: str, seed: int, *, scale: float = 1.0, affine: np.ndarray = LPS) -> None:
    """An input, a target 2 · input + 1 (at scale 1), and labels 0 and 1."""
    values = smooth_noise(seed)
    write(root / name / "mr.nii.gz", values * np.float32(scale), affine)
    write(root / name / "ct.nii.gz", 2 * values + 1, affine)
    write(root / name / "labels.nii.gz", (values > np.median(values)).astype(np.uint8), affine)


def config_for(root: Path, **settings: Any) -> ScansData:
    return ScansData(kind="scans", root=root, cache=root.parent / "cache", **{"patch": 12, **settings})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """4 patients: 2 to train, 1 to validate, 1 to test, of different scales."""
    folder = tmp_path / "scans"
    for seed, name in enumerate(("ada", "bob", "cyd", "dee")):
        write_patient(folder, name, seed, scale=1.0 + 3 * seed)
    (folder / "labels.json").write_text(json.dumps({"0": "background", "1": "bright"}))
    (folder / "split.csv").write_text("patient,split\nada,train\nbob,train\ncyd,validation\ndee,test\n")
    return folder


def volumes(config: ScansData, part: str = "train", **options: Any) -> list[Volume]:
    return list(load_scans(config, **options).volumes[part])


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert "expected" in text
    assert "found" in text
    return text


# Patches


@pytest.mark.parametrize("spatial_dims", [2, 3])
def test_image_target_and_labels_stay_aligned_under_augmentation(root: Path, spatial_dims: int) -> None:
    for name in ("ada", "bob"):
        # A second target whose linear interpolation tells which class lies nearest.
        values = smooth_noise(ord(name[0]))
        write(root / name / "mr.nii.gz", values)
        write(root / name / "ct.nii.gz", 2 * values + 1)
        write(root / name / "labels.nii.gz", (values > np.median(values)).astype(np.uint8))
        write(root / name / "share.nii.gz", (values > np.median(values)).astype(np.float32))
    settings = {
        "spatial_dims": spatial_dims,
        "patch_depth": 4,
        "rotation": 40,
        "zoom": 0.3,
        "patches_per_patient": 8,
        "histogram": False,
    }
    data = load_scans(config_for(root, **settings))
    batch = data.parts["train"].batch(list(range(16)), generator(1))
    shares = load_scans(config_for(root, target="share.nii.gz", **settings), parts=("train",))
    share = shares.parts["train"].batch(list(range(16)), generator(1)).labels["ct"]
    size = (20, 20) if spatial_dims == 2 else (20, 20, 12)
    assert batch.images.shape == (16, 1, *size)
    known = batch.masks["ct"]
    assert 0.1 < known.float().mean() < 0.6
    for n, volume in enumerate(v for v in data.volumes["train"] for _ in range(8)):
        # Without histogram normalisation the image is linear in the values, and interpolation is linear too.
        image, target = volume.image[0].flatten(), volume.labels["ct"].flatten()
        slope = (target.max() - target.min()) / (image.max() - image.min())
        expected = target.min() + slope * (batch.images[n, 0] - image.min())
        torch.testing.assert_close(batch.labels["ct"][n][known[n]], expected[known[n]], atol=0.02, rtol=1e-4)
    # The nearest voxel has a weight of at least 1/4 in 2-D, 1/8 in 3-D.
    least = 0.5**spatial_dims
    labels = batch.labels["organs"]
    assert (labels[known & (share > 1 - least + 1e-3)] == 1).all()
    assert (labels[known & (share < least - 1e-3)] == 0).all()
    assert torch.equal(labels >= 0, known)


def test_padding_and_what_lies_outside_the_scan_are_missing_in_the_loss(root: Path) -> None:
    data = load_scans(config_for(root, patch=40, padding=3, zoom=0, rotation=0))
    batch = data.parts["train"].batch([0, 20], generator())
    ct, organs = data.tasks
    assert isinstance(ct, ImageRegression)
    assert isinstance(organs, Segmentation)
    # 40 × 40 around 30 × 26 pixels: 5 and 7 on each side, and the padding of 3.
    inside = torch.zeros(2, 46, 46, dtype=torch.bool)
    inside[:, 8:38, 10:36] = True
    assert torch.equal(batch.masks["ct"], inside)
    assert torch.equal(~batch.labels["ct"].isnan(), inside)
    assert torch.equal(batch.labels["organs"] >= 0, inside)
    assert (batch.images[:, 0][~inside] == 0).all()
    for task, outputs in ((ct, 1), (organs, 2)):
        output = torch.randn(2, outputs, 46, 46, generator=generator())
        other = torch.where(inside.unsqueeze(1), output, 100.0)
        arguments = batch.labels[task.name], batch.masks.get(task.name)
        task.check(output, *arguments)
        loss = task.loss(output, *arguments)
        assert loss > 0
        torch.testing.assert_close(loss, task.loss(other, *arguments))


def test_plain_patches_are_the_voxels_of_the_volume(root: Path) -> None:
    data = load_scans(config_for(root, patches_per_patient=7, padding=2))
    volume = next(iter(data.volumes["validation"]))
    batch = data.parts["validation"].batch(range(7))
    middle = slice(2, -2)
    torch.testing.assert_close(
        batch.images[:, 0, middle, middle], volume.image[0, 9:21, 7:19].permute(2, 0, 1), atol=1e-4, rtol=1e-4
    )
    assert torch.equal(batch.labels["organs"][:, middle, middle], volume.labels["organs"][9:21, 7:19].permute(2, 0, 1))


def test_the_generator_decides_the_batch(root: Path) -> None:
    train = load_scans(config_for(root)).parts["train"]
    first, again, other = (train.batch([0, 5, 17], generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels["organs"], again.labels["organs"])
    assert not torch.equal(first.images, other.images)
    assert torch.equal(train.batch([1, 2]).images, train.batch([1, 2]).images)


def test_patches_without_augmentation_are_placed_but_neither_scaled_nor_turned(root: Path) -> None:
    data = load_scans(config_for(root, padding=0))
    train, volumes = data.parts["train"], {volume.name: volume for volume in data.volumes["train"]}
    batch = train.unaugmented([0, 5], generator(3))
    assert torch.equal(batch.images, train.unaugmented([0, 5], generator(3)).images)
    assert not torch.equal(batch.images, train.unaugmented([0, 5], generator(4)).images)
    for index, patch in zip([0, 5], batch.images[:, 0], strict=True):
        image = volumes[train.name(index)].image[0]
        cut = image.unfold(0, patch.shape[0], 1).unfold(1, patch.shape[1], 1)  # every place of an axial patch
        assert (cut - patch).abs().amax((-2, -1)).min() < 1e-4


def test_scale_and_angle_are_those_of_the_anatomy_in_mm(root: Path) -> None:
    """Voxels of 1 × 2 mm: a disc in mm stays one, however it is turned; scaled, its area grows by the square."""
    x, y = np.meshgrid(np.arange(80) - 39.5, 2 * (np.arange(40) - 19.5), indexing="ij")
    disc = ((x**2 + y**2) < 15**2).astype(np.float32)[..., None].repeat(3, 2)
    affine = np.diag([1.0, 2.0, 1.0, 1.0])
    write(root / "ada" / "mr.nii.gz", smooth_noise(0, disc.shape), affine)
    write(root / "ada" / "ct.nii.gz", disc, affine)
    (root / "split.csv").write_text("patient,split\nada,train\n")
    turned = load_scans(config_for(root, labels=None, patch=80, padding=0, rotation=180, zoom=0)).parts["train"]
    discs = turned.batch(range(8), generator()).labels["ct"].nan_to_num()
    mm = torch.arange(80) - 39.5
    for axis, size in ((2, 1.0), (1, 2.0)):
        spread = (discs.sum(axis) * (size * mm) ** 2).sum(1) / discs.sum((1, 2))
        torch.testing.assert_close(spread, torch.full_like(spread, 15**2 / 4), rtol=0.06, atol=0)
    zoomed = load_scans(config_for(root, labels=None, patch=80, padding=0, rotation=0, zoom=0.5)).parts["train"]
    area = zoomed.batch(range(8), generator(5)).labels["ct"].nan_to_num().sum((1, 2))
    scale = 0.5 + torch.rand(8, 5, generator=generator(5), dtype=torch.float64)[:, 3].float()
    torch.testing.assert_close(area, np.pi * 15**2 / 2 * scale**2, rtol=0.05, atol=0)


def test_an_epoch_has_so_many_patches_of_each_patient_and_names_them(root: Path) -> None:
    train = load_scans(config_for(root, patches_per_patient=5)).parts["train"]
    assert [train.name(index) for index in range(len(train))] == ["ada"] * 5 + ["bob"] * 5


def test_examples_travel_to_other_processes_without_their_voxels(root: Path) -> None:
    train = load_scans(config_for(root)).parts["train"]
    train.batch([0, 1])
    sent = pickle.dumps(train)
    assert len(sent) < 5000
    assert torch.equal(pickle.loads(sent).batch([3], generator()).images, train.batch([3], generator()).images)


# Grey values


def test_histogram_normalisation_maps_the_landmarks_of_scans_onto_each_other() -> None:
    scans = [smooth_noise(0), 7 * smooth_noise(1) - 100, np.sqrt(smooth_noise(2))]
    landmarks = [scan_landmarks(values) for values in scans]
    standard = standard_landmarks(landmarks)
    assert standard[0] == 0
    assert standard[-1] == 1
    for values, own in zip(scans, landmarks, strict=True):
        matched = match_histogram(values, own, standard)
        inside = foreground(values)
        np.testing.assert_allclose(np.percentile(matched[inside], [1, *range(10, 100, 10), 99]), standard, atol=2e-3)
        between = (values > own[0]) & (values < own[-1])
        np.testing.assert_allclose(matched[between], np.interp(values[between], own, standard), atol=1e-5)
        order = np.argsort(values, axis=None)
        assert (np.diff(matched.ravel()[order]) >= 0).all()


@pytest.mark.parametrize("standard", [None, np.linspace(0, 1, 11) ** 2])
def test_normalisation_forgets_scale_and_offset(standard: np.ndarray | None) -> None:
    values = smooth_noise(0)
    normalised = normalise(values, standard)
    np.testing.assert_allclose(normalise(5 * values + 300, standard), normalised, atol=1e-3)
    inside = foreground(values)
    assert normalised[inside].mean() == pytest.approx(0, abs=1e-4)
    assert normalised[inside].std() == pytest.approx(1, abs=1e-4)


def test_few_grey_values_are_no_problem() -> None:
    values = np.repeat(np.array([0, 1, 2, 3], dtype=np.float32), [500, 10, 400, 90]).reshape(10, 10, 10)
    assert np.isfinite(normalise(values, np.linspace(0, 1, 11))).all()


def test_bias_correction_evens_out_a_smooth_field() -> None:
    pytest.importorskip("SimpleITK")
    shape = (40, 40, 20)
    x, y, z = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    tissue = np.where(x**2 + y**2 < 0.7, np.where(np.abs(x) < 0.3, 150.0, 100.0), 1.0).astype(np.float32)
    field = 1 + 0.4 * x - 0.3 * y
    noise = np.random.default_rng(0).normal(1, 0.01, shape)
    corrected = correct_bias((tissue * field * noise).astype(np.float32), (2.0, 2.0, 3.0))
    body = (tissue == 100) & (z > -0.9)
    spread = [(values[body] / values[body].mean()).std() for values in (tissue * field, corrected)]
    assert spread[1] < 0.35 * spread[0]


def test_bias_correction_is_a_setting_that_changes_the_input(root: Path) -> None:
    pytest.importorskip("SimpleITK")
    plain = volumes(config_for(root))[0].image
    corrected = volumes(config_for(root, bias_correction=True))[0].image
    assert plain.shape == corrected.shape
    assert not torch.allclose(plain, corrected)


def test_a_scan_that_n4_cannot_correct_is_one_line(root: Path) -> None:
    pytest.importorskip("SimpleITK")
    for file in ("mr", "ct", "labels"):
        write(root / "ada" / f"{file}.nii.gz", smooth_noise(0)[..., :1] if file != "labels" else np.ones((30, 26, 1)))
    assert volumes(config_for(root))[0].image.shape == (1, 30, 26, 1)
    with pytest.raises(DataError, match="N4") as error:
        load_scans(config_for(root, bias_correction=True))
    one_line(error)


def test_bias_correction_without_simpleitk_says_so_in_one_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "SimpleITK", None)
    with pytest.raises(DataError, match="SimpleITK") as error:
        load_scans(config_for(root, bias_correction=True))
    one_line(error)
    assert "SimpleITK" in check_scans(config_for(root, bias_correction=True))[0]


# Space


def turned(angle: float, sizes: tuple[float, float, float], axes: tuple[int, int, int]) -> np.ndarray:
    """An oblique affine with axes in some other order and direction."""
    cos, sin = np.cos(angle), np.sin(angle)
    rotation = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = (rotation @ np.diag([-1, 1, -1]))[:, list(axes)] * np.array(sizes)
    affine[:3, 3] = [30, -20, 10]
    return affine


def ramp(affine: np.ndarray, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """x + 2 y − 3 z of every voxel, in mm."""
    voxels = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    return ((voxels @ affine[:3, :3].T + affine[:3, 3]) @ np.array([1.0, 2.0, -3.0])).astype(np.float32)


@pytest.mark.parametrize("spacing", [None, 1.5, 3.1])
def test_orientation_and_resampling_keep_physical_positions(root: Path, spacing: float | None) -> None:
    for name in ("ada", "bob"):
        affine = turned(0.2, (2.0, 1.0, 2.5), (2, 0, 1))
        write(root / name / "mr.nii.gz", smooth_noise(0), affine)
        write(root / name / "ct.nii.gz", ramp(affine), affine)
    config = config_for(root, labels=None, spacing=spacing, split_file=None)
    volume = volumes(config, parts=("train",))[0]
    assert nib.aff2axcodes(volume.affine) == ("R", "A", "S")
    if spacing is not None:
        np.testing.assert_allclose(np.linalg.norm(volume.affine[:3, :3], axis=0), spacing)
        # The field of view stays where it is.
        middles = [
            (grid @ [*((np.array(shape) - 1) / 2), 1])[:3]
            for grid, shape in ((affine, SHAPE), (volume.affine, volume.image.shape[1:]))
        ]
        np.testing.assert_allclose(*middles, atol=1e-4)
    expected = ramp(volume.affine, tuple(volume.image.shape[1:]))
    # At the border there is nothing to interpolate with.
    inner = (slice(2, -2),) * 3
    np.testing.assert_allclose(volume.labels["ct"].numpy()[inner], expected[inner], atol=1e-3)


def test_a_missing_voxel_spoils_only_what_it_has_a_share_in() -> None:
    values = torch.tensor([0.0, 1.0, float("nan"), 3.0, 4.0])
    at = interpolate(values, [torch.tensor([-1.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 9.0])])
    nan = float("nan")
    torch.testing.assert_close(at, torch.tensor([0.0, 0.5, 1.0, nan, nan, nan, 3.0, 3.5, 4.0]), equal_nan=True)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
@pytest.mark.parametrize("spacing", [None, 1.3])
def test_predictions_come_back_to_the_voxels_of_the_file(
    tmp_path: Path, axes: tuple[int, int, int], spacing: float | None
) -> None:
    affine = turned(0.1, (2.0, 1.0, 2.5), axes)
    path = tmp_path / "stranger.nii.gz"
    values = ramp(affine)
    write(path, values, affine)
    image, new_affine, grid = preprocess_volume(path, config_for(tmp_path), constants_of(spacing=spacing))
    assert image.shape == (1, *grid.shape)
    np.testing.assert_allclose(new_affine, grid.affine)
    back = to_original_grid(image[0], grid)
    assert back.shape == values.shape
    inside = foreground(values)
    inner = (slice(1, -1),) * 3
    # The image is linear in the values, and a ramp survives linear interpolation.
    slope, offset = np.polyfit(values[inner].ravel(), back[inner].ravel(), 1)
    np.testing.assert_allclose(back[inner], slope * values[inner] + offset, atol=1e-4)
    assert inside.any()
    stacked = to_original_grid(torch.stack([image[0], 2 * image[0]]), grid)
    np.testing.assert_allclose(stacked[1], 2 * back, rtol=1e-5)
    np.testing.assert_allclose(stacked[0], back)


def test_labels_come_back_as_they_were_from_a_finer_grid(tmp_path: Path) -> None:
    affine = turned(0.1, (2.0, 2.0, 2.0), (1, 2, 0))
    labels = np.random.default_rng(0).integers(0, 40, SHAPE).astype(np.float32)
    write(tmp_path / "mr.nii.gz", labels, affine)
    image, _, grid = preprocess_volume(tmp_path, config_for(tmp_path), constants_of(spacing=1.0))
    assert image.shape[1:] == tuple(2 * size for size in grid.canonical_shape)
    _, _, plain = preprocess_volume(tmp_path, config_for(tmp_path), constants_of(spacing=None))
    canonical = torch.from_numpy(
        np.ascontiguousarray(nib.as_closest_canonical(nib.load(tmp_path / "mr.nii.gz")).dataobj)
    )
    fine = canonical.long().repeat_interleave(2, 0).repeat_interleave(2, 1).repeat_interleave(2, 2)
    for volume, its_grid in ((fine, grid), (canonical.long(), plain)):
        back = to_original_grid(volume, its_grid)
        assert back.dtype == np.int64
        assert (back == labels).all()


def constants_of(**settings: Any) -> dict[str, Any]:
    empty = {"spacing": None, "bias_correction": False, "landmarks": None, "label_values": None, "label_names": None}
    return {**empty, **settings}


def test_files_in_different_orientations_are_brought_together(root: Path) -> None:
    expected = volumes(config_for(root))[0]
    path = root / "ada" / "labels.nii.gz"
    turned_image = nib.load(path).as_reoriented(nib.orientations.axcodes2ornt("PSL"))
    write(path, np.asarray(turned_image.dataobj), turned_image.affine)
    assert nib.aff2axcodes(nib.load(path).affine) != ("L", "P", "S")
    assert torch.equal(volumes(config_for(root))[0].labels["organs"], expected.labels["organs"])


# Labels and masks


def test_target_is_missing_where_it_is_not_finite_or_not_valid(root: Path) -> None:
    ct = np.asarray(nib.load(root / "ada" / "ct.nii.gz").dataobj).copy()
    ct[3, 4, 2], ct[5, 6, 3] = np.nan, np.inf
    write(root / "ada" / "ct.nii.gz", ct)
    for name in ("ada", "bob", "cyd", "dee"):
        valid = np.ones(SHAPE, dtype=np.uint8)
        valid[:10] = 0
        write(root / name / "valid.nii.gz", valid)
    without, with_valid = volumes(config_for(root))[0], volumes(config_for(root, valid="valid.nii.gz"))[0]
    assert (~without.masks["ct"]).sum() == 2
    assert torch.equal(without.masks["ct"], ~without.labels["ct"].isnan())
    # The files are LPS: x and y run backwards in RAS.
    assert not with_valid.masks["ct"][-10:].any()
    assert with_valid.masks["ct"][:-10].all()
    resampled = load_scans(config_for(root, valid="valid.nii.gz", spacing=1.4, padding=0))
    batch = resampled.parts["train"].batch(range(16), generator())
    assert (batch.labels["ct"].isnan() == ~batch.masks["ct"]).all()
    # Not even a share of what is not valid comes in: all targets lie in the range of the valid ones.
    assert batch.labels["ct"][batch.masks["ct"]].min() >= np.nanmin(ct[10:]) - 1e-3


def test_labels_are_classes_by_rising_value_and_negative_is_missing(root: Path) -> None:
    (root / "labels.json").write_text(json.dumps({"10": "far", "0": "background", "7": "near"}))
    for name in ("ada", "bob", "cyd", "dee"):
        values = np.random.default_rng(0).choice([-1, 0, 7, 10], SHAPE).astype(np.int16)
        write(root / name / "labels.nii.gz", values)
    data = load_scans(config_for(root))
    assert data.names == {"organs": ["background", "near", "far"]}
    assert data.constants["label_values"] == [0, 7, 10]
    expected = np.select([values == 0, values == 7, values == 10], [0, 1, 2], -1)[::-1, ::-1]
    assert (next(iter(data.volumes["test"])).labels["organs"].numpy() == expected).all()
    assert data.tasks[1] == Segmentation("organs", classes=3)


def test_settings_name_and_scale_the_tasks(root: Path) -> None:
    settings = {"target_task": "adc", "labels_task": "zones", "target_scale": 1000, "target_offset": 0.5}
    data = load_scans(config_for(root, label_names={"0": "none", "1": "some"}, **settings))
    assert data.tasks == (ImageRegression("adc", scale=1000, offset=0.5), Segmentation("zones", classes=2))
    assert set(data.parts["train"].batch([0]).labels) == {"adc", "zones"}
    only = load_scans(config_for(root, target=None))
    assert [task.name for task in only.tasks] == ["organs"]
    batch = only.parts["train"].batch([0], generator())
    assert (set(batch.labels), set(batch.masks)) == ({"organs"}, set())
    assert [task.name for task in load_scans(config_for(root, labels=None)).tasks] == ["ct"]


# Constants and parts


def test_constants_make_evaluation_independent_of_the_training_part(root: Path, tmp_path: Path) -> None:
    config = config_for(root)
    trained = load_scans(config)
    expected = next(iter(trained.volumes["test"]))
    constants = json.loads(json.dumps(trained.constants))
    assert constants == trained.constants
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(root / "dee", elsewhere / "dee")
    (elsewhere / "split.csv").write_text("patient,split\ndee,test\n")
    data = load_scans(config_for(elsewhere), constants=constants)
    assert set(data.parts) == set(data.volumes) == {"test"}
    assert torch.equal(next(iter(data.volumes["test"])).image, expected.image)
    assert data.constants == constants
    write(root / "ada" / "mr.nii.gz", np.sqrt(smooth_noise(0)))
    assert torch.equal(volumes(config, "test", constants=constants)[0].image, expected.image)
    assert not torch.equal(volumes(config, "test")[0].image, expected.image)
    image, affine, _ = preprocess_volume(root / "dee" / "mr.nii.gz", config, constants)
    torch.testing.assert_close(image, expected.image)
    np.testing.assert_allclose(affine, expected.affine)


def test_only_the_parts_asked_for_are_read(root: Path) -> None:
    (root / "dee" / "mr.nii.gz").write_bytes(b"broken")
    data = load_scans(config_for(root), parts=("train", "validation"))
    assert set(data.parts) == {"train", "validation"}
    assert len(data.volumes["train"]) == 2


def test_a_seeded_split_is_written_once_and_kept(root: Path) -> None:
    (root / "split.csv").unlink()
    for number in range(8):
        shutil.copytree(root / "ada", root / f"more{number}")
    constants = load_scans(config_for(root, patches_per_patient=1), seed=3).constants
    written = (root / "split.csv").read_text()
    assert written.startswith("patient,split\n")
    load_scans(config_for(root), seed=4)
    assert (root / "split.csv").read_text() == written
    (root / "split.csv").unlink()
    load_scans(config_for(root), seed=3, constants=constants)
    assert not (root / "split.csv").exists()


# The cache


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr(preprocessing_module, "read_values", refuse)


def test_what_is_in_the_cache_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = volumes(config_for(root))
    forbid_reading(monkeypatch)
    for before, after in zip(first, volumes(config_for(root)), strict=True):
        assert torch.equal(before.image, after.image)
        assert torch.equal(before.labels["ct"], after.labels["ct"])
    with pytest.raises(AssertionError, match="read again"):
        volumes(config_for(root, spacing=2.2))


@pytest.mark.parametrize("keep_time", [False, True])
def test_the_cache_is_never_stale(root: Path, keep_time: bool) -> None:
    for packed in root.rglob("*.nii.gz"):
        write(packed.with_suffix(""), np.asarray(nib.load(packed).dataobj))
    config = config_for(root, input="mr.nii", target="ct.nii", labels="labels.nii", histogram=False)
    before = volumes(config)[0]
    for file, key in (("mr.nii", "image"), ("ct.nii", "ct"), ("labels.nii", "organs")):
        path = root / "ada" / file
        state = path.stat()
        write(path, np.flip(np.asarray(nib.load(path, mmap=False).dataobj), 2).copy())
        if keep_time:
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        assert path.stat().st_size == state.st_size
        after = volumes(config)[0]
        old, new = (v.image[0] if key == "image" else v.labels[key] for v in (before, after))
        torch.testing.assert_close(new, old.flip(2))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"nonsense",
        lambda content: content[:-500] + bytes([content[-500] ^ 1]) + content[-499:],
    ],
    ids=["truncated", "empty", "nonsense", "one bit"],
)
def test_a_corrupt_cache_is_made_again(root: Path, damage: Callable[[bytes], bytes]) -> None:
    expected = volumes(config_for(root))[1]
    entries = list((root.parent / "cache").rglob("*.npy"))
    assert len(entries) > 8
    for path in entries:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(damage(content) if len(content) > 500 else b"")
    again = volumes(config_for(root))[1]
    assert torch.equal(again.image, expected.image)
    assert torch.equal(again.labels["organs"], expected.labels["organs"])


@pytest.mark.parametrize("damage", ["cut", "written over"])
def test_a_prepared_scan_that_is_spoilt_while_it_is_open_is_never_given_out(root: Path, damage: str) -> None:
    data = load_scans(config_for(root))
    path = data.parts["train"].scans[0].image.path
    assert data.parts["train"].batch([0, 1]).images.isfinite().all()
    os.truncate(path, path.stat().st_size // 3) if damage == "cut" else path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataError, match="cut short or written over") as error:
        data.parts["train"].batch(range(len(data.parts["train"])))
    one_line(error)
    with pytest.raises(DataError, match="cut short or written over"):
        list(data.volumes["train"])
    assert load_scans(config_for(root)).parts["train"].batch([0, 1]).images.isfinite().all()


def test_a_scan_that_changes_within_the_tick_of_a_coarse_clock_is_noticed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same size, times and inode: only its age says that it cannot be trusted."""
    for packed in root.rglob("*.nii.gz"):
        write(packed.with_suffix(""), np.asarray(nib.load(packed).dataobj))
    config = config_for(root, input="mr.nii", target="ct.nii", labels="labels.nii", histogram=False)
    path = root / "ada" / "mr.nii"
    real, frozen = os.stat, path.stat()
    monkeypatch.setattr(os, "stat", lambda file, **how: frozen if file == path else real(file, **how))
    before = volumes(config)[0]
    write(path, np.flip(np.asarray(nib.load(path, mmap=False).dataobj), 2).copy())
    torch.testing.assert_close(volumes(config)[0].image[0], before.image[0].flip(2))


def test_a_scan_that_changes_while_it_is_prepared_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it held then would be found under the name of what it held before."""
    path = root / "ada" / "mr.nii.gz"
    read, other = preprocessing_module.read_values, (root / "bob" / "mr.nii.gz").read_bytes()

    def changing(file: Path, **how: Any) -> Any:
        if file == path:
            path.write_bytes(other)
        return read(file, **how)

    monkeypatch.setattr(preprocessing_module, "read_values", changing)
    with pytest.raises(DataError, match="was changed while it was read") as error:
        load_scans(config_for(root))
    one_line(error)


def test_two_processes_that_start_at_once_agree(root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from filtergroups.config import ScansData\n"
        "from filtergroups.data.scans import load_scans\n"
        "config = ScansData(kind='scans', root=Path(sys.argv[1]), cache=Path(sys.argv[2]), patch=12)\n"
        "print(sum(float(v.image.double().abs().sum()) for v in load_scans(config).volumes['train']))\n"
    )
    cache = root.parent / "shared"
    command = [sys.executable, "-c", code, str(root), str(cache)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert outputs[0] == outputs[1] != ""
    left = [path for path in cache.rglob("*") if path.is_file()]
    assert {path.suffix for path in left} <= {".npy", ".content"}


def test_the_users_cache_folder_is_the_default(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    load_scans(config_for(root).model_copy(update={"cache": None}))
    assert list((tmp_path / "xdg" / "filtergroups").rglob("*.npy"))


def test_a_cache_that_cannot_be_written_is_one_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"data\.cache") as error:
        load_scans(config_for(root).model_copy(update={"cache": tmp_path / "file"}))
    one_line(error)


# Errors


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


def truncate_plain(path: Path) -> None:
    """Cut the voxels, and pack them as if nothing were missing."""
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-2000]))


def with_value(path: Path, value: float, affine: np.ndarray = LPS) -> None:
    values = np.asarray(nib.load(path).dataobj).astype(np.float32)
    values[1, 2, 3] = value
    write(path, values, affine)


def without_affine(path: Path) -> None:
    image = nib.Nifti1Image(smooth_noise(0), None)
    image.header["sform_code"] = 1
    image.header["srow_x"] = image.header["srow_y"] = image.header["srow_z"] = 0
    image.to_filename(path)
    with gzip.open(path, "rb") as file:
        content = bytearray(file.read())
    content[280:328] = bytes(48)  # srow_x, srow_y, srow_z
    path.write_bytes(gzip.compress(bytes(content)))


MR, CT, LABELS = "ada/mr.nii.gz", "ada/ct.nii.gz", "ada/labels.nii.gz"

# name -> (the file that is broken, how, what the error says)
BREAKAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing input": (MR, Path.unlink, "expected a file mr.nii.gz of patient ada, found none"),
    "missing labels": (LABELS, Path.unlink, "expected a file labels.nii.gz of patient ada, found none"),
    "truncated": (CT, truncate, "readable NIfTI"),
    "truncated voxels": (CT, truncate_plain, "readable NIfTI"),
    "not NIfTI": (MR, lambda path: path.write_bytes(b"hello" * 200), "readable NIfTI"),
    "empty": (MR, lambda path: path.write_bytes(b""), "readable NIfTI"),
    "4-D": (MR, lambda path: write(path, np.zeros((*SHAPE, 2), np.float32)), "3 axes, found 30×26×7×2"),
    "not finite": (MR, lambda path: with_value(path, np.nan), "finite values, found 1 voxels"),
    "labels not finite": (LABELS, lambda path: with_value(path, np.inf), "finite values"),
    "complex": (MR, lambda path: write(path, np.ones(SHAPE, np.complex64)), "one real number a voxel, found complex64"),
    "flat": (MR, lambda path: write(path, np.full(SHAPE, 5, np.float32)), "expected an image, found one grey value"),
    "shape": (CT, lambda path: write(path, smooth_noise(0)[:, :-1]), "shape of mr.nii.gz, 30×26×7, found 30×25×7"),
    "elsewhere": (LABELS, lambda path: with_value(path, 1, LPS + np.eye(4, k=3) * 5), "up to 5 mm away"),
    "no affine": (CT, without_affine, "expected an affine that places the voxels"),
    "unknown label": (LABELS, lambda path: with_value(path, 9), "expected the label values 0, 1, found 9"),
    "half a label": (LABELS, lambda path: with_value(path, 0.5), "expected the label values 0, 1, found 0.5"),
    "no label names": ("labels.json", Path.unlink, "values and names, found no file"),
    "broken label names": ("labels.json", lambda path: path.write_text("{"), "expected JSON"),
    "words as values": ("labels.json", lambda path: path.write_text('{"a": "b"}'), "expected names by value"),
    "one label": ("labels.json", lambda path: path.write_text('{"0": "b"}'), "at least 2 labels, found 1"),
    "unknown patient": (
        "split.csv",
        lambda path: path.write_text("patient,split\nada,train\nzoe,test\n"),
        "that have a folder in .*, found zoe",
    ),
    "unknown part": ("split.csv", lambda path: path.write_text("patient,split\nada,tarin\n"), "found 'tarin'"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_what_is_wrong_is_said_in_one_line_with_the_file(root: Path, name: str) -> None:
    file, damage, message = BREAKAGES[name]
    damage(root / file)
    state = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with pytest.raises(DataError, match=message) as error:
        load_scans(config_for(root))
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(str(root / file))
    # The check says the same, without changing anything.
    assert text in check_scans(config_for(root))
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == state


def test_the_check_lists_every_problem_of_every_file(root: Path) -> None:
    assert check_scans(config_for(root)) == []
    with_value(root / LABELS, 9)
    (root / "bob" / "ct.nii.gz").unlink()
    truncate(root / "cyd" / "mr.nii.gz")
    write_patient(root, "eve", 9)
    problems = check_scans(config_for(root))
    assert len(problems) == 4
    for problem, word in zip(sorted(problems), ("ada", "bob", "cyd", "eve"), strict=True):
        assert word in problem
    assert not (root.parent / "cache").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": None, "labels": None}, "at least one file name"),
        ({"target_task": "same", "labels_task": "same"}, "a name of its own"),
        ({"target": None, "valid": "valid.nii.gz"}, r"data\.valid"),
        ({"target": None, "bone_above": 200.0}, r"data\.bone_above"),
        ({"split_file": Path("nowhere.csv")}, "nowhere.csv"),
    ],
)
def test_settings_that_do_not_fit_are_refused(root: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        load_scans(config_for(root, **settings))
    one_line(error)
    assert str(error.value) in check_scans(config_for(root, **settings))


def test_folders_without_patients_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "nothing", tmp_path / "empty"):
        if folder.name == "empty":
            folder.mkdir()
        with pytest.raises(DataError, match="one folder a patient, found no") as error:
            load_scans(config_for(folder))
        one_line(error)


def test_histograms_need_a_training_part(root: Path) -> None:
    (root / "split.csv").write_text("patient,split\nada,test\n")
    with pytest.raises(DataError, match="expected training patients") as error:
        load_scans(config_for(root))
    one_line(error)
    assert set(load_scans(config_for(root, histogram=False)).parts) == {"test"}


def test_constants_of_something_else_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match="use those of a run on scans") as error:
        load_scans(config_for(root), constants={"mean": [0.5]})
    one_line(error)


def test_progress_is_reported_for_every_patient(root: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    load_scans(config_for(root), progress=lambda *what: seen.append(what))
    assert seen == [("learning the histogram", n, 2) for n in (1, 2)] + [
        ("preprocessing scans", n, 4) for n in (1, 2, 3, 4)
    ]


def test_a_scan_whose_file_is_longer_than_any_scan_is_refused_by_its_header(tmp_path):
    path = tmp_path / "scan.nii"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), np.float32), np.eye(4)), path)
    os.truncate(path, 10**12)
    with pytest.raises(DataError, match="expected a file of at most"):
        read_grid(path)
