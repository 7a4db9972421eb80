"""The configuration of a run: TOML, checked before anything is done."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from filtergroups import ranges
from filtergroups.baselines import METHODS
from filtergroups.groups.routing import family
from filtergroups.naming import check_name
from filtergroups.ranges import Count, CountOrNone, Factor, Millimetres, Range, Scale, Share, Temperature, Value, Voxels
from filtergroups.tasks import Classification, ImageRegression, Regression, Segmentation, Task

COLUMNS_OF_PREDICTIONS = ("file", "error")  # besides those of the tasks, which may not be called so
SMALLEST_VGG11 = 16  # it halves an image four times


class ConfigError(ValueError):
    """A config that cannot be used: one line naming the key, what was found and what is allowed."""


class Section(BaseModel):
    """A table of the config: unknown keys are errors, values are not changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TaskConfig(Section):
    """One task: what is predicted, and (for tables) the column that holds it."""

    name: str
    kind: Literal["regression", "classification", "segmentation", "image_regression"]
    column: str | None = Field(None, description="column of the table; None: the task's name")
    classes: Annotated[int, Range(2, ranges.MOST_CLASSES)] | None = Field(
        None, description="number of classes; None: as many as labels, or (classification) as are in the data"
    )
    labels: list[str] | None = Field(None, description="names of the classes, in order; None: as found in the data")
    scale: Scale = Field(1.0, description="real values: the network learns label / scale + offset; not 0")
    offset: Value = Field(0.0, description="see scale")
    unit: str = Field("", description="real values: what they are measured in")

    @field_validator("name")
    @classmethod
    def _can_be_a_files_name(cls, name: str) -> str:
        return check_name(name)

    @model_validator(mode="after")
    def _classes_have_names(self) -> "TaskConfig":
        if self.labels is not None and len(set(self.labels)) < max(2, len(self.labels)):
            raise ValueError(f"labels are 2 or more different names, found {self.labels}; mend them or leave them out")
        if self.classes and self.labels is not None and len(self.labels) != self.classes:
            raise ValueError(
                f"labels name every one of the {self.classes} classes, found {len(self.labels)}; mend them"
            )
        if self.kind == "segmentation" and (self.known_classes or 0) > ranges.MOST_OF_MAPS:
            raise ValueError(f"a segmentation has at most {ranges.MOST_OF_MAPS} classes, found {self.known_classes}")
        return self

    @property
    def known_classes(self) -> int | None:
        """How many classes the config says; None: it leaves that to the data."""
        return self.classes or len(self.labels or ()) or None

    def task(self, classes: int | None = None) -> Task:
        """The task itself; classes where the config leaves them to the data."""
        if self.kind == "regression":
            return Regression(self.name, scale=self.scale, offset=self.offset, unit=self.unit)
        if self.kind == "image_regression":
            return ImageRegression(self.name, scale=self.scale, offset=self.offset, unit=self.unit)
        count = self.known_classes or classes
        if count is None:
            raise ConfigError(f"tasks.{self.name}.classes: expected a number of classes, found none; set it")
        if self.kind == "classification":
            return Classification(self.name, classes=count)
        return Segmentation(self.name, classes=count)


class AnyData(Section):
    """What all data have in common."""

    selection: Annotated[float, Range(0, 1, below=True)] = Field(
        0.0,
        description="share of the training part that is set aside to choose the best checkpoint by, so that the "
        "validation part is not looked at; 0: choose by the validation part",
    )
    twice: str | None = Field(None, description="only this task, and the same again as a second one (NAME_again)")


class ImageData(AnyData):
    """What tables and faces have in common."""

    root: Path = Field(description="folder of the images")
    size: Annotated[int, Range(1, 16_384)] = Field(64, description="images are resized to size × size")
    channels: Literal[1, 3] = Field(3, description="1: grey, 3: colour; images are converted")
    flip: bool = Field(False, description="augmentation: mirror images left-right at random")
    shift: Annotated[float, Range(0, 0.5)] = Field(
        0.0, description="augmentation: shift by up to this share of the size"
    )
    on_bad_image: Literal["refuse", "skip"] = Field("refuse", description="what training does with unreadable images")
    cache: Path | None = Field(None, description="folder for decoded images; None: the user's cache folder")


