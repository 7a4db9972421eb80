"""A male pelvis as tables: tissues, priors and the outlines of muscles, bones and vessels.

Millimetres of an average man lying on his back: x from the midline to one side (both sides are alike, the patient's
deformation makes them differ), y to the front, z to the head; the origin is the prostate's centre.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Tissue(NamedTuple):
    """What a tissue looks like: relaxation at 3 T in ms, proton density, Hounsfield units, and how mottled it is."""

    t1: float
    t2: float
    pd: float
    hu: float
    hu_sd: float
    mottle: float = 0.05  # share of the signal that varies from place to place
    hu_mottle: float = 4.0
    silent: float = 0.0  # share of a voxel that gives no MR signal


TISSUES = {
    "air": Tissue(1, 1, 0.0, -1000, 0, 0.0, 0.0),
    "fat": Tissue(382, 68, 1.0, -105, 13, 0.05, 6.0),
    "muscle": Tissue(1100, 35, 0.9, 45, 16, 0.14, 7.0),
    "cortical bone": Tissue(250, 0.5, 0.2, 690, 100, 0.0, 40.0),
    "spongy bone": Tissue(480, 90, 1.0, 255, 60, 0.07, 45.0, silent=0.2),
    "transition zone": Tissue(1597, 76, 0.9, 39, 25, 0.30),
    "peripheral zone": Tissue(1597, 97, 0.9, 39, 25, 0.12),
    "urine": Tissue(3500, 1000, 1.0, 11, 15, 0.01, 1.0),
    "rectal wall": Tissue(1350, 70, 0.9, 35, 8, 0.15),
    "stool": Tissue(900, 60, 0.6, 20, 20, 0.45, 40.0),
    "gas": Tissue(1, 1, 0.0, -1000, 0, 0.0, 0.0),
    "skin": Tissue(1050, 50, 0.9, 30, 10),
    # Assumptions of ours, to make what surrounds the organs look right.
    "blood": Tissue(1900, 12, 0.9, 45, 6, 0.3),  # flowing blood leaves a dark lumen in a spin echo
    "cartilage": Tissue(1200, 38, 0.9, 90, 15),
    "erectile tissue": Tissue(1500, 130, 0.95, 45, 6, 0.08),
    "seminal vesicle": Tissue(1600, 150, 0.95, 25, 8, 0.45),
}


class Spread(NamedTuple):
    """A quantity that differs between men: mean and standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True)
class OrganPrior:
    """Volume in mL, extents in mm (left-right, front-back, head-foot) and the centre relative to the prostate's."""

    volume: Spread
    extents: tuple[float, float, float]
    forward: Spread = Spread(0, 0)
    upward: Spread = Spread(0, 0)


PROSTATE = OrganPrior(Spread(39, 21), (49, 38, 41))
BLADDER = OrganPrior(Spread(300, 148), (87, 105, 68), forward=Spread(27, 12), upward=Spread(40, 10))
RECTUM = OrganPrior(Spread(64, 28), (48, 62, 84), forward=Spread(-42, 5), upward=Spread(13, 7))
BODY_WIDTH = Spread(376, 22)
BODY_DEPTH = Spread(228, 22)
FEMUR_HEAD_RADIUS = Spread(24, 1.3)
FEMUR_HEAD = (90.0, 8.0, 22.0)


@dataclass(frozen=True)
class Outline:
    """A shape by its axial cross-sections: height -> polygon, written as 'x,y x,y ...'; shapes between are blends."""

    levels: dict[int, str]
    taper: float = 8.0  # mm over which the ends round off


@dataclass(frozen=True)
class Ovals:
    """A shape by axial ellipses: height -> centre x, y, radii x, y and degrees of turning (anticlockwise)."""

    levels: dict[int, tuple[float, float, float, float, float]]
    taper: float = 8.0


@dataclass(frozen=True)
class Rod:
    """A shape along a path of balls: x, y, z, radius."""

    path: tuple[tuple[float, float, float, float], ...]


Shape = Outline | Ovals | Rod

