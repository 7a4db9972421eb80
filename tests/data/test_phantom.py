import json

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage

from filtergroups.data import phantom
from filtergroups.data.examples import DataError
from filtergroups.data.pelvis.shapes import Field, polygon_distance, smooth_union
from filtergroups.data.pelvis.tissues import TISSUES, spin_echo
from filtergroups.data.phantom import LABEL_NAMES, generate, split, write_phantom

LEFT, RIGHT, PROSTATE, BLADDER, RECTUM = 1, 2, 3, 4, 5
TALL = {"shape": (96, 96, 40), "spacing": (4.4, 4.4, 4.4)}  # high enough to hold whole bladders
TINY = {"shape": (48, 40, 8), "spacing": (8.8, 8.8, 8.8)}


@pytest.fixture(scope="module")
def men():
    return [generate(0, patient, **TALL) for patient in range(8)]


@pytest.fixture(scope="module")
def sharp():
    """Fine voxels around the hips and the organs."""
    return generate(0, 9, (200, 110, 36), (1.46, 1.46, 1.46))


def millilitres(man, label):
    return (man.labels == label).sum() * np.prod(np.diag(man.affine)[:3]) / 1000


def centre(man, label):
    return man.affine[:3, :3] @ np.argwhere(man.labels == label).mean(0) + man.affine[:3, 3]


def inside(man, label, depth=2):
    return ndimage.binary_erosion(man.labels == label, iterations=depth)


def prostate_slice(man):
    return round(np.argwhere(man.labels == PROSTATE)[:, 2].mean())


