"""Norm statistics over the training data: exact, kept with the run, and nothing else moves."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import update_bn

import filtergroups as fg
from filtergroups.config_file import make_config
from filtergroups.evaluation import evaluate
from filtergroups.inference import predict
from filtergroups.networks.highresnet import HighResNet
from filtergroups.networks.vgg import VGG11
from filtergroups.restored import open_run
from filtergroups.run import Run
from filtergroups.statistics import load_statistics, recalibrate, running_statistics, statistics_for
from filtergroups.training import resume, train
from tests.data.pictures import picture_table, table_tree
from tests.laws import fix_at_random, generator, randomise

IMAGES = [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]
SCANS = [fg.ImageRegression("ct"), fg.Segmentation("organs", classes=3)]


def made(name, **options):
    """A network, some batches for it and its plain backbone."""
    torch.manual_seed(0)
    if name == "vgg11":
        plain: nn.Module = VGG11(3, 0.125)
        network = fg.lift(plain, IMAGES, **options)
    else:
        plain = HighResNet(2, 1, 0.25)
        network = fg.lift(plain, SCANS, group="stages.*.conv", **options)
    shape = (4, network.channels, 32, 32) if name == "vgg11" else (4, network.channels, 16, 16)
    batches = [2 * torch.randn(shape, generator=generator(n)) + n for n in range(3)]
    return network, batches, plain


NETWORKS = pytest.mark.parametrize("name", ["vgg11", "highresnet"])


@NETWORKS
@pytest.mark.parametrize("samples", [0, 3])
def test_a_prediction_does_not_depend_on_the_other_images_of_its_batch(name, samples):
    network, batches, _ = made(name)
    randomise(network)
    network.double()
    batches = [batch.double() for batch in batches]
    recalibrate(network, batches, sampled=samples > 0, temperature=0.5, generator=generator())
    own, others = batches[0], batches[2]

    def of_first(images):
        found = network.predict(images, samples, generator(1))
        fields = (getattr(p, field) for p in found.values() for field in ("value", "spread", "probabilities"))
        return [field[:2] for field in fields if field is not None]

    for together, elsewhere in zip(of_first(own), of_first(torch.cat([own[:2], others])), strict=True):
        torch.testing.assert_close(together, elsewhere, rtol=0, atol=1e-6)


@NETWORKS
def test_with_all_kernels_shared_they_are_those_of_the_plain_network(name):
    network, batches, plain = made(name, method="hard_sharing")
    update_bn(batches, plain)
    recalibrate(network, batches, sampled=False)
    full = network.family.full
    norms = {n: m for n, m in plain.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert norms
    found = running_statistics(network.backbone)
    for norm, module in norms.items():
        for buffer in ("running_mean", "running_var"):
            expected = getattr(module, buffer)
            torch.testing.assert_close(found[f"{norm}.{buffer}"][full], expected, rtol=1e-4, atol=1e-5)


@NETWORKS
def test_fixed_groups_sampled_and_at_the_mode_are_the_same(name):
    network, batches, _ = made(name)
    fix_at_random(network)
    recalibrate(network, batches, sampled=False)
    mode = {key: value.clone() for key, value in running_statistics(network).items()}
    recalibrate(network, batches, sampled=True, temperature=0.5, generator=generator())
    assert all(torch.equal(value, mode[key]) for key, value in running_statistics(network).items())


@pytest.mark.parametrize("estimator", ["soft", "straight_through"])
def test_under_sampled_gates_every_pair_has_statistics(estimator):
    """Also where a hard gate of 0 leaves a kernel out of nearly every pass."""
    network, batches, _ = made("vgg11", estimator=estimator, init=torch.tensor([1e-4, 1e-4, 1 - 2e-4]))
    for buffer in running_statistics(network).values():
        buffer.fill_(-1e6)
    recalibrate(network, batches, sampled=True, temperature=0.1, generator=generator())
    assert all((buffer > -1e3).all() for buffer in running_statistics(network).values())


def test_the_average_over_draws_is_that_of_their_batches():
    network, batches, _ = made("vgg11", threshold=0.0)
    first = next(norm for norm in network.modules() if hasattr(norm, "running_mean"))
    convolution = network.backbone.layers[0]
    recalibrate(network, batches, sampled=True, temperature=0.5, generator=generator())
    features = [nn.functional.conv2d(b, convolution.weight, convolution.bias, padding=1) for b in batches]
    for group in range(3):  # the first layer reads the image, whatever the gates
        mean = torch.stack([f.mean((0, 2, 3)) for f in features]).mean(0)
        var = torch.stack([f.var((0, 2, 3)) for f in features]).mean(0)
        torch.testing.assert_close(first.running_mean[group], mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(first.running_var[group], var, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sampled", [False, True])
def test_nothing_but_running_statistics_changes(sampled):
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=0.3), nn.Sequential(nn.BatchNorm2d(8), nn.Dropout(0.5))
    )
    network = fg.lift(backbone, IMAGES, per_stream="2", merge="sum")
    network.backbone[1].eval()
    batches = [torch.randn(4, 3, 8, 8, generator=generator(n)) for n in range(2)]
    state = {name: value.clone() for name, value in network.state_dict().items()}
    flags = {module: module.training for module in network.modules()}
    momenta = {module: getattr(module, "momentum", None) for module in network.modules()}
    random = torch.get_rng_state()
    recalibrate(network, batches, sampled=sampled, temperature=0.5, generator=generator())
    assert torch.equal(torch.get_rng_state(), random)
    assert {module: module.training for module in network.modules()} == flags
    assert {module: getattr(module, "momentum", None) for module in network.modules()} == momenta
    assert network.threshold == 1e-3
    statistics = running_statistics(network)
    assert len(statistics) == 2 + 2 * 3
    for name, value in network.state_dict().items():
        assert (name in statistics) or torch.equal(value, state[name]), name
    assert any(not torch.equal(value, state[name]) for name, value in statistics.items())


def test_without_images_or_after_a_failure_it_stays_as_it_was():
    network, batches, _ = made("vgg11")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(ValueError, match="at least one batch"):
        recalibrate(network, [], sampled=False)
    with pytest.raises(ValueError, match="images are batch"):
        recalibrate(network, [batches[0], torch.zeros(1)], sampled=False)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    picture_table(folder)
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    train(make_config(table_tree(folder, folder / "labels.csv", epochs=3)), run)
    return run


def test_training_keeps_them_once_and_resuming_makes_what_is_missing(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    file = Run(run).statistics("best")
    content, time = file.read_bytes(), file.stat().st_mtime_ns
    restored = open_run(run)
    sets = load_statistics(file, restored.network, restored.progress.step)
    assert {name.partition("/")[0] for name in sets} == {"mode", "sampled"}
    assert load_statistics(file, restored.network, restored.progress.step + 1) is None
    resume(run)
    assert file.stat().st_mtime_ns == time
    file.unlink()
    resume(run)
    assert file.read_bytes() == content


def test_on_demand_they_are_those_of_training(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    Run(run).statistics("best").write_bytes(b"broken")
    restored = open_run(run)
    for kind in ("mode", "sampled"):
        found = statistics_for(restored, kind)
        kept = load_file(Run(trained).statistics("best"))
        assert all(torch.equal(kept[f"{kind}/{name}"], value) for name, value in found.items())
    assert Run(run).statistics("best").read_bytes() == Run(trained).statistics("best").read_bytes()
    assert not Run(run).statistics("last").exists()
    statistics_for(open_run(run, "last"), "mode")
    assert Run(run).statistics("last").exists()


def test_where_the_training_data_is_gone_it_is_said(trained, folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    Run(run).statistics("best").unlink()
    text = (run / "config.toml").read_text().replace(str(folder / "labels.csv"), str(tmp_path / "gone.csv"))
    (run / "config.toml").write_text(text)
    files = sorted((folder / "images").glob("*.png"))[:3]
    done = predict(run, files, tmp_path / "out.csv", samples=2)
    assert done.count == 3
    assert any("not recalibrated" in note and "gone.csv" in note for note in done.notes)
    assert "not recalibrated" in (run / "log.txt").read_text()
    done = predict(trained, files, tmp_path / "other.csv", samples=2)
    assert not any("not recalibrated" in note for note in done.notes)


def test_evaluation_by_each_kind_of_statistics(trained):
    found = {how: evaluate(trained, samples=0, statistics=how) for how in ("batch", "running", "recalibrated")}
    assert {how: result["statistics"] for how, result in found.items()} == {how: how for how in found}
    errors = [result["tasks"]["level"]["mae"] for result in found.values()]
    assert len(set(errors)) == 3
    assert evaluate(trained, samples=0)["tasks"] == found["recalibrated"]["tasks"]
    # What is measured is what `predict` says, also of sampled passes.
    assert evaluate(trained, samples=2)["statistics"] == "recalibrated"
    with pytest.raises(ValueError, match="statistics is one of"):
        evaluate(trained, statistics="population")
