"""One shared timer renews all leases of a guard: no task and no timer per call.

Most effects are over long before their first renewal is due, so joining and leaving cost one dict entry each. A renewal
that is refused means that the hold is lost: the hold is marked as lost, and nothing more is sent for it. A hold that
was garbage-collected is not renewed, and neither is one that is over but was interrupted before it left the timer.

The timer's thread keeps neither its guard nor the store alive. Where an application makes one guard for each request
or test, threads and connections end with the guard.
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
    from concurrent.futures import Future  # a sync program does not need it

_log = logging.getLogger("samekey")

RENEW_PART = 3  # renew when a third of the lease is gone: two tries are left if one is lost
ASK_AGAIN_PART = 4  # and again after a quarter, if no reply came: the request or the reply may be lost
IDLE_SECONDS = 30.0  # without a hold for so long, the timer thread ends


class Lease(Protocol):
    """A hold whose lease is to be renewed."""

    lease_seconds: float
    renew_at: float
    over: bool

    @property
    def retain_seconds(self) -> float:
        """How long the hold is remembered after a renewal, if it is never settled."""

    def renewed(self, record: Record | None, at: float) -> bool:
        """Note the reply to a renewal that was sent at `at`; False ends the renewing."""


class Leases:
    """The timer of one guard; `renew` asks the store to extend one lease, and returns its reply or a future of it."""

    def __init__(self, renew: Callable[[Lease], Record | None | Future[Record | None]]) -> None:
        self._renew = renew
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._held: dict[weakref.ref[Lease], None] = {}
        self._mutex = threading.Lock()
        self._changed = ThreadBell()  # a bare lock: the garbage collector rings it too
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
        """The holds to renew. Those that are over or gone are removed."""
        found = []
        for known in list(self._held):
            lease = known()
            if lease is None or lease.over:
                self._held.pop(known, None)
            else:
                found.append(lease)
        return found

    def forget(self) -> None:
        """Renew none of the holds that are here now: their process is gone."""
        self._held.clear()

    def end(self) -> None:
        """No hold will join any more: the thread may end."""
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
                    # The hold is valid: its effect has one lease, and `seconds_left` shows how much is left.
                    _log.warning("samekey cannot start the thread that renews leases: they are not extended")
                    return
                self._thread = thread  # set last: if the start is interrupted, the next hold starts a thread
        self._changed.ring()

    def _renew_due(self, now: float) -> bool:
        """Renew the leases that are due; whether any hold is here. A local variable of the timer's loop would keep
        the holds alive, so this is a method of its own."""
        living = self.living()
        for lease in living:
            if lease.renew_at <= now:
                self._renew_one(lease)
        return bool(living)

    def _ended(self) -> bool:
        """End the thread, unless a hold joined meanwhile. A hold that joins later finds no thread and starts one."""
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
            reply = self._renew(lease)
        except Exception:
            self._unanswered(lease, asked)
            return
        if reply is None or isinstance(reply, Record):
            self._answered(lease, asked, reply)
        else:
            # Not waited for: a loop that is blocked does not reply, and the other holds must be renewed meanwhile.
            reply.add_done_callback(partial(self._replied, lease, asked))

    def _replied(self, lease: Lease, asked: float, reply: Future[Record | None]) -> None:
        if reply.cancelled() or reply.exception() is not None:
            self._unanswered(lease, asked)
        else:
            self._answered(lease, asked, reply.result())

    def _unanswered(self, lease: Lease, asked: float) -> None:
        """The store is down: try again soon, the lease is not lost yet."""
        lease.renew_at = asked + lease.lease_seconds / RENEW_PART / 4

    def _answered(self, lease: Lease, asked: float, record: Record | None) -> None:
        if lease.renewed(record, asked):
            lease.renew_at = asked + lease.lease_seconds / RENEW_PART
        else:
            self.leave(lease)


def _tend(known: weakref.ref[Leases], changed: ThreadBell, pause: float) -> None:
    """The timer's loop, until no hold was here for long, or the guard is gone."""
    idle_since = time.monotonic()
    while True:
        changed.wait(pause / 2)
        leases = known()
        if leases is None:
            return
        now = time.monotonic()
        if leases._renew_due(now):
            idle_since = now
        elif now - idle_since >= leases._stays_seconds and leases._ended():
            return
        pause = leases._pause
        del leases  # this thread must not keep the guard's timer alive while it sleeps


def renew_with(store: Any, lease: Any) -> Record | None | Future[Record | None]:
    """How the timer thread extends a lease: with the sync store, the sync twin of an async one, or in its loop."""
    if lease.record is None or lease.stranded():
        return None
    command = Renew(lease.record, lease.lease_seconds, lease.retain_seconds)
    straight = store if not inspect.iscoroutinefunction(store.carry_out) else getattr(store, "sync", None)
    if straight is not None:
        record: Record | None = straight.carry_out(command)
        return record
    loop: Loop = lease.loop
    return loop.start(lambda: store.carry_out(command))


_ALL: weakref.WeakSet[Leases] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """The timer threads and the holds are the parent's: the child starts without them."""
    for leases in _ALL:
        leases._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
