"""How a call gets its key: by a claim of its own, from another caller in this process, or after another hold ended.

`Claiming` and `AsyncClaiming` are twins; the performers are made of them. What is not on the way of every call is
written once for both colours, as steps that `drive` or `adrive` takes.

One rule for interrupts (Ctrl-C, a cancelled task, a signal handler that raises): what the store has not answered is
asked once more, by its attempt id. A claim that got through is let go: its effect has not run, so the key is free. An
outcome is written again, and recognises itself. `unanswered` is that command, and `ask_again` is the rule: the code
that drives an attempt, or many of them, calls it when the attempt was interrupted. All else that an interrupted call
leaves in this process (its flight, its hold) counts only while its performer lives and its hold is not over.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from samekey.core.attempt import last_word, withdraw
from samekey.core.call import Call, in_progress, open_command
from samekey.core.commands import CallLookup, Command, Open, Read, Settle, Take, Testify, Wait
from samekey.core.drive import Steps, adrive, do, drive
from samekey.core.errors import InProgress, StoreBusy
from samekey.core.record import Record
from samekey.core.recovery import stop_asking
from samekey.core.states import SETTLED
from samekey.guard.batch import given_up
from samekey.guard.hold import is_inside, lineage
from samekey.guard.lease_timer import Leases
from samekey.guard.single_flight import Batch, Flight, Flights
from samekey.loops import ThreadBell, running

_log = logging.getLogger("samekey")

BUSY_PAUSE_SECONDS = 0.1  # before a claim is tried again whose record is locked by another transaction

_NOT_SETTLED = "a record of %s could not be settled: it is in doubt when its lease ends"

Asked = Open | Take | CallLookup | Settle | Testify


class Crowd:
    """The callers of a process that wait for other holders of their keys, counted: they occupy its threads."""

    def __init__(self) -> None:
        self._mutex, self._waiting = threading.Lock(), 0

    def enter(self, most: int) -> bool:
        """Whether one more may wait, where `most` may."""
        with self._mutex:
            if self._waiting >= most:
                return False
            self._waiting += 1
            return True

    def leave(self) -> None:
        with self._mutex:
            self._waiting -= 1


class _Claiming:
    """What both colours share."""

    call: Call
    leases: Leases | None
    unanswered: Asked | None = None  # removed when the write was answered, and when the effect begins
    last: Record | None = None  # the record as the store last returned it to a write or a wait
    _guard: Any
    _flights: Flights | None
    _asked_at: float
    _patience_ends: float
    _flight: Flight | None = None  # ours, while other callers of this process follow it
    _followed: Flight | None = None  # of another caller, which we follow
    _registered: Batch | None = None  # shows close() that we are in flight, where we claim without a flight of our own
    _settled: Record | None = None
    crowd: tuple[Crowd, int] | None = None  # the callers that wait with us, and how many may
    waited_seconds = 0.0  # for another holder of the key
    ran = False  # the effect began; not set for one that returned, until its outcome is known to be lost
    _early: Any = None  # the hold of a claim made in a batch, renewed until its turn comes
    end_interrupted: Callable[[Asked | None], None]
    note_answered: Callable[[Record | None], None]
    # These three have a colour: under AsyncGuard they return something to await, and so does what is made of them.
    _drive: Any
    _claim: Callable[..., Any]
    _bell: Callable[[], Any]

    @property
    def store(self) -> Any:
        """Opened when it is first needed: a store that cannot be opened counts as one that is down."""
        return self._guard.store

    def _straight(self, command: Any) -> Any:
        return self.store.carry_out(command)

    def finish(self) -> None:
        """The call is over, however it ended: the callers that follow it go on."""
        early, self._early = self._early, None
        if early is not None and self.leases is not None:
            early.over = True
            self.leases.leave(early)
        if self._flight is not None and self._flights is not None:
            self._flights.land(self.call.key.digest, self._flight, self._settled)
            self._flight = None
        self._registered = None

    # -- interrupts ----------------------------------------------------------------------------------------------

    @property
    def unwritten(self) -> bool:
        """Whether the store has not acknowledged the last write: its outcome may not be on record."""
        return isinstance(self.unanswered, Settle | Testify)

    def ask_again(self) -> Any:
        """The rule for interrupts: ask once more about what the store has not answered, and end the call."""
        return self._drive(self._asking_again(), self._straight)

    def withdraw(self) -> Any:
        """Let a claim go whose effect never ran, and end the call."""
        self.unanswered = open_command(self.call)
        return self.ask_again()

    def _asking_again(self) -> Generator[Command, Any, None]:
        asked = self.unanswered
        try:
            if isinstance(asked, Open | Take):
                yield from withdraw(self.call, asked)
            elif isinstance(asked, CallLookup):
                yield from stop_asking(self.call, asked.record)
            elif asked is not None:
                self._note((yield from last_word(self.call, asked)))
        except Exception:  # still it is the interrupt that must come out; a claim ends with its lease
            if self.unwritten:
                _log.warning(_NOT_SETTLED, self.call.key.operation)
                self.ran, asked = True, None
        self.unanswered = None
        self.finish()
        self.end_interrupted(asked)

    # -- claiming ------------------------------------------------------------------------------------------------

    def _open(self, command: Open) -> Any:
        flights = self._flights
        if flights is None or self._flight is not None:
            return self._claim(command)
        ours = self._flight = Flight(self)  # known before it is under way: an interrupt from here on lands it
        flight = flights.board(command.key.digest, ours)
        if flight is ours:
            return self._claim(command, boards=True)
        self._flight, self._followed = None, flight
        return self._drive(self._following(flight, command), do)

    def _following(self, flight: Flight, command: Open) -> Steps:
        budget, start = self._guard._budget, time.monotonic()
        seconds = math.inf if budget is None or budget.seconds_left is None else budget.seconds_left
        record = yield from self._watching(flight, lambda: flight.held is not None, seconds)
        waited = time.monotonic() - start
        self.waited_seconds += waited
        if budget is not None:
            budget.spend(waited)  # the store did not answer the other caller either
        return record or (yield partial(self._claim, command))

    def _register(self, flights: Flights) -> None:
        """Register this call as in flight before checking whether the guard is closed.

        `close()` sets its flag before it counts calls in flight, so at least one side sees the other: either `close()`
        leaves us the store, or nothing is claimed.
        """
        if self._flight is None and self._registered is None:
            self._registered = flights.batch()
        self._guard._require_open()

    def _show_followers(self, record: Record | None) -> None:
        """The store replied to the claim that other callers of this process wait for."""
        if record is not None and self._flight is not None and self._flights is not None:
            if record.attempt == self.call.attempt or record.lease_live:
                # The key is ours; or another process holds it, and then we wait for it on behalf of all followers.
                self._flights.hold(self._flight, record)
            elif record.state in SETTLED:
                self._settled = record
            else:
                self.finish()  # neither held nor settled: each follower asks the store itself

    # -- waiting -------------------------------------------------------------------------------------------------

    def _patience_left(self) -> float:
        return self._patience_ends - time.monotonic()

    def _wait(self, command: Wait) -> Any:
        self.unanswered = None  # another caller holds the key
        return self._drive(self._waiting(command), do)

    def _waiting(self, command: Wait) -> Steps:
        start = time.monotonic()
        try:
            return (yield from self._waiting_in_crowd(command))
        finally:
            self.waited_seconds += time.monotonic() - start

    def _waiting_in_crowd(self, command: Wait) -> Steps:
        if self.crowd is None:
            return (yield from self._waiting_for(command))
        crowd, most = self.crowd
        if not crowd.enter(most):
            raise in_progress(command.seen)
        try:
            return (yield from self._waiting_for(command))
        finally:
            crowd.leave()

    def _waiting_for(self, command: Wait) -> Steps:
        seen, patience = command.seen, None
        claim = given_up(seen.attempt)
        if claim is not None:
            yield partial(self._drive, claim.performer._asking_again(), self._straight)
            return (yield partial(self._straight, Read(seen.key)))
        if is_inside(seen.attempt):
            patience = 0.0  # that hold cannot end before we return: look, and do not wait
        flight = self._followed
        if patience is None and flight is not None and flight.held is not None and flight.held.fence == seen.fence:
            yield from self._watching(flight, lambda: flight.landed, seen.lease_left)
            self._followed = None  # it landed, or its lease is over as far as this process knows: ask the store
            if flight.settled is not None:
                return flight.settled
        patience = max(0.0, self._patience_left()) if patience is None else patience
        record: Record | None = yield partial(self.store.wait, command, patience)
        if record is not None and record.fence == seen.fence and record.lease_live and record.attempt in lineage():
            raise InProgress(
                f"{record.key} is held by the very effect that makes this call: it would wait for itself. "
                "What an effect calls needs a key, or an operation, of its own",
                key=record.key.text,
                token=record.token,
                retry_after=record.lease_left,
            )
        return self._note(record)

    def _watching(self, flight: Flight, enough: Callable[[], bool], seconds: float = math.inf) -> Steps:
        """Wait for this flight, at most as long as our patience; the record that it shows then."""
        flights = self._flights
        if flights is not None and not enough() and not flight.landed:
            bell = self._bell()
            flights.listen(flight, bell)
            ends = min(self._patience_ends, time.monotonic() + seconds)
            try:
                while True:
                    left = ends - time.monotonic()
                    if left <= 0 or enough() or flight.landed:
                        break
                    yield partial(bell.wait, left)
            finally:
                flights.leave(flight, bell)
        return flight.settled or (None if flight.landed else flight.held)

    def _note(self, record: Record | None) -> Record | None:
        self.last = record
        if record is not None and record.state in SETTLED:
            self._settled = record
        return record


class Claiming(_Claiming):
    """In the calling thread."""

    _drive = staticmethod(drive)
    _bell = ThreadBell

    def _claim(self, command: Open | Take, boards: bool = False) -> Record | None:
        if self._flights is not None and (self._flight is None or self._guard._closed):
            self._register(self._flights)
        self.unanswered = command
        while True:
            try:
                store = self._guard.store  # opened by the first call, which may take longer than a lease
                self._asked_at = time.monotonic()
                record: Record | None = store.carry_out(command)
            except StoreBusy:
                if self._patience_left() < BUSY_PAUSE_SECONDS:
                    raise
                time.sleep(BUSY_PAUSE_SECONDS)
            else:
                if boards:
                    self._show_followers(record)
                else:
                    self.note_answered(record)
                return record


class AsyncClaiming(_Claiming):
    """In the running event loop."""

    _drive = staticmethod(adrive)

    def _bell(self) -> Any:
        return running().bell()

    async def _claim(self, command: Open | Take, boards: bool = False) -> Record | None:
        if self._flights is not None and (self._flight is None or self._guard._closed):
            self._register(self._flights)
        self.unanswered = command
        while True:
            try:
                store = self._guard.store  # opened by the first call, which may take longer than a lease
                self._asked_at = time.monotonic()
                record: Record | None = await store.carry_out(command)
            except StoreBusy:
                if self._patience_left() < BUSY_PAUSE_SECONDS:
                    raise
                await running().sleep(BUSY_PAUSE_SECONDS)
            else:
                if boards:
                    self._show_followers(record)
                else:
                    self.note_answered(record)
                return record
