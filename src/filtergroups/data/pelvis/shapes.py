"""Signed distances (mm, negative inside) to the shapes of the anatomy, and smooth random fields."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator  # type: ignore[import-untyped]  # scipy has no types
from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]  # scipy has no types

from filtergroups.data.pelvis.anatomy import Outline, Ovals, Rod, Shape

Array: TypeAlias = NDArray[np.floating[Any]]  # float32, for speed
Box: TypeAlias = tuple[slice, slice, slice]
Point: TypeAlias = tuple[float, float, float]

FAR = 60.0  # mm; a distance is not looked at beyond
NEAR = 4.0  # mm around a shape in which its distance is still needed


@dataclass(frozen=True)
class Space:
    """The voxels of a scan in the anatomy's coordinates; in-plane ones are deformed, so they are volumes."""

    axes: tuple[Array, Array, Array]  # undeformed, one per axis
    x: Array
    y: Array
    z: Array  # one per slice
    voxel: tuple[float, float, float]
    shift: float  # how far the deformation moves a voxel at most

    def box(self, low: Point, high: Point, near: float = NEAR) -> Box:
        """A box of voxels that surely contains these corners and what is near."""
        margin = self.shift + near
        ends = (
            np.searchsorted(axis, (a - margin, b + margin)) for axis, a, b in zip(self.axes, low, high, strict=True)
        )
        first, second, third = (slice(int(a), int(b)) for a, b in ends)
        return first, second, third

    @property
    def whole(self) -> Box:
        return slice(None), slice(None), slice(None)

    def at(self, box: Box) -> tuple[Array, Array, Array]:
        return self.x[box], self.y[box], self.z[box[2]]

    def boxed(self, box: Box) -> tuple[Array, Array, Array]:
        """The undeformed axes inside a box."""
        return self.axes[0][box[0]], self.axes[1][box[1]], self.axes[2][box[2]]

    def smooth(self, distance: Array, millimetres: float) -> Array:
        """Round off corners, as tissue does."""
        sigma = [millimetres / size for size in self.voxel]
        if max(sigma) > 0.3:
            distance = gaussian_filter(distance, sigma, mode="nearest", truncate=2.5)
        return distance


def cross_sections(shape: Outline | Ovals) -> tuple[Array, Array]:
    """Heights, and the polygons at these heights (levels × points × 2)."""
    if isinstance(shape, Outline):
        rows = {z: np.array([p.split(",") for p in text.split()], np.float32) for z, text in shape.levels.items()}
    else:
        rows = {z: _ellipse(*oval) for z, oval in shape.levels.items()}
    heights = sorted(rows)
    polygons = np.stack([rows[z] for z in heights])
    if isinstance(shape, Outline):
        # A point more on each edge, on the curve through the four points around it.
        one, two, three = (np.roll(polygons, -shift, 1) for shift in (1, 2, -1))
        between = (9 * (polygons + one) - two - three) / 16
        polygons = np.stack([polygons, between], 2).reshape(len(heights), -1, 2)
    return np.array(heights, np.float32), polygons


def _ellipse(x: float, y: float, radius_x: float, radius_y: float, degrees: float) -> Array:
    turn, around = np.deg2rad(degrees), np.linspace(0, 2 * np.pi, 12, endpoint=False)
    a, b = radius_x * np.cos(around), radius_y * np.sin(around)
    corners = [x + a * np.cos(turn) - b * np.sin(turn), y + a * np.sin(turn) + b * np.cos(turn)]
    return np.stack(corners, -1).astype(np.float32)


def distance(space: Space, shape: Shape, side: int, *, rounding: float = 1.5, near: float = NEAR) -> tuple[Box, Array]:
    """Distance to a shape on one side (+1: x > 0, −1: mirrored), in the box where it matters."""
    if isinstance(shape, Rod):
        path = np.array(shape.path, np.float32)
        low, high = (path[:, :3] - path[:, 3:]).min(0), (path[:, :3] + path[:, 3:]).max(0)
    else:
        heights, polygons = cross_sections(shape)
        low = np.array([*polygons.min((0, 1)), heights[0]])
        high = np.array([*polygons.max((0, 1)), heights[-1]])
    x_ends = sorted((side * low[0], side * high[0]))
    box = space.box((x_ends[0], low[1], low[2]), (x_ends[1], high[1], high[2]), near)
    x, y, z = space.at(box)
    if isinstance(shape, Rod):
        return box, rod_distance(side * x, y, z, shape)
    return box, space.smooth(outline_distance(side * x, y, z, shape), rounding)


def outline_distance(x: Array, y: Array, z: Array, shape: Outline | Ovals) -> Array:
    result = np.empty(x.shape, np.float32)
    if not x.size:
        return result
    heights, polygons = cross_sections(shape)
    # Beyond its ends a shape keeps its last cross-section; the taper closes it.
    blended = PchipInterpolator(heights, polygons, axis=0)(np.clip(z, heights[0], heights[-1])).astype(np.float32)
    # From slice to slice little changes: of thin ones every second is computed (and the last), and averaged between.
    step = 2 if len(z) > 2 and z[1] - z[0] < 2 else 1
    slices = np.union1d(np.arange(0, len(z), step), [len(z) - 1])
    corners = blended[slices].T
    for start in range(0, len(x), 8):  # pieces that fit the processor's cache
        part = slice(start, start + 8)
        by_slice = (np.moveaxis(volume[part], 2, 0)[slices] for volume in (x, y))
        result[part, :, slices] = np.moveaxis(polygon_distance(*by_slice, *corners), 0, 2)
    if step == 2:
        between = np.arange(1, len(z) - 1, 2)
        result[:, :, between] = (result[:, :, between - 1] + result[:, :, between + 1]) / 2
    if shape.taper:
        inside = np.minimum(z - heights[0], heights[-1] - z)
        result += (shape.taper * np.clip(1 - inside / shape.taper, 0, 6) ** 2).astype(np.float32)
    return result


