"""What lies beside the code: the experiments of a clone, or those that an installed package brings along."""

from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent


@cache
def clone() -> Path | None:
    """The root of the clone that the code is run from; None: it is installed, and what lies above it is not ours."""
    root = PACKAGE.parents[1]
    return root if (root / "pyproject.toml").is_file() and root / "src" / "filtergroups" == PACKAGE else None


def experiments() -> Path:
    """The folder of the experiments' configs and of the paper's numbers."""
    return (clone() or PACKAGE) / "experiments"
