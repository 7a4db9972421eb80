"""A resumed training knows what it was trained on and by: what has changed since is named, and refused or accepted."""

import csv
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import filtergroups as fg
from filtergroups import origin, writing
from filtergroups.checkpoint import Progress, load_checkpoint, save_checkpoint
from filtergroups.config_file import dump_config, make_config
from filtergroups.data.phantom import write_phantom
from filtergroups.evaluation import evaluate
from filtergroups.run import Run, RunError
from filtergroups.signals import Stopped
from filtergroups.training import Diverged, Trainer, resume, train
from tests.data.pictures import face_folder, picture_table, table_tree
from tests.test_training import EXPLODES, assert_same_weights, weights_of

CLI = [sys.executable, "-m", "filtergroups.cli"]


def config_for(folder, **training):
    return make_config(table_tree(folder, folder / "labels.csv", **training))


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of two epochs that has done one, with its data beside it."""
    folder = tmp_path_factory.mktemp("begun")
    picture_table(folder)
    stop_after(config_for(folder, epochs=2, checkpoint_every=2), folder / "run", 5)
    return folder


@pytest.fixture
def folder(begun, tmp_path):
    """A copy whose config names the copied data."""
    folder = tmp_path / "copy"
    shutil.copytree(begun, folder)
    config = folder / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(begun), str(folder)))
    return folder


def stop_after(config, run, steps):
    """Ctrl-C in that step, so that there is a checkpoint of it."""
    step = Trainer._step

    def stopped(trainer, number):
        step(trainer, number)
        if number + 1 == steps:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", stopped)
        with pytest.raises(Stopped):
            train(config, run)


def content_of(run):
    return {
        path.name: path.read_bytes() for path in run.rglob("*")
        if path.is_file() and path.name not in (".lock", "log.txt")
    }  # fmt: skip


def rewritten(folder, change):
    """The table with its rows changed; the split stays as it is."""
    table = folder / "labels.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows = change(rows) or rows
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def trained_on(folder):
    """The names of the images of the training part."""
    with (folder / "labels.split.csv").open(newline="") as file:
        return [row[0] for row in csv.reader(file) if row[1] == "train"]


def another_image(folder):
    name = trained_on(folder)[0]
    path = folder / "images" / name
    pixels = np.array(Image.open(path))
    pixels[0:12] = 255 - pixels[0:12]
    time = path.stat()
    Image.fromarray(pixels).save(path)
    os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns))
    return f"the image changed in 1 of {len(trained_on(folder))} rows of the part 'train': '{name}'"


def another_label(folder):
    names = trained_on(folder)

    def change(rows):
        row = next(row for row in rows if row["image"] in names and row["level"])
        row["level"] = "12.5"
        changed.append(row["image"])

    changed = []
    rewritten(folder, change)
    return f"the label of task 'level' changed in 1 of {len(names)} rows of the part 'train': '{changed[0]}'"


def a_row_less(folder):
    name = trained_on(folder)[3]
    rewritten(folder, lambda rows: [row for row in rows if row["image"] != name])
    return f"1 row of the part 'train' is gone: '{name}'"


def another_order(folder):
    rewritten(folder, lambda rows: rows[::-1])
    return "the rows of the part 'train' are in another order"


def another_class_name(folder):
    def change(rows):
        for row in rows:
            row["pattern"] = row["pattern"].replace("striped", "lined")

    rewritten(folder, change)
    return """the classes of task 'pattern' were ["plain", "striped"], are ["lined", "plain"]"""


def a_setting(old, new, said):
    def change(folder):
        config = folder / "run" / "config.toml"
        text = config.read_text()
        assert text.count(old) == 1
        config.write_text(text.replace(old, new))
        return said

    return change


CHANGES = {
    "image": another_image,
    "label": another_label,
    "row": a_row_less,
    "order": another_order,
    "class name": another_class_name,
    "scale": a_setting("scale = 100.0", "scale = 50.0", "tasks.level.scale was 100.0, is 50.0"),
    "seed": a_setting("seed = 0\ntasks", "seed = 1\ntasks", "seed was 0, is 1"),
    "batch size": a_setting("batch_size = 8", "batch_size = 6", "training.batch_size was 8, is 6"),
    "augmentation": a_setting("flip = true", "flip = false", "data.flip was true, is false"),
    "learning rate": a_setting("learning_rate = 0.001", "learning_rate = 0.01", "training.learning_rate was 0.001"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_named_and_refused_and_goes_on_where_it_is_accepted(folder, name):
    said = CHANGES[name](folder)
    before = content_of(folder / "run")
    with pytest.raises(RunError, match="--accept-changes") as caught:
        resume(folder / "run")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert content_of(folder / "run") == before  # nothing is lost by trying

    run = resume(folder / "run", accept_changes=True)
    config = run.config()
    of_an_epoch = len(trained_on(folder)) // config.training.batch_size
    if name == "row":
        of_an_epoch = (len(trained_on(folder)) - 1) // config.training.batch_size
    assert load_checkpoint(run.checkpoint("last"))[0].step == config.training.epochs * of_an_epoch
    assert f"accepted: {said}" in (run.path / "log.txt").read_text()
    resume(run.path)  # what was accepted is from now on how it was


def test_on_the_command_line_too(folder):
    said = another_image(folder)
    command = [*CLI, "resume", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    done = subprocess.run([*command, "--accept-changes"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_did_not_change_is_not_refused(folder, tmp_path):
    """The same data in another place, read anew from another cache, on another number of threads."""
    moved = tmp_path / "moved"
    folder.rename(moved)
    shutil.rmtree(moved / "cache")
    names = {"table": "labels.csv", "root": "images", "cache": "cache", "split_file": "labels.split.csv"}
    places = [f"data.{key}={moved / name}" for key, name in names.items()]
    whole = tmp_path / "whole"
    train(config_for(moved, epochs=2, checkpoint_every=2), whole)
    resume(moved / "run", overrides=[*places, "training.checkpoint_every=5"])
    assert_same_weights(weights_of(moved / "run"), weights_of(whole))


def test_a_setting_of_the_loop_may_be_set_for_the_rest(folder):
    run = resume(folder / "run", overrides=["training.learning_rate=1e-4", "training.epochs=3"])
    assert run.config().training.learning_rate == 1e-4
    assert load_checkpoint(run.checkpoint("last"))[0].step == 3 * (len(trained_on(folder)) // 8)


@pytest.mark.parametrize("setting", ["training.batch_size=4", "network.width=0.125", "data.flip=false"])
def test_what_is_no_setting_of_the_loop_is_refused_though_it_is_asked_for(folder, setting):
    before = content_of(folder / "run")
    with pytest.raises(ValueError, match="expected"):
        resume(folder / "run", overrides=[setting])
    assert content_of(folder / "run") == before


def test_another_network_is_refused_in_one_line_even_if_it_is_accepted(folder):
    with pytest.raises(RunError, match="expected the weights of this config's network") as caught:
        resume(folder / "run", overrides=["network.width=0.125"], accept_changes=True)
    assert "\n" not in str(caught.value)
    assert Run(folder / "run").config().network.width == 0.0625


def test_two_checkpoints_are_kept_one_after_the_other(folder):
    run = Run(folder / "run")
    steps = [load_checkpoint(run.checkpoint(name))[0].step for name in ("previous", "last")]
    assert steps == [4, 5]
    resume(run.path, checkpoint="previous")
    previous, last = (load_checkpoint(run.checkpoint(name))[0].step for name in ("previous", "last"))
    assert 4 < previous < last


def test_from_the_previous_checkpoint_it_ends_as_from_the_last(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder / "run", other)
    resume(folder / "run")
    resume(other, checkpoint="previous")
    assert_same_weights(weights_of(other), weights_of(folder / "run"))
    assert Run(other).metrics() == Run(folder / "run").metrics()


@pytest.mark.parametrize("spoil", ["a bit", "cut short", "gone"])
def test_where_the_last_checkpoint_is_damaged_it_goes_on_from_the_one_before(folder, tmp_path, spoil):
    other = tmp_path / "other"
    shutil.copytree(folder / "run", other)
    resume(other)
    last = folder / "run" / "last.safetensors"
    content = bytearray(last.read_bytes())
    if spoil == "gone":
        last.unlink()
    else:
        content[-100] ^= 1
        last.write_bytes(content if spoil == "a bit" else content[:-5000])
    resume(folder / "run")
    assert_same_weights(weights_of(folder / "run"), weights_of(other))
    log = (folder / "run" / "log.txt").read_text()
    assert "so it goes on from the one before it, step 4" in log


def test_both_checkpoints_damaged_end_in_one_line(folder):
    for name in ("last", "previous"):
        path = folder / "run" / f"{name}.safetensors"
        path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(RunError, match=r"last\.safetensors: expected a whole checkpoint") as caught:
        resume(folder / "run")
    assert "\n" not in str(caught.value)


def test_a_run_that_diverged_goes_on_with_a_lower_learning_rate(begun, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Diverged) as caught:
        train(config_for(begun, epochs=50, checkpoint_every=1, **EXPLODES), run)
    command = str(caught.value).split("`")[1]
    assert command.startswith(f"filtergroups resume {run} --set training.learning_rate=10")
    _, tensors = load_checkpoint(Run(run).checkpoint("previous"))
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())
    arguments = [
        "resume", str(run), "--from", "previous", "--set", "training.learning_rate=1e-4",
        "--set", "training.weight_decay=0.9", "--set", "training.epochs=8", "--set", "training.clip_norm=1",
    ]  # fmt: skip
    done = subprocess.run([*CLI, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = [entry for entry in Run(run).metrics() if entry["kind"] == "train"][-1]
    assert all(math.isfinite(loss) for loss in last["losses"].values())


def test_a_run_that_diverged_before_its_first_checkpoint_begins_anew_by_what_is_set(begun, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Diverged, match="nothing is saved yet: `filtergroups resume") as caught:
        train(config_for(begun, epochs=50, checkpoint_every=1000, **EXPLODES), run)
    assert "begins anew" in str(caught.value)
    overrides = ["training.learning_rate=1e-4", "training.weight_decay=0.1", "training.epochs=2"]
    resume(run, overrides=overrides)
    assert Run(run).config().training.learning_rate == 1e-4
    resume(run)  # its config is the one that it was trained by


@pytest.mark.parametrize("begun_by", ["this version", "an earlier one"])
def test_what_is_set_holds_from_now_on(folder, begun_by):
    """Also where the data lie, which is no change of theirs."""
    if begun_by != "this version":
        of_an_earlier_version(folder / "run")
    moved = folder / "moved"
    (folder / "images").rename(moved)
    resume(folder / "run", overrides=["training.learning_rate=1e-4", f"data.root={moved}"])
    config = Run(folder / "run").config()
    assert (config.training.learning_rate, config.data.root) == (1e-4, moved)
    resume(folder / "run")
    evaluate(folder / "run")


def test_settings_of_a_run_of_an_earlier_version_are_refused_and_accepted_like_others(folder):
    of_an_earlier_version(folder / "run")
    with pytest.raises(RunError, match=r"data\.flip was true, is false"):
        resume(folder / "run", overrides=["data.flip=false"])
    assert Run(folder / "run").config().data.flip
    resume(folder / "run", overrides=["data.flip=false"], accept_changes=True)
    assert not Run(folder / "run").config().data.flip


class Killed(BaseException):
    """As if the process had ended there."""


def killed_in(step, monkeypatch):
    def killed(trainer, number, own=Trainer._step):
        if number == step:
            raise Killed
        own(trainer, number)

    monkeypatch.setattr(Trainer, "_step", killed)


def test_killed_soon_after_it_went_back_nothing_is_missing(begun, tmp_path, monkeypatch):
    """The last checkpoint is of a future whose metrics are dropped: nobody goes on from it any more."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    config = config_for(begun, epochs=5, checkpoint_every=10)
    stop_after(config, run, 18)
    with monkeypatch.context() as patch:
        killed_in(12, patch)
        with pytest.raises(Killed):
            resume(run, checkpoint="previous")
    resume(run)
    train(config, whole)
    assert_same_weights(weights_of(run), weights_of(whole))
    assert Run(run).metrics() == Run(whole).metrics()
    assert sorted(os.listdir(run / "assignments")) == sorted(os.listdir(whole / "assignments"))


