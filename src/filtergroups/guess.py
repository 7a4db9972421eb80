"""A first config for a table of labels: look at the columns, guess the tasks, write it down with comments."""

import math
import re
import statistics
from pathlib import Path

from filtergroups.config import COLUMNS_OF_PREDICTIONS
from filtergroups.config_schema import SCHEMA
from filtergroups.data.cells import MISSING, image_path
from filtergroups.data.decoding import SUFFIXES, decode
from filtergroups.data.examples import DataError
from filtergroups.data.splits import SHARES, part_named
from filtergroups.data.table import Row, read_table

MOST_CLASSES = 20
FEWEST_A_CLASS = 5  # a text that recurs less often is rather an identifier
EPOCHS = 40
GROUPS_IN = 300  # steps in which p, at 30 times the learning rate of the weights, finds the groups
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
        f"table = {_text(table.resolve())}",
        f"root = {_text(images.resolve())}          # image paths are below this folder",
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
    tasks = 0
    for key in rows[0]:
        if key not in (image_column, split_column):
            found = _task(key, [row[key] for row in rows])
            tasks += not found[0].startswith("#")
            lines += [*found, ""]
    if not tasks:
        raise DataError(
            f"{table}: expected a column of numbers or classes beside '{image_column}', found none to predict"
        )
    batch_size = 32 if len(rows) >= 200 else 8
    training = int(SHARES[0] * len(rows))
    if split_column:
        training = sum(part_named(row[split_column]) == "train" for row in rows)
    lines += [
        "[network]",
        'name = "vgg11"',
        "width = 0.25                # 1.0 is the paper's; 0.25 trains on a laptop",
        "",
        "[method]",
        'name = "sfg"                # or one_task, hard_sharing, constant_mask, constant_p, cross_stitch',
        "per_example = true          # a gate an example, not a batch: p learns with less noise",
        "",
        "[temperature]",
        "noise_warmup = true         # gates begin at p, and noise comes as the temperature falls",
        "",
        "[training]",
        f"epochs = {EPOCHS}",
        f"batch_size = {batch_size}",
        'schedule = "cosine"',
        "probability_factor = 30     # p's learning rate, times that of the weights: the groups are learned first,",
        f"finetune_epochs = {EPOCHS - _epochs_for_groups(training, batch_size)}        "
        "# then, for these epochs, every kernel stays in its most probable group",
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


def _task(key: str, values: list[str]) -> list[str]:
    """The lines of a task for a column, or a comment where it is none."""
    present = [value for value in values if value.lower() not in MISSING]
    kinds = sorted(set(present), key=_order)
    numbers = [number for value in present if (number := _number(value)) is not None]
    if present and all(value.lower().endswith(IMAGE_ENDINGS) for value in present):
        return [f"# column '{key}' holds image paths; for label maps add a task of kind 'segmentation'"]
    if len(kinds) < 2:
        return [f"# column '{key}' has {len(kinds)} distinct value(s): nothing to learn"]
    if not key or (len(numbers) == len(present) and re.split(r"[^a-z]+", key.lower())[-1] in IDENTIFIERS):
        return [f"# column '{key}' looks like a running number or an identifier, perhaps a group_column"]
    name = "".join("_" if c in ".+/\\" else c for c in key)
    name += "_" if name in (*COLUMNS_OF_PREDICTIONS, "shared") else ""
    missing = f"   # {len(values) - len(present)} missing" if len(present) < len(values) else ""
    lines = ["[[tasks]]", f"name = {_text(name)}{missing}", f"column = {_text(key)}"]
    few = len(kinds) <= MOST_CLASSES and len(present) >= FEWEST_A_CLASS * len(kinds)
    classes = few and all(number.is_integer() for number in numbers)
    if len(numbers) == len(present) and not classes:
        scale, offset = _standardised(numbers)
        return [
            *lines,
            'kind = "regression"',
            f"scale = {scale!r:<13} # the network learns value / scale + offset: mean 0 and spread 1,",
            f"offset = {offset!r:<12} # so that no task drowns the others; found {min(numbers):g} to {max(numbers):g}",
        ]
    if few:
        labels = ", ".join(_text(value) for value in kinds)
        return [*lines, 'kind = "classification"', f"labels = [{labels}]"]
    if len(numbers) > len(present) / 2:
        text = next(value for value in present if _number(value) is None)
        return [f"# column '{key}' holds numbers mostly, but also {text!r}: leave such cells empty for a task"]
    comma = all(_number(value.replace(",", ".", 1)) is not None for value in present)
    what = "numbers with a decimal comma: write a point" if comma else f"{len(kinds)} different texts: an identifier"
    return [f"# column '{key}' has {what}" + ("" if comma else ", perhaps a group_column")]


def _standardised(numbers: list[float]) -> tuple[float, float]:
    """scale and offset by which a column has mean 0 and standard deviation 1, to the digits that one would write."""
    scale = float(f"{statistics.pstdev(numbers):.3g}")
    return scale, round(-statistics.fmean(numbers) / scale, 2)


def _order(value: str) -> tuple[float, str]:
    number = _number(value)
    return (number if number is not None else float("inf"), value)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _text(value: object) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