BODY_CENTRE_Y = -8.0
# The midline edge lies beyond x = 0, so that both halves merge, until the legs part. Scaled to the patient's size.
BODY = Outline(
    {
        160: "-85,103 -35,113 35,113 85,103 125,80 152,45 164,0 158,-45 138,-78 100,-98 50,-101 14,-96 0,-94 -40,-94",
        90: "-88,99 -35,109 35,109 88,99 134,75 163,38 174,-8 168,-52 144,-88 100,-109 50,-116 14,-113 0,-109 -40,-109",
        45: "-90,98 -35,105 35,105 90,98 139,77 172,41 184,-8 177,-54 148,-92 102,-114 50,-121 15,-116 0,-104 -40,-104",
        0: "-84,93 -35,102 35,102 84,93 138,84 175,48 188,-6 182,-53 152,-92 103,-115 50,-122 15,-114 0,-93 -40,-93",
        -35: "-70,86 -30,98 30,98 70,86 130,90 173,55 187,-2 181,-50 151,-89 103,-113 50,-119 16,-107 0,-80 -40,-80",
        -75: "-46,68 -20,86 20,86 46,68 102,90 166,60 183,0 177,-45 149,-80 102,-102 52,-106 18,-90 2,-56 -40,-52",
        -95: "4,15 5,30 14,50 42,72 98,86 156,60 177,0 171,-42 146,-76 101,-95 52,-94 19,-66 6,-32 4,0",
        -180: "4,15 8,25 18,45 45,66 95,78 145,55 164,0 158,-42 135,-72 98,-88 55,-86 22,-60 9,-30 7,0",
    },
    taper=0.0,
)

# Thick ones, drawn slim: they swell until planes of fat part them.
MUSCLES: dict[str, Shape] = {
    "gluteus maximus": Outline(
        {
            105: "32,-96 50,-91 66,-86 80,-82 90,-79 92,-83 82,-92 68,-100 50,-104 34,-102",
            60: "15,-94 45,-82 85,-70 116,-56 138,-38 146,-46 133,-70 100,-95 55,-108 17,-104",
            20: "13,-85 45,-68 85,-59 124,-44 152,-18 161,-34 145,-66 105,-96 58,-109 17,-102",
            -20: "17,-73 45,-60 85,-53 122,-40 150,-16 158,-30 142,-64 105,-93 60,-106 21,-97",
            -60: "27,-72 52,-60 85,-51 118,-42 142,-22 148,-30 136,-56 105,-81 65,-94 33,-87",
            -105: "50,-74 65,-68 85,-60 112,-50 132,-34 135,-37 126,-52 108,-68 82,-79 57,-81",
        },
        taper=4.0,
    ),
    "gluteus medius": Outline(
        {
            150: "86,-72 104,-50 124,-10 130,16 135,14 132,-14 112,-56 92,-78",
            100: "80,-62 101,-30 119,6 126,36 138,34 137,4 122,-38 96,-72",
            60: "84,-46 104,-28 118,0 118,32 142,28 147,0 139,-34 110,-58",
            30: "112,-46 124,-33 137,-19 138,4 151,4 156,-12 150,-31 130,-48",
            6: "134,-34 144,-26 152,-14 152,-3 157,-4 159,-14 155,-27 142,-39",
        },
        taper=3.0,
    ),
    "gluteus minimus": Outline(
        {
            95: "84,-32 98,-10 110,14 114,30 120,28 117,8 108,-16 92,-38",
            50: "97,-20 109,-2 115,16 112,29 124,26 131,8 125,-9 107,-26",
            22: "118,15 128,11 138,5 142,8 143,15 139,20 130,23 120,22",
        },
        taper=3.0,
    ),
    "tensor fasciae latae": Outline(
        {
            62: "122,49 131,45 138,38 143,41 137,52 126,57",
            12: "136,46 149,36 160,20 166,23 160,43 145,54",
            -45: "142,53 154,43 165,26 170,29 164,48 148,60",
            -130: "146,44 155,32 161,16 164,17 160,36 150,50",
        }
    ),
    "iliopsoas": Ovals(
        {
            150: (72, 0, 34, 18, 40),
            105: (82, 14, 27, 15, 48),
            65: (88, 32, 19, 14, 25),
            25: (92, 47, 20, 13, -8),
            0: (98, 41, 17, 13, -18),
            -30: (109, 18, 12, 13, 0),
            -52: (115, -4, 7, 8, 0),
        }
    ),
    "rectus femoris": Ovals(
        {50: (110, 38, 6, 5, 0), 20: (119, 50, 11, 8, -20), -20: (121, 57, 15, 9, -12), -160: (113, 55, 21, 13, -5)}
    ),
    "sartorius": Ovals(
        {
            75: (121, 58, 6, 6, 0),
            30: (117, 72, 13, 6, -25),
            -10: (102, 76, 14, 6, -18),
            -50: (82, 72, 14, 6, 10),
            -160: (48, 48, 11, 8, 40),
        }
    ),
    "pectineus": Ovals(
        {22: (46, 56, 11, 5, -25), 2: (60, 52, 18, 9, -25), -28: (76, 44, 19, 9, -32), -65: (98, 18, 13, 6, -38)}
    ),
    "obturator externus": Ovals(
        {6: (58, 26, 13, 6, -38), -12: (68, 15, 26, 9, -35), -30: (62, 13, 20, 10, -35), -48: (54, 8, 11, 7, -40)}
    ),
    "piriformis": Rod(((34, -80, 78, 9), (75, -54, 56, 10), (110, -34, 34, 6), (132, -14, 24, 3))),
    "adductor longus": Ovals(
        {-8: (26, 60, 6, 4, 0), -35: (47, 62, 15, 9, 10), -80: (60, 52, 18, 11, 15), -160: (72, 28, 18, 11, 0)}
    ),
    "adductor brevis": Ovals({-16: (32, 42, 9, 6, -30), -45: (50, 38, 17, 8, -25), -110: (84, 22, 18, 9, -20)}),
    "adductor magnus": Ovals(
        {-40: (56, 0, 10, 9, 0), -65: (62, 4, 22, 16, -20), -100: (68, -2, 30, 20, -15), -160: (72, -14, 28, 24, 0)}
    ),
    "gracilis": Ovals({-30: (16, 33, 4, 7, -20), -70: (28, 30, 5, 15, -10), -160: (32, 2, 7, 15, 0)}),
    "hamstrings": Ovals({-48: (66, -42, 8, 7, 0), -90: (82, -42, 19, 12, 10), -160: (78, -48, 28, 18, 0)}),
    "vastus lateralis": Outline(
        {
            -4: "146,14 152,4 150,-10 155,-12 159,4 153,18",
            -45: "134,26 148,10 146,-14 156,-14 164,8 148,32",
            -160: "122,34 134,10 126,-22 146,-26 160,10 140,42",
        },
        taper=4.0,
    ),
    "vastus intermedius": Ovals({-28: (130, 18, 12, 7, 0), -75: (122, 22, 19, 11, 0), -160: (108, 20, 26, 17, 0)}),
}

