"""One file per group, or several with its name in front, each with its `EXPERIMENTS`.

A new group is a file here and a line below.

Imported when asked for: a group whose driver is not installed must not hide the others.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from bench.figures import Experiment

ALWAYS = "machine"  # measured with every run: without it no other number can be judged
NAMES = (ALWAYS, "fingerprint", "http", "layered", "memory", "postgres", "redis", "sqlite", "storm")


def experiments(name: str) -> tuple[Experiment, ...]:
    """Of `name.py`, and of every `name_more.py`: a large group has a file for each of its questions."""
    files = sorted(found.name for found in iter_modules(__path__))
    some = [import_module(f"bench.groups.{one}") for one in files if one == name or one.startswith(f"{name}_")]
    return tuple(experiment for one in some for experiment in one.EXPERIMENTS)
