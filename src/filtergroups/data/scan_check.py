"""Scans before they are trained on: every file is read, and nothing is kept but what the parts hold."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from filtergroups.config import PhantomData, ScansData
from filtergroups.data.examples import Data, DataError
from filtergroups.data.findings import Findings
from filtergroups.data.grid import read_grid, read_values
from filtergroups.data.images import Progress
from filtergroups.data.overview import Labels, Part
from filtergroups.data.patients import (
    PatientFiles,
    class_indices,
    label_table,
    patient_files,
    patient_names,
    patients_by_part,
    read_patient_split,
    split_file,
)
from filtergroups.data.phantom import LABEL_NAMES, has_phantom
from filtergroups.data.preprocessing import Preprocessing, refuse_flat
from filtergroups.data.scans import check_settings, misfits, refuse_no_training, tasks_of


def examined_scans(
    config: ScansData, seed: int, chosen_by: str, findings: Findings, progress: Progress | None = None
) -> tuple[Data, dict[str, Part]]:
    """What the parts hold, with what is wrong in the findings; the data have tasks, but no examples.

    Training reads two parts, `train` and the one that its network is chosen by: what is wrong elsewhere is a warning.
    """
    attempt(findings, check_settings, config)
    table = attempt(findings, label_table, config) if config.labels is not None else None
    names = patient_names(config.root)
    _say_who_has_no_part(config, names, findings)
    of_part = attempt(findings, patients_by_part, config, seed, keep=False)
    used = of_part if of_part is not None else {"train": names}
    preprocessing = Preprocessing(config.spacing, config.bias_correction, None, list(table or ()), [])
    wanted = config if table else config.model_copy(update={"labels": None})  # of unnamed labels nothing is known
    tasks = tasks_of(wanted, preprocessing) if wanted.target is not None or table else ()
    parts, done, digests = {}, 0, dict[str, tuple[str, str]]()
    for part, members in used.items():
        labels = {task.name: Labels(task) for task in tasks}
        for name in members:
            say = findings.problem if part in ("train", chosen_by) else findings.warning
            _examine(patient_files(config, name), part, wanted, list(table or ()), labels, digests, findings, say)
            done += 1
            if progress is not None:
                progress("reading scans", done, sum(map(len, used.values())))
        if members:
            parts[part] = Part(len(members), len(members) * config.patches_per_patient, labels)
    if config.histogram and of_part is not None:
        attempt(findings, refuse_no_training, config, of_part["train"])
    class_names = {config.labels_task: list(table.values())} if table else {}
    data = Data(tasks, 1, config.spatial_dims, {}, {}, names=class_names)
    return data, parts if of_part is not None else {}


def attempt(findings: Findings, check: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a check gives, or None and its error among the problems."""
    try:
        return check(*arguments, **options)
    except DataError as error:
        findings.problem(str(error))
        return None


def _say_who_has_no_part(config: ScansData, names: Sequence[str], findings: Findings) -> None:
    path = split_file(config)
    if path is None:
        return
    try:
        split = read_patient_split(path, names, config.root)
    except DataError:  # which is said where the patients are parted
        return
    for name in names:
        if name not in split:
            findings.warning("a patient without a part", name, remedy="not used: add a line", file=str(path))


def _examine(
    patient: PatientFiles,
    part: str,
    config: ScansData,
    label_values: Sequence[int],
    labels: dict[str, Labels],
    digests: dict[str, tuple[str, str]],
    findings: Findings,
    say: Callable[[str], None],
) -> None:
    """Read the files of a patient: headers, values, and what the labels are."""
    said = [str(problem) for problem in misfits(patient)]
    for problem in said:
        say(problem)
    values: dict[str, NDArray[Any]] = {}
    for kind, path in (("input", patient.input), ("target", patient.target), ("labels", patient.labels),
                       ("valid", patient.valid)):  # fmt: skip
        if path is None or not path.is_file():
            continue
        try:
            values[kind] = read_values(path, finite=kind != "target")
            if kind == "input":
                refuse_flat(values[kind], path)
            if kind == "labels" and label_values:
                values[kind] = class_indices(values[kind], label_values, path)
        except DataError as error:
            values.pop(kind, None)
            if str(error) not in said:  # a broken header is met with the values again
                say(str(error))
    if "input" in values:
        _say_what_is_odd(patient, part, config, values["input"], digests, findings)
    if {"target", "valid"} <= values.keys() and values["target"].shape == values["valid"].shape:
        values["target"] = np.where(values["valid"] > 0.5, values["target"], np.float32(np.nan))
    for task, kind in ((config.target_task, "target"), (config.labels_task, "labels")):
        if task in labels and kind in values:
            labels[task].add(torch.from_numpy(np.ascontiguousarray(values[kind]))[None], None)
        elif task in labels:
            labels[task].examples += 1


def _say_what_is_odd(
    patient: PatientFiles,
    part: str,
    config: ScansData,
    values: NDArray[Any],
    digests: dict[str, tuple[str, str]],
    findings: Findings,
) -> None:
    digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    name, other = digests.setdefault(digest, (patient.name, part))
    if name != patient.name:
        remedy = "results there look better than they are" if other != part else ""
        text = "one and the same scan is in two parts" if other != part else "one and the same scan is there twice"
        findings.warning(text, f"{name} ({other}) and {patient.name} ({part})", remedy=remedy)
    shape = read_grid(patient.input, config.spacing).shape
    patch = (config.patch, config.patch, config.patch_depth)[: config.spatial_dims]
    if any(size < wanted for size, wanted in zip(shape, patch, strict=False)):
        findings.warning(
            f"a scan smaller than a patch ({' × '.join(map(str, patch))})", patient.name,
            found=" × ".join(map(str, shape)), remedy="its patches are filled up with zeros",
        )  # fmt: skip


def is_generated(config: PhantomData) -> bool:
    """Is this very phantom in its root? Another one there is refused."""
    return has_phantom(config.root, config.patients, config.seed, shape=config.shape, spacing=config.spacing)


def phantom_to_be(config: ScansData) -> Data:
    """The tasks of a phantom that is yet to be generated."""
    preprocessing = Preprocessing(None, False, None, list(LABEL_NAMES), list(LABEL_NAMES.values()))
    return Data(tasks_of(config, preprocessing), 1, config.spatial_dims, {}, {})
