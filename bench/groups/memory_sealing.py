"""What keys add: an answer of 2 KB, sealed for its record and opened again."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence

from bench.figures import Experiment, Figure, Reading, at_most
from bench.measure import Effort, Work, interleave, microseconds
from samekey.core.key import make_key
from samekey.core.sealing import RESULT, seal, unseal
from samekey.guard.keyring import Keyring

ANSWER = os.urandom(2048)
KEY = make_key("charge", "ord_1")


def both_ways(effort: Effort) -> Sequence[Reading]:
    keys = Keyring(("2026-07", os.urandom(32)))
    sealed = seal(keys, ANSWER, RESULT, KEY)

    def seals(operations: int) -> Work:
        return lambda: [seal(keys, ANSWER, RESULT, KEY) for _ in range(operations)]

    def opens(operations: int) -> Work:
        return lambda: [unseal(keys, sealed, RESULT, KEY) for _ in range(operations)]

    readings = []
    for laps in interleave(effort, seals, opens).laps:
        each = [microseconds([lap]) for lap in laps]
        readings.append(Reading(statistics.median(each), each, f"best round {min(each):.1f}"))
    return readings


EXPERIMENTS = (
    Experiment(
        (
            Figure("memory.seal.2KB", "us CPU", "sealing 2 KB; the aim is 10", at_most(15.0)),
            Figure("memory.unseal.2KB", "us CPU", "opening 2 KB"),
        ),
        both_ways,
    ),
)
