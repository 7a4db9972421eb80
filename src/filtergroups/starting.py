"""What a new run takes over from one that is done."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from filtergroups.checkpoint import load_checkpoint
from filtergroups.config import MethodConfig
from filtergroups.data.examples import Data
from filtergroups.data.images import with_normalisation
from filtergroups.extending import extension
from filtergroups.groups.assignment import Assignment, in_proportion
from filtergroups.network import GroupedNetwork
from filtergroups.run import Run, RunError


def take_over(network: GroupedNetwork, method: MethodConfig) -> None:
    """Prepare a network that starts from nothing but its seed, and from what its config names."""
    if method.mask_from is not None:
        take_masks(network, method.mask_from)
        if method.shuffle is not None:
            shuffle(network, method.shuffle)
    if method.shares is not None:
        wanted = torch.tensor([method.shares.get(name, 0.0) for name in network.family.names])
        for assignment in network.assignments():
            assignment.fix(in_proportion(torch.ones(assignment.kernels, len(wanted)), wanted))
    if method.extend is not None:
        extension(network, method.extend).take(network)


def seen_alike(data: Data, method: MethodConfig) -> Data:
    """Images as a network sees them that is kept inside the new one."""
    if method.extend is None:
        return data
    progress, _ = load_checkpoint(Run.open(method.extend).checkpoint("best"))
    return with_normalisation(data, progress.constants)


def hold(network: GroupedNetwork, method: MethodConfig) -> None:
    """Keep what a network has of another as it is while it is trained."""
    if method.extend is not None:
        extension(network, method.extend).hold(network)


def kept_statistics(sets: dict[str, Tensor], network: GroupedNetwork, method: MethodConfig) -> dict[str, Tensor]:
    """Recalibrated statistics of norms, where a network has kernels of another with that one's own."""
    return sets if method.extend is None else extension(network, method.extend).with_statistics(sets)


def shuffle(network: GroupedNetwork, what: Literal["kernels", "layers"]) -> None:
    """A control: masks that keep the proportions of each layer, or those of all layers together."""
    assignments = network.assignments()
    overall = torch.cat([assignment.rho for assignment in assignments]).mean(0)
    for assignment in assignments:
        order = torch.randperm(assignment.kernels)
        alike = in_proportion(torch.ones_like(assignment.rho), overall)
        assignment.fix((alike if what == "layers" else assignment.mode())[order])


def take_masks(network: GroupedNetwork, run: Path) -> None:
    """Fix every kernel in the most probable group of the same kernel of a run; the weights stay fresh."""
    _, tensors = load_checkpoint(Run.open(run).checkpoint("best"))
    for name, module in network.named_modules():
        if not isinstance(module, Assignment):
            continue
        taken = tensors.get(f"network/{name}.rho")
        if taken is None or taken.shape != module.rho.shape:
            found = "none" if taken is None else " × ".join(map(str, taken.shape))
            kernels, groups = module.rho.shape
            raise RunError(
                f"method.mask_from: {run}: expected {kernels} kernels × {groups} groups at '{name}', found {found}; "
                "use a run of the same network, width and tasks"
            )
        common = tensors.get(f"network/{name}.common")  # of groups that were still being learned
        module.fix((taken if common is None else taken + common).argmax(-1))
