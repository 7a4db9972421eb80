"""The predictions' part of the page."""

import json

import numpy as np

from filtergroups.palette import label_colour
from filtergroups.predictor import Predictor, has_classes, is_map
from filtergroups.reporting.album import Album, AlbumFull, Pixels, as_bytes, at_most, coloured
from filtergroups.reporting.collect import Record
from filtergroups.reporting.evidence import Evidence, Step
from filtergroups.reporting.examples import Example, Shown, look
from filtergroups.reporting.html import Html, joined, note, section, tag
from filtergroups.reporting.scores import METRICS, written
from filtergroups.reporting.slices import Patient, look_at_scans, painted
from filtergroups.tasks import Segmentation

SIDE = 160  # pixels of the longer side


def predictions_section(
    record: Record, evidence: Evidence, album: Album, key: str, *, examples: int, progress: Step | None
) -> Html:
    name, title = f"{key}-predictions", "Predictions"
    if evidence.problem is not None or evidence.predictor is None:
        words = evidence.problem or "Predictions need a run folder: this network was trained by other code."
        return section(name, title, note(words))
    if evidence.volumes is not None:
        return section(name, title, *_scans(evidence, evidence.predictor, album, progress=progress))
    return section(name, title, *_images(evidence, evidence.predictor, album, examples=examples))


def _images(evidence: Evidence, predictor: Predictor, album: Album, *, examples: int) -> list[Html]:
    looked = look(evidence, count=examples)
    words = f"From the {evidence.split} part, by {predictor.passes}: truth → prediction"
    if any(not has_classes(task) for task in predictor.tasks) and not all(map(is_map, predictor.tasks)):
        words += " (of real values with the 90 % interval, where one is known)"
    maps = list(dict.fromkeys(name for answer in looked.some[0].answers for name in answer.maps))
    words += f". Maps: {', '.join(maps)}." if maps else "."
    parts = [tag("p", words, class_="lead-in"), *_certainty(predictor), tag("h3", "Some, drawn at random")]
    try:
        parts.append(tag("div", *(_tile(example, album) for example in looked.some), class_="tiles"))
        for task, worst in looked.worst.items():
            labelled = looked.labelled[task]
            if not labelled:
                parts.append(note(f"None of the {looked.count} examples has a label of {task}."))
                continue
            examples_of = "examples" if labelled == looked.count else "labelled examples"
            parts.append(tag("h3", f"The worst for {task}, of {labelled} {examples_of}"))
            parts.append(tag("div", *(_tile(example, album) for example in worst), class_="tiles"))
    except AlbumFull:
        parts.append(too_large())
    return parts


def _certainty(predictor: Predictor) -> list[Html]:
    """What the uncertainty that is shown is worth."""
    return [note(sentence(words)) for words in (predictor.certainty, *predictor.notes)]


def sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def too_large() -> Html:
    return note("More pictures would make this file larger than 15 MB; report this run by itself.")


def _tile(example: Example, album: Album) -> Html:
    told = ", ".join(f"{answer.task.name} {answer.truth}, predicted {in_full(answer)}" for answer in example.answers)
    rows = [
        tag(
            "div",
            tag("dt", answer.task.name),
            tag(
                "dd",
                tag("span", f"{answer.truth} → ") if answer.truth else None,
                tag("span", in_full(answer), class_="wrong" if answer.wrong else None),
            ),
            _maps(answer, album) if answer.maps else None,
        )
        for answer in example.answers
    ]
    return tag(
        "figure",
        tag("img", src=album.jpeg(at_most(example.image, SIDE)), alt=f"{example.name}: {told}", loading="lazy"),
        tag("dl", *rows),
        class_="tile",
    )


def in_full(shown: Shown) -> str:
    """A value and, in brackets, how sure it is."""
    return f"{shown.value} ({shown.sure})" if shown.sure else shown.value


