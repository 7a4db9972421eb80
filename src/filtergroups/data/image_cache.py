"""Decoded images on disk: each made once for as long as its file does not change, and never stale."""

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL
from numpy.typing import NDArray

from filtergroups.data.cache_folder import cache_folder
from filtergroups.data.contents import State, hash_of, read_checked, state_of, write_checked
from filtergroups.data.decoding import decode, decode_values, displayed_size, read_content
from filtergroups.data.examples import DataError
from filtergroups.data.images import Progress
from filtergroups.data.rows import RowFile, RowsChanged, rows_written
from filtergroups.locks import held

FORMAT = 4  # raise it when decoding changes

Kind = Literal["image", "labels", "values"]
DTYPES: dict[Kind, type[np.generic]] = {"image": np.uint8, "labels": np.uint8, "values": np.float32}


class KeptImages(RowFile):
    """Decoded images, N × size × size (× channels); contents: the hashes of what they were made of."""

    def __init__(self, path: Path, contents: Sequence[str | None] = ()) -> None:
        super().__init__(path)
        self.contents = list(contents)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptImages, (self.path, self.contents)


def decoded(
    paths: Sequence[Path],
    size: int,
    channels: int,
    cache: Path | None,
    *,
    kind: Kind = "image",
    like: Sequence[Path] = (),
    progress: Progress | None = None,
) -> tuple[KeptImages, dict[int, str]]:
    """All images of a list of files (N × size × size × channels), and what was wrong with which.

    Maps of labels (bytes) or of real values (float32) have one channel and no axis for it; like: the image that each
    map is of, whose size it has.

    A file is looked into again when its size, times or inode changed, when it was too young to be known by them, and
    when it was no image; it is decoded again when it holds something else. Every kept image is checked here and at each
    read. One process at a time does this for one list: two that start at once decode once.
    """
    shape = (len(paths), size, size, channels) if kind == "image" else (len(paths), size, size)
    folder = cache_folder(cache)
    sources = _Sources(paths, size, channels, kind, like)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder / f"{sources.key}.lock"):
            return _Cache(folder, sources, shape).updated(progress)
    except OSError as error:
        raise DataError(
            f"{folder}: expected room for {np.prod(shape) * np.dtype(DTYPES[kind]).itemsize / 1e6:.0f} MB of decoded "
            f"images, found {error.strerror or error}; make room there, or set data.cache to another folder"
        ) from None


def refuse_other_size(file: bytes, image: Path) -> None:
    """Refuse a map that has not the size of its image: no one knows which of its pixels belongs to which."""
    width, height = displayed_size(file)
    try:
        expected = displayed_size(image)
    except DataError:  # which is said of the image
        return
    if (width, height) != expected:
        raise DataError(
            f"expected the size of its image, {expected[0]} × {expected[1]}, found {width} × {height}; "
            "save the map at that size"
        )


@dataclass(frozen=True)
class _Sources:
    """The files that a list of images is made of."""

    paths: Sequence[Path]
    size: int
    channels: int
    kind: Kind
    like: Sequence[Path]

    @property
    def key(self) -> str:
        # Another Pillow may decode to other pixels.
        settings = [FORMAT, PIL.__version__, self.size, self.channels, self.kind]
        digest = hashlib.sha256(json.dumps(settings).encode())
        for path in (*self.paths, *self.like):
            digest.update(os.fsencode(path) + b"\0")
        return digest.hexdigest()[:32]

    def state(self, row: int) -> State | None:
        own = state_of(self.paths[row])
        of_image = state_of(self.like[row]) if self.like else ()
        return None if own is None or of_image is None else own + of_image

    def read(self, row: int) -> tuple[bytes, str]:
        """A file and the hash of all that decides what becomes of it."""
        content = read_content(self.paths[row])
        if not self.like:
            return content, hash_of(content)
        with suppress(DataError):
            return content, hash_of(content + repr(displayed_size(self.like[row])).encode())
        return content, hash_of(content)

    def made(self, row: int, content: bytes) -> NDArray[Any]:
        if self.like:
            refuse_other_size(content, self.like[row])
        if self.kind == "values":
            return decode_values(content, self.size)
        return decode(content, self.size, self.channels, labels=self.kind == "labels")


