"""How fast this machine is right now, so that a noisy run can be told from a slow change."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence

from bench.figures import Experiment, Figure, Reading
from bench.measure import (
    LOOP_STEPS,
    MIX_STEPS,
    Effort,
    calibration_laps,
    calibration_loop,
    calibration_mix,
    sync_laps,
)

# The best rounds seen on the 2-core machine of PERFORMANCE.md with Python 3.11.7: what "a quiet core" means here.
LOOP_QUIET_MS = 2.8
MIX_QUIET_MS = 2.1
SYNC_NONE_MS = 0.05  # below it nothing reaches a disk, and durable writes cost the same as others


def speed(effort: Effort) -> Sequence[Reading]:
    readings = []
    for work, quiet_ms in ((calibration_loop, LOOP_QUIET_MS), (calibration_mix, MIX_QUIET_MS)):
        laps = calibration_laps(effort.rounds * 7, work)
        typical = statistics.median(laps)
        note = f"best {min(laps):.2f}, worst {max(laps):.2f}; typical is {typical / quiet_ms:.2f}x a quiet core"
        readings.append(Reading(typical, laps, note))
    return readings


def disk(effort: Effort) -> Sequence[Reading]:
    spent = sync_laps(effort.rounds * 3)
    typical = statistics.median(spent)
    note = f"in {tempfile.gettempdir()}"
    if typical < SYNC_NONE_MS:
        note += ": no real disk, so figures about durable writes say nothing (set TMPDIR)"
    return [Reading(typical, spent, note)]


EXPERIMENTS = (
    Experiment(
        (
            Figure("machine.loop", "ms CPU", f"{LOOP_STEPS} steps of a tight loop: the core"),
            Figure(
                "machine.mix", "ms CPU", f"{MIX_STEPS} steps all over the standard library: the core and its caches"
            ),
        ),
        speed,
    ),
    Experiment((Figure("machine.fsync", "ms", "4 KiB appended and synced"),), disk),
)
