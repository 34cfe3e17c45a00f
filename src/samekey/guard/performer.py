"""Carrying out what an attempt asks.

The core decides; a performer only acts: it asks the store, runs the effect, calls the lookup, sleeps, and calls the
hooks. How it gets the key is in `claiming.py`. `Performer` and `AsyncPerformer` are twins, method by method.
"""

from __future__ import annotations

import inspect
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from types import CoroutineType
from typing import Any

from samekey.core.attempt import attempt
from samekey.core.boundary import Absent, Conflicting, Declined, Happened, Kind, StillUnknown, Verdict
from samekey.core.call import Answer, Call
from samekey.core.commands import (
    CallLookup,
    Command,
    Open,
    Outcome,
    Returned,
    RunEffect,
    Settle,
    SettleLater,
    Sleep,
    Take,
    Tell,
    Testify,
    Wait,
)
from samekey.core.drive import adrive, drive
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.core.record import Record
from samekey.guard.claiming import AsyncClaiming, Claiming, _Claiming
from samekey.guard.facts import Facts
from samekey.guard.hold import AsyncHeld, Held
from samekey.guard.lease_timer import Leases
from samekey.guard.reporting import Reporting
from samekey.guard.single_flight import Flights
from samekey.loops import Loop, running, started

_log = logging.getLogger("samekey")

# The commands a performer carries out itself; the store carries out every other one.
_OURS: dict[type[Command], str] = {
    Open: "_open",
    Take: "_claim",
    Settle: "_write",
    Testify: "_write",
    Wait: "_wait",
    RunEffect: "_run_effect",
    CallLookup: "_lookup",
    Sleep: "_sleep",
    SettleLater: "_settle_later",
    Tell: "_tell",
}

# The types that most effects return. Looking for a missing `__await__` on them would take longer than the effect.
_NOT_AWAITED = frozenset({type(None), bool, int, float, str, bytes, dict, list, tuple})

_DROPPED = "a hold of %s was dropped without being entered: its key is let go"


class _Performer(Reporting, _Claiming):
    """What both colours share: the call, its holds, its hooks."""

    perform: Any

    def __init__(
        self,
        call: Call,
        effect: Callable[[], Any],
        guard: Any,
        flights: Flights | None,
        leases: Leases | None,
        facts: Facts,
    ) -> None:
        self.call = call
        self.leases = leases
        self._effect = effect
        self._guard = guard
        self._flights = flights
        self._facts = facts
        self._hooks = hooks = facts.hooks
        self._asked_at = time.monotonic()
        self._patience_ends = self._asked_at + call.policy.patience_seconds
        if hooks and facts.begins:
            call.attributes = facts.begin(call)

    def new_hold(self, record: Record | None) -> Any:
        raise TypeError("a performer has a colour")

    def keep_alive(self, claimed: Any) -> None:
        """Renew a claim made in a batch while the effects before it run."""
        if isinstance(claimed, Record):
            self.note_answered(claimed)
        if isinstance(claimed, Record) and claimed.attempt == self.call.attempt and self.leases is not None:
            self._early = self.new_hold(claimed)
            self.leases.join(self._early)

    def overdue(self) -> bool:
        """Whether the lease of a claim made in a batch ended before its turn came: another caller may have run it."""
        early = self._early
        return early is not None and (early.lost or early.seconds_left <= 0)

    def wait_at_most(self, seconds: float) -> None:
        """Wait this long for another holder of the key, in place of the policy's patience."""
        self._patience_ends = self._asked_at + seconds

    def alone(self) -> Any:
        """Without single flight: two calls of one key in a batch must not wait for each other."""
        self._flights = None
        return self

    def reach(self, until: type[Command], steps: Generator[Command, Any, Any], reply: Any) -> Any:
        """Go on as far as the first command of this type."""
        return self._drive(steps, self.perform, reply, until)

    def handed_out(self, reached: Any, steps: Generator[Command, Any, Any]) -> Any:
        """The hold of an attempt that got as far as its effect; the answer of one that ended before."""
        if type(reached) is RunEffect:
            held = self.new_hold(reached.held)
            held.hand_out(steps)
            self.unanswered = None  # from here on the hold lets the claim go
            self.ran = True
            if self._hooks:
                self.note_effect(reached.held)
            return held
        self.finish()
        return self.conclude(reached)

    def check_part(self, held: Any) -> None:
        """Report an effect that succeeded without doing its part: without it the boundary promises nothing."""
        if held.record is None:
            return
        terms = self.call.terms
        if terms.marked and not held.begun:
            self.tell("unmarked", held.record)
        if terms.kind is Kind.KEYED and not held.gave_key:
            self.tell("unkeyed", held.record)

    def tried(self, unavailable: StoreUnavailable, start: float) -> None:
        """A write that was sent at `start` was not answered. A store that was closed does not come back."""
        elapsed = max(unavailable.tried_seconds, time.monotonic() - start)
        unavailable.tried_seconds = math.inf if self._guard._shut else elapsed

    def abandon(self) -> None:
        """The garbage collector found a hold in the middle of its block: the claim ends with its lease."""
        self._registered = None
        self.end_later("abandoned", "in_doubt")
        if self._flight is not None and self._flights is not None:
            self._flights.abandon(self.call.key.digest, self._flight)

    def too_late(self) -> SamekeyError | None:
        """Why a hold can no longer be entered, if so. Here its lease decides; in a transaction also its end does."""
        return None


