"""Runs that are not a training from a config: name -> what makes one. Each takes its job and returns its outcome."""

from collections.abc import Callable
from typing import Any

from filtergroups.progress import Reporter
from filtergroups.reproduction.planted import DEFAULTS, planted_run

MAKERS: dict[str, Callable[[dict[str, Any], Reporter], dict[str, Any]]] = {"planted": planted_run}
OPTIONS: dict[str, dict[str, Any]] = {"planted": DEFAULTS}  # what --set can change of its rows