def test_the_two_checkpoints_are_of_two_steps(begun, tmp_path):
    """Also where the signal comes in a step after which one is written anyway."""
    run = tmp_path / "run"
    stop_after(config_for(begun, epochs=2, checkpoint_every=2), run, 6)
    assert [load_checkpoint(Run(run).checkpoint(name))[0].step for name in ("previous", "last")] == [4, 6]


def test_kernels_are_fixed_though_the_last_phase_is_set_when_it_should_have_begun(begun, tmp_path):
    run = tmp_path / "run"
    stop_after(config_for(begun, epochs=3, checkpoint_every=2), run, 8)
    resume(run, overrides=["training.finetune_epochs=2"])  # from step 5 on
    assert load_checkpoint(Run(run).checkpoint("last"))[0].fixed
    assert "every kernel is now fixed" in (run / "log.txt").read_text()


@pytest.mark.parametrize("setting", ["method.name=constant_p", "training.uncertainty_weighting=true"])
def test_what_decides_which_numbers_are_trained_stays(folder, setting):
    before = content_of(folder / "run")
    with pytest.raises(RunError, match="or train a new run") as caught:
        resume(folder / "run", overrides=[setting], accept_changes=True)
    assert "\n" not in str(caught.value)
    assert content_of(folder / "run") == before


