"""What numbers were made with: the commit, the machine, the day."""

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from filtergroups.clone import clone


def commit() -> str | None:
    """The commit that the code is of, where it is a clone; `-dirty` with changes that are in no commit."""
    root = clone()
    if root is None or not (root / ".git").exists():  # a repository that lies further up is somebody else's
        return None
    command = ["git", "describe", "--always", "--dirty", "--tags"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def today() -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z")


def machine() -> dict[str, Any]:
    import torch

    return {
        "processor": _processor(), "cores": os.cpu_count(), "system": platform.system(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(), "torch": torch.__version__,
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
