"""From a grouped network to its compact form."""

from collections.abc import Sequence

import torch
from torch import Tensor

from filtergroups.compaction.passes import compacted, multiplications
from filtergroups.compaction.recording import record_for_any_size
from filtergroups.compaction.steps import CompactNetwork
from filtergroups.network import GroupedNetwork


def compact(
    network: GroupedNetwork, tasks: Sequence[str] | None = None, *, image_shape: Sequence[int] | None = None
) -> CompactNetwork:
    """The plain network that is left when every kernel is in its most probable group.

    Its outputs are those of `network` at evaluation. tasks: only what these need; None: all. image_shape: channels and
    space to build it for; None: what the backbone was lifted with. Other sizes work where the network's code allows it.
    """
    asked = _asked(network, tasks)
    with network.evaluating("running"):
        recording, varies = record_for_any_size(network, _image(network, image_shape))
    smaller = compacted(recording, asked)
    made = CompactNetwork(smaller.steps, smaller.weights, smaller.outputs)
    made.image_shape, made.varies = recording.shapes[0][1:], varies
    made.multiplications = multiplications(smaller)
    return made.eval()


def _asked(network: GroupedNetwork, tasks: Sequence[str] | None) -> list[str]:
    known = [task.name for task in network.tasks]
    for task in tasks or ():
        if task not in known:
            raise ValueError(f"a task is one of {known}, found {task!r}; choose one of these")
    return [task for task in known if tasks is None or task in tasks]


def _image(network: GroupedNetwork, image_shape: Sequence[int] | None) -> Tensor:
    """Two images to record with; noise, as nothing depends on what they show."""
    shape = network.image_shape if image_shape is None else tuple(image_shape)
    weight = next(network.grouped_layers()).weight
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, *shape, generator=generator).to(weight.device, weight.dtype)
