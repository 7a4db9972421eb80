"""Whole scans by windows, and their scores by patient and region."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import filtergroups as fg
from filtergroups.data.examples import Volume
from filtergroups.volumes import dice, measure_volume, over_patients, predict_volume, psnr, slide
from tests.laws import generator, randomise

TASKS = [fg.ImageRegression("ct", scale=1024, offset=1), fg.Segmentation("organs", classes=3)]


@pytest.fixture(params=[2, 3])
def network(request):
    net = fg.highresnet(TASKS, width=0.25, spatial_dims=request.param)
    randomise(net)
    return net


def window(network, size=12):
    return (size,) * network.spatial_dims


def test_one_window_is_one_padded_pass(network):
    image = torch.randn(1, 12, 12, 12, generator=generator())
    found = predict_volume(network, image, window=window(network), padding=2, samples=0)
    stack = image.permute(3, 0, 1, 2) if network.spatial_dims == 2 else image[None]
    network.eval()
    with torch.no_grad():
        outputs = network(F.pad(stack, [2] * (2 * network.spatial_dims)))
    inside = (slice(None), slice(None), *[slice(2, -2)] * network.spatial_dims)
    expected = (outputs["ct"][inside][:, 0] - 1) * 1024
    expected = expected.movedim(0, -1) if network.spatial_dims == 2 else expected[0]
    torch.testing.assert_close(found["ct"].value, expected, rtol=1e-3, atol=1e-2)
    assert found["organs"].value.shape == (12, 12, 12)


def test_all_windows_of_a_pass_share_their_gates(network):
    """Each pass by itself, with its own gates for the whole volume, gives the same mean and spread."""
    image = torch.randn(1, 24, 12, 12, generator=generator())
    arguments = {"window": window(network), "padding": 0, "windows_at_once": 2}
    found = predict_volume(network, image, samples=7, seed=5, **arguments)
    g = generator(5)
    stack = image.permute(3, 0, 1, 2) if network.spatial_dims == 2 else image[None]
    volumes = []
    with network.evaluating("running"), torch.no_grad():
        for _ in range(7):
            state = g.get_state()

            def one_pass(windows, state=state):
                g.set_state(state)
                return network(windows, 0.1, g)

            volumes.append(slide(stack, window(network), one_pass, 2)["ct"])
    expected = torch.stack(volumes).std(0)[:, 0] * 1024
    expected = expected.movedim(0, -1) if network.spatial_dims == 2 else expected[0]
    assert (found["ct"].spread > 0).any()
    torch.testing.assert_close(found["ct"].spread, expected, rtol=1e-3, atol=1e-2)
    assert torch.equal(predict_volume(network, image, samples=7, seed=5, **arguments)["ct"].value, found["ct"].value)


def test_scores_against_their_definitions():
    truth = torch.rand(6, 6, 6, generator=generator()) * 1000
    where = torch.zeros(6, 6, 6, dtype=torch.bool)
    where[:3] = True
    assert psnr(truth + 10, truth, where, 1000.0) == pytest.approx(40.0, abs=1e-4)
    assert psnr(truth, truth, ~(where | ~where), 1000.0) is None
    a, b = torch.zeros(10, dtype=torch.bool), torch.zeros(10, dtype=torch.bool)
    a[:4], b[2:8] = True, True
    everywhere = torch.ones(10, dtype=torch.bool)
    assert dice(a, b, everywhere) == pytest.approx(2 * 2 / 10)
    assert dice(a & False, b & False, everywhere) is None


def test_regions_and_missing_voxels_of_a_patient():
    labels = torch.zeros(4, 4, 4, dtype=torch.long)
    labels[0], labels[1] = 1, 2
    truth = torch.arange(64.0).reshape(4, 4, 4) * 10
    truth[3] = float("nan")
    mask = torch.ones(4, 4, 4)
    mask[2] = 0
    volume = Volume("p", torch.zeros(1, 4, 4, 4), {"ct": truth, "organs": labels}, {"ct": mask}, np.eye(4))
    guess = {
        "ct": fg.Prediction(torch.nan_to_num(truth) + 3.1, truth),
        "organs": fg.Prediction(labels.clone(), truth),
    }
    guess["organs"].value[0, 0] = 0
    found = measure_volume(TASKS, guess, volume, {"organs": ["background", "liver", "<b>"]}, bone_above=200.0)
    assert found["ct"]["mae"]["overall"] == pytest.approx(3.1, rel=1e-4)
    expected = 10 * np.log10((310 / 3.1) ** 2)  # the range inside is 0 to 310
    for region in ("overall", "organs", "liver", "<b>", "bone"):
        assert found["ct"]["psnr"][region] == pytest.approx(expected, abs=1e-3)
    assert found["organs"]["dice"]["liver"] == pytest.approx(2 * 12 / 28)
    assert found["organs"]["dice"]["<b>"] == 1.0
    summary = over_patients([found, found])
    assert summary["organs"]["dice"]["overall"] == {
        "mean": pytest.approx((2 * 12 / 28 + 1) / 2), "std": 0.0, "patients": 2,
    }  # fmt: skip
