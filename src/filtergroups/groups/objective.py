"""Eq. 5, term by term.

    loss = Σ_t loss_t + λ1 Σ ||M||² − λ2 Σ H(p)
The paper's factor N/M of the data term is folded into λ1 and λ2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from filtergroups.network import GroupedNetwork


@dataclass(frozen=True)
class Terms:
    """The signed terms of the objective: total is their sum."""

    tasks: dict[str, Tensor]
    weights: Tensor
    entropy: Tensor

    @property
    def total(self) -> Tensor:
        return torch.stack([*self.tasks.values(), self.weights, self.entropy]).sum()


def objective(
    network: "GroupedNetwork",
    outputs: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    *,
    masks: Mapping[str, Tensor] | None = None,
    weight_factor: float = 1e-6,
    entropy_factor: float = 1e-5,
) -> Terms:
    """The variational loss of a grouped network: .total, and .tasks, .weights and .entropy one by one.

    labels: a tensor for every task; NaN, a negative class and a mask of 0 mean that a label is missing.
    """
    masks = masks or {}
    names = {task.name for task in network.tasks}
    for what, given in (("labels", labels), ("outputs", outputs)):
        if set(given) != names:
            raise ValueError(
                f"{what} are given for the tasks {sorted(names)}, found {sorted(given)}; give one for each"
            )
    if unknown := set(masks) - names:
        raise ValueError(f"masks are given for tasks among {sorted(names)}, found {sorted(unknown)}; drop those")
    for task in network.tasks:
        task.check(outputs[task.name], labels[task.name], masks.get(task.name))
    losses = {
        task.name: task.loss(outputs[task.name], labels[task.name], masks.get(task.name)) for task in network.tasks
    }
    return Terms(losses, weight_factor * weight_norm(network), -entropy_factor * grouping_entropy(network))


def weight_norm(network: "GroupedNetwork") -> Tensor:
    """Σ ||M||² over the kernels of all grouped layers."""
    return torch.stack([layer.weight.square().sum() for layer in network.grouped_layers()]).sum()


def grouping_entropy(network: "GroupedNetwork") -> Tensor:
    """Σ H(p) over the kernels of all layers; kernels that share an assignment are one variable and count once."""
    return torch.stack([assignment.entropy().sum() for assignment in network.assignments()]).sum()
