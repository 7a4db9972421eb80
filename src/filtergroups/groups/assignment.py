"""Which group each kernel belongs to: probabilities, sample, mode, entropy.

Pure functions do the maths; `Assignment` holds the parameters.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from filtergroups.groups.annealing import check_temperature
from filtergroups.groups.routing import Family

Kind = Literal["learned", "constant", "fixed"]
Estimator = Literal["soft", "straight_through", "gumbel_rao"]
Initialisation = Literal["uniform", "shared", "specific", "random", "mask"]

RAO_DRAWS = 16  # conditional noise draws that Gumbel-Rao averages; they cost no network evaluation


def entropy(probabilities: Tensor) -> Tensor:
    """H(p) = −Σ_g p_g log p_g of each row."""
    return -torch.xlogy(probabilities, probabilities).sum(-1)


def gumbel(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise, −log E with E ~ Exp(1), drawn on the generator's device."""
    return -_exponential(like.shape, like, generator).log()


def _exponential(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.empty(shape, dtype=like.dtype, device=generator.device).exponential_(generator=generator)
    # Exp(1) can round to 0 in float32, and −log 0 would be an infinite gate.
    return noise.clamp_min(torch.finfo(like.dtype).tiny).to(like.device)


def soft_gate(
    log_probabilities: Tensor, temperature: float, generator: torch.Generator, noise: float = 1.0
) -> tuple[Tensor, Tensor]:
    """softmax((log p + noise · gumbel) / temperature): with noise 1 the relaxed sample of the paper, with 0 p^(1/τ)."""
    noisy = (log_probabilities + noise * gumbel(log_probabilities, generator)) / temperature
    gate = noisy.softmax(-1)
    return gate, gate


def straight_through_gate(
    log_probabilities: Tensor, temperature: float, generator: torch.Generator, noise: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Hard forward, gradient of the soft gate."""
    soft, _ = soft_gate(log_probabilities, temperature, generator, noise)
    return _hard_forward(one_hot(soft.argmax(-1), soft), soft), soft


def gumbel_rao_gate(
    log_probabilities: Tensor, temperature: float, generator: torch.Generator, noise: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Hard forward, gradient of the soft gate averaged over the noise given the outcome.

    With the outcome D drawn and E ~ Exp(1) anew (Paulus et al., ICLR 2021; rows of p sum to 1):
        noisy_D = −log E_D,   noisy_g = −log(E_g / p_g + E_D)  for g ≠ D.
    This Rao-Blackwellises straight-through: the same mean, a smaller variance.
    """
    if noise != 1.0:
        raise ValueError(f"gumbel_rao is conditioned on full noise, found noise {noise}; use soft or straight_through")
    noisy = log_probabilities.detach() + gumbel(log_probabilities, generator)
    hard = one_hot(noisy.argmax(-1), log_probabilities)
    draws = _exponential((RAO_DRAWS, *log_probabilities.shape), log_probabilities, generator)
    of_outcome = (draws * hard).sum(-1, keepdim=True)
    conditioned = torch.where(
        hard.bool(), -of_outcome.log(), -(draws * (-log_probabilities.detach()).exp() + of_outcome).log()
    )
    # The noise is conditioned − log p, held fixed while log p varies.
    drawn = conditioned - log_probabilities.detach()
    soft = ((log_probabilities + drawn) / temperature).softmax(-1).mean(0)
    return _hard_forward(hard, soft), soft


def one_hot(index: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like, requires_grad=False).scatter(-1, index.unsqueeze(-1), 1.0)


def _hard_forward(hard: Tensor, soft: Tensor) -> Tensor:
    # hard + 0 in the forward pass, exactly: (soft − soft) is 0, never a rounding of (hard − soft) + soft.
    return hard + (soft - soft.detach())


# name -> (gate, the soft gate that carries the gradient)
ESTIMATORS: dict[str, Callable[[Tensor, float, torch.Generator, float], tuple[Tensor, Tensor]]] = {
    "soft": soft_gate,
    "straight_through": straight_through_gate,
    "gumbel_rao": gumbel_rao_gate,
}


def in_proportion(preferences: Tensor, shares: Tensor) -> Tensor:
    """Assign K kernels to groups in these shares (largest remainders), the surest first: K indices.

    preferences: K × G, how much each kernel is for each group.
    """
    kernels = len(preferences)
    wanted = shares / shares.sum() * kernels
    room = wanted.floor().long()
    for group in (wanted - room).argsort(descending=True, stable=True)[: kernels - int(room.sum())].tolist():
        room[group] += 1
    relative = preferences / shares.clamp_min(torch.finfo(preferences.dtype).tiny)
    assigned = torch.full((kernels,), -1)
    for pair in relative.flatten().argsort(descending=True, stable=True).tolist():
        kernel, group = divmod(pair, len(shares))
        if assigned[kernel] < 0 and room[group] > 0:
            assigned[kernel] = group
            room[group] -= 1
    return assigned


def equal_parts(kernels: int, groups: tuple[int, ...]) -> Tensor:
    """Assign kernels to the given groups in equal contiguous parts: K indices, the first parts the larger."""
    return torch.tensor([groups[kernel * len(groups) // kernels] for kernel in range(kernels)], dtype=torch.long)


def initial_probabilities(
    family: Family, kernels: int, scheme: Initialisation, generator: torch.Generator | None = None
) -> Tensor:
    """K × G probabilities to start from, in double precision.

    `uniform`: the same for every group; `shared`: the full set .6, the rest split; `specific`: the full set .1, the
    rest split; `random`: Dirichlet(1, …, 1); `mask`: equal parts at the vertices, at .99 so that a gradient exists.
    """
    groups = len(family)
    if scheme not in get_args(Initialisation):
        raise ValueError(f"an initialisation is one of {list(get_args(Initialisation))}, found {scheme!r}; choose one")
    if groups == 1:
        return torch.ones(kernels, 1, dtype=torch.float64)
    if scheme == "random":
        draws = torch.empty(kernels, groups, dtype=torch.float64).exponential_(generator=generator)
        return draws / draws.sum(-1, keepdim=True)
    if scheme == "mask":
        probabilities = torch.full((kernels, groups), 0.01 / (groups - 1), dtype=torch.float64)
        return probabilities.scatter(1, equal_parts(kernels, tuple(range(groups))).unsqueeze(1), 0.99)
    if scheme == "uniform":
        return torch.full((kernels, groups), 1 / groups, dtype=torch.float64)
    of_full = {"shared": 0.6, "specific": 0.1}[scheme]
    row = torch.full((groups,), (1 - of_full) / (groups - 1), dtype=torch.float64)
    row[family.full] = of_full
    return row.repeat(kernels, 1)


def check_probabilities(family: Family, probabilities: Tensor) -> None:
    if probabilities.ndim != 2 or probabilities.shape[1] != len(family):
        raise ValueError(
            f"probabilities are kernels × {len(family)} groups {list(family.names)}, "
            f"found shape {tuple(probabilities.shape)}; give one column a group"
        )
    if not torch.isfinite(probabilities).all() or (probabilities < 0).any():
        raise ValueError("probabilities are finite and not negative, found one that is not; check the rows")
    off = (probabilities.sum(-1) - 1).abs().max().item() if len(probabilities) else 0.0
    if off > 1e-4:
        raise ValueError(
            f"each row of probabilities sums to 1, found a row that is off by {off:.3g}; divide by the sum"
        )


class Assignment(nn.Module):
    """The grouping of K kernels: p = softplus(ρ) / Σ softplus(ρ), one row a kernel.

    `learned`: ρ is trained and gates are sampled; `constant`: p stays, gates are sampled; `fixed`: p is one-hot and
    nothing is sampled. pooled: ρ = (a part of each kernel) + (a part that all K have in common). What a group is
    worth to a layer shows in the gradients of all its kernels, and hardly in those of one.
    """

    rho: Tensor
    common: Tensor | None

    def __init__(self, family: Family, probabilities: Tensor, kind: Kind = "learned", *, pooled: bool = False) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise ValueError(f"an assignment is one of {list(get_args(Kind))}, found {kind!r}; choose one")
        check_probabilities(family, probabilities)
        if kind == "fixed" and not torch.equal(probabilities, one_hot(probabilities.argmax(-1), probabilities)):
            raise ValueError("a fixed assignment has one-hot rows, found other values; use kind='constant' for those")
        self.family = family
        self.kind: Kind = kind if len(family) > 1 else "fixed"
        if self.kind == "learned":
            self.rho = nn.Parameter(_inverse_softplus(probabilities))
        else:
            self.register_buffer("rho", probabilities.clone())
        common = torch.zeros_like(probabilities[0]) if pooled and self.kind == "learned" else None
        self.register_parameter("common", None if common is None else nn.Parameter(common))

    @property
    def groups(self) -> tuple[str, ...]:
        return self.family.names

    @property
    def kernels(self) -> int:
        return self.rho.shape[0]

    def probabilities(self) -> Tensor:
        """K × G, rows sum to 1."""
        if self.kind != "learned":
            return self.rho
        positive = F.softplus(self._rho())
        return positive / positive.sum(-1, keepdim=True)

    def log_probabilities(self) -> Tensor:
        if self.kind != "learned":
            return self.rho.clamp_min(torch.finfo(self.rho.dtype).tiny).log()
        rho = self._rho()
        positive = F.softplus(rho)
        # Far below 0 softplus(ρ) rounds to 0, and there log softplus(ρ) → ρ.
        log_positive = torch.where(rho < -15, rho, positive.clamp_min(1e-12).log())
        return log_positive - positive.sum(-1, keepdim=True).log()

    def _rho(self) -> Tensor:
        return self.rho if self.common is None else self.rho + self.common

    def entropy(self) -> Tensor:
        """H(p) of each kernel."""
        return entropy(self.probabilities())

    def mode(self) -> Tensor:
        """Each kernel's most probable group: K indices."""
        return self._rho().detach().argmax(-1)

    def by_proportions(self) -> Tensor:
        """K indices: each group gets its part of the kernels by the mean of p, and those that are most sure of it.

        Where kernels are undecided between groups, their modes can be all the same; the mean says how many each wants.
        """
        p = self.probabilities().detach().double().cpu()
        return in_proportion(p, p.mean(0)).to(self.rho.device)

    def fix(self, groups: Tensor | None = None) -> None:
        """Put every kernel in one group for good: the given ones (K indices), or the most probable."""
        groups = self.mode() if groups is None else groups.to(self.rho.device)
        if groups.shape != (self.kernels,) or bool(((groups < 0) | (groups >= len(self.family))).any()):
            raise ValueError(
                f"groups are {self.kernels} indices from 0 to below {len(self.family)}, found {groups.tolist()[:8]}; "
                f"give each kernel one of {list(self.groups)}"
            )
        fixed = one_hot(groups, self.rho.detach())
        del self.rho
        self.common = None
        self.kind = "fixed"
        self.register_buffer("rho", fixed)

    def sample(
        self,
        temperature: float,
        generator: torch.Generator,
        *,
        estimator: Estimator = "soft",
        examples: int | None = None,
        noise: float = 1.0,
    ) -> Tensor:
        """Draw gates: 1 × G × K for the batch, or one for each of `examples`; below noise 1 they are nearer to p."""
        return self.draw(temperature, generator, estimator=estimator, examples=examples, noise=noise)[0]

    def draw(
        self,
        temperature: float,
        generator: torch.Generator,
        *,
        estimator: Estimator = "soft",
        examples: int | None = None,
        noise: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Gates and the soft gates that carry their gradient, both [examples or 1] × G × K."""
        check_temperature(temperature)
        if estimator not in ESTIMATORS:
            raise ValueError(f"an estimator is one of {list(ESTIMATORS)}, found {estimator!r}; choose one")
        if self.kind == "fixed":
            gate = self.rho.t().unsqueeze(0)
            return gate, gate
        log_p = self.log_probabilities().expand(examples or 1, -1, -1)
        gate, soft = ESTIMATORS[estimator](log_p, temperature, generator, noise)
        return gate.transpose(1, 2), soft.transpose(1, 2)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if self.common is not None:  # networks of earlier versions have none
            state_dict.setdefault(f"{prefix}common", torch.zeros_like(self.common))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.kernels} kernels, {self.kind}, groups={list(self.groups)}"


class TiedRows(nn.Module):
    """Some rows of a larger assignment, for a layer whose kernels are added to those of other layers.

    Reads like the `Assignment` of its own kernels; the parameters are the larger one's.
    """

    rows: Tensor

    def __init__(self, base: Assignment, rows: Tensor) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("rows", rows, persistent=False)

    @property
    def family(self) -> Family:
        return self.base.family

    @property
    def kind(self) -> Kind:
        return self.base.kind

    @property
    def groups(self) -> tuple[str, ...]:
        return self.base.groups

    @property
    def kernels(self) -> int:
        return len(self.rows)

    def probabilities(self) -> Tensor:
        return self.base.probabilities()[self.rows]

    def entropy(self) -> Tensor:
        return entropy(self.probabilities())

    def mode(self) -> Tensor:
        return self.base.mode()[self.rows]

    def sample(
        self,
        temperature: float,
        generator: torch.Generator,
        *,
        estimator: Estimator = "soft",
        examples: int | None = None,
        noise: float = 1.0,
    ) -> Tensor:
        gates = self.base.sample(temperature, generator, estimator=estimator, examples=examples, noise=noise)
        return gates[..., self.rows]


def _inverse_softplus(probabilities: Tensor) -> Tensor:
    """ρ with softplus(ρ) = p: log(exp(p) − 1), finite for p = 0."""
    return torch.log(torch.expm1(probabilities.double().clamp_min(1e-12))).to(probabilities.dtype)
