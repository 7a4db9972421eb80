"""Training that survives being stopped, and says in one line what went wrong."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import filtergroups as fg
from filtergroups import training
from filtergroups.build import build_network
from filtergroups.checkpoint import load_checkpoint
from filtergroups.config import ConfigError
from filtergroups.config_file import dump_config, make_config
from filtergroups.data.examples import DataError
from filtergroups.data.load import load_data
from filtergroups.evaluation import evaluate
from filtergroups.inference import predict
from filtergroups.measuring import measure
from filtergroups.progress import Silent
from filtergroups.restored import open_run
from filtergroups.run import Run, RunError
from filtergroups.schedule import learning_rate_at, noise_at, temperature_at
from filtergroups.signals import Stopped
from filtergroups.training import Diverged, Trainer, resume, train
from tests.data.pictures import face_folder, picture_table, table_tree

CLI = [sys.executable, "-m", "filtergroups.cli"]
EXPLODES = {"optimiser": "adamw", "learning_rate": 100.0, "weight_decay": 100.0, "probability_factor": 1e-3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    picture_table(folder)
    return folder


def tree_for(folder, **training):
    return table_tree(folder, folder / "labels.csv", **training)


def config_for(folder, *, method=None, **training):
    tree = tree_for(folder, **training)
    return make_config({**tree, "method": method or {}})


def weights_of(run, name="last"):
    return load_file(Run(run).checkpoint(name))


def assert_same_weights(one, two):
    assert one.keys() == two.keys()
    for key in one:
        assert torch.equal(one[key], two[key]), key


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "trained"
    train(config_for(folder, epochs=12, finetune_epochs=3, learning_rate=3e-3), run)
    return run


def test_a_run_folder_holds_everything(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.toml", "metrics.jsonl", "assignments", "last.safetensors", "best.safetensors", "log.txt"} <= names
    assert {"best-level.safetensors", "best-pattern.safetensors", "tensorboard"} <= names
    entries = Run(trained).metrics()
    assert [entry["step"] for entry in entries] == sorted(entry["step"] for entry in entries)
    first = next(entry for entry in entries if entry["kind"] == "train")
    assert set(first["losses"]) == {"level", "pattern"}
    assert len(first["shared"]) == 8
    assert len(list((trained / "assignments").iterdir())) == 13
    assert "waiting for data" in (trained / "log.txt").read_text()


def test_training_learns_something(trained):
    validations = [entry for entry in Run(trained).metrics() if entry["kind"] == "validation"]
    assert min(entry["criteria"]["combined"] for entry in validations) < 0.9


def test_the_last_phase_fixes_every_kernel(trained):
    progress, tensors = load_checkpoint(Run(trained).checkpoint("last"))
    assert progress.fixed
    for name, tensor in tensors.items():
        if name.endswith("rho") and name.startswith("network/"):
            assert torch.equal(tensor, tensor.round())


def test_the_same_config_gives_the_same_weights(folder, tmp_path):
    for name in ("a", "b"):
        train(config_for(folder, epochs=2), tmp_path / name)
    assert_same_weights(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))


@pytest.mark.parametrize("method", fg.METHODS)
def test_every_method_trains_and_is_evaluated(folder, tmp_path, method):
    run = tmp_path / method
    train(config_for(folder, epochs=1, uncertainty_weighting=True, clip_norm=1.0, method={"name": method}), run)
    result = evaluate(run, split="test", samples=2)
    assert result["examples"] == len(
        [p for p in (folder / "labels.split.csv").read_text().split() if p.endswith(",test")]
    )
    assert result["samples"] == (2 if method in ("sfg", "constant_p") else 0)
    assert len(Run(run).metrics()) == len((run / "metrics.jsonl").read_text().splitlines())  # no line is refused
    kept = json.loads((run / "results.json").read_text())
    assert [(of["split"], of["tasks"]["level"]["mae"]) for of in kept][1:] == [
        ("test", result["tasks"]["level"]["mae"])
    ]


def test_a_cost_is_reached_and_logged(folder, tmp_path):
    how = {"epochs": 5, "finetune_epochs": 1, "learning_rate": 3e-3, "probability_factor": 50}
    costs = {}
    for name, factor in (("free", 0.0), ("asked", 1.0)):
        tree = {**tree_for(folder, **how, cost_factor=factor, cost_target=0.65), "method": {"init": "shared"}}
        train(make_config(tree), tmp_path / name)
        network = open_run(tmp_path / name, "last").network
        costs[name] = network.multiplications((3, 16, 16)) / network.cost_model((3, 16, 16)).plain
    assert costs["asked"] <= 0.65 < costs["free"]
    entries = {name: [entry for entry in Run(tmp_path / name).metrics() if entry["kind"] == "train"] for name in costs}
    first = entries["asked"][0]
    assert first["cost"] == pytest.approx(1 - 0.65)
    assert first["expected_cost"] < first["mode_cost"]
    assert entries["asked"][-1]["mode_cost"] == pytest.approx(costs["asked"])
    assert "cost" not in entries["free"][0]
    assert "multiplications" in (tmp_path / "asked" / "log.txt").read_text()


class StopsEarly(Silent):
    def step(self, step, text):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_run_with_a_cost_is_resumed_bit_for_bit(folder, tmp_path):
    config = config_for(folder, epochs=2, cost_factor=1.0)
    train(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(config, tmp_path / "cut", report=StopsEarly())
    assert steps_done(tmp_path / "cut") == 1
    resume(tmp_path / "cut")
    assert_same_weights(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    assert Run(tmp_path / "whole").metrics() == Run(tmp_path / "cut").metrics()


def rewinding(folder, **training):
    how = {"epochs": 10, "finetune_epochs": 6, "rewind": True, "schedule": "cosine", "probability_factor": 100}
    return config_for(folder, **{**how, **training})


def test_rewound_weights_are_those_of_the_first_step_and_the_groups_stay(folder, tmp_path, monkeypatch):
    states, rates = [], []
    begin_anew, step, change = Trainer._begin_anew, Trainer._step, Trainer._change_optimiser

    def seen(trainer):
        states.append({name: value.clone() for name, value in trainer.network.state_dict().items()})
        begin_anew(trainer)
        states.append({name: value.clone() for name, value in trainer.network.state_dict().items()})

    def changed(trainer):
        change(trainer)
        assert not trainer.optimiser.state

    def rated(trainer, number):
        step(trainer, number)
        rates.append(trainer.optimiser.param_groups[0]["lr"])

    monkeypatch.setattr(Trainer, "_begin_anew", seen)
    monkeypatch.setattr(Trainer, "_change_optimiser", changed)
    monkeypatch.setattr(Trainer, "_step", rated)
    config = rewinding(folder)
    train(config, tmp_path / "run")
    before, after = states
    first = build_network(config, load_data(config, parts=("train",))).state_dict()
    assert first["backbone.layers.0.weight"].shape[0] == 3 * len(after["backbone.layers.0.weight"])  # a bank a group
    for name, value in after.items():
        expected = before[name] if name.endswith(".rho") else first[name]
        assert torch.equal(value, expected[: len(value)] if value.ndim else expected), name
    assert any(not torch.equal(before[name], after[name]) for name in after if not name.endswith(".rho"))
    fixed_from = len(rates) * 4 // 10
    assert rates[fixed_from] == rates[0] > rates[fixed_from - 1]
    assert rates[-1] < 0.01 * rates[0]


class StopsIn(Silent):
    """Interrupts the training at the first report from a step on."""

    def __init__(self, first):
        self.first = first

    def step(self, step, text):
        if step >= self.first:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_rewound_run_is_resumed_bit_for_bit(folder, tmp_path):
    config = rewinding(folder)
    train(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(config, tmp_path / "cut", report=StopsIn(21))
    progress, _ = load_checkpoint(Run(tmp_path / "cut").checkpoint("last"))
    assert progress.fixed
    resume(tmp_path / "cut")
    assert_same_weights(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    assert Run(tmp_path / "whole").metrics() == Run(tmp_path / "cut").metrics()


def test_a_rewind_needs_a_last_phase(folder):
    with pytest.raises(ConfigError, match="rewind begins anew where finetune_epochs begin, found none"):
        rewinding(folder, finetune_epochs=0)


@pytest.mark.parametrize("kind", ["table", "phantom"])
def test_what_is_validated_has_the_norms_that_it_is_evaluated_by(folder, tmp_path, monkeypatch, kind):
    """Batches of patches are unlike volumes: a scan network's checkpoint is chosen by its running statistics."""
    tree = tree_for(folder, epochs=1)
    if kind == "phantom":
        data = {"root": str(tmp_path / "phantom"), "patients": 4, "shape": [32, 24, 8], "spacing": [12.6, 11.2, 10.5],
                "patch": 16, "patches_per_patient": 4, "padding": 0, "cache": str(tmp_path / "cache")}  # fmt: skip
        tree = {"data": {"kind": "phantom", **data}, "network": {"name": "highresnet", "width": 0.125},
                "training": {"epochs": 1, "batch_size": 4}}  # fmt: skip
    seen = []
    monkeypatch.setattr(
        training, "measure", lambda *args, **how: seen.append(how["statistics"]) or measure(*args, **how)
    )
    train(make_config({**tree, "method": {"name": "hard_sharing"}}), tmp_path / "run")
    assert set(seen) == {"running" if kind == "phantom" else "batch"}


