"""Temperature as a function of the step."""

import math


def anneal(step: int, *, start: float = 1.0, floor: float = 0.1, rate: float = 1e-5) -> float:
    """Temperature of the relaxed gates: max(floor, start · exp(−rate · step)).

    The defaults are the paper's, which trains for 10^5 steps; a short run needs a larger rate.
    """
    if floor <= 0 or start < floor or rate < 0:
        raise ValueError(
            f"annealing needs 0 < floor <= start and rate >= 0, found start={start}, floor={floor}, rate={rate}"
        )
    return max(floor, start * math.exp(-rate * step))


def check_temperature(temperature: float) -> None:
    if not temperature > 0 or math.isinf(temperature):
        raise ValueError(f"a temperature is a finite number above 0, found {temperature}; use anneal(step) or 0.1")
