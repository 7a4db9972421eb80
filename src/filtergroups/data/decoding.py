"""Image files of anyone as arrays, with numpy and Pillow only: bounded in memory and time, or refused in one line."""

import contextlib
import ctypes
import logging
import os
import stat
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from filtergroups.data.bombs import (
    MOST_BYTES,
    MOST_PIXELS,
    ROOM,
    MeteredBytes,
    refuse_costly_content,
    refuse_costly_image,
    webp_pixels,
)
from filtergroups.data.errors import DataError

Array = np.ndarray[Any, Any]
File = Path | bytes  # an image file, or what was read of it
Made = TypeVar("Made")

# Pillow knows some fifty formats; some of them start other programs (EPS), and few are looked after as well as these.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})


def decode(file: File, size: int, channels: int, *, labels: bool = False) -> Array:
    """An image file (or its bytes) as size × size × channels bytes; label maps (size × size) keep their values.

    The first frame or page, turned upright as its EXIF says, without its transparency. Of 16 bits the upper 8 are kept;
    floats go from 0 (black) to 1 (white).
    """
    if labels:
        return _read(file, lambda image: _labels(image, size))
    return _read(file, lambda image: _pixels(image, size, channels), draft=("RGB" if channels == 3 else "L", 2 * size))


def decode_values(file: File, size: int) -> Array:
    """A map of real values as size × size float32: exactly those of the file (8 or 16 bits, whole numbers, floats).

    A map of another size is brought to this one by linear interpolation; a pixel that NaN goes into is NaN.
    """
    return _read(file, lambda image: _values(image, size))


def displayed_size(file: File) -> tuple[int, int]:
    """Width and height of an image file, turned upright as its EXIF says; its pixels are not decoded."""

    def upright(image: Image.Image) -> tuple[int, int]:
        lying = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
        return image.size[::-1] if lying else image.size

    return _read(file, upright, upright=False)


def _read(
    file: File, finish: Callable[[Image.Image], Made], *, draft: tuple[str, int] | None = None, upright: bool = True
) -> Made:
    """What `finish` makes of an image file, or a DataError whatever is wrong with the file."""
    try:
        content = file if isinstance(file, bytes) else read_content(file)
        refuse_costly_content(content)
        opened = webp_pixels(content)
        with _quiet, ROOM.taken(opened), Image.open(MeteredBytes(content), formats=FORMATS) as image:
            refuse_costly_image(image)
            if draft is not None:  # a JPEG decodes faster at less than full size
                image.draft(draft[0], (draft[1], draft[1]))
            with ROOM.taken(0 if opened else image.width * image.height):
                if upright:
                    ImageOps.exif_transpose(image, in_place=True)
                return finish(image)
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError(f"expected an image ({', '.join(FORMATS)}), found no such header in the file") from None
    except Image.DecompressionBombError:
        raise DataError(f"expected an image of at most {MOST_PIXELS} pixels, found a header that claims more") from None
    except Exception as error:  # noqa: BLE001  # what a broken file makes Pillow's readers raise is not in their contract
        raise DataError(f"expected an image, found a broken one ({_reason(error)})") from None


def read_content(path: Path) -> bytes:
    """The bytes of a regular file; nothing that could wait for a writer or act on a device is opened."""
    try:
        _refuse_special(os.stat(path))
        # Should it have become a pipe since, opening does not wait.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            state = os.fstat(handle)
            _refuse_special(state)
            content = file.read(state.st_size)
    except OSError as error:
        raise DataError(f"expected an image, found no readable file ({error.strerror or _reason(error)})") from None
    if not content:
        raise DataError("expected an image, found an empty file")
    return content


def _refuse_special(state: os.stat_result) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise DataError("expected an image, found a folder")
    if not stat.S_ISREG(state.st_mode):
        raise DataError("expected an image, found a pipe, socket or device")
    if state.st_size > MOST_BYTES:
        raise DataError(f"expected an image of at most {MOST_BYTES} bytes, found {state.st_size}")