def map_pixels(shown: Shown) -> dict[str, Pixels]:
    """An answer at every pixel as pictures: truth, prediction and, where there is one, its uncertainty."""
    maps = {name: np.asarray(values) for name, values in shown.maps.items()}
    truth, value = maps["truth"], maps["prediction"]
    if isinstance(shown.task, Segmentation):
        blank = np.full(truth.shape, 40, dtype=np.uint8)
        pictures = {"truth": painted(blank, truth), "prediction": painted(blank, value)}
    else:
        known = truth[np.isfinite(truth)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        pictures = {"truth": as_bytes(truth, low, high), "prediction": as_bytes(value, low, high)}
    for name in ("spread", "entropy"):
        if name in maps:
            top = float(maps[name].max()) or 1.0
            pictures[name] = coloured(as_bytes(maps[name], 0, top), "viridis")
    return pictures


def _maps(answer: Shown, album: Album) -> Html:
    images = [
        tag("img", src=album.png(at_most(pixels, 80, smooth=False)), alt=f"{answer.task.name}: {name}", title=name)
        for name, pixels in map_pixels(answer).items()
    ]
    return tag("dd", *images, class_="stack")


def _scans(evidence: Evidence, predictor: Predictor, album: Album, *, progress: Step | None) -> list[Html]:
    patients = look_at_scans(evidence, progress=progress)
    worst = max(patients, key=lambda patient: patient.badness)
    chosen = [("first patient", patients[0])]
    if len(patients) > 1:
        label = f"worst of {len(patients)} patients"
        chosen = [(f"first patient, and the {label}", worst)] if worst is patients[0] else [*chosen, (label, worst)]
    lead = tag("p", f"From the {evidence.split} part, by {predictor.passes}.", class_="lead-in")
    parts = [lead, *_certainty(predictor), _classes(predictor)]
    try:
        parts += [_patient(patient, label, album) for label, patient in chosen]
    except AlbumFull:
        parts.append(too_large())
    return parts


def _classes(predictor: Predictor) -> Html:
    restored = predictor.restored
    items = []
    for task in restored.tasks:
        if isinstance(task, Segmentation):
            names = restored.names.get(task.name) or [str(n) for n in range(task.classes)]
            items += [
                tag("li", tag("span", class_="swatch", style=f"--c:{label_colour(n - 1)}"), names[n])
                for n in range(1, task.classes)
            ]
    return tag("ul", *items, class_="legend", aria_label="labels") if items else joined()


def _patient(patient: Patient, label: str, album: Album) -> Html:
    names = [f"slice {z}" for z in patient.slices]
    middle = len(names) // 2
    figures = []
    for panel in patient.panels:
        stack = np.concatenate([at_most(picture, SIDE) for picture in panel.stack])
        alt = f"{panel.title} of {patient.name}, slices"
        figures.append(
            tag(
                "figure",
                tag(
                    "div",
                    class_="slice",
                    role="img",
                    aria_label=alt,
                    style=f"--n:{len(names)};aspect-ratio:{patient.aspect:.4f};background-image:url({album.jpeg(stack)})",
                ),
                tag("figcaption", panel.title, tag("span", f" · {panel.about}" if panel.about else "", class_="dim")),
            )
        )
    slider = tag(
        "div",
        tag(
            "label",
            tag("span", "Slice", class_="dim"),
            tag("input", type="range", min=0, max=len(names) - 1, value=middle, aria_label=f"slice of {patient.name}"),
        ),
        tag("output", names[middle]),
        class_="time",
    )
    return tag(
        "div",
        tag("h3", f"{patient.name} · {label}"),
        note(_told(patient)),
        tag("div", slider, class_="controls"),
        tag("div", *figures, class_="slices"),
        class_="card",
        style=f"--at:{middle}",
        data_slices=json.dumps(names),
    )


def _told(patient: Patient) -> str:
    told = [
        f"{task} {METRICS.get(metric, metric)} {written(metric, regions['overall'])}"
        for task, metrics in patient.scores.items()
        for metric, regions in metrics.items()
        if regions.get("overall") is not None
    ]
    return f"On the {'whole scan' if patient.whole else 'slices shown'}: {', '.join(told)}."
