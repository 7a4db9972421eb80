"""Where a man's muscles, bones and organs are: signed distances on the voxels of a scan."""

from functools import cached_property

import numpy as np

from filtergroups.data.pelvis import anatomy
from filtergroups.data.pelvis.anatomy import Ovals, Rod
from filtergroups.data.pelvis.man import Man
from filtergroups.data.pelvis.shapes import (
    FAR,
    NEAR,
    Array,
    Box,
    Point,
    Space,
    distance,
    ellipsoid_distance,
    outline_distance,
    rod_distance,
    smooth_cut,
    smooth_union,
    union,
)


def space_of(man: Man, axes: tuple[Array, Array, Array], voxel: Point) -> Space:
    """Voxel coordinates (mm from the scan's middle) in the anatomy's frame, bent as this man is."""
    x, y, z = (
        ((axis - offset) / man.frame).astype(np.float32) for axis, offset in zip(axes, man.position, strict=True)
    )
    shift_x, shift_y = (
        2.3 * bend.on((x, y, z)) + 0.8 * ripple.on((x, y, z)) for bend, ripple in zip(man.bend, man.ripple, strict=True)
    )
    turned_x = x[:, None, None] - man.roll * y[None, :, None]
    turned_y = y[None, :, None] + man.roll * x[:, None, None]
    bent_x, bent_y = turned_x + shift_x, turned_y + shift_y
    shift = max(np.abs(bent_x - x[:, None, None]).max(), np.abs(bent_y - y[None, :, None]).max())
    return Space((x, y, z), bent_x, bent_y, z, voxel, float(shift))


