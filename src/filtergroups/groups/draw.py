"""One pass's gates: every assignment is drawn once, and says which pairs are worth computing."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from filtergroups.groups.assignment import Assignment, Estimator, TiedRows
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import Layout, Streams

Gates = tuple[Tensor, ...] | None

# Where nearly every gate is open, leaving out the rest costs more than computing it.
NEARLY_ALL = 0.9
# Convolutions are written for channels in multiples of this.
VECTOR = 8


@lru_cache(maxsize=256)
def every_pair(width: int, groups: int) -> Layout:
    """All groups: every kernel in every stream."""
    return Layout.whole(width, range(groups))


@lru_cache(maxsize=256)
def one_pair_each(groups_of_kernels: tuple[int, ...]) -> Layout:
    """Fixed one-hot gates: each kernel in its own stream only, channels"""
    groups = torch.tensor(groups_of_kernels)
    return Layout.of(len(groups), [(int(g), (groups == g).nonzero().flatten()) for g in groups.unique()])


def kept_pairs(kept: Tensor) -> Layout:
    """Only what the gates keep (G × K)."""
    return Layout.of(kept.shape[1], [(group, row.nonzero().flatten()) for group, row in enumerate(kept)])


def some_kernels(groups: Tensor, chosen: Tensor) -> Layout:
    """Fixed one-hot gates (K groups) of the kernels that a mask chooses; the others are in no stream."""
    kernels = [(int(g), ((groups == g) & chosen).nonzero().flatten()) for g in groups.unique()]
    return Layout.of(len(groups), kernels)


class Draw:
    """The gates of one pass, or the mode. Layers with tied assignments get the same gates."""

    copies = 1  # passes that go through side by side, in the batch axis
    computing_once = False  # is what is being computed the same in every pass?

    def __init__(self, family: Family) -> None:
        self.family = family
        self._kept: dict[Assignment | TiedRows, tuple[Layout, Gates]] = {}

    @staticmethod
    def at_mode(family: Family, assignments: Iterable[Assignment | TiedRows]) -> "Draw":
        """Each kernel in its most probable group."""
        draw = Draw(family)
        for assignment in assignments:
            draw._kept[assignment] = (one_pair_each(tuple(assignment.mode().tolist())), None)
        return draw

    @staticmethod
    def sampled(
        family: Family,
        assignments: Iterable[Assignment | TiedRows],
        temperature: float,
        generator: torch.Generator,
        *,
        estimator: Estimator = "soft",
        examples: int | None = None,
        rows: slice | None = None,
        threshold: float = 0.0,
        noise: float = 1.0,
    ) -> "Draw":
        """Sample every assignment once, in order; pairs whose gate is not above the threshold are left out.

        rows: those of the `examples` that this pass computes; the pairs are those of all, so that passes that compute
        the others have the same ones.
        """
        assignments = list(dict.fromkeys(assignments))
        draw = Draw.at_mode(family, [a for a in assignments if a.kind == "fixed"])
        random = [a for a in assignments if a.kind != "fixed"]
        gates = drawn_gates(random, temperature, generator, estimator, examples, noise)
        for assignment, (gate, _), strength in zip(random, gates, strengths(gates), strict=True):
            draw._kept[assignment] = laid_out(gate if rows is None else gate[rows], strength, threshold)
        return draw

    def kept(self, assignment: Assignment | TiedRows) -> tuple[Layout, Gates]:
        """The pairs to compute for a layer, and each stream's gates ([batch or 1] × kernels; None means 1)."""
        return self._kept[assignment]

    def late(self, assignment: Assignment | TiedRows) -> Callable[[Streams], Streams] | None:
        """What a layer leaves to be done when its features are read; nothing in a single pass."""
        return None

    def once(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of streams; several passes remember what is the same in all of them."""
        return function(*args)

    def image_layout(self, channels: int) -> Layout:
        return one_pair_each((self.family.full,) * channels)

    def joined(self, left: Streams, right: Streams) -> None:
        """Told when two layers' features are added or multiplied; a survey takes note."""

    def united(self, one: Tensor, other: Tensor) -> Tensor:
        """The identities of channels in which features of two identities are added: the latter's, where it has one."""
        return torch.where(other >= 0, other, one)

    def multiplied(self, one: Tensor, other: Tensor) -> Tensor:
        """The same, where they are multiplied."""
        return self.united(one, other)


def drawn_gates(
    assignments: Iterable[Assignment | TiedRows],
    temperature: float,
    generator: torch.Generator,
    estimator: Estimator,
    examples: int | None,
    noise: float = 1.0,
) -> list[tuple[Tensor, Tensor]]:
    """Gates, and those that carry the gradient, of each assignment; tied ones take rows of one draw."""
    drawn: dict[Assignment, tuple[Tensor, Tensor]] = {}
    gates: list[tuple[Tensor, Tensor]] = []
    for assignment in assignments:
        base, rows = (assignment.base, assignment.rows) if isinstance(assignment, TiedRows) else (assignment, None)
        if base not in drawn:
            drawn[base] = base.draw(temperature, generator, estimator=estimator, examples=examples, noise=noise)
        gate, soft = drawn[base]
        gates.append((gate, soft) if rows is None else (gate[..., rows], soft[..., rows]))
    return gates


def strengths(gates: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """The largest gate, or gradient's gate, of each pair over the examples: G × K, all moved to the CPU at once."""
    if not gates:
        return []
    # A hard gate of 0 passes a gradient through its soft gate: without a gradient only the hard one counts.
    with_gradient = torch.is_grad_enabled()
    largest = []
    for gate, soft in gates:
        strength = torch.maximum(gate, soft) if with_gradient and gate is not soft else gate
        largest.append(strength.detach().amax(0))
    flat = torch.cat([strength.flatten() for strength in largest]).cpu()
    return [part.view_as(s) for part, s in zip(flat.split([s.numel() for s in largest]), largest, strict=True)]


def laid_out(gate: Tensor, strength: Tensor, threshold: float) -> tuple[Layout, Gates]:
    """The pairs that are worth computing, and their gates."""
    groups, kernels = strength.shape
    kept = worth_computing(strength, threshold)
    if kept.all():
        return every_pair(kernels, groups), gate.unbind(1)
    layout = kept_pairs(kept)
    of_group = gate.unbind(1)
    return layout, tuple(run.take(of_group[g], 1) for g, run in zip(layout.groups, layout.kernels, strict=True))


def worth_computing(strength: Tensor, threshold: float) -> Tensor:
    """Which pairs (G × K) a pass computes: those above the threshold, or more where more is faster."""
    kept = strength > threshold
    if kept.sum() >= NEARLY_ALL * kept.numel():
        return torch.ones_like(kept)
    return _rounded(kept, strength)


def _rounded(kept: Tensor, strength: Tensor) -> Tensor:
    """Keep some more, the strongest, where it fills a group up to a multiple of the vector width: that is faster."""
    counts = kept.sum(1)
    rounded = (-(-counts // VECTOR) * VECTOR).clamp_max(kept.shape[1])
    ranks = strength.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return kept | (ranks < torch.where(counts < VECTOR, counts, rounded).unsqueeze(1))
