"""The commands as a user types them, in processes of their own."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from filtergroups import __version__
from filtergroups.cli import app
from filtergroups.config_file import load_config
from filtergroups.config_schema import SCHEMA
from tests.data.pictures import face_folder, picture_table

CLI = [sys.executable, "-m", "filtergroups.cli"]


def run(*arguments, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def test_help_answers_at_once():
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = run("--help")
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5
    commands = ("demo", "init", "data", "train", "resume", "evaluate", "calibrate", "predict", "report", "figures")
    for command in (*commands, "reproduce"):
        assert command in done.stdout


def test_every_command_answers_h_as_it_answers_help():
    commands = [()]
    for command in commands:
        short, long = (CliRunner().invoke(app, [*command, option]) for option in ("-h", "--help"))
        assert short.exit_code == 0, short.output
        assert "Usage:" in short.output
        assert short.output == long.output
        listed = short.output.partition("\nCommands:\n")[2]
        commands += [(*command, name) for name in re.findall(r"^  ([a-z]+)", listed, re.MULTILINE)]
    assert {("train",), ("data", "check"), ("schema",)} <= set(commands)


def test_the_version_is_the_package_s():
    assert run("--version").stdout == f"filtergroups {__version__}\n"


def test_the_schema_is_printed_as_it_is_kept():
    assert run("schema").stdout == SCHEMA.read_text(encoding="utf-8")


def test_from_a_table_to_predictions(tmp_path):
    """init, check, train, evaluate, predict: the way of a user with a folder of images and a CSV."""
    picture_table(tmp_path)
    done = run("init", "labels.csv", "--images", "images", "-o", "my.toml", cwd=tmp_path)
    assert "wrote my.toml" in done.stdout
    text = (tmp_path / "my.toml").read_text()
    assert "# " in text
    config = load_config(tmp_path / "my.toml")
    assert [(task.name, task.kind) for task in config.tasks] == [("level", "regression"), ("pattern", "classification")]
    assert config.tasks[1].labels == ["plain", "striped"]
    run("init", "labels.csv", "--images", "images", "-o", "my.toml", cwd=tmp_path, code=2)
    assert "no problems" in run("data", "check", "my.toml", cwd=tmp_path).stdout
    fast = ["--set", "training.epochs=2", "--set", "training.finetune_epochs=1", "--set", "network.width=0.0625",
            "--set", "data.size=16", "--set", "data.cache=cache"]  # fmt: skip
    done = run("train", "my.toml", *fast, cwd=tmp_path)
    assert "filtergroups evaluate runs/my" in done.stdout
    assert "validation" in done.stderr
    done = run("evaluate", "runs/my", "--samples", 2, "--by", "pattern", cwd=tmp_path)
    assert "plain answer" in done.stdout
    assert "striped" in done.stdout
    done = run("predict", "runs/my", "images", "-o", "out.csv", "--samples", 2, cwd=tmp_path)
    assert "predicted 60 files" in done.stdout
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "file,level,pattern,pattern_entropy,pattern_p_plain,pattern_p_striped,error"
    assert len(lines) == 61
    (tmp_path / "images" / "broken.png").write_bytes(b"no")
    done = run("predict", "runs/my", "images", "-o", "out.csv", "--samples", 0, "--force", cwd=tmp_path, code=1)
    assert done.stderr.endswith("\n1 of 61 files could not be read: see the error column of out.csv\n")
    assert "predicted" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "nothing.toml"], "nothing.toml: expected a readable TOML file"),
        (["train", "c.toml", "--set", "training.epochs=none"], "training.epochs"),
        (["resume", "nowhere"], "expected a run folder"),
        (["evaluate", "nowhere"], "expected a run folder"),
        (["predict", "nowhere", "x.png", "-o", "y.csv"], "expected a run folder"),
        (["report", "nowhere"], "expected a run folder"),
        (["report", ".", "--split", "all"], "--split"),
        (["figures", "nowhere", "-o", "figures"], "expected a run folder"),
        (["figures", "nowhere", "-o", "figures", "--format", "gif"], "--format"),
        (["init", "nothing.csv", "--images", "."], "nothing.csv"),
        (["data", "check", "nothing.toml"], "nothing.toml"),
        (["evaluate", ".", "--split", "all"], "--split"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, arguments, said):
    faces = face_folder(tmp_path / "faces", count=6)
    (tmp_path / "c.toml").write_text(f'[data]\nkind = "faces"\nroot = "{faces}"\n[network]\nname = "vgg11"\n')
    done = run(*arguments, cwd=tmp_path, code=2)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert not (tmp_path / "runs").exists()
