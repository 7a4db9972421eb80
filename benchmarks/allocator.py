"""What it gains that memory stays with the process between training steps (`reproduce --jobs`).

    python benchmarks/allocator.py [--rounds 4] [--steps 25]

Two processes of one thread at once, as in `reproduce --jobs 2`, with glibc's own settings and with ours, in turns. The
ratio is of the medians of the steps; below 1 ours are faster. The last line of the output is one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from filtergroups.reproduction.runner import KEEPING_MEMORY

METHODS = {"hard_sharing": None, "sfg": 0.1}  # and the temperature of its gates


def steps_of(method: str, steps: int) -> list[float]:
    """Seconds of each training step of a small VGG11, after three that warm up."""
    import torch
    from cost import grouped_step, two_tasks

    torch.manual_seed(0)
    _, step = grouped_step(
        torch.randn(32, 3, 64, 64), two_tasks(), method, METHODS[method], width=0.25, threshold=0.01
    )  # fmt: skip
    seconds = []
    for _ in range(steps + 3):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return seconds[3:]


def side_by_side(method: str, steps: int, settings: dict[str, str]) -> list[float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **settings}
    command = [sys.executable, __file__, "--steps", str(steps), "--child", method]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in "ab"]
    return [seconds for process in both for seconds in json.loads(process.communicate()[0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--child", choices=list(METHODS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(steps_of(arguments.child, arguments.steps)))
        return
    ratios = {}
    for method in METHODS:
        found: dict[str, list[float]] = {"glibc": [], "ours": []}
        for _ in range(arguments.rounds):
            found["glibc"] += side_by_side(method, arguments.steps, {})
            found["ours"] += side_by_side(method, arguments.steps, KEEPING_MEMORY)
        medians = {name: statistics.median(seconds) for name, seconds in found.items()}
        ratios[method] = round(medians["ours"] / medians["glibc"], 3)
        shown = ", ".join(f"{name} {median:.3f} s" for name, median in medians.items())
        print(f"{method}: {shown}, ratio {ratios[method]}")
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
