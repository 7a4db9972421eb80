"""Norm statistics over the training data, so that a prediction does not depend on which images share its batch.

The running statistics that training tracks follow weights and gates that have moved on since. Recalibrated ones are
those of the finished network: one set for the mode network, one for sampled gates. They are kept beside the checkpoint.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from filtergroups.checkpoint import read_tensors
from filtergroups.data.examples import DataError, Examples
from filtergroups.data.load import load_data
from filtergroups.groups.norms import GroupedNorm
from filtergroups.groups.processes import alone
from filtergroups.measuring import batches_of
from filtergroups.network import GroupedNetwork
from filtergroups.schedule import generator_for, seed_for
from filtergroups.starting import kept_statistics
from filtergroups.writing import write_atomically

if TYPE_CHECKING:  # the other way round it would be a circle: training makes what a restored run reads
    from filtergroups.restored import Restored

MOST_BATCHES = 64

Kind = Literal["mode", "sampled"]
Buffers = dict[str, Tensor]
Step = Callable[[str, int, int], None]


def tracked_norms(network: nn.Module) -> dict[str, Any]:
    """The norms that keep running statistics, by name."""
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, (GroupedNorm, _NormBase)) and module.running_mean is not None
    }


def running_statistics(network: nn.Module) -> Buffers:
    """The running mean and variance of every norm, by name (the tensors themselves)."""
    return {
        f"{name}.{buffer}": getattr(norm, buffer)
        for name, norm in tracked_norms(network).items()
        for buffer in ("running_mean", "running_var")
    }


def put_statistics(network: nn.Module, statistics: Buffers) -> None:
    """Write running means and variances into a network."""
    for name, buffer in running_statistics(network).items():
        buffer.copy_(statistics[name])


@torch.no_grad()
def recalibrate(
    network: GroupedNetwork,
    batches: Iterable[Tensor],
    *,
    sampled: bool,
    temperature: float = 0.1,
    generator: torch.Generator | None = None,
) -> None:
    """Replace every running mean and variance by its average over batches of images; nothing else changes.

    mean = Σ_b mean_b / B and var = Σ_b var_b / B over B batches, each normalised by its own, as in training: at the
    mode, or sampled, with one draw of the gates a batch.
    """
    norms = tracked_norms(network)
    before = {name: buffer.clone() for name, buffer in running_statistics(network).items()}
    training = {module: module.training for module in network.modules()}
    averaging = {norm: (norm.momentum, norm.num_batches_tracked.clone()) for norm in norms.values()}
    threshold = network.threshold
    device = next(network.parameters()).device
    seen = 0
    network.eval()
    for norm in norms.values():
        norm.train()
        norm.momentum = None  # a cumulative average
        norm.num_batches_tracked.zero_()
    if sampled:
        network.threshold = -1.0  # every pair is computed, even one whose gate is 0: another draw may open it
    try:
        with alone():
            for images in batches:
                images = images.to(device)
                _ = network(images, temperature, generator) if sampled else network(images)
                seen += 1
        if not seen:
            raise ValueError("recalibrating norms needs at least one batch of images, found none")
    except BaseException:
        put_statistics(network, before)
        raise
    finally:
        network.threshold = threshold
        for norm, (momentum, tracked) in averaging.items():
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(tracked)
        for module, mode in training.items():
            module.training = mode


def recalibrated(
    network: GroupedNetwork,
    part: Examples,
    *,
    batch_size: int,
    temperature: float,
    seed: int,
    progress: Step | None = None,
) -> Buffers:
    """Both sets over a training part: `mode/NAME` and, where gates are random, `sampled/NAME`; the network stays."""
    before = {name: buffer.clone() for name, buffer in running_statistics(network).items()}
    kinds: tuple[Kind, ...] = ("mode", "sampled") if network.is_random else ("mode",)
    sets: Buffers = {}
    for kind in kinds:
        gates = generator_for(seed, 0, "statistics/gates")
        batches = _training_batches(part, batch_size, seed, progress)
        recalibrate(network, batches, sampled=kind == "sampled", temperature=temperature, generator=gates)
        sets |= {
            f"{kind}/{name}": buffer.detach().cpu().clone() for name, buffer in running_statistics(network).items()
        }
        put_statistics(network, before)
    return sets


def _training_batches(part: Examples, size: int, seed: int, progress: Step | None) -> Iterator[Tensor]:
    """Whole batches in the order of a fixed shuffle, not augmented."""
    places = torch.Generator().manual_seed(seed_for(seed, 0, "statistics/patches"))
    count = max(min(len(part) // size, MOST_BATCHES), 1)
    for number, indices in enumerate(batches_of(part, size, count * size), start=1):
        yield part.unaugmented(indices, places).images
        if progress is not None:
            progress("recalibrating norms", number, count)


def save_statistics(path: Path, sets: Buffers, step: int) -> None:
    write_atomically(path, save(sets, {"step": str(step)}))


def load_statistics(path: Path, network: GroupedNetwork, step: int) -> Buffers | None:
    """The sets of a checkpoint; None where there are none, or those of another step or network."""
    try:
        metadata, sets = read_tensors(path, below=path.parent)
    except (SafetensorError, OSError, ValueError):
        return None
    if metadata.get("step") != str(step):
        return None
    kinds = ("mode", "sampled") if network.is_random else ("mode",)
    own = {f"{kind}/{name}": b.shape for kind in kinds for name, b in running_statistics(network).items()}
    return sets if {name: buffer.shape for name, buffer in sets.items()} == own else None


def statistics_for(restored: "Restored", kind: Kind, progress: Step | None = None) -> Buffers:
    """A restored run's recalibrated statistics: those kept with it, or made now from its training data and kept."""
    network, config, step = restored.network, restored.config, restored.progress.step
    path = restored.run.statistics(restored.checkpoint)
    sets = load_statistics(path, network, step)
    if sets is None:
        data = load_data(config, constants=restored.progress.constants, parts=("train",), progress=progress)
        if "train" not in data.parts:
            raise DataError("expected examples in the part 'train', found none")
        made = recalibrated(
            network, data.parts["train"], batch_size=config.training.batch_size,
            temperature=restored.temperature, seed=config.seed, progress=progress,
        )  # fmt: skip
        sets = kept_statistics(made, network, config.method)
        with suppress(OSError):  # a run folder that cannot be written to: they are made again the next time
            save_statistics(path, sets, step)
    return {name.removeprefix(f"{kind}/"): buffer for name, buffer in sets.items() if name.startswith(f"{kind}/")}


def use_recalibrated(restored: "Restored", samples: int, progress: Step | None = None) -> str | None:
    """Give a restored network its recalibrated statistics; a line to show where that is impossible."""
    try:
        statistics = statistics_for(restored, "sampled" if restored.passes(samples) else "mode", progress)
    except (ValueError, OSError) as error:
        warning = f"norms use the running statistics of training, not recalibrated ones, which need its data: {error}"
        with suppress(OSError):
            restored.run.log(warning)
        return warning
    put_statistics(restored.network, statistics)
    return None
