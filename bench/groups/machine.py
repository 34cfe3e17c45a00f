"""How fast this machine is right now, so that a noisy run can be told from a slow change."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence

from bench.figures import Experiment, Figure, Reading
from bench.measure import CALIBRATION_STEPS, Effort, calibration_laps

LOOP_QUIET_MS = 2.8  # the best round seen on the 2-core machine of PERFORMANCE.md, Python 3.11.7
SYNC_NONE_MS = 0.05  # below it nothing reaches a disk, and durable writes cost the same as others


def loop(effort: Effort) -> Sequence[Reading]:
    laps = calibration_laps(effort.rounds * 7)
    typical, best = statistics.median(laps), min(laps)
    note = f"best {best:.2f}, worst {max(laps):.2f}; typical is {typical / LOOP_QUIET_MS:.2f}x a quiet core"
    return [Reading(typical, laps, note)]


def disk(effort: Effort) -> Sequence[Reading]:
    spent = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(effort.rounds * 3):
            file.write(bytes(4096))
            begun = time.perf_counter()
            os.fsync(file.fileno())
            spent.append((time.perf_counter() - begun) * 1e3)
    typical = statistics.median(spent)
    note = f"in {tempfile.gettempdir()}"
    if typical < SYNC_NONE_MS:
        note += ": no real disk, so figures about durable writes say nothing (set TMPDIR)"
    return [Reading(typical, spent, note)]


EXPERIMENTS = (
    Experiment((Figure("machine.loop", "ms CPU", f"a fixed loop of {CALIBRATION_STEPS} steps"),), loop),
    Experiment((Figure("machine.fsync", "ms", "4 KiB appended and synced"),), disk),
)
