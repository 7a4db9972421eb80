"""A fresh environment to install into, and commands in it that see nothing of the clone."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
OF_THE_CALLER = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FILTERGROUPS_DATA", "CI")


class Failed(Exception):
    """A command did not do what it should."""


@contextmanager
def step(what: str) -> Iterator[None]:
    """Says what is done and how long it took."""
    print(f"{what} ...", flush=True)
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.0f} s", flush=True)


def run(command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a command printed; one that fails ends the check with all that it said."""
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or "Traceback" in done.stderr:
        said = f"{done.stdout}\n{done.stderr}".strip()
        raise Failed(f"{' '.join(map(str, command))}: expected success, found exit code {done.returncode}\n{said}")
    return done.stdout


class Environment:
    """A virtual environment, with a home of its own: no cache and no setting of the user's reaches its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder / "environment", folder / "home"
        self.python = self.folder / SCRIPTS / "python"
        self.home.mkdir()
        run([sys.executable, "-m", "venv", self.folder], folder)

    def install(self, *arguments: str | Path) -> None:
        """With pip's own cache, so that an archive is fetched once however many environments want it."""
        command = [self.python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        run([*command, *arguments], self.home, _outside())
        run([self.python, "-m", "pip", "check"], self.home, _outside())

    def versions(self) -> dict[str, str]:
        """What is installed, by normalised name."""
        command = [self.python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
        listed = json.loads(run(command, self.home, _outside()))
        return {entry["name"].lower().replace("_", "-"): entry["version"] for entry in listed}

    def answer(self, *arguments: str | Path, folder: Path) -> str:
        """What the installed command says, as a user types it."""
        return run([self.folder / SCRIPTS / "filtergroups", *arguments], folder, self._of_a_user())

    def filtergroups(self, *arguments: str | Path, folder: Path) -> str:
        """The same of a command that takes its time."""
        with step("  filtergroups " + " ".join(map(str, arguments))):
            return self.answer(*arguments, folder=folder)

    def script(self, text: str, folder: Path) -> str:
        return run([self.python, "-c", text], folder, self._of_a_user())

    def _of_a_user(self) -> dict[str, str]:
        home = str(self.home)
        return {**_outside(), "HOME": home, "USERPROFILE": home, "XDG_CACHE_HOME": f"{home}/cache"}


def _outside() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in OF_THE_CALLER}