def test_without_a_part_that_chooses_the_best_is_the_end_of_a_longer_training_too(begun, tmp_path):
    split = tmp_path / "split.csv"
    split.write_text((begun / "labels.split.csv").read_text().replace(",validation", ",test"))
    tree = table_tree(begun, begun / "labels.csv", epochs=1)
    tree["data"]["split_file"] = str(split)
    run = train(make_config(tree), tmp_path / "run")
    resume(run, overrides=["training.epochs=2"])
    best, last = (load_checkpoint(run.checkpoint(name))[0].step for name in ("best", "last"))
    assert best == last


def test_there_is_no_previous_checkpoint_yet_is_said(folder):
    (folder / "run" / "previous.safetensors").unlink()
    with pytest.raises(RunError, match="expected the checkpoint before the last, found none; resume without --from"):
        resume(folder / "run", checkpoint="previous")


def rewritten_checkpoint(run, change):
    """The only checkpoint of a run, changed and without a checksum."""
    (run / "previous.safetensors").unlink()
    last = run / "last.safetensors"
    tensors, content = load_file(last), last.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    progress = json.loads(header["progress"])
    change(progress, tensors)
    save_file(tensors, last, {"format": header["format"], "progress": json.dumps(progress)})


def of_an_earlier_version(run):
    """Without settings, fingerprints and checksum."""

    def change(progress, tensors):
        del progress["config"], progress["versions"]
        for name in [name for name in tensors if name.startswith(origin.PREFIX)]:
            del tensors[name]

    rewritten_checkpoint(run, change)