def polygon_distance(x: Array, y: Array, corner_x: Array, corner_y: Array) -> Array:
    """Exact distance to one polygon per slice; voxels are slices × two axes, corners points × slices."""
    corner_x, corner_y = corner_x[:, :, None, None], corner_y[:, :, None, None]
    squared = np.full(x.shape, FAR**2, np.float32)
    inside = np.zeros(x.shape, bool)
    off_x, off_y, along, product = (np.empty(x.shape, np.float32) for _ in range(4))  # reused: this is the hot loop
    above = [y >= corner for corner in corner_y]
    for here in range(len(corner_x)):
        before = here - 1
        edge_x, edge_y = corner_x[before] - corner_x[here], corner_y[before] - corner_y[here]
        length = np.maximum(edge_x**2 + edge_y**2, 1e-6)
        np.subtract(x, corner_x[here], out=off_x)
        np.subtract(y, corner_y[here], out=off_y)
        # A ray to the side crosses this edge: once more inside or outside.
        np.multiply(off_x, edge_y, out=along)
        np.multiply(off_y, edge_x, out=product)
        inside ^= (above[here] != above[before]) & ((product > along) == (edge_y > 0))
        # The nearest point of the edge, as a share of its length.
        np.multiply(off_x, edge_x / length, out=along)
        along += np.multiply(off_y, edge_y / length, out=product)
        np.clip(along, 0, 1, out=along)
        off_x -= np.multiply(along, edge_x, out=product)
        off_y -= np.multiply(along, edge_y, out=product)
        off_x *= off_x
        off_x += np.multiply(off_y, off_y, out=off_y)
        np.minimum(squared, off_x, out=squared)
    np.sqrt(squared, out=squared)
    return np.where(inside, -squared, squared)


def rod_distance(x: Array, y: Array, z: Array, rod: Rod) -> Array:
    best = np.full(x.shape, FAR, np.float32)
    for (ax, ay, az, ra), (bx, by, bz, rb) in zip(rod.path, rod.path[1:], strict=False):
        ex, ey, ez = bx - ax, by - ay, bz - az
        ox, oy, oz = x - ax, y - ay, z - az
        along = np.clip((ox * ex + oy * ey + oz * ez) / (ex * ex + ey * ey + ez * ez), 0, 1)
        gap = np.sqrt((ox - along * ex) ** 2 + (oy - along * ey) ** 2 + (oz - along * ez) ** 2)
        best = smooth_union(best, gap - (ra + along * (rb - ra)), 3.0)
    return best


def ellipsoid_distance(x: Array, y: Array, z: Array, centre: Point, radii: Point) -> Array:
    """First-order distance: exact in sign, close near the surface."""
    u, v, w = ((p - c) / r for p, c, r in zip((x, y, z), centre, radii, strict=True))
    level = np.sqrt(u**2 + v**2 + w**2)
    slope = np.sqrt((u / radii[0]) ** 2 + (v / radii[1]) ** 2 + (w / radii[2]) ** 2)
    gap: Array = level * (level - 1) / np.maximum(slope, 1e-6)
    return gap


def smooth_union(a: Array, b: Array, blend: float) -> Array:
    """The smaller distance, with fillets of the blend's size where two shapes meet."""
    near = np.maximum(blend - np.abs(a - b), 0)
    gap: Array = np.minimum(a, b) - near * near * (0.25 / blend)
    return gap


def smooth_cut(a: Array, b: Array, blend: float) -> Array:
    """The larger distance (what lies in both), rounded likewise."""
    return -smooth_union(-a, -b, blend)


def union(space: Space, shapes: Iterable[Shape], sides: tuple[int, ...] = (1, -1), blend: float = 5.0) -> Array:
    whole = np.full(space.x.shape, FAR, np.float32)
    for shape in shapes:
        for side in sides:
            box, gap = distance(space, shape, side)
            whole[box] = smooth_union(whole[box], gap, blend)
    return whole


@dataclass(frozen=True)
class Field:
    """A smooth random field: independent values on a lattice in millimetres, blended by cubic B-splines.

    Being defined in millimetres, it is the same field whatever the voxels.
    """

    nodes: Array
    step: Point

    @classmethod
    def draw(cls, rng: np.random.Generator, step: Point, half_size: Point = (240, 240, 200)) -> "Field":
        counts = [int(2 * half / size) + 4 for half, size in zip(half_size, step, strict=True)]
        return cls(rng.standard_normal(counts, np.float32), step)

    def on(self, axes: tuple[Array, Array, Array]) -> Array:
        """The field at these coordinates, of about unit variance."""
        values = self.nodes
        for axis in (2, 1, 0):
            count = values.shape[axis]
            place = np.clip(axes[axis] / self.step[axis] + (count - 1) / 2, 1, count - 2.001)
            first = np.floor(place).astype(int)
            t = (place - first).astype(np.float32)
            weights = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
            form = [1, 1, 1]
            form[axis] = len(t)
            blend = np.zeros([len(t) if a == axis else size for a, size in enumerate(values.shape)], np.float32)
            for k, weight in enumerate(weights):
                # 4.15 is the weights' typical norm: dividing by it keeps the variance.
                blend += np.take(values, first + k - 1, axis) * (weight / 4.15).reshape(form)
            values = blend
        return values
