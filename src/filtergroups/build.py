"""From a config to its network."""

from typing import Any

import torch

from filtergroups.config import Config
from filtergroups.data.examples import Data
from filtergroups.memory import refuse_large_network
from filtergroups.network import GroupedNetwork
from filtergroups.networks.highresnet import highresnet
from filtergroups.networks.vgg import vgg11


def build_network(config: Config, data: Data) -> GroupedNetwork:
    """The network that a config describes, with weights drawn by its seed."""
    refuse_large_network(config)
    method = config.method
    options: dict[str, Any] = {
        "method": method.name,
        "groups": method.groups,
        "init": method.init,
        "estimator": method.estimator,
        "per_example": method.per_example,
        "pooled": method.pooled,
        "own_banks": config.has_own_banks,
        "threshold": method.threshold,
        "width": config.network.width,
        "channels": data.channels,
        "hidden": config.network.hidden,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.network.name == "vgg11":
            return vgg11(data.tasks, extra=config.network.extra, **options)
        return highresnet(data.tasks, spatial_dims=data.spatial_dims, **options)