# Thin ones, drawn as they are.
SHEETS: dict[str, Shape] = {
    "obturator internus": Outline(
        {
            66: "58,14 57,0 58,-12 60,-20 64,-20 63,-12 62,0 63,12",
            32: "50,29 45,8 45,-13 52,-32 66,-36 64,-14 63,6 63,26",
            6: "40,31 38,8 40,-13 48,-36 64,-42 61,-16 57,4 53,25",
            -20: "34,26 36,5 39,-12 46,-32 58,-36 58,-14 53,2 47,20",
            -48: "41,-4 43,-13 45,-22 48,-30 52,-32 50,-22 48,-13 46,-4",
        },
        taper=3.0,
    ),
    "obturator internus, gluteal part": Rod(((52, -40, 10, 6), (80, -44, 8, 6), (104, -36, 10, 5), (126, -22, 14, 3))),
    "quadratus femoris": Outline(
        {6: "82,-31 102,-27 122,-25 123,-31 102,-36 82,-40", -38: "80,-30 100,-24 120,-20 122,-28 101,-34 80,-39"},
        taper=3,
    ),
    "rectus abdominis": Ovals(
        {8: (15, 64, 9, 4, -8), 35: (20, 78, 15, 5, -8), 75: (26, 91, 21, 5.5, -6), 160: (36, 99, 30, 6, -5)}
    ),
    "abdominal wall": Outline(
        {
            55: "50,80 76,80 104,70 116,60 119,63 107,75 78,86 52,86",
            100: "56,89 86,84 116,66 126,50 131,53 121,74 90,93 58,96",
            160: "70,93 104,80 130,48 138,12 150,14 142,54 112,90 72,101",
        }
    ),
    "iliococcygeus": Rod(((46, -34, 4, 2), (30, -58, -2, 2), (4, -70, 4, 2.5))),
    "transverse perineal": Rod(((46, -14, -52, 3), (20, -14, -50, 3), (0, -14, -48, 4))),
    "sciatic nerve": Ovals({50: (72, -44, 5, 3, 0), 10: (90, -50, 6, 3, 10), -160: (92, -24, 5, 4, 0)}),
}

VESSELS: dict[str, Shape] = {
    "artery": Ovals({130: (44, 2, 5, 5, 0), 60: (66, 40, 5, 5, 0), 25: (76, 65, 5, 5, 0), -60: (86, 52, 4, 4, 0)}),
    "vein": Ovals({130: (42, -10, 6, 6, 0), 60: (60, 30, 6, 5, 40), 25: (64, 60, 6, 5, 40), -60: (82, 42, 5, 5, 0)}),
    "deep artery": Rod(((96, 30, -40, 3), (84, 54, -18, 3))),
    "obturator vessels": Rod(((48, 12, 60, 1.8), (44, 26, 26, 1.8), (52, 30, 10, 1.8))),
    "gluteal vessels": Rod(((54, -62, 62, 2.5), (74, -60, 30, 2), (66, -66, -10, 1.6))),
    "pudendal vessels": Rod(((46, -46, 10, 1.8), (43, -30, -20, 1.8), (36, -8, -44, 1.5))),
    "saphenous vein": Ovals({4: (74, 74, 3, 3, 0), -160: (50, 66, 3, 3, 0)}),
}

