"""One file per group, each with its `EXPERIMENTS`. A new group is a file here and a line below.

Imported when asked for: a group whose driver is not installed must not hide the others.
"""

from __future__ import annotations

from importlib import import_module

from bench.figures import Experiment

ALWAYS = "machine"  # measured with every run: without it no other number can be judged
NAMES = (ALWAYS, "fingerprint", "memory", "sqlite", "storm", "postgres")


def experiments(name: str) -> tuple[Experiment, ...]:
    found: tuple[Experiment, ...] = import_module(f"bench.groups.{name}").EXPERIMENTS
    return found