def a_tensor(name, value):
    return lambda progress, tensors: tensors.update({name: value})


FOREIGN = {
    "tasks that are a number": lambda progress, tensors: progress["config"].update(tasks=5),
    "tasks that are numbers": lambda progress, tensors: progress["config"].update(tasks=[5]),
    "names that are a number": a_tensor("data/train/names", torch.tensor(list(b"5"), dtype=torch.uint8)),
    "names that are lists": a_tensor("data/train/names", torch.tensor(list(b"[[1]]"), dtype=torch.uint8)),
    "too few fingerprints": a_tensor("data/train/image", torch.zeros(3, dtype=torch.int64)),
    "fingerprints of no axis": a_tensor("data/train/image", torch.zeros((), dtype=torch.int64)),
    "an average of another shape": a_tensor("optimiser/0/exp_avg", torch.zeros(3)),
    "an average of no parameter": a_tensor("optimiser/99999/exp_avg", torch.zeros(3)),
    "half a state": a_tensor("optimiser/99999/step", torch.zeros(())),
    "a weight of no task": a_tensor("weights/x", torch.zeros(3)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_checkpoint_of_somebody_else_is_refused_in_one_line(folder, name):
    rewritten_checkpoint(folder / "run", FOREIGN[name])
    with pytest.raises(RunError) as caught:
        resume(folder / "run")
    assert "\n" not in str(caught.value)


def test_no_checkpoint_is_read_through_a_link_out_of_the_run(folder):
    (folder / "run" / "previous.safetensors").unlink()
    for name in ("last", "best"):
        path = folder / "run" / f"{name}.safetensors"
        path.rename(folder / path.name)
        path.symlink_to(folder / path.name)
    for command in (resume, evaluate):
        with pytest.raises(RunError, match="leads out of"):
            command(folder / "run")


def test_another_voxel_size_of_a_scan_is_named(tmp_path):
    """Its voxels are the same, but patches are turned in mm."""
    write_phantom(tmp_path / "scans", 4, 0, shape=(32, 24, 8), spacing=(12.6, 11.2, 10.5))
    data = {"kind": "scans", "root": str(tmp_path / "scans"), "patch": 16, "patches_per_patient": 8}
    tree = {
        "data": {**data, "cache": str(tmp_path / "cache")},
        "network": {"name": "highresnet", "width": 0.0625},
        "training": {"epochs": 2, "batch_size": 4, "checkpoint_every": 2, "threads": 1, "accelerator": "cpu"},
    }
    stop_after(make_config(tree), tmp_path / "run", 3)
    for patient in (tmp_path / "scans").iterdir():
        for path in patient.glob("*.nii.gz"):
            scan = nibabel.load(path)
            affine = scan.affine @ np.diag([1, 1, 2, 1])
            nibabel.save(nibabel.Nifti1Image(np.asarray(scan.dataobj), affine), path)
    with pytest.raises(RunError, match="the voxel size changed in"):
        resume(tmp_path / "run")


def test_a_command_beside_a_training_sweeps_nothing_that_it_is_about_to_keep(tmp_path, monkeypatch):
    last, previous = tmp_path / "last.safetensors", tmp_path / "previous.safetensors"
    writing.write_atomically(last, b"first")
    replace = os.replace

    def swept_before(source, target):
        writing._swept.clear()
        writing.sweep(tmp_path)
        replace(source, target)

    monkeypatch.setattr(os, "replace", swept_before)
    writing.write_atomically(last, b"second", before=previous)
    assert (previous.read_bytes(), last.read_bytes()) == (b"first", b"second")


def test_a_first_checkpoint_that_finds_no_room_speaks_of_none_before_it(tmp_path, monkeypatch):
    network = fg.vgg11([fg.Regression("age")], width=0.0625)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device; free some space, then resume"):
        save_checkpoint(tmp_path / "last.safetensors", network, Progress())
    with pytest.raises(OSError, match=r"report\.html"):
        writing.write_atomically(tmp_path / "report.html", b"a")
    assert list(tmp_path.iterdir()) == []


def test_other_versions_of_libraries_are_said(folder, monkeypatch):
    monkeypatch.setattr(origin, "versions", lambda: {**load_checkpoint(last)[0].versions, "torch": "99.0"})
    last = Run(folder / "run").checkpoint("last")
    resume(folder / "run")
    assert "other versions than before: torch" in (folder / "run" / "log.txt").read_text()


def test_a_run_of_an_earlier_version_goes_on(folder):
    """Its checkpoint has neither settings nor fingerprints, nor a checksum."""
    of_an_earlier_version(folder / "run")
    run = resume(folder / "run")
    assert "begun by an earlier version" in (run.path / "log.txt").read_text()
    assert load_checkpoint(run.checkpoint("last"))[0].config  # from now on they are known


def test_results_of_what_will_be_another_future_are_dropped(begun, tmp_path):
    run = tmp_path / "run"
    config = config_for(begun, epochs=4, checkpoint_every=2)
    train(config, run)
    evaluate(run, split="test", checkpoint="last")
    assert len(Run(run).results()) == 2
    resume(run, overrides=["training.learning_rate=1e-4"], checkpoint="previous")
    results = Run(run).results()
    assert [result["split"] for result in results] == ["validation"]  # that of its new end
    assert load_checkpoint(Run(run).checkpoint("last"))[0].config["training"]["learning_rate"] == 1e-4


def test_a_shorter_training_than_was_done_is_refused(folder):
    with pytest.raises(RunError, match=r"raise training\.epochs"):
        resume(folder / "run", overrides=["training.epochs=1", "training.batch_size=12"], accept_changes=True)


def test_faces_and_their_names_have_fingerprints_too(tmp_path):
    folder = face_folder(tmp_path / "faces")
    tree = {
        "data": {"kind": "faces", "root": str(folder), "size": 16, "cache": str(tmp_path / "cache")},
        "network": {"name": "vgg11", "width": 0.0625, "hidden": 8},
        "training": {"epochs": 2, "batch_size": 8, "checkpoint_every": 2, "threads": 1, "accelerator": "cpu"},
    }
    stop_after(make_config(tree), tmp_path / "run", 3)
    face = sorted(folder.glob("*.jpg"))[0]
    pixels = np.array(Image.open(face))
    Image.fromarray(255 - pixels).save(face)
    with pytest.raises(
        RunError, match=rf"found changes: .*'{face.name}'"
    ):  # its part may be another: twins stay together
        resume(tmp_path / "run")


def test_dumped_settings_are_read_again(folder):
    """A resumed run writes its config anew: it is the same config."""
    config = Run(folder / "run").config()
    path = folder / "again.toml"
    path.write_text(dump_config(config))
    assert origin.settings(Run(folder / "run").config()) == origin.settings(config)
