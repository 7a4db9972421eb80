"""What a training writes down as it goes: metrics, live curves, the history of p, and lines for whoever watches."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from filtergroups.certainty import passes_in_words
from filtergroups.measuring import Results
from filtergroups.network import GroupedNetwork, Statistics
from filtergroups.predictor import NORMS
from filtergroups.progress import Reporter
from filtergroups.run import Run

TERMS = {"weights": "loss/weights", "entropy": "loss/entropy", "temperature": "temperature"}
COSTS = {"cost": "loss/cost", "expected_cost": "cost/expected", "mode_cost": "cost/mode"}


class Journal:
    """One run's notes; writes: is this the process that writes? The others keep silent."""

    def __init__(self, run: Run, report: Reporter, writes: bool) -> None:
        self.run, self.report, self.writes = run, report, writes
        self.curves: Any = None

    def say(self, text: str) -> None:
        if self.writes:
            self.run.log(text)
            self.report.say(text)

    def open(self, steps: int, start: int) -> None:
        """Begin, or go on from a step: curves after it are of a future that did not happen."""
        self.report.start(steps, start)
        if self.writes:
            from torch.utils.tensorboard import SummaryWriter

            self.curves = SummaryWriter(str(self.run.place("tensorboard")), purge_step=start)

    def close(self, steps: int) -> None:
        if self.curves is not None:
            self.curves.close()
        self.report.step(steps, "done")

    def training(self, entry: dict[str, Any]) -> None:
        """A step of training: losses and, where a network has them, temperature, shares and cost."""
        step, losses = entry["step"], entry["losses"]
        if self.writes:
            self.run.record(entry)
            self._draw(step, {f"loss/{name}": loss for name, loss in losses.items()})
            self._draw(step, {tag: entry[name] for name, tag in TERMS.items() if name in entry})
            self._draw(step, {tag: entry[name] for name, tag in COSTS.items() if name in entry})
        about = [f"epoch {entry['epoch'] + 1}"]
        about += [f"{name} {loss:.3f}" for name, loss in losses.items()]
        if "temperature" in entry:
            about.append(f"τ {entry['temperature']:.2f}")
        if "shared" in entry:
            shares = " ".join(f"{share:.2f}"[1:] if share < 1 else "1" for share in entry["shared"].values())
            about.append(f"shared {shares}")
        self.report.step(step, "  ".join(about))

    def validation(
        self, step: int, part: str, results: Results, criteria: dict[str, float], norms: Statistics, samples: int
    ) -> None:
        """How good the network is as it stands; norms, samples: which statistics, and how many passes, that was by."""
        if self.writes:
            how = {"norms": norms, "samples": samples}
            self.run.record({"step": step, "kind": "validation", **how, "results": results, "criteria": criteria})
            self._draw(step, {f"validation/{task}_{name}": value for task, name, value in single(results)})
        shown = ", ".join(f"{task} {name} {value:.4g}" for task, name, value in single(results))
        self.say(f"step {step}: {part} {shown} ({NORMS[norms]}, {passes_in_words(samples)})")

    def snapshot(self, network: GroupedNetwork, step: int) -> None:
        """Keep p of every layer."""
        if not self.writes:
            return
        layers = {
            layer.name: layer.assignment.probabilities().detach().cpu().numpy().astype(np.float16)
            for layer in network.grouped_layers()
        }
        content = io.BytesIO()
        np.savez_compressed(content, **layers)  # type: ignore[arg-type]  # layers are named freely
        self.run.write(f"assignments/step_{step:08d}.npz", content.getvalue())

    def _draw(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self.curves.add_scalar(tag, value, step)


def shared_parts(network: GroupedNetwork) -> dict[str, float]:
    """The share of kernels in the group of all tasks, by layer: the mean of p."""
    full = network.family.full
    return {layer.name: layer.assignment.probabilities()[:, full].mean().item() for layer in network.grouped_layers()}


def single(results: Results) -> list[tuple[str, str, float]]:
    """Task, metric and value of every metric that is one number."""
    return [
        (task, name, value)
        for task, metrics in results.items()
        for name, value in metrics.items()
        if isinstance(value, float)
    ]
