"""Images from strangers: each is decoded as it looks, or refused in one line, at a bounded cost."""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from filtergroups.data import decoding
from filtergroups.data.bombs import MOST_BYTES, MOST_PIXELS, MeteredBytes
from filtergroups.data.decoding import decode, decode_values, displayed_size, normalised_array
from filtergroups.data.errors import DataError
from filtergroups.data.images import normalised
from tests.data.fuzzing import encoded, turned

RAMP = np.linspace(0, 255, 16 * 16).reshape(16, 16).astype(np.uint8)


def refused(path: Path, said: str) -> None:
    """In one line, within seconds."""
    start = time.perf_counter()
    with pytest.raises(DataError, match=said) as caught:
        decode(path, 16, 3)
    assert time.perf_counter() - start < 5
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("expected")


def in_a_process(program: str, *arguments: object) -> str:
    command, root = [sys.executable, "-c", program, *map(str, arguments)], Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=root).stdout


def megabytes_for(path: Path) -> float:
    """How far the memory of a process grows while it decodes a file, whatever becomes of it."""
    program = """
import contextlib, sys
from pathlib import Path
from filtergroups.data.decoding import decode
from PIL import Image
from tests.data.fuzzing import peak_megabytes
Image.init()
before = peak_megabytes()
with contextlib.suppress(ValueError):
    decode(Path(sys.argv[1]), 16, 3)
print(peak_megabytes() - before)
"""
    return float(in_a_process(program, path))


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">L", len(content)) + kind + content + struct.pack(">L", zlib.crc32(kind + content))


def png(width: int, height: int, pixels: bytes, *chunks: bytes, depth: int = 8, colour: int = 0) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")


def test_decoding_needs_no_torch():
    program = "import sys, filtergroups.data.decoding; print(sorted(m for m in sys.modules if m.startswith('torch')))"
    assert in_a_process(program).strip() == "[]"


def test_a_thousand_damaged_files_decode_or_are_refused_in_bounded_memory_and_time():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.data.fuzzing", "1000"],
        capture_output=True, text=True, check=False, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["decoded"] > 300
    assert found["refused"] > 300
    assert found["kinds"] > 20, "the damage is too much alike"
    assert found["megabytes"] < 600
    assert found["seconds"] < 20


def test_files_that_are_no_images_are_refused(tmp_path):
    whole = encoded(Image.fromarray(RAMP), "PNG")
    (tmp_path / "empty.png").write_bytes(b"")
    refused(tmp_path / "empty.png", "an empty file")
    (tmp_path / "text.jpg").write_text("hello\nthere")
    refused(tmp_path / "text.jpg", r"expected an image \(JPEG, .*\), found no such header")
    (tmp_path / "folder.png").mkdir()
    refused(tmp_path / "folder.png", "a folder")
    refused(tmp_path / "nowhere.png", "No such file")
    refused(tmp_path / "nul\0.png", "null")
    refused(tmp_path / ("x" * 300), "too long")
    (tmp_path / "loop.png").symlink_to("loop.png")
    refused(tmp_path / "loop.png", "symbolic links")
    for length in (8, 20, 40, len(whole) // 2):
        (tmp_path / "cut.png").write_bytes(whole[:length])
        refused(tmp_path / "cut.png", "expected an image")


@pytest.mark.parametrize("name", ["JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP"])
def test_half_a_file_is_refused_and_a_whole_one_needs_no_extension(tmp_path, name):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise), name)
    path = tmp_path / "picture.txt"
    path.write_bytes(whole)
    assert decode(path, 16, 3).shape == (16, 16, 3)
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "expected an image")


def test_pipes_sockets_and_devices_are_refused_without_waiting():
    # A socket's path is short: not in pytest's folder.
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        pipe, bound = Path(folder) / "pipe.png", Path(folder) / "socket.png"
        os.mkfifo(pipe)
        listening.bind(str(bound))
        for path in (pipe, bound, Path("/dev/zero"), Path("/dev/tty")):
            refused(path, "a pipe, socket or device")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything; for a moment we are not."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_file_without_permission_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "mine.png"
        Image.fromarray(RAMP).save(path)
        path.chmod(0)
        with as_nobody():
            refused(path, "Permission denied")


@pytest.mark.parametrize("name", ["EPS", "ICO", "TGA", "PDF", "PCX", "JPEG2000", "SGI", "ICNS"])
def test_formats_outside_the_list_are_refused(tmp_path, name):
    path = tmp_path / "picture.png"
    path.write_bytes(encoded(Image.new("RGB", (32, 32)), name))
    refused(path, "found no such header")


