"""Honest uncertainty: measured against independent references, corrected, kept with the run."""

import csv
import json
import shutil
import subprocess
import sys

import pytest
import torch
from torchmetrics.classification import MulticlassCalibrationError

import filtergroups as fg
from filtergroups.calibrating import calibrate
from filtergroups.calibration import CalibrationMeter, Coverage, Labelled, Reliability
from filtergroups.config_file import make_config
from filtergroups.correction import (
    BOUNDS,
    NORMAL_QUANTILE,
    Correction,
    conformal_quantile,
    fit_interval,
    fit_temperature,
    half_width,
    load_corrections,
    negative_log_likelihood,
    save_corrections,
    tempered,
)
from filtergroups.data.examples import DataError
from filtergroups.data.load import prepare_data
from filtergroups.data.phantom import write_phantom
from filtergroups.evaluation import evaluate
from filtergroups.inference import predict
from filtergroups.progress import Silent
from filtergroups.run import Run, RunError
from filtergroups.tables import results_table
from filtergroups.training import train
from tests.data.pictures import picture_table, table_tree
from tests.laws import generator


def classes(count=20_000, kinds=4, sharpness=1.0, seed=0):
    """Labels drawn from softmax(logits); the predictor says softmax(sharpness · logits)."""
    g = generator(seed)
    logits = 1.5 * torch.randn(count, kinds, generator=g)
    labels = torch.multinomial(logits.softmax(1), 1, generator=g)[:, 0]
    return (sharpness * logits).softmax(1), labels


def calibration_error(probabilities, labels):
    meter = Reliability()
    meter.add(probabilities, labels)
    return meter.error


def coverage(error, half):
    meter = Coverage()
    meter.add(error, torch.zeros_like(error), half)
    return meter.coverage


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 3.0])
def test_the_calibration_error_is_that_of_torchmetrics(sharpness):
    probabilities, labels = classes(3000, sharpness=sharpness)
    reference = MulticlassCalibrationError(4, n_bins=15)
    reference.update(probabilities, labels)
    meter = Reliability()
    for part in torch.arange(3000).split(700):  # in batches, as an evaluation does
        meter.add(probabilities[part], labels[part])
    assert meter.error == pytest.approx(reference.compute().item(), abs=1e-6)
    bins = meter.bins()
    assert sum(entry["count"] for entry in bins) == 3000
    right = sum(entry["accuracy"] * entry["count"] for entry in bins)
    assert right == pytest.approx(int((probabilities.argmax(1) == labels).sum()))


def test_a_calibrated_predictor_needs_no_correction():
    probabilities, labels = classes()
    assert fit_temperature(probabilities, labels).value == pytest.approx(1, abs=0.03)
    assert calibration_error(probabilities, labels) < 0.015
    spread = torch.rand(20_000, generator=generator()) + 0.5
    error = spread * torch.randn(20_000, generator=generator(1))
    assert fit_interval(error, spread).value == pytest.approx(1.645, abs=0.04)
    assert coverage(error, half_width(spread, None)) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_a_temperature_undoes_wrong_confidence_on_examples_that_it_never_saw(sharpness):
    probabilities, labels = classes(sharpness=sharpness)
    found = fit_temperature(probabilities, labels).value
    assert found == pytest.approx(sharpness, rel=0.05)
    assert negative_log_likelihood(tempered(probabilities, found), labels) < negative_log_likelihood(
        probabilities, labels
    )
    others, truth = classes(sharpness=sharpness, seed=1)
    assert calibration_error(tempered(others, found), truth) < 0.02 < calibration_error(others, truth)


