"""Where the bands of the flow picture go; the page's script does the same on its own data, to move with time."""

from dataclasses import dataclass, field
from itertools import pairwise

from filtergroups.palette import DEAD, SHARED, task_colour
from filtergroups.reporting.architecture import ShownGroups, reads_of, serving, shown_sums
from filtergroups.reporting.collect import Record

GAP = 0.03  # between groups, as a share of the widest layer


@dataclass(eq=False)
class Node:
    """A group in a layer (column 1, 2, …), the image (0) or a task's head (the last column); y grows upwards."""

    name: str
    colour: str
    column: int
    size: float
    group: int | None = None
    dead: bool = False  # in no group: it reads nothing and nobody reads it
    low: float = 0.0


@dataclass(eq=False)
class Band:
    """What a reader reads of a source: where it leaves and arrives, and how wide it is there."""

    source: Node
    reader: Node
    leaves: float = 0.0
    leaving: float = 0.0
    arrives: float = 0.0
    arriving: float = 0.0


@dataclass
class Flow:
    """The whole picture, in kernels."""

    nodes: list[Node] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    lowest: float = 0.0
    highest: float = 0.0


def flow(record: Record, shown: ShownGroups) -> Flow:
    """A source is divided among its readers by their sizes, a reader among its sources."""
    sums = shown_sums(record, shown)
    dead = record.timeline.dead_counts()
    reads = reads_of(record.family, shown)
    gap = GAP * max(layer.kernels for layer in record.timeline.layers)
    columns = [[Node("image", SHARED, 0, float(record.timeline.layers[0].kernels))]]
    for layer, sizes in enumerate(sums):
        nodes = [Node(shown.names[g], shown.colours[g], layer + 1, float(sizes[g]), g) for g in shown.order]
        nodes.append(Node("dead", DEAD, layer + 1, float(dead[layer]), dead=True))
        columns.append([node for node in nodes if node.size > 0.02])
    tasks = record.family.tasks
    served = {task: serving(record.family, shown, task) for task in tasks}
    readers = {g: max(1, sum(g in groups for groups in served.values())) for g in range(len(shown.names))}
    heads = []
    for n, task in enumerate(tasks):
        size = sum(node.size / readers[node.group or 0] for node in columns[-1] if node.group in served[task])
        heads.append(Node(task, task_colour(n), len(columns), size))
    columns.append(heads)
    picture = Flow()
    for column in columns:
        _placed(column, gap)
        picture.nodes += column
    for sources, here in pairwise(columns):
        pairs = [
            Band(source, reader)
            for reader in here
            for source in sources
            if not (reader.dead or source.dead)
            if source.group is None
            or source.group in (reads[reader.group] if reader.group is not None else served[reader.name])
        ]
        _divided(pairs)
        picture.bands += pairs
    picture.lowest = min(node.low for node in picture.nodes) - gap
    picture.highest = max(node.low + node.size for node in picture.nodes) + gap
    return picture


def _placed(column: list[Node], gap: float) -> None:
    top = (sum(node.size for node in column) + gap * (len(column) - 1)) / 2
    for node in column:
        node.low = top - node.size
        top = node.low - gap


def _divided(pairs: list[Band]) -> None:
    for node in {id(pair.source): pair.source for pair in pairs}.values():
        own = sorted((pair for pair in pairs if pair.source is node), key=lambda pair: -pair.reader.low)
        total, top = sum(pair.reader.size for pair in own), node.low + node.size
        for pair in own:
            pair.leaving = node.size * pair.reader.size / total if total else 0.0
            top = pair.leaves = top - pair.leaving
    for node in {id(pair.reader): pair.reader for pair in pairs}.values():
        own = sorted((pair for pair in pairs if pair.reader is node), key=lambda pair: -pair.source.low)
        total, top = sum(pair.source.size for pair in own), node.low + node.size
        for pair in own:
            pair.arriving = node.size * pair.source.size / total if total else 0.0
            top = pair.arrives = top - pair.arriving