def test_postscript_starts_no_program(tmp_path, monkeypatch):
    path = tmp_path / "picture.jpg"
    path.write_bytes(encoded(Image.new("RGB", (32, 32)), "EPS"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    refused(path, "found no such header")


def too_many_bytes(path: Path) -> None:
    with path.open("wb") as file:
        file.write(encoded(Image.fromarray(RAMP), "BMP"))
        file.truncate(MOST_BYTES + 1)


def text_bomb(kind: bytes) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        packed = zlib.compress(bytes(200_000_000), 1)
        chunk = png_chunk(kind, (b"name\0\1\0\0\0" if kind == b"iTXt" else b"name\0\0") + packed)
        path.write_bytes(png(4, 4, zlib.compress(bytes(20)), chunk))

    return write


def tile_bomb(path: Path) -> None:
    """A picture of 16 × 16 in one tile of 20,000 × 20,000 zeros."""
    packed = zlib.compress(bytes(400_000_000), 1)
    tags = [(256, 4, 16), (257, 4, 16), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1), (322, 4, 20_000),
            (323, 4, 20_000), (324, 4, 200), (325, 4, len(packed))]  # fmt: skip
    entries = b"".join(struct.pack("<HHLL", tag, kind, 1, value) for tag, kind, value in tags)
    directory = b"II*\0" + struct.pack("<L", 8) + struct.pack("<H", len(tags)) + entries + bytes(4)
    path.write_bytes(directory.ljust(200, b"\0") + packed)


def scan_bomb(path: Path) -> None:
    """A progressive JPEG that says the same pass over its pixels again and again."""
    whole = encoded(Image.new("L", (4000, 4000)), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    path.write_bytes(whole[:last] + whole[last:-2] * 500 + whole[-2:])


def entry_bomb(path: Path) -> None:
    """A TIFF whose every entry claims all of the file."""
    size, entries = 2_000_000, 2000
    content = b"II*\0" + struct.pack("<LH", 8, entries)
    content += b"".join(struct.pack("<HHLL", 40_000 + n, 1, size // 2, 8) for n in range(entries))
    path.write_bytes(content.ljust(size, b"\0"))


BOMBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pixels": (lambda path: path.write_bytes(png(10_001, 10_000, b"")), "1 to 100000000 pixels, found 10001 × 10000"),
    "far more pixels": (lambda path: path.write_bytes(png(2**31 - 1, 2**31 - 1, b"")), "at most 100000000 pixels"),
    "GIF pixels": (lambda path: path.write_bytes(b"GIF89a" + b"\xff" * 200), "expected an image"),
    "bytes": (too_many_bytes, "at most 400000000 bytes, found 400000001"),
    "zTXt": (text_bomb(b"zTXt"), "too large"),
    "iTXt": (text_bomb(b"iTXt"), "too large"),
    "iCCP": (text_bomb(b"iCCP"), "too large"),
    "TIFF tile": (tile_bomb, "TIFF tiles of at most"),
    "JPEG scans": (scan_bomb, "at most 100 scans"),
    "TIFF entries": (entry_bomb, "expected an image"),
    "text pixels": (lambda path: path.write_bytes(b"P3 4 4 255 " + b"#\n" * 500_000), "pixels as text"),
    "no pixels": (lambda path: path.write_bytes(b"P6 0 5 255\n"), "expected an image"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_cost_anything(tmp_path, name):
    write, said = BOMBS[name]
    path = tmp_path / "bomb"
    write(path)
    refused(path, said)
    assert megabytes_for(path) < 100


def test_the_largest_image_is_decoded_within_its_bound(tmp_path):
    side = int(MOST_PIXELS**0.5)
    path = tmp_path / "large.png"
    path.write_bytes(png(side, side, zlib.compress(bytes((side + 1) * side), 1)))
    assert megabytes_for(path) < 600
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(path).close()
    assert decode(path, 16, 1).max() == 0  # Pillow's remark is not passed on: here it would be an error


def test_bytes_can_be_read_a_few_times_over_and_not_more():
    content = bytes(1 << 20)
    file = MeteredBytes(content)
    for _ in range(5):
        file.seek(0)
        assert file.read() == content
    file.seek(0)
    with pytest.raises(DataError, match="over and over"):
        file.read()


@pytest.mark.parametrize("name", ["GIF", "TIFF", "WEBP", "PNG"])
def test_of_many_frames_the_first_is_read(tmp_path, name):
    frames = [Image.new("RGB", (200, 200), (250 if n == 0 else 5, n, 0)) for n in range(60)]
    path = tmp_path / "frames"
    path.write_bytes(encoded(frames[0], name, save_all=True, append_images=frames[1:]))
    assert decode(path, 16, 3)[..., 0].min() > 240
    assert megabytes_for(path) < 60


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I;16B", "F"])
def test_every_mode_looks_like_the_grey_picture_it_holds(tmp_path, mode):
    grey = Image.fromarray(np.where(RAMP < 128, 0, 255).astype(np.uint8) if mode == "1" else RAMP)
    if mode in ("I;16", "I;16B"):
        path, options = tmp_path / "a.tif", {}
        picture = Image.frombytes(mode, grey.size, (RAMP.astype("<u2" if mode == "I;16" else ">u2") * 257).tobytes())
    elif mode == "F":
        path, options = tmp_path / "a.tif", {}
        picture = Image.fromarray(RAMP.astype(np.float32) / 255)
    elif mode == "P":
        path, options = tmp_path / "a.png", {"transparency": 7}
        picture = grey.convert("P")
    elif mode == "PA":
        path, options = tmp_path / "a.png", {"transparency": bytes(range(256))}
        picture = grey.convert("P")
    else:
        path, options = tmp_path / ("a.tif" if mode in ("CMYK", "YCbCr") else "a.png"), {}
        picture = grey.convert(mode)
    picture.save(path, **options)
    for channels in (1, 3):
        found = decode(path, 16, channels).astype(int)
        assert np.abs(found - np.asarray(grey, dtype=int)[..., None]).max() <= 2


def test_colours_multiplied_by_their_opacity_are_divided_again(tmp_path):
    path = tmp_path / "a.tif"
    Image.new("RGBA", (8, 8), (200, 100, 50, 128)).save(path)
    content = path.read_bytes()
    with Image.open(path) as image:
        assert image.mode == "RGBA"
    marked = content.replace(struct.pack("<HHLHH", 338, 3, 1, 2, 0), struct.pack("<HHLHH", 338, 3, 1, 1, 0))
    assert marked != content
    path.write_bytes(marked)
    assert np.abs(decode(path, 8, 3)[0, 0].astype(int) - [255, 199, 100]).max() <= 1


@pytest.mark.parametrize("values", [[0.0, 300.0], [-1.0, 1.0], [0.0, np.nan], [0.0, np.inf]])
def test_floats_of_unknown_white_are_refused(tmp_path, values):
    path = tmp_path / "a.tif"
    Image.fromarray(np.resize(np.float32(values), (4, 4))).save(path)
    refused(path, "float values from 0 to 1, found")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_pictures_are_turned_upright(tmp_path, name, orientation):
    upright = np.zeros((32, 64), dtype=np.uint8)
    upright[:16, :32] = 255
    upright[16:, 32:] = 120
    # What the camera saw when it was held that way: EXIF undoes it.
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.T, 6: upright.T[::-1], 7: upright[::-1, ::-1].T, 8: upright.T[:, ::-1],
    }[orientation]  # fmt: skip
    path = tmp_path / "photo"
    path.write_bytes(encoded(Image.fromarray(stored.copy()), name, exif=turned(orientation)))
    found = decode(path, 32, 1)[..., 0].astype(int)
    assert [found[r, c] // 60 for r, c in ((8, 8), (8, 24), (24, 8), (24, 24))] == [4, 0, 0, 2]


@pytest.mark.parametrize("shape", [(1, 1), (1, 20_000), (20_000, 1), (2, 3)])
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"])
def test_thin_pictures_decode(tmp_path, shape, name):
    if name == "WEBP":
        shape = tuple(min(size, 16_383) for size in shape)
    path = tmp_path / "thin"
    path.write_bytes(encoded(Image.new("L", shape, 200), name))
    assert np.abs(decode(path, 16, 3).astype(int) - 200).max() <= 2


def test_label_maps_keep_their_values_whatever_they_are_stored_as(tmp_path):
    labels = np.random.default_rng(0).integers(0, 5, (16, 16)).astype(np.uint8)
    plain = Image.fromarray(labels)
    palette = plain.copy()
    palette.putpalette([3, 9, 200] * 256)
    kinds = {
        "grey.png": plain, "palette.png": palette, "palette.gif": palette, "rgb.png": plain.convert("RGB"),
        "alpha.png": plain.convert("LA"), "bits16.png": Image.fromarray(labels.astype(np.uint16)),
        "bits32.tif": Image.fromarray(labels.astype(np.int32)), "float.tif": Image.fromarray(labels.astype(np.float32)),
    }  # fmt: skip
    for name, picture in kinds.items():
        picture.save(tmp_path / name)
        assert np.array_equal(decode(tmp_path / name, 16, 1, labels=True), labels), name
    Image.fromarray(labels > 2).save(tmp_path / "one.png")
    assert np.array_equal(decode(tmp_path / "one.png", 16, 1, labels=True), labels > 2)
    for name, picture, said in (
        ("colours.png", palette.convert("RGB").point(lambda value: value // 2), "found colours"),
        ("large.png", Image.fromarray(labels.astype(np.uint16) * 100), "from 0 to 255, found 0 to 400"),
        ("half.tif", Image.fromarray(labels.astype(np.float32) / 2), "whole labels"),
    ):
        picture.save(tmp_path / name)
        with pytest.raises(DataError, match=said):
            decode(tmp_path / name, 16, 1, labels=True)


@pytest.mark.parametrize(
    ("name", "kind", "top"),
    [("a.png", np.uint8, 255), ("a.png", np.uint16, 65535), ("a.tif", np.uint16, 65535), ("a.tif", np.int32, 1 << 24),
     ("a.tif", np.float32, 1234.5678)],
)  # fmt: skip
def test_maps_of_real_values_are_read_exactly(tmp_path, name, kind, top):
    values = (np.random.default_rng(0).uniform(0, 1, (16, 16)) * top).astype(kind)
    values[0, 0] = top
    Image.fromarray(values).save(tmp_path / name)
    found = decode_values(tmp_path / name, 16)
    assert found.dtype == np.float32
    assert np.array_equal(found, values.astype(np.float32))
    shrunk = decode_values(tmp_path / name, 8)
    assert values.min() <= shrunk.min() <= shrunk.max() <= values.max()
    assert shrunk.mean() == pytest.approx(values.mean(), rel=0.05)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full((8, 8), (1 << 24) + 1, np.int32), "32-bit floats hold"),
        (np.full((8, 8), np.inf, np.float32), "finite values"),
        (np.dstack([np.arange(64, dtype=np.uint8).reshape(8, 8)] * 2 + [np.zeros((8, 8), np.uint8)]), "found colours"),
    ],
)
def test_maps_that_hold_no_real_values_are_refused(tmp_path, values, said):
    Image.fromarray(values).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=said):
        decode_values(tmp_path / "a.tif", 8)


def test_values_that_are_missing_in_a_map_stay_missing(tmp_path):
    values = np.ones((8, 8), np.float32)
    values[0, 0] = np.nan
    Image.fromarray(values).save(tmp_path / "a.tif")
    for size in (8, 4):
        found = decode_values(tmp_path / "a.tif", size)
        assert np.isnan(found[0, 0])
        assert (found[-2:] == 1).all()


def test_the_size_of_a_picture_is_that_of_its_pixels_upright(tmp_path):
    picture = Image.fromarray(np.zeros((10, 20, 3), np.uint8))
    exif = Image.Exif()
    for orientation, expected in ((1, (20, 10)), (3, (20, 10)), (6, (10, 20)), (8, (10, 20))):
        exif[0x0112] = orientation
        picture.save(tmp_path / "a.jpg", exif=exif)
        assert displayed_size(tmp_path / "a.jpg") == expected


@pytest.mark.parametrize(
    "kind", [struct.error, IndexError, KeyError, MemoryError, OverflowError, EOFError, zlib.error, RecursionError]
)
def test_whatever_pillow_raises_is_one_line(tmp_path, monkeypatch, kind):
    def broken(*_: object) -> None:
        raise kind("two\nlines")

    path = tmp_path / "a.png"
    Image.fromarray(RAMP).save(path)
    monkeypatch.setattr(decoding, "_pixels", broken)
    refused(path, rf"found a broken one \({kind.__name__}: '?two")


def test_threads_that_decode_at_once_leave_the_warning_filters_alone(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(RAMP).save(path)
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [decode(path, 16, 3) for _ in range(20)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


def test_normalised_arrays_are_the_tensors_of_training():
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    mean, deviation = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    found = normalised_array(images, mean, deviation)
    expected = (images / 255.0 - mean) / deviation
    np.testing.assert_allclose(found, expected.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.from_numpy(found), normalised(images, mean, deviation))
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