def test_half_precision_trains(folder, tmp_path):
    run = tmp_path / "run"
    train(config_for(folder, epochs=1, precision="bf16-mixed"), run)
    losses = next(entry["losses"] for entry in Run(run).metrics() if entry["kind"] == "train")
    assert all(0 < loss < 10 for loss in losses.values())


def written_config(folder, tmp_path, **training):
    path = tmp_path / "c.toml"
    path.write_text(dump_config(config_for(folder, **training)))
    return path


def steps_done(run):
    checkpoint = Run(run).checkpoint("last")
    return load_checkpoint(checkpoint)[0].step if checkpoint.exists() else 0


def test_killed_at_random_and_resumed_a_run_ends_with_the_same_weights(folder, tmp_path):
    """kill -9 five times, at random moments after the first checkpoint of each start."""
    settings = {"epochs": 60, "finetune_epochs": 40, "checkpoint_every": 7, "validate_every": 40}
    config = written_config(folder, tmp_path, **settings)
    whole = tmp_path / "whole"
    train(config_for(folder, **settings), whole)
    run = tmp_path / "killed"
    draw = random.Random(0)
    command = [*CLI, "train", str(config), "--run", str(run)]
    kills = 0
    while True:
        until = steps_done(run) + draw.randint(1, 21)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if kills < 5:
            while process.poll() is None and not (run.exists() and steps_done(run) >= until):
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 0.2))
        if process.poll() is None and kills < 5:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            assert steps_done(run) < 300, "the run was over before it could be killed"
        else:
            _, errors = process.communicate()
            assert process.returncode == 0, errors.decode()
            break
        command = [*CLI, "resume", str(run)]
    assert kills == 5
    assert_same_weights(weights_of(run), weights_of(whole))
    assert_same_weights(weights_of(run, "best"), weights_of(whole, "best"))
    assert Run(run).statistics("best").read_bytes() == Run(whole).statistics("best").read_bytes()
    results = [[{**of, "notes": None} for of in Run(path).results()] for path in (run, whole)]  # notes name the folder
    assert results[0] == results[1] != []
    assert Run(run).metrics() == Run(whole).metrics()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(folder, tmp_path, number, code):
    config = written_config(folder, tmp_path, epochs=2000, checkpoint_every=10000)
    run = tmp_path / "run"
    process = subprocess.Popen([*CLI, "train", str(config), "--run", str(run)], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (run / "metrics.jsonl").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"filtergroups resume {run}" in errors.strip().splitlines()[-1]
    assert "Traceback" not in errors
    assert steps_done(run) > 0


def test_a_run_in_use_is_refused(folder, tmp_path):
    run = tmp_path / "run"
    train(config_for(folder, epochs=1), run)
    with Run(run).locked(), pytest.raises(RunError, match="another process"):
        resume(run)
    with pytest.raises(RunError, match="filtergroups resume"):
        train(config_for(folder, epochs=1), run)


def test_a_loss_that_explodes_names_task_and_step(folder, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Diverged, match=r"task '(level|pattern)' became (nan|inf) at step \d+.*kept") as caught:
        train(config_for(folder, epochs=50, checkpoint_every=1, **EXPLODES), run)
    assert "\n" not in str(caught.value)
    _, tensors = load_checkpoint(Run(run).checkpoint("last"))
    assert tensors


def test_a_full_disk_keeps_the_checkpoint_before(folder, tmp_path):
    """A limit on file sizes stands for the full disk: the write really fails."""
    run = tmp_path / "run"
    train(config_for(folder, epochs=1), run)
    before = steps_done(run)
    size = Run(run).checkpoint("last").stat().st_size
    done = subprocess.run(
        [*CLI, "resume", str(run), "--set", "training.epochs=3"], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2)),
    )  # fmt: skip
    assert done.returncode == 2
    assert "error:" in done.stderr.strip().splitlines()[-1]
    assert "could not write" in done.stderr
    assert "Traceback" not in done.stderr
    assert steps_done(run) == before
    assert not [path for path in run.iterdir() if path.name.startswith(".last")]
    resume(run, overrides=["training.epochs=3"])
    assert steps_done(run) == 3 * before


