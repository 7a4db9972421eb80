"""Names that come from files, where they are shown, written or become a part of a path.

A name may hold what a terminal obeys, what a spreadsheet takes for a formula, or what turns text around.
"""

import re
import unicodedata

FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
NOT_IN_FILES = set("/\\:")  # what parts a path, here or on another system that a file is copied to
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)  # Windows
LONGEST = 100  # of a task's name, in bytes
SAFE_SPACE = {" ", "\u00a0", "\u202f", "\u2009", "\u3000"}


def shown(text: object) -> str:
    """A text for a screen, a log or a comment: what is no visible character becomes its escape, as in \\x1b."""
    return "".join(character if _visible(character) else _escaped(character) for character in str(text))


def shown_lines(text: object) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(shown(line) for line in str(text).split("\n"))


def brief(text: object, most: int = 100) -> str:
    """The beginning of a text that may be of any length, for a line about it."""
    value = str(text)
    return value if len(value) <= most else f"{value[:most]}…"


def found_repr(value: object) -> str:
    """A value of anybody's file, for a line about it."""
    try:
        return brief(repr(value), 300)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "a number of thousands of digits"


def _visible(character: str) -> bool:
    if " " <= character <= "~":
        return True
    category = unicodedata.category(character)
    # C: control, format (which can turn text around), surrogates, private and unknown ones; Z: odd spaces, line ends.
    return category[0] not in "CZ" or character in SAFE_SPACE


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def check_name(name: str) -> str:
    """A task's name, which becomes a part of files' names and a column: refused where that is not safe."""
    wrong = sorted({character for character in name if character in NOT_IN_FILES or not _visible(character)})
    if wrong:
        raise ValueError(f"a name is a word that can be a file's name, found {shown(wrong[0])!r} in '{shown(name)}'")
    if not name.strip() or name != name.strip() or name.startswith((".", "-", "=", "+", "@", "~")):
        raise ValueError(f"a name begins with a letter or a number, and ends with no space, found '{name}'; rename it")
    if len(name.encode()) > LONGEST or RESERVED.fullmatch(name):
        raise ValueError(f"a name has at most {LONGEST} bytes and is none of Windows' own, found '{name[:40]}'")
    return name


def cell(text: object) -> str:
    """A cell of a table that we write: never what a spreadsheet takes for a formula; numbers stay numbers."""
    value = str(text)
    return f"'{value}" if FORMULA.match(value) and not NUMBER.fullmatch(value) else value


def path_cell(text: object) -> str:
    """A path as a cell: still that path, but nothing that a spreadsheet takes for a formula."""
    value = str(text)
    return f"./{value}" if FORMULA.match(value) else value


def plain_cell(text: str) -> str:
    """A path of a cell as it was."""
    return text[2:] if text.startswith("./") and FORMULA.match(text[2:]) else text


def as_name(text: str) -> str:
    """A task's name for a column of any name."""
    name = (
        "".join("_" if c in NOT_IN_FILES or c in ".+" or not _visible(c) else c for c in text).strip().lstrip("-=@~ ")
    )
    while len(name.encode()) > LONGEST:
        name = name[:-1]
    return f"{name}_" if not name or RESERVED.fullmatch(name) else name
