"""What a network costs at a given grouping: multiplications of one image, as a function of p.

A pass with everything shared is recorded once: how many multiplications each layer takes for a pair (kernel, channel),
and which kernels made the channels that it reads. Channel c is present in the stream of group h if any of the kernels
S_c that are added up in it belongs to h:

    P(c in h) = 1 − Π_{k ∈ S_c} (1 − p_kh)                                         = p_kh for one kernel
    E[layer]  = unit · Σ_{g ⊆ h} (Σ_k p_kg) · (Σ_c P(c in h))                       a grouped convolution
    E[module] = unit · Σ_h P(any channel in h)                                      a module copied for each stream

The kernels' groups are drawn independently, so that this is the mean over hard gates; a kernel that reads a channel of
its own assignment (tied layers) is accounted for. It is not exact where a kernel reads a sum that it is itself a part
of without being tied to the rest of it. For one-hot p it is the count of the mode network, always.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from filtergroups.groups.assignment import equal_parts, one_hot
from filtergroups.groups.routing import Family


@dataclass(frozen=True)
class Reading:
    """Readers of group g read what is present in group h where the matrix `may_read` says so."""

    unit: int  # multiplications of one reader and one channel
    readers: Tensor  # sources of presence, see CostModel.presence
    channels: Tensor
    may_read: Tensor  # G × G


class CostModel:
    """The multiplications of one image as a function of p (K × G for every assignment, in the network's order).

    All sums run in double precision on the CPU, in which counts up to 2⁵³ are exact.
    """

    def __init__(
        self,
        family: Family,
        kernels: Sequence[int],
        sets: Sequence[frozenset[int]],
        plain: int,
        constant: int,
        readings: Sequence[Reading],
        present: Sequence[tuple[int, Tensor, Sequence[int]]],
    ) -> None:
        """sets: for each source of presence its kernels (rows of all p together; the last is the image).

        present: (unit, sources, groups), paid for each source in each of the groups.
        """
        self.family = family
        self.kernels = tuple(kernels)
        self.plain = plain  # the plain backbone with the heads
        self.constant = constant  # what does not depend on the grouping
        self._single = torch.tensor([next(iter(s)) for s in sets])
        self._joint = _by_size(sets)
        self._linear = torch.zeros(len(sets), len(family), dtype=torch.float64)
        for unit, sources, groups in present:
            for group in groups:
                self._linear[:, group].index_add_(0, sources, torch.full((len(sources),), float(unit)).double())
        self._unit = torch.tensor([float(one.unit) for one in readings], dtype=torch.float64)
        self._may_read = torch.stack([one.may_read for one in readings]).double()
        self._readers = torch.stack([_counts(one.readers, len(sets)) for one in readings])
        self._channels = torch.stack([_counts(one.channels, len(sets)) for one in readings])
        # Pairs of a kernel and a channel that are one random variable, by that variable.
        alone = torch.tensor([len(members) == 1 for members in sets])
        own = (self._readers * self._channels * self._unit[:, None]).sum(0) * alone
        self._own = own if bool(own.any()) else None
        self._readable = torch.tensor(family.readable).double()

    def expected(self, probabilities: Sequence[Tensor]) -> Tensor:
        """The mean over hard gates drawn from p; differentiable."""
        presence = self.presence(probabilities)
        readers, channels = self._readers @ presence, self._channels @ presence
        read = torch.einsum("l,lgh,lg,lh->", self._unit, self._may_read, readers, channels)
        total = self.constant + (self._linear * presence).sum() + read
        if self._own is not None:
            # A kernel is in the group of a channel of its own: it always reads it.
            together = torch.einsum("kg,gh,kh->k", presence, self._readable, presence)
            total = total + (self._own * (1 - together)).sum()
        return total

    def of_groups(self, groups: Sequence[Tensor]) -> int:
        """The exact count for hard groups (K indices for every assignment)."""
        like = [torch.zeros(len(of), len(self.family), dtype=torch.float64) for of in groups]
        hard = [one_hot(of.cpu(), zeros) for of, zeros in zip(groups, like, strict=True)]
        return int(self.expected(hard).item())

    def presence(self, probabilities: Sequence[Tensor]) -> Tensor:
        """P(in h) of every source of presence: sources × G."""
        image = torch.zeros(1, len(self.family), dtype=torch.float64)
        image[0, self.family.full] = 1
        rows = torch.cat([*(p.to("cpu", torch.float64) for p in probabilities), image])
        presence = rows[self._single]
        for places, members in self._joint:
            presence = presence.index_copy(0, places, 1 - (1 - rows[members]).prod(1))
        return presence

    def evenly_split(self) -> int:
        """The count with kernels split evenly among the smallest groups, none shared: the tasks' own, if they have one.

        Less is had only by kernels that read little: a layer of one task after a layer of another, say.
        """
        sets = self.family.sets
        smallest = tuple(g for g, group in enumerate(sets) if not any(other < group for other in sets))
        return self.of_groups([equal_parts(kernels, smallest) for kernels in self.kernels])

    def described(self, target: float) -> list[str]:
        """What a target means here, a line each; one that no sensible grouping reaches is said to be so."""
        even = self.evenly_split() / self.plain
        lines = [f"cost: {self.plain:,} multiplications an image in the plain network; {target:g} of it is asked for"]
        if target < min(even, 1):
            lines.append(
                f"cost: {target:g} is less than kernels split evenly among the tasks cost ({even:.3f}) and everything "
                "shared (1); it is reached, if at all, by kernels that have little to read"
            )
        return lines


def _counts(sources: Tensor, size: int) -> Tensor:
    return torch.bincount(sources, minlength=size).double()


def _by_size(sets: Sequence[frozenset[int]]) -> list[tuple[Tensor, Tensor]]:
    """Sources that are sums of several kernels: (places, n × size members) for every size."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, members in enumerate(sets):
        if len(members) > 1:
            found[len(members)].append(place)
    return [(torch.tensor(at), torch.tensor([sorted(sets[place]) for place in at])) for at in found.values()]
