"""What is imported is declared, and what is declared is used."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement

from tests.packaging.environment import ROOT, Failed
from tests.packaging.lowest import lowest_versions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"filtergroups", "tests", "cost"}  # `cost`: benchmarks import each other
# Imported by torch for us: the module of torch that does.
BY_TORCH = {"tensorboard": "torch.utils.tensorboard", "onnx": "torch.onnx", "onnxscript": "torch.onnx"}
# pydantic pins it, and documents what is to be imported from it.
PART_OF = {"pydantic-core": "pydantic"}
# Run, not imported: the file that names the command.
COMMANDS = {
    "build": "tests/packaging/building.py", "hatchling": "pyproject.toml", "mypy": "Makefile",
    "pre-commit": ".pre-commit-config.yaml", "ruff": "Makefile",
}  # fmt: skip


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras):
    requirements = [*PROJECT["dependencies"]] if not extras else []
    requirements += [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    return {normal(Requirement(text).name) for text in requirements} - {"filtergroups"}


def imported(*folders):
    """Distributions of the modules that files below the folders import."""
    modules = set()
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.split(".")[0])
    homes = packages_distributions()
    foreign = modules - set(sys.stdlib_module_names) - OURS
    assert foreign <= set(homes), f"imported and not installed: {sorted(foreign - set(homes))}"
    found = {normal(homes[module][0]) for module in foreign}
    return {PART_OF.get(name, name) for name in found}


def test_the_package_imports_what_it_declares_and_declares_what_it_imports():
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    through_torch = {name for name, module in BY_TORCH.items() if module in text}
    assert imported("src") | through_torch == declared() | declared("n4")


def test_tests_and_benchmarks_import_what_is_declared():
    assert imported("tests", "benchmarks") <= declared() | declared("n4") | declared("dev")


def test_what_development_declares_is_used():
    named = {name for name, file in COMMANDS.items() if name in (ROOT / file).read_text(encoding="utf-8")}
    assert declared("dev") <= imported("tests", "benchmarks") | named


def test_every_dependency_has_one_lower_bound():
    assert set(map(normal, lowest_versions(PROJECT))) == declared() | declared("n4")
    with pytest.raises(Failed, match="expected one lower bound"):
        lowest_versions({"dependencies": ["numpy"], "optional-dependencies": {"n4": []}})


def test_constraints_lie_within_the_bounds():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {normal(name): version for name, version in pins.items()}
    extras = PROJECT["optional-dependencies"]
    for text in (*PROJECT["dependencies"], *extras["n4"], *extras["dev"]):
        requirement = Requirement(text)
        if requirement.name != "filtergroups":
            assert requirement.specifier.contains(pins[normal(requirement.name)]), text


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src/filtergroups/py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]
