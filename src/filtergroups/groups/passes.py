"""Several passes over the same images, in less time than one after the other.

Whatever no gate touches is computed once: the first convolution for every group, every leading layer whose assignment
has converged, and all that stands between them. Each torch function and layer that reads only such features is
remembered by its place in the forward code. Passes can also go through side by side, in the batch axis.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from filtergroups.groups.assignment import Assignment, Estimator, TiedRows
from filtergroups.groups.draw import Draw, Gates, drawn_gates, every_pair, laid_out, strengths, worth_computing
from filtergroups.groups.routing import Family
from filtergroups.groups.streams import Layout, Streams

ROOM = 25 * 3 * 64 * 64  # numbers in the images of all passes that go side by side, on a CPU
MOST_AT_ONCE = 25


class _DependsOnGates(Exception):
    """Something that was thought to be the same in every pass reads gates."""


@dataclass(frozen=True)
class _Remembered:
    result: Any
    changed: int | None  # the argument that was changed in place, and is the result


_DEPENDS = _Remembered(None, None)  # stands for: reads gates, so it is computed in every pass


class Passes(Draw):
    """The gates of several passes.

    tolerance: an assignment whose kernels are all at most this far from certain is taken at its mode.
    """

    def __init__(
        self,
        family: Family,
        assignments: Iterable[Assignment | TiedRows],
        temperature: float,
        generator: torch.Generator,
        *,
        estimator: Estimator = "soft",
        threshold: float = 0.0,
        tolerance: float = 0.0,
    ) -> None:
        super().__init__(family)
        self.temperature, self.generator, self.estimator = temperature, generator, estimator
        self.threshold = threshold
        assignments = list(dict.fromkeys(assignments))
        self._random = [a for a in assignments if a.kind != "fixed"]
        settled = [a for a in assignments if a.kind == "fixed" or has_converged(a, tolerance)]
        self._settled = Draw.at_mode(family, settled)._kept
        self._late = {assignment: Late(self, assignment) for assignment in self._random}
        self._drawn: list[list[tuple[Tensor, Tensor]]] = []  # by pass and random assignment: gates and their strengths
        self._once: dict[int, _Remembered] = {}  # by place in the forward code
        self._place = 0
        self.copies = 1

    @property
    def is_random(self) -> bool:
        """Does any pass differ from another?"""
        return any(assignment not in self._settled for assignment in self._random)

    @property
    def drawn(self) -> int:
        """How many passes have gates."""
        return len(self._drawn)

    def draw(self, count: int, examples: int | None = None) -> None:
        """Draw the gates of the next `count` passes, as so many single passes would."""
        self._drawn = []
        for _ in range(count):
            gates = drawn_gates(self._random, self.temperature, self.generator, self.estimator, examples)
            self._drawn.append([(gate, s) for (gate, _), s in zip(gates, strengths(gates), strict=True)])

    def start(self, first: int, count: int, batch: int) -> None:
        """Go through the passes first … first + count of those drawn, side by side."""
        self.copies, self._place = count, 0
        chosen = self._drawn[first : first + count]
        self._kept = dict(self._settled)
        for n, assignment in enumerate(self._random):
            if assignment in self._settled:
                continue
            if count == 1:
                gate, strength = chosen[0][n]
                self._kept[assignment] = laid_out(gate, strength, self.threshold)
                continue
            # What a pass by itself would leave out has the gate 0 here, so that the numbers are the same.
            masks = [worth_computing(strength, self.threshold) for _, strength in (one[n] for one in chosen)]
            gates = [one[n][0] * mask.to(one[n][0].device) for one, mask in zip(chosen, masks, strict=True)]
            together = torch.cat([gate.expand(batch, -1, -1) for gate in gates])
            self._kept[assignment] = laid_out(together, torch.stack(masks).any(0).float(), 0.0)

    def forget(self) -> None:
        """Other images follow."""
        self._once.clear()

    def enter(self, image: Tensor) -> Streams:
        with self._computing_once():
            return Streams.of_image(image, self)

    def kept(self, assignment: Assignment | TiedRows) -> tuple[Layout, Gates]:
        if self.computing_once and assignment not in self._settled:
            return every_pair(assignment.kernels, len(self.family)), None
        return self._kept[assignment]

    def late(self, assignment: Assignment | TiedRows) -> "Late | None":
        return self._late[assignment] if self.computing_once and assignment not in self._settled else None

    def once(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of streams, or remember what it gave in an earlier pass."""
        streams = list(streams_in(args))
        if not any(one.same_in_every_pass for one in streams):
            return function(*args)
        if not all(one.same_in_every_pass for one in streams):
            return self._in_this_pass(function, args)
        place = self._place
        self._place += 1
        known = self._once.get(place)
        if known is None:
            try:
                with self._computing_once():
                    result = function(*args)
                    if next(streams_in(result), None) is None:
                        return result  # a size or the like, quickly asked again
                    # Forward code may change a container in place later: what is remembered is a copy.
                    which = next((n for n, one in enumerate(streams) if one is result), None)
                    self._once[place] = _Remembered(_copied(result), which)
                    return result
            except _DependsOnGates:
                known = self._once[place] = _DEPENDS
        if known is _DEPENDS:
            return self._in_this_pass(function, args)
        with self._computing_once():
            copy = _copied(known.result)
        if known.changed is None:
            return copy
        changed = streams[known.changed]
        changed.__dict__.update(copy.__dict__)
        return changed

    @contextmanager
    def _computing_once(self) -> Iterator[None]:
        self.computing_once = True
        try:
            yield
        finally:
            self.computing_once = False

    def _in_this_pass(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        return function(*tree_map_only(Streams, self.widened, args))

    def widened(self, streams: Streams) -> Streams:
        """What is the same in every pass, once for each of those that go side by side."""
        if not streams.same_in_every_pass:
            return streams
        if isinstance(streams.stitch, Late):
            return streams.stitch(streams)
        if self.copies == 1:
            return streams
        return Streams([repeated(part, self.copies) for part in streams.parts], streams.pairs, streams.gates, self)


class Late:
    """Gates that are not drawn yet: features of every pair, of which a pass takes what its gates keep."""

    def __init__(self, passes: Passes, assignment: Assignment | TiedRows) -> None:
        self.passes, self.assignment = passes, assignment

    def __call__(self, streams: Streams) -> Streams:
        if self.passes.computing_once:
            raise _DependsOnGates
        pairs, gates = self.passes.kept(self.assignment)
        parts = []
        for group, run in zip(pairs.groups, pairs.kernels, strict=True):
            parts.append(repeated(run.take(streams.parts[group], 1), self.passes.copies))
        return Streams(parts, pairs, gates, self.passes)


def passes_at_once(images: Tensor) -> int:
    """Side by side, passes compute what any of them needs; that pays where single passes are too small to be fast."""
    room = ROOM if images.device.type == "cpu" else 32 * ROOM
    return max(1, min(MOST_AT_ONCE, room // images.numel()))


def streams_in(arguments: Any) -> Iterator[Streams]:
    """All streams among a function's arguments, which may be in lists."""
    if isinstance(arguments, Streams):
        yield arguments
    elif isinstance(arguments, (tuple, list)):
        for argument in arguments:
            yield from streams_in(argument)
    elif isinstance(arguments, dict):
        for argument in arguments.values():
            yield from streams_in(argument)


def repeated(part: Tensor, copies: int) -> Tensor:
    return part if copies == 1 else part.repeat(copies, *[1] * (part.ndim - 1))


def _copied(tree: Any) -> Any:
    if isinstance(tree, Streams):  # nearly always, and this is done for every remembered result of every pass
        return tree.like(tree.parts)
    return tree_map_only(Streams, lambda streams: streams.like(streams.parts), tree)


def has_converged(assignment: Assignment | TiedRows, tolerance: float) -> bool:
    """Is every kernel within the tolerance of certain?"""
    most = assignment.probabilities().detach().amax(-1)
    return tolerance > 0 and bool((most >= 1 - tolerance).all())
