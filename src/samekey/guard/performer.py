"""Carrying out what an attempt asks.

The core decides; a performer only does: it speaks to the store, runs the effect, calls the lookup, sleeps,
tells the hooks. `Performer` and `AsyncPerformer` are twins, method by method.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Generator
from types import CoroutineType
from typing import Any

from samekey.core.attempt import attempt, last_word, withdraw
from samekey.core.boundary import Absent, Conflicting, Declined, Happened, StillUnknown, Verdict
from samekey.core.call import Answer, Call, Failed
from samekey.core.commands import (
    CallLookup,
    Command,
    Open,
    Outcome,
    Read,
    Returned,
    RunEffect,
    Settle,
    Sleep,
    Take,
    Tell,
    Testify,
    Wait,
)
from samekey.core.drive import adrive, drive
from samekey.core.errors import InProgress, Misconfigured, SamekeyError, StoreBusy, StoreUnavailable
from samekey.core.ports import AsyncStore, Event, Hook, Store
from samekey.core.record import Record
from samekey.core.recovery import stop_asking
from samekey.core.states import SETTLED
from samekey.guard.batch import given_up
from samekey.guard.hold import AsyncHeld, Held, leaving, lineage
from samekey.guard.lease_timer import Leases
from samekey.guard.single_flight import Batch, Flight, Flights
from samekey.loops import ThreadBell, running

_log = logging.getLogger("samekey")

# The commands a performer carries out itself; the store carries out every other one.
_OURS: dict[type[Command], str] = {
    Open: "_open",
    Take: "_claim",
    Settle: "_say",
    Testify: "_say",
    Wait: "_wait",
    RunEffect: "_run_effect",
    CallLookup: "_lookup",
    Sleep: "_sleep",
    Tell: "_tell",
}

BUSY_PAUSE_SECONDS = 0.1  # before a claim is tried again whose record somebody's transaction holds

# What most effects return: to look for an attribute that is not there takes longer than to run them.
_NOT_AWAITED = frozenset({type(None), bool, int, float, str, bytes, dict, list, tuple})


class _Performer:
    """What both colours share: the call, its patience, its flight, its hooks."""

    perform: Any
    _flight: Flight | None = None  # ours, when we are the one who flies
    _followed: Flight | None = None
    _on_its_way: Batch | None = None  # where we claim without a flight: somebody else's flies, or the key was known
    _settled: Record | None = None
    last: Record | None = None  # the record as the store last returned it to a write or a wait
    _unsaid: Settle | Testify | None = None  # what the store has not acknowledged yet
    _early: Any = None  # the hold of a claim made in a batch, kept alive until its turn comes

    def __init__(
        self,
        call: Call,
        effect: Callable[[], Any],
        guard: Any,
        flights: Flights | None,
        leases: Leases | None,
        hooks: tuple[Hook, ...],
    ) -> None:
        self.call = call
        self.leases = leases
        self._effect = effect
        self._guard = guard
        self._flights = flights
        self._hooks = hooks
        self._asked_at = time.monotonic()
        self._patience_ends = self._asked_at + call.policy.patience_seconds

    def new_hold(self, record: Record | None) -> Any:
        raise TypeError("a performer has a colour")

    def keep_alive(self, claimed: Any) -> None:
        """Renew a claim made in a batch while the effects before it run."""
        if isinstance(claimed, Record) and claimed.attempt == self.call.attempt and self.leases is not None:
            self._early = self.new_hold(claimed)
            self.leases.join(self._early)

    def overdue(self) -> bool:
        """Whether the lease of a claim made in a batch ended before its turn came: by now somebody may have run it."""
        early = self._early
        return early is not None and (early.lost or early.seconds_left <= 0)

    def wait_at_most(self, seconds: float) -> None:
        """Wait this long for another holder of the key, in place of the policy's patience."""
        self._patience_ends = self._asked_at + seconds

    @property
    def unwritten(self) -> bool:
        """Whether the store has not acknowledged the last write: what it says is not known to be on record."""
        return self._unsaid is not None

    def finish(self) -> None:
        """Over, however it ended: let those behind us go on."""
        early, self._early = self._early, None
        if early is not None and self.leases is not None:
            early.over = True
            self.leases.leave(early)
        if self._flight is not None and self._flights is not None:
            self._flights.land(self.call.key.digest, self._flight, self._settled)
            self._flight = None
        self._on_its_way = None

    def handed_out(self, reached: Any, steps: Generator[Command, Any, Any]) -> Any:
        """The hold of an attempt that got as far as its effect; the answer of one that ended before."""
        if type(reached) is RunEffect:
            held = self.new_hold(reached.held)
            held.hand_out(steps)
            return held
        self.finish()
        return self.conclude(reached)

    def conclude(self, ended: Answer[Any] | Failed | Any) -> Answer[Any]:
        """Tell the hooks how it ended, and return or raise it."""
        if isinstance(ended, Failed):
            self.tell("raised", self._settled, type(ended.error).__name__)
            raise leaving(ended.error)
        answer: Answer[Any] = ended
        if self._hooks:
            self.tell("replayed" if answer.replayed else "completed", self._settled)
        return answer

    def check_mark(self, held: Any, outcome: Outcome) -> None:
        """An effect that was to call sending() and succeeded without it has voided the promise of the mark: say so."""
        if held.record is not None and not held.begun and isinstance(outcome, Returned):
            self.tell("unmarked", held.record)
            _log.error("an effect of %s is marked=True and never called held.sending()", self.call.key.operation)

    def abandon(self) -> None:
        """As finish, for the garbage collector."""
        if self._flight is not None and self._flights is not None:
            self._flights.abandon(self.call.key.digest, self._flight)

    def too_late(self) -> SamekeyError | None:
        """Whether there is nothing any more that a hold could be in, as it is entered."""
        return None

    def tell(self, name: str, record: Record | None, detail: str = "") -> None:
        if not self._hooks:
            return
        key = self.call.key
        event = Event(
            name=name,
            operation=key.operation,
            key_digest=key.short,
            tenant=key.tenant,
            state="" if record is None else record.state.value,
            token=0 if record is None else record.token,
            attempt=self.call.attempt,
            detail=detail,
        )
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:
                _log.exception("a samekey hook raised; the answer is not affected")

    def _set_out(self, flights: Flights) -> None:
        """Before a claim: from here on the guard's close() leaves us the store; was it here first, nothing is claimed.

        Seen by close() before we look for it, as it is said before close() looks for us: one of us sees the other.
        """
        if self._flight is None and self._on_its_way is None:
            self._on_its_way = flights.batch()
        self._guard._require_open()

    def _boarded(self, record: Record | None) -> Record | None:
        """The store answered the one who flies."""
        if record is not None and self._flight is not None and self._flights is not None:
            if record.attempt == self.call.attempt or record.lease_live:
                # Ours; or another process holds it, and then we wait for all who stand behind us.
                self._flights.hold(self._flight, record)
            elif record.state in SETTLED:
                self._settled = record
            else:
                self.finish()  # nobody's, and not settled: everybody asks the store
        return record

    def _seen_in_flight(self, flight: Flight) -> Record | None:
        if flight.settled is not None:
            return flight.settled
        return None if flight.landed else flight.held

    def _patience_left(self) -> float:
        return self._patience_ends - time.monotonic()

    def _waited(self, seen: Record, record: Record | None) -> Record | None:
        """What there is after a wait. The hold of an effect that we are inside of cannot end while it waits for us."""
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


