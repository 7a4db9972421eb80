"""Every public name is there, and takes paths as the README and the docstrings give them: as text."""

import inspect
import re
from pathlib import Path

import pytest
import torch

import filtergroups as fg
from filtergroups.config_file import dump_config, make_config
from filtergroups.paths import AnyPath
from filtergroups.run import RunError
from tests.data.pictures import picture_table, table_tree


@pytest.mark.parametrize("name", fg.__all__)
def test_every_public_name_is_there(name):
    assert getattr(fg, name) is not None


def test_every_name_of_the_package_docstring_is_public():
    assert fg.__doc__ is not None
    named = set(re.findall(r"\bfg\.(\w+)", fg.__doc__))
    assert len(named) > 10
    assert named <= set(fg.__all__)


def test_what_is_exported_late_is_what_is_declared():
    """The names that type checkers see come from the same modules as those that run."""
    source = inspect.getsource(fg)
    declared = {
        name.strip(): module
        for module, names in re.findall(r"^    from filtergroups\.([\w.]+) import (.+)$", source, re.MULTILINE)
        for name in names.split(",")
    }
    assert declared == {name: home for home, names in fg._HOMES.items() for name in names}
    assert sorted(declared) == sorted(fg.__all__)


PATHS = ("config", "run", "runs", "inputs", "out", "data", "table", "split_file", "path", "results", "models")


@pytest.mark.parametrize("name", [name for name in fg.__all__ if inspect.isfunction(getattr(fg, name))])
def test_every_public_function_that_takes_a_path_says_that_it_takes_text(name):
    for parameter in inspect.signature(getattr(fg, name)).parameters.values():
        said = str(parameter.annotation)
        assert "Path" not in said or "PathLike" in said, parameter
        if "PathLike" in said:
            assert parameter.name in PATHS
    assert str(AnyPath) in str(inspect.signature(fg.load_config))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """my.toml, with its pictures."""
    place = tmp_path_factory.mktemp("api")
    picture_table(place, count=150)
    tree = table_tree(place, place / "labels.csv", epochs=2)
    (place / "my.toml").write_text(dump_config(make_config(tree)))
    return place


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def calls():
    """The lines of the package docstring that do what the command line does."""
    assert fg.__doc__ is not None
    lines = fg.__doc__.split('fg.train("')[1]
    return [line.strip() for line in ('fg.train("' + lines).splitlines() if line.startswith("fg.")]


def test_the_calls_of_the_package_docstring_run_as_they_stand(here):
    assert [re.match(r"fg\.(\w+)", line)[1] for line in calls()] == [
        "train", "calibrate", "evaluate", "predict", "export", "report", "figures",
    ]  # fmt: skip
    for line in calls():
        exec(line, {"fg": fg})
    written = ("runs/my/calibration.json", "runs/my/results.json", "predictions.csv", "runs/my/model.onnx",
               "report.html", "figures/flow.pdf")  # fmt: skip
    assert [name for name in written if not (here / name).is_file()] == []
    # The same by text elsewhere: each keyword that is a path, an ONNX file, several inputs and several runs.
    image, other = (str(path) for path in sorted((here / "images").iterdir())[:2])
    again = fg.resume("runs/my")
    assert Path(again) == Path("runs/my")
    fg.evaluate("runs/my", table="labels.csv", data="images", samples=0, split="test")
    fg.predict("runs/my/model.onnx", image, "one.csv")
    fg.predict("runs/my", [image, other], "two.csv", samples=2)
    assert (here / "two.csv").read_text().count("\n") == 3
    fg.export("runs/my", to="safetensors", out="shipped/model.safetensors", measure=False)
    small, about = fg.load_compact("shipped/model.safetensors")
    fg.save_compact(small, "again.safetensors", "safetensors", about)
    assert fg.load_compact("again.safetensors")[1]["tasks"] == about["tasks"]
    fg.report([again, "runs/my"], "both.html", data="images", examples=2, samples=0)
    fg.figures(again, "drawn", format="svg", data="images", samples=0)
    assert (here / "drawn" / "flow.svg").is_file()
    assert fg.load_config("my.toml", ["seed=3"]).seed == 3


def test_a_config_needs_a_run_folder_and_a_file_names_its_own(here):
    config = fg.load_config("my.toml")
    with pytest.raises(RunError, match="expected a run folder beside a Config, found none; name one"):
        fg.train(config)
    assert Path(fg.train(config, "elsewhere/of-config")) == Path("elsewhere/of-config")


def test_reproduce_takes_text(here):
    with pytest.raises(ValueError, match=r"neither in nowhere; give its folder"):
        fg.reproduce("faces-small", data="nowhere", runs="runs/reproduce", results="results", seeds=1)


@pytest.mark.parametrize("wrong", [None, 3, b"my.toml", torch.zeros(1)])
def test_what_is_no_path_is_refused_in_one_line(wrong):
    with pytest.raises(ValueError, match=r"a path is text or a pathlib\.Path, found \w+; give one of these"):
        fg.load_config(wrong)
