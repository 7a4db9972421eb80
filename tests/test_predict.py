"""Predictions with spread, and the mode network."""

import pytest
import torch

import filtergroups as fg
from tests.laws import generator

TASKS = [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]


@pytest.fixture
def network():
    torch.manual_seed(0)
    return fg.vgg11(TASKS, width=0.125)


@pytest.fixture
def images():
    return torch.randn(6, 3, 32, 32, generator=generator())


def test_samples_equal_the_passes_they_stand_for(network, images):
    found = network.predict(images, samples=5, generator=generator(1))
    network.eval()
    g = generator(1)
    with torch.no_grad():
        outputs = torch.stack([network(images, temperature=0.1, generator=g)["age"] for _ in range(5)])
    torch.testing.assert_close(found["age"].value, 100 * outputs.mean(0)[:, 0])
    torch.testing.assert_close(found["age"].spread, 100 * outputs.std(0)[:, 0], rtol=1e-4, atol=1e-5)
    assert (found["age"].spread > 0).all()
    assert found["gender"].value.shape == (6,)


def test_no_samples_is_the_mode_network_without_spread(network, images):
    one, two = network.predict(images, samples=0), network.predict(images, samples=0)
    assert torch.equal(one["age"].value, two["age"].value)
    assert torch.equal(one["age"].spread, torch.zeros(6))


def test_running_statistics_keep_predictions_apart_from_their_batch(network, images):
    together = network.predict(images, samples=0)["age"].value
    alone = torch.cat([network.predict(image[None], samples=0)["age"].value for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-3)
    by_batch = network.predict(images, samples=0, statistics="batch")["age"].value
    half = network.predict(images[:3], samples=0, statistics="batch")["age"].value
    assert not torch.allclose(by_batch[:3], half)


def test_predicting_leaves_the_network_as_it_was(network, images):
    network.backbone.layers[0].eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.predict(images, samples=2, generator=generator(), statistics="batch")
    assert network.training
    assert not network.backbone.layers[0].training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_bad_requests_are_refused(network, images):
    with pytest.raises(ValueError, match="samples is 0"):
        network.predict(images, samples=-1)
    with pytest.raises(ValueError, match="needs a generator"):
        network.predict(images, samples=3)
    with pytest.raises(ValueError, match="'running' or 'batch'"):
        network.predict(images, samples=0, statistics="population")


def test_a_network_can_be_saved_and_loaded(network, images, tmp_path):
    torch.save(network.state_dict(), tmp_path / "net.pt")
    other = fg.vgg11(TASKS, width=0.125)
    other.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    for samples in (0, 3):
        one, two = (n.predict(images, samples=samples, generator=generator(2)) for n in (network, other))
        assert torch.equal(one["age"].value, two["age"].value)
