"""One colour a task, everywhere: Okabe and Ito's, which the colour-blind can tell apart."""

from collections.abc import Sequence

from filtergroups.groups.routing import Family

# Blue, vermilion, green, purple, orange, sky, yellow (darkened to be seen on white), and Tol's wine for an eighth task.
TASKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#C2AE00", "#882255")
SHARED = "#8791A1"  # neutral: what belongs to everybody
DEAD = "#4B5563"  # hatched: no group's colour is
OTHERS = "#C9CDD4"  # groups that are too many to be shown one by one
# Classes of a label map (Tol's light scheme): they must not be taken for tasks.
LABELS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#44BB99", "#99DDFF", "#BBCC33", "#AAAA00", "#DDDDDD")


def rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def task_colour(index: int) -> str:
    return TASKS[index % len(TASKS)]


def label_colour(index: int) -> str:
    return LABELS[index % len(LABELS)]


def group_colours(family: Family) -> list[str]:
    """A task's colour for its own group, grey for the shared one, and between them the mix of the tasks' colours."""
    return [_group_colour(family, group) for group in family.sets]


def _group_colour(family: Family, group: frozenset[str]) -> str:
    members = [index for index, task in enumerate(family.tasks) if task in group]
    if len(members) == len(family.tasks) > 1:
        return SHARED
    return mixed([task_colour(index) for index in members])


def mixed(colours: Sequence[str]) -> str:
    """The mean of some colours, in light rather than in numbers (a square root apart)."""
    channels = zip(*(rgb(colour) for colour in colours), strict=True)
    means = [round((sum(value**2 for value in channel) / len(channel)) ** 0.5) for channel in channels]
    return "#" + "".join(f"{mean:02X}" for mean in means)


def vertical_order(family: Family) -> list[int]:
    """Groups from top to bottom: tasks at the outside, what they share between them."""
    middle = (len(family.tasks) - 1) / 2

    def place(index: int) -> tuple[float, int]:
        group = family.sets[index]
        members = [n for n, task in enumerate(family.tasks) if task in group]
        # Every task's own group is further out than the sets it shares.
        mean = sum(members) / len(members)
        return middle + (mean - middle) * (1 if len(members) == 1 else 0.9 / len(members)), len(members)

    return sorted(range(len(family)), key=place)


def ramp(name: str, entries: int = 32, low: float = 0.0, high: float = 1.0) -> list[str]:
    """A colour map of matplotlib as a list of colours."""
    import matplotlib
    from matplotlib.colors import to_hex

    colours = matplotlib.colormaps[name]
    return [to_hex(colours(low + (high - low) * n / (entries - 1))) for n in range(entries)]
