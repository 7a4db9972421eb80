"""Pictures inside the page: small, and never more than fit."""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from filtergroups.palette import ramp, rgb

Pixels = NDArray[np.uint8]


class AlbumFull(Exception):
    """No more pictures fit into the page."""


class Album:
    """Pictures as data URIs, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def png(self, pixels: Pixels, colours: str | None = None) -> str:
        """Grey (H × W) or colour (H × W × 3) pixels; grey ones through a colour map where one is named."""
        image = Image.fromarray(pixels)
        if colours is not None:
            image.putpalette([channel for colour in ramp(colours, 256) for channel in rgb(colour)])
        return self._kept(image, "png", optimize=True)

    def jpeg(self, pixels: Pixels) -> str:
        return self._kept(Image.fromarray(pixels), "jpeg", quality=86, subsampling=0, optimize=True)

    def _kept(self, image: Image.Image, kind: str, **options: Any) -> str:
        content = io.BytesIO()
        image.save(content, kind, **options)
        text = base64.b64encode(content.getvalue()).decode()
        if len(text) > self.left:
            raise AlbumFull
        self.left -= len(text)
        return f"data:image/{kind};base64,{text}"


def as_bytes(values: NDArray[Any], low: float, high: float) -> Pixels:
    """Values as 0 … 255; NaN is black."""
    scaled = (np.nan_to_num(np.asarray(values, dtype=np.float64), nan=low) - low) / max(high - low, 1e-12)
    pixels: Pixels = np.rint(scaled.clip(0, 1) * 255).astype(np.uint8)
    return pixels


def stretched(values: NDArray[Any], share: float = 0.01) -> Pixels:
    """Values as bytes between their lowest and highest per cent."""
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, (share, 1 - share)) if known.size else (0.0, 1.0)
    return as_bytes(values, float(low), float(high))


def coloured(pixels: Pixels, colours: str) -> Pixels:
    """Grey pixels through a colour map: one more axis of three."""
    table = np.asarray([rgb(colour) for colour in ramp(colours, 256)], dtype=np.uint8)
    return np.asarray(table[pixels])


def at_most(pixels: Pixels, side: int, *, smooth: bool = True) -> Pixels:
    """Made smaller until no side is longer."""
    factor = side / max(pixels.shape[:2])
    if factor >= 1:
        return pixels
    size = (max(1, round(pixels.shape[1] * factor)), max(1, round(pixels.shape[0] * factor)))
    how = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(pixels).resize(size, how))
