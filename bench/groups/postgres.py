"""PostgreSQL: what a claim costs beside raw statements, beside peers, with many waiting, and with many keys."""

from __future__ import annotations

from bench.figures import Experiment
from bench.postgres import crowds, growth, indexes, pairs, peers

EXPERIMENTS: tuple[Experiment, ...] = (
    *pairs.EXPERIMENTS,
    *crowds.EXPERIMENTS,
    *peers.EXPERIMENTS,
    *indexes.EXPERIMENTS,
    *growth.EXPERIMENTS,
)
