import subprocess
import sys
import time

from filtergroups.checkpoint import load_checkpoint

WRITER = """
import itertools, sys, torch
from pathlib import Path
import filtergroups as fg
from filtergroups.checkpoint import Progress, save_checkpoint

network = fg.vgg11([fg.Regression("age"), fg.Regression("height")], width=0.1)
for step in itertools.count():
    more = {"more": torch.zeros(300_000)} if step % 2 else {}
    save_checkpoint(Path(sys.argv[1]), network, Progress(step=step), {"step": torch.tensor(step), **more})
"""


def test_a_checkpoint_that_is_being_replaced_is_read_whole(tmp_path):
    """The network of one step with the progress of another would be a wrong result that nobody notices."""
    path = tmp_path / "last.safetensors"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    try:
        while not path.exists():
            assert writer.poll() is None
            time.sleep(0.05)
        steps = set()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            progress, tensors = load_checkpoint(path)
            assert int(tensors["step"]) == progress.step
            steps.add(progress.step)
    finally:
        writer.kill()
        writer.wait()
    assert len(steps) > 5
