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

from samekey.core.attempt import attempt, last_word
from samekey.core.boundary import Absent, Conflicting, Declined, Happened, StillUnknown, Verdict
from samekey.core.call import Answer, Call, Failed, open_command
from samekey.core.commands import (
    CallLookup,
    Command,
    Open,
    Outcome,
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
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.core.ports import Event, Hook
from samekey.core.record import Record
from samekey.core.recovery import stop_asking
from samekey.guard.claiming import AsyncClaiming, Claiming, _Claiming
from samekey.guard.hold import AsyncHeld, Held, leaving
from samekey.guard.lease_timer import Leases
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
    Tell: "_tell",
}

# The types that most effects return. Looking for a missing `__await__` on them would take longer than the effect.
_NOT_AWAITED = frozenset({type(None), bool, int, float, str, bytes, dict, list, tuple})

_NOT_SETTLED = "a record of %s could not be settled: it is in doubt when its lease ends"
_DROPPED = "a hold of %s was dropped without being entered: its key is let go"


class _Performer(_Claiming):
    """What both colours share: the call, its holds, its hooks."""

    perform: Any
    _unwritten: Settle | Testify | None = None  # what the store has not acknowledged yet

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
        """Whether the lease of a claim made in a batch ended before its turn came: another caller may have run it."""
        early = self._early
        return early is not None and (early.lost or early.seconds_left <= 0)

    def wait_at_most(self, seconds: float) -> None:
        """Wait this long for another holder of the key, in place of the policy's patience."""
        self._patience_ends = self._asked_at + seconds

    @property
    def unwritten(self) -> bool:
        """Whether the store has not acknowledged the last write: its outcome may not be on record."""
        return self._unwritten is not None

    def handed_out(self, reached: Any, steps: Generator[Command, Any, Any]) -> Any:
        """The hold of an attempt that got as far as its effect; the answer of one that ended before."""
        if type(reached) is RunEffect:
            held = self.new_hold(reached.held)
            held.hand_out(steps)
            return held
        self.finish()
        return self.conclude(reached)

    def conclude(self, ended: Answer[Any] | Failed | Any) -> Answer[Any]:
        """Call the hooks with how it ended, and return or raise it."""
        if isinstance(ended, Failed):
            self.tell("raised", self._settled, type(ended.error).__name__)
            raise leaving(ended.error)
        answer: Answer[Any] = ended
        if self._hooks:
            self.tell("replayed" if answer.replayed else "completed", self._settled)
        return answer

    def check_mark(self, held: Any, outcome: Outcome) -> None:
        """Report an effect that succeeded without calling sending(): without it the mark promises nothing."""
        if held.record is not None and not held.begun and isinstance(outcome, Returned):
            self.tell("unmarked", held.record)
            _log.error("an effect of %s is marked=True and never called held.sending()", self.call.key.operation)

    def abandon(self) -> None:
        """The garbage collector found a hold in the middle of its block: the claim ends with its lease."""
        if self._flight is not None and self._flights is not None:
            self._flights.abandon(self.call.key.digest, self._flight)

    def too_late(self) -> SamekeyError | None:
        """Why a hold can no longer be entered, if so. Here its lease decides; in a transaction also its end does."""
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


