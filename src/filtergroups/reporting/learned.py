"""What a record has from the network itself: which kernels are dead, and what cross-stitch units mix."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from filtergroups.groups.liveness import told
from filtergroups.network import GroupedNetwork
from filtergroups.networks.cross_stitch import mean_mixing
from filtergroups.reporting.collect import Record


def with_network(record: Record, network: GroupedNetwork | None) -> Record:
    """A record with what its network tells; without one (nothing is saved yet) it stays as it is."""
    if network is None or record.kind == "constant":  # whose kernels are in no group
        return record
    if record.stitched:
        return replace(record, mixing=tuple(mean_mixing(layer).numpy() for layer in network.grouped_layers()))
    timeline = record.timeline
    known: dict[bytes, NDArray[np.bool_]] = {}  # by what decides it: most steps are like the step before
    dead = []
    for time, probabilities in enumerate(timeline.probabilities):
        key = probabilities.argmax(1).tobytes()
        if key not in known:
            groups = [torch.from_numpy(timeline.of_layer(n, time).argmax(1)) for n in range(len(timeline.layers))]
            known[key] = torch.cat(network.liveness(groups=groups).dead).numpy()
        dead.append(known[key])
    return replace(record, timeline=replace(timeline, dead=tuple(dead)))


def dead_words(record: Record) -> str | None:
    """How many kernels are dead at the end of training; None where none can be, or nothing is known of it."""
    timeline = record.timeline
    if timeline.dead is None:
        return None
    return told(timeline.dead_counts().tolist(), sum(layer.kernels for layer in timeline.layers))
