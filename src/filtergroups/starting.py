"""What a new run takes over from one that is done."""

from pathlib import Path

from filtergroups.checkpoint import load_checkpoint
from filtergroups.config import MethodConfig
from filtergroups.groups.assignment import Assignment
from filtergroups.network import GroupedNetwork
from filtergroups.run import Run, RunError


def take_over(network: GroupedNetwork, method: MethodConfig) -> None:
    """Prepare a network that starts from nothing but its seed, and from what its config names."""
    if method.mask_from is not None:
        take_masks(network, method.mask_from)


def take_masks(network: GroupedNetwork, run: Path) -> None:
    """Fix every kernel in the most probable group of the same kernel of a run; the weights stay fresh."""
    file = Run.open(run).checkpoint("best")
    _, tensors = load_checkpoint(file)
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
        module.fix(taken.argmax(-1))
