"""The method by its definition, with loops: what the library's three ways to compute are compared with."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import filtergroups as fg

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def chain_outputs(
    network: fg.GroupedNetwork, plain: nn.Sequential, gates: list[Tensor], images: Tensor, *, gate_last: bool = False
) -> dict[str, Tensor]:
    """A chain of (convolution, batch norm, activation): every group computes every kernel.

        merged_g = Σ_{h ⊇ g} F_h,   F_g = activation(gate_g · norm_g(merged_g * M))
    gates: for each layer [batch or 1] × G × K. Norms use the batch's statistics. gate_last: gate_g ·
    activation(norm_g(…)), the same number for a ReLU, but not the same gradient where a hard gate is 0: relu(0 · x)
    has none.
    """
    family = network.family
    lifted = list(network.backbone.children())
    streams = [images if g == family.full else torch.zeros_like(images) for g in range(len(family))]
    for start, gate in zip(range(0, len(plain), 3), gates, strict=True):
        convolution, _, activation = plain[start : start + 3]
        layer, norms = lifted[start], lifted[start + 1]
        new = []
        for g, reader in enumerate(family.sets):
            # The image is read by all; later each group reads the groups that contain it.
            merged = sum(stream for stream, source in zip(streams, family.sets, strict=True) if reader <= source)
            padded, padding = merged, convolution.padding
            if convolution.padding_mode != "zeros":
                mode = convolution.padding_mode
                padded, padding = F.pad(merged, convolution._reversed_padding_repeated_twice, mode=mode), 0
            features = CONVOLUTIONS[images.ndim - 2](
                padded, layer.weight, layer.bias, convolution.stride, padding, convolution.dilation
            )
            features = F.batch_norm(features, None, None, norms.weight[g], norms.bias[g], True)
            gate_g = gate[:, g].reshape(gate.shape[0], -1, *[1] * (images.ndim - 2))
            new.append(gate_g * activation(features) if gate_last else activation(gate_g * features))
        streams = new
    return {
        task.name: network.heads[task.name](
            sum(s for s, group in zip(streams, family.sets, strict=True) if task.name in group)
        )
        for task in network.tasks
    }


def drawn_gates(
    network: fg.GroupedNetwork, temperature: float, generator: torch.Generator, examples: int | None
) -> list:
    """The gates that a pass with this generator draws, layer by layer."""
    return [
        layer.assignment.sample(temperature, generator, estimator=network.estimator, examples=examples)
        for layer in network.grouped_layers()
    ]
