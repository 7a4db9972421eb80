"""Small image files that would cost much memory or time: what they are known by before they are decoded."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, TiffImagePlugin

from filtergroups.data.errors import DataError

MOST_PIXELS = 100_000_000  # take up to 0.8 GB while they are decoded, 1.5 GB as WebP
MOST_BYTES = 400_000_000  # of a file: 100 million pixels of four bytes
MOST_TILE_PIXELS = 4096 * 4096  # of a TIFF's tile, which may be larger than its image
MOST_SCANS = 100  # of a JPEG, each a pass over all pixels; files have about ten


class MeteredBytes(io.BytesIO):
    """A file in memory that may be read a few times over, not more.

    A file's tables can name the same bytes over and over: thousands of TIFF entries that each claim the whole file.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.left = 4 * len(content) + (1 << 20)

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self.left -= len(content)
        if self.left < 0:
            raise DataError("expected an image whose parts lie side by side, found the same bytes used over and over")
        return content


def refuse_costly_content(content: bytes) -> None:
    """Refuse a file whose bytes alone say that decoding it would take long."""
    if content[:2] in (b"P1", b"P2", b"P3"):  # read in Python, in time that grows with the square of its comments
        raise DataError("expected binary pixels, found a PPM with pixels as text; convert it to PNG")
    if (pixels := webp_pixels(content)) > MOST_PIXELS:
        raise DataError(f"expected an image of 1 to {MOST_PIXELS} pixels, found {pixels}")
    # In a JPEG's pixel data this pair of bytes cannot occur: it begins a scan.
    scans = content.count(b"\xff\xda") if content.startswith(b"\xff\xd8") else 0
    if scans > MOST_SCANS:
        raise DataError(f"expected a JPEG of at most {MOST_SCANS} scans, found {scans}")


def webp_pixels(content: bytes) -> int:
    """Pixels that a WebP claims; 0 for other files. Pillow asks for their memory as it opens the file."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(content) < 30:
        return 0
    kind = content[12:16]
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(content[at : at + 3], "little") for at in (24, 27))
    elif kind == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width, height = (int.from_bytes(content[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width * height


class Room:
    """So many pixels are decoded at once by all threads together; who finds no room waits."""

    def __init__(self, pixels: int) -> None:
        self.pixels, self.left, self.changed = pixels, pixels, threading.Condition()

    @contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        pixels = min(pixels, self.pixels)
        with self.changed:
            self.changed.wait_for(lambda: self.left >= pixels)
            self.left -= pixels
        try:
            yield
        finally:
            with self.changed:
                self.left += pixels
                self.changed.notify_all()


ROOM = Room(MOST_PIXELS)


def refuse_costly_image(image: Image.Image) -> None:
    """Refuse, before its pixels are decoded, an image whose header says that they are too many (or none)."""
    width, height = image.size
    if not 0 < width * height <= MOST_PIXELS:
        raise DataError(f"expected an image of 1 to {MOST_PIXELS} pixels, found {width} × {height}")
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        tile = image.tag_v2.get(TiffImagePlugin.TILEWIDTH, 0) * image.tag_v2.get(TiffImagePlugin.TILELENGTH, 0)
        if tile > MOST_TILE_PIXELS:
            raise DataError(f"expected TIFF tiles of at most {MOST_TILE_PIXELS} pixels, found {tile}")
