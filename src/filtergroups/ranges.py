"""Numbers of a config: each has a finite range that is checked by type, and said in one line where it is left."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from filtergroups.naming import found_repr

MOST = 1_000_000_000  # of things that are counted: steps, epochs, examples
MOST_CLASSES, MOST_OF_MAPS = 100_000, 256  # a map of labels has 8 bits
MOST_VOXELS = 500_000_000  # of a scan: 2 GB as 32-bit floats
FASTEST = 10.0  # learning rate of p: Adam moves its parameter by about as much at every step, and from -100 on p is 0
LARGEST_SEED = (1 << 63) - 1  # what torch and TOML take
LARGEST = 1e30  # of values in a user's own unit: products with them stay far from what 32-bit floats end at


@dataclass(frozen=True)
class Range:
    """From low to high; above, below: low or high itself is not allowed."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __str__(self) -> str:
        low = f"above {self.low:,}" if self.above else f"at least {self.low:,}"
        high = f"below {self.high:,}" if self.below else f"at most {self.high:,}"
        return f"{low} and {high}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kind = "an integer" if source is int else "a number"
        bounds = {
            "gt" if self.above else "ge": source(self.low),
            "lt" if self.below else "le": source(self.high),
        }
        inner: Any = {**handler(source), **bounds, **({} if source is int else {"allow_inf_nan": False})}

        def within(value: Any, check: core_schema.ValidatorFunctionWrapHandler) -> Any:
            try:
                if isinstance(value, bool):  # which Python counts as 0 and 1
                    raise ValueError("true or false")
                return check(value)
            except (ValidationError, ValueError):
                raise ValueError(f"expected {kind} {self}, found {found_repr(value)}") from None

        return core_schema.no_info_wrap_validator_function(within, inner)


def _divisor(scale: float) -> float:
    if abs(scale) < 1 / LARGEST:
        raise ValueError(f"expected a number other than 0 (at least {1 / LARGEST} in size), found {scale}; change it")
    return scale


Count = Annotated[int, Range(1, MOST)]
CountOrNone = Annotated[int, Range(0, MOST)]
Share = Annotated[float, Range(0, 1, above=True)]
Factor = Annotated[float, Range(0, 10_000)]
Value = Annotated[float, Range(-LARGEST, LARGEST)]
Scale = Annotated[float, Range(-LARGEST, LARGEST), AfterValidator(_divisor)]
Temperature = Annotated[float, Range(0.001, 1000)]
Millimetres = Annotated[float, Range(0.0001, 1000)]
Voxels = Annotated[int, Range(1, 65_536)]
