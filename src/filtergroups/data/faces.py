"""UTKFace as users have it: a folder of images whose names are the labels."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from filtergroups.config import FacesData
from filtergroups.data.decoding import read_content
from filtergroups.data.examples import SELECTION, SPLITS, Data, DataError
from filtergroups.data.findings import Findings
from filtergroups.data.image_cache import decoded
from filtergroups.data.images import Progress, image_data
from filtergroups.data.splits import read_split, seeded_split, with_selection
from filtergroups.tasks import Classification, Regression, Task

RACES = ["White", "Black", "Asian", "Indian", "Others"]
TASKS: dict[str, Task] = {
    "age": Regression("age", scale=100.0, unit="years"),  # the paper divides ages by 100
    "gender": Classification("gender", classes=2),
    "race": Classification("race", classes=5),
}
CLASS_NAMES = {"gender": ["male", "female"], "race": RACES}
SUFFIXES = {".jpg", ".jpeg", ".png"}


@dataclass(frozen=True)
class Face:
    """The labels in a file's name; None where a field is missing or impossible."""

    age: int | None
    gender: int | None
    race: int | None


def parse_name(name: str) -> Face | None:
    """[age]_[gender]_[race]_[date].jpg; None where the name holds no age. Extra spaces and short dates are accepted."""
    fields = [field.strip() for field in name.split("_")]
    age = _number(fields[0], 0, 130)
    if age is None or len(fields) < 2:
        return None
    gender = _number(fields[1], 0, 1)
    race = _number(fields[2], 0, 4) if len(fields) > 3 else None
    if len(fields) == 3 and gender is None:  # the gender is missing, and what stands in its place is the race
        race = _number(fields[1], 0, 4)
    return Face(age, gender, race)


def _number(text: str, low: int, high: int) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and low <= int(text) <= high else None


def face_files(root: Path) -> tuple[list[Path], list[str]]:
    """The images below the root in order, and what else lies there."""
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder of face images, found {'a file' if root.exists() else 'nothing'}")
    files, others = [], []
    for path in sorted(root.rglob("*")):
        if path.is_dir() or path.name.startswith("."):
            continue
        if path.suffix.lower() in SUFFIXES and parse_name(path.name) is not None:
            files.append(path)
        else:
            others.append(str(path.relative_to(root)))
    if not files:
        raise DataError(f"{root}: expected images named [age]_[gender]_[race]_[date].jpg, found none; check the folder")
    return files, others


def load_faces(
    config: FacesData,
    *,
    seed: int = 0,
    constants: dict[str, Any] | None = None,
    parts: Sequence[str] = SPLITS,
    progress: Progress | None = None,
    findings: Findings | None = None,
) -> Data:
    """The images and labels of a folder; with findings what is wrong goes there, and nothing is refused."""
    found = Findings() if findings is None else findings
    files, others = face_files(config.root)
    names = [str(path.relative_to(config.root)) for path in files]
    split = _split(config, files, names, seed)
    _say_what_is_left_out(config, files, others, split, found)
    if config.selection and {"train", SELECTION} & set(parts):
        split = with_selection(split, config.selection, seed, _twins(files, names, split))
    faces = [parse_name(path.name) for path in files]
    chosen = [
        n
        for n, (name, face) in enumerate(zip(names, faces, strict=True))
        if _labelled(face, config) and split.get(name) in parts
    ]
    order = _training_order(chosen, names, split, config.fraction, seed)
    kept = set(order)
    hidden = {task: set(order[max(1, round(share * len(order))) :]) for task, share in config.labelled.items()}
    chosen = [n for n in chosen if split[names[n]] != "train" or n in kept]
    if not chosen:
        raise DataError(f"{config.root}: expected images of the parts {list(parts)}, found none; check the split file")
    names = [names[n] for n in chosen]
    images, bad = decoded([files[n] for n in chosen], config.size, config.channels, config.cache, progress=progress)
    read = ("train", SELECTION if config.selection else "validation")
    unread = {n for n in bad if findings is not None and split[names[n]] not in read}
    for n in unread:
        found.warning(bad.pop(n), names[n], remedy="training does not read it, evaluation does")
    data = image_data(
        config,
        images,
        {n: [reason] for n, reason in bad.items()},
        unread,
        names,
        [split[name] for name in names],
        tuple(TASKS[name] for name in config.tasks),
        _labels([faces[n] for n in chosen], config.tasks, [{t for t in hidden if n in hidden[t]} for n in chosen]),
        {name: CLASS_NAMES[name] for name in config.tasks if name in CLASS_NAMES},
        columns=_columns([faces[n] for n in chosen]),
        constants=constants,
        parts=parts,
        findings=found,
    )
    if findings is None:
        found.refuse()
    return data


