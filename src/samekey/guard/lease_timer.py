"""One shared timer renews all leases of a guard: no task and no timer per call.

Most effects are over long before their first renewal is due, so joining and leaving cost one dict entry
each. A renewal that is refused means the hold is lost: the holder is told, nothing more is sent for it. So is a hold
that nobody has any more, or that is over and was kept from leaving: its lease ends.

The timer's thread keeps neither its guard nor the store behind it. Where guards come and go, one for each request or
test, threads and connections go with them.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from samekey.core.commands import Renew
from samekey.core.record import Record
from samekey.loops import Loop, ThreadBell, started

if TYPE_CHECKING:
    from concurrent.futures import Future  # a sync program has no need of it

_log = logging.getLogger("samekey")

RENEW_PART = 3  # renew when a third of the lease is gone: two tries are left if one is lost
ASK_AGAIN_PART = 4  # and again after a quarter, if no answer came: it may have been lost on its way
IDLE_SECONDS = 30.0  # the timer thread goes home after that without a hold


class Lease(Protocol):
    """A hold that wants to stay alive."""

    lease_seconds: float
    renew_at: float
    over: bool

    def renewed(self, record: Record | None, at: float) -> bool:
        """Take note of a renewal asked for at `at`; False ends the renewing."""


class Leases:
    """The timer of one guard; `renew` asks the store to extend one lease, and tells now or later what it said."""

    def __init__(self, renew: Callable[[Lease], Record | None | Future[Record | None]]) -> None:
        self._renew = renew
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._held: dict[weakref.ref[Lease], None] = {}
        self._mutex = threading.Lock()
        self._changed = ThreadBell()  # a bare lock: it is rung by the garbage collector, too
        self._thread: threading.Thread | None = None
        self._pause = IDLE_SECONDS
        self._stays_seconds = IDLE_SECONDS

    def join(self, lease: Lease) -> None:
        part = lease.lease_seconds / RENEW_PART
        lease.renew_at = time.monotonic() + part
        self._held[weakref.ref(lease)] = None
        # Woken only for a shorter lease than the timer is set for: not once per call.
        if self._thread is None or part < self._pause:
            self._wake(part)

    def leave(self, lease: Lease) -> None:
        self._held.pop(weakref.ref(lease), None)

    def living(self) -> list[Lease]:
        """Those who want to stay alive; the others are forgotten."""
        found = []
        for known in list(self._held):
            lease = known()
            if lease is None or lease.over:
                self._held.pop(known, None)
            else:
                found.append(lease)
        return found

    def forget(self) -> None:
        """Renew nobody who is here now: whoever held it is gone."""
        self._held.clear()

    def end(self) -> None:
        """Nobody comes any more: the thread need not stay."""
        self._stays_seconds = 0.0
        self._changed.ring()

    def _wake(self, part: float) -> None:
        with self._mutex:
            self._pause = min(self._pause, part)
            if self._thread is None:
                changed = self._changed
                us = weakref.ref(self, lambda _: changed.ring())
                thread = threading.Thread(
                    target=_tend, args=(us, changed, self._pause), name="samekey-leases", daemon=True
                )
                if not started(thread):
                    # Nothing is wrong with the hold: its effect has the lease as it is, and `seconds_left` says so.
                    _log.warning("samekey cannot start the thread that renews leases: each ends when it ends")
                    return
                self._thread = thread  # not before: interrupted while it starts, the next one starts another
        self._changed.ring()

    def _renew_due(self, now: float) -> bool:
        """Renew whose time it is; whether anybody is here. Apart from the timer's loop, which would keep them alive."""
        living = self.living()
        for lease in living:
            if lease.renew_at <= now:
                self._renew_one(lease)
        return bool(living)

    def _went_home(self) -> bool:
        """Leave, unless somebody joined meanwhile: who joins later finds no thread and starts one."""
        with self._mutex:
            self._thread = None
            if self._held:
                self._thread = threading.current_thread()
                return False
            self._pause = IDLE_SECONDS
            return True

    def _renew_one(self, lease: Lease) -> None:
        asked = time.monotonic()
        lease.renew_at = asked + lease.lease_seconds / ASK_AGAIN_PART
        try:
            said = self._renew(lease)
        except Exception:
            self._unanswered(lease, asked)
            return
        if said is None or isinstance(said, Record):
            self._answered(lease, asked, said)
        else:
            # Not waited for: a loop that is blocked answers nobody, and the others' leases must not end with its own.
            said.add_done_callback(partial(self._heard, lease, asked))

    def _heard(self, lease: Lease, asked: float, said: Future[Record | None]) -> None:
        if said.cancelled() or said.exception() is not None:
            self._unanswered(lease, asked)
        else:
            self._answered(lease, asked, said.result())

    def _unanswered(self, lease: Lease, asked: float) -> None:
        """The store is down: try again soon, the lease is not lost yet."""
        lease.renew_at = asked + lease.lease_seconds / RENEW_PART / 4

    def _answered(self, lease: Lease, asked: float, record: Record | None) -> None:
        if lease.renewed(record, asked):
            lease.renew_at = asked + lease.lease_seconds / RENEW_PART
        else:
            self.leave(lease)


def _tend(known: weakref.ref[Leases], changed: ThreadBell, pause: float) -> None:
    """The timer's loop, until nobody has been here for long, or nobody can come any more."""
    idle_since = time.monotonic()
    while True:
        changed.wait(pause / 2)
        leases = known()
        if leases is None:
            return
        now = time.monotonic()
        if leases._renew_due(now):
            idle_since = now
        elif now - idle_since >= leases._stays_seconds and leases._went_home():
            return
        pause = leases._pause
        del leases  # nor may we keep it while we sleep


def renew_with(store: Any, lease: Any) -> Record | None | Future[Record | None]:
    """How the timer thread extends a lease: straight, through the sync twin, or in the loop of its holder."""
    if lease.record is None or lease.stranded():
        return None
    command = Renew(lease.record, lease.lease_seconds)
    straight = store if not inspect.iscoroutinefunction(store.carry_out) else getattr(store, "sync", None)
    if straight is not None:
        record: Record | None = straight.carry_out(command)
        return record
    loop: Loop = lease.loop
    return loop.start(lambda: store.carry_out(command))


_ALL: weakref.WeakSet[Leases] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """The timer threads stayed with the parent, and so did its holds."""
    for leases in _ALL:
        leases._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