class TableData(ImageData):
    """A CSV or TSV of image paths and label columns."""

    kind: Literal["table"]
    table: Path = Field(description="CSV or TSV file with a header")
    image_column: str = Field("image", description="column of the image paths, below root")
    split_column: str | None = Field(None, description="column with train, validation or test; None: a seeded split")
    group_column: str | None = Field(None, description="rows with the same value stay in one part of the seeded split")
    split_file: Path | None = Field(None, description="CSV file,split; read if it exists, else written")
    part: Literal["train", "validation", "test"] | None = Field(
        None, description="all rows belong to it; None: a split"
    )


class FacesData(ImageData):
    """A UTKFace folder: the labels are in the files' names."""

    kind: Literal["faces"]
    tasks: list[Literal["age", "gender", "race"]] = Field(["age", "gender"], min_length=1)
    split_file: Path | None = Field(None, description="CSV file,split; None: a seeded split")
    fraction: Share = Field(1.0, description="share of the training part that is used")
    labelled: dict[str, Share] = Field(
        default_factory=dict, description="task -> share of the used training images that keep their label of it"
    )

    @model_validator(mode="after")
    def _labelled_tasks_exist(self) -> "FacesData":
        if unknown := sorted(set(self.labelled) - set(self.tasks)):
            raise ValueError(f"labelled names tasks of {self.tasks}, found {unknown[0]!r}")
        return self


class PatchData(AnyData):
    """What scans and the phantom have in common."""

    spatial_dims: Literal[2, 3] = Field(2, description="2: axial patches; 3: volume patches")
    patch: Annotated[int, Range(1, 4096)] = Field(64, description="size of the training patches in pixels")
    patch_depth: Annotated[int, Range(1, 4096)] = Field(16, description="number of slices of 3-D patches")
    padding: Annotated[int, Range(0, 1024)] = Field(4, description="zero padding of patches; the loss is inside only")
    patches_per_patient: Annotated[int, Range(1, 1_000_000)] = Field(
        16, description="training patches of each patient in an epoch"
    )
    zoom: Annotated[float, Range(0, 1, below=True)] = Field(0.1, description="augmentation: scale by 1 ± this")
    rotation: Annotated[float, Range(0, 180)] = Field(10.0, description="augmentation: rotate by ± these degrees")
    cache: Path | None = Field(None, description="folder for prepared scans; None: the user's cache folder")


class ScansData(PatchData):
    """A folder a patient of NIfTI files: one input, a synthesis target and a segmentation, or one of these."""

    kind: Literal["scans"]
    root: Path = Field(description="folder that holds one folder a patient")
    input: str = Field("mr.nii.gz", description="file name of the input in each patient's folder")
    target: str | None = Field("ct.nii.gz", description="file name of the image to synthesise; 'none': no such task")
    labels: str | None = Field("labels.nii.gz", description="file name of the label map; 'none': no such task")
    valid: str | None = Field(None, description="file name of a mask: the synthesis counts where it is 1")
    target_task: str = Field("ct", description="what the synthesis is called")
    labels_task: str = Field("organs", description="what the segmentation is called")
    label_names: dict[str, str] | None = Field(None, description="value -> name; None: labels.json in the root")
    target_scale: Scale = Field(1024.0, description="the network learns target / scale + offset")
    target_offset: Value = Field(1.0, description="see target_scale")
    target_unit: str = Field("", description="what the target is measured in, for example HU")
    split_file: Path | None = Field(None, description="CSV patient,split; None: split.csv in the root, else seeded")
    spacing: Millimetres | None = Field(None, description="resample to this isotropic spacing in mm")
    bias_correction: bool = Field(False, description="N4 bias field correction of the input (SimpleITK)")
    histogram: bool = Field(True, description="histogram normalisation learned on the training part (Nyúl)")
    bone_above: Value | None = Field(None, description="report PSNR where the target is above this, as 'bone'")

    @field_validator("target_task", "labels_task")
    @classmethod
    def _can_be_a_files_name(cls, name: str) -> str:
        return check_name(name)

    @field_validator("target", "labels", "valid", mode="before")
    @classmethod
    def _none_can_be_written(cls, value: Any) -> Any:
        return None if value in ("", "none") else value


