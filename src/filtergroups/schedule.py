"""What depends on the step alone: seeds, temperature, learning rate."""

import hashlib
import math

import torch

from filtergroups.config import Config, TemperatureConfig, TrainingConfig
from filtergroups.groups.annealing import anneal

FASTEST_WITH_BANKS = 0.1  # rate of p: in a few steps nothing is known, and p had better stay undecided
DECIDED = 4.0  # how far ρ can move while it is learned, in units of log p: from undecided to nearly sure


def seed_for(seed: int, step: int, purpose: str) -> int:
    """A seed for each purpose of each step: randomness has no state to save, so that a resumed run is the same run."""
    digest = hashlib.blake2b(f"{seed}/{step}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_for(seed: int, step: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_for(seed, step, purpose))


def temperature_at(step: int, steps: int, config: TemperatureConfig) -> float:
    rate = config.rate
    if rate is None:  # reach the floor at half the steps
        rate = math.log(config.start / config.floor) / max(steps / 2, 1) if config.start > config.floor else 0.0
    return anneal(step, start=max(config.start, config.floor), floor=config.floor, rate=rate)


def noise_at(step: int, steps: int, config: TemperatureConfig) -> float:
    """How much of the noise the gates have: all of it, or, in a warm-up, more as the temperature falls to its floor."""
    if not config.noise_warmup or config.start <= config.floor:
        return 1.0
    return (config.start - temperature_at(step, steps, config)) / (config.start - config.floor)


def probability_factor(config: Config, steps: int) -> float:
    """The learning rate of p as a factor of the weights'; steps: those in which it is learned."""
    given = config.training.probability_factor
    if given is not None:
        return given
    if not config.has_own_banks:
        return 10.0
    # Adam moves ρ by about its rate at a step, and a rate that rises from 0 is half its last value in the mean.
    return min(2 * DECIDED / steps, FASTEST_WITH_BANKS) / config.training.learning_rate


def rising(step: int, steps: int) -> float:
    """p's rate while groups have own banks: slow at first, as kernels learn something before they are told apart."""
    return (step + 1) / steps


def learning_rate_at(step: int, steps: int, config: TrainingConfig) -> float:
    """As a factor of the learning rate: warm-up, then constant or half a cosine."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    share = (step - config.warmup_steps) / max(steps - config.warmup_steps, 1)
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
