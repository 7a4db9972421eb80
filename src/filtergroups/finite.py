"""Are all numbers of a training finite? Which are not, by the names that its user knows, and what to lower."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from filtergroups.groups.assignment import TiedRows
from filtergroups.network import GroupedNetwork
from filtergroups.run import RunError

SHOWN = 3  # names of a message


class Diverged(RunError):
    """A loss, a parameter, p or the optimiser's state became NaN or infinite."""


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Is every number finite? One value travels to the host, however many tensors there are."""
    kept = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    return not kept or bool(torch.stack([tensor.isfinite().all() for tensor in kept]).all())


def not_finite(
    network: GroupedNetwork, weights: nn.Module | None = None, optimiser: torch.optim.Optimizer | None = None
) -> list[str]:
    """The names of what is not finite: p, parameters, statistics of norms, weights of tasks, optimiser state."""
    named = list(_named(network, weights, optimiser))
    if all_finite(tensor for _, tensor in named):
        return []
    return list(dict.fromkeys(name for name, tensor in named if not all_finite([tensor])))


def check_finite(
    network: GroupedNetwork,
    weights: nn.Module | None = None,
    optimiser: torch.optim.Optimizer | None = None,
    *,
    what: str,
    kept: str,
) -> None:
    """Refuse to go on with numbers that are not finite; what: happens now; kept: what there is from before."""
    if names := not_finite(network, weights, optimiser):
        raise Diverged(f"{what}, found NaN or infinity in {listed(names)}; {kept}; {remedy(names)}")


def listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def remedy(names: Iterable[str]) -> str:
    """What to lower: p has a learning rate of its own."""
    factor = "training.probability_factor or " if any(_is_p(name) for name in names) else ""
    return f"lower {factor}training.learning_rate, or set training.clip_norm"


def largest(network: GroupedNetwork) -> str:
    """The parameter with the largest number, for where all are finite and a loss is not."""
    most = {name: tensor.detach().abs().amax().item() for name, tensor in _floating(network)}
    name = max(most, key=lambda name: most[name])
    return f"the largest parameter is {name}, with {most[name]:.3g}"


def _is_p(name: str) -> bool:
    return name.startswith(("p of ", "Adam's average of p of "))


def _named(
    network: GroupedNetwork, weights: nn.Module | None, optimiser: torch.optim.Optimizer | None
) -> Iterator[tuple[str, Tensor]]:
    names = {id(tensor): name for name, tensor in _parameters(network)}
    yield from _parameters(network)
    # A finite ρ far below 0 in every group would be a p of 0/0.
    yield from ((names[id(one.rho)], one.probabilities()) for one in network.assignments())
    if weights is not None:
        for key, tensor in weights.state_dict(keep_vars=True).items():
            names[id(tensor)] = f"the learned weight of task '{key.rpartition('.')[2]}'"
            yield names[id(tensor)], tensor
    state: dict[Any, dict[str, Any]] = {} if optimiser is None else optimiser.state
    for parameter, of in state.items():
        for value in of.values():
            if isinstance(value, Tensor):
                yield f"Adam's average of {names.get(id(parameter), 'a parameter')}", value


def _floating(network: GroupedNetwork) -> Iterator[tuple[str, Tensor]]:
    """Not the counters of norms."""
    return (entry for entry in _parameters(network) if entry[1].is_floating_point() and entry[1].numel())


def _parameters(network: GroupedNetwork) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a network, each once."""
    layers: dict[int, list[str]] = {}
    for layer in network.grouped_layers():
        base = layer.assignment.base if isinstance(layer.assignment, TiedRows) else layer.assignment
        layers.setdefault(id(base.rho), []).append(f"'{layer.name}'")
    seen = set()
    for key, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) in seen:  # tied layers
            continue
        seen.add(id(tensor))
        if id(tensor) in layers:
            of = layers[id(tensor)]
            yield f"p of layer{'s' if len(of) > 1 else ''} {', '.join(of[:SHOWN])}", tensor
        elif key.startswith("heads."):
            _, task, name = key.split(".", 2)
            yield f"'{name}' of the head of task '{task}'", tensor
        else:
            yield f"'{key.removeprefix('backbone.')}'", tensor
