"""Does what a config asks for fit this machine? Asked before anything is allocated."""

import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from filtergroups.config import Config, ConfigError, FacesData, PatchData, TableData, TrainingConfig
from filtergroups.networks.highresnet import HighResNet
from filtergroups.networks.vgg import VGG11

FLOAT = 4  # bytes
COPIES = 4  # of a weight: itself, its gradient and Adam's two moments
KEPT = 2  # of each convolution's output for the way back: as it is, and normalised
PROCESS = 300_000_000  # bytes of a process that has done no more than import torch
THREADS_A_CORE = 16  # some more than cores do no harm; with hundreds a step takes minutes
CGROUP = Path("/sys/fs/cgroup/memory.max")


def machine_memory() -> int | None:
    """Bytes of memory that this machine (or the container) has; None: it does not say."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return None
    try:
        return min(whole, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return whole


def refuse_too_large(config: Config) -> None:
    """Refuse a config whose training needs more than there is, memory by a lower bound of what it needs."""
    _refuse_too_many(config.training)
    have = _memory_of(config)
    weights, activations = _weights(config), _activations(config)
    if have is None or weights + activations <= have:
        return
    network = f"network.width = {config.network.width:g}"
    if config.network.hidden:
        network += f", network.hidden = {config.network.hidden}"
    image = "data.size" if isinstance(config.data, TableData | FacesData) else "data.patch"
    size = config.data.size if isinstance(config.data, TableData | FacesData) else config.data.patch
    lower = network.split(" = ")[0] if weights > activations else f"{image} or training.batch_size"
    raise ConfigError(
        f"{network}, {image} = {size} and training.batch_size = {config.training.batch_size} need at least "
        f"{_gigabytes(weights + activations)} of memory ({_gigabytes(weights)} for weights), "
        f"found {_gigabytes(have)}; lower {lower}"
    )


def _refuse_too_many(training: TrainingConfig) -> None:
    """Refuse threads that the machine has no cores for, and processes that it has no memory for."""
    most, have = THREADS_A_CORE * (os.cpu_count() or 1), machine_memory()
    if training.threads is not None and training.threads > most:
        raise ConfigError(
            f"training.threads: expected at most {most} on this machine ({THREADS_A_CORE} a core), found "
            f"{training.threads}; lower it"
        )
    if training.devices > 1 and have is not None and training.devices * PROCESS > have:
        raise ConfigError(
            f"training.devices = {training.devices}: as many processes need at least "
            f"{_gigabytes(training.devices * PROCESS)} of memory, found {_gigabytes(have)}; lower it"
        )


def refuse_large_network(config: Config) -> None:
    """Refuse a network whose weights alone need more memory than there is."""
    have, needed = _memory_of(config), _weights(config) // COPIES
    if have is not None and needed > have:
        raise ConfigError(
            f"network.width = {config.network.width:g} needs at least {_gigabytes(needed)} of memory for weights, "
            f"found {_gigabytes(have)}; use a machine that has more"
        )


def _memory_of(config: Config) -> int | None:
    cuda = torch.cuda.is_available() and config.training.accelerator in ("auto", "cuda")
    return torch.cuda.get_device_properties(0).total_memory if cuda else machine_memory()


def _plain(config: Config) -> tuple[nn.Module, tuple[int, ...]]:
    """The plain backbone without memory for its weights, and the shape of an image (channels × space)."""
    data = config.data
    with torch.device("meta"):
        space = shape_of_patches(data) if isinstance(data, PatchData) else (data.size, data.size)
        channels = 1 if isinstance(data, PatchData) else data.channels
        if config.network.name == "vgg11":
            return VGG11(channels, config.network.width, config.network.extra), (channels, *space)
        return HighResNet(len(space), channels, config.network.width), (channels, *space)


def shape_of_patches(data: PatchData) -> tuple[int, ...]:
    """Of a training patch with its padding."""
    side, depth = data.patch + 2 * data.padding, data.patch_depth + 2 * data.padding
    return (side, side, depth)[: data.spatial_dims]


def _weights(config: Config) -> int:
    plain, _ = _plain(config)
    count = sum(parameter.numel() for parameter in plain.parameters())
    features = [module for module in plain.modules() if isinstance(module, nn.Conv2d | nn.Conv3d)][-1].out_channels
    count += len(config.task_names) * features * (config.network.hidden or 0)
    return COPIES * FLOAT * count


def _activations(config: Config) -> int:
    """Of one pass over a batch, on one process."""
    plain, shape = _plain(config)
    batch = max(config.training.batch_size // (config.training.devices * config.training.nodes), 1)
    sizes = [batch * torch.Size(shape).numel()]
    for module in plain.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            module.register_forward_hook(lambda _module, _inputs, output: sizes.append(KEPT * output.numel()))
    with suppress(RuntimeError):  # an image that is too small for the network, which trying it says
        plain.eval()(torch.empty(batch, *shape, device="meta"))
    number = FLOAT if config.training.precision == "32-true" else FLOAT // 2
    return number * sum(sizes)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
