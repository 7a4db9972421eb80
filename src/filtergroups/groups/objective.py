"""Eq. 5, term by term.

    loss = Σ_t loss_t + λ1 Σ ||M||² − λ2 Σ H(p)
The paper's factor N/M of the data term is folded into λ1 and λ2. Where a cost is asked for there is one more:
    + λ3 · relu(cost − target)
with the multiplications of the network as a share of the plain network's.
"""

from collections.abc import Mapping, Sequence
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
    cost: Tensor | None = None  # None: nobody asked for a cost

    @property
    def total(self) -> Tensor:
        terms = [*self.tasks.values(), self.weights, self.entropy]
        return torch.stack(terms if self.cost is None else [*terms, self.cost]).sum()


def objective(
    network: "GroupedNetwork",
    outputs: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    *,
    masks: Mapping[str, Tensor] | None = None,
    weight_factor: float = 1e-6,
    entropy_factor: float = 1e-5,
    cost_factor: float = 0.0,
    cost_target: float = 0.5,
    image_shape: Sequence[int] | None = None,
) -> Terms:
    """The variational loss of a grouped network: .total, and .tasks, .weights, .entropy and .cost one by one.

    labels: a tensor for every task; NaN, a negative class and a mask of 0 mean that a label is missing.
    cost_factor: 0 leaves the cost out. cost_target: multiplications that are asked for, as a share of the plain
    network's, for images of image_shape (channels × space; None: the shape that the backbone was lifted with).
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
    weights, entropy = weight_factor * weight_norm(network), -entropy_factor * grouping_entropy(network)
    if not cost_factor:
        return Terms(losses, weights, entropy)
    excess = cost_excess(network, cost_target, image_shape)
    return Terms(losses, weights, entropy, cost_factor * excess.to(weights.device, weights.dtype))


def weight_norm(network: "GroupedNetwork") -> Tensor:
    """Σ ||M||² over the kernels of all grouped layers."""
    return torch.stack([layer.weight.square().sum() for layer in network.grouped_layers()]).sum()


def grouping_entropy(network: "GroupedNetwork") -> Tensor:
    """Σ H(p) over the kernels of all layers; kernels that share an assignment are one variable and count once."""
    return torch.stack([assignment.entropy().sum() for assignment in network.assignments()]).sum()


def cost_excess(network: "GroupedNetwork", target: float, image_shape: Sequence[int] | None = None) -> Tensor:
    """relu(cost − target): the value is that of the mode network, the gradient that of the mean over hard gates.

    The mode is what is used in the end, but does not move with p. The mean does, but says little of the mode: with
    every kernel at (.2, .2 | .6) the mean is .68 of the plain cost, and the mode, everything shared, all of it. So p is
    pushed to where the mean is smaller until the mode costs no more than the target, and then left alone.
    """
    if not any(assignment.kind == "learned" for assignment in network.assignments()):
        raise ValueError(
            f"a cost is reached by learning the groups, found method '{network.method}' with none learned; "
            "use method 'sfg' or cost_factor 0"
        )
    mean = network.expected_multiplications(image_shape)
    of_mode = network.multiplications(image_shape) + (mean - mean.detach())
    return torch.relu(of_mode / network.cost_model(image_shape).plain - target)
