"""Waiting for a record to move on: ask for the bell, read, sleep, read again.

The bell is a hint, the read is the truth: a lost ring costs one slow re-read, never a lost wake-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from samekey.core.errors import Misconfigured, StoreBusy
from samekey.core.record import Record
from samekey.core.states import State
from samekey.loops import Bells, ThreadBell, running

REREAD_SECONDS = 0.25  # how long a lost notification may go unnoticed
BUSY_SECONDS = 0.05  # after a read that waited in vain already


def moved_on(record: Record | None, seen: Record) -> bool:
    """Whether a waiter has something new: other hands, another state, or a lease that ended."""
    if record is None or record.state is not seen.state or record.fence != seen.fence:
        return True
    if record.state is State.STARTED:
        return not record.lease_live
    return record.asker != seen.asker or not record.being_asked


def pause_seconds(record: Record | None, left: float) -> float:
    """How long to sleep on what was read: until the time is over, the lease ends, or a ring may have been lost."""
    if record is None:
        return 0.0
    ends = record.lease_left if record.state is State.STARTED else record.ask_left
    return max(0.0, min(left, REREAD_SECONDS, ends + 0.001))


def wait(seen: Record, timeout: float, read: Callable[[], Record | None], bells: Bells) -> Record | None:
    """The record when it moved on, or as it is when the time is over."""
    deadline = time.monotonic() + timeout
    bell = ThreadBell()
    bells.add(seen.key.digest, bell)  # before the first read: a ring in between is not lost
    try:
        while True:
            try:
                record = read()
            except StoreBusy:  # the table is being rebuilt, or migrated: look again when that is over
                if (left := deadline - time.monotonic()) <= 0:
                    raise
                bell.wait(min(left, BUSY_SECONDS))
                continue
            left = deadline - time.monotonic()
            if moved_on(record, seen) or left <= 0:
                return record
            bell.wait(pause_seconds(record, left))
    finally:
        bells.remove(seen.key.digest, bell)


async def async_wait(
    seen: Record, timeout: float, read: Callable[[], Awaitable[Record | None]], bells: Bells
) -> Record | None:
    """The same, awaited."""
    deadline = time.monotonic() + timeout
    bell = running().bell()
    bells.add(seen.key.digest, bell)
    try:
        while True:
            try:
                record = await read()
            except StoreBusy:
                if (left := deadline - time.monotonic()) <= 0:
                    raise
                await bell.wait(min(left, BUSY_SECONDS))
                continue
            left = deadline - time.monotonic()
            if moved_on(record, seen) or left <= 0:
                return record
            await bell.wait(pause_seconds(record, left))
    finally:
        bells.remove(seen.key.digest, bell)


def asyncio_loop(store: str) -> asyncio.AbstractEventLoop:
    """The loop whose connections we use; a driver that knows only asyncio works in no other loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise Misconfigured(f"{store} runs on asyncio only; under trio there are memory, SQLite and MySQL") from None
