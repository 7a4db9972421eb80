"""Groups are task sets, and one rule says who reads whom."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

TASKS_AND_SHARED = "tasks+shared"
ALL_SUBSETS = "all_subsets"
MOST_GROUPS = 1023  # all subsets of 10 tasks; every group is a stream that is computed while gates are soft


@dataclass(frozen=True)
class Family:
    """The groups of a network: a family of task sets that contains the full set.

    A kernel of group g may read a feature of group h exactly when g ⊆ h, so that a task's loss reaches
    only kernels of groups that contain it.
    """

    tasks: tuple[str, ...]
    sets: tuple[frozenset[str], ...]

    def __post_init__(self) -> None:
        check_task_names(self.tasks)
        everyone = frozenset(self.tasks)
        for group in self.sets:
            if not group or not group <= everyone:
                raise ValueError(
                    f"a group is a non-empty set of the tasks {list(self.tasks)}, found {sorted(group)}; "
                    "list only names of these tasks"
                )
        if len(set(self.sets)) != len(self.sets):
            raise ValueError(f"each group may appear once, found {self.names} with repeats; drop the copies")
        if everyone not in self.sets:
            raise ValueError(
                f"a family contains the set of all tasks {list(self.tasks)} (the image belongs to it), "
                f"found only {[sorted(group) for group in self.sets]}; add it"
            )

    def __len__(self) -> int:
        return len(self.sets)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The task's name for a specialist, `shared` for the full set, `a+b` for what lies between."""
        return tuple(self._name(group) for group in self.sets)

    def _name(self, group: frozenset[str]) -> str:
        if len(group) == len(self.tasks) > 1:
            return "shared"
        return "+".join(task for task in self.tasks if task in group)

    @cached_property
    def full(self) -> int:
        """Index of the set of all tasks: the shared group, and the group of the image."""
        return self.sets.index(frozenset(self.tasks))

    @cached_property
    def specialists(self) -> tuple[int, ...]:
        """Index of each task's singleton, in the order of the tasks."""
        missing = [task for task in self.tasks if frozenset({task}) not in self.sets]
        if missing:
            raise ValueError(
                f"this method needs a group of its own for every task, found none for {missing} in {list(self.names)}; "
                f"use the family '{TASKS_AND_SHARED}' or add those singletons"
            )
        return tuple(self.sets.index(frozenset({task})) for task in self.tasks)

    @cached_property
    def readable(self) -> tuple[tuple[bool, ...], ...]:
        """readable[g][h]: may a kernel of group g read a feature of group h?"""
        return tuple(tuple(reader <= source for source in self.sets) for reader in self.sets)

    def containing(self, task: str) -> tuple[int, ...]:
        """The groups that a task's head reads."""
        return tuple(index for index, group in enumerate(self.sets) if task in group)


def check_task_names(names: Sequence[str]) -> None:
    if not names:
        raise ValueError("a network needs at least one task, found none")
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise ValueError(f"task names are unique, found {repeated} more than once; rename one of them")
    for name in names:
        if not isinstance(name, str) or not name or name == "shared" or set(name) & set(".+/\\"):
            raise ValueError(
                "a task's name is a non-empty text without '.', '+' or slashes and not 'shared', "
                f"found {name!r}; rename it"
            )


def family(tasks: Sequence[str], groups: str | Iterable[Iterable[str]] = TASKS_AND_SHARED) -> Family:
    """Build a family from its name (`tasks+shared`, `all_subsets`) or from a list of task sets.

    Smaller sets come first and the full set last; a list keeps its own order.
    """
    tasks = tuple(tasks)
    check_task_names(tasks)
    if groups == TASKS_AND_SHARED:
        if len(tasks) >= MOST_GROUPS:
            raise ValueError(f"a network has at most {MOST_GROUPS:,} groups, found {len(tasks):,} tasks; choose some")
        sets = [frozenset({task}) for task in tasks] + [frozenset(tasks)]
        return Family(tasks, tuple(dict.fromkeys(sets)))
    if groups == ALL_SUBSETS and (1 << len(tasks)) - 1 > MOST_GROUPS:
        raise ValueError(
            f"a network has at most {MOST_GROUPS:,} groups, found {len(tasks)} tasks with 2^{len(tasks)} - 1 subsets; "
            f"list the groups that you want, or use '{TASKS_AND_SHARED}'"
        )
    if groups == ALL_SUBSETS:
        return Family(tasks, tuple(frozenset(s) for n in range(1, len(tasks) + 1) for s in combinations(tasks, n)))
    if isinstance(groups, str):
        raise ValueError(
            f"a family is '{TASKS_AND_SHARED}', '{ALL_SUBSETS}' or a list of task sets, found {groups!r}; choose one"
        )
    chosen = list(groups)
    if len(chosen) > MOST_GROUPS:
        raise ValueError(f"a network has at most {MOST_GROUPS:,} groups, found {len(chosen):,}; list fewer")
    for group in chosen:
        if isinstance(group, str):
            raise ValueError(
                f"each group is a set of task names, found the bare text {group!r}; write {{{group!r}}} for one task"
            )
    return Family(tasks, tuple(frozenset(group) for group in chosen))
