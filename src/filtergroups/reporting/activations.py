"""Activations: what the most and the least certain kernels of every group answer to an input."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from filtergroups.groups.layer import GroupedConv
from filtergroups.groups.norms import GroupedNorm, GroupedPReLU
from filtergroups.groups.streams import Streams
from filtergroups.network import GroupedNetwork
from filtergroups.palette import group_colours
from filtergroups.reporting.album import Album, AlbumFull, Pixels, at_most, stretched
from filtergroups.reporting.architecture import shown_groups
from filtergroups.reporting.collect import Record
from filtergroups.reporting.evidence import Evidence, Input, chosen_inputs, upright
from filtergroups.reporting.html import Html, joined, note, section, tag

SIDE = 96  # pixels of the longer side
ACTIVATIONS = (GroupedNorm, GroupedPReLU, nn.modules.activation.ReLU, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.ELU, nn.ReLU6)


@dataclass(frozen=True)
class Chosen:
    """Some kernels of a group in a layer."""

    layer: int
    group: int
    most: list[int]
    least: list[int]
    of: int  # kernels of the group in this layer
    certainty: NDArray[np.float32]  # of all kernels of the layer


@torch.no_grad()
def feature_maps(network: GroupedNetwork, image: Tensor) -> list[Tensor | None]:
    """For each grouped layer kernels × H × W at the mode, after the norm and activation that directly follow.

    None where a layer has no space. Of volumes the middle slice.
    """
    layers = list(network.grouped_layers())
    latest: dict[int, Streams] = {}
    with network.evaluating("running"), _noted(network, layers, latest):
        network(image)
    return [_map(latest[n]) for n in range(len(layers))]


@contextmanager
def _noted(network: GroupedNetwork, layers: list[GroupedConv], latest: dict[int, Streams]) -> Iterator[None]:
    """Keep each layer's output, and follow it through modules that read exactly that output and nothing else."""
    index = {layer: n for n, layer in enumerate(layers)}

    def leave(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if not isinstance(output, Streams):
            return
        if isinstance(module, GroupedConv) and module in index:
            latest[index[module]] = output
            return
        followed = [n for n, streams in latest.items() if arguments and streams is arguments[0]]
        if followed and isinstance(module, ACTIVATIONS):
            latest[followed[-1]] = output

    handles = [module.register_forward_hook(leave) for module in network.backbone.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _map(streams: Streams) -> Tensor | None:
    """At the mode every kernel lives in one stream: put the streams' channels in the kernels' places."""
    if streams.axes < 4:
        return None
    first = streams.parts[0]
    maps = first.new_zeros(streams.pairs.width, *first.shape[2:])
    for part, kernels in zip(streams.parts, streams.pairs.kernels, strict=True):
        maps[kernels.indices()] = part[0]
    return maps[..., maps.shape[-1] // 2] if streams.axes == 5 else maps


def chosen_kernels(record: Record, network: GroupedNetwork, count: int) -> list[list[Chosen]]:
    """By layer and group, the most and the least certain kernels, by their largest probability.

    Dead ones are nobody's. Once fixed, every kernel's probability is 1: then those of the last step before are used.
    """
    timeline = record.timeline
    found = []
    dead = network.liveness().dead
    for n, layer in enumerate(network.grouped_layers()):
        mode = layer.assignment.mode().cpu().numpy()
        if layer.assignment.kind == "fixed" and timeline.fixed_at is not None:
            certainty = timeline.of_layer(n, timeline.learned).max(1)
        else:
            certainty = layer.assignment.probabilities().detach().cpu().float().numpy().max(1)
        of_layer = []
        for group in range(len(record.family)):
            kernels = np.flatnonzero((mode == group) & ~dead[n].numpy())
            ordered = kernels[np.argsort(-certainty[kernels], kind="stable")].tolist()
            least = ordered[count:][-count:][::-1] if record.kind == "learned" else []
            of_layer.append(Chosen(n, group, ordered[:count], least, len(ordered), certainty))
        found.append(of_layer)
    return found


def input_picture(item: Input, evidence: Evidence) -> Pixels:
    """An input as it is looked at."""
    image = item.image[0]
    image = image[..., image.shape[-1] // 2] if image.ndim == 4 else image
    constants = evidence.predictor.restored.progress.constants if evidence.predictor else {}
    if evidence.volumes is not None or image.shape[0] not in (1, 3):
        return stretched(upright(image[0]).numpy() if evidence.volumes is not None else image[0].numpy())
    if "deviation" in constants:
        return unnormalised(image, constants)
    pixels = stretched(image.movedim(0, -1).numpy(), 0.0)
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def unnormalised(image: Tensor, constants: dict[str, Any]) -> Pixels:
    """Channels × H × W as the network takes it, as bytes of the picture that it was."""
    mean, deviation = (torch.tensor(constants[key]).reshape(-1, 1, 1) for key in ("mean", "deviation"))
    pixels = ((image * deviation + mean) * 255).round().clamp(0, 255).to(torch.uint8).movedim(0, -1).numpy()
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def map_picture(values: Tensor, evidence: Evidence) -> Pixels:
    return at_most(stretched((upright(values) if evidence.volumes is not None else values).numpy()), SIDE)


def activations_section(record: Record, evidence: Evidence, album: Album, key: str) -> Html:
    name, title = f"{key}-activations", "What kernels answer to"
    if evidence.problem is not None or evidence.network is None:
        return section(name, title, note(evidence.problem))
    if record.kind == "constant":
        words = (
            "The groups of all kernels are drawn anew at every pass: no kernel belongs to one, so there is no choice."
        )
        return section(name, title, note(words))
    inputs = chosen_inputs(evidence)
    maps = [feature_maps(evidence.network, item.image) for item in inputs]
    choices = chosen_kernels(record, evidence.network, 3 if len(record.family) <= 4 else 2)
    parts: list[Html] = []
    try:
        radios = [_radio(item, evidence, album, key, n) for n, item in enumerate(inputs)]
        parts.append(tag("fieldset", *radios, class_="inputs", data_of=key, aria_label="input"))
        for layer, of_layer in enumerate(choices):
            parts.append(_layer_card(record, evidence, album, key, layer, of_layer, [found[layer] for found in maps]))
    except AlbumFull:
        parts.append(note("More pictures would make this file larger than 15 MB; report this run by itself."))
    whose = "task" if record.stitched else "group"
    certain = (
        "Certainty is the kernel's largest group probability"
        + (", at the last step before groups were fixed." if record.timeline.fixed_at is not None else ".")
        if record.kind == "learned"
        else f"The first of each {whose} are shown: nothing was learned that would choose among them."
    )
    lead = f"Feature maps of some kernels of every {whose}, each scaled to its own range, bright is high. {certain}"
    return section(name, title, tag("p", lead, class_="lead-in"), *parts)


def _radio(item: Input, evidence: Evidence, album: Album, key: str, n: int) -> Html:
    picture = album.png(at_most(input_picture(item, evidence), 110))
    return tag(
        "label",
        tag("input", type="radio", name=f"input-{key}", value=n, checked=n == 0),
        tag("img", src=picture, alt=f"input {item.name}"),
        tag("span", item.name, title=item.name),
    )


def _layer_card(
    record: Record, evidence: Evidence, album: Album, key: str, layer: int, of_layer: list[Chosen], maps: list[Any]
) -> Html:
    about = record.timeline.layers[layer]
    gone = about.kernels - sum(chosen.of for chosen in of_layer)
    counted = f"{about.kernels} kernels" + (f", {gone} dead" if gone else "")
    heading = tag("h4", f"Layer {layer + 1} · {counted}", tag("span", f"  {about.name}", class_="dim"))
    if maps[0] is None:
        return tag("div", heading, note("This layer has no space: its features are numbers, not maps."), class_="card")
    colours, order = group_colours(record.family), shown_groups(record)
    listed = [order.members[group][0] for group in order.order if len(order.members[group]) == 1]
    bodies = []
    for n, of_input in enumerate(maps):
        groups = [
            _group(record, evidence, album, of_layer[group], of_input, colours[group])
            for group in listed
            if of_layer[group].of or (len(listed) <= 4 and not record.stitched)
        ]
        bodies.append(
            tag("div", *groups, class_="maps", data_input_of=key, data_input=str(n), hidden=True if n else None)
        )
    return tag("div", heading, *bodies, class_="card")


def _group(record: Record, evidence: Evidence, album: Album, chosen: Chosen, maps: Tensor, colour: str) -> Html:
    name = record.family.names[chosen.group]

    def certainty(kernel: int, before: str) -> str:
        """Where it was learned; elsewhere there is none to speak of."""
        return f"{before}{chosen.certainty[kernel]:.2f}" if record.kind == "learned" else ""

    def row(label: str, kernels: list[int]) -> Html | None:
        if not kernels:
            return None
        figures = [
            tag(
                "figure",
                tag(
                    "img",
                    src=album.png(map_picture(maps[kernel], evidence), "magma"),
                    alt=f"activation of kernel {kernel} of {name}" + certainty(kernel, ", certainty "),
                ),
                tag("figcaption", f"#{kernel}" + certainty(kernel, " · ")),
            )
            for kernel in kernels
        ]
        return joined(tag("p", label, class_="sub"), tag("div", *figures, class_="row"))

    count = f"{chosen.of or 'no'} kernel{'' if chosen.of == 1 else 's'}"
    return tag(
        "div",
        tag("h4", name, " ", tag("span", count, class_="dim")),
        row("most certain" if record.kind == "learned" else "the first", chosen.most),
        row("least certain", chosen.least),
        class_="group",
        style=f"--c:{colour}",
    )