def test_same_seed_and_patient_give_identical_arrays():
    first, second = generate(3, 1, **TINY), generate(3, 1, **TINY)
    for name in ("mr", "ct", "labels", "affine"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize(("seed", "patient"), [(3, 2), (4, 1), (1, 3)])
def test_another_patient_or_seed_is_another_man(seed, patient):
    first, other = generate(3, 1, **TINY), generate(seed, patient, **TINY)
    assert (first.labels != other.labels).any()
    assert (first.ct != other.ct).mean() > 0.5


def test_arrays_have_the_promised_types_and_shape():
    man = generate(0, 0, **TINY)
    assert (man.mr.dtype, man.ct.dtype, man.labels.dtype) == (np.float32, np.int16, np.uint8)
    assert man.mr.shape == man.ct.shape == man.labels.shape == TINY["shape"]
    assert np.isfinite(man.mr).all()
    assert man.mr.min() >= 0


def test_finer_voxels_show_the_same_man(men):
    finer = generate(0, 0, (128, 128, 54), (3.3, 3.3, 3.3))
    for label in (LEFT, RIGHT, PROSTATE, BLADDER, RECTUM):
        assert millilitres(finer, label) == pytest.approx(millilitres(men[0], label), rel=0.1)
        np.testing.assert_allclose(centre(finer, label), centre(men[0], label), atol=2)


@pytest.mark.parametrize(
    ("label", "mean", "smallest", "largest"),
    [(LEFT, 58, 34, 90), (RIGHT, 58, 34, 90), (PROSTATE, 39, 8, 110), (BLADDER, 300, 60, 750), (RECTUM, 64, 15, 160)],
)
def test_organ_volumes_scatter_around_their_priors(men, label, mean, smallest, largest):
    volumes = [millilitres(man, label) for man in men]
    assert smallest < min(volumes) < max(volumes) < largest
    assert np.mean(volumes) == pytest.approx(mean, rel=0.35)
    assert np.std(volumes) > 0.05 * mean


def test_bladder_lies_in_front_of_and_above_the_prostate_and_rectum_behind(men):
    bladder = np.array([centre(man, BLADDER) - centre(man, PROSTATE) for man in men])
    rectum = np.array([centre(man, RECTUM) - centre(man, PROSTATE) for man in men])
    np.testing.assert_allclose(bladder.mean(0), (0, 27, 40), atol=10)
    np.testing.assert_allclose(rectum.mean(0), (0, -42, 13), atol=7)


def test_left_femur_head_is_on_the_left_of_a_right_anterior_superior_world(men):
    for man in men:
        assert nib.aff2axcodes(man.affine) == ("R", "A", "S")
        # RAS+: world x grows towards the patient's right.
        assert -110 < centre(man, LEFT)[0] < -70
        assert 70 < centre(man, RIGHT)[0] < 110


def test_the_scan_is_centred_on_the_level_of_the_prostate(men):
    assert all(abs(centre(man, PROSTATE)[2]) < 12 for man in men)


def test_each_organ_is_connected(men, sharp):
    for man in [*men, sharp]:
        for label in (LEFT, RIGHT, PROSTATE, BLADDER, RECTUM):
            assert ndimage.label(man.labels == label)[1] == 1, LABEL_NAMES[label]


def test_body_and_bone_have_their_sizes_at_the_level_of_the_prostate(men):
    for man in men:
        section = man.ct[:, :, prostate_slice(man)]
        body = ndimage.binary_fill_holes(section > -500)
        width, depth = np.ptp(np.argwhere(body), axis=0) * 4.4
        assert 376 - 60 < width < 376 + 60
        assert 228 - 60 < depth < 228 + 60
        assert 0.05 < (section > 130).sum() / body.sum() < 0.18


def test_air_surrounds_the_body(men):
    for man in men:
        for outside in (slice(None, 8), slice(-8, None)):
            assert man.ct[:, outside].mean() == pytest.approx(-1000, abs=5)
            assert man.mr[:, outside].mean() < 0.1 * np.percentile(man.mr, 95)


def test_tissue_signals_follow_the_spin_echo_equation():
    assert spin_echo(TISSUES["fat"]) == pytest.approx((1 - np.exp(-2500 / 382)) * np.exp(-80 / 68))
    signals = {name: spin_echo(tissue) for name, tissue in TISSUES.items()}
    assert max(signals, key=signals.__getitem__) == "urine"
    solid = {name: signal for name, signal in signals.items() if TISSUES[name].pd > 0}
    assert min(solid, key=solid.__getitem__) == "cortical bone"
    assert signals["peripheral zone"] > signals["transition zone"] > signals["muscle"]


def test_urine_is_brightest_and_cortical_bone_darkest_on_mr(sharp):
    fat = (sharp.ct > -130) & (sharp.ct < -80)
    urine = inside(sharp, BLADDER, 5) & (sharp.ct < 40)
    parts = [sharp.ct > 550, inside(sharp, PROSTATE), fat, urine]
    cortex, prostate, fat_signal, urine_signal = (np.median(sharp.mr[part]) for part in parts)
    assert cortex < 0.5 * prostate
    assert prostate < urine_signal
    assert fat_signal < urine_signal
    assert np.percentile(sharp.mr, 99.9) < 1.5 * urine_signal


def test_bone_is_above_soft_tissue_above_fat_above_air_on_ct(sharp):
    bone = np.median(sharp.ct[inside(sharp, LEFT)])
    prostate = np.median(sharp.ct[inside(sharp, PROSTATE)])
    bladder = np.median(sharp.ct[inside(sharp, BLADDER, 5)])
    assert bone > prostate + 50
    assert 0 < prostate < 90
    assert -40 < bladder < 60
    assert (sharp.ct > 500).mean() > 0.002  # the rims of bones
    assert np.percentile(sharp.ct[(sharp.ct < -50) & (sharp.ct > -200)], 50) == pytest.approx(-105, abs=20)


def test_bias_field_spans_its_range_smoothly():
    axes = tuple(np.linspace(-200, 200, 41, dtype=np.float32) for _ in range(3))
    bias = phantom.bias_field(np.random.default_rng(0), axes)
    assert (bias.min(), bias.max()) == (pytest.approx(0.9), pytest.approx(1.1))
    assert max(np.abs(np.diff(bias, axis=axis)).max() for axis in range(3)) < 0.03


def test_noise_alone_is_rayleigh_and_strong_signal_keeps_its_mean():
    noise = phantom.rician(np.zeros((60, 60, 60), np.float32), 2.0, np.random.default_rng(0))
    assert noise.mean() == pytest.approx(2 * np.sqrt(np.pi / 2), rel=0.01)
    strong = phantom.rician(np.full((60, 60, 60), 100, np.float32), 2.0, np.random.default_rng(0))
    assert strong.mean() == pytest.approx(100, rel=0.002)


def test_polygon_distance_agrees_with_a_square():
    x, y = np.meshgrid(np.linspace(-3, 3, 25), np.linspace(-3, 3, 25), indexing="ij")
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)], np.float32)
    found = polygon_distance(x[None], y[None], corners[:, :1], corners[:, 1:])[0]
    beyond = np.maximum(np.abs(np.stack([x, y])) - 1, 0)
    expected = np.hypot(*beyond) + np.minimum(np.maximum(np.abs(x), np.abs(y)) - 1, 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_smooth_union_joins_at_the_seam_and_is_the_nearer_shape_elsewhere():
    a, b = np.float32([0, -5, 7]), np.float32([0, 7, -5])
    np.testing.assert_allclose(smooth_union(a, b, 4.0), [-1, -5, -5])


def test_field_is_the_same_whatever_the_voxels():
    field = Field.draw(np.random.default_rng(0), (20, 20, 20))
    coarse = np.linspace(-100, 100, 21, dtype=np.float32)
    fine = np.linspace(-100, 100, 41, dtype=np.float32)
    values = field.on((fine, fine, fine))
    np.testing.assert_allclose(values[::2, ::2, ::2], field.on((coarse, coarse, coarse)), atol=1e-5)
    assert values.std() == pytest.approx(1, abs=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_phantom(tmp_path_factory.mktemp("data") / "pelvis", patients=3, seed=5, **TINY)


@pytest.mark.parametrize("patient", range(3))
def test_written_files_hold_the_generated_patient(folder, patient):
    man = generate(5, patient, **TINY)
    for name in ("mr", "ct", "labels"):
        image = nib.load(folder / f"patient_{patient:03d}" / f"{name}.nii.gz")
        np.testing.assert_array_equal(np.asarray(image.dataobj), getattr(man, name))
        np.testing.assert_allclose(image.affine, man.affine, atol=1e-4)
        assert image.get_data_dtype() == getattr(man, name).dtype


def test_written_folder_says_what_it_is(folder):
    assert (folder / "split.csv").read_text().split() == [
        "patient,split",
        "patient_000,train",
        "patient_001,validation",
        "patient_002,test",
    ]
    names = json.loads((folder / "labels.json").read_text())
    assert names == {str(value): name for value, name in LABEL_NAMES.items()}
    settings = json.loads((folder / "phantom.json").read_text())
    assert (settings["patients"], settings["seed"], settings["shape"]) == (3, 5, [48, 40, 8])
    assert [path.name for path in folder.parent.iterdir()] == ["pelvis"]


def test_folder_with_the_same_settings_is_kept_as_it_is(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert write_phantom(folder, patients=3, seed=5, **TINY) == folder
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"notes.txt": "mine"}, "found other files; choose another folder"),
        ({"phantom.json": "{"}, "found other files"),
        ({"phantom.json": '{"version": 1, "patients": 3, "seed": 6}'}, "seed 6 instead of 5"),
    ],
)
def test_folder_with_other_content_is_refused_in_one_line_and_left_alone(tmp_path, content, said):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said) as caught:
        write_phantom(tmp_path, patients=3, seed=5, **TINY)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == content


