"""The metrics of an intake, in the text format of Prometheus."""

from __future__ import annotations

import time
from typing import Any

from samekey.intake import admin
from samekey.intake import commands as c

_COUNTED = {
    "accepted": "samekey_intake_accepted_total",
    "recreated": "samekey_intake_recreated_total",
    "timed_out": "samekey_intake_claim_timeouts_total",
    "inner_duplicate_accept": 'samekey_intake_inner_duplicates_total{at="accept"}',
    "inner_duplicate_insert": 'samekey_intake_inner_duplicates_total{at="insert"}',
}
_REDIS_ERRORS = ("look_failed", "offer_failed", "entry_failed", "mark_failed", "copy_failed", "free_failed")


async def exposition(intake: Any) -> str:
    """One line per value. Inner duplicates stay 0 while Redis is up: another number says that a claim failed."""
    lines = [f"{name} {intake.counts[what]}" for what, name in _COUNTED.items()]
    lines += [f'samekey_intake_redis_errors_total{{at="{what}"}} {intake.counts[what]}' for what in _REDIS_ERRORS]
    if intake._claims is not None:
        for what in ("wins", "waits", "takeovers", "errors"):
            lines.append(f"samekey_intake_claim_{what}_total {intake._claims.counts[what]}")
    if intake._buffer is not None:
        lines.append(f"samekey_intake_store_commands_total {intake._buffer.commands}")
    for name, _ in await intake.carry_out(admin.Environments()):
        load = await intake.carry_out(c.Depth(name))
        label = name.replace("\\", "\\\\").replace('"', '\\"')
        oldest = 0.0 if load.oldest_at is None else max(0.0, time.time() - load.oldest_at)
        lines += [
            f'samekey_intake_depth{{environment="{label}"}} {load.depth}',
            f'samekey_intake_dead_letters{{environment="{label}"}} {load.dead}',
            f'samekey_intake_oldest_age_seconds{{environment="{label}"}} {oldest:.3f}',
            f'samekey_intake_gate_diverting{{environment="{label}"}} {int(load.diverting)}',
        ]
    return "\n".join(lines) + "\n"