@dataclass
class _Known:
    """What is known of one image: when its file looked like this it held that."""

    state: State | None = None  # None: look into it again
    content: str | None = None  # the hash of what it is made of; None: it could not be read
    problem: str | None = None  # why there is no image
    values: NDArray[Any] | None = field(default=None, repr=False)


class _Cache:
    """The files of one list of images: KEY.sources, which names the file of pixels, and that one."""

    def __init__(self, folder: Path, sources: _Sources, shape: tuple[int, ...]) -> None:
        self.folder, self.sources, self.shape, self.key = folder, sources, shape, sources.key
        self.pixels: KeptImages | None = None
        self.known = [_Known() for _ in sources.paths]
        kept = read_checked(self.folder / f"{self.key}.sources")
        with suppress(OSError, RowsChanged, TypeError, KeyError):  # not there, or not as it was written
            pixels = KeptImages(folder / kept["pixels"])
            if pixels.shape == shape and pixels.dtype == DTYPES[sources.kind]:
                self.known = [_Known(None if s is None else tuple(s), c, p) for s, c, p in kept["known"]]
                self.pixels = pixels

    def updated(self, progress: Progress | None) -> tuple[KeptImages, dict[int, str]]:
        rows = range(len(self.known))
        before = [known.state for known in self.known]
        states = [self.sources.state(row) for row in rows]  # before anything is read
        wanted = set(rows if self.pixels is None else self.pixels.damaged())
        doubtful = [row for row in rows if row not in wanted and self._doubtful(row, states[row])]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            same = list(pool.map(self._as_before, doubtful))
        wanted |= {row for row, kept in zip(doubtful, same, strict=True) if not kept}
        for known, state in zip(self.known, states, strict=True):
            known.state = state
        pixels = self.pixels
        if wanted or pixels is None:
            pixels = self._made(sorted(wanted), progress)
        elif states != before:
            with suppress(OSError):  # then the same files are looked into again the next time
                self._note(pixels)
        pixels.contents = [known.content for known in self.known]
        return pixels, {row: known.problem for row, known in enumerate(self.known) if known.problem is not None}

    def _doubtful(self, row: int, state: State | None) -> bool:
        return state is None or state != self.known[row].state or self.known[row].problem is not None

    def _as_before(self, row: int) -> bool:
        """Is the image what it was? One that was none is tried again."""
        known = self.known[row]
        if known.problem is None:
            try:
                return self.sources.read(row)[1] == known.content
            except DataError:
                return False
        tried = self._tried(row)
        if tried.values is None:
            known.content, known.problem = tried.content, tried.problem
        return tried.values is None

    def _tried(self, row: int) -> _Known:
        found = None
        try:
            content, found = self.sources.read(row)
            return _Known(None, found, None, self.sources.made(row, content))
        except DataError as error:
            return _Known(None, found, str(error))

    def _made(self, wanted: Sequence[int], progress: Progress | None) -> KeptImages:
        """A new file of pixels: some images decoded, the others as they were; then the old one goes."""
        path = self.folder / f"{self.key}-{secrets.token_hex(4)}.npy"
        with rows_written(path, self.shape, DTYPES[self.sources.kind]) as writer:
            if self.pixels is not None:
                for row in sorted(set(range(len(self.known))) - set(wanted)):
                    writer.put(row, self.pixels[[row]][0])

            def make(row: int) -> None:
                tried, known = self._tried(row), self.known[row]
                known.content, known.problem = tried.content, tried.problem
                if tried.values is not None:
                    writer.put(row, tried.values)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for done, _ in enumerate(pool.map(make, wanted), start=1):
                    if progress is not None and (done % 50 == 0 or done == len(wanted)):
                        progress("decoding images", done, len(wanted))
        pixels = KeptImages(path)
        self._note(pixels)
        for old in self.folder.glob(f"{self.key}-*.npy"):
            if old != path:
                with suppress(OSError):  # in use, where that keeps a file from being deleted
                    old.unlink()
        return pixels

    def _note(self, pixels: KeptImages) -> None:
        known = [(one.state, one.content, one.problem) for one in self.known]
        write_checked(self.folder / f"{self.key}.sources", {"pixels": pixels.path.name, "known": known})
