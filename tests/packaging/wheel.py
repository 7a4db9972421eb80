"""What is published works where there is nothing else: `make wheel-check`."""

import sys
import tempfile
from pathlib import Path

from filtergroups import __version__
from tests.packaging.building import build, check_content
from tests.packaging.environment import ROOT, Environment, Failed, run, step
from tests.packaging.smoke import answers, comes_from, demo, schema_of_editors, table_of_images, tiny_scans

# A program of somebody else's; mypy sees the types of an installed filtergroups by its py.typed.
RIGHT = """\
from pathlib import Path

import torch

import filtergroups as fg

tasks = [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]
network: fg.GroupedNetwork = fg.vgg11(tasks, width=0.25)
prediction: dict[str, fg.Prediction] = network.predict(torch.zeros(2, 3, 64, 64), samples=0)
page: Path = fg.report("runs/my", "report.html")
fg.train(fg.load_config(Path("my.toml")), Path("runs/my"))
reveal_type(fg.train)
"""
WRONG = 'import filtergroups as fg\n\nfg.vgg11("age", width="wide")\nfg.train(1)\n'


def types_are_seen(environment: Environment, folder: Path) -> None:
    """A right use passes, a wrong one is found, and nothing is Any."""
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment.python, "--cache-dir", "cache"]
    (folder / "right.py").write_text(RIGHT, encoding="utf-8")
    said = run([*mypy, "right.py"], folder)
    if 'Revealed type is "def (' not in said or "Success" not in said:
        raise Failed(f"expected the type of fg.train, found\n{said}")
    (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
    try:
        said = run([*mypy, "wrong.py"], folder)
    except Failed as refused:
        said = str(refused)
    for wanted in ('wrong.py:3: error: Argument 1 to "vgg11"', 'Argument "width" to "vgg11"', "wrong.py:4: error"):
        if wanted not in said:
            raise Failed(f"expected mypy to find {wanted!r}, found\n{said}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="filtergroups-wheel-") as place, step("wheel alone"):
        folder = Path(place)
        with step("building the sdist, and the wheel of it"):
            sdist, wheel = build(folder / "dist", isolated=True)
        check_content(sdist, wheel)
        print(f"  {sdist.name}: {sdist.stat().st_size / 1e3:.0f} kB, {wheel.name}: {wheel.stat().st_size / 1e3:.0f} kB")
        with step("installing the wheel alone"):
            environment = Environment(folder)
            environment.install("--constraint", ROOT / "constraints.txt", wheel)
        work = folder / "work"
        work.mkdir()
        comes_from(environment, work)
        answers(environment, __version__, work)
        with step("types, as mypy sees them from outside"):
            types_are_seen(environment, work)
        schema_of_editors(environment, work)
        table_of_images(environment, work)
        tiny_scans(environment, work)
        demo(environment, work)


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"error: {failed}")
