"""How a call gets its key: by a claim of its own, from another caller in this process, or after another hold ended.

`Claiming` and `AsyncClaiming` are twins, method by method; the performers are made of them.

One rule for interrupts (Ctrl-C, a cancelled task, a signal handler that raises): a claim that was interrupted is asked
about once more by its attempt id, and let go if it got through. The effect has not run, so the key is free.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from samekey.core.attempt import withdraw
from samekey.core.call import Call, open_command
from samekey.core.commands import Open, Read, Take, Wait
from samekey.core.drive import adrive, drive
from samekey.core.errors import Fenced, InProgress, SamekeyError, StoreBusy
from samekey.core.ports import AsyncStore, Store
from samekey.core.record import Record
from samekey.core.states import SETTLED
from samekey.guard.batch import given_up
from samekey.guard.hold import is_inside, lineage
from samekey.guard.lease_timer import Leases
from samekey.guard.single_flight import Batch, Flight, Flights
from samekey.loops import ThreadBell, running

BUSY_PAUSE_SECONDS = 0.1  # before a claim is tried again whose record is locked by another transaction


class _Claiming:
    """What both colours share."""

    call: Call
    leases: Leases | None
    _guard: Any
    _flights: Flights | None
    _asked_at: float
    _patience_ends: float
    _flight: Flight | None = None  # ours, while other callers of this process follow it
    _followed: Flight | None = None  # of another caller, which we follow
    _registered: Batch | None = None  # shows close() that we are in flight, where we claim without a flight of our own
    _settled: Record | None = None
    last: Record | None = None  # the record as the store last returned it to a write or a wait
    _early: Any = None  # the hold of a claim made in a batch, renewed until its turn comes

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

    def _register(self, flights: Flights) -> None:
        """Register this call as in flight before checking whether the guard is closed.

        `close()` sets its flag before it counts calls in flight, so at least one side sees the other: either `close()`
        leaves us the store, or nothing is claimed.
        """
        if self._flight is None and self._registered is None:
            self._registered = flights.batch()
        self._guard._require_open()

    def _show_followers(self, record: Record | None) -> Record | None:
        """The store replied to the claim that other callers of this process wait for."""
        if record is not None and self._flight is not None and self._flights is not None:
            if record.attempt == self.call.attempt or record.lease_live:
                # The key is ours; or another process holds it, and then we wait for it on behalf of all followers.
                self._flights.hold(self._flight, record)
            elif record.state in SETTLED:
                self._settled = record
            else:
                self.finish()  # neither held nor settled: each follower asks the store itself
        return record

    def _seen_in_flight(self, flight: Flight) -> Record | None:
        if flight.settled is not None:
            return flight.settled
        return None if flight.landed else flight.held

    def _patience_left(self) -> float:
        return self._patience_ends - time.monotonic()

    def _after_wait(self, seen: Record, record: Record | None) -> Record | None:
        """The record after a wait, unless it is held by an effect that makes this very call."""
        if record is not None and record.fence == seen.fence and record.lease_live and record.attempt in lineage():
            raise InProgress(
                f"{record.key} is held by the very effect that makes this call: it would wait for itself. "
                "What an effect calls needs a key, or an operation, of its own",
                key=record.key.text,
                token=record.token,
                retry_after=record.lease_left,
            )
        return self._note(record)

    def _note(self, record: Record | None) -> Record | None:
        self.last = record
        if record is not None and record.state in SETTLED:
            self._settled = record
        return record

    def _lease_over(self, held: Any) -> Fenced | None:
        """Whether the lease ended before the effect could begin: another caller may have the key by now."""
        if held.record is None or self.leases is None or held.deadline > time.monotonic():
            return None
        return Fenced(
            f"the claim of {self.call.key} was answered so late that its lease had ended: nothing was run, and the key "
            "was let go. Ask again with the same key",
            key=self.call.key.text,
            token=held.token,
        )


class Claiming(_Claiming):
    """In the calling thread."""

    @property
    def store(self) -> Store:
        """Opened when it is first needed: a store that cannot be opened counts as one that is down."""
        store: Store = self._guard.store
        return store

    def _open(self, command: Open) -> Record | None:
        flights = self._flights
        if flights is None or self._flight is not None:
            return self._claim(command)
        ours = self._flight = Flight(self)  # known before it is under way: an interrupt from here on lands it
        flight = flights.board(command.key.digest, ours)
        if flight is ours:
            return self._claim(command, boards=True)
        self._flight, self._followed = None, flight
        return self._watch(flight, lambda: flight.held is not None) or self._claim(command)

    def _claim(self, command: Open | Take, boards: bool = False) -> Record | None:
        if self._flights is not None and (self._flight is None or self._guard._closed):
            self._register(self._flights)
        while True:
            try:
                store = self._guard.store  # opened by the first call, which may take longer than a lease
                self._asked_at = time.monotonic()
                record: Record | None = store.carry_out(command)
                return self._show_followers(record) if boards else record
            except StoreBusy:
                if self._patience_left() < BUSY_PAUSE_SECONDS:
                    raise
            except (Exception, GeneratorExit):
                raise
            except BaseException:  # Ctrl-C in the middle of the claim: nothing ran, so let it go
                self.withdraw(command)
                raise
            time.sleep(BUSY_PAUSE_SECONDS)

    def withdraw(self, command: Any) -> None:
        """Let a claim go whose effect never ran."""
        try:
            drive(withdraw(self.call, command), self._straight)
        except SamekeyError:
            pass  # the store cannot be reached: the claim ends with its lease
        self.finish()

    def _straight(self, command: Any) -> Any:
        return self.store.carry_out(command)

    def _require_lease(self, held: Any) -> None:
        fenced = self._lease_over(held)
        if fenced is not None:
            self.withdraw(open_command(self.call))
            raise fenced

    def _wait(self, command: Wait) -> Record | None:
        claim = given_up(command.seen.attempt)
        if claim is not None:
            claim.performer.finish()
            try:
                drive(withdraw(claim.performer.call, claim.command), self._straight)
            except Exception:
                raise
            except BaseException:  # once more: no other caller knows of this claim any more
                drive(withdraw(claim.performer.call, claim.command), self._straight)
                raise
            found: Record | None = self.store.carry_out(Read(command.seen.key))
            return found
        if is_inside(command.seen.attempt):  # that hold cannot end before we return: look, and do not wait
            return self._after_wait(command.seen, self.store.wait(command, 0.0))
        flight = self._followed
        if flight is not None and flight.held is not None and flight.held.fence == command.seen.fence:
            self._watch(flight, lambda: flight.landed, command.seen.lease_left)
            settled = flight.settled
            self._followed = None  # it landed, or its lease is over as far as this process knows: ask the store
            if settled is not None:
                return settled
        return self._after_wait(command.seen, self.store.wait(command, max(0.0, self._patience_left())))

    def _watch(self, flight: Flight, enough: Callable[[], bool], seconds: float = math.inf) -> Record | None:
        flights = self._flights
        if flights is None or enough() or flight.landed:
            return self._seen_in_flight(flight)
        bell = ThreadBell()
        flights.listen(flight, bell)
        ends = min(self._patience_ends, time.monotonic() + seconds)
        try:
            while not (enough() or flight.landed):
                left = ends - time.monotonic()
                if left <= 0:
                    break
                bell.wait(left)
        finally:
            flights.leave(flight, bell)
        return self._seen_in_flight(flight)


class AsyncClaiming(_Claiming):
    """In the running event loop."""

    @property
    def store(self) -> AsyncStore:
        store: AsyncStore = self._guard.store
        return store

    def _open(self, command: Open) -> Awaitable[Record | None]:
        flights = self._flights
        if flights is None or self._flight is not None:
            return self._claim(command)
        ours = self._flight = Flight(self)  # known before it is under way: an interrupt from here on lands it
        flight = flights.board(command.key.digest, ours)
        if flight is ours:
            return self._claim(command, boards=True)
        self._flight, self._followed = None, flight
        return self._follow(flight, command)

    async def _follow(self, flight: Flight, command: Open) -> Record | None:
        return await self._watch(flight, lambda: flight.held is not None) or await self._claim(command)

    async def _claim(self, command: Open | Take, boards: bool = False) -> Record | None:
        if self._flights is not None and (self._flight is None or self._guard._closed):
            self._register(self._flights)
        while True:
            try:
                store = self._guard.store  # opened by the first call, which may take longer than a lease
                self._asked_at = time.monotonic()
                record: Record | None = await store.carry_out(command)
                return self._show_followers(record) if boards else record
            except StoreBusy:
                if self._patience_left() < BUSY_PAUSE_SECONDS:
                    raise
            except (Exception, GeneratorExit):
                raise
            except BaseException:  # cancelled in the middle of the claim: nothing ran, so let it go
                await running().shielded(lambda: self.withdraw(command))
                raise
            await running().sleep(BUSY_PAUSE_SECONDS)

    async def withdraw(self, command: Any) -> None:
        """Let a claim go whose effect never ran."""
        try:
            await adrive(withdraw(self.call, command), self._straight)
        except SamekeyError:
            pass  # the store cannot be reached: the claim ends with its lease
        self.finish()

    async def _straight(self, command: Any) -> Any:
        return await self.store.carry_out(command)

    async def _require_lease(self, held: Any) -> None:
        fenced = self._lease_over(held)
        if fenced is not None:
            await running().shielded(lambda: self.withdraw(open_command(self.call)))
            raise fenced

    async def _wait(self, command: Wait) -> Record | None:
        claim = given_up(command.seen.attempt)
        if claim is not None:
            claim.performer.finish()
            letting_go = withdraw(claim.performer.call, claim.command)
            await running().shielded(lambda: adrive(letting_go, self._straight))  # no other caller knows of this claim
            found: Record | None = await self.store.carry_out(Read(command.seen.key))
            return found
        if is_inside(command.seen.attempt):  # that hold cannot end before we return: look, and do not wait
            return self._after_wait(command.seen, await self.store.wait(command, 0.0))
        flight = self._followed
        if flight is not None and flight.held is not None and flight.held.fence == command.seen.fence:
            await self._watch(flight, lambda: flight.landed, command.seen.lease_left)
            settled = flight.settled
            self._followed = None  # it landed, or its lease is over as far as this process knows: ask the store
            if settled is not None:
                return settled
        return self._after_wait(command.seen, await self.store.wait(command, max(0.0, self._patience_left())))

    async def _watch(self, flight: Flight, enough: Callable[[], bool], seconds: float = math.inf) -> Record | None:
        flights = self._flights
        if flights is None or enough() or flight.landed:
            return self._seen_in_flight(flight)
        bell = running().bell()
        flights.listen(flight, bell)
        ends = min(self._patience_ends, time.monotonic() + seconds)
        try:
            while not (enough() or flight.landed):
                left = ends - time.monotonic()
                if left <= 0:
                    break
                await bell.wait(left)
        finally:
            flights.leave(flight, bell)
        return self._seen_in_flight(flight)
