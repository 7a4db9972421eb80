"""A task is added to a network that is done: its kernels stay as they are, and further ones serve the new task alone.

Every old group g becomes the group whose part among the old tasks is g; the new kernels belong to the new task. As a
kernel of group g reads h exactly when g ⊆ h, no old kernel reads a new one, so that what the old tasks say stays the
same; the new task reads its own kernels and those of every old group that it joined. With the family `tasks+shared`
that is the shared group; with {a, new}, {b, new}, {new}, {a, b, new} it is all of them.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from filtergroups.checkpoint import read_tensors
from filtergroups.groups.assignment import Assignment
from filtergroups.groups.norms import GroupedNorm, GroupedPReLU
from filtergroups.groups.routing import Family
from filtergroups.network import GroupedNetwork
from filtergroups.reading import reading
from filtergroups.restored import open_run
from filtergroups.run import RunError


@dataclass(frozen=True)
class Extension:
    """Where an old network lies in a new one: its tensors by name, and the new index of each old group."""

    run: Path
    tensors: dict[str, Tensor]  # of the old network, with rho as one-hot rows
    groups: list[int]  # new index of each old group
    new_group: int
    by_group: set[str]  # names of the tensors that have a row a group

    def take(self, network: GroupedNetwork) -> None:
        """Put the old kernels, norms and heads into a new network; the other kernels are the new task's."""
        state = network.state_dict()
        for name, old in self.tensors.items():
            if name.endswith("rho"):
                continue
            if name not in self.by_group and old.ndim:
                state[name][: len(old)] = 0  # what is kept reads no new kernel
            self._place(state[name], old, name)
        for name, module in network.named_modules():
            if isinstance(module, Assignment):
                module.fix(self._assigned(self.tensors[f"{name}.rho"], module.kernels))

    def _assigned(self, old: Tensor, kernels: int) -> Tensor:
        taken = torch.tensor(self.groups)[old.argmax(-1)]
        return torch.cat([taken, torch.full((kernels - len(taken),), self.new_group)])

    def hold(self, network: GroupedNetwork) -> None:
        """While the network trains, what was taken does not move: no gradient reaches it, and no running statistic."""
        for name, parameter in network.named_parameters():
            if name in self.tensors:
                parameter.register_hook(partial(_masked, ~self._held(parameter, name)))
        for name, module in network.named_modules():
            if isinstance(module, GroupedNorm):
                kept = {
                    key: (self._held(buffer, full), buffer.clone())
                    for key, buffer in module.named_buffers()
                    if (full := f"{name}.{key}") in self.tensors and buffer.ndim
                }
                module.register_forward_hook(partial(_put_back, kept))

    def with_statistics(self, sets: dict[str, Tensor]) -> dict[str, Tensor]:
        """Recalibrated statistics with those of the old run for its kernels."""
        file = self.run / "statistics-best.safetensors"
        try:
            with reading(file, "norm statistics", RunError, "remove it"):
                _, kept = read_tensors(file, below=self.run)
        except FileNotFoundError:
            return sets
        for name, old in kept.items():
            if name in sets and old.ndim and name.startswith("mode/"):
                self._place(sets[name], old, name.removeprefix("mode/"))
        return sets

    def _held(self, tensor: Tensor, name: str) -> Tensor:
        """Which entries of a tensor stay: those that were taken, of kernels and heads with the zeros beside them."""
        held = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
        old = self.tensors[name]
        if name in self.by_group:
            self._place(held, torch.ones(old.shape, dtype=torch.bool), name)
        else:
            held[: len(old)] = True
        return held

    def _place(self, tensor: Tensor, old: Tensor, name: str) -> None:
        """Write an old tensor into the corner of a larger one; rows of groups go where their group went."""
        if name in self.by_group:
            for row, group in zip(old, self.groups, strict=True):
                tensor[group][tuple(slice(size) for size in row.shape)] = row.to(tensor)
        else:
            tensor[tuple(slice(size) for size in old.shape)] = old.to(tensor)


def _masked(free: Tensor, gradient: Tensor) -> Tensor:
    return gradient * free.to(gradient.device)


def _put_back(kept: dict[str, tuple[Tensor, Tensor]], module: nn.Module, args: Any, output: Any) -> None:
    if module.training:
        for key, (held, values) in kept.items():
            buffer = getattr(module, key)
            buffer.data[held] = values[held].to(buffer.device)


def extension(network: GroupedNetwork, run: Path) -> Extension:
    """How a run's network is kept inside a larger one with one task more."""
    old = open_run(run).network
    groups, new_group = joined(old.family, network.family)
    state = {name: tensor.detach() for name, tensor in old.state_dict().items()}
    larger = network.state_dict()
    for name, tensor in state.items():
        found = larger.get(name)
        fits = found is not None and found.ndim == tensor.ndim
        if not fits or any(a < b for a, b in zip(found.shape, tensor.shape, strict=True)):  # type: ignore[union-attr]  # fits says so
            raise RunError(
                f"method.extend: {run}: expected room for '{name}' of shape {tuple(tensor.shape)}, "
                f"found {None if found is None else tuple(found.shape)}; use the same network, width and hidden units"
            )
    by_group = {
        f"{name}.{key}"
        for name, module in network.named_modules()
        if isinstance(module, GroupedNorm | GroupedPReLU)
        for key, tensor in (*module.named_parameters(), *module.named_buffers())
        if tensor.ndim
    }
    return Extension(run, state, groups, new_group, by_group)


def joined(old: Family, new: Family) -> tuple[list[int], int]:
    """The new index of each old group, and that of the new task's own; refused where old tasks would be disturbed."""
    before = frozenset(old.tasks)
    added = frozenset(new.tasks) - before
    found = [[n for n, group in enumerate(new.sets) if group & before == theirs] for theirs in old.sets]
    own = [n for n, group in enumerate(new.sets) if group == added]
    if not before < frozenset(new.tasks) or len(own) != 1 or any(len(places) != 1 for places in found):
        raise RunError(
            f"method.extend: expected each of the groups {list(old.names)} once, with or without the new task, and "
            f"one of the new task alone, found {list(new.names)}; see docs/reproduction.md"
        )
    groups = [places[0] for places in found]
    for g, mine in enumerate(groups):
        reads = [old.readable[g][h] for h in range(len(groups))]
        if [new.readable[mine][h] for h in groups] != reads or new.readable[mine][own[0]]:
            raise RunError(
                f"method.extend: the group '{old.names[g]}' would read other kernels than before; choose other groups"
            )
    return groups, own[0]