class Performer(_Performer):
    """Carries out commands in the calling thread."""

    @property
    def store(self) -> Store:
        """Asked for when it is needed: a store that cannot be opened is one that is down."""
        store: Store = self._guard.store
        return store

    def new_hold(self, record: Record | None) -> Held:
        return Held(self, record, self._asked_at)

    def perform(self, command: Any) -> Any:
        own = _OURS.get(type(command))
        if own is not None:
            return getattr(self, own)(command)
        return self.store.carry_out(command)

    def _open(self, command: Open) -> Record | None:
        flights = self._flights
        if flights is None or self._flight is not None:
            return self._claim(command)
        ours = self._flight = Flight(self)  # known before it is under way: interrupted from here on, it is landed
        flight = flights.board(command.key.digest, ours)
        if flight is ours:
            return self._claim(command, boards=True)
        self._flight, self._followed = None, flight
        return self._watch(flight, lambda: flight.held is not None) or self._claim(command)

    def _claim(self, command: Open | Take, boards: bool = False) -> Record | None:
        if self._flights is not None and (self._flight is None or self._guard._closed):
            self._set_out(self._flights)
        while True:
            self._asked_at = time.monotonic()
            try:
                record: Record | None = self._guard.store.carry_out(command)
                return self._boarded(record) if boards else record
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
            pass  # the store cannot be told: the lease speaks
        self.finish()

    def _straight(self, command: Any) -> Any:
        return self.store.carry_out(command)

    def _say(self, command: Settle | Testify) -> Record | None:
        self._unsaid = command
        start = time.monotonic()
        try:
            record: Record | None = self._guard.store.carry_out(command)
        except StoreUnavailable as unavailable:
            # A store that was closed is not to be insisted on: it does not come back.
            unavailable.tried_seconds = math.inf if self._guard._shut else time.monotonic() - start
            raise
        except (Exception, GeneratorExit):
            raise
        except BaseException:  # Ctrl-C in the middle of the write: said again, it recognises itself
            self._last_word()
            raise
        self._unsaid = None
        return self._note(record)

    def _last_word(self) -> None:
        """Say what is still unsaid, before the interruption comes out."""
        if self._unsaid is None:
            return
        try:
            self._note(drive(last_word(self.call, self._unsaid), self._straight))  # type: ignore[arg-type]
        except Exception:  # and still it is Ctrl-C that must come out
            _log.warning("a record of %s could not be settled; its lease speaks", self.call.key.operation)

    def _wait(self, command: Wait) -> Record | None:
        claim = given_up(command.seen.attempt)
        if claim is not None:
            claim.performer.finish()
            try:
                drive(withdraw(claim.performer.call, claim.command), self._straight)
            except Exception:
                raise
            except BaseException:  # nobody else knows of it any more
                drive(withdraw(claim.performer.call, claim.command), self._straight)
                raise
            found: Record | None = self.store.carry_out(Read(command.seen.key))
            return found
        flight = self._followed
        if flight is not None and flight.held is not None and flight.held.fence == command.seen.fence:
            self._watch(flight, lambda: flight.landed, command.seen.lease_left)
            settled = flight.settled
            self._followed = None  # landed, or its lease is over as far as we know: the store knows better
            if settled is not None:
                return settled
        return self._waited(command.seen, self.store.wait(command, max(0.0, self._patience_left())))

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

    def hold(self) -> Held | Answer[Any]:
        """The attempt as far as its effect, which is the caller's; or the answer there is without it."""
        return self.hold_rest(attempt(self.call), None)

    def hold_rest(self, steps: Generator[Command, Any, Any], reply: Any) -> Held | Answer[Any]:
        """The same for the rest of an attempt: its claim may have been made in a batch, and got this `reply`."""
        try:
            held: Held | Answer[Any] = self.handed_out(drive(steps, self.perform, reply, RunEffect), steps)
        except BaseException:
            self.finish()
            raise
        finally:
            if self._guard._closed:
                self._guard.close()
        return held

    def go_on(self, steps: Generator[Command, Any, Any], reply: Any) -> Any:
        """The rest of an attempt whose claim was made with others in one batch."""
        try:
            return drive(steps, self.perform, reply)
        finally:
            self.finish()
            if self._guard._closed:
                self._guard.close()

    end = go_on  # the rest of an attempt whose hold was handed out and has been left

    def _run_effect(self, command: RunEffect) -> Outcome:
        held: Held = self._early or self.new_hold(command.held)
        if command.held is not None and self._hooks:
            self.tell("claimed", command.held)
        try:
            held.enter()
            value = self._effect()
            if type(value) not in _NOT_AWAITED and hasattr(type(value), "__await__"):
                raise Misconfigured("the effect returned an awaitable, which nobody awaited: use AsyncGuard")
            outcome: Outcome = Returned(value)
        except BaseException as error:  # every way an effect can end is for the core to judge
            outcome = held.raised(error)
        finally:
            held.over = True  # said here: no signal comes between
            held.leave()
        if self.call.terms.marked:
            self.check_mark(held, outcome)
        return outcome

    def _lookup(self, command: CallLookup) -> Verdict:
        lookup = self.call.boundary.asks_with
        if lookup is None:
            return StillUnknown("no lookup is declared")
        try:
            return as_verdict(lookup(command.record))
        except Exception as error:
            _log.warning("a lookup of %s raised %s", self.call.key.operation, type(error).__name__)
            return StillUnknown(f"the lookup raised {type(error).__name__}")
        except BaseException:  # Ctrl-C: the next caller may ask at once
            drive(stop_asking(self.call, command.record), self._straight)
            raise

    def _sleep(self, command: Sleep) -> None:
        try:
            time.sleep(command.seconds)
        except (Exception, GeneratorExit):
            raise
        except BaseException:  # between two tries of a write: once more, and out
            self._last_word()
            raise

    def _tell(self, command: Tell) -> None:
        self.tell(command.event, command.record, command.detail)


