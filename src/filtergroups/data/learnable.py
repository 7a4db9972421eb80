"""What of a data set cannot be learned, and what a careful colleague would ask about its labels."""

from collections.abc import Mapping, Sequence

from filtergroups.data.findings import Findings
from filtergroups.data.overview import WIDTH, Labels, Part

USUAL = 10.0  # the mean and spread of what is learned are 0 and 1, give or take this factor


def say_what_cannot_be_learned(
    parts: Mapping[str, Part], batch_size: int, names: Mapping[str, Sequence[str]], findings: Findings
) -> None:
    """Problems of the training part: too few examples, or a task without labels or with one label only."""
    train = parts.get("train")
    if train is None or train.examples < batch_size:
        findings.problem(
            f"expected at least one batch of {batch_size} training examples, found {train.examples if train else 0}; "
            "lower training.batch_size or mend the split"
        )
    for task, labels in train.labels.items() if train else ():
        if not labels.labelled:
            findings.problem(
                f"task '{task}': expected labels in the part 'train', found none; "
                "label some, mend the split, or leave the task out"
            )
        elif not labels.differ:
            same = labels.described(names.get(task, ()), WIDTH) if labels.classes else f"{labels.low:g} in all"
            findings.problem(
                f"task '{task}': expected labels that differ in the part 'train', found one only ({same}); "
                "there is nothing to learn: leave the task out"
            )


def say_what_is_suspicious(
    parts: Mapping[str, Part], chosen_by: str, names: Mapping[str, Sequence[str]], findings: Findings
) -> None:
    """Warnings about labels that a colleague would ask about."""
    if chosen_by not in parts:
        findings.warning(
            f"expected rows in the part '{chosen_by}', found none: training keeps its last network, not its best"
        )
    if "test" not in parts:
        findings.warning("no rows are in the part 'test': `filtergroups evaluate` then needs --split or other data")
    train = parts.get("train")
    for task, labels in train.labels.items() if train else ():
        if chosen_by in parts and not parts[chosen_by].labels[task].labelled:
            findings.warning(
                f"task '{task}' has no label in the part '{chosen_by}': it has no say in which network is best"
            )
        if labels.classes:
            _say_which_classes_are_rare(labels, parts, names.get(task, ()), findings)
        elif labels.differ:
            _say_how_it_is_learned(labels, findings)


def _say_which_classes_are_rare(
    labels: Labels, parts: Mapping[str, Part], names: Sequence[str], findings: Findings
) -> None:
    task = labels.task
    known = max([len(names), *(number + 1 for part in parts.values() for number in part.labels[task.name].classes)])
    absent = [number for number in range(known) if number not in labels.classes]
    for number in absent:
        findings.warning(
            f"every class of task '{task.name}' occurs in the part 'train'",
            found=f"none of {names[number] if number < len(names) else number}",
        )


def _say_how_it_is_learned(labels: Labels, findings: Findings) -> None:
    scale, offset = getattr(labels.task, "scale", 1.0), getattr(labels.task, "offset", 0.0)
    mean, spread = labels.mean / scale + offset, abs(labels.deviation / scale)
    if not 1 / USUAL**2 <= spread <= USUAL or abs(mean) > USUAL:
        good = float(f"{labels.deviation:.3g}") or 1.0
        findings.warning(
            f"task '{labels.task.name}' is learned as label / scale + offset with mean {mean:.3g} and spread "
            f"{spread:.3g}, far from 0 and 1; scale = {good:g}, offset = {-labels.mean / good:.3g} would be better"
        )
