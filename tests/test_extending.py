"""A task is added to a network that is done: the old tasks stay as they are, and the new one learns."""

import shutil

import pytest
import torch

from filtergroups.checkpoint import load_checkpoint
from filtergroups.config import ConfigError
from filtergroups.config_file import make_config
from filtergroups.extending import joined
from filtergroups.groups.routing import family
from filtergroups.restored import open_run
from filtergroups.run import Run, RunError
from filtergroups.statistics import use_recalibrated
from filtergroups.training import resume, train
from tests.data.pictures import face_folder

READS_ALL = [["age", "race"], ["gender", "race"], ["race"], ["age", "gender", "race"]]


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    face_folder(folder / "faces", count=120)
    return folder


def config_for(folder, tasks, *, method, fraction=1.0, extra=0.0, **training):
    return make_config(
        {
            "data": {"kind": "faces", "root": str(folder / "faces"), "size": 32, "tasks": tasks,
                     "cache": str(folder / "cache"), "fraction": fraction},
            "network": {"name": "vgg11", "width": 0.125, "extra": extra, "hidden": 8},
            "method": method,
            "training": {"epochs": 3, "batch_size": 8, "threads": 1, "accelerator": "cpu", "learning_rate": 5e-3,
                         **training},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def old(faces):
    """Age and gender, with kernels in every group."""
    run = faces / "old"
    method = {"name": "sfg", "init": "random"}
    train(config_for(faces, ["age", "gender"], method=method, finetune_epochs=1), run)
    return run


@pytest.fixture(scope="module", params=["tasks+shared", "all"])
def extended(request, faces, old):
    groups = READS_ALL if request.param == "all" else request.param
    method = {"name": "fixed_mask", "extend": str(old), "groups": groups}
    run = faces / f"extended-{request.param}"
    # Fewer images than the old network had: another mean and deviation, if they were learned anew.
    train(config_for(faces, ["age", "gender", "race"], method=method, fraction=0.5, extra=0.5), run)
    return run


@pytest.mark.parametrize("statistics", ["batch", "running", "recalibrated"])
def test_what_the_old_tasks_say_stays_the_same(old, extended, statistics):
    images = torch.randn(6, 3, 32, 32)
    answers = []
    for run in (old, extended):
        restored = open_run(run)
        if statistics == "recalibrated":
            assert use_recalibrated(restored, 0) is None
        norms = "batch" if statistics == "batch" else "running"
        answers.append(restored.network.predict(images, 0, statistics=norms))
    for task in ("age", "gender"):
        torch.testing.assert_close(answers[1][task].value, answers[0][task].value, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(answers[1][task].spread, answers[0][task].spread, rtol=1e-5, atol=1e-6)


def test_norm_statistics_that_are_made_anew_are_the_old_network_s_too(extended, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(extended, run)
    kept = Run(run).statistics("best").read_bytes()
    Run(run).statistics("best").unlink()
    assert use_recalibrated(open_run(run), 0) is None
    assert Run(run).statistics("best").read_bytes() == kept


def test_images_are_seen_as_the_old_network_saw_them(old, extended):
    before, _ = load_checkpoint(Run.open(old).checkpoint("best"))
    after, _ = load_checkpoint(Run.open(extended).checkpoint("best"))
    assert after.constants["mean"] == before.constants["mean"]
    assert after.constants["deviation"] == before.constants["deviation"]


def test_only_the_new_task_has_learned(extended):
    """Kernels of race have moved from their start; every kernel of another group is where it was."""
    config = Run.open(extended).config()
    from filtergroups.build import build_network
    from filtergroups.restored import described_data
    from filtergroups.starting import take_over

    restored = open_run(extended)
    start = build_network(config, described_data(config, restored.progress))
    take_over(start, config.method)
    own = restored.network.family.names.index("race")
    layers = zip(start.grouped_layers(), restored.network.grouped_layers(), strict=True)
    for before, after in layers:
        groups = after.assignment.mode()
        assert torch.equal(groups, before.assignment.mode())
        assert (groups == own).sum() == len(groups) // 3
        changed = (after.weight != before.weight).flatten(1).any(1)
        assert torch.equal(changed, groups == own)


def test_an_extended_run_that_is_resumed_keeps_the_old_kernels(faces, old, extended, tmp_path):
    config = Run.open(extended).config()
    run = tmp_path / "resumed"
    run.mkdir()
    short = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 1})})
    train(short, run / "first")
    resume(run / "first", overrides=[f"training.epochs={config.training.epochs}"])
    one, two = (load_checkpoint(Run(path).checkpoint("last"))[1] for path in (extended, run / "first"))
    assert all(torch.equal(one[name], two[name]) for name in one if name.startswith("network/"))


def test_groups_that_would_disturb_the_old_tasks_are_refused():
    old = family(["age", "gender"])
    new = ["age", "gender", "race"]
    assert joined(old, family(new)) == ([0, 1, 3], 2)
    assert joined(old, family(new, READS_ALL)) == ([0, 1, 3], 2)
    # Race would join the shared group of some and not of others: age's kernels would lose what they read.
    uneven = [["age", "race"], ["gender"], ["race"], ["age", "gender"], ["age", "gender", "race"]]
    for groups in (uneven, "all_subsets"):
        with pytest.raises(RunError, match="each of the groups"):
            joined(old, family(new, groups))
    with pytest.raises(RunError, match="each of the groups"):
        joined(old, old)


def test_a_network_of_another_width_is_refused(faces, old, tmp_path):
    config = config_for(faces, ["age", "gender", "race"], method={"name": "fixed_mask", "extend": str(old)})
    narrow = config.model_copy(update={"network": config.network.model_copy(update={"width": 0.0625})})
    with pytest.raises(RunError, match="expected room for"):
        train(narrow, tmp_path / "narrow")


def test_extending_is_refused_where_it_could_not_keep_its_word(faces, old):
    with pytest.raises(ConfigError, match=r"method\.extend is for the method 'fixed_mask'"):
        config_for(faces, ["age", "gender", "race"], method={"name": "sfg", "extend": str(old)})
    with pytest.raises(ConfigError, match="weight_decay"):
        config_for(
            faces, ["age", "race"], method={"name": "fixed_mask", "extend": str(old)}, weight_decay=0.1
        )  # fmt: skip
