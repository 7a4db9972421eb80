"""What a new user does first, with an installed filtergroups and nothing of the clone."""

import json
import re
from pathlib import Path
from urllib.request import urlopen

from tests.data.pictures import picture_table
from tests.packaging.environment import Environment, Failed

FEW = ("--samples", "2")
SHORT = (
    "--set", "training.epochs=2", "--set", "training.finetune_epochs=1", "--set", "network.width=0.0625",
    "--set", "data.size=16",
)  # fmt: skip
SCANS = """\
[data]
kind = "phantom"
root = "phantom"
patients = 6
shape = [48, 48, 12]
spacing = [8.4, 8.4, 8.4]
patch = 16
patches_per_patient = 2

[network]
name = "highresnet"
width = 0.0625

[training]
epochs = 2
finetune_epochs = 1
batch_size = 4
"""


def expect(text: str, pattern: str) -> None:
    if not re.search(pattern, text):
        raise Failed(f"expected {pattern!r}, found\n{text}")


def comes_from(environment: Environment, folder: Path) -> None:
    """The installed package is what answers, not a clone."""
    found = environment.script("import filtergroups; print(filtergroups.__file__)", folder).strip()
    if not Path(found).is_relative_to(environment.folder):
        raise Failed(f"expected filtergroups in {environment.folder}, found {found}")


def table_of_images(environment: Environment, folder: Path) -> None:
    """From a table to a report, by every command that a run of images has."""
    picture_table(folder, count=90)

    def filtergroups(*arguments: str | Path) -> str:
        return environment.filtergroups(*arguments, folder=folder)

    filtergroups("init", "labels.csv", "--images", "images", "-o", "my.toml")
    expect(filtergroups("data", "check", "my.toml"), "no problems")
    filtergroups("train", "my.toml", *SHORT)
    expect(filtergroups("evaluate", "runs/my", *FEW), "plain answer")
    filtergroups("calibrate", "runs/my", *FEW)
    filtergroups("predict", "runs/my", "images", "-o", "out.csv", *FEW)
    expect((folder / "out.csv").read_text(encoding="utf-8"), r"level_low,.*pattern_p_plain")
    filtergroups("export", "runs/my")
    filtergroups("predict", "runs/my/model.onnx", "images", "-o", "shipped.csv")
    lines = (folder / "shipped.csv").read_text(encoding="utf-8").splitlines()
    if len(lines) != 91:
        raise Failed(f"expected a header and 90 rows in shipped.csv, found {len(lines)} lines")
    for form in ("pt2", "safetensors"):
        filtergroups("export", "runs/my", "--to", form)
    filtergroups("report", "runs/my", "-o", "report.html")
    expect((folder / "report.html").read_text(encoding="utf-8"), "<script>")
    filtergroups("figures", "runs/my", "-o", "figures")


def two_processes(environment: Environment, folder: Path) -> None:
    """Of the table above."""
    processes = ("--set", "training.accelerator=cpu", "--set", "training.devices=2")
    environment.filtergroups("train", "my.toml", "--run", "runs/two", *SHORT, *processes, folder=folder)


def bias_corrected(environment: Environment, folder: Path) -> None:
    """The scans above by SimpleITK, which is an extra."""
    config = SCANS.partition("patients")[0].replace('"phantom"', '"scans"', 1) + "bias_correction = true\npatch = 16\n"
    (folder / "n4.toml").write_text(config + SCANS[SCANS.index("\n[network]") :], encoding="utf-8")
    environment.filtergroups("train", "n4.toml", folder=folder)


def tiny_scans(environment: Environment, folder: Path) -> None:
    """Generated scans: trained on, measured and predicted as volumes."""
    (folder / "scans.toml").write_text(SCANS, encoding="utf-8")

    def filtergroups(*arguments: str | Path) -> str:
        return environment.filtergroups(*arguments, folder=folder)

    filtergroups("train", "scans.toml")
    expect(filtergroups("data", "check", "scans.toml"), "no problems")
    expect(filtergroups("evaluate", "runs/scans", *FEW), "organs")
    filtergroups("predict", "runs/scans", "phantom/patient_000", "-o", "volumes", *FEW)
    written = {path.name for path in (folder / "volumes" / "patient_000").iterdir()}
    if not {"ct.nii.gz", "organs.nii.gz"} <= written:
        raise Failed(f"expected volumes of ct and organs, found {sorted(written)}")
    filtergroups("report", "runs/scans", "-o", "scans.html", *FEW)


def answers(environment: Environment, version: str, folder: Path) -> None:
    """Every command has its help, as -h and as --help, and the version is the package's."""
    expect(environment.answer("--version", folder=folder), rf"^filtergroups {re.escape(version)}\n$")
    commands: list[tuple[str, ...]] = [()]
    for command in commands:
        text = environment.answer(*command, "-h", folder=folder)
        expect(text, "Usage:")
        if text != environment.answer(*command, "--help", folder=folder):
            raise Failed(f"expected the same from {' '.join(command)} -h as from --help")
        listed = text.partition("\nCommands:\n")[2]
        commands += [(*command, name) for name in re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE)]
    if len(commands) < 10:
        raise Failed(f"expected at least ten commands, found {commands}")
    print(f"  --version, and -h and --help of {len(commands)} commands: fine")


def schema_of_editors(environment: Environment, folder: Path) -> None:
    """The schema that `init` points editors to is the one that the command prints."""
    printed = json.loads(environment.answer("schema", folder=folder))
    picture_table(folder / "schema", count=20)
    environment.filtergroups("init", "schema/labels.csv", "--images", "schema/images", "-o", "a.toml", folder=folder)
    first = (folder / "a.toml").read_text(encoding="utf-8").splitlines()[0]
    with urlopen(first.removeprefix("#:schema ")) as file:
        if json.load(file) != printed or "extends" not in printed["properties"]:
            raise Failed(f"expected the schema of configs at {first}, found another file")


def demo(environment: Environment, folder: Path) -> None:
    """In full, as it has no short form."""
    expect(environment.filtergroups("demo", folder=folder), "report.html in a browser")
    expect((folder / "runs/demo/report.html").read_text(encoding="utf-8"), "<script>")
