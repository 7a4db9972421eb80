"""What a run folder and an exported file say, as models: files may come from somebody else, so each is checked.

Keys that are not named here are of a later version: they are kept, and nothing depends on their kind.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from filtergroups.reading import checked

Count = Annotated[int, Field(ge=0, le=2**53)]
Real = float  # a metric that is not defined is NaN
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=1000)]
Text = Annotated[str, Field(max_length=10_000)]
Passes = Annotated[int, Field(ge=0, le=10**9)]


class Kept(BaseModel):
    """Base of all models here."""

    model_config = ConfigDict(extra="allow")


class Region(Kept):
    """A metric over the patients."""

    mean: Real
    std: Real
    patients: Count


Metric = Real | None | dict[Name, Region | None] | list[Any]
Metrics = dict[Name, dict[Name, Metric]]  # by task and name


class Bin(Kept):
    """Of a reliability diagram."""

    confidence: Annotated[float, Field(ge=0, le=1)]
    accuracy: Annotated[float, Field(ge=0, le=1)]
    count: Count


class CalibrationFound(Kept):
    """How far a task's uncertainty holds."""

    coverage: Real | None = None
    coverage_corrected: Real | None = None
    width: Real | None = None
    width_corrected: Real | None = None
    ece: Real | None = None
    ece_corrected: Real | None = None
    bins: list[Bin] = []


class Result(Kept):
    """An entry of results.json."""

    split: Literal["train", "selection", "validation", "test"]
    samples: Passes
    checkpoint: Name
    step: Count | None = None  # of the checkpoint; None: of an earlier version
    data: Text | None
    statistics: Literal["batch", "running", "recalibrated"] = "recalibrated"
    examples: Count
    tasks: Metrics
    plain: Metrics
    standard_errors: dict[Name, dict[Name, Real | None]] = {}
    calibration: dict[Name, CalibrationFound] = {}
    by: dict[Name, dict[Name, Metrics]] = {}
    notes: list[Text] = []

    @model_validator(mode="after")
    def _compared_with_its_like(self) -> "Result":
        for task, metrics in self.tasks.items():
            for name, value in metrics.items():
                plain = self.plain.get(task, {}).get(name)
                if plain is not None and isinstance(value, dict) != isinstance(plain, dict):
                    raise ValueError(f"the plain answer's {name} of {task} is of another kind than the network's")
        return self


class TrainingEntry(Kept):
    """A line of metrics.jsonl: a step of training."""

    step: Count
    kind: Literal["train"]
    epoch: Count
    losses: dict[Name, Real]
    weights: Real
    entropy: Real | None = None  # only where gates are drawn, as the temperature
    temperature: Real | None = None
    learning_rate: Real
    shared: dict[Name, Real] = {}
    cost: Real | None = None
    expected_cost: Real | None = None
    mode_cost: Real | None = None

    @model_validator(mode="after")
    def _values_are_given(self) -> "TrainingEntry":
        for key in ("entropy", "temperature", "expected_cost", "mode_cost"):
            if key in self.model_fields_set and getattr(self, key) is None:
                raise ValueError(f"{key} is a number")
        return self


class ValidationEntry(Kept):
    """A line of metrics.jsonl: a validation."""

    step: Count
    kind: Literal["validation"]
    results: Metrics
    criteria: dict[Name, Real]
    norms: Literal["batch", "running"] = "batch"
    samples: Passes = 0


class OtherEntry(Kept):
    """A line of metrics.jsonl of a later version."""

    step: Count
    kind: Name


def entry_of(line: str) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    kind = checked(OtherEntry, line).kind
    model = {"train": TrainingEntry, "validation": ValidationEntry}.get(kind, OtherEntry)
    return as_kept(checked(model, line))


class Cost(Kept):
    """What one form of a network takes."""

    name: Text
    parameters: Count
    multiplications: Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
    bytes: Count
    latency_ms: dict[Name, Finite]


class Export(Kept):
    """An entry of export.json."""

    file: Text
    format: Name
    tasks: list[Name]
    rows: list[Cost]


def as_kept(model: BaseModel) -> dict[str, Any]:
    """A checked entry as it was, without the keys that it did not have."""
    return model.model_dump(exclude_unset=True)


class Corrected(Kept):
    """A correction of one task."""

    model_config = ConfigDict(extra="forbid")  # it becomes the arguments of a function

    kind: Literal["scale", "constant", "temperature"]
    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    examples: Count

    @model_validator(mode="after")
    def _can_be_divided_by(self) -> "Corrected":
        if self.kind == "temperature" and not self.value > 0:
            raise ValueError("a temperature is above 0")
        return self


class Corrections(Kept):
    """The content of calibration.json."""

    step: dict[Literal["mode", "sampled"], Count] = {}
    mode: dict[Name, Corrected] = {}
    sampled: dict[Name, Corrected] = {}

    @model_validator(mode="after")
    def _steps_have_corrections(self) -> "Corrections":
        if missing := set(self.step) - self.model_fields_set:
            raise ValueError(f"a step of '{sorted(missing)[0]}', whose corrections are not there")
        return self
