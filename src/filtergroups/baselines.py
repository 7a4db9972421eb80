"""Name -> assignment: what is compared is data, not a class of its own."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from filtergroups.groups.assignment import (
    Assignment,
    Initialisation,
    Kind,
    equal_parts,
    initial_probabilities,
    one_hot,
)
from filtergroups.groups.routing import Family

Start = Callable[[Family, int], Tensor]


def task_parts(family: Family, kernels: int) -> Tensor:
    """An equal part of the kernels for each task, none shared: separate networks."""
    return _one_hot(family, equal_parts(kernels, family.specialists))


def all_shared(family: Family, kernels: int) -> Tensor:
    return _one_hot(family, torch.full((kernels,), family.full))


def group_parts(family: Family, kernels: int) -> Tensor:
    """An equal part of the kernels for each group."""
    return _one_hot(family, equal_parts(kernels, tuple(range(len(family)))))


def random_parts(family: Family, kernels: int) -> Tensor:
    """Each kernel in a group drawn at random, by torch's own generator, as weights are."""
    return _one_hot(family, torch.randint(len(family), (kernels,)))


def uniform(family: Family, kernels: int) -> Tensor:
    return torch.full((kernels, len(family)), 1 / len(family), dtype=torch.float64)


def _one_hot(family: Family, groups: Tensor) -> Tensor:
    return one_hot(groups, torch.zeros(len(groups), len(family), dtype=torch.float64))


@dataclass(frozen=True)
class Method:
    """How kernels are assigned: where p starts (None: the asked initialisation), what becomes of it, and the mix."""

    kind: Kind
    start: Start | None
    cross_stitch: bool = False


METHODS = {
    "one_task": Method("fixed", task_parts),
    "hard_sharing": Method("fixed", all_shared),
    "constant_mask": Method("fixed", group_parts),
    "fixed_mask": Method("fixed", random_parts),
    "constant_p": Method("constant", uniform),
    "cross_stitch": Method("fixed", task_parts, cross_stitch=True),
    "sfg": Method("learned", None),
}


def method_named(name: str) -> Method:
    if name not in METHODS:
        raise ValueError(f"a method is one of {list(METHODS)}, found {name!r}; choose one")
    return METHODS[name]


def assignment_for(
    method: Method,
    family: Family,
    kernels: int,
    init: Initialisation | Tensor = "shared",
    generator: torch.Generator | None = None,
    *,
    pooled: bool = False,
) -> Assignment:
    """The assignment of K kernels under a method; init matters to a learned one only."""
    if method.start is not None:
        probabilities = method.start(family, kernels)
    elif isinstance(init, Tensor):
        # One row serves any number of kernels.
        probabilities = init.expand(kernels, -1) if init.ndim == 1 else init
    else:
        probabilities = initial_probabilities(family, kernels, init, generator)
    return Assignment(family, probabilities, method.kind, pooled=pooled)
