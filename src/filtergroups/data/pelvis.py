"""One man's pelvis: what differs between men is drawn, then tissue after tissue is painted on MR and CT."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from filtergroups.data import anatomy
from filtergroups.data.anatomy import OrganPrior, Ovals, Rod, Spread, Tissue
from filtergroups.data.shapes import (
    FAR,
    Array,
    Box,
    Field,
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

ECHO_TIME, REPETITION_TIME = 80.0, 2500.0  # ms
LEFT_FEMUR_HEAD, RIGHT_FEMUR_HEAD, PROSTATE, BLADDER, RECTUM = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Patient:
    """Everything that is drawn about a man, in millimetres, before any voxel is looked at."""

    frame: float  # size of skeleton and muscles, 1 on average
    width: float
    depth: float
    position: Point  # of the prostate's centre from the middle of the scan
    head_radius: float
    prostate: Point  # half extents
    bladder: Point
    bladder_centre: Point
    bladder_wall: float
    rectum_centre: Point
    rectum_half_height: float
    rectum_radius: float
    gas: float  # −1: none, 1: the rectum is full of it
    hyperplasia: float  # share of the prostate's width that is transition zone
    cortex: float
    fat_plane: float
    muscle: float  # how far thick muscles reach beyond their slim outlines
    roll: float  # radians about the long axis
    rectum_wall: float
    tissues: dict[str, Tissue]
    bend: tuple[Field, Field]
    ripple: tuple[Field, Field]
    grain: Field
    fibre: Field
    lobule: Field
    loops: Field


def draw_patient(rng: np.random.Generator) -> Patient:
    """Draw a man around the priors; extremes are cut at two standard deviations."""

    def near(spread: Spread) -> float:
        return float(spread.mean + spread.sd * np.clip(rng.standard_normal(), -2, 2))

    def volume(spread: Spread) -> float:
        # Volumes are skewed: log-normal with the given mean and standard deviation.
        variance = np.log1p((spread.sd / spread.mean) ** 2)
        return float(spread.mean * np.exp(np.sqrt(variance) * np.clip(rng.standard_normal(), -2, 2) - variance / 2))

    def half_extents(prior: OrganPrior, millilitres: float) -> Point:
        shape = np.array(prior.extents) / 2 * np.exp(0.06 * rng.standard_normal(3))
        return tuple(shape * np.cbrt(millilitres * 1000 / (4 / 3 * np.pi * shape.prod())))

    frame = near(Spread(1.0, 0.03))
    prostate_volume, bladder_volume, rectum_volume = (
        volume(prior.volume) for prior in (anatomy.PROSTATE, anatomy.BLADDER, anatomy.RECTUM)
    )
    prostate = half_extents(anatomy.PROSTATE, prostate_volume)
    # Pubis and pelvic floor cut into the bladder: draw it larger by what it loses.
    bladder = half_extents(anatomy.BLADDER, 1.12 * bladder_volume)
    half_height = anatomy.RECTUM.extents[2] / 2 * near(Spread(1.0, 0.06))
    bladder_y, bladder_z = near(anatomy.BLADDER.forward), near(anatomy.BLADDER.upward)
    rectum_y, rectum_z = near(anatomy.RECTUM.forward), near(anatomy.RECTUM.upward)
    return Patient(
        frame=frame,
        width=near(anatomy.BODY_WIDTH),
        depth=near(anatomy.BODY_DEPTH),
        position=(near(Spread(0, 3)), near(Spread(-anatomy.BODY_CENTRE_Y, 4)), near(Spread(0, 3))),
        head_radius=near(anatomy.FEMUR_HEAD_RADIUS),
        prostate=prostate,
        bladder=bladder,
        # A large prostate lifts the bladder's floor and pushes the rectum back.
        bladder_centre=(near(Spread(0, 3)), bladder_y, max(bladder_z, prostate[2] + 0.55 * bladder[2])),
        bladder_wall=near(Spread(4.0, 0.8)) * float(np.cbrt(300 / bladder_volume)),
        rectum_centre=(near(Spread(0, 3)), min(rectum_y, -prostate[1] - 18), rectum_z),
        rectum_half_height=half_height,
        rectum_radius=float(np.sqrt(rectum_volume * 1000 / (np.pi * 2 * half_height * 0.97))),
        gas=float(rng.uniform(-1.2, 0.8)),
        hyperplasia=float(np.clip(0.66 + 0.0035 * (prostate_volume - 39) + 0.04 * rng.standard_normal(), 0.5, 0.86)),
        cortex=near(Spread(1.7, 0.2)),
        fat_plane=near(Spread(1.6, 0.3)),
        muscle=near(Spread(4.5, 1.2)),
        roll=near(Spread(0, 0.02)),
        rectum_wall=near(Spread(3.6, 0.4)),
        tissues=_draw_tissues(rng),
        bend=(Field.draw(rng, (70, 70, 70)), Field.draw(rng, (70, 70, 70))),
        ripple=(Field.draw(rng, (22, 22, 22)), Field.draw(rng, (22, 22, 22))),
        grain=Field.draw(rng, (3.4, 3.4, 4.0)),
        fibre=Field.draw(rng, (16, 4, 9)),
        lobule=Field.draw(rng, (8, 8, 10)),
        loops=Field.draw(rng, (24, 24, 24)),
    )


def _draw_tissues(rng: np.random.Generator) -> dict[str, Tissue]:
    drawn = {}
    for name, tissue in anatomy.TISSUES.items():
        t1, t2, pd = np.exp(np.array([0.05, 0.05, 0.02]) * np.clip(rng.standard_normal(3), -2, 2))
        # Half of the published scatter is taken to lie between patients; noise and mottle are the rest.
        hu = tissue.hu + 0.5 * tissue.hu_sd * np.clip(rng.standard_normal(), -2, 2)
        drawn[name] = tissue._replace(t1=tissue.t1 * t1, t2=tissue.t2 * t2, pd=tissue.pd * pd, hu=float(hu))
    # Both zones are one organ: what a patient's prostate has more or less of, they share.
    inner, outer = drawn["transition zone"], anatomy.TISSUES["peripheral zone"]
    ratio = inner.t2 / anatomy.TISSUES["transition zone"].t2
    drawn["peripheral zone"] = outer._replace(t1=inner.t1, t2=outer.t2 * ratio, pd=inner.pd, hu=inner.hu)
    return drawn


def spin_echo(tissue: Tissue) -> float:
    """S = PD · (1 − exp(−TR / T1)) · exp(−TE / T2)"""
    return float(tissue.pd * (1 - np.exp(-REPETITION_TIME / tissue.t1)) * np.exp(-ECHO_TIME / tissue.t2))


def space_of(patient: Patient, axes: tuple[Array, Array, Array], voxel: Point) -> Space:
    """Voxel coordinates (mm from the scan's middle) in the anatomy's frame, bent as this man is."""
    x, y, z = (
        ((axis - offset) / patient.frame).astype(np.float32)
        for axis, offset in zip(axes, patient.position, strict=True)
    )
    shift_x, shift_y = (
        3.0 * bend.on((x, y, z)) + 0.8 * ripple.on((x, y, z))
        for bend, ripple in zip(patient.bend, patient.ripple, strict=True)
    )
    turned_x = x[:, None, None] - patient.roll * y[None, :, None]
    turned_y = y[None, :, None] + patient.roll * x[:, None, None]
    return Space((x, y, z), turned_x + shift_x, turned_y + shift_y, z, voxel)


class Pelvis:
    """The distances of a man's organs, muscles and bones on a scan's voxels."""

    def __init__(self, patient: Patient, space: Space) -> None:
        self.patient, self.space = patient, space

    @cached_property
    def body(self) -> Array:
        space, man = self.space, self.patient
        scale_x = man.width / anatomy.BODY_WIDTH.mean / man.frame
        scale_y = man.depth / anatomy.BODY_DEPTH.mean / man.frame
        centre = anatomy.BODY_CENTRE_Y
        x, y = np.abs(space.x) / scale_x, (space.y - centre) / scale_y + centre
        return space.smooth(outline_distance(x, y, space.z, anatomy.BODY), 4.0) * np.float32(min(scale_x, scale_y))

    @cached_property
    def muscles(self) -> Array:
        """All muscles, parted by planes of fat where the nearest two are equally near."""
        nearest = np.full(self.space.x.shape, FAR, np.float32)
        second = nearest.copy()
        thick = [(shape, self.patient.muscle) for shape in anatomy.MUSCLES.values()]
        thin = [(shape, 0.0) for shape in anatomy.SHEETS.values()]
        for shape, swelling in thick + thin:
            for side in (1, -1):
                box, gap = distance(self.space, shape, side, rounding=2.0)
                gap -= np.float32(swelling)
                second[box] = np.minimum(second[box], np.maximum(nearest[box], gap))
                nearest[box] = np.minimum(nearest[box], gap)
        parted = np.maximum(nearest, self.patient.fat_plane - (second - nearest))
        # Under the skin there is always some fat.
        return np.maximum(parted, self.body + 7)

    @cached_property
    def hip(self) -> Array:
        whole = union(self.space, anatomy.HIP_BONE.values())
        for side in (1, -1):
            box, ball, opening = self.head(side)
            # The joint: the head and its cartilage are carved out, and the socket opens outwards.
            carved = np.maximum(whole[box], 3.0 - ball)
            whole[box] = np.where(ball < 14, np.maximum(carved, opening - 8), whole[box])
        return whole

    @cached_property
    def femur(self) -> Array:
        whole = union(self.space, anatomy.FEMUR.values(), blend=6.0)
        for side in (1, -1):
            box, ball, _ = self.head(side)
            whole[box] = smooth_union(whole[box], ball, 4.0)
        return whole

    def head(self, side: int) -> tuple[Box, Array, Array]:
        """Distance to one femur head, and how far out of the socket a voxel lies."""
        cx, cy, cz = anatomy.FEMUR_HEAD
        radius = self.patient.head_radius / self.patient.frame
        reach = 45.0
        box = self.space.box(
            (side * cx - reach, cy - reach, cz - reach), (side * cx + reach, cy + reach, cz + reach), 0
        )
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
    def centre(self) -> Box:
        """The box of the pelvic organs."""
        return self.space.box((-75, -95, -75), (75, 110, 130))

    def _inner(self, radii: Point, centre: Point = (0, 0, 0)) -> Array:
        scale = 1 / self.patient.frame
        x, y, z = self.space.at(self.centre)
        place, size = tuple(c * scale for c in centre), tuple(r * scale for r in radii)
        return ellipsoid_distance(x, y, z, (place[0], place[1], place[2]), (size[0], size[1], size[2]))

    @cached_property
    def prostate(self) -> Array:
        """An ellipsoid, narrower towards its apex and hollowed where the rectum lies."""
        a, b, c = self.patient.prostate
        x, _, z = self.space.at(self.centre)
        whole = self._inner((a, b, c))
        narrowing = 0.07 * a * np.clip(-z / c, -1, 1)
        hollow = self._inner((a * 0.8, b * 0.35, c * 1.5), (0, -1.18 * b, 0))
        return self.space.smooth(np.maximum(whole + narrowing, 1.0 - hollow), 1.5)

    @cached_property
    def transition_zone(self) -> Array:
        a, b, c = self.patient.prostate
        share = self.patient.hyperplasia
        radii = (a * share * 0.66, b * share * 0.98, c * share * 1.12)
        lobes = [self._inner(radii, (side * a * share * 0.42, 0.24 * b, 0.16 * c)) for side in (1, -1)]
        return smooth_union(lobes[0], lobes[1], 5.0)

    @cached_property
    def rectum(self) -> Array:
        man = self.patient
        cx, cy, cz = (c / man.frame for c in man.rectum_centre)
        half, radius = man.rectum_half_height / man.frame, man.rectum_radius / man.frame
        # From the pelvic floor up: back along the sacrum's hollow, wide in the ampulla, swaying at its folds.
        course = {-1.0: (0, 13, 0.62), -0.5: (0, 9, 0.9), -0.1: (-3, 2, 1.14), 0.4: (4, -7, 1.12), 1.0: (-3, -13, 0.85)}
        tube = Ovals(
            {
                round(cz + t * half): (cx + sway, cy + back, radius * wide * 1.08, radius * wide * 0.93, 0)
                for t, (sway, back, wide) in course.items()
            },
            taper=4.0,
        )
        x, y, z = self.space.at(self.centre)
        gap = self.space.smooth(outline_distance(x, y, z, tube), 1.5)
        gap = smooth_cut(gap, 2.5 - self.prostate, 6.0)
        return smooth_cut(gap, 4.0 - self.sacrum[self.centre], 6.0)

    def rectum_ends(self) -> tuple[Rod, Rod]:
        """The anal canal below and the sigmoid colon above, which do not count as rectum."""
        man = self.patient
        x, y, z = (c / man.frame for c in man.rectum_centre)
        low, high = z - man.rectum_half_height / man.frame, z + man.rectum_half_height / man.frame
        canal = Rod(((x, y + 12, low + 6, 9), (x, y + 6, low - 12, 11), (0, y - 2, -74, 9)))
        sigmoid = Rod(((x - 3, y - 13, high - 6, 12), (14, y + 2, high + 22, 13), (44, y + 40, high + 40, 13)))
        return canal, sigmoid

    @cached_property
    def bladder(self) -> Array:
        """The outside of its wall: an ellipsoid that gives way to bone, prostate, rectum and muscles."""
        gap = self._inner(self.patient.bladder, self.patient.bladder_centre)
        box = self.centre
        for room in (
            6 - self.bone[box],
            3 - self.muscles[box],
            14 + self.body[box],
            4 - self.rectum,
            -0.5 - self.prostate,
        ):
            gap = smooth_cut(gap, room, 12.0)
        return gap

    @cached_property
    def anterior_stroma(self) -> Array:
        _, b, c = self.patient.prostate
        return self._inner((9, 0.3 * b, 0.75 * c), (0, 0.92 * b, 0))

    def seminal_vesicle(self, side: int) -> Array:
        _, b, c = (r / self.patient.frame for r in self.patient.prostate)
        course = Rod(((4, 3 - b, c - 3, 4), (16, -2 - b, c + 5, 6), (32, -6 - b, c + 13, 4.5)))
        x, y, z = self.space.at(self.centre)
        return np.maximum(rod_distance(side * x, y, z, course), np.maximum(2 - self.rectum, 1 - self.bladder))

    @cached_property
    def peritoneum(self) -> Array:
        x, y, z = self.space.at(self.centre)
        room = outline_distance(np.abs(x), y, z, anatomy.PERITONEUM)
        others = np.minimum(np.minimum(self.bone[self.centre], self.muscles[self.centre]), self.bladder)
        return np.maximum(room, 4 - np.minimum(others, self.rectum))
