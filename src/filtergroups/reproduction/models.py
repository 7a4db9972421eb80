"""The best run of each row, small enough to share: weights and what they were made with, nothing of the data."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filtergroups.config_file import PATHS, dump_config
from filtergroups.reproduction.work import OUTCOME, outcome
from filtergroups.run import Run, RunError
from filtergroups.writing import write_atomically

if TYPE_CHECKING:
    from filtergroups.reproduction.planning import Job

KEPT = ("best.safetensors", "statistics-best.safetensors", "metrics.jsonl", OUTCOME)


def keep_models(
    jobs: Sequence["Job"],
    folder: Path,
    data: str | None = None,
    elsewhere: Mapping["Job", dict[str, Any]] | None = None,
) -> list[Path]:
    """Copy each row's best finished run to FOLDER/ROW; the selection set says which is best, never the test.

    data: the data set's name. elsewhere: outcomes that a results file has; where one of a run whose folder is not here
    is the best, the row's model stays.
    """
    kept = []
    for row in dict.fromkeys(job.row for job in jobs):
        done = [job.folder for job in jobs if job.row is row and outcome(job.folder) is not None]
        if not done:
            continue
        others = [of for job, of in (elsewhere or {}).items() if job.row is row and outcome(job.folder) is None]
        theirs = [of["selection"] for of in others if of.get("selection") is not None]
        if len(theirs) < len(others) and (folder / row.name / "best.safetensors").is_file():
            theirs.append(selection_score(folder / row.name))  # of a record without one: the model that it left
        best = min(done, key=selection_score)
        if not theirs or selection_score(best) < min(theirs):
            kept.append(_copy(best, folder / row.name, data))
    return kept


def selection_score(run: Path) -> float:
    """What the best epoch was chosen by: of the tasks' errors, each by that of one answer for everyone, the mean."""
    from filtergroups.checkpoint import load_checkpoint

    progress, _ = load_checkpoint(run / "best.safetensors")
    return progress.best["combined"]


def _copy(run: Path, folder: Path, data: str | None) -> Path:
    if folder.exists():
        if not (folder / "best.safetensors").is_file():
            raise RunError(f"{folder}: expected a kept model or nothing, found other files; choose another --models")
        shutil.rmtree(folder)
    config = Run.open(run).config()
    # Where the data were on the machine that trained is nobody's business: a clone's own data folder is named.
    places = {
        key: Path("../../../data") / (data if key == "root" and data else Path(value).name)
        for key in PATHS
        if (value := getattr(config.data, key, None))
    }
    config = config.model_copy(update={"data": config.data.model_copy(update=places)})
    for name in KEPT:
        if (run / name).is_file():
            write_atomically(folder / name, (run / name).read_bytes())
    for file in sorted((run / "assignments").glob("*.npz")):
        write_atomically(folder / "assignments" / file.name, file.read_bytes())
    write_atomically(folder / "config.toml", dump_config(config).encode())
    return folder