def _labelled(face: Face | None, config: FacesData) -> bool:
    return face is not None and any(getattr(face, task) is not None for task in config.tasks)


def _split(config: FacesData, files: list[Path], names: list[str], seed: int) -> dict[str, str]:
    if config.split_file is None:
        # Byte-identical twins stay together: a twin in training would make its test image easy.
        return seeded_split(names, seed, [_digest(path) for path in files])
    given = read_split(config.split_file)
    by_base = {Path(name).name: part for name, part in given.items()}
    return {name: part for name in names if (part := given.get(name) or by_base.get(Path(name).name))}


def _twins(files: list[Path], names: list[str], split: dict[str, str]) -> dict[str, str]:
    """name -> what its file holds, for the training part: the same for byte-identical images."""
    return {name: _digest(path) for path, name in zip(files, names, strict=True) if split.get(name) == "train"}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_content(path)).hexdigest()
    except DataError:  # which decoding it says; it is no other's twin
        return str(path)


def _training_order(
    chosen: list[int], names: list[str], split: dict[str, str], fraction: float, seed: int
) -> list[int]:
    """A share of the training part in the order of a seed, so that a smaller share is the beginning of a larger one.

    What is set aside counts with the whole.
    """
    train = [n for n in chosen if split[names[n]] == "train"]
    # Each name has its own place, so that the order of some does not depend on which others there are.
    train.sort(key=lambda n: hashlib.blake2b(f"{seed}/{names[n]}".encode()).digest())
    whole = len(train) + sum(part == SELECTION for part in split.values())
    return train[: max(1, round(fraction * whole))]


def _labels(faces: Sequence[Face | None], tasks: Sequence[str], without: Sequence[set[str]]) -> dict[str, Any]:
    """By task; without: the tasks that each face keeps no label of."""
    values: dict[str, Tensor] = {}
    for task in tasks:
        of_faces = [
            None if task in hidden else getattr(face, task) for face, hidden in zip(faces, without, strict=True)
        ]
        if task == "age":
            values[task] = torch.tensor([float("nan") if age is None else float(age) for age in of_faces])
        else:
            values[task] = torch.tensor([-1 if value is None else value for value in of_faces])
    return dict(values)


def _columns(faces: Sequence[Face | None]) -> dict[str, list[str]]:
    """Values to report results by."""
    decades, genders, races = [], [], []
    for face in faces:
        decades.append(
            "unknown" if face is None or face.age is None else f"{face.age // 10 * 10}-{face.age // 10 * 10 + 9}"
        )
        genders.append("unknown" if face is None or face.gender is None else CLASS_NAMES["gender"][face.gender])
        races.append("unknown" if face is None or face.race is None else RACES[face.race])
    return {"age": decades, "gender": genders, "race": races}


def _say_what_is_left_out(
    config: FacesData, files: Sequence[Path], others: Sequence[str], split: Mapping[str, str], findings: Findings
) -> None:
    """Files that are no faces, names without a label, and images that no part has."""
    for other in others:
        findings.warning("a file that is not named [age]_[gender]_[race]_[date].jpg", other, remedy="left out")
    for path in files:
        name, face = str(path.relative_to(config.root)), parse_name(path.name)
        for task in config.tasks:
            if getattr(face, task) is None:
                findings.warning(f"a name without {task}", name, remedy="unlabelled for that")
        if name not in split:
            findings.warning(f"an image that has no part in {config.split_file}", name, remedy="left out")