ERECTILE: dict[str, Shape] = {
    "crus": Rod(((42, -8, -58, 5), (28, 12, -50, 7), (10, 36, -46, 8), (8, 66, -40, 8.5), (8, 84, -62, 8.5))),
    "bulb": Rod(((0, -4, -44, 8), (0, 18, -54, 9), (0, 44, -54, 6.5), (0, 72, -64, 6))),
}
SPERMATIC_CORD = Ovals({40: (44, 84, 5, 4, 0), 10: (28, 82, 7, 6, 0), -30: (20, 78, 8, 7, 0), -90: (12, 60, 9, 8, 0)})

HIP_BONE: dict[str, Shape] = {
    "acetabular roof": Rod(((88, 8, 56, 17), (91, 0, 74, 10))),
    "posterior column": Rod(
        ((80, -18, 42, 15), (76, -24, 14, 14), (66, -27, -14, 12), (62, -30, -40, 14), (58, -28, -52, 12))
    ),
    "anterior column": Rod(((90, 30, 50, 9), (74, 36, 28, 9), (50, 44, 16, 8), (24, 48, 10, 8))),
    "quadrilateral plate": Outline(
        {
            64: "70,22 64,10 63,-10 66,-26 74,-26 70,-8 71,10 78,22",
            30: "68,26 61,10 60,-10 64,-28 74,-28 66,-8 66,10 76,26",
            2: "66,22 62,8 60,-10 62,-26 72,-28 66,-10 67,8 72,20",
        },
        taper=4.0,
    ),
    "ischial spine": Rod(((66, -28, 20, 9), (50, -44, 10, 3))),
    "pubic body": Outline(
        {
            20: "3,46 18,46 37,40 39,50 22,60 3,63",
            2: "3,36 14,35 34,27 39,37 22,53 3,57",
            -26: "3,28 11,26 23,19 28,27 15,37 3,41",
        },
        taper=4.0,
    ),
    "inferior ramus": Rod(((16, 29, -22, 8.5), (30, 14, -38, 7), (45, -6, -54, 7), (56, -24, -56, 10))),
    "ilium": Outline(
        {
            56: "66,-30 78,-8 86,16 94,32 106,30 102,10 92,-14 74,-38",
            85: "54,-60 72,-38 90,0 108,38 115,36 99,-6 82,-44 60,-70",
            115: "48,-66 70,-52 102,-5 120,40 127,36 110,-12 79,-63 54,-80",
            160: "46,-74 72,-64 112,-14 128,22 133,18 119,-20 82,-74 50,-86",
        },
        taper=3.0,
    ),
}
ACETABULUM_OPENS_TOWARDS = (0.80, 0.30, -0.52)

FEMUR: dict[str, Shape] = {
    "neck": Rod(((98, 6, 16, 17), (112, 1, 5, 15), (128, -5, -8, 17))),
    "greater trochanter": Rod(((140, -14, 14, 8), (141, -11, 0, 13), (135, -7, -22, 16))),
    "shaft": Rod(((134, -6, -18, 17), (129, -4, -60, 14.5), (118, 2, -190, 14))),
    "lesser trochanter": Rod(((126, -10, -38, 12), (115, -17, -44, 7))),
}

SACRUM: dict[str, Shape] = {
    "coccyx": Rod(((0, -91, 44, 7), (0, -86, 24, 5), (0, -76, 8, 3.5))),
    "sacrum": Outline(
        {
            36: "-20,-86 5,-86 11,-90 5,-96 -20,-97",
            62: "-20,-91 20,-90 34,-92 22,-102 -20,-106",
            90: "-20,-85 28,-82 48,-80 40,-96 -20,-108",
            130: "-20,-42 26,-48 50,-66 44,-90 -20,-106",
            170: "-20,-22 22,-26 30,-50 30,-84 -20,-100",
        },
        taper=4.0,
    ),
}
SYMPHYSIS = Outline({20: "-9,49 4,49 4,60 -9,60", 2: "-9,38 4,38 4,53 -9,53", -24: "-9,30 4,30 4,38 -9,38"}, taper=3.0)
PERITONEUM = Outline(
    {
        58: "-30,60 30,60 46,30 40,-20 20,-40 -30,-44",
        100: "-30,88 44,86 62,44 50,-10 30,-60 -30,-66",
        160: "-30,92 62,88 104,66 96,24 50,8 -30,0",
    },
    taper=6.0,
)
