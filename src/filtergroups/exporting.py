"""Ship a run's network: the compact form of it, in a file that runs anywhere, and what that saves."""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import filtergroups
from filtergroups.compaction.build import compact
from filtergroups.compaction.files import FORMATS, save_compact
from filtergroups.compaction.steps import CompactNetwork
from filtergroups.correction import Correction
from filtergroups.data.examples import DataError
from filtergroups.kept import Export, as_kept
from filtergroups.listing import prepare_output
from filtergroups.paths import AnyPath, as_path, optional_path
from filtergroups.predictor import Predictor, predictor_of
from filtergroups.reading import read_model
from filtergroups.restored import Restored, open_run
from filtergroups.run import Run, RunError
from filtergroups.tasks import Task

BATCHES = (1, 32)  # images at once, for the latency
REPEATS = 9
HIDDEN = ("root", "cache", "split_file")  # folders of whoever trained are nobody's business


@dataclass(frozen=True)
class Cost:
    """What a network takes: numbers to keep, multiplications an image, bytes of a file, milliseconds a batch."""

    name: str
    parameters: int
    multiplications: int
    bytes: int
    latency_ms: dict[str, float]


@dataclass(frozen=True)
class Exported:
    """The file, and what it costs beside the network that it was made from."""

    path: Path
    tasks: list[str]
    rows: list[Cost]
    notes: list[str]


