"""See what was learned: one self-contained HTML file from one run or several."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from filtergroups.network import GroupedNetwork
from filtergroups.paths import AnyPath, as_path, optional_path
from filtergroups.reporting.activations import activations_section
from filtergroups.reporting.album import Album
from filtergroups.reporting.architecture import architecture_section, payload
from filtergroups.reporting.calibration import calibration_section, cost_section
from filtergroups.reporting.collect import Record, record_of_network, record_of_run
from filtergroups.reporting.comparison import comparison_section
from filtergroups.reporting.curves import curves, curves_section
from filtergroups.reporting.evidence import Evidence, Step, evidence_for, evidence_of_network
from filtergroups.reporting.html import Html
from filtergroups.reporting.learned import with_network
from filtergroups.reporting.mixing import mixing_section
from filtergroups.reporting.page import assembled
from filtergroups.reporting.predictions import predictions_section
from filtergroups.reporting.probabilities import probabilities_section
from filtergroups.reporting.summary import data_name, network_name, summary_section
from filtergroups.run import RunError
from filtergroups.writing import write_atomically

# Of the 15 MB that a page may have: bytes of probabilities (a third more as text) and of pictures, for all runs.
PROBABILITIES = 3_500_000
PICTURES = 8_000_000


def report(
    runs: AnyPath | GroupedNetwork | Sequence[AnyPath | GroupedNetwork],
    out: AnyPath,
    *,
    data: AnyPath | None = None,
    split: str | None = None,
    examples: int = 12,
    samples: int | None = None,
    images: Tensor | None = None,
    force: bool = False,
    progress: Step | None = None,
) -> Path:
    """Write a report about runs (or networks that other code trained) into one HTML file.

    data: where the data are now, if not where the config says. split: the part that predictions are shown of (None:
    test, else validation).
    examples: how many images in each grid. samples: passes of a prediction (None: as many as the scores that are shown
    first, else those of `evaluate`). images: a batch to show the activations
    of a network that other code trained. force: replace a file that is there.
    """
    given = [runs] if isinstance(runs, str | os.PathLike | GroupedNetwork) else list(runs)
    out, data = as_path(out), optional_path(data)
    if not given:
        raise RunError("expected at least one run, found none; name a run folder")
    if out.exists() and not force:
        raise RunError(f"{out}: expected a new file, found one; use --force or -o")
    records, evidences = [], []
    for number, one in enumerate(given):
        if isinstance(one, GroupedNetwork):
            records.append(record_of_network(one, "network" if len(given) == 1 else f"network {number + 1}"))
            evidences.append(evidence_of_network(one, images))
        else:
            records.append(record_of_run(as_path(one)))
            evidences.append(evidence_for(records[-1], data=data, split=split, samples=samples, progress=progress))
    records = [with_network(record, evidence.network) for record, evidence in zip(records, evidences, strict=True)]
    made = []
    for number, (record, evidence) in enumerate(zip(records, evidences, strict=True)):
        album = Album(PICTURES // len(records))
        sections = sections_of(record, evidence, album, f"r{number}", examples=examples, progress=progress)
        about = {**payload(record, PROBABILITIES // len(records)), "curves": curves(record)}
        made.append((f"r{number}", record, sections, about))
    title, lead = _titles(records)
    comparison = comparison_section(records) if len(records) > 1 else None
    write_atomically(out, assembled(title, lead, comparison, made).encode())
    return out


def sections_of(record: Record, evidence: Evidence, album: Album, key: str, **how: Any) -> list[Html]:
    """The parts about one run, in their order; those that do not apply are left out."""
    parts = [
        summary_section(record, key),
        mixing_section(record, key) if record.stitched else architecture_section(record, key),
        probabilities_section(record, key),
        activations_section(record, evidence, album, key),
        predictions_section(record, evidence, album, key, **how),
        curves_section(record, key),
        calibration_section(record, key),
        cost_section(record, key),
    ]
    return [part for part in parts if part is not None]


def _titles(records: list[Record]) -> tuple[str, str]:
    first = records[0]
    if len(records) > 1:
        methods = list(dict.fromkeys(record.method for record in records))
        return f"{len(records)} runs compared", f"{', '.join(methods)} on {data_name(first.config)[0]}"
    names = first.family.tasks
    together = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) in (2, 3) else f"{len(names)} tasks"
    # What was fixed beforehand tells nothing of what tasks share.
    title = f"What {together} share" if first.kind == "learned" else f"{together}: {first.method}"
    title = f"One task: {names[0]}" if len(names) == 1 else title[0].upper() + title[1:]
    told = ", ".join(text for text in data_name(first.config) if text)
    return title, f"{first.name}: {first.method} on {network_name(first)}, {told}."
