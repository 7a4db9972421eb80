"""Checkpoints: tensors and JSON in one safetensors file, written whole or not at all; loading runs no code from it."""

import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from filtergroups.kept import Count
from filtergroups.network import GroupedNetwork
from filtergroups.reading import checked, read_bytes, reading
from filtergroups.run import RunError
from filtergroups.writing import write_atomically

FORMAT = "filtergroups checkpoint 1"
MOST_BYTES = 20_000_000_000  # of a file, which has to lie there to be read
MOST_HEADER = 20_000_000
LARGE = 1_000_000_000  # bytes: of such a file that is packed, an eighth lies on the disk at least
ADAM = {"step", "exp_avg", "exp_avg_sq"}  # what torch's Adam knows of a parameter


@dataclass(frozen=True)
class Progress:
    """How far a run is, as JSON values."""

    step: Count = 0
    best: dict[str, float] = field(default_factory=dict)  # by criterion, lower is better
    fixed: bool = False  # has the last phase begun, with every kernel in one group?
    constants: dict[str, Any] = field(default_factory=dict)  # of the data
    names: dict[str, list[str]] = field(default_factory=dict)  # of the classes
    plain: dict[str, float] = field(default_factory=dict)  # by task, what one would say without looking
    annealed: Count = 0  # steps over which the temperature falls
    config: dict[str, Any] = field(default_factory=dict)  # without paths; empty: of an earlier version
    versions: dict[str, str] = field(default_factory=dict)  # of libraries


def save_checkpoint(
    path: Path,
    network: GroupedNetwork,
    progress: Progress,
    extra: dict[str, Tensor] | None = None,
    *,
    before: Path | None = None,
) -> None:
    """Write a network and how far it is; extra: further tensors, such as the optimiser's.

    before: where the checkpoint goes that was in this place.
    """
    tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
    tensors |= extra or {}
    # Tied layers name one tensor twice, which the format refuses: each gets its own copy.
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    said = json.dumps(asdict(progress))
    content = save(copies, {"format": FORMAT, "progress": said, "checksum": checksum_of(copies, said)})
    try:
        write_atomically(path, content, before=before)
    except OSError as error:
        kept = "the one before it is kept; " if path.exists() else ""
        raise RunError(
            f"{path}: could not write the checkpoint: {error.strerror}; {kept}free some space, then resume"
        ) from None


def checksum_of(tensors: dict[str, Tensor], progress: str) -> str:
    """Safetensors has none of its own: a disk that changes a weight would go unnoticed."""
    checksum = zlib.crc32(progress.encode())
    for name in sorted(tensors):
        values: np.ndarray[Any, Any] = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(values, zlib.crc32(name.encode(), checksum))  # type: ignore[arg-type]  # it is a buffer
    return f"{checksum:08x}"


def read_tensors(path: Path, *, below: Path | None = None) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a safetensors file.

    In one go: safe_open opens a file twice, and a training may put a new one in its place in between.
    """
    _refuse_holes(path)
    content = read_bytes(path, MOST_BYTES, below=below)
    length = int.from_bytes(content[:8], "little")
    if length > MOST_HEADER:
        raise ValueError(f"a header of {length:,} bytes, more than {MOST_HEADER:,}")
    tensors = load(content)  # which holds every tensor's size against the header's
    header = json.loads(content[8 : 8 + length])
    return header.get("__metadata__", {}), tensors


def _refuse_holes(path: Path) -> None:
    """A file of a few bytes can claim any size: what it has holes for would be zeros, and take memory all the same."""
    state = os.stat(path)
    on_disk = 512 * getattr(state, "st_blocks", state.st_size)  # Windows does not say
    if state.st_size > LARGE and on_disk < state.st_size // 8:
        raise ValueError(f"{state.st_size:,} bytes with {on_disk:,} of them on the disk")


def load_checkpoint(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    """A checkpoint of a run; no link is followed out of its folder."""
    try:
        with reading(path, "a whole checkpoint", RunError, "use another, or train again"):
            metadata, tensors = read_tensors(path, below=path.parent)
    except FileNotFoundError:
        raise RunError(f"{path}: expected a checkpoint, found none; train first (or `filtergroups resume`)") from None
    if metadata.get("format") != FORMAT:
        raise RunError(f"{path}: expected a checkpoint of filtergroups, found another file; check the path")
    with reading(path, "a whole checkpoint", RunError, "use another, or train again"):
        progress: Progress = checked(Progress, metadata["progress"])
        # Those of earlier versions have no checksum.
        if metadata.get("checksum") not in (None, checksum_of(tensors, metadata["progress"])):
            raise ValueError("other numbers than were written: the file is damaged")
    return progress, tensors


def restore(network: GroupedNetwork, progress: Progress, tensors: dict[str, Tensor], path: Path) -> None:
    """Put a checkpoint's weights into a network of the same config."""
    if progress.fixed:
        network.fix()  # in which group each kernel is, the checkpoint says
    state = {name.removeprefix("network/"): value for name, value in tensors.items() if name.startswith("network/")}
    for layer in network.grouped_layers():
        weight = state.get(f"backbone.{layer.name}.weight")
        if layer.banks > 1 and weight is not None and weight.shape[layer.kernel_axis] == layer.kernels:
            layer.drop_banks()  # the kernels are to be fixed now, but the run began with one bank for all groups
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: expected the weights of this config's network, found others: {reason}") from None


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state by parameter and name."""
    state = optimiser.state_dict()["state"]
    return {f"optimiser/{index}/{key}": value for index, of in state.items() for key, value in of.items()}


def restore_optimiser(
    optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path, *, left_over: int = 0
) -> None:
    """Put a checkpoint's state of Adam into the optimiser of a network of the same config.

    left_over: how many parameters more an earlier version kept a state of: p's, also where every kernel was fixed.
    """
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    with reading(path, "the optimiser's state of this config", RunError, "use another, or train again"):
        for name, value in tensors.items():
            if name.startswith("optimiser/"):
                _, index, key = name.split("/")
                if 0 <= int(index) - len(parameters) < left_over:
                    continue
                if value.shape != (() if key == "step" else parameters[int(index)].shape):
                    raise ValueError(f"'{name}' of another shape than its parameter")
                state.setdefault(int(index), {})[key] = value
        if odd := [index for index, of in state.items() if set(of) != ADAM]:
            raise ValueError(f"an incomplete state of parameter {odd[0]}")
    full = optimiser.state_dict()
    optimiser.load_state_dict({"state": state, "param_groups": full["param_groups"]})
