"""Several processes that train one network: they begin, fail, stop and end together, and one of them speaks."""

import atexit
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from filtergroups.config import TrainingConfig
from filtergroups.finite import Diverged
from filtergroups.groups.processes import rank, world_size
from filtergroups.locks import Held, held
from filtergroups.run import RunError
from filtergroups.speaking import Elsewhere, how_to_resume, speaks

GRACE = 15.0  # seconds in which a process notices by itself that another has ended
LOOK_EVERY = 1.0
LONGEST = timedelta(hours=24)  # that processes wait for one that is at work; one that has ended they notice at once
TO_END = 10.0  # seconds that processes have to end once this one has


def make_fabric(config: TrainingConfig, run: Path) -> Any:
    """Devices, processes and precision, by Lightning Fabric; started by `torchrun` or `fabric run`, it joins them."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    if config.threads:
        torch.set_num_threads(config.threads)
    devices, nodes = processes_of(config)
    # Gates leave parts of the network out of some steps, so that not every parameter has a gradient.
    ddp = DDPStrategy(find_unused_parameters=True, timeout=LONGEST)
    try:
        fabric = Fabric(
            accelerator=config.accelerator, devices=devices, num_nodes=nodes,
            strategy=ddp if devices * nodes > 1 else "auto", precision=config.precision,
        )  # fmt: skip
    except (RuntimeError, ValueError, ImportError) as error:  # a device that is not there, in many words
        said = str(error).strip().partition("\n")[0]
        raise RunError(
            f"training.accelerator = {config.accelerator!r}, devices = {devices}: {said}; set another"
        ) from None
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it greets for every process
    fabric.launch()
    _watch(fabric, run)
    return fabric


def processes_of(config: TrainingConfig) -> tuple[int, int]:
    """Processes on this machine, and machines: what `torchrun` has started, else what the config asks for."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return config.devices, config.nodes
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    return here, int(os.environ["WORLD_SIZE"]) // here


@contextmanager
def agreeing() -> Iterator[None]:
    """A part that each process does by itself: where one fails, all end, and the first says why."""
    failed: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised below, once the others know
        failed = error
    if world_size() == 1:
        if failed is not None:
            raise failed
        return
    told: list[str | None] = [None] * world_size()
    dist.all_gather_object(told, None if failed is None else str(failed) or type(failed).__name__)
    problem = next((f"process {n}: {text}" if n else text for n, text in enumerate(told) if text is not None), None)
    if failed is not None and (rank() == 0 or not isinstance(failed, ValueError | OSError)):
        raise failed  # where it is no mistake of the user's, with its traceback
    if problem is not None:
        raise (RunError if rank() == 0 else Elsewhere)(problem) from None


def first_then_others(prepare: Callable[[], Any]) -> Any:
    """Prepare in the first process, then in the others, which find there what it has made: a cache, a split."""
    made = None
    for turn in (True, False):
        with agreeing():
            if (rank() == 0) == turn:
                made = prepare()
    return made


def asked_anywhere(number: int, device: torch.device) -> int:
    """The signal that any of the processes was sent, so that all stop after the same step; 0: none."""
    if world_size() == 1:
        return number
    most = torch.tensor(number, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


@contextmanager
def joined(run: Path) -> Iterator[None]:
    """All of a training: nobody leaves before the others are done, and a lost process is said in one line."""
    several = world_size() > 1
    try:
        yield
    except Diverged as error:  # all have the same loss
        if rank() == 0:
            raise
        raise Elsewhere(str(error)) from None
    except RuntimeError as error:
        if not several or not _is_lost(error):
            raise
        raise _lost(run) from None
    if not several:
        return
    try:
        dist.barrier()
    except RuntimeError:
        if rank() != 0:  # the first process writes the last files: without it they are not there
            raise _lost(run) from None


def _is_lost(error: RuntimeError) -> bool:
    """Did a process end that this one talked to? Gloo has no exception of its own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _lost(run: Path) -> RunError:
    said = RunError(
        f"another process of this training has ended; all that was saved is kept; go on with: {how_to_resume(run)}"
    )
    if rank() == 0:
        return said
    # The first process speaks, unless it is the one that was killed: then its lock is free, and nobody said why.
    try:
        with held(run / ".lock", wait=False) as killed:
            return said if killed else Elsewhere(str(said))
    except (Held, OSError):
        return Elsewhere(str(said))


def _watch(fabric: Any, run: Path) -> None:
    """See to it that no process stays behind alone, and that all leave in order.

    Fabric's own watcher kills this process without a word once another has ended.
    """
    if world_size() == 1:
        return
    own: list[subprocess.Popen[bytes]] = getattr(fabric.strategy.launcher, "procs", [])
    started = list(own)
    own.clear()
    if started:
        atexit.register(_end, started)
    atexit.register(_leave)
    parent = os.getppid()

    def has_ended() -> bool:
        failed = any(process.poll() not in (None, 0) for process in started)
        return failed or (rank() != 0 and os.getppid() != parent)

    def look() -> None:
        while not has_ended():
            time.sleep(LOOK_EVERY)
        time.sleep(GRACE)
        # Still here: it waits for what no longer comes, and no exception wakes it.
        error = _lost(run)
        if speaks(error):
            print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)

    threading.Thread(target=look, daemon=True, name="watches-other-processes").start()


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _end(started: list["subprocess.Popen[bytes]"]) -> None:
    until = time.monotonic() + TO_END
    for process in started:
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
