"""How the losses of the tasks add up."""

import torch
from torch import Tensor, nn

from filtergroups.config import TrainingConfig
from filtergroups.run import RunError


class TaskWeights(nn.Module):
    """Weights of the tasks' losses: fixed, or learned from their uncertainty (Kendall et al., CVPR 2018)."""

    def __init__(self, names: list[str], config: TrainingConfig) -> None:
        super().__init__()
        if unknown := set(config.task_weights) - set(names):
            raise RunError(
                f"training.task_weights: expected tasks among {names}, found {sorted(unknown)}; mend the config"
            )
        self.fixed = {name: config.task_weights.get(name, 1.0) for name in names}
        self.learned = config.uncertainty_weighting
        if self.learned:
            self.log_variance = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in names})

    def forward(self, losses: dict[str, Tensor]) -> Tensor:
        terms = []
        for name, loss in losses.items():
            weighted = self.fixed[name] * loss
            if self.learned:
                s = self.log_variance[name]
                weighted = torch.exp(-s) * weighted + s / 2
            terms.append(weighted)
        return torch.stack(terms).sum()
