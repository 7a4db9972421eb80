"""A pelvis phantom: T2-weighted MR, CT and organ labels of men who do not exist, so that nothing need be downloaded."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from filtergroups.data import anatomy, pelvis
from filtergroups.data.pelvis import Patient, Pelvis
from filtergroups.data.shapes import Array, Box, Space, distance, everywhere, smooth_union

LABEL_NAMES = {0: "background", 1: "left femur head", 2: "right femur head", 3: "prostate", 4: "bladder", 5: "rectum"}


@dataclass(frozen=True)
class Phantom:
    """One patient's scans: x (left to right) × y (back to front) × z (foot to head).

    The affine is RAS+, as NIfTI has it: world x grows towards the patient's right, so his left femur head is at x < 0.
    """

    mr: NDArray[np.float32]  # arbitrary units
    ct: NDArray[np.int16]  # HU
    labels: NDArray[np.uint8]
    affine: NDArray[np.float64]


def generate(
    seed: int,
    patient: int,
    shape: tuple[int, int, int] = (288, 288, 62),
    spacing: tuple[float, float, float] = (1.46, 1.46, 1.46),
) -> Phantom:
    """One patient; the same man for the same seed and number, whatever the voxels.

    The field of view is shape × spacing mm and lies around the prostate's level.
    """
    rng = np.random.default_rng([seed, patient])
    man = pelvis.draw_patient(rng)
    axes = tuple(
        ((np.arange(count) - (count - 1) / 2) * size).astype(np.float32)
        for count, size in zip(shape, spacing, strict=True)
    )
    space = pelvis.space_of(man, (axes[0], axes[1], axes[2]), spacing)
    canvas = Canvas(man, space)
    canvas.paint_all()
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = [axis[0] for axis in axes]
    # What depends on the number of voxels is drawn last: the man must not change with it.
    scale = 800 * np.exp(0.5 * rng.standard_normal())
    bias = pelvis.Field.draw(rng, (120, 120, 120)).on((axes[0], axes[1], axes[2]))
    bias = 0.9 + 0.2 * (bias - bias.min()) / np.ptp(bias)
    mr = rician(bias * blurred(canvas.mr), 0.009, rng) * np.float32(scale)
    ct = blurred(canvas.hu) + ct_noise(rng, shape)
    return Phantom(mr, np.clip(np.rint(ct), -1024, 3071).astype(np.int16), canvas.labels, affine)


def blurred(image: Array) -> Array:
    """Partial volume: a voxel sees a little of its neighbours."""
    return gaussian_filter(image, 0.45, truncate=3.0)


def rician(signal: Array, sigma: float, rng: np.random.Generator) -> Array:
    """Magnitude of a complex signal with Gaussian noise in both channels."""
    real = signal + np.float32(sigma) * rng.standard_normal(signal.shape, np.float32)
    return np.hypot(real, np.float32(sigma) * rng.standard_normal(signal.shape, np.float32))


def ct_noise(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    return gaussian_filter(rng.standard_normal(shape, np.float32), 0.6, truncate=2.0) * np.float32(28)


def cover(gap: Array, voxel: float) -> Array:
    """The share of a voxel that a shape fills, from the distance to the shape."""
    return np.clip(0.5 - gap / np.float32(voxel), 0, 1)


class Canvas:
    """MR signal, HU and labels of one man, painted from the skin inwards."""

    def __init__(self, man: Patient, space: Space) -> None:
        self.man, self.space, self.body = man, space, Pelvis(man, space)
        self.voxel = float(np.mean(space.voxel))
        self.mr = np.zeros(space.x.shape, np.float32)
        self.hu = np.full(space.x.shape, -1000, np.float32)
        self.labels = np.zeros(space.x.shape, np.uint8)
        self.grain = man.grain.on(space.axes)
        self.lobule = man.lobule.on(space.axes)

    def paint(
        self, tissue: str, gap: Array, box: Box | None = None, texture: Array | None = None, opacity: float = 1.0
    ) -> None:
        """Lay a tissue over what is there, in the shape with this distance."""
        box = box or everywhere(self.space)
        look = self.man.tissues[tissue]
        share = cover(gap, self.voxel)
        if opacity < 1:
            share *= np.float32(opacity)
        texture = self.grain[box] if texture is None else texture
        for image, value, mottle in ((self.mr, (1 - look.silent) * pelvis.spin_echo(look), None), (self.hu, look.hu, look.hu_mottle)):
            spread = look.mottle * value if mottle is None else mottle
            target = image[box]
            target += share * (np.float32(value) + np.float32(spread) * texture - target)

    def label(self, value: int, gap: Array, box: Box) -> None:
        self.labels[box][gap < 0] = value

    def paint_all(self) -> None:
        self.paint_soft_tissue()
        self.paint_bone()
        self.paint_organs()

    def paint_soft_tissue(self) -> None:
        body = self.body.body
        self.paint("skin", body)
        self.paint("fat", body + np.float32(2.2))
        # Septa: fat is parted by thin sheets of fibrous tissue.
        septa = np.abs(self.lobule) * 6 - np.float32(0.5)
        self.paint("muscle", np.maximum(septa, body + 3), opacity=0.3)
        fibre = self.man.fibre.on(self.space.axes)
        self.paint("muscle", self.body.muscles, texture=0.6 * fibre + 0.6 * self.grain)
        # Streaks of fat between the bundles.
        streaks = np.maximum(np.abs(fibre) * 4 - np.float32(0.15), self.body.muscles)
        self.paint("fat", streaks, opacity=0.25)
        layers = (
            ("erectile tissue", anatomy.ERECTILE.values()),
            ("muscle", [anatomy.SPERMATIC_CORD]),
            ("blood", anatomy.VESSELS.values()),
        )
        for tissue, shapes in layers:
            for shape in shapes:
                for side in (1, -1):
                    box, gap = distance(self.space, shape, side)
                    gap = np.maximum(gap, body[box] + 4)
                    if tissue != "muscle":
                        self.paint("muscle", gap - 1, box)  # their wall
                    self.paint(tissue, gap, box, opacity=0.6 if tissue == "muscle" else 1.0)

    def paint_bone(self) -> None:
        for side in (1, -1):
            box, gap = distance(self.space, anatomy.SYMPHYSIS, side)
            self.paint("cartilage", gap, box)
            box, ball, opening = self.body.head(side)
            self.paint("cartilage", np.maximum(ball - 3, opening - 10), box)
            self.label(pelvis.RIGHT_FEMUR_HEAD if side > 0 else pelvis.LEFT_FEMUR_HEAD, ball, box)
            # The capsule holds the joint together, from the socket's rim down the neck.
            capsule = np.maximum(self.body.femur[box] - 3, np.maximum(side * self.space.x[box] - 124, 2 - self.space.z[box[2]]))
            self.paint("muscle", capsule, box, opacity=0.8)
        bone = self.body.bone
        # The femur's shaft bears the load with a thick cortex.
        shaft = np.clip((-20 - self.space.z) / 50, 0, 1) * (np.abs(self.space.x) > 95)
        cortex = (self.man.cortex + 3.5 * shaft).astype(np.float32)
        self.paint("cortical bone", bone)
        self.paint("spongy bone", bone + cortex)

    def paint_organs(self) -> None:
        box = self.body.centre
        self.paint_bowel(box)
        self.paint_pelvic_floor(box)
        self.paint_bladder(box)
        self.paint_rectum(box)
        self.paint_prostate(box)

    def paint_bowel(self, box: Box) -> None:
        """Loops of bowel above the bladder: where a random field is high there is a loop."""
        room = self.body.peritoneum
        loops = self.man.loops.on(self.space.axes)[box]
        for tissue, level in (("rectal wall", -0.3), ("stool", 0.1), ("gas", 1.3)):
            self.paint(tissue, np.maximum((level - loops) * 12, room), box)

    def paint_pelvic_floor(self, box: Box) -> None:
        """The levator hangs as a sling around prostate and rectum, open to the front, and flares upwards."""
        prostate, rectum = self.body.prostate, self.body.rectum
        _, y, z = self.space.at(box)
        grain = self.grain[box]
        around = smooth_union(prostate, rectum, 24.0)
        away = 4.5 + 0.5 * np.clip(z + 8, 0, 20) + 1.2 * self.man.loops.on(self.space.axes)[box]
        thick = 1.7 - 0.04 * np.clip(z + 8, 0, 20)
        floor = np.maximum(np.abs(around - away) - thick, np.maximum(z - 14, y - 26))
        self.paint("muscle", floor, box)
        # Veins around the prostate, vessels around the rectum.
        veins = np.maximum(np.abs(grain) * 3 - 1.2, prostate - np.where(y > 0, 10, 5))
        self.paint("muscle", veins, box, opacity=0.5)
        self.paint("blood", np.maximum((2.1 - grain) * 3, rectum - 13), box, opacity=0.7)

    def paint_bladder(self, box: Box) -> None:
        bladder = self.body.bladder
        for side in (1, -1):
            vesicle = self.body.seminal_vesicle(side)
            self.paint("muscle", vesicle - 1, box, opacity=0.7)
            self.paint("seminal vesicle", vesicle, box)
        self.paint("muscle", bladder, box)
        self.paint("urine", bladder + np.float32(self.man.bladder_wall), box)
        self.label(pelvis.BLADDER, bladder, box)

    def paint_rectum(self, box: Box) -> None:
        man, rectum = self.man, self.body.rectum
        for rod in self.body.rectum_ends():
            part, gap = distance(self.space, rod, 1)
            self.paint("muscle", gap - 3, part)
            self.paint("rectal wall", gap, part)
            self.paint("stool", gap + 5, part)
        self.paint("muscle", rectum, box)
        self.paint("rectal wall", rectum + 1, box)
        lumen = rectum + np.float32(man.rectum_wall)
        self.paint("stool", lumen, box)
        # Gas rises to the front.
        forward = (self.space.y[box] - man.rectum_centre[1] / man.frame) / man.rectum_radius
        gas = 4 * (0.3 - man.gas - 0.6 * forward - 0.5 * man.loops.on(self.space.axes)[box])
        self.paint("gas", np.maximum(gas, lumen + np.float32(0.5)), box)
        self.label(pelvis.RECTUM, rectum, box)

    def paint_prostate(self, box: Box) -> None:
        prostate = self.body.prostate
        self.paint("muscle", prostate - np.float32(0.6), box, opacity=0.8)
        self.paint("peripheral zone", prostate, box)
        inner = np.maximum(self.body.transition_zone, prostate + 1)
        self.paint("muscle", inner - np.float32(0.7), box, opacity=0.6)
        self.paint("transition zone", inner, box, texture=0.5 * self.lobule[box] + 0.5 * self.grain[box])
        # Nodules: stroma is darker than glands.
        self.paint("muscle", np.maximum(inner, 3 * (0.2 - self.lobule[box])), box, opacity=0.35)
        self.paint("muscle", np.maximum(self.body.anterior_stroma, prostate), box, opacity=0.6)
        self.label(pelvis.PROSTATE, prostate, box)
