"""What training would say of a config and its data, before hours of it; and what a careful colleague would add.

`check_data` reads everything and lists all; `refuse_untrainable` is what `train` asks before its first step. Both go
through the same functions, so that they never disagree.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from filtergroups.build import build_network
from filtergroups.config import Config, ConfigError, FacesData, PatchData, PhantomData, TableData
from filtergroups.data.cache_folder import with_own_cache
from filtergroups.data.examples import SELECTION, SPLITS, Batch, Data, DataError
from filtergroups.data.findings import Findings
from filtergroups.data.images import Progress
from filtergroups.data.learnable import say_what_cannot_be_learned, say_what_is_suspicious
from filtergroups.data.load import load_data, scans_settings
from filtergroups.data.overview import Part, overview, overview_table
from filtergroups.data.scan_check import examined_scans, is_generated, phantom_to_be
from filtergroups.data.table import say_which_maps_are_left_over
from filtergroups.data.twice import twice
from filtergroups.data.twins import say_what_is_odd
from filtergroups.groups.objective import objective
from filtergroups.groups.processes import alone, world_size
from filtergroups.memory import refuse_too_large, shape_of_patches
from filtergroups.network import GroupedNetwork
from filtergroups.run import RunError
from filtergroups.schedule import noise_at
from filtergroups.starting import take_over
from filtergroups.tasks import ImageRegression, Segmentation
from filtergroups.weighting import TaskWeights


@dataclass(frozen=True)
class Checked:
    """Problems (training would fail or learn nonsense), warnings, and a table of the parts; a line a finding."""

    problems: list[str]
    warnings: list[str]
    table: str

    def __str__(self) -> str:
        lines = [self.table, ""] if self.table else []
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([*lines, f"{_count(self.problems, 'problem')}, {_count(self.warnings, 'warning')}"])


def _count(lines: list[str], what: str) -> str:
    return f"{len(lines) or 'no'} {what}{'' if len(lines) == 1 else 's'}"


def check_data(config: Config, *, progress: Progress | None = None) -> Checked:
    """Read every file and label, try the network on a batch, and say what is wrong; nothing is changed."""
    config = with_own_cache(config)
    findings = Findings()
    parts: dict[str, Part] = {}
    try:
        refuse_too_large(config)
        data, parts = _read(config, findings, progress)
    except (DataError, ConfigError) as error:
        findings.problem(str(error))
        return Checked(findings.problems, findings.warnings, "")
    if parts:
        say_what_cannot_be_learned(parts, config.training.batch_size, data.names, findings)
        say_what_is_suspicious(parts, config.chosen_by, data.names, findings)
    if data.tasks:
        try:
            network = try_network(config, data, _batch(config, data))
            take_over(network, config.method)
        except ValueError as error:  # RunError, CannotLift and the library's own checks
            findings.problem(str(error))
    return Checked(findings.problems, findings.warnings, overview_table(parts, data.names) if parts else "")


def refuse_untrainable(config: Config, data: Data) -> None:
    """What `check_data` calls a problem of data that could be read, as an error."""
    findings = Findings()
    say_what_cannot_be_learned(overview(data, briefly=True), config.training.batch_size, data.names, findings)
    findings.refuse()
    # Two are enough to see whether the network takes them; one is a batch of one, which has no variance.
    try_network(config, data, data.parts["train"].batch(range(min(_share(config), 2))))


def try_network(config: Config, data: Data, batch: Batch) -> GroupedNetwork:
    """Build the network and make one pass as training does: what does not fit is an error here."""
    refuse_uneven(config)
    processes = _processes(config)
    network = build_network(config, data).train()
    weighted = TaskWeights([task.name for task in data.tasks], config.training)
    start = max(config.temperature.start, config.temperature.floor)
    with alone(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            outputs = network(
                batch.images, temperature=start, generator=torch.Generator().manual_seed(0),
                noise=noise_at(0, 1, config.temperature),
            )  # fmt: skip
        except ValueError as error:
            if "more than 1 value per channel" in str(error):  # torch's words: a batch of one pixel has no variance
                raise RunError(
                    f"training.batch_size: expected 2 or more examples on each of {processes} processes, as the "
                    "network's last features have one pixel, found 1; raise it, or the images' size"
                ) from None
            raise
        terms = objective(network, outputs, batch.labels, masks=batch.masks)
        weighted(terms.tasks)
    for name, loss in terms.tasks.items():
        if not math.isfinite(loss.item()):
            raise DataError(f"the loss of task '{name}' is {loss.item()} at the first batch; set its scale and offset")
    return network


def refuse_uneven(config: Config) -> None:
    """Refuse a batch that its processes cannot share evenly: those there are, or those that the config asks for."""
    processes = _processes(config)
    if config.training.batch_size % processes:
        raise RunError(
            f"training.batch_size: expected a multiple of the {processes} processes, found {config.training.batch_size}"
        )


def _processes(config: Config) -> int:
    return max(world_size(), config.training.devices * config.training.nodes)


def _share(config: Config) -> int:
    """How many examples of a batch each process has."""
    return max(config.training.batch_size // _processes(config), 1)


def _batch(config: Config, data: Data) -> Batch:
    """A batch shaped as in training: its first examples, or noise where only whole scans were read."""
    count, part = _share(config), data.parts.get("train")
    if part is not None:
        return part.batch([n % len(part) for n in range(count)])
    space = shape_of_patches(config.data) if isinstance(config.data, PatchData) else (config.data.size,) * 2
    labels: dict[str, Tensor] = {}
    for task in data.tasks:
        shape = (count, *space) if isinstance(task, ImageRegression | Segmentation) else (count,)
        labels[task.name] = torch.zeros(shape, dtype=torch.long if hasattr(task, "classes") else torch.float32)
    return Batch(torch.randn(count, data.channels, *space, generator=torch.Generator().manual_seed(0)), labels)


def _read(config: Config, findings: Findings, progress: Progress | None) -> tuple[Data, dict[str, Part]]:
    """All that there is, with what is wrong with it; of scans only what they hold is kept."""
    if isinstance(config.data, TableData | FacesData):
        data = load_data(config, parts=(*SPLITS, SELECTION), findings=findings, progress=progress)
        say_what_is_odd(config.data, data, findings, progress)
        if isinstance(config.data, TableData):
            say_which_maps_are_left_over(config.data, config.tasks, findings)
        return data, overview(data)
    scans = scans_settings(config.data) if isinstance(config.data, PhantomData) else config.data
    if isinstance(config.data, PhantomData) and not is_generated(config.data):
        findings.warning(f"{config.data.root}: the phantom is not there yet; training generates it")
        return phantom_to_be(scans), {}
    data, parts = examined_scans(scans, config.seed, config.chosen_by, findings, progress)
    if config.data.twice is None:
        return data, parts
    doubled = twice(data, config.data.twice)
    for part in parts.values():
        labels = part.labels[config.data.twice]
        part.labels = {task.name: replace(labels, task=task) for task in doubled.tasks}
    return doubled, parts