class Performer(_Performer, Claiming):
    """Carries out commands in the calling thread."""

    def new_hold(self, record: Record | None) -> Held:
        return Held(self, record, self._asked_at)

    def perform(self, command: Any) -> Any:
        own = _OURS.get(type(command))
        if own is not None:
            return getattr(self, own)(command)
        return self.store.carry_out(command)

    def go_on(self, steps: Generator[Command, Any, Any] | None = None, reply: Any = None) -> Any:
        """Drive the attempt to its end; or the rest of it, whose last command got this reply elsewhere."""
        try:
            return drive(attempt(self.call) if steps is None else steps, self.perform, reply)
        except BaseException as error:
            if not isinstance(error, Exception | GeneratorExit):
                self.ask_again()
            self.end_in(error)
            raise
        finally:
            try:
                self.finish()
            except BaseException:
                self.finish()  # interrupted: the error may keep this performer, and so its flight, for long
                raise
            if self._guard._closed:
                self._guard._shut_if_idle()

    def hold(self, steps: Generator[Command, Any, Any] | None = None, reply: Any = None) -> Held | Answer[Any]:
        """The same as far as the effect, which is the caller's; or the answer there is without it."""
        steps = attempt(self.call) if steps is None else steps
        try:
            held: Held | Answer[Any] = self.handed_out(drive(steps, self.perform, reply, RunEffect), steps)
        except BaseException as error:
            if not isinstance(error, Exception | GeneratorExit):
                self.ask_again()
            self.finish()
            self.end_in(error)
            raise
        finally:
            if self._guard._closed:
                self._guard._shut_if_idle()
        return held

    def _write(self, command: Settle | Testify) -> Record | None:
        self.unanswered = command
        start = time.monotonic()
        try:
            record: Record | None = self._guard.store.carry_out(command)
        except StoreUnavailable as unavailable:
            self.tried(unavailable, start)
            raise
        self.unanswered = None
        return self._note(record)

    def dropped(self) -> None:
        """The garbage collector found a hold that was never entered: let its claim go.

        In a thread of its own: the collector may run in any code, and must not wait for the store.
        """
        _log.warning(_DROPPED, self.call.key.operation)
        if not started(threading.Thread(target=self._let_go, name="samekey-dropped", daemon=True)):
            self.abandon()

    def _let_go(self) -> None:
        self.withdraw()
        if self._guard._closed:
            self._guard._shut_if_idle()

    def _run_effect(self, command: RunEffect) -> Outcome:
        held: Held = self._early or self.new_hold(command.held)
        if held.deadline <= time.monotonic() and (late := held.overslept()) is not None:
            self.withdraw()
            raise late
        if self._hooks:
            self.note_effect(command.held)
        try:
            self.unanswered = None  # from here on the effect may have happened
            held.enter()
            value = self._effect()
            if type(value) not in _NOT_AWAITED and hasattr(type(value), "__await__"):
                raise Misconfigured("the effect returned an awaitable, which was not awaited: use AsyncGuard")
            outcome: Outcome = Returned(value) if held.noted is None else held.returned(value)
        except BaseException as error:  # every way an effect can end is for the core to judge
            self.ran = True
            outcome = held.raised(error)
        finally:
            held.over = True  # set here, where no signal handler can come in between
            held.leave()
        if self._hooks:
            self.note_effect_over()
        if self.call.terms.checked and type(outcome) is Returned:
            self.check_part(held)
        return outcome

    def _lookup(self, command: CallLookup) -> Verdict:
        lookup = self.call.boundary.asks_with
        if lookup is None:
            return StillUnknown("no lookup is declared")
        self.unanswered = command  # interrupted, the next caller may ask at once
        start = time.monotonic()
        try:
            verdict = as_verdict(lookup(command.record))
        except Exception as error:
            verdict = lookup_raised(self.call, error)
        self.tell("looked_up", command.record, type(verdict).__name__, duration=time.monotonic() - start)
        return verdict

    def _sleep(self, command: Sleep) -> None:
        time.sleep(command.seconds)

    def _settle_later(self, command: SettleLater) -> None:
        self._guard._settling.add(self.call, command, self.tell)

    def _tell(self, command: Tell) -> None:
        self.report(command)


