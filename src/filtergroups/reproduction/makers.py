"""Runs that are not a training from a config: name -> what makes one. Each takes its job and returns its outcome."""

from collections.abc import Callable
from typing import Any

from filtergroups.progress import Reporter
from filtergroups.reproduction.planted import planted_run

MAKERS: dict[str, Callable[[dict[str, Any], Reporter], dict[str, Any]]] = {"planted": planted_run}
