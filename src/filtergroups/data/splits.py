"""Which part an example belongs to: read from a file, or drawn by a seed and written for the next time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from filtergroups.data.examples import SELECTION, SPLITS, DataError
from filtergroups.naming import path_cell, plain_cell
from filtergroups.reading import MOST_TABLE, read_rows, read_text, reading
from filtergroups.writing import write_new

SHARES = (0.70, 0.15, 0.15)
ALSO = {"training": "train", "val": "validation", "valid": "validation", "dev": "validation", "testing": "test"}


def part_named(text: str) -> str | None:
    """The part that a cell of a split names, in any case and by its usual short names; None: no part."""
    lower = text.strip().lower()
    return lower if lower in SPLITS else ALSO.get(lower)


def seeded_split(names: Sequence[str], seed: int, groups: Sequence[str] | None = None) -> dict[str, str]:
    """70 / 15 / 15 % of the names; names of one group stay together. It depends on the names and the seed only."""
    groups = names if groups is None else groups
    members: dict[str, list[str]] = {}
    for name, group in sorted(zip(names, groups, strict=True)):
        members.setdefault(group, []).append(name)
    keys = sorted(members)
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(seed)).tolist()
    # Of three examples or more each part gets one.
    spare = min(2, max(len(names) - 1, 0))
    ends = [min(round(sum(SHARES[: n + 1]) * len(names)), len(names) - spare + n) for n in range(len(SPLITS) - 1)]
    parts: dict[str, str] = {}
    filled, place = 0, 0
    for position in order:
        while place < len(ends) and filled >= ends[place]:
            place += 1
        for name in members[keys[position]]:
            parts[name] = SPLITS[place]
        filled += len(members[keys[position]])
    return parts


def with_selection(
    parts: Mapping[str, str], share: float, seed: int, groups: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The same split with a share of the training part set aside as `selection`; no other part is touched.

    Names of one group stay together. It depends on the training part's names and groups and on the seed only.
    """
    train = sorted(name for name, part in parts.items() if part == "train")
    members: dict[str, list[str]] = {}
    for name in train:
        members.setdefault(name if groups is None else groups.get(name, name), []).append(name)
    if not share or not train:
        return dict(parts)
    if len(members) < 2:
        raise DataError(
            f"data.selection: expected 2 or more training examples to part, found {len(members)}; set it to 0"
        )
    keys = sorted(members)
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(seed)).tolist()
    aside: set[str] = set()
    for position in order[:-1]:  # someone stays to train on
        aside |= set(members[keys[position]])
        if len(aside) >= share * len(train) - 0.5:
            break
    return {name: SELECTION if name in aside else part for name, part in parts.items()}


def read_split(path: Path, column: str = "file") -> dict[str, str]:
    """A CSV with the columns `file` (or `patient`) and `split`."""
    what = f"a CSV with columns {column},split"
    try:
        with reading(path, what, DataError, "mend it"):
            header, rows = read_rows(read_text(path, MOST_TABLE))
    except FileNotFoundError:
        raise DataError(f"{path}: expected {what}, found no such file; check the path") from None
    if not rows or column not in header or "split" not in header:
        found = header if rows else "no rows"
        raise DataError(f"{path}: expected the columns {column},split, found {found}; add them")
    parts: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        part = part_named(row["split"] or "")
        if part is None:
            raise DataError(f"{path}, line {number}: a split is one of {list(SPLITS)}, found {row['split']!r}; mend it")
        name = plain_cell(row[column] or "")
        if parts.setdefault(name, part) != part:
            raise DataError(f"{path}, line {number}: {name!r} is in two parts; keep one of the lines")
    return parts


def write_split(path: Path, parts: Mapping[str, str], column: str = "file") -> None:
    """Write a split, unless there is one: of two processes that draw at once, both go by the first."""
    lines = [f"{column},split", *(f"{_quoted(path_cell(name))},{part}" for name, part in sorted(parts.items()))]
    write_new(path, ("\n".join(lines) + "\n").encode())


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',;"\n\r\t') else text