class PhantomData(PatchData):
    """The pelvis phantom: generated scans, written to the root once and then read like any others."""

    kind: Literal["phantom"]
    root: Path = Field(description="folder that the scans are written to, or that has them already")
    patients: Annotated[int, Range(1, 100_000)] = Field(
        15, description="men that are generated: two thirds to train on, the rest in two parts"
    )
    seed: Annotated[int, Range(0, ranges.LARGEST_SEED)] = Field(0, description="of the men and their scans")
    shape: tuple[Voxels, Voxels, Voxels] = Field((288, 288, 62), description="voxels: left-right, front-back, up")
    spacing: tuple[Millimetres, Millimetres, Millimetres] = Field(
        (1.46, 1.46, 1.46), description="size of a voxel in mm"
    )

    @field_validator("shape")
    @classmethod
    def _can_be_held(cls, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        if (voxels := math.prod(shape)) > ranges.MOST_VOXELS:
            raise ValueError(f"expected at most {ranges.MOST_VOXELS:,} voxels, found {voxels:,}; make it smaller")
        return shape


DataConfig = Annotated[TableData | FacesData | ScansData | PhantomData, Field(discriminator="kind")]


class NetworkConfig(Section):
    """Which backbone."""

    name: Literal["vgg11", "highresnet"]
    width: Annotated[float, Range(0, 64, above=True)] = Field(1.0, description="factor of the number of kernels")
    extra: Annotated[float, Range(0, 64)] = Field(
        0.0, description="vgg11: further kernels, as a share of the width's; for a task that is added (method.extend)"
    )
    hidden: Annotated[int, Range(0, 65_536)] | None = Field(
        None, description="units of each head's hidden layer; 0: none"
    )


class MethodConfig(Section):
    """How kernels are assigned to groups."""

    name: Literal["one_task", "hard_sharing", "constant_mask", "fixed_mask", "constant_p", "cross_stitch", "sfg"] = (
        "sfg"
    )
    mask_from: Path | None = Field(
        None, description="fixed_mask: the run whose kernels' most probable groups are taken; None: groups at random"
    )
    shuffle: Literal["kernels", "layers"] | None = Field(
        None,
        description="with mask_from, as a control: the run's groups for other kernels of the same layer, or in every "
        "layer the same shares",
    )
    shares: dict[str, Share] | None = Field(
        None,
        description='fixed_mask: the share of every layer\'s kernels that a group gets: { "a+b" = 0.8, c = 0.2 }',
    )
    extend: Path | None = Field(
        None, description="fixed_mask: the run whose kernels are kept as they are, while a task is added to its tasks"
    )
    groups: Literal["tasks+shared", "all_subsets"] | list[list[str]] = Field(
        "tasks+shared",
        description="the sets of tasks that kernels may serve: each alone and all together, every subset, or a list",
    )
    init: Literal["uniform", "shared", "specific", "random", "mask"] = Field(
        "uniform",
        description="where p starts: alike, mostly shared, mostly the tasks' own, at random, or at equal fixed groups",
    )
    pooled: bool = Field(
        True, description="a part of p is common to a layer's kernels, which learn together what a group is worth"
    )
    own_banks: bool | None = Field(
        None,
        description="until the kernels are fixed each group trains a bank of its own, so that groups are compared by "
        "what they can do, not by which came first; None: where they are fixed (training.finetune_epochs)",
    )
    estimator: Literal["soft", "straight_through", "gumbel_rao"] = Field(
        "soft", description="how gates are sampled in training and what gradient p gets from them"
    )
    per_example: bool = Field(
        True, description="one gate per example, not per batch: the gradient of p has less noise, a step takes longer"
    )
    threshold: Annotated[float, Range(0, 0.2, below=True)] = Field(
        1e-3, description="gates below are not computed; 0: exact"
    )


class TemperatureConfig(Section):
    """temperature(step) = max(floor, start · exp(−rate · step))"""

    start: Temperature = Field(1.0, description="at the first step; high: soft gates")
    floor: Temperature = Field(0.1, description="never below; low: gates near 0 and 1")
    rate: Annotated[float, Range(0, 1000)] | None = Field(
        None, description="None: reaches the floor at half the steps; with own banks (and no noise_warmup) it stays"
    )
    noise_warmup: bool = Field(False, description="gates begin at p, and noise comes as the temperature falls")


class TrainingConfig(Section):
    """The loop."""

    epochs: Annotated[int, Range(1, 1_000_000)] = 20
    batch_size: Annotated[int, Range(1, 1_000_000)] = 32
    optimiser: Literal["adam", "adamw"] = "adam"
    learning_rate: Annotated[float, Range(0, 100, above=True)] = Field(
        1e-3, description="Adam moves every weight by about this at a step: from 1 on little is learned"
    )
    weight_decay: Annotated[float, Range(0, 100)] = 0.0
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="of the learning rate; cosine: half a wave to 0"
    )
    warmup_steps: CountOrNone = Field(0, description="steps in which the learning rate rises from 0")
    probability_factor: Annotated[float, Range(0, 10_000, above=True)] | None = Field(
        None,
        description="learning rate of p, times that of weights (together at most 10); with own banks it rises from 0 "
        "to that; None: 10, with own banks what lets p come from undecided to sure in the steps that there are",
    )
    weight_factor: Factor = Field(1e-6, description="λ1 of eq. 5")
    entropy_factor: Factor = Field(1e-5, description="λ2 of eq. 5")
    cost_factor: Factor = Field(0.0, description="how strongly to ask for fewer multiplications; 0: do not")
    cost_target: Annotated[float, Range(0, 100)] = Field(
        0.5, description="multiplications asked for, as a share of the plain network's"
    )
    clip_norm: Annotated[float, Range(0, 1e9)] = Field(0.0, description="clip the gradient's norm; 0: do not")
    task_weights: dict[str, Annotated[float, Range(0, 1_000_000)]] = Field(
        default_factory=dict, description="task -> factor of its loss; 1 where it is not named"
    )
    uncertainty_weighting: bool = Field(False, description="learn the tasks' weights (Kendall et al.)")
    finetune_epochs: CountOrNone = Field(0, description="the last epochs, with every kernel fixed in one group")
    rewind: bool = Field(
        False, description="at the start of finetune_epochs the weights and their schedule begin anew; the groups stay"
    )
    validate_every: CountOrNone = Field(0, description="steps; 0: after each epoch")
    validate_examples: CountOrNone = Field(0, description="how many to validate on; 0: all")
    checkpoint_every: Count = Field(200, description="steps between checkpoints")
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto: a GPU where there is one")
    devices: Annotated[int, Range(1, 1024)] = Field(1, description="processes on this machine, a device each")
    nodes: Annotated[int, Range(1, 65_536)] = Field(1, description="machines")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = Field("32-true", description="of the network's numbers")
    threads: Annotated[int, Range(1, 1024)] | None = Field(None, description="CPU threads; None: torch's default")

    @model_validator(mode="after")
    def _phases_fit(self) -> "TrainingConfig":
        if self.finetune_epochs >= self.epochs:
            raise ValueError(f"finetune_epochs is below epochs ({self.epochs}), found {self.finetune_epochs}; set both")
        if self.probability_factor is not None and self.learning_rate * self.probability_factor > ranges.FASTEST:
            raise ValueError(
                f"learning_rate × probability_factor, the learning rate of p, is at most {ranges.FASTEST:,.0f}, "
                f"found {self.learning_rate * self.probability_factor:,g}; lower one of them"
            )
        if self.rewind and not self.finetune_epochs:
            raise ValueError("rewind begins anew where finetune_epochs begin, found none; set finetune_epochs")
        return self