class AsyncPerformer(_Performer, AsyncClaiming):
    """Carries out commands in the running event loop."""

    _loop: Loop | None = None

    def new_hold(self, record: Record | None) -> AsyncHeld:
        held = AsyncHeld(self, record, self._asked_at)
        held.loop = self._loop = running()
        return held

    def perform(self, command: Any) -> Awaitable[Any]:  # one coroutine less for each command than with `async`
        own = _OURS.get(type(command))
        carried_out: Awaitable[Any] = self.store.carry_out(command) if own is None else getattr(self, own)(command)
        return carried_out

    async def go_on(self, steps: Generator[Command, Any, Any] | None = None, reply: Any = None) -> Any:
        """Drive the attempt to its end; or the rest of it, whose last command got this reply elsewhere."""
        try:
            return await adrive(attempt(self.call) if steps is None else steps, self.perform, reply)
        except BaseException as error:
            if not isinstance(error, Exception | GeneratorExit):
                await running().shielded(self.ask_again)
            self.end_in(error)
            raise
        finally:
            self.finish()
            if self._guard._closed:
                await self._guard._shut_if_idle()

    async def hold(
        self, steps: Generator[Command, Any, Any] | None = None, reply: Any = None
    ) -> AsyncHeld | Answer[Any]:
        """The same as far as the effect, which is the caller's; or the answer there is without it."""
        steps = attempt(self.call) if steps is None else steps
        try:
            held: AsyncHeld | Answer[Any] = self.handed_out(await adrive(steps, self.perform, reply, RunEffect), steps)
        except BaseException as error:
            if not isinstance(error, Exception | GeneratorExit):
                await running().shielded(self.ask_again)
            self.finish()
            self.end_in(error)
            raise
        finally:
            if self._guard._closed:
                await self._guard._shut_if_idle()
        return held

    async def _write(self, command: Settle | Testify) -> Record | None:
        self.unanswered = command
        start = time.monotonic()
        try:
            record: Record | None = await self._guard.store.carry_out(command)
        except StoreUnavailable as unavailable:
            self.tried(unavailable, start)
            raise
        self.unanswered = None
        return self._note(record)

    def dropped(self) -> None:
        """The garbage collector found a hold that was never entered: its loop lets the claim go, if it still runs."""
        loop = self._loop
        if loop is None or loop.closed():
            self.abandon()
            return
        _log.warning(_DROPPED, self.call.key.operation)
        loop.start(self._let_go)

    async def _let_go(self) -> None:
        await self.withdraw()
        if self._guard._closed:
            await self._guard._shut_if_idle()

    async def _run_effect(self, command: RunEffect) -> Outcome:
        held: AsyncHeld = self._early or self.new_hold(command.held)
        if held.deadline <= time.monotonic() and (late := held.overslept()) is not None:
            await self.withdraw()
            raise late
        if self._hooks:
            self.note_effect(command.held)
        try:
            self.unanswered = None
            held.enter()
            coming = self._effect()
            if type(coming) is not CoroutineType and not inspect.isawaitable(coming):
                raise Misconfigured(
                    f"the effect returned {type(coming).__name__}, which cannot be awaited: "
                    "AsyncGuard runs async functions, Guard plain ones"
                )
            value = await coming
            if type(value) is CoroutineType:
                raise Misconfigured(
                    "the effect returned a coroutine, which was not awaited: await it inside the effect"
                )
            outcome: Outcome = Returned(value) if held.noted is None else held.returned(value)
        except BaseException as error:
            self.ran = True
            outcome = held.raised(error)
        finally:
            held.over = True  # set here, where no signal handler can come in between
            held.leave()
        if self._hooks:
            self.note_effect_over()
        if self.call.terms.checked and type(outcome) is Returned:
            self.check_part(held)
        return outcome

    async def _lookup(self, command: CallLookup) -> Verdict:
        lookup = self.call.boundary.asks_with
        if lookup is None:
            return StillUnknown("no lookup is declared")
        self.unanswered = command
        start = time.monotonic()
        try:
            found = lookup(command.record)
            verdict = as_verdict(await found if inspect.isawaitable(found) else found)
        except Exception as error:
            verdict = lookup_raised(self.call, error)
        self.tell("looked_up", command.record, type(verdict).__name__, duration=time.monotonic() - start)
        return verdict

    async def _sleep(self, command: Sleep) -> None:
        await running().sleep(command.seconds)

    async def _settle_later(self, command: SettleLater) -> None:
        self._guard._settling.add(self.call, command, self.tell)

    async def _tell(self, command: Tell) -> None:
        self.report(command)


def lookup_raised(call: Call, error: Exception) -> Verdict:
    _log.warning("a lookup of %s raised %s", call.key.operation, type(error).__name__)
    return StillUnknown(f"the lookup raised {type(error).__name__}")


def as_verdict(found: Any) -> Verdict:
    """What a lookup returned, if it is a verdict; any other value leaves the outcome unknown."""
    if isinstance(found, (Happened, Declined, Absent, StillUnknown, Conflicting)):
        return found
    _log.error("a lookup returned %s instead of a verdict", type(found).__name__)
    return StillUnknown(f"the lookup returned {type(found).__name__}, not a verdict")
