"""PostgreSQL: what a claim costs beside raw statements, beside peers, with many waiting, and with many keys."""

from __future__ import annotations

from bench.figures import Experiment
from bench.postgres import pairs

EXPERIMENTS: tuple[Experiment, ...] = (*pairs.EXPERIMENTS,)
