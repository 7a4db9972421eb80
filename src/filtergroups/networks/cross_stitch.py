"""Cross-stitch (Misra et al., CVPR 2016): separate networks whose features are mixed channel by channel."""

import torch
from torch import Tensor, nn

from filtergroups.groups.assignment import Assignment
from filtergroups.groups.streams import Layout, Streams


class CrossStitch(nn.Module):
    """A learned T × T mix of the features that the tasks' networks have at the same place.

    mixed_t[i] = Σ_s α[t, s, i] · F_s[i] for the i-th kernel of every task. It acts where a gate would: on what
    the next convolution or head reads. α starts at .9 for a task's own features and .1 split among the others.
    """

    slots: Tensor

    def __init__(self, assignment: Assignment) -> None:
        super().__init__()
        family = assignment.family
        tasks = len(family.tasks)
        self.task_of_group = {group: task for task, group in enumerate(family.specialists)}
        groups = assignment.mode().cpu()
        slots = torch.zeros_like(groups)
        for group in family.specialists:
            slots[groups == group] = torch.arange(int((groups == group).sum()))
        self.register_buffer("slots", slots, persistent=False)
        alpha = torch.full((tasks, tasks), 0.1 / max(tasks - 1, 1)).fill_diagonal_(0.9 if tasks > 1 else 1.0)
        self.alpha = nn.Parameter(alpha.unsqueeze(2).repeat(1, 1, int(slots.max()) + 1))

    def forward(self, streams: Streams, rows: Tensor | None = None) -> Streams:
        pairs = streams.pairs
        device = streams.packed.device
        tasks, slots, partners, paired = self._partners(pairs, rows)
        mixed = torch.zeros_like(streams.packed)
        for source in range(self.alpha.shape[0]):
            mix = self.alpha[tasks.to(device), source, slots.to(device)] * paired[source].to(device, streams.packed.dtype)
            mix = mix.reshape(-1, *[1] * (streams.packed.ndim - 2))
            mixed = mixed + mix * streams.packed.index_select(1, partners[source].to(device))
        return Streams(mixed, pairs, streams.gate, streams.draw)

    def _partners(self, pairs: Layout, rows: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """For every packed channel its task and slot, and for every other task the channel at the same slot."""
        slots = self.slots.cpu() if rows is None else self.slots.cpu()[rows.cpu()]
        slot = slots[pairs.kernels]
        task = torch.tensor([self.task_of_group[int(group)] for group in pairs.groups])
        place = torch.full((self.alpha.shape[0], self.alpha.shape[2]), -1)
        place[task, slot] = torch.arange(pairs.count)
        partners = [place[source, slot] for source in range(self.alpha.shape[0])]
        return task, slot, [p.clamp_min(0) for p in partners], [p >= 0 for p in partners]


class LayerStitch(nn.Module):
    """The stitch of one layer: some rows of a stitch that tied layers share."""

    rows: Tensor | None

    def __init__(self, stitch: CrossStitch, rows: Tensor | None) -> None:
        super().__init__()
        self.stitch = stitch
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, streams: Streams) -> Streams:
        mixed: Streams = self.stitch(streams, self.rows)
        return mixed
