"""A first config for a table of labels: look at the columns, guess the tasks, write it down with comments."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from filtergroups.config import COLUMNS_OF_PREDICTIONS
from filtergroups.config_schema import SCHEMA
from filtergroups.data.cells import BLURRED, MISSING, image_path, number_of, rounding_of
from filtergroups.data.decoding import SUFFIXES, decode
from filtergroups.data.examples import DataError
from filtergroups.data.splits import SHARES, part_named, seeded_split
from filtergroups.data.table import Row, read_table
from filtergroups.naming import as_name, shown
from filtergroups.paths import real
from filtergroups.ranges import LARGEST

MOST_CLASSES = 20
FEWEST_A_CLASS = 5  # a text that recurs less often is rather an identifier
EPOCHS = 40
GROUPS_IN = 300  # steps in which p finds the groups
TINY = 1e-7  # of a number: what a 32-bit float cannot tell apart
IMAGE_ENDINGS = tuple(sorted(SUFFIXES))
IDENTIFIERS = ("id", "index", "idx")  # as the last word of a column's name


def guess_config(table: Path, images: Path) -> str:
    """The text of a commented TOML config for a table and its folder of images."""
    rows = read_table(table)
    image_column = _image_column(rows, table)
    names = [row[image_column] for row in rows]
    channels = _channels(images, names)
    split_column = next((key for key in rows[0] if all(part_named(row[key]) for row in rows)), None)
    lines = [
        f"#:schema {SCHEMA.resolve().as_uri()}",  # editors check and complete the file by it
        "# Guessed from the table; check it, then: filtergroups data check THIS_FILE",
        "seed = 0",
        "",
        "[data]",
        'kind = "table"',
        f"table = {_text(real(table))}",
        f"root = {_text(real(images))}          # image paths are below this folder",
        f"image_column = {_text(image_column)}",
        f"split_column = {_text(split_column)}"
        if split_column
        else '# split_column = "split"   # else 70/15/15 by seed, kept beside the table',
        '# group_column = "subject"  # rows of one subject stay in one part',
        "size = 64                   # images are resized to size × size; larger sees more and trains slower",
        f"channels = {channels}",
        "flip = false                # mirror at random: only where left and right mean the same",
        "",
    ]
    drawn = seeded_split(names, 0)
    parts = [part_named(row[split_column]) if split_column else drawn[row[image_column]] for row in rows]
    trained = [n for n, part in enumerate(parts) if part == "train"]
    described = [
        _task(key, [row[key] for row in rows], trained) for key in rows[0] if key not in (image_column, split_column)
    ]
    taken: set[str] = set()
    for found in described:
        lines += [*(found.lines(taken) if isinstance(found, Guess) else [found]), ""]
    if not taken:
        why = "".join(f"; {text.removeprefix('# ')}" for text in described[:1] if isinstance(text, str))
        raise DataError(
            f"{table}: expected a column of numbers or classes beside '{image_column}', found none to predict{why}"
        )
    if len(trained) < 2:
        raise DataError(f"{table}: expected 2 or more rows to train on, found {len(trained)} of {len(rows)}; add some")
    batch_size = 32 if len(rows) >= 200 else min(8, len(trained))
    training = len(trained) if split_column else int(SHARES[0] * len(rows))
    lines += [
        "[network]",
        'name = "vgg11"',
        "width = 0.25                # 1.0 is the paper's; 0.25 trains on a laptop",
        "",
        "[method]",
        'name = "sfg"                # or one_task, hard_sharing, constant_mask, constant_p, cross_stitch',
        "",
        "[training]",
        f"epochs = {EPOCHS}",
        f"batch_size = {batch_size}",
        'schedule = "cosine"',
        f"finetune_epochs = {EPOCHS - _epochs_for_groups(training, batch_size)}        "
        "# first it is learned what to share; in these epochs every kernel stays in its group",
        "rewind = true               # and the weights begin anew",
        "",
    ]
    return "\n".join(lines)


def _epochs_for_groups(training: int, batch_size: int) -> int:
    """Long enough to learn the groups, and at most half of the epochs."""
    steps_per_epoch = max(training // batch_size, 1)
    return min(math.ceil(GROUPS_IN / steps_per_epoch), EPOCHS // 2)


def _image_column(rows: list[Row], table: Path) -> str:
    for key in rows[0]:
        if all(row[key].lower().endswith(IMAGE_ENDINGS) for row in rows):
            return key
    raise DataError(
        f"{table}: expected a column of image paths ({', '.join(IMAGE_ENDINGS)}), found {list(rows[0])}; add one"
    )


def _channels(images: Path, names: list[str]) -> int:
    """1 where the first pictures are grey."""
    for name in names[:5]:
        try:
            pixels = decode(image_path(images, name), 32, 3)
        except DataError as error:
            raise DataError(f"{images / name}: {error}; is --images the right folder?") from None
        if (pixels[..., 0] != pixels[..., 1]).any() or (pixels[..., 0] != pixels[..., 2]).any():
            return 3
    return 1


@dataclass(frozen=True)
class Guess:
    """A column that can be predicted."""

    key: str
    missing: int
    kind: tuple[str, ...]  # the lines of a task that say what it is

    def lines(self, taken: set[str]) -> list[str]:
        """The task under a name of its own, which is then among those that are taken."""
        name = as_name(self.key)
        while name in (*COLUMNS_OF_PREDICTIONS, "shared", *taken):
            name += "_"
        taken.add(name)
        missing = f"   # {self.missing} missing" if self.missing else ""
        return ["[[tasks]]", f"name = {_text(name)}{missing}", f"column = {_text(self.key)}", *self.kind]


def _task(key: str, values: list[str], trained: Sequence[int]) -> Guess | str:
    """What a column is, or a comment on why it is no task."""
    present = [value for value in values if value.lower() not in MISSING]
    kinds = sorted(set(present), key=_order)
    numbers = [number for value in present if (number := number_of(value)) is not None]
    column = f"# column '{shown(key)}'"
    if present and all(value.lower().endswith(IMAGE_ENDINGS) for value in present):
        kinds_of_maps = "for label maps add a task of kind 'segmentation', for real values 'image_regression'"
        return f"{column} holds image paths; {kinds_of_maps}, and take network 'highresnet'"
    if len(kinds) < 2:
        return f"{column} has {len(kinds)} distinct value(s): nothing to learn"
    if not key or (len(numbers) == len(present) and re.split(r"[^a-z]+", key.lower())[-1] in IDENTIFIERS):
        return f"{column} looks like a running number or an identifier, perhaps a group_column"
    if len({values[row] for row in trained} - {value for value in values if value.lower() in MISSING}) < 2:
        return f"{column} has fewer than 2 distinct values among the {len(trained)} rows to train on"
    few = len(kinds) <= MOST_CLASSES and len(present) >= FEWEST_A_CLASS * len(kinds)
    if len(numbers) == len(present) and not (few and all(number.is_integer() for number in numbers)):
        return _real(key, column, values, numbers)
    if few:
        labels = ", ".join(_text(value) for value in kinds)
        return Guess(key, len(values) - len(present), ('kind = "classification"', f"labels = [{labels}]"))
    if len(numbers) > len(present) / 2:
        text = next(value for value in present if number_of(value) is None)
        return f"{column} holds numbers mostly, but also '{shown(text)}': leave such cells empty for a task"
    comma = all(number_of(value.replace(",", ".", 1)) is not None for value in present)
    what = "numbers with a comma: write 1.5 for 1,5 and 1500 for 1,500" if comma else f"{len(kinds)} different texts"
    return f"{column} has {what}" + ("" if comma else ": an identifier, perhaps a group_column")


def _real(key: str, column: str, values: Sequence[str], numbers: Sequence[float]) -> Guess | str:
    """A column of numbers, learned with mean 0 and spread 1, where 32-bit floats hold them."""
    largest = max(map(abs, numbers))
    if not 1 / LARGEST < largest < LARGEST:
        return f"{column} has numbers up to {largest:g} in size, which 32-bit floats do not hold: use another unit"
    scale, offset = _standardised(list(numbers))
    if scale < largest * TINY or rounding_of(np.asarray(numbers)) > BLURRED:
        return f"{column} has numbers too close for 32-bit floats: subtract a constant, say {min(numbers):.17g}"
    return Guess(key, len(values) - len(numbers), (
        'kind = "regression"',
        f"scale = {scale!r:<13} # the network learns value / scale + offset: mean 0 and spread 1,",
        f"offset = {offset!r:<12} # so that no task drowns the others; found {min(numbers):g} to {max(numbers):g}",
    ))  # fmt: skip


def _standardised(numbers: list[float]) -> tuple[float, float]:
    """scale and offset by which a column has mean 0 and standard deviation 1, to the digits that one would write."""
    scale = float(f"{statistics.pstdev(numbers):.3g}")
    return scale, round(-statistics.fmean(numbers) / scale, 2)


def _order(value: str) -> tuple[float, str]:
    number = number_of(value)
    return (number if number is not None else float("inf"), value)


def _text(value: object) -> str:
    """A string of TOML: any character, those that cannot be seen by their numbers."""
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if shown(c) == c else f"\\U{ord(c):08x}" for c in escaped) + '"'
