"""Files of anyone: only regular ones, of bounded size, depth and number of values; else one line says what was found.

`refuse` is the kind of error (a ValueError) that the caller's users know. A missing file is a FileNotFoundError.
"""

import csv
import io
import json
import os
import re
import stat
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from filtergroups.naming import shown
from filtergroups.writing import place_below

MOST_TEXT = 16_000_000  # bytes of JSON, TOML or a log
MOST_VALUES = 1_000_000  # in one JSON file
MOST_DEPTH = 32  # of values inside of values
MOST_TABLE = 200_000_000  # bytes of a CSV
MOST_CELLS = 10_000_000
MOST_COLUMNS = 10_000
MOST_CELL = 100_000  # characters
MOST_ARRAYS = 200_000_000  # bytes of an .npz file's arrays
# Or a string, ended or not: no character is looked at twice.
BRACKET = re.compile(r"""[\[\]{}]|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?""")
PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
LONG_KEY = re.compile(rf"(?<![\w-]){PART}(?:[ \t]*+\.[ \t]*+{PART}){{{MOST_DEPTH}}}")


@contextmanager
def reading(path: Path, what: str, refuse: type[ValueError], remedy: str = "make it again") -> Iterator[None]:
    """Around a parser or codec: whatever it raises becomes one line about the file.

    What a damaged file makes others' readers raise is in no contract. Nothing but such readers belongs in here.
    """
    try:
        yield
    except (refuse, FileNotFoundError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  # see above
        raise refuse(f"{path}: expected {what}, found {shown(reason_of(error))}; {remedy}") from None


def reason_of(error: BaseException) -> str:
    """An exception's own words on one line of bounded length; its kind where these say little."""
    if isinstance(error, ValidationError):
        return problem_of(error)
    if isinstance(error, RecursionError):
        return "values too deep inside of values"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeError):
        return "bytes that are not UTF-8"
    text = " ".join(str(error).split())[:200]
    return text if text and isinstance(error, ValueError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def problem_of(error: ValidationError) -> str:
    """The first of pydantic's findings: where, what was expected, what was found."""
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part)[:40] for part in problem["loc"])
    found = repr(problem["input"])
    found = found if len(found) <= 60 else f"{found[:57]}..."
    return f"at '{where}' {found} ({problem['msg'].removeprefix('Value error, ')})"[:300]


def read_bytes(path: Path, most: int = MOST_TEXT, *, below: Path | None = None) -> bytes:
    """The bytes of a regular file; nothing that could wait for a writer or act on a device is opened."""
    if below is not None:
        place_below(path, below)
    refuse_special(os.stat(path), most)
    # Should it have become a pipe since, opening does not wait.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        state = os.fstat(handle)
        refuse_special(state, most)
        return file.read(state.st_size)


def refuse_special(state: os.stat_result, most: int) -> None:
    """Refuse what is no file of at most so many bytes."""
    if stat.S_ISDIR(state.st_mode):
        raise ValueError("a folder")
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("a pipe, socket or device")
    if state.st_size > most:
        raise ValueError(f"{state.st_size:,} bytes, more than {most:,}")


def read_text(path: Path, most: int = MOST_TEXT, *, below: Path | None = None) -> str:
    return read_bytes(path, most, below=below).decode("utf-8-sig")


def read_json(path: Path, what: str, refuse: type[ValueError], remedy: str, *, below: Path | None = None) -> Any:
    with reading(path, what, refuse, remedy):
        return parse_json(read_text(path, below=below))


def read_model(
    model: Any, path: Path, what: str, refuse: type[ValueError], remedy: str, *, below: Path | None = None
) -> Any:
    """JSON that is checked against a model of its content."""
    with reading(path, what, refuse, remedy):
        return checked(model, read_text(path, below=below))


def checked(model: Any, text: str, most: int = MOST_VALUES) -> Any:
    """JSON as a model has it: nothing is converted but whole numbers to real ones."""
    refuse_large(text, most)
    return TypeAdapter(model).validate_json(text, strict=True)


def parse_json(text: str, most: int = MOST_VALUES) -> Any:
    """JSON of bounded depth and number of values, without texts that cannot be written."""
    refuse_large(text, most)
    tree = json.loads(text)
    if "\\ud" in text.lower():  # half of a character can be read, but not be shown
        json.dumps(tree, ensure_ascii=False).encode()
    return tree


def refuse_large(text: str, most: int) -> None:
    """Refuse JSON of too many values, or too deep, before a parser makes objects of them."""
    if text.count(",") + text.count("[") + text.count("{") > most:
        raise ValueError(f"more than {most:,} values")
    refuse_depth(text)


def refuse_depth(text: str) -> None:
    """Refuse brackets too deep inside of brackets, before a parser goes after them."""
    depth = 0
    for found in BRACKET.finditer(text) if text.count("[") + text.count("{") > MOST_DEPTH else ():
        character = found[0]
        if character in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise ValueError(f"values more than {MOST_DEPTH} deep inside of values")
        elif character in "]}":
            depth -= 1


def parse_toml(text: str, most: int = 1_000_000) -> dict[str, Any]:
    """TOML of bounded size and depth."""
    if len(text) > most:
        raise ValueError(f"{len(text):,} characters, more than {most:,}")
    refuse_depth(text)
    if found := LONG_KEY.search(text):
        raise ValueError(f"a key of more than {MOST_DEPTH} parts ({found[0][:20]}...)")
    return tomllib.loads(text)


def refuse_large_table(lines: list[str], delimiter: str) -> None:
    """Refuse a CSV whose text says that it has more cells than a table of labels would."""
    columns = lines[0].count(delimiter) + 1 if lines else 0
    if columns > MOST_COLUMNS:
        raise ValueError(f"{columns:,} columns, more than {MOST_COLUMNS:,}")
    if len(lines) * columns > MOST_CELLS:
        raise ValueError(f"{len(lines) * columns:,} cells, more than {MOST_CELLS:,}")
    if (longest := max(map(len, lines), default=0)) > MOST_CELL + 1000 * columns:
        raise ValueError(f"a line of {longest:,} characters")


def read_rows(text: str, delimiter: str = ",") -> tuple[list[str], list[dict[str | None, Any]]]:
    """Header and rows of a CSV."""
    refuse_large_table(text.splitlines(), delimiter)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    return list(reader.fieldnames or ()), list(reader)


def read_arrays(path: Path, *, below: Path | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file, whose headers must tell the truth before memory is asked for."""
    content = read_bytes(path, MOST_ARRAYS, below=below)
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        if sum(entry.file_size for entry in file.infolist()) > MOST_ARRAYS:
            raise ValueError(f"arrays of more than {MOST_ARRAYS:,} bytes")
        for entry in file.infolist():
            with file.open(entry) as array:
                _refuse_false_header(array, entry.file_size)
    with np.load(io.BytesIO(content), allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}


def _refuse_false_header(array: Any, size: int) -> None:
    version = np.lib.format.read_magic(array)
    if version == (1, 0):
        shape, _, kind = np.lib.format.read_array_header_1_0(array)
    elif version == (2, 0):
        shape, _, kind = np.lib.format.read_array_header_2_0(array)
    else:
        raise ValueError(f"an array of version {version}")
    claimed = kind.itemsize
    for length in shape:
        claimed *= length
    if kind.hasobject or array.tell() + claimed != size:
        raise ValueError(f"an array of {claimed:,} bytes in an entry of {size:,}")
