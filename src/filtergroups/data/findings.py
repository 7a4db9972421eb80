"""What is wrong with data, or looks as if it were: collected, equal findings together, a line each."""

import re
from dataclasses import dataclass, field

from filtergroups.data.errors import DataError

SHOWN = 3  # of findings that are equal


@dataclass
class Group:
    """Findings that say the same of several files, lines or tasks."""

    file: str  # that all of them are in, or nothing
    text: str
    remedy: str
    cases: list[tuple[str, str]] = field(default_factory=list)  # where, and what was found there
    alike: bool = False  # do the texts differ in their numbers?

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        if len(self.cases) == 1:
            where, found = self.cases[0]
            place = ", ".join(part for part in (self.file, where) if part)
            return f"{f'{place}: ' if place else ''}{self.text}{f', found {found}' if found else ''}{remedy}"
        count = f"{self.file}: {len(self.cases)} × " if self.file else f"{len(self.cases)} × "
        text = f"{self.text} (or alike)" if self.alike else self.text
        shown = [f"{found} ({where})" if found and where else found or where for where, found in self.cases[:SHOWN]]
        more = f" and {len(self.cases) - SHOWN} more" if len(self.cases) > SHOWN else ""
        listed = ", ".join(shown) + more
        if any(found for _, found in self.cases):
            return f"{count}{text}, found {listed}{remedy}"
        return f"{count}{text}{remedy}: {listed}"


class Findings:
    """Problems make training fail or learn nonsense; warnings are worth a look."""

    def __init__(self) -> None:
        self._groups: dict[bool, dict[tuple[str, str, str], Group]] = {True: {}, False: {}}

    def problem(self, text: str, where: str = "", *, found: str = "", remedy: str = "", file: str = "") -> None:
        self._add(True, text, where, found, remedy, file)

    def warning(self, text: str, where: str = "", *, found: str = "", remedy: str = "", file: str = "") -> None:
        self._add(False, text, where, found, remedy, file)

    def _add(self, problem: bool, text: str, where: str, found: str, remedy: str, file: str) -> None:
        key = (file, _without_numbers(text), remedy)  # of broken files the same is said with other numbers
        group = self._groups[problem].setdefault(key, Group(file, text, remedy))
        group.alike |= group.text != text
        if (where, found) not in group.cases[-1:]:
            group.cases.append((where, found))

    @property
    def problems(self) -> list[str]:
        return list(map(str, self._groups[True].values()))

    @property
    def warnings(self) -> list[str]:
        return list(map(str, self._groups[False].values()))

    def refuse(self) -> None:
        """Raise the first problem, if there is one."""
        problems = self.problems
        if problems:
            more = f" (and {len(problems) - 1} more: `filtergroups data check` lists them)" if problems[1:] else ""
            raise DataError(problems[0] + more)


def _without_numbers(text: str) -> str:
    """Names, of tasks for example, stand in quotes and keep their numbers."""
    return "'".join(part if n % 2 else re.sub(r"\d[\d,.]*", "#", part) for n, part in enumerate(text.split("'")))
