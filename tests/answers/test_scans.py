"""A scan has one answer: the scores of evaluate and of the report are those of the volumes that predict writes."""

import re

import numpy as np
import pytest

import filtergroups as fg
from filtergroups.tables import results_table
from tests.answers.reading import dice, same, section_of, volume

TOLD = r"<h3>(\S+) · .*?On the whole scan: ct PSNR \(dB\) \S+, ct mean abs. error ([\d.]+), organs Dice ([\d.]+)\."


def test_scores_are_those_of_the_volumes(scans, tmp_path):
    errors, overlaps = {}, {}
    for name, file in zip(scans.names, scans.files, strict=True):
        errors[name] = np.abs(volume(scans.out / name / "ct.nii.gz") - volume(file / "ct.nii.gz")).mean()
        here, there = volume(scans.out / name / "organs.nii.gz"), volume(file / "labels.nii.gz")
        overlaps[name] = np.mean([dice(here == organ, there == organ) for organ in np.unique([here, there]) if organ])
    tasks = scans.result["tasks"]
    assert np.mean(list(errors.values())) == pytest.approx(tasks["ct"]["mae"]["overall"]["mean"], rel=1e-3)
    assert np.mean(list(overlaps.values())) == pytest.approx(tasks["organs"]["dice"]["overall"]["mean"], rel=1e-3)
    text = section_of(fg.report(scans.run, tmp_path / "report.html").read_text(), "predictions")
    shown = re.findall(TOLD, text, re.DOTALL)
    assert shown
    for name, error, overlap in shown:
        assert same(error, errors[name])
        assert float(overlap) == pytest.approx(overlaps[name], abs=6e-4)
    if len(shown) > 1:
        assert shown[1][0] in scans.names


def test_only_several_patients_have_a_deviation(scans):
    results = [scans.result, *(fg.evaluate(scans.run, split=part, samples=1) for part in ("validation", "train"))]
    assert {result["examples"] > 1 for result in results} == {True, False}
    for result in results:
        assert ("±" in results_table(result)) == (result["examples"] > 1)


def test_the_number_at_the_end_of_a_training_is_evaluate_s(scans):
    found = re.search(r"best checkpoint, step \d+: validation ct psnr (\S+), ct mae (\S+), organs dice (\S+)\n",
                      (scans.run / "log.txt").read_text())  # fmt: skip
    assert found is not None
    tasks = fg.evaluate(scans.run, split="validation", samples=4)["tasks"]
    for text, (task, metric) in zip(found.groups(), (("ct", "psnr"), ("ct", "mae"), ("organs", "dice")), strict=True):
        assert f"{tasks[task][metric]['overall']['mean']:.4g}" == text
