"""What grouping costs: a training step of grouped VGG11s as ratios to the plain VGG11 of the same run.

    python benchmarks/cost.py [--runs 11]
The last line of the output is one JSON object.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import filtergroups as fg
from filtergroups.networks.vgg import VGG11

WIDTH, SIZE, BATCH = 0.5, 64, 32
REACH = {
    "shared_fixed": 1.10,
    "thirds_fixed": 0.85,
    "relaxed_t1.0": 3.2,
    "relaxed_t0.1": 1.5,
    "relaxed_t0.1_tasks8": 2.5,
    "memory_t1.0": 3.5,
    "import_seconds": 0.3,
}

Step = Callable[[], None]


def plain_step(images: Tensor) -> tuple[nn.Module, Step]:
    """The plain backbone with both tasks' heads: what a user would train without us."""
    backbone = VGG11(3, WIDTH)
    heads = nn.ModuleList([task.head(backbone.features, 0) for task in two_tasks()])
    network = nn.ModuleList([backbone, heads])

    def step() -> None:
        network.zero_grad(set_to_none=True)
        features = backbone(images)
        total_loss([head(features) for head in heads]).backward()

    return network, step


def grouped_step(
    images: Tensor, tasks: list[fg.Regression | fg.Classification], method: str, temperature: float | None,
    *, width: float = WIDTH, threshold: float = 1e-3,
) -> tuple[nn.Module, Step]:  # fmt: skip
    network = fg.vgg11(tasks, width=width, method=method, threshold=threshold)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        network.zero_grad(set_to_none=True)
        total_loss(list(network(images, temperature, generator).values())).backward()

    return network, step


def total_loss(outputs: list[Tensor]) -> Tensor:
    return torch.stack([output.square().mean() for output in outputs]).sum()


def two_tasks() -> list[fg.Regression | fg.Classification]:
    return [fg.Regression("age"), fg.Classification("gender", classes=2)]


def peak_memory(network: nn.Module, step: Step) -> int:
    """Bytes of the parameters and of the most that a step holds at once."""
    step()
    network.zero_grad(set_to_none=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held, peak = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak + sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())


def import_seconds() -> float:
    """Time to import filtergroups beyond torch's own, in a new process; median of five."""
    code = (
        "import torch, time; t = time.perf_counter(); import filtergroups; filtergroups.vgg11; "
        "print(time.perf_counter() - t)"
    )
    return statistics.median(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what grouping costs in training.")
    parser.add_argument("--runs", type=int, default=15, help="interleaved runs, at least 7")
    arguments = parser.parse_args()
    if arguments.runs < 7:
        parser.error(f"--runs is at least 7, found {arguments.runs}")
    torch.set_num_threads(2)
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIZE, SIZE)
    eight = [fg.Regression(f"task{n}") for n in range(8)]
    cases = {
        "plain": plain_step(images),
        "shared_fixed": grouped_step(images, two_tasks(), "hard_sharing", None),
        "thirds_fixed": grouped_step(images, two_tasks(), "constant_mask", None),
        "relaxed_t1.0": grouped_step(images, two_tasks(), "sfg", 1.0),
        "relaxed_t0.1": grouped_step(images, two_tasks(), "sfg", 0.1),
        "relaxed_t0.1_tasks8": grouped_step(images, list(eight), "sfg", 0.1),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for run in range(arguments.runs + 2):
        for name, (_, step) in cases.items():
            start = time.perf_counter()
            step()
            if run >= 2:  # the first ones warm up
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    print(f"VGG11 width {WIDTH}, {SIZE}×{SIZE}, batch {BATCH}, forward + backward, {arguments.runs} interleaved runs")
    for name, taken in times.items():
        print(f"  {name:22} {medians[name] * 1000:7.0f} ms   (fastest {min(taken) * 1000:.0f})")
    ratios = {name: median / medians["plain"] for name, median in medians.items() if name != "plain"}
    ratios["memory_t1.0"] = peak_memory(*cases["relaxed_t1.0"]) / peak_memory(*cases["plain"])
    ratios["import_seconds"] = import_seconds()
    print(f"\n  {'':22} {'measured':>8} {'reach':>8}")
    for name, reach in REACH.items():
        print(f"  {name:22} {ratios[name]:8.3f} {reach:8.2f}  {'' if ratios[name] <= reach else 'not reached'}")
    print(json.dumps({name: round(ratio, 3) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
