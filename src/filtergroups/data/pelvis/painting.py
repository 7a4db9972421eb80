"""Painting a pelvis: tissue after tissue on MR and CT, from the skin inwards, and the organs on the label map."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from filtergroups.data.pelvis import anatomy
from filtergroups.data.pelvis.anatomy import Shape
from filtergroups.data.pelvis.distances import Pelvis
from filtergroups.data.pelvis.man import Man
from filtergroups.data.pelvis.shapes import Array, Box, Space, distance, smooth_union
from filtergroups.data.pelvis.tissues import spin_echo

LEFT_FEMUR_HEAD, RIGHT_FEMUR_HEAD, PROSTATE, BLADDER, RECTUM = 1, 2, 3, 4, 5


def paint(man: Man, space: Space) -> tuple[Array, Array, NDArray[np.uint8]]:
    """MR signal, HU and labels of a man, without noise."""
    canvas = Canvas(man, space)
    canvas.soft_tissue()
    canvas.bone()
    canvas.bowel()
    canvas.pelvic_floor()
    canvas.bladder()
    canvas.rectum()
    canvas.prostate()
    return canvas.mr, canvas.hu, canvas.labels


class Canvas:
    """The images while they are painted; each method adds what its name says."""

    def __init__(self, man: Man, space: Space) -> None:
        self.man, self.space, self.pelvis = man, space, Pelvis(man, space)
        self.mr = np.zeros(space.x.shape, np.float32)
        self.hu = np.full(space.x.shape, -1000, np.float32)
        self.labels = np.zeros(space.x.shape, np.uint8)
        self.grain, self.lobule, self.fibre = (field.on(space.axes) for field in (man.grain, man.lobule, man.fibre))
        self.loops = man.loops.on(space.boxed(self.pelvis.organs))

    def lay(
        self, tissue: str, gap: Array, box: Box | None = None, *, texture: Array | None = None, opacity: float = 1.0
    ) -> None:
        """Lay a tissue over what is there, inside the shape with this distance; a voxel at the edge takes its share."""
        box = box or self.space.whole
        share = np.clip(0.5 - gap / float(np.mean(self.space.voxel)), 0, 1)
        share *= opacity
        look, texture = self.man.tissues[tissue], self.grain[box] if texture is None else texture
        signal = (1 - look.silent) * spin_echo(look)
        for image, value, mottle in ((self.mr, signal, look.mottle * signal), (self.hu, look.hu, look.hu_mottle)):
            here = image[box]
            here += share * (value + mottle * texture - here)

    def label(self, value: int, gap: Array, box: Box) -> None:
        self.labels[box][gap < 0] = value

    def soft_tissue(self) -> None:
        body, muscles = self.pelvis.body, self.pelvis.muscles
        self.lay("skin", body)
        self.lay("fat", body + 2.2)
        # Thin fibrous septa part the fat, streaks of fat part the bundles of a muscle.
        self.lay("muscle", np.maximum(np.abs(self.lobule) * 6 - 0.5, body + 3), opacity=0.3)
        self.lay("muscle", muscles, texture=0.6 * (self.fibre + self.grain))
        self.lay("fat", np.maximum(np.abs(self.fibre) * 4 - 0.15, muscles), opacity=0.25)
        self.vessels("erectile tissue", anatomy.ERECTILE.values())
        self.vessels("spermatic cord", [anatomy.SPERMATIC_CORD])
        self.vessels("blood", anatomy.VESSELS.values())

    def vessels(self, tissue: str, shapes: Iterable[Shape]) -> None:
        for shape in shapes:
            for side in (1, -1):
                box, gap = distance(self.space, shape, side)
                gap = np.maximum(gap, self.pelvis.body[box] + 4)
                self.lay("muscle", gap - 1, box, opacity=0.8)  # the wall
                self.lay(tissue, gap, box)

    def bone(self) -> None:
        x, z = self.space.x, self.space.z
        for side in (1, -1):
            box, gap = distance(self.space, anatomy.SYMPHYSIS, side)
            self.lay("cartilage", gap, box)
            box, ball, opening = self.pelvis.femur_head(side)
            self.lay("cartilage", np.maximum(ball - 3, opening - 10), box)
            self.label(RIGHT_FEMUR_HEAD if side > 0 else LEFT_FEMUR_HEAD, ball, box)
            # The capsule holds the joint together, from the socket's rim down the neck.
            capsule = np.maximum(self.pelvis.femur[box] - 3, np.maximum(side * x[box] - 124, 2 - z[box[2]]))
            self.lay("muscle", capsule, box, opacity=0.8)
        # The femur's shaft bears the load with a thick cortex.
        shaft = np.clip((-20 - z) / 50, 0, 1) * (np.abs(x) > 95)
        self.lay("cortical bone", self.pelvis.bone)
        self.lay("spongy bone", self.pelvis.bone + self.man.cortex + 3.5 * shaft)

    def bowel(self) -> None:
        """Loops of bowel above the bladder: where a random field is high, there is one."""
        for tissue, level in (("rectal wall", -0.3), ("stool", 0.1), ("gas", 1.3)):
            gap = np.maximum((level - self.loops) * 12, self.pelvis.peritoneum)
            self.lay(tissue, gap, self.pelvis.organs)

    def pelvic_floor(self) -> None:
        """The levator: a sling around prostate and rectum, open to the front, flaring upwards."""
        box, prostate, rectum = self.pelvis.organs, self.pelvis.prostate, self.pelvis.rectum
        _, y, z = self.space.at(box)
        flare = np.clip(z + 8, 0, 20)
        sheet = np.abs(smooth_union(prostate, rectum, 24.0) - (4.5 + 0.5 * flare + 1.2 * self.loops))
        gap = np.maximum(sheet - (1.7 - 0.04 * flare), np.maximum(z - 14, y - 0.55 * self.man.prostate[1]))
        self.lay("muscle", gap, box)
        # Veins around the prostate, mostly in front of it, and vessels around the rectum.
        grain, plexus = self.grain[box], prostate - np.where(y > 0, 10, 5).astype(np.float32)
        self.lay("muscle", np.maximum((0.5 + grain) * 3, plexus), box, opacity=0.3)
        self.lay("erectile tissue", np.maximum((0.9 - grain) * 3, plexus), box, opacity=0.35)
        self.lay("blood", np.maximum((2.1 - grain) * 3, rectum - 13), box, opacity=0.7)

    def bladder(self) -> None:
        box, bladder = self.pelvis.organs, self.pelvis.bladder
        for side in (1, -1):
            vesicle = self.pelvis.seminal_vesicle(side)
            self.lay("muscle", vesicle - 1, box, opacity=0.7)
            self.lay("seminal vesicle", vesicle, box)
        self.lay("muscle", bladder, box)
        self.lay("urine", bladder + self.man.bladder_wall, box)
        self.label(BLADDER, bladder, box)

    def rectum(self) -> None:
        for rod in self.pelvis.rectum_ends():
            box, gap = distance(self.space, rod, 1)
            for tissue, depth in (("muscle", -3), ("rectal wall", 0), ("stool", 5)):
                self.lay(tissue, gap + depth, box)
        box, rectum = self.pelvis.organs, self.pelvis.rectum
        lumen = rectum + self.man.rectum_wall
        for tissue, gap in (("muscle", rectum), ("rectal wall", rectum + 1), ("stool", lumen)):
            self.lay(tissue, gap, box)
        # Gas rises to the front.
        forward = (self.space.y[box] - self.man.rectum_centre[1] / self.man.frame) / self.man.rectum_radius
        gas = 4 * (0.3 - self.man.gas - 0.6 * forward - 0.5 * self.loops)
        self.lay("gas", np.maximum(gas, lumen + 0.5), box)
        self.label(RECTUM, rectum, box)

    def prostate(self) -> None:
        box, prostate = self.pelvis.organs, self.pelvis.prostate
        grain, lobule = self.grain[box], self.lobule[box]
        self.lay("muscle", prostate - 0.6, box, opacity=0.8)  # the capsule
        self.lay("peripheral zone", prostate, box)
        inner = np.maximum(self.pelvis.transition_zone, prostate + 1)
        self.lay("muscle", inner - 0.7, box, opacity=0.6)
        self.lay("transition zone", inner, box, texture=0.5 * (lobule + grain))
        # Nodules: stroma is darker than glands, and darkest in front.
        self.lay("muscle", np.maximum(inner, 3 * (0.2 - lobule)), box, opacity=0.35)
        self.lay("muscle", np.maximum(self.pelvis.anterior_stroma, prostate), box, opacity=0.6)
        self.label(PROSTATE, prostate, box)
