"""A few steps of training in one process or in several, for the law that both make the same network."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import filtergroups as fg
from filtergroups.groups.processes import batch_of_all, rank, rows_of_this_process, world_size

STEPS = 5
# estimator, a gate an example, temperature, share of the noise
CASES = [
    (estimator, per_example, temperature, noise)
    for estimator in ("soft", "straight_through", "gumbel_rao")
    for per_example in (False, True)
    for temperature, noise in ((1.0, 1.0), (0.1, 1.0), (0.3, 0.5))
    if estimator != "gumbel_rao" or noise == 1.0
]


def name_of(case):
    estimator, per_example, temperature, noise = case
    return f"{estimator}-{'example' if per_example else 'batch'}-{temperature}-{noise}"


def trained(case, batch=8):
    """The network after some steps, and its losses; in double precision."""
    estimator, per_example, temperature, noise = case
    torch.manual_seed(0)
    tasks = [fg.Regression("age"), fg.Classification("gender", classes=2)]
    # A high threshold: by the examples of one process alone, each would compute other pairs.
    network = fg.vgg11(
        tasks, width=0.0625, hidden=4, estimator=estimator, per_example=per_example,
        threshold=0.3 if temperature == 0.1 else 1e-3)  # fmt: skip
    network.double()
    model = DistributedDataParallel(network, find_unused_parameters=True) if world_size() > 1 else network
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        of_data, of_gates = (torch.Generator().manual_seed(10 * step + n) for n in range(2))
        images = torch.randn(batch, 3, 16, 16, generator=of_data, dtype=torch.float64)
        labels = {
            "age": torch.rand(batch, generator=of_data, dtype=torch.float64),
            "gender": torch.randint(0, 2, (batch,), generator=of_data),
        }
        mine = images[rows_of_this_process(batch // world_size())]
        outputs = model(mine, temperature=temperature, generator=of_gates, noise=noise)
        terms = fg.objective(network, {name: batch_of_all(output) for name, output in outputs.items()}, labels)
        optimiser.zero_grad()
        terms.total.backward()
        optimiser.step()
        losses.append(terms.total.detach())
    return {**network.state_dict(), "losses": torch.stack(losses)}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    states = {name_of(case): trained(case) for case in CASES}
    if rank() == 0:
        torch.save(states, Path(sys.argv[1]))
    dist.barrier()
    dist.destroy_process_group()
