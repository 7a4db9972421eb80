"""Do the tasks pull the shared kernels the same way? Their gradients by layer, of trained networks.

    python benchmarks/gradients.py RUN [RUN ...] [--batches 40] [--data DIR --split-file CSV]

For each grouped layer of each run: the cosine between the tasks' mean gradients over training batches, and the length
of the first task's by that of the second, with the weights of the losses that the run was trained with. Where the
cosine is not below 0 the tasks are not in each other's way. `of itself` is the cosine between a task's gradients over
two halves of the batches: near 0, a gradient is mostly chance. The last line of the output is one JSON object.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from filtergroups.data.load import load_data
from filtergroups.evaluation import moved
from filtergroups.groups.objective import objective
from filtergroups.measuring import batches_of
from filtergroups.restored import Restored, open_run
from filtergroups.weighting import TaskWeights

Gradients = dict[str, list[Tensor]]  # by task: of each layer's kernels


def mean_gradients(restored: Restored, batches: int, data: Any) -> list[Gradients]:
    """Each task's mean gradient over either half of the batches; norms are those of the batch, as in training."""
    network, training = restored.network.train(), restored.config.training
    weights = TaskWeights([task.name for task in network.tasks], training).fixed
    layers = [layer.weight for layer in network.grouped_layers()]
    halves: list[Gradients] = [
        {task.name: [torch.zeros_like(w) for w in layers] for task in network.tasks} for _ in "ab"
    ]
    generator = torch.Generator().manual_seed(0)
    for number, indices in enumerate(batches_of(data, training.batch_size, batches * training.batch_size)):
        batch = data.batch(indices)
        outputs = network(batch.images, temperature=restored.temperature, generator=generator)
        terms = objective(network, outputs, batch.labels, masks=batch.masks)
        for name, loss in terms.tasks.items():
            found = torch.autograd.grad(weights[name] * loss, layers, retain_graph=True, allow_unused=True)
            for total, gradient in zip(halves[number % 2][name], found, strict=True):
                if gradient is not None:
                    total += gradient
    return halves


def cosine(one: Tensor, other: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0).item()


def compared(restored: Restored, batches: int, data: Any) -> list[dict[str, Any]]:
    first, second = (task.name for task in restored.network.tasks[:2])
    halves = mean_gradients(restored, batches, data)
    rows = []
    for n, layer in enumerate(restored.network.grouped_layers()):
        whole = {name: halves[0][name][n] + halves[1][name][n] for name in (first, second)}
        rows.append(
            {
                "layer": layer.name,
                "cosine": cosine(whole[first], whole[second]),
                "length": (whole[first].norm() / whole[second].norm()).item(),
                "of_itself": {name: cosine(halves[0][name][n], halves[1][name][n]) for name in (first, second)},
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--data", type=Path, help="where the run's data lie now")
    parser.add_argument("--split-file", type=Path)
    arguments = parser.parse_args()
    results = {}
    for run in arguments.runs:
        restored = open_run(run, "last" if (run / "last.safetensors").exists() else "best")
        config = moved(restored.config, arguments.data, arguments.split_file)
        data = load_data(config, parts=("train",)).parts["train"]
        results[str(run)] = rows = compared(restored, arguments.batches, data)
        first, second = (task.name for task in restored.network.tasks[:2])
        print(f"{run} (step {restored.progress.step}): {first} and {second}")
        for row in rows:
            own = ", ".join(f"{name} {value:+.2f}" for name, value in row["of_itself"].items())
            print(f"  {row['layer']:<24} cosine {row['cosine']:+.2f}  length {row['length']:6.2f}  of itself: {own}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