class Performer(_Performer, Claiming):
    """Carries out commands in the calling thread."""

    def new_hold(self, record: Record | None) -> Held:
        return Held(self, record, self._asked_at)

    def perform(self, command: Any) -> Any:
        own = _OURS.get(type(command))
        if own is not None:
            return getattr(self, own)(command)
        return self.store.carry_out(command)

    def _write(self, command: Settle | Testify) -> Record | None:
        self._unwritten = command
        start = time.monotonic()
        try:
            record: Record | None = self._guard.store.carry_out(command)
        except StoreUnavailable as unavailable:
            # Do not insist on a store that was closed: it does not come back.
            unavailable.tried_seconds = math.inf if self._guard._shut else time.monotonic() - start
            raise
        except (Exception, GeneratorExit):
            raise
        except BaseException:  # Ctrl-C in the middle of the write: repeated, the write recognises itself
            self._write_once_more()
            raise
        self._unwritten = None
        return self._note(record)

    def _write_once_more(self) -> None:
        """Write what the store has not acknowledged, before the interrupt comes out."""
        if self._unwritten is None:
            return
        try:
            self._note(drive(last_word(self.call, self._unwritten), self._straight))  # type: ignore[arg-type]
        except Exception:  # and still it is Ctrl-C that must come out
            _log.warning(_NOT_SETTLED, self.call.key.operation)

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

    def dropped(self) -> None:
        """The garbage collector found a hold that was never entered: let its claim go.

        In a thread of its own: the collector may run in any code, and must not wait for the store.
        """
        _log.warning(_DROPPED, self.call.key.operation)
        if not started(threading.Thread(target=self._let_go, name="samekey-dropped", daemon=True)):
            self.abandon()

    def _let_go(self) -> None:
        self.withdraw(open_command(self.call))
        if self._guard._closed:
            self._guard.close()

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
        if held.deadline <= time.monotonic():
            self._require_lease(held)
        if command.held is not None and self._hooks:
            self.tell("claimed", command.held)
        try:
            held.enter()
            value = self._effect()
            if type(value) not in _NOT_AWAITED and hasattr(type(value), "__await__"):
                raise Misconfigured("the effect returned an awaitable, which was not awaited: use AsyncGuard")
            outcome: Outcome = Returned(value)
        except BaseException as error:  # every way an effect can end is for the core to judge
            outcome = held.raised(error)
        finally:
            held.over = True  # set here, where no signal handler can come in between
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
            self._write_once_more()
            raise

    def _tell(self, command: Tell) -> None:
        self.tell(command.event, command.record, command.detail)


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

    async def _write(self, command: Settle | Testify) -> Record | None:
        self._unwritten = command
        start = time.monotonic()
        try:
            record: Record | None = await self._guard.store.carry_out(command)
        except StoreUnavailable as unavailable:
            # Do not insist on a store that was closed: it does not come back.
            unavailable.tried_seconds = math.inf if self._guard._shut else time.monotonic() - start
            raise
        except (Exception, GeneratorExit):
            raise
        except BaseException:  # cancelled in the middle of the write: repeated, the write recognises itself
            await self._write_once_more()
            raise
        self._unwritten = None
        return self._note(record)

    async def _write_once_more(self) -> None:
        """Write what the store has not acknowledged, before the cancellation comes out."""
        unwritten = self._unwritten
        if unwritten is None:
            return
        try:
            written = await running().shielded(lambda: adrive(last_word(self.call, unwritten), self._straight))
            self._note(written)  # type: ignore[arg-type]
        except Exception:  # and still it is the cancellation that must come out
            _log.warning(_NOT_SETTLED, self.call.key.operation)

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

    def dropped(self) -> None:
        """The garbage collector found a hold that was never entered: its loop lets the claim go, if it still runs."""
        loop = self._loop
        if loop is None or loop.closed():
            self.abandon()
            return
        _log.warning(_DROPPED, self.call.key.operation)
        loop.start(self._let_go)

    async def _let_go(self) -> None:
        await self.withdraw(open_command(self.call))
        if self._guard._closed:
            await self._guard.close()

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
        if held.deadline <= time.monotonic():
            await self._require_lease(held)
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
                raise Misconfigured(
                    "the effect returned a coroutine, which was not awaited: await it inside the effect"
                )
            outcome: Outcome = Returned(value)
        except BaseException as error:
            outcome = held.raised(error)
        finally:
            held.over = True  # set here, where no signal handler can come in between
            held.leave()
        if self.call.terms.marked:
            self.check_mark(held, outcome)
        return outcome

    async def _lookup(self, command: CallLookup) -> Verdict:
        lookup = self.call.boundary.asks_with
        if lookup is None:
            return StillUnknown("no lookup is declared")
        try:
            found = lookup(command.record)
            return as_verdict(await found if inspect.isawaitable(found) else found)
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
            await self._write_once_more()
            raise

    async def _tell(self, command: Tell) -> None:
        self.tell(command.event, command.record, command.detail)


def as_verdict(found: Any) -> Verdict:
    """What a lookup returned, if it is a verdict; any other value leaves the outcome unknown."""
    if isinstance(found, (Happened, Declined, Absent, StillUnknown, Conflicting)):
        return found
    _log.error("a lookup returned %s instead of a verdict", type(found).__name__)
    return StillUnknown(f"the lookup returned {type(found).__name__}, not a verdict")
