"""Numbers that are not finite are named as the user knows them, and are never written over finite ones."""

import math

import pytest
import torch

import filtergroups as fg
from filtergroups import training
from filtergroups.checkpoint import load_checkpoint
from filtergroups.config_file import make_config
from filtergroups.finite import check_finite, not_finite
from filtergroups.run import Run
from filtergroups.training import Diverged, Trainer, train
from tests.backbones import ResNet18
from tests.data.pictures import picture_table, table_tree

TASKS = [fg.Regression("age"), fg.Classification("gender", classes=2)]
BAD = [math.nan, math.inf, -math.inf]


def trained_once(network):
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    images, labels = torch.randn(4, 3, 32, 32), {"age": torch.rand(4), "gender": torch.tensor([0, 1, 0, 1])}
    outputs = network(images, temperature=1.0, generator=torch.Generator().manual_seed(0))
    fg.objective(network, outputs, labels).total.backward()
    optimiser.step()
    return optimiser


def test_a_sound_training_is_finite():
    network = fg.vgg11(TASKS, width=0.0625)
    assert not_finite(network, optimiser=trained_once(network)) == []


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("backbone.layers.4.weight", "'layers.4.weight'"),
        ("backbone.layers.4.assignment.rho", "p of layer 'layers.4'"),
        ("backbone.layers.5.running_var", "'layers.5.running_var'"),
        ("heads.gender.2.bias", "'2.bias' of the head of task 'gender'"),
    ],
)
def test_each_number_that_is_not_finite_is_named(key, name, bad):
    network = fg.vgg11(TASKS, width=0.0625)
    network.state_dict()[key].view(-1)[-1] = bad
    assert not_finite(network) == [name]


def test_a_p_of_nothing_by_nothing_is_named():
    """ρ itself is finite, and so far below 0 that softplus of it is 0 in every group."""
    network = fg.vgg11(TASKS, width=0.0625)
    list(network.grouped_layers())[2].assignment.rho.data[1] = -1e30
    assert not_finite(network) == ["p of layer 'layers.8'"]


def test_the_state_of_the_optimiser_is_named_by_its_parameter():
    network = fg.vgg11(TASKS, width=0.0625)
    optimiser = trained_once(network)
    first, _ = list(network.grouped_layers())[:2]
    optimiser.state[first.weight]["exp_avg_sq"][0] = math.inf
    assert not_finite(network, optimiser=optimiser) == ["Adam's average of 'layers.0.weight'"]


def test_tied_layers_are_named_together():
    network = fg.lift(ResNet18(width=8), TASKS)
    found = {}
    for assignment in network.assignments():
        assignment.rho.data[0, 0] = math.nan
        found[not_finite(network)[0]] = assignment
        assignment.rho.data[0, 0] = 0.0
    assert len(found) == len(network.assignments())
    assert any(name.startswith("p of layers '") for name in found)


def test_the_message_says_what_to_lower():
    network = fg.vgg11(TASKS, width=0.0625)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(Diverged, match=r"more; nothing is saved yet; lower training.probability_factor or") as caught:
        check_finite(network, what="step 3", kept="nothing is saved yet")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    picture_table(folder)
    return folder


def config_for(folder, **settings):
    return make_config(table_tree(folder, folder / "labels.csv", **settings))


def poisons(monkeypatch, spoil, at):
    """After a step something is not finite, as after an update that overflowed."""
    step = Trainer._step

    def poisoned(trainer, number):
        step(trainer, number)
        if number == at:
            spoil(trainer)

    monkeypatch.setattr(training.Trainer, "_step", poisoned)


def assignment_of(trainer):
    return list(trainer.network.grouped_layers())[1].assignment


SPOILS = {
    "p of layer 'layers.4'": lambda t: assignment_of(t).rho.data[0].fill_(math.nan),
    "'layers.4.weight'": lambda t: list(t.network.grouped_layers())[1].weight.data[0].fill_(math.inf),
    "'2.weight' of the head of task 'level'": lambda t: t.network.heads["level"][2].weight.data.fill_(math.nan),
    "Adam's average of p of layer 'layers.4'": lambda t: t.optimiser.state[assignment_of(t).rho]["exp_avg"].fill_(
        math.inf
    ),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_checkpoint_is_never_overwritten_by_what_is_not_finite(folder, tmp_path, monkeypatch, name):
    """Spoiled in the step before a checkpoint: no later loss has shown it, only the check can."""
    run = tmp_path / "run"
    poisons(monkeypatch, SPOILS[name], at=11)
    with pytest.raises(Diverged) as caught:
        train(config_for(folder, epochs=6, checkpoint_every=3, validate_every=12), run)
    assert name in str(caught.value)
    assert "the last checkpoint is kept" in str(caught.value)
    progress, tensors = load_checkpoint(Run(run).checkpoint("last"))
    assert progress.step == 9
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())
    for best in run.glob("best*.safetensors"):
        assert all(t.isfinite().all() for t in load_checkpoint(best)[1].values() if t.is_floating_point())


@pytest.mark.parametrize("name", [name for name in SPOILS if "Adam" not in name])
def test_a_step_whose_loss_is_not_finite_names_the_parameter(folder, tmp_path, monkeypatch, name):
    """A gate of NaN is not above any threshold: its kernel would be left out and the tasks' losses stay finite."""
    poisons(monkeypatch, SPOILS[name], at=1)
    with pytest.raises(Diverged, match="at step 2") as caught:
        train(config_for(folder, epochs=6, checkpoint_every=1000), tmp_path / "run")
    assert name in str(caught.value)
    assert "nothing is saved yet" in str(caught.value)
    assert "\n" not in str(caught.value)
