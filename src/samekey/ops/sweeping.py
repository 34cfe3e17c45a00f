"""Sweeping: delete records past their retention, in small pieces and at a measured pace.

A piece is one short transaction of the store. It skips rows that another transaction is writing, so no claim waits for
it. A record that is held or in doubt is never past its retention, and the delete spares a key that was claimed anew.
There is no clock here: each piece carries the pause after it, and the caller makes that pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from samekey.core.ports import LIST_MAX, Store

PIECE = 500  # records in one transaction: a few milliseconds, on a slow disk some tens
PACE = 5000.0  # records in a second at most: 400 million in a day, which claims hardly notice


class Swept(NamedTuple):
    """One piece."""

    gone: int
    total: int
    left: bool  # there may be more
    pause_seconds: float  # before the next one


def sweeping(store: Store, *, limit: int | None = None, piece: int = PIECE, pace: float = PACE) -> Iterator[Swept]:
    """Sweep piece by piece until nothing is left, or `limit` records are gone."""
    total = 0
    while limit is None or total < limit:
        wanted = min(piece, LIST_MAX, *(() if limit is None else (limit - total,)))
        gone = store.sweep(wanted)
        total += gone
        left = gone >= wanted  # rows that were being written are left for the next round
        yield Swept(gone, total, left, gone / pace if left else 0.0)
        if not left:
            return
