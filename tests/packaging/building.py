"""The two files that are published, and what is in them."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.packaging.environment import ROOT, Failed, run

SOURCES = ("src", "tests", "experiments")
KINDS = {".py", ".toml", ".js", ".css", ".json", ".typed"}
BESIDE = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", ".gitignore", "PKG-INFO"}
LARGEST = 1_000_000


def build(folder: Path, *, isolated: bool) -> tuple[Path, Path]:
    """The sdist of the clone, and the wheel of that sdist.

    isolated: in environments of their own with what [build-system] asks for, as an index's users build.
    """
    how = [] if isolated else ["--no-isolation"]
    run([sys.executable, "-m", "build", *how, "--outdir", folder, ROOT], ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def content_of_sdist(sdist: Path) -> set[str]:
    """Its files below its one folder."""
    with tarfile.open(sdist) as archive:
        return {entry.name.partition("/")[2] for entry in archive if entry.isfile()}


def content_of_wheel(wheel: Path) -> set[str]:
    """Its files but those that describe it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}


def sources() -> set[str]:
    """The clone's own files that belong into the sdist."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *SOURCES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


def in_the_wheel(source: str) -> str | None:
    """Where a source of the sdist lies in the wheel; None: it stays out."""
    folder, _, rest = source.partition("/")
    return {"src": rest, "experiments": f"filtergroups/{source}"}.get(folder)


def check_content(sdist: Path, wheel: Path) -> None:
    """Sources only, all of them, and in the wheel what the package needs to run."""
    wanted = sources()
    compare(sdist, content_of_sdist(sdist), wanted | BESIDE)
    compare(wheel, content_of_wheel(wheel), {place for source in wanted if (place := in_the_wheel(source))})
    if odd := sorted(name for name in wanted if Path(name).suffix not in KINDS):
        raise Failed(f"expected sources ({', '.join(sorted(KINDS))}) only, found {odd[0]}")
    for path in (sdist, wheel):
        if path.stat().st_size > LARGEST:
            raise Failed(f"{path.name}: expected at most {LARGEST} bytes, found {path.stat().st_size}")


def compare(path: Path, found: set[str], wanted: set[str]) -> None:
    missing, more = sorted(wanted - found), sorted(found - wanted)
    if missing or more:
        raise Failed(f"{path.name}: expected what the clone has, found {missing[:5]} missing and {more[:5]} besides")
