"""A short fuzzing of all that is read; `make fuzz` is the long one."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_damaged_files_of_every_kind_are_accepted_or_refused_in_one_line(tmp_path):
    command = [sys.executable, "-m", "tests.fuzz", "--scale", "0.02", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("image", "volume", "onnx", "checkpoint", "json", "csv", "toml"):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(kind))
        tried, accepted, refused = map(int, line.split()[1:4])
        assert tried == accepted + refused
        assert accepted > 0
        assert refused > 0
