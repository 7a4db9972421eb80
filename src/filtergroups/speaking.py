"""Of several processes of one training, which one talks to the user? Asked by the command line, without torch."""

import os
import sys
import time
from pathlib import Path

from filtergroups.run import RunError

TO_SPEAK = 10.0  # seconds that the first process has to say what is wrong


class Elsewhere(RunError):
    """Another process of this training says what happened."""


def is_first() -> bool:
    """By what `torchrun`, Slurm and Lightning Fabric tell the processes that they start."""
    if number := os.environ.get("RANK") or os.environ.get("SLURM_PROCID"):
        return number == "0"
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"


def speaks(error: BaseException) -> bool:
    """The first process says what went wrong; another one only what it alone knows, of their common work."""
    distributed = sys.modules.get("torch.distributed")
    together = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return is_first() or (together and isinstance(error, ValueError | OSError) and not isinstance(error, Elsewhere))


def let_the_first_speak() -> None:
    """Wait until the first process has said what is wrong: `torchrun` ends all processes as soon as one has failed."""
    if "TORCHELASTIC_RUN_ID" in os.environ and not is_first():
        time.sleep(TO_SPEAK)


def how_to_resume(run: Path) -> str:
    """What to type."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return f"filtergroups resume {run}"
    processes = os.environ.get("LOCAL_WORLD_SIZE", "N")
    return f"torchrun --nproc_per_node={processes} -m filtergroups.cli -- resume {run}"
