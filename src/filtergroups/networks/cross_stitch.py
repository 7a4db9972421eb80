"""Cross-stitch (Misra et al., CVPR 2016): separate networks whose features are mixed channel by channel."""

import torch
from torch import Tensor, nn

from filtergroups.groups.assignment import Assignment
from filtergroups.groups.layer import GroupedConv
from filtergroups.groups.streams import Streams, over_space


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
        slots = self.slots if rows is None else self.slots[rows]
        pairs = streams.pairs
        of_stream = [run.take(slots, 0) for run in pairs.kernels]
        mixed = [self._mixed(streams, self.task_of_group[group], of_stream, n) for n, group in enumerate(pairs.groups)]
        return Streams(mixed, pairs, streams.gates, streams.draw)

    def _mixed(self, streams: Streams, task: int, slots: list[Tensor], n: int) -> Tensor:
        """Σ over the tasks of α · their features at this stream's slots; a task without such a slot adds nothing."""
        total: Tensor | None = None
        for m, (group, part) in enumerate(zip(streams.pairs.groups, streams.parts, strict=True)):
            alpha = self.alpha[task, self.task_of_group[group]][slots[m]]
            term = over_space(alpha[None], part) * part
            if slots[m].shape != slots[n].shape or not torch.equal(slots[m], slots[n]):
                place = torch.full((self.alpha.shape[2],), -1, device=part.device)
                place[slots[m]] = torch.arange(len(slots[m]), device=part.device)
                found = place[slots[n]]
                term = term.index_select(1, found.clamp_min(0)) * over_space((found >= 0)[None], part)
            total = term if total is None else total + term
        assert total is not None
        return total


class LayerStitch(nn.Module):
    """The stitch of one layer: some rows of a stitch that tied layers share."""

    rows: Tensor | None

    def __init__(self, stitch: CrossStitch, rows: Tensor | None) -> None:
        super().__init__()
        self.stitch = stitch
        self.register_buffer("rows", rows, persistent=False)

    @property
    def slots(self) -> Tensor:
        """For each kernel of the layer its place among those of its task."""
        slots = self.stitch.slots
        return (slots if self.rows is None else slots[self.rows]).cpu()

    def forward(self, streams: Streams) -> Streams:
        mixed: Streams = self.stitch(streams, self.rows)
        return mixed


@torch.no_grad()
def mean_mixing(layer: GroupedConv) -> Tensor:
    """T × T: how much of task s (column) the features of task t (row) hold after a layer, the mean over its slots.

    Only over slots that both tasks have: the rest of α mixes nothing.
    """
    stitch = layer.stitch
    assert isinstance(stitch, LayerStitch)
    tasks = stitch.stitch.task_of_group
    mode, slots = layer.assignment.mode().cpu(), stitch.slots
    of_task = {task: set(slots[mode == group].tolist()) for group, task in tasks.items()}
    alpha = stitch.stitch.alpha.detach().cpu()
    means = torch.full(alpha.shape[:2], torch.nan)
    for t in of_task:
        for s in of_task:
            if both := sorted(of_task[t] & of_task[s]):
                means[t, s] = alpha[t, s, both].mean()
    return means
