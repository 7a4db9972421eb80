"""One run of an experiment: made (or gone on with), measured, and its outcome kept beside it.

A run folder holds job.json (what to do) and, once it is done, outcome.json (the numbers). `python -m
filtergroups.reproduction.work FOLDER` does one in a process of its own.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filtergroups.progress import Reporter, Silent
from filtergroups.reproduction.origin import commit, today
from filtergroups.writing import write_atomically

if TYPE_CHECKING:
    from filtergroups.network import GroupedNetwork

JOB, OUTCOME, TIME = "job.json", "outcome.json", "seconds.json"


def outcome(folder: Path) -> dict[str, Any] | None:
    """The numbers of a finished run; None where it is not finished."""
    path = folder / OUTCOME
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def perform(folder: Path, report: Reporter | None = None) -> dict[str, Any]:
    """Do the job of a folder to its end; what was done before is not done again."""
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    told = report or Silent()
    began = time.monotonic()
    before = spent(folder)
    try:
        if job["maker"] == "training":
            made = _trained(folder, told)
        else:
            from filtergroups.reproduction.makers import MAKERS

            made = MAKERS[job["maker"]](job, told)
    finally:
        # Also of what was stopped: the time of a run is that of all its parts.
        seconds = before + time.monotonic() - began
        write_atomically(folder / TIME, json.dumps(seconds).encode())
    result = {**made, "seconds": seconds, "threads": _threads(), "commit": commit(), "date": today()}
    if job["maker"] == "training":
        result |= _measured(folder, job, told)
    write_atomically(folder / OUTCOME, json.dumps(result, indent=1).encode())
    return result


def spent(folder: Path) -> float:
    path = folder / TIME
    return float(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else 0.0


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _trained(folder: Path, report: Reporter) -> dict[str, Any]:
    from filtergroups.data.load import prepare_data
    from filtergroups.run import Run
    from filtergroups.training import resume

    prepare_data(Run.open(folder).config(), report.preparing)  # the config is the experiment's own
    resume(folder, report=report)  # a folder that holds a config only is begun
    return {}


def _measured(folder: Path, job: dict[str, Any], report: Reporter) -> dict[str, Any]:
    """Scores on the held-out part, and what the network is: its size, its cost and who shares what."""
    from filtergroups.evaluation import evaluate
    from filtergroups.exporting import image_shape
    from filtergroups.reproduction.proportions import proportions
    from filtergroups.restored import open_run

    restored = open_run(folder)
    # As the paper measures sampled passes over images: each has features of its own gates, by which it is normalised.
    of_batch = restored.passes(job["samples"]) and restored.scans is None
    try:
        result = evaluate(
            folder, split=job["split"], samples=job["samples"], progress=report.preparing,
            statistics=job["statistics"] or ("batch" if of_batch else None),
        )  # fmt: skip
    finally:
        report.stop()
    network, shape = restored.network, image_shape(restored)
    return {
        "split": job["split"],
        "samples": result["samples"],
        "statistics": result["statistics"],
        "examples": result["examples"],
        "step": restored.progress.step,
        "selection": restored.progress.best.get("combined"),  # what the epoch was chosen by
        "values": flat(result["tasks"]),
        "plain": flat(result["plain"]),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        # Where p is held constant there is no mode, and every group computes every kernel.
        **(_cost(network, shape) if all(a.kind != "constant" for a in network.assignments()) else {}),
        "proportions": proportions(folder, network),
    }


def _cost(network: "GroupedNetwork", shape: Sequence[int]) -> dict[str, int]:
    return {
        "multiplications": network.multiplications(shape),
        "plain_multiplications": int(network.cost_model(shape).plain),
    }


def flat(tasks: dict[str, Any]) -> dict[str, float]:
    """Scores by `task.metric` or `task.metric.region`; of patients the mean."""
    found: dict[str, float] = {}
    for task, metrics in tasks.items():
        for metric, value in metrics.items():
            if isinstance(value, dict):
                found |= {f"{task}.{metric}.{region}": of["mean"] for region, of in value.items() if of is not None}
            elif isinstance(value, float):
                found[f"{task}.{metric}"] = value
    return found


def main() -> None:
    from filtergroups.progress import Lines
    from filtergroups.signals import Stopped

    try:
        perform(Path(sys.argv[1]), Lines(every=30.0))
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
