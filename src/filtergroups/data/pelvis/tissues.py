"""What tissues look like on T2-weighted MR and on CT."""

from typing import NamedTuple

import numpy as np

ECHO_TIME, REPETITION_TIME = 80.0, 2500.0  # ms


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
    "spongy bone": Tissue(480, 90, 1.0, 255, 60, 0.07, 45.0, silent=0.35),
    "transition zone": Tissue(1597, 76, 0.9, 39, 25, 0.30),
    "peripheral zone": Tissue(1597, 97, 0.9, 39, 25, 0.12),
    "urine": Tissue(3500, 1000, 1.0, 11, 15, 0.01, 1.0),
    "rectal wall": Tissue(1350, 70, 0.9, 35, 8, 0.15),
    "stool": Tissue(900, 60, 0.6, 20, 20, 0.45, 40.0),
    "gas": Tissue(1, 1, 0.0, -1000, 0, 0.0, 0.0),
    "skin": Tissue(1050, 50, 0.9, 30, 10),
    # Assumptions of ours, to make what surrounds the organs look right.
    "blood": Tissue(1900, 12, 0.9, 45, 6, 0.3),  # flowing blood leaves a dark lumen in a spin echo
    "spermatic cord": Tissue(900, 48, 0.9, 10, 10, 0.1),
    "cartilage": Tissue(1200, 38, 0.9, 90, 15),
    "erectile tissue": Tissue(1500, 130, 0.95, 45, 6, 0.08),
    "seminal vesicle": Tissue(1600, 115, 0.95, 25, 8, 0.35),
}


def spin_echo(tissue: Tissue) -> float:
    """S = PD · (1 − exp(−TR / T1)) · exp(−TE / T2)"""
    return float(tissue.pd * (1 - np.exp(-REPETITION_TIME / tissue.t1)) * np.exp(-ECHO_TIME / tissue.t2))


def draw_tissues(rng: np.random.Generator) -> dict[str, Tissue]:
    """Each tissue as one patient has it, around the table."""
    drawn = {}
    for name, tissue in TISSUES.items():
        t1, t2, pd = np.exp(np.array([0.05, 0.05, 0.02]) * np.clip(rng.standard_normal(3), -2, 2))
        # Half of the published scatter is taken to lie between patients; noise and mottle are the rest.
        hu = tissue.hu + 0.5 * tissue.hu_sd * np.clip(rng.standard_normal(), -2, 2)
        drawn[name] = tissue._replace(t1=tissue.t1 * t1, t2=tissue.t2 * t2, pd=tissue.pd * pd, hu=float(hu))
    # Both zones are one organ: what a patient's prostate has more or less of, they share.
    inner, outer = drawn["transition zone"], TISSUES["peripheral zone"]
    ratio = inner.t2 / TISSUES["transition zone"].t2
    drawn["peripheral zone"] = outer._replace(t1=inner.t1, t2=outer.t2 * ratio, pd=inner.pd, hu=inner.hu)
    return drawn