class AsyncPerformer(_Performer):
    """Carries out commands in the running event loop."""

    @property
    def store(self) -> AsyncStore:
        store: AsyncStore = self._guard.store
        return store

    def new_hold(self, record: Record | None) -> AsyncHeld:
        held = AsyncHeld(self, record, self._asked_at)
        held.loop = running()
        return held

    def perform(self, command: Any) -> Awaitable[Any]:  # one coroutine less for each command than with `async`
        own = _OURS.get(type(command))
        carried_out: Awaitable[Any] = self.store.carry_out(command) if own is None else getattr(self, own)(command)
        return carried_out

    def _open(self, command: Open) -> Awaitable[Record | None]:
        flights = self._flights
        if flights is None or self._flight is not None:
            return self._claim(command)
        ours = self._flight = Flight(self)  # known before it is under way: interrupted from here on, it is landed
        flight = flights.board(command.key.digest, ours)
        if flight is ours:
            return self._claim(command, boards=True)
        self._flight, self._followed = None, flight
        return self._follow(flight, command)

    async def _follow(self, flight: Flight, command: Open) -> Record | None:
        return await self._watch(flight, lambda: flight.held is not None) or await self._claim(command)

    async def _claim(self, command: Open | Take, boards: bool = False) -> Any:
        if self._flights is not None and (self._flight is None or self._guard._closed):
            self._set_out(self._flights)
        while True:
            self._asked_at = time.monotonic()
            try:
                record = await self._guard.store.carry_out(command)
                return self._boarded(record) if boards else record
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
            pass  # the store cannot be told: the lease speaks
        self.finish()

    async def _straight(self, command: Any) -> Any:
        return await self.store.carry_out(command)

    async def _say(self, command: Settle | Testify) -> Record | None:
        self._unsaid = command
        start = time.monotonic()
        try:
            record: Record | None = await self._guard.store.carry_out(command)
        except StoreUnavailable as unavailable:
            # A store that was closed is not to be insisted on: it does not come back.
            unavailable.tried_seconds = math.inf if self._guard._shut else time.monotonic() - start
            raise
        except (Exception, GeneratorExit):
            raise
        except BaseException:  # cancelled in the middle of the write: said again, it recognises itself
            await self._last_word()
            raise
        self._unsaid = None
        return self._note(record)

    async def _last_word(self) -> None:
        """Say what is still unsaid, before the cancellation comes out."""
        unsaid = self._unsaid
        if unsaid is None:
            return
        try:
            said = await running().shielded(lambda: adrive(last_word(self.call, unsaid), self._straight))
            self._note(said)  # type: ignore[arg-type]
        except Exception:  # and still it is the cancellation that must come out
            _log.warning("a record of %s could not be settled; its lease speaks", self.call.key.operation)

    async def _wait(self, command: Wait) -> Record | None:
        claim = given_up(command.seen.attempt)
        if claim is not None:
            claim.performer.finish()
            letting_go = withdraw(claim.performer.call, claim.command)
            await running().shielded(lambda: adrive(letting_go, self._straight))  # nobody else knows of it any more
            found: Record | None = await self.store.carry_out(Read(command.seen.key))
            return found
        flight = self._followed
        if flight is not None and flight.held is not None and flight.held.fence == command.seen.fence:
            await self._watch(flight, lambda: flight.landed, command.seen.lease_left)
            settled = flight.settled
            self._followed = None  # landed, or its lease is over as far as we know: the store knows better
            if settled is not None:
                return settled
        return self._waited(command.seen, await self.store.wait(command, max(0.0, self._patience_left())))

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

    def hold(self) -> Awaitable[AsyncHeld | Answer[Any]]:
        """The attempt as far as its effect, which is the caller's; or the answer there is without it."""
        return self.hold_rest(attempt(self.call), None)

    async def hold_rest(self, steps: Generator[Command, Any, Any], reply: Any) -> AsyncHeld | Answer[Any]:
        """The same for the rest of an attempt: its claim may have been made in a batch, and got this `reply`."""
        try:
            held: AsyncHeld | Answer[Any] = self.handed_out(await adrive(steps, self.perform, reply, RunEffect), steps)
        except BaseException:
            self.finish()
            raise
        finally:
            if self._guard._closed:
                await self._guard.close()
        return held

    async def go_on(self, steps: Generator[Command, Any, Any], reply: Any) -> Any:
        """The rest of an attempt whose claim was made with others in one batch."""
        try:
            return await adrive(steps, self.perform, reply)
        finally:
            self.finish()
            if self._guard._closed:
                await self._guard.close()

    end = go_on  # the rest of an attempt whose hold was handed out and has been left

    async def _run_effect(self, command: RunEffect) -> Outcome:
        held: AsyncHeld = self._early or self.new_hold(command.held)
        if command.held is not None and self._hooks:
            self.tell("claimed", command.held)
        try:
            held.enter()
            coming = self._effect()
            if type(coming) is not CoroutineType and not inspect.isawaitable(coming):
                raise Misconfigured(
                    f"the effect returned {type(coming).__name__}, which cannot be awaited: "
                    "AsyncGuard runs async functions, Guard plain ones"
                )
            value = await coming
            if type(value) is CoroutineType:
                raise Misconfigured("the effect returned a coroutine, which nobody awaited: await it inside the effect")
            outcome: Outcome = Returned(value)
        except BaseException as error:
            outcome = held.raised(error)
        finally:
            held.over = True  # said here: no signal comes between
            held.leave()
        if self.call.terms.marked:
            self.check_mark(held, outcome)
        return outcome

    async def _lookup(self, command: CallLookup) -> Verdict:
        lookup = self.call.boundary.asks_with
        if lookup is None:
            return StillUnknown("no lookup is declared")
        try:
            said = lookup(command.record)
            return as_verdict(await said if inspect.isawaitable(said) else said)
        except Exception as error:
            _log.warning("a lookup of %s raised %s", self.call.key.operation, type(error).__name__)
            return StillUnknown(f"the lookup raised {type(error).__name__}")
        except GeneratorExit:
            raise
        except BaseException:  # cancelled: the next caller may ask at once
            await running().shielded(lambda: adrive(stop_asking(self.call, command.record), self._straight))
            raise

    async def _sleep(self, command: Sleep) -> None:
        try:
            await running().sleep(command.seconds)
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            await self._last_word()
            raise

    async def _tell(self, command: Tell) -> None:
        self.tell(command.event, command.record, command.detail)


def as_verdict(said: Any) -> Verdict:
    """What a lookup returned, if it is a verdict; anything else says nothing."""
    if isinstance(said, (Happened, Declined, Absent, StillUnknown, Conflicting)):
        return said
    _log.error("a lookup returned %s instead of a verdict", type(said).__name__)
    return StillUnknown(f"the lookup returned {type(said).__name__}, not a verdict")