def test_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "pelvis").write_text("")
    with pytest.raises(DataError, match="found other files"):
        write_phantom(tmp_path / "pelvis", patients=1, **TINY)


def test_nothing_half_written_stays_when_a_patient_fails(tmp_path, monkeypatch):
    def failing(seed, patient, shape, spacing):
        if patient == 1:
            raise MemoryError
        return generate(seed, patient, shape, spacing)

    monkeypatch.setattr(phantom, "generate", failing)
    with pytest.raises(MemoryError):
        write_phantom(tmp_path / "pelvis", patients=3, **TINY)
    assert not list(tmp_path.iterdir())


def test_files_do_not_depend_on_the_number_of_workers(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(phantom, "WORKERS", 1)
    alone = write_phantom(tmp_path, patients=3, seed=5, **TINY)
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 3 * 3 + 3
    for file in files:
        assert (alone / file).read_bytes() == (folder / file).read_bytes()


def test_progress_counts_every_patient(tmp_path):
    told = []
    write_phantom(tmp_path / "a" / "b", patients=2, progress=lambda done, of: told.append((done, of)), **TINY)
    assert told == [(1, 2), (2, 2)]


def test_fifteen_patients_split_ten_two_three():
    parts = split(15)
    assert [parts.count(part) for part in ("train", "validation", "test")] == [10, 2, 3]


@pytest.mark.parametrize("patients", range(3, 40))
def test_no_part_is_empty_and_all_patients_are_in_one(patients):
    parts = split(patients)
    assert len(parts) == patients
    assert {*parts} == {"train", "validation", "test"}
    assert parts == sorted(parts, key=["train", "validation", "test"].index)


def test_negative_seed_is_refused_in_one_line():
    with pytest.raises(DataError, match="expected 0 or more, found -1"):
        generate(-1, 0, **TINY)