class Pelvis:
    """The distances of a man's organs, muscles and bones on a scan's voxels."""

    def __init__(self, man: Man, space: Space) -> None:
        self.man, self.space = man, space

    @cached_property
    def body(self) -> Array:
        space, man = self.space, self.man
        scale_x = man.width / anatomy.BODY_WIDTH.mean / man.frame
        scale_y = man.depth / anatomy.BODY_DEPTH.mean / man.frame
        centre = anatomy.BODY_CENTRE_Y
        x, y = np.abs(space.x) / scale_x, (space.y - centre) / scale_y + centre
        return space.smooth(outline_distance(x, y, space.z, anatomy.BODY) * min(scale_x, scale_y), 4.0)

    @cached_property
    def muscles(self) -> Array:
        """All muscles, parted by planes of fat where the nearest two are equally near."""
        nearest = np.full(self.space.x.shape, FAR, np.float32)
        second = nearest.copy()
        thick = [(shape, self.man.muscle) for shape in anatomy.MUSCLES.values()]
        thin = [(shape, 0.0) for shape in anatomy.SHEETS.values()]
        for shape, swelling in thick + thin:
            for side in (1, -1):
                box, gap = distance(self.space, shape, side, rounding=2.0, near=swelling + NEAR)
                gap -= swelling
                second[box] = np.minimum(second[box], np.maximum(nearest[box], gap))
                nearest[box] = np.minimum(nearest[box], gap)
        parted = np.maximum(nearest, self.man.fat_plane - (second - nearest))
        # Under the skin there is always some fat.
        muscles: Array = np.maximum(parted, self.body + 7)
        return muscles

    @cached_property
    def hip(self) -> Array:
        whole = union(self.space, anatomy.HIP_BONE.values())
        for side in (1, -1):
            box, ball, opening = self.femur_head(side)
            # The joint: the head and its cartilage are carved out, and the socket opens outwards.
            carved = np.maximum(whole[box], 3.0 - ball)
            whole[box] = np.where(ball < 14, np.maximum(carved, opening - 8), whole[box])
        return whole

    @cached_property
    def femur(self) -> Array:
        whole = union(self.space, anatomy.FEMUR.values(), blend=6.0)
        for side in (1, -1):
            box, ball, _ = self.femur_head(side)
            whole[box] = smooth_union(whole[box], ball, 4.0)
        return whole

    def femur_head(self, side: int) -> tuple[Box, Array, Array]:
        """Distance to one femur head, and how far out of the socket a voxel lies."""
        cx, cy, cz = anatomy.FEMUR_HEAD
        radius = self.man.head_radius / self.man.frame
        box = self.space.box((side * cx, cy, cz), (side * cx, cy, cz), near=38.0)
        x, y, z = self.space.at(box)
        dx, dy, dz = side * x - cx, y - cy, z - cz
        out_x, out_y, out_z = anatomy.ACETABULUM_OPENS_TOWARDS
        return box, np.sqrt(dx**2 + dy**2 + dz**2) - radius, dx * out_x + dy * out_y + dz * out_z

    @cached_property
    def sacrum(self) -> Array:
        return union(self.space, anatomy.SACRUM.values())

    @cached_property
    def bone(self) -> Array:
        return np.minimum(np.minimum(self.hip, self.femur), self.sacrum)

    @cached_property
    def organs(self) -> Box:
        """The box of the pelvic organs."""
        return self.space.box((-75, -95, -75), (75, 110, 165))

    def _inner(self, radii: Point, centre: Point = (0, 0, 0)) -> Array:
        scale = 1 / self.man.frame
        x, y, z = self.space.at(self.organs)
        place, size = tuple(c * scale for c in centre), tuple(r * scale for r in radii)
        return ellipsoid_distance(x, y, z, (place[0], place[1], place[2]), (size[0], size[1], size[2]))

    @cached_property
    def prostate(self) -> Array:
        """An ellipsoid, narrower towards its apex and hollowed where the rectum lies."""
        a, b, c = self.man.prostate
        z = self.space.z[self.organs[2]]
        whole = self._inner((a, b, c))
        narrowing = 0.07 * a * np.clip(-z / c, -1, 1)
        hollow = self._inner((a * 0.8, b * 0.35, c * 1.5), (0, -1.18 * b, 0))
        return self.space.smooth(np.maximum(whole + narrowing, 1.0 - hollow), 1.5)

    @cached_property
    def transition_zone(self) -> Array:
        a, b, c = self.man.prostate
        share = self.man.hyperplasia
        radii = (a * share * 0.66, b * share * 0.98, c * share * 1.12)
        lobes = [self._inner(radii, (side * a * share * 0.42, 0.24 * b, 0.16 * c)) for side in (1, -1)]
        return smooth_union(lobes[0], lobes[1], 5.0)

    @cached_property
    def rectum_course(self) -> Ovals:
        """From the pelvic floor up: back along the sacrum's hollow, wide in the ampulla, swaying at its folds."""
        man = self.man
        cx, cy, cz = (c / man.frame for c in man.rectum_centre)
        half, radius = man.rectum_half_height / man.frame, man.rectum_radius / man.frame
        levels = {}
        for t, sway, back, wide in anatomy.RECTUM_COURSE:
            height, depth = round(cz + t * half), radius * wide * 0.93
            centre = cy + back
            if height < man.prostate[2]:  # behind the prostate it leans on it
                centre = max(centre, -man.prostate[1] / man.frame - depth - 1)
            levels[height] = (cx + sway, centre, radius * wide * 1.08, depth, 0.0)
        return Ovals(levels, taper=4.0)

    @cached_property
    def rectum(self) -> Array:
        x, y, z = self.space.at(self.organs)
        gap = self.space.smooth(outline_distance(x, y, z, self.rectum_course), 1.5)
        gap = smooth_cut(gap, 2.5 - self.prostate, 6.0)
        return smooth_cut(gap, 4.0 - self.sacrum[self.organs], 6.0)

    def rectum_ends(self) -> tuple[Rod, Rod]:
        """The anal canal below and the sigmoid colon above, which do not count as rectum."""
        levels = self.rectum_course.levels
        low, high = min(levels), max(levels)
        x, y, _, radius, _ = levels[low]
        canal = Rod(((x, y, low + 2, radius), (x, y - 5, low - 12, 10), (0, y - 13, -74, 9)))
        x, y, _, radius, _ = levels[high]
        sigmoid = Rod(((x, y, high - 4, radius), (14, y + 15, high + 22, 13), (44, y + 53, high + 40, 13)))
        return canal, sigmoid

    @cached_property
    def bladder(self) -> Array:
        """The outside of its wall: an ellipsoid that gives way to bone, prostate, rectum and muscles."""
        gap = self._inner(self.man.bladder, self.man.bladder_centre)
        box = self.organs
        _, b, c = self.man.prostate
        _, y, z = self.space.at(box)
        # It rests on the prostate's base and reaches lower in front of it than behind.
        gap = smooth_cut(gap, 0.6 * c - z - 0.35 * np.clip(y, -b, b), 12.0)
        for room in (
            6 - self.bone[box],
            3 - self.muscles[box],
            28 + self.body[box],
            4 - self.rectum,
            -0.5 - self.prostate,
        ):
            gap = smooth_cut(gap, room, 12.0)
        return self.space.smooth(gap, 3.0)

    @cached_property
    def anterior_stroma(self) -> Array:
        _, b, c = self.man.prostate
        return self._inner((9, 0.3 * b, 0.75 * c), (0, 0.92 * b, 0))

    def seminal_vesicle(self, side: int) -> Array:
        _, b, c = (r / self.man.frame for r in self.man.prostate)
        course = Rod(((4, 3 - b, c - 3, 5), (16, 0 - b, c + 4, 7), (33, -4 - b, c + 12, 5)))
        x, y, z = self.space.at(self.organs)
        return np.maximum(rod_distance(side * x, y, z, course), np.maximum(2 - self.rectum, 1 - self.bladder))

    @cached_property
    def peritoneum(self) -> Array:
        x, y, z = self.space.at(self.organs)
        room = np.full(x.shape, FAR, np.float32)
        above = slice(int(np.searchsorted(z, 40)), None)  # it does not reach lower
        room[:, :, above] = outline_distance(np.abs(x[:, :, above]), y[:, :, above], z[above], anatomy.PERITONEUM)
        others = np.minimum(np.minimum(self.bone[self.organs], self.muscles[self.organs]), self.bladder)
        gap: Array = np.maximum(room, 4 - np.minimum(others, self.rectum))
        return gap