@pytest.mark.parametrize("spoil", ["truncate", "foreign", "pickle", "empty"])
def test_a_bad_checkpoint_is_refused_in_one_line_and_runs_no_code(trained, tmp_path, spoil):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text((trained / "config.toml").read_text())
    file = Run(run).checkpoint("best")
    whole = Run(trained).checkpoint("best").read_bytes()
    if spoil == "truncate":
        file.write_bytes(whole[: len(whole) // 2])
    elif spoil == "foreign":
        save_file({"x": torch.zeros(3)}, file)
    elif spoil == "pickle":
        torch.save({"x": torch.zeros(3)}, file)
    with pytest.raises(RunError, match="expected a") as caught:
        evaluate(run, split="test")
    assert "\n" not in str(caught.value)


def test_another_network_s_weights_are_refused(trained, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text((trained / "config.toml").read_text().replace("width = 0.0625", "width = 0.125"))
    Run(run).checkpoint("best").write_bytes(Run(trained).checkpoint("best").read_bytes())
    with pytest.raises(RunError, match="weights of this config's network"):
        evaluate(run)


def test_too_few_images_for_a_batch(folder, tmp_path):
    with pytest.raises(DataError, match="at least one batch of 50"):
        train(config_for(folder, batch_size=50), tmp_path / "run")


def test_a_training_that_failed_before_it_began_is_not_in_the_way(folder, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(DataError):
        train(config_for(folder, batch_size=50), run)
    with Run(run).locked(), pytest.raises(RunError, match="another process"):
        train(config_for(folder, epochs=1), run)
    assert Run(run).config().training.batch_size == 50
    train(config_for(folder, epochs=1), run)
    assert Run(run).config().training.batch_size == 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_a_device_that_is_not_there_is_said_in_one_line(folder, tmp_path):
    with pytest.raises(RunError, match=r"training.accelerator = 'cuda'") as caught:
        train(config_for(folder, accelerator="cuda"), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_explodes_before_a_checkpoint_says_so(folder, tmp_path):
    with pytest.raises(Diverged, match="nothing is saved yet"):
        train(config_for(folder, epochs=50, checkpoint_every=1000, **EXPLODES), tmp_path / "run")


def test_a_folder_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="expected a folder to write to"):
        train(config_for(folder), tmp_path / "file" / "run")


def test_unknown_task_weights_are_refused(folder, tmp_path):
    with pytest.raises(RunError, match="task_weights"):
        train(config_for(folder, task_weights={"colour": 2.0}), tmp_path / "run")


def test_evaluation_of_a_folder_never_seen(tmp_path):
    faces = face_folder(tmp_path / "faces")
    tree = {
        "data": {"kind": "faces", "root": str(faces), "size": 16, "cache": str(tmp_path / "cache")},
        "network": {"name": "vgg11", "width": 0.0625},
        "training": {"epochs": 1, "batch_size": 8, "accelerator": "cpu"},
    }
    run = tmp_path / "run"
    train(make_config(tree), run)
    strangers = face_folder(tmp_path / "others", count=20, seed=5)
    split = tmp_path / "split.csv"
    names = sorted(path.name for path in strangers.iterdir())
    split.write_text(
        "file,split\n" + "".join(f"{name},{'test' if n % 2 else 'train'}\n" for n, name in enumerate(names))
    )
    result = evaluate(run, data=strangers, split_file=split, split="test", samples=3, by="gender")
    assert result["examples"] == 10
    assert set(result["by"]["gender"]) <= {"male", "female"}
    assert 0 <= result["tasks"]["gender"]["accuracy"] <= 1
    assert len(Run(run).results()) == 2  # and that of the part that chose the checkpoint
    evaluate(run, split="validation", samples=0)
    assert len(Run(run).results()) == 3


def test_evaluation_of_a_table_never_seen(trained, tmp_path):
    others = picture_table(tmp_path, count=20, seed=7, missing=False)
    rows = others.read_text().splitlines()
    result = evaluate(trained, table=others, data=tmp_path / "images", samples=0)
    assert result["examples"] == 20
    assert not list(tmp_path.glob("*.split.csv"))  # nothing was drawn: all rows count
    alone = evaluate(trained, table=_table(tmp_path, rows[:2]), data=tmp_path / "images", samples=0)
    assert alone["examples"] == 1
    split = tmp_path / "split.csv"
    names = [row.split(",")[0] for row in rows[1:]]
    split.write_text("file,split\n" + "".join(f"{n},{'train' if i else 'test'}\n" for i, n in enumerate(names)))
    of_one = evaluate(trained, table=others, data=tmp_path / "images", split_file=split, samples=0)
    assert of_one["examples"] == 1
    assert of_one["tasks"]["level"]["mae"] == pytest.approx(alone["tasks"]["level"]["mae"])


def test_a_split_column_of_a_table_never_seen_counts(folder, tmp_path):
    parts = ["train"] * 40 + ["validation"] * 10 + ["test"] * 10
    rows = (folder / "labels.csv").read_text().splitlines()
    split = _table(tmp_path, [f"{rows[0]},part", *(f"{r},{p}" for r, p in zip(rows[1:], parts, strict=True))])
    tree = table_tree(folder, split, epochs=1)
    tree["data"] |= {"root": str(folder / "images"), "split_column": "part", "group_column": None}
    run = tmp_path / "run"
    train(make_config(tree), run)
    reversed_parts = _table(tmp_path, [f"{rows[0]},part", *(f"{r},test" for r in rows[1:16]), f"{rows[16]},train"])
    assert evaluate(run, table=reversed_parts, samples=0)["examples"] == 15
    assert evaluate(run, table=_table(tmp_path, rows[:8]), samples=0, split="validation")["examples"] == 7


def test_a_table_that_cannot_be_evaluated_says_why(trained, tmp_path):
    with pytest.raises(DataError, match=r"other\.csv, line 2: a label of task 'pattern' is one of"):
        evaluate(trained, table=_table(tmp_path, ["image,level,pattern", "000.png,3,wavy"]), samples=0)
    with pytest.raises(DataError, match="expected a column 'pattern'"):
        evaluate(trained, table=_table(tmp_path, ["image,level", "000.png,3"]), samples=0)
    with pytest.raises(DataError, match="expected a CSV or TSV file"):
        evaluate(trained, table=tmp_path / "nowhere.csv", samples=0)
    with pytest.raises(DataError, match="set --split"):
        evaluate(trained, table=_table(tmp_path, ["image,level,pattern", "000.png,3,plain"]), split="selection")


def _table(folder, rows):
    path = folder / "other.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_predictions_do_not_depend_on_the_other_files(trained, folder, tmp_path):
    files = sorted((folder / "images").glob("*.png"))[:5]
    (tmp_path / "broken.png").write_bytes(b"no")
    together = predict(trained, [*files, tmp_path / "broken.png"], tmp_path / "all.csv", samples=3)
    assert together.count == 5
    assert len(together.problems) == 1
    rows = {row["file"]: row for row in read(tmp_path / "all.csv")}
    assert rows[str(tmp_path / "broken.png")]["error"]
    predict(trained, [files[3]], tmp_path / "one.csv", samples=3)
    (alone,) = read(tmp_path / "one.csv")
    assert float(alone["level"]) == pytest.approx(float(rows[str(files[3])]["level"]), rel=1e-4)
    assert alone["pattern"] in ("plain", "striped")
    with pytest.raises(DataError, match="--force"):
        predict(trained, files, tmp_path / "one.csv")


def read(path: Path):
    import csv

    with path.open() as file:
        return list(csv.DictReader(file))


def test_schedules():
    config = make_config({"data": {"kind": "faces", "root": "x"}, "network": {"name": "vgg11"}})
    assert temperature_at(0, 100, config.temperature) == 1.0
    assert temperature_at(50, 100, config.temperature) == pytest.approx(0.1)
    training = config.training.model_copy(update={"schedule": "cosine", "warmup_steps": 10})
    assert learning_rate_at(0, 110, training) == pytest.approx(0.1)
    assert learning_rate_at(10, 110, training) == 1.0
    assert learning_rate_at(60, 110, training) == pytest.approx(0.5)


def test_noise_comes_as_the_temperature_falls():
    config = make_config({"data": {"kind": "faces", "root": "x"}, "network": {"name": "vgg11"}})
    assert {noise_at(step, 100, config.temperature) for step in (0, 20, 99)} == {1.0}
    warm = config.temperature.model_copy(update={"noise_warmup": True})
    noise = [noise_at(step, 100, warm) for step in (0, 10, 25, 50, 99)]
    assert noise[0] == 0.0
    assert noise == sorted(noise)
    assert noise[-2:] == pytest.approx([1.0, 1.0])


def test_a_noise_warm_up_reaches_the_gates(folder, tmp_path, monkeypatch):
    from filtergroups.groups import draw

    seen = []
    monkeypatch.setattr(draw, "drawn_gates", lambda *args, drawn=draw.drawn_gates: seen.append(args[5]) or drawn(*args))
    tree = {**tree_for(folder, epochs=4, finetune_epochs=1), "temperature": {"noise_warmup": True}}
    train(make_config(tree), tmp_path / "run")
    assert seen[0] == 0.0
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_noise_warm_up_is_not_for_gumbel_rao(folder):
    tree = {**tree_for(folder), "temperature": {"noise_warmup": True}, "method": {"estimator": "gumbel_rao"}}
    with pytest.raises(ConfigError, match="noise_warmup is for soft and straight_through"):
        make_config(tree)