def export(
    run: AnyPath,
    *,
    to: str = "onnx",
    tasks: Sequence[str] | None = None,
    out: AnyPath | None = None,
    checkpoint: str = "best",
    force: bool = False,
    measure: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Exported:
    """Write a run's network at its mode as a small plain one; tasks: only what these need.

    The costs before and after, of all tasks and of each alone, are also kept in the run's export.json.
    """
    if to not in FORMATS:
        raise ValueError(f"--to is one of {list(FORMATS)}, found {to!r}; choose one")
    restored = open_run(as_path(run), checkpoint)
    known = [task.name for task in restored.tasks]
    for task in tasks or ():
        if task not in known:
            raise ValueError(f"--task is one of {known}, found {task!r}; choose one of these")
    asked = [name for name in known if not tasks or name in tasks]
    path = optional_path(out) or restored.run.path / f"{'-'.join(asked) if tasks else 'model'}.{to}"
    prepare_output(path, force)
    predictor = predictor_of(restored, 0, progress=progress)
    notes = list(predictor.notes)
    dead = restored.network.liveness(asked)
    if any(of_layer.any() for of_layer in dead.dead):
        notes.append(f"{dead}; they are left out")
    shape = image_shape(restored)
    small = compact(restored.network, asked, image_shape=shape)
    check_against_mode(restored, small)
    save_compact(small, path, to, about(predictor, asked, small))
    rows = costs(restored, asked, small, path.stat().st_size) if measure else []
    if rows:
        _keep(restored, path, to, asked, rows)
    return Exported(path, asked, rows, notes)


def image_shape(restored: Restored) -> tuple[int, ...]:
    """What the network reads, channels × space: an image, or a padded window of a scan."""
    channels = restored.network.channels
    if restored.scans is None:
        size = int(restored.progress.constants["size"])
        return (channels, size, size)
    padding = restored.windows["padding"]
    return (channels, *(length + 2 * padding for length in restored.windows["window"]))


def about(predictor: Predictor, asked: Sequence[str], small: CompactNetwork) -> dict[str, Any]:
    """What a user of the file needs to know, as JSON values."""
    restored, corrections = predictor.restored, predictor.corrections
    scans = restored.scans
    what: dict[str, Any] = {
        "tasks": [described_task(task, restored.names, corrections) for task in restored.tasks if task.name in asked],
        "kind": "images" if scans is None else "scans",
        "constants": restored.progress.constants,
        "image_shape": list(small.image_shape),
        "varies": list(small.varies),
        "made_by": f"filtergroups {filtergroups.__version__}",
        "method": restored.config.method.name,
        "network": restored.config.network.name,
        "step": restored.progress.step,
    }
    if scans is not None:
        settings = json.loads(scans.model_dump_json())
        what["scans"] = {key: value for key, value in settings.items() if key not in HIDDEN}
        what["windows"] = restored.windows
    return what


def described_task(task: Task, names: Mapping[str, list[str]], corrections: Mapping[str, Correction]) -> dict[str, Any]:
    """A task as JSON values; kind is the class's name."""
    correction = corrections.get(task.name)
    return {
        "kind": type(task).__name__,
        **asdict(task),
        "labels": names.get(task.name),
        "correction": None if correction is None else asdict(correction),
    }


def check_against_mode(restored: Restored, small: CompactNetwork) -> None:
    """The compact network must give what the mode network gives; anything else is not shipped."""
    images = torch.randn(3, *small.image_shape, generator=torch.Generator().manual_seed(1))
    with restored.network.evaluating("running"), torch.no_grad():
        expected, found = restored.network(images), small(images)
    for task, output in found.items():
        difference = ((output - expected[task]).abs().max() / expected[task].abs().max().clamp_min(1)).item()
        if not difference <= 1e-4:
            raise DataError(
                f"expected the compact network to give the mode network's outputs, found a difference of "
                f"{difference:.2g} in task '{task}'; please report this"
            )


def costs(restored: Restored, asked: Sequence[str], small: CompactNetwork, size: int) -> list[Cost]:
    """The network before, the file, and the compact network of each task alone."""
    network = restored.network
    shape = small.image_shape
    parameters = sum(parameter.numel() for parameter in network.parameters())
    before = restored.run.checkpoint(restored.checkpoint).stat().st_size
    rows = [Cost("grouped network at its mode", parameters, network.multiplications(shape), before, {})]
    forms: list[Callable[[Tensor], Any]] = [network, small]
    rows.append(_cost(f"compact, {', '.join(asked)}", small, size))
    for task in asked if len(asked) > 1 else ():
        alone = compact(network, [task], image_shape=shape)
        forms.append(alone)
        rows.append(_cost(f"compact, {task} alone", alone, sum(w.nbytes for w in alone.weights.values())))
    times = {batch: latencies(forms, torch.zeros(batch, *small.image_shape)) for batch in BATCHES}
    return [
        Cost(row.name, row.parameters, row.multiplications, row.bytes, {str(b): times[b][n] for b in BATCHES})
        for n, row in enumerate(rows)
    ]


def _cost(name: str, small: CompactNetwork, size: int) -> Cost:
    parameters = sum(weight.numel() for weight in small.weights.values())
    return Cost(name, parameters, small.multiplications, size, {})


def latencies(forms: Sequence[Callable[[Tensor], Any]], images: Tensor) -> list[float]:
    """Milliseconds of each network for the same images, measured in turns: the median."""
    times: list[list[float]] = [[] for _ in forms]
    with torch.inference_mode():
        for form in forms:
            form(images)
        for _ in range(REPEATS):
            for form, of_form in zip(forms, times, strict=True):
                began = time.perf_counter()
                form(images)
                of_form.append(1000 * (time.perf_counter() - began))
    return [statistics.median(of_form) for of_form in times]


def _keep(restored: Restored, path: Path, to: str, asked: Sequence[str], rows: Sequence[Cost]) -> None:
    """Beside the costs of other files in export.json."""
    entry = {"file": str(path), "format": to, "tasks": list(asked), "rows": [asdict(row) for row in rows]}
    with restored.run.changing():
        try:
            kept = read_exports(restored.run)
        except RunError:  # what cannot be read is replaced
            kept = []
        others = [old for old in kept if old.get("file") != entry["file"]]
        restored.run.write("export.json", json.dumps([*others, entry], indent=1).encode())


def read_exports(run: Run) -> list[dict[str, Any]]:
    """What earlier exports of a run cost."""
    file = run.path / "export.json"
    try:
        found = read_model(list[Export], file, "what `export` writes", RunError, "remove it", below=run.path)
    except FileNotFoundError:
        return []
    return [as_kept(entry) for entry in found]


def costs_table(exported: Exported) -> str:
    """Before and after, as text."""
    from filtergroups.tables import aligned

    if not exported.rows:
        return ""
    header = ("", "parameters", "multiplications", "size", *(f"{b} image{'s' * (b > 1)}" for b in BATCHES))
    first = exported.rows[0]
    lines = [header]
    for row in exported.rows:
        times = [
            f"{row.latency_ms[str(b)]:.2f} ms ({row.latency_ms[str(b)] / first.latency_ms[str(b)]:.0%})"
            for b in BATCHES
        ]
        lines.append((
            row.name, f"{row.parameters:,} ({row.parameters / first.parameters:.0%})",
            f"{row.multiplications / 1e6:.1f} M ({row.multiplications / first.multiplications:.0%})",
            f"{row.bytes / 1e6:.2f} MB ({row.bytes / first.bytes:.0%})", *times,
        ))  # fmt: skip
    return "\n".join(aligned(lines))
