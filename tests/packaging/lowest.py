"""The lowest version of every direct dependency that pyproject.toml allows works: `make lowest`."""

import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tests.packaging.building import build
from tests.packaging.environment import ROOT, Environment, Failed, step
from tests.packaging.smoke import bias_corrected, comes_from, table_of_images, tiny_scans, two_processes

EXTRAS = ("n4",)  # what users may ask for; `dev` is pinned by constraints.txt


def lowest_versions(project: dict) -> dict[str, Version]:
    """Name -> its lower bound, which is a release that exists."""
    extras = (project["optional-dependencies"][extra] for extra in EXTRAS)
    found = {}
    for text in [*project["dependencies"], *(text for extra in extras for text in extra)]:
        requirement = Requirement(text)
        bounds = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
        if len(bounds) != 1:
            raise Failed(f"{text}: expected one lower bound (>=), found {len(bounds)}")
        found[requirement.name.lower()] = bounds[0]
    return found


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = lowest_versions(project)
    with tempfile.TemporaryDirectory(prefix="filtergroups-lowest-") as place, step("lowest versions"):
        folder = Path(place)
        pins = folder / "lowest.txt"
        pins.write_text("".join(f"{name}=={version}\n" for name, version in lowest.items()), encoding="utf-8")
        with step("building"):
            _, wheel = build(folder / "dist", isolated=False)
        with step("installing"):
            environment = Environment(folder)
            environment.install("--constraint", pins, f"filtergroups[{','.join(EXTRAS)}] @ {wheel.as_uri()}")
        installed = {name: Version(environment.versions()[name]) for name in lowest}
        for name, version in installed.items():
            print(f"  {name} {version}")
            if version.release[: len(lowest[name].release)] != lowest[name].release:
                raise Failed(f"expected {name} {lowest[name]}, found {version}")
        work = folder / "work"
        work.mkdir()
        comes_from(environment, work)
        table_of_images(environment, work)
        two_processes(environment, work)
        tiny_scans(environment, work)
        bias_corrected(environment, work)


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"error: {failed}")
