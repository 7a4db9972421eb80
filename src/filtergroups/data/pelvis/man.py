"""What differs between men: drawn around the priors, before any voxel is looked at."""

from dataclasses import dataclass

import numpy as np

from filtergroups.data.pelvis import anatomy
from filtergroups.data.pelvis.anatomy import OrganPrior, Spread
from filtergroups.data.pelvis.shapes import Field, Point
from filtergroups.data.pelvis.tissues import Tissue, draw_tissues


@dataclass(frozen=True)
class Man:
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

    def sides(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Where the body surely ends, left to right and back to front, from the middle of the scan."""
        middle = self.position[1] + anatomy.BODY_CENTRE_Y
        half_width, half_depth = self.width / 2 + 25, self.depth / 2 + 25
        left_right = (self.position[0] - half_width, self.position[0] + half_width)
        return left_right, (middle - half_depth, middle + half_depth)


def draw_man(rng: np.random.Generator) -> Man:
    """Draw a man around the priors; extremes are cut at two standard deviations."""

    def near(spread: Spread) -> float:
        return float(spread.mean + spread.sd * np.clip(rng.standard_normal(), -2, 2))

    def volume(spread: Spread) -> float:
        # Volumes are skewed: log-normal with the given mean and standard deviation.
        variance = np.log1p((spread.sd / spread.mean) ** 2)
        return float(spread.mean * np.exp(np.sqrt(variance) * np.clip(rng.standard_normal(), -2, 2) - variance / 2))

    def half_extents(prior: OrganPrior, millilitres: float) -> Point:
        shape = np.array(prior.extents) / 2 * np.exp(0.06 * rng.standard_normal(3))
        a, b, c = shape * np.cbrt(millilitres * 1000 / (4 / 3 * np.pi * shape.prod()))
        return float(a), float(b), float(c)

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
    return Man(
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
        muscle=near(Spread(6.0, 1.2)),
        roll=near(Spread(0, 0.012)),
        rectum_wall=near(Spread(3.6, 0.4)),
        tissues=draw_tissues(rng),
        bend=(Field.draw(rng, (70, 70, 70)), Field.draw(rng, (70, 70, 70))),
        ripple=(Field.draw(rng, (22, 22, 22)), Field.draw(rng, (22, 22, 22))),
        grain=Field.draw(rng, (3.4, 3.4, 4.0)),
        fibre=Field.draw(rng, (16, 4, 9)),
        lobule=Field.draw(rng, (8, 8, 10)),
        loops=Field.draw(rng, (24, 24, 24)),
    )
