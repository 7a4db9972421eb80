"""stub"""

from typing import Any

from filtergroups.progress import Reporter


def planted_run(job: dict[str, Any], report: Reporter) -> dict[str, Any]:
    raise NotImplementedError