def test_the_temperature_is_where_the_likelihood_has_no_slope():
    probabilities, labels = classes(500, sharpness=2.0)
    found = fit_temperature(probabilities, labels).value
    temperature = torch.tensor(found, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(probabilities.double().log() / temperature, labels)
    (slope,) = torch.autograd.grad(loss, temperature)
    assert slope.abs() < 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_on_its_own_examples_a_temperature_never_raises_the_loss(seed):
    g = generator(seed)
    probabilities = torch.randn(12, 3, generator=g).mul(4).softmax(1)
    labels = torch.randint(0, 3, (12,), generator=g)
    found = fit_temperature(probabilities, labels).value
    assert BOUNDS[0] <= found <= BOUNDS[1]
    after = negative_log_likelihood(tempered(probabilities, found), labels)
    assert after <= negative_log_likelihood(probabilities, labels) + 1e-9


def test_perfect_and_impossible_answers_keep_the_temperature_within_bounds():
    labels = torch.arange(20) % 2
    sure = torch.nn.functional.one_hot(labels, 2).float()  # exact zeros: their logarithm is not taken
    for probabilities in (sure, 0.9 * sure + 0.05, 1 - sure):
        found = fit_temperature(probabilities, labels).value
        assert BOUNDS[0] <= found <= BOUNDS[1]
        assert tempered(probabilities, found).isfinite().all()


@pytest.mark.parametrize("temperature", [0.05, 0.7, 20.0])
def test_a_correction_never_changes_the_most_probable_class(temperature):
    probabilities, _ = classes(2000)
    corrected = tempered(probabilities, temperature)
    assert torch.equal(corrected.argmax(1), probabilities.argmax(1))
    torch.testing.assert_close(corrected.sum(1), torch.ones(2000, dtype=torch.float64))
    maps = probabilities.reshape(20, 10, 10, 4).movedim(-1, 1)
    torch.testing.assert_close(tempered(maps, temperature).movedim(1, -1).reshape(-1, 4), corrected)


@pytest.mark.parametrize("count", [9, 19, 40, 500])
def test_conformal_intervals_hold_as_often_as_they_say(count):
    """On average over calibration sets of any size, with errors that are anything but normal."""
    g = generator(count)
    held = []
    for _ in range(400):
        spread = torch.rand(count + 50, generator=g) + 0.1
        error = spread * torch.randn(count + 50, generator=g) ** 3
        found = fit_interval(error[:count], spread[:count])
        assert found.kind == "scale"
        held.append(coverage(error[count:], half_width(spread[count:], found)))
    mean = sum(held) / len(held)
    assert 0.89 < mean < 0.9 + 1 / (count + 1) + 0.01


def test_the_quantile_is_the_finite_sample_one():
    scores = torch.arange(1.0, 20.0)[torch.randperm(19, generator=generator())]
    assert conformal_quantile(scores) == 18  # of 19 scores, with the next one 20: 18 / 20 = 0.9
    assert conformal_quantile(torch.arange(1.0, 10.0)) == 9
    assert conformal_quantile(torch.ones(8)) == float("inf")


def test_without_spread_the_interval_is_constant():
    error = torch.randn(1000, generator=generator()) * 7
    found = fit_interval(error, torch.zeros(1000))
    assert found == Correction("constant", pytest.approx(error.abs().quantile(0.9).item(), rel=0.02), 1000)
    assert coverage(error, half_width(torch.zeros(1000), found)) == pytest.approx(0.9, abs=0.002)


def test_some_examples_without_spread():
    error, spread = torch.randn(1000, generator=generator()), torch.ones(1000)
    spread[:50] = 0
    assert fit_interval(error, spread).kind == "scale"
    spread[:150] = 0  # more than the tenth that may lie outside: no factor helps
    assert fit_interval(error, spread).kind == "constant"
    error[:150] = 0  # an interval without width holds the value itself
    assert fit_interval(error, spread).kind == "scale"


def test_too_little_to_fit_is_one_line():
    with pytest.raises(ValueError, match="at least 9 labelled examples"):
        fit_interval(torch.ones(8), torch.ones(8))
    with pytest.raises(ValueError, match="at least 9 labelled examples"):
        fit_temperature(torch.full((3, 2), 0.5), torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match="two classes"):
        fit_temperature(torch.full((20, 2), 0.5), torch.zeros(20, dtype=torch.long))


def test_missing_labels_and_masks_drop_out_and_voxels_are_drawn_by_a_seed():
    task = fg.ImageRegression("ct")
    label = torch.arange(24.0).reshape(2, 3, 4)
    label[0, 0] = float("nan")
    mask = torch.ones(2, 3, 4)
    mask[1, 2] = 0
    prediction = fg.Prediction(label + 1, torch.full_like(label, 2.0))
    found = Labelled.of(task, prediction, label, mask, 100, seed=0)
    assert found.truth.tolist() == [*range(4, 12), *range(12, 20)]
    assert (found.value - found.truth == 1).all()
    few, again, other = (Labelled.of(task, prediction, label, mask, 5, seed=seed).truth for seed in (1, 1, 2))
    assert len(few) == 5
    assert torch.equal(few, again)
    assert not torch.equal(few, other)
    organs = fg.Segmentation("organs", classes=3)
    probabilities = torch.rand(2, 3, 3, 4, generator=generator()).softmax(1)
    target = torch.randint(-1, 3, (2, 3, 4), generator=generator())
    found = Labelled.of(organs, fg.Prediction(target, target, probabilities), target, None, 100, seed=0)
    assert torch.equal(found.probabilities, probabilities.movedim(1, -1)[target >= 0])


def test_a_task_without_any_label_has_no_figures():
    tasks = [fg.Regression("level"), fg.Classification("pattern", classes=2)]
    meter = CalibrationMeter(tasks, {})
    nothing = torch.full((4,), float("nan"))
    meter.add(
        {"level": fg.Prediction(nothing, nothing), "pattern": fg.Prediction(nothing, nothing, torch.rand(4, 2))},
        {"level": nothing, "pattern": torch.full((4,), -1)},
        {},
    )
    found = meter.results()
    assert set(found["level"].values()) == {None}
    assert found["pattern"] == {"ece": None, "ece_corrected": None, "bins": []}


def test_corrections_are_kept_by_kind_and_step(tmp_path):
    run = Run(tmp_path)
    sampled, mode = {"a": Correction("scale", 2.0, 30)}, {"a": Correction("constant", 5.0, 30)}
    assert load_corrections(run, "mode", 7) == ({}, None)
    save_corrections(run, "sampled", 7, sampled)
    save_corrections(run, "mode", 8, mode)
    assert load_corrections(run, "sampled", 7) == (sampled, None)
    assert load_corrections(run, "mode", 8) == (mode, None)
    found, stale = load_corrections(run, "mode", 9)
    assert found == {}
    assert "step 8" in stale
    kept = json.loads(run.calibration.read_text())
    assert kept["sampled"] == {"a": {"kind": "scale", "value": 2.0, "examples": 30}}
    assert kept["step"] == {"sampled": 7, "mode": 8}
    for text in ("{", "[]", '{"step": {"mode": 8}}', '{"step": {"mode": 8}, "mode": {"a": {"sort": 1}}}'):
        run.calibration.write_text(text)
        with pytest.raises(RunError, match="expected what `filtergroups calibrate` writes"):
            load_corrections(run, "mode", 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    picture_table(folder, count=150)
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    train(make_config(table_tree(folder, folder / "labels.csv", epochs=4)), run)
    return run


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def cli(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "filtergroups.cli", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def test_from_a_run_to_corrected_predictions(trained, folder, tmp_path):
    """calibrate, evaluate and predict, as a user types them."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    images = sorted((folder / "images").glob("*.png"))[:6]
    done = predict(run, images, tmp_path / "before.csv", samples=4)
    (note,) = done.notes
    assert note.endswith(f"are not corrected; `filtergroups calibrate {run}` corrects them")
    before = read(tmp_path / "before.csv")
    for row in before:
        middle, spread = float(row["level"]), float(row["level_std"])
        assert float(row["level_low"]) == pytest.approx(middle - 1.645 * spread, rel=1e-2, abs=1e-2)  # both are rounded
        assert float(row["level_high"]) == pytest.approx(middle + 1.645 * spread, rel=1e-2, abs=1e-2)
        assert 0 <= float(row["pattern_mutual_information"]) <= float(row["pattern_entropy"]) + 1e-6
    done = cli("calibrate", run, "--samples", 4)
    assert "interval: ±" in done.stdout
    assert "temperature" in done.stdout
    kept = json.loads((run / "calibration.json").read_text())
    assert set(kept) == {"sampled", "step"}
    done = cli("evaluate", run, "--samples", 4, "--statistics", "recalibrated")
    assert "90 % interval, coverage" in done.stdout
    result = Run(run).results()[-1]["calibration"]
    ratio = kept["sampled"]["level"]["value"] / NORMAL_QUANTILE
    assert result["level"]["width_corrected"] == pytest.approx(ratio * result["level"]["width"], rel=1e-4)
    assert result["pattern"]["ece_corrected"] is not None
    assert (
        "are corrected, as `calibrate` fitted them"
        in cli("predict", run, *images, "-o", tmp_path / "after.csv", "--samples", 4).stdout
    )
    factor = kept["sampled"]["level"]["value"]
    for old, new in zip(before, read(tmp_path / "after.csv"), strict=True):
        assert (old["level"], old["pattern"], old["level_std"]) == (new["level"], new["pattern"], new["level_std"])
        half = (float(new["level_high"]) - float(new["level_low"])) / 2
        assert half == pytest.approx(factor * float(new["level_std"]), rel=1e-2)
    (note,) = predict(run, images, tmp_path / "mode.csv", samples=0).notes
    assert note == (
        f"no spread: there is one pass; `filtergroups calibrate {run} --samples 0` gives 90 % intervals "
        "and corrects probabilities"
    )
    assert not {"level_std", "level_low", "level_high"} & set(read(tmp_path / "mode.csv")[0])


def test_the_mode_network_gets_a_constant_interval_and_the_other_set_is_kept(trained, folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    fg.calibrate(run, samples=3)
    found = calibrate(run, samples=0)
    assert found["tasks"]["level"]["kind"] == "constant"
    assert found["validation"]["level"]["coverage_corrected"] >= 0.9
    validation = found["validation"]["pattern"]
    assert validation["nll_corrected"] <= validation["nll"] + 1e-9
    assert set(json.loads((run / "calibration.json").read_text())) == {"sampled", "mode", "step"}
    images = sorted((folder / "images").glob("*.png"))[:3]
    predict(run, images, tmp_path / "out.csv", samples=0)
    for row in read(tmp_path / "out.csv"):
        half = (float(row["level_high"]) - float(row["level_low"])) / 2
        assert half == pytest.approx(found["tasks"]["level"]["value"], rel=1e-3)
    result = evaluate(run, samples=0)
    assert result["calibration"]["level"]["coverage_corrected"] is not None
    assert not result["notes"]
    of_batch = evaluate(run, samples=0, statistics="batch")
    assert any("recalibrated" in note for note in of_batch["notes"])
    assert "corrected" in results_table(result)


def test_corrections_of_another_checkpoint_are_not_used(trained, folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    calibrate(run, samples=0)
    kept = json.loads((run / "calibration.json").read_text())
    kept["step"]["mode"] += 1
    (run / "calibration.json").write_text(json.dumps(kept))
    done = predict(run, sorted((folder / "images").glob("*.png"))[:1], tmp_path / "out.csv", samples=0)
    assert "belongs to step" in done.notes[0]
    result = evaluate(run, samples=0)
    assert result["calibration"]["level"]["coverage_corrected"] is None
    assert "belongs to step" in result["notes"][0]


def test_a_validation_part_that_is_too_small_is_one_line(tmp_path):
    picture_table(tmp_path, count=30)
    run = tmp_path / "run"
    train(make_config(table_tree(tmp_path, tmp_path / "labels.csv", epochs=1)), run)
    with pytest.raises(DataError, match=r"nothing to calibrate: .*at least 9 labelled examples.*validation") as caught:
        calibrate(run, samples=0)
    assert "\n" not in str(caught.value)
    split = tmp_path / "labels.split.csv"
    split.write_text(split.read_text().replace("validation", "test"))
    with pytest.raises(DataError, match="part 'validation', found none"):
        calibrate(run, samples=0)


def test_what_calibrate_could_not_fit_is_not_promised_again(tmp_path):
    """With 8 labelled values no interval can be had: only more labels help. What is always wrong has no temperature."""
    picture_table(tmp_path, count=60, missing=False)
    table, split = tmp_path / "labels.csv", tmp_path / "labels.split.csv"
    rows = read(table)
    tree = table_tree(tmp_path, table, epochs=4, learning_rate=0.01)
    prepare_data(make_config(tree), Silent().preparing)  # draws the split
    validation = [row["file"] for row in read(split) if row["split"] == "validation"]
    for row in rows:
        row["level"] = "" if row["image"] in validation[8:] else row["level"]
        if row["image"] in validation:
            row["pattern"] = {"plain": "striped", "striped": "plain"}[row["pattern"]]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    run = tmp_path / "run"
    train(make_config(tree), run)
    found = calibrate(run, samples=0)
    assert set(found["tasks"]) == {"pattern"}
    assert found["tasks"]["pattern"]["value"] == pytest.approx(BOUNDS[1], rel=1e-3)
    assert any("equal probabilities of all classes do better" in note for note in found["notes"]), found["notes"]
    images = sorted((tmp_path / "images").glob("*.png"))[:3]
    (note,) = predict(run, images, tmp_path / "out.csv", samples=0).notes
    assert note.endswith("gives 90 % intervals for level once enough of its examples are labelled for that")


def test_scans_are_calibrated_by_voxel(tmp_path):
    import nibabel

    root = tmp_path / "phantom"
    write_phantom(root, 4, 0, shape=(24, 24, 6), spacing=(17.0, 17.0, 15.0))
    tree = {
        "data": {"kind": "scans", "root": str(root), "patch": 16, "patches_per_patient": 4,
                 "cache": str(tmp_path / "cache")},
        "network": {"name": "highresnet", "width": 0.125},
        "training": {"epochs": 2, "batch_size": 4, "accelerator": "cpu", "threads": 1},
    }  # fmt: skip
    run = tmp_path / "run"
    train(make_config(tree), run)
    with pytest.raises(RunError, match=r"--intervals: .*calibrate"):
        predict(run, [root / "patient_000"], tmp_path / "none", samples=0, intervals=True)
    found = calibrate(run, samples=2)
    assert found["tasks"]["ct"]["kind"] == "scale"
    assert found["tasks"]["organs"]["kind"] == "temperature"
    assert found["validation"]["ct"]["coverage_corrected"] == pytest.approx(0.9, abs=0.01)
    result = evaluate(run, samples=2)
    assert result["statistics"] == "recalibrated"
    assert result["calibration"]["ct"]["coverage_corrected"] > 0.5
    assert result["calibration"]["organs"]["bins"]
    predict(run, [root / "patient_000"], tmp_path / "out", samples=2, intervals=True)
    low, middle, high = (
        nibabel.load(tmp_path / "out" / "patient_000" / f"ct{end}.nii.gz").get_fdata() for end in ("_low", "", "_high")
    )
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert (low < high).any()
    predict(run, [root / "patient_000"], tmp_path / "plain", samples=2)
    assert not (tmp_path / "plain" / "patient_000" / "ct_low.nii.gz").exists()
