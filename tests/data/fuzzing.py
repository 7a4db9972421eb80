"""Damaged image files, the same ones for the same seed; run as a program: decode them and say what they cost."""

import io
import json
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image


def whole_files() -> list[bytes]:
    """Small pictures in every format, mode and compression that Pillow writes for us."""
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (24, 20, 4), dtype=np.uint8), "RGBA").resize((33, 40))
    kinds = [
        ("RGB", "JPEG", {"quality": 80}), ("RGB", "JPEG", {"progressive": True}), ("CMYK", "JPEG", {}),
        ("L", "JPEG", {"exif": turned()}), ("RGBA", "PNG", {}), ("P", "PNG", {"transparency": 3}), ("1", "PNG", {}),
        ("I;16", "PNG", {}), ("RGB", "PNG", {"exif": turned()}), ("RGB", "BMP", {}), ("P", "BMP", {}),
        ("RGB", "TIFF", {}), ("RGBA", "TIFF", {"compression": "tiff_lzw"}), ("1", "TIFF", {"compression": "group4"}),
        ("RGB", "TIFF", {"compression": "jpeg"}), ("L", "TIFF", {"compression": "tiff_deflate"}), ("F", "TIFF", {}),
        ("CMYK", "TIFF", {"compression": "packbits"}), ("RGB", "WEBP", {}), ("RGBA", "WEBP", {"lossless": True}),
        ("P", "GIF", {}), ("L", "GIF", {}), ("RGB", "PPM", {}), ("I", "PPM", {}),
    ]  # fmt: skip
    files = []
    for mode, name, options in kinds:
        source = noise.convert("I") if mode == "I;16" else noise.convert("L") if mode == "F" else noise
        picture = source.convert(mode)
        files.append(encoded(picture, name, **options))
        if name in ("GIF", "WEBP", "TIFF", "PNG") and "compression" not in options:  # more than one frame
            files.append(encoded(picture, name, save_all=True, append_images=[picture, picture], **options))
    return files


def turned(orientation: int = 6) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def encoded(picture: Image.Image, name: str, **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, name, **options)
    return stream.getvalue()


def damaged_files(count: int, seed: int = 0) -> Iterator[bytes]:
    """Flipped bytes, numbers at their limits, cuts, repeats, splices; PNG checksums are often made right again."""
    rng = np.random.default_rng(seed)
    files = whole_files()
    for n in range(count):
        content = bytearray(files[n % len(files)])
        for _ in range(int(rng.integers(1, 3))):
            damage = rng.integers(6)
            at = int(rng.integers(len(content))) if rng.random() < 0.5 else int(rng.integers(min(64, len(content))))
            end = min(len(content), at + int(rng.integers(1, 200)))
            if damage == 0:
                for place in rng.integers(len(content), size=int(rng.integers(1, 12))):
                    content[place] ^= 1 << int(rng.integers(8))
            elif damage == 1:
                limits = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
                pattern = rng.choice(["<H", ">H", "<L", ">L"])
                number = int(rng.choice(limits)) & (0xFFFF if pattern[1] == "H" else 0xFFFFFFFF)
                value = struct.pack(pattern, number)
                content[at : at + len(value)] = value
            elif damage == 2:
                del content[max(at, 1) :]
            elif damage == 3:
                content[at:at] = content[at:end] * int(rng.integers(1, 50))
            elif damage == 4:
                other = files[int(rng.integers(len(files)))]
                content[at:] = other[int(rng.integers(len(other))) :] or b"\0"
            else:
                content[at:end] = rng.bytes(end - at)
        yield with_checksums(bytes(content)) if rng.random() < 0.7 else bytes(content)


def with_checksums(content: bytes) -> bytes:
    """A PNG's damage then reaches what is behind its checksums."""
    if not content.startswith(b"\x89PNG"):
        return content
    mended, place = bytearray(content), 8
    while place + 12 <= len(mended):
        end = place + 8 + int.from_bytes(mended[place : place + 4], "big")
        if end + 4 > len(mended):
            break
        mended[end : end + 4] = zlib.crc32(mended[place + 4 : end]).to_bytes(4, "big")
        place = end + 4
    return bytes(mended)


def peak_megabytes() -> float:
    """The most memory that this process had; getrusage would count that of the process which started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main(count: int) -> None:
    from filtergroups.data.decoding import decode
    from filtergroups.data.errors import DataError

    files = list(damaged_files(count))
    before, start = peak_megabytes(), time.perf_counter()
    decoded, reasons, wrong = 0, [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture"
        for n, content in enumerate(files):
            path.write_bytes(content)
            for channels, labels in ((3, False), (1, False), (1, True)):
                try:
                    array = decode(path, 16, channels, labels=labels)
                except DataError as error:
                    reasons.append(str(error))
                    if "\n" in str(error) or not str(error).startswith("expected"):
                        wrong.append([n, str(error)])
                    continue
                shape = (16, 16) if labels else (16, 16, channels)
                decoded += 1
                if array.shape != shape or array.dtype != np.uint8:
                    wrong.append([n, str(array.shape)])
    seconds, megabytes = time.perf_counter() - start, peak_megabytes() - before
    said = {"decoded": decoded, "refused": len(reasons), "kinds": len(set(reasons)), "wrong": wrong}
    print(json.dumps({**said, "seconds": seconds, "megabytes": megabytes}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