class _Quiet:
    """Keeps Pillow's remarks on metadata off the screen.

    Warning filters belong to the process: threads that decode at the same time share one change of them, which the
    last one takes back.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.filters = threading.Lock(), 0, warnings.catch_warnings()

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.filters = warnings.catch_warnings()
                self.filters.__enter__()
                warnings.simplefilter("ignore")
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.filters.__exit__(None, None, None)


_quiet = _Quiet()

logging.getLogger("PIL").addHandler(logging.NullHandler())  # nor do its logs go to stderr unless somebody asks
# libtiff writes its own complaints to stderr, which no filter of Python's reaches. Where it is inside of Pillow's own
# library (Windows), its functions are not to be found.
with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(Image.core.__file__).TIFFSetErrorHandler(None)  # type: ignore[attr-defined]  # it has no public name


def _pixels(image: Image.Image, size: int, channels: int) -> Array:
    mode = "RGB" if channels == 3 else "L"
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.dtype.itemsize > 2 and 0 < values.max() < 256:  # of 16 bits the upper 8 are used: all black
            raise DataError(f"expected 16-bit values, found 0 to {values.max()} in 32 bits; save 8 bits a channel")
        image = Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8))
    elif image.mode == "F":
        image = _from_floats(np.asarray(image))
    elif image.mode in ("RGBa", "La"):  # colours that were multiplied by their opacity
        image = image.convert(image.mode.upper())
    converted = image if image.mode == mode else image.convert(mode)
    resized = converted.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(resized, dtype=np.uint8).reshape(size, size, channels)


def _from_floats(values: Array) -> Image.Image:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):  # NaN is neither
        raise DataError(
            f"expected float values from 0 to 1, found {low:.4g} to {high:.4g}; save 8 or 16 bits a channel"
        )
    return Image.fromarray(np.rint(values * np.float32(255)).astype(np.uint8))


def _labels(image: Image.Image, size: int) -> Array:
    """The values of a map as they are: palette indices, or the one value that all channels agree on."""
    values = _one_channel(image, "save the class numbers as one channel of 8 bits")
    kept = values.astype(np.uint8)
    if not np.array_equal(kept, values):
        raise DataError(f"expected whole labels from 0 to 255, found {values.min()} to {values.max()}")
    return np.asarray(Image.fromarray(kept).resize((size, size), Image.Resampling.NEAREST))


def _values(image: Image.Image, size: int) -> Array:
    if image.mode in ("1", "P", "PA"):  # black and white, or colours by number
        image = image.convert("L" if image.mode == "1" else "RGB")
    values = _one_channel(image, "save one channel")
    with np.errstate(over="ignore", invalid="ignore"):
        kept = values.astype(np.float32)
        if values.dtype.kind in "iu" and not np.array_equal(kept.astype(np.int64), values):
            raise DataError("expected values that 32-bit floats hold, found whole numbers above 16,777,216; scale them")
    if np.isinf(kept).any():
        raise DataError("expected finite values (NaN: missing), found infinite ones")
    if kept.shape == (size, size):
        return kept
    return np.asarray(Image.fromarray(kept).resize((size, size), Image.Resampling.BILINEAR))


def _one_channel(image: Image.Image, remedy: str) -> Array:
    """The pixels of an image whose colour channels agree, without its transparency."""
    values = np.asarray(image)
    if values.ndim == 2:
        return values
    colours = values[..., :1] if image.mode in ("LA", "La", "PA") else values[..., :3]
    if (colours != colours[..., :1]).any():
        raise DataError(f"expected one value a pixel, found colours ({image.mode}); {remedy}")
    return np.asarray(colours[..., 0])


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if text and isinstance(error, OSError | ValueError | SyntaxError):  # which Pillow raises to say something
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def normalised_array(images: Array, mean: Sequence[float], deviation: Sequence[float]) -> Array:
    """N × size × size × channels bytes as N × channels × size × size, zero mean and unit variance by channel."""
    by_channel = (1, -1, 1, 1)
    means, deviations = (np.asarray(numbers, dtype=np.float32).reshape(by_channel) for numbers in (mean, deviation))
    values: Array = np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)
    values *= 1 / (np.float32(255) * deviations)
    values -= means / deviations
    return values
