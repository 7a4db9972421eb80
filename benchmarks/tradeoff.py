"""What fewer multiplications do to each task: the same training with and without a cost to reach.

    python benchmarks/tradeoff.py                                    a generated phantom, HighResNet
    python benchmarks/tradeoff.py --data UTKFace --split-file s.csv  faces, VGG11: benchmarks/faces.toml
Each point is a run folder; stop it with Ctrl-C and start it again to go on. Everything is measured on the validation
part with the network of the last step, every kernel in its most probable group. The last line of the output is one JSON
object.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from filtergroups.config import Config, ConfigError
from filtergroups.config_file import dump_config, load_config
from filtergroups.data.examples import DataError
from filtergroups.data.load import load_data
from filtergroups.demo import demo_config
from filtergroups.evaluation import moved
from filtergroups.measuring import JUDGED_BY, measure
from filtergroups.progress import Reporter, reporter
from filtergroups.restored import open_run
from filtergroups.run import Run, RunError
from filtergroups.signals import Stopped
from filtergroups.training import resume, train
from filtergroups.writing import write_atomically

FACES = Path(__file__).parent.parent / "benchmarks" / "faces.toml"
# HighResNet copies its blocks for every stream: there, groups of their own cost more than sharing.
TARGETS = {"vgg11": (0.75, 0.65, 0.55, 0.5), "highresnet": (1.6, 1.4, 1.2, 1.0)}
DONE = "tradeoff.json"

Point = dict[str, Any]


def base_config(arguments: argparse.Namespace) -> Config:
    """The training that all points share; its last part is that of the network at its mode."""
    if arguments.data:
        config = moved(load_config(FACES, arguments.set), arguments.data, arguments.split_file)
    else:
        file = arguments.runs / "base.toml"
        write_atomically(file, dump_config(demo_config(arguments.runs.resolve() / "phantom")).encode())
        config = load_config(file, arguments.set)
    epochs = config.training.epochs
    last = max(config.training.finetune_epochs, min(epochs // 4, epochs - 1))
    return config.model_copy(update={"training": config.training.model_copy(update={"finetune_epochs": last})})


def point(run: Path, config: Config, report: Reporter) -> Point:
    """Train one point, or go on with it, and measure it; a finished one is only read."""
    if (run / "config.toml").exists():
        if Run.open(run).config() != config:
            raise RunError(f"{run}: expected a run of this config, found one of another; choose another --runs")
        if (run / DONE).exists():
            finished: Point = json.loads((run / DONE).read_text())
            return finished
        resume(run, report=report)
    else:
        train(config, run, report=report)
    found = measured(run, config)
    write_atomically(run / DONE, json.dumps(found).encode())
    return found


def measured(run: Path, config: Config) -> Point:
    restored = open_run(run, "last")
    data = load_data(config, constants=restored.progress.constants, parts=("validation",))
    part = data.parts["validation"]
    network = restored.network
    shape = part.batch([0]).images.shape[1:]
    results = measure(network, part, batch_size=config.training.batch_size, samples=0, statistics="running")
    cost = network.multiplications(shape)
    return {
        "multiplications": cost,
        "ratio": cost / network.cost_model(shape).plain,
        "examples": len(part),
        "tasks": {
            task.name: {metric: results[task.name][metric]}
            for task in network.tasks
            for metric in (JUDGED_BY[type(task).__name__][0],)
        },
    }


def columns(points: dict[str, Point]) -> list[tuple[str, str]]:
    first = next(iter(points.values()))
    return [(task, metric) for task, metrics in first["tasks"].items() for metric in metrics]


def table(points: dict[str, Point]) -> str:
    lines = [f"  {'asked for':12} {'cost':>6}" + "".join(f"  {f'{t} {m}':>16}" for t, m in columns(points))]
    for name, found in points.items():
        values = "".join(f"  {found['tasks'][task][metric]:16.4f}" for task, metric in columns(points))
        lines.append(f"  {name:12} {found['ratio']:6.3f}{values}")
    return "\n".join(lines)


def figure(points: dict[str, Point], file: Path) -> None:
    """One panel a task: its metric over the cost of the network."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chosen = columns(points)
    drawn, axes = plt.subplots(1, len(chosen), figsize=(4.2 * len(chosen), 3.4), squeeze=False, layout="constrained")
    for axis, (task, metric) in zip(axes[0], chosen, strict=True):
        for name, found in points.items():
            x, y = found["ratio"], found["tasks"][task][metric]
            axis.plot(x, y, "D" if name == "nothing" else "o", color="#444" if name == "nothing" else "#0b6fa4")
            axis.annotate(name, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
        axis.margins(x=0.15, y=0.15)
        axis.set(xlabel="multiplications / plain network", ylabel=f"{task} {metric}")
        axis.spines[["top", "right"]].set_visible(False)
    drawn.suptitle("cost asked for, reached, and what the tasks make of it (validation, one seed)", fontsize=9)
    drawn.savefig(file, dpi=150)
    plt.close(drawn)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the same network for several costs.")
    parser.add_argument("--data", type=Path, help="a UTKFace folder; without it a phantom is generated")
    parser.add_argument("--split-file", type=Path, help="which face belongs to which part; without it a seeded split")
    parser.add_argument("--runs", type=Path, default=Path("runs/tradeoff"), help="where the runs go")
    parser.add_argument("--targets", type=float, nargs="+", help="costs to ask for, as shares of the plain network's")
    parser.add_argument("--factor", type=float, default=0.3, help="training.cost_factor of the points that ask")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a key")
    return parser.parse_args()


def run_points(arguments: argparse.Namespace) -> dict[str, Point]:
    arguments.runs.mkdir(parents=True, exist_ok=True)
    base = base_config(arguments)
    asked = {"nothing": (0.0, base.training.cost_target)}
    asked |= {f"{target:g}": (arguments.factor, target) for target in arguments.targets or TARGETS[base.network.name]}
    points = {}
    for name, (factor, target) in asked.items():
        training = base.training.model_copy(update={"cost_factor": factor, "cost_target": target})
        report = reporter()
        report.say(f"cost asked for: {name}")
        points[name] = point(arguments.runs / f"cost_{name}", base.model_copy(update={"training": training}), report)
    return points


def main() -> None:
    arguments = parsed()
    try:
        points = run_points(arguments)
    except Stopped as stopped:
        print(f"stopped; start it again to go on ({stopped})", file=sys.stderr)
        sys.exit(stopped.exit_code)
    except (ConfigError, DataError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    figure(points, arguments.runs / "tradeoff.png")
    print(table(points))
    print(f"  figure: {arguments.runs / 'tradeoff.png'}")
    print(json.dumps(points))


if __name__ == "__main__":
    main()