class Config(Section):
    """Everything that a run is made from."""

    seed: Annotated[int, Range(-ranges.LARGEST_SEED, ranges.LARGEST_SEED)] = 0
    data: DataConfig
    tasks: list[TaskConfig] = Field(default_factory=list, description="for tables: what to predict")
    network: NetworkConfig
    method: MethodConfig = MethodConfig()
    temperature: TemperatureConfig = TemperatureConfig()
    training: TrainingConfig = TrainingConfig()

    @property
    def has_own_banks(self) -> bool:
        """Does each group train kernels of its own until the kernels are fixed?"""
        learned = METHODS[self.method.name].kind == "learned" and self.training.finetune_epochs > 0
        return learned and self.method.own_banks is not False

    @property
    def annealing(self) -> TemperatureConfig:
        """How gates get harder; not where groups have own banks, so that those that are behind go on learning."""
        if self.temperature.rate is None and self.has_own_banks and not self.temperature.noise_warmup:
            return self.temperature.model_copy(update={"rate": 0.0})
        return self.temperature

    @property
    def chosen_by(self) -> str:
        """The part that training chooses its best checkpoint by."""
        return "selection" if self.data.selection else "validation"

    @property
    def task_names(self) -> list[str]:
        """What is predicted."""
        if isinstance(self.data, FacesData):
            return list(self.data.tasks)
        if isinstance(self.data, ScansData):
            has = {self.data.target_task: self.data.target, self.data.labels_task: self.data.labels}
            return [name for name, file in has.items() if file is not None]
        return [task.name for task in self.tasks]

    @field_validator("tasks")
    @classmethod
    def _names_are_unique(cls, tasks: list[TaskConfig]) -> list[TaskConfig]:
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            raise ValueError(f"task names are unique, found {names}")
        if taken := sorted(set(COLUMNS_OF_PREDICTIONS) & set(names)):
            raise ValueError(f"{taken[0]!r} is a column of every table of predictions; give the task another name")
        return tasks

    @model_validator(mode="after")
    def _fits_together(self) -> "Config":
        if self.data.kind == "table" and not self.tasks:
            raise ValueError("a table needs at least one [[tasks]] entry, found none")
        if self.data.kind != "table" and self.tasks:
            raise ValueError(f"[[tasks]] are for data.kind = 'table'; '{self.data.kind}' has its own, remove them")
        self._groups_fit()
        if self.network.name == "vgg11" and self.data.kind in ("table", "faces") and self.data.size < SMALLEST_VGG11:
            raise ValueError(f"data.size is {SMALLEST_VGG11} or more for vgg11, found {self.data.size}; enlarge it")
        for key in ("mask_from", "shuffle", "shares", "extend"):
            if getattr(self.method, key) is not None and self.method.name != "fixed_mask":
                raise ValueError(f"method.{key} is for the method 'fixed_mask', found '{self.method.name}'; remove it")
        if self.method.own_banks and METHODS[self.method.name].kind == "learned" and not self.has_own_banks:
            raise ValueError(
                "method.own_banks is for groups that are learned first and then fixed, found no "
                "training.finetune_epochs; set those, or own_banks = false"
            )
        if self.method.extend is not None and self.training.weight_decay:
            raise ValueError("training.weight_decay would change kernels that method.extend keeps; set it to 0")
        if self.temperature.noise_warmup and self.method.estimator == "gumbel_rao":
            raise ValueError(
                "temperature.noise_warmup is for soft and straight_through, found gumbel_rao; set it to false"
            )
        if self.network.extra and self.network.name != "vgg11":
            raise ValueError(f"network.extra is for vgg11, found {self.network.name}; set it to 0")
        if self.training.cost_factor and METHODS[self.method.name].kind != "learned":
            raise ValueError(
                "training.cost_factor is for a method that learns its groups ('sfg'), "
                f"found method.name = '{self.method.name}'; set it to 0"
            )
        return self

    def _groups_fit(self) -> None:
        names = self.task_names
        if not names or self.data.twice is not None:  # the data say which tasks there are
            return
        groups = family(names, self.method.groups)
        if self.method.shares is not None and (unknown := sorted(set(self.method.shares) - set(groups.names))):
            raise ValueError(f"method.shares names groups of {list(groups.names)}, found {unknown[0]!r}")
        if self.method.threshold * len(groups) >= 1:
            raise ValueError(
                f"method.threshold is below 1 / {len(groups)}, so that every kernel keeps one of its {len(groups)} "
                f"groups, found {self.method.threshold}; lower it"
            )
