"""The seam for adapters: HTTP, webhooks, message consumers, and those of third parties (docs/adapters.md).

An adapter declares its operation once, makes a `Call` of each request or message, and begins it:

    operation = guard.operation("mail", boundary=Opaque())
    opened = guard.begin(guard.new_call(operation, key=message.id, payload=message.body), wait=0)

`begin` answers with a value. `Running`: the adapter runs the effect now, and ends it with exactly one of `succeed`,
`fail`, `release`, `cut` and `keep`. Each of those answers with an `Ended`: what the record says after it. Errors in the
adapter's own code (a malformed key, a wrong declaration) are raised as everywhere.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Token
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import ref

from samekey.core.call import Answer, Call, next_of
from samekey.core.commands import Outcome
from samekey.core.context import current_hold
from samekey.core.errors import (
    Busy,
    Fenced,
    InDoubt,
    KeyReused,
    Misconfigured,
    NotDone,
    Refused,
    ResultNotKept,
    ResultUnreadable,
    SamekeyError,
    StoreError,
)
from samekey.core.next_step import Next, seconds_until
from samekey.core.policy import as_seconds
from samekey.core.states import State
from samekey.guard.hold import AsyncHeld, Held, Hold
from samekey.loops import started

_log = logging.getLogger("samekey")

DOWN_RETRY_SECONDS = 1.0  # a store that did not answer: there is no lease to derive a time from


class CutShort(Exception):
    """The effect was cut short from outside, so that it is unknown how far it came."""


# -- what `begin` answers, other than `Answer` and `Running` -----------------------------------------------------------


@dataclass(slots=True)
class Refusal:
    """The key is closed: the effect was refused for good. `error` is the refusal that was kept."""

    error: Exception


@dataclass(slots=True)
class NotKept:
    """The effect happened and is not run again, but its result was not kept or can no longer be read."""

    error: ResultNotKept | ResultUnreadable


@dataclass(slots=True)
class Waiting:
    """Another attempt holds the key: begin again after `retry_after` seconds."""

    error: Busy | Fenced
    retry_after: float


@dataclass(slots=True)
class Doubt:
    """Whether the effect happened is unknown. `next`: what the next delivery can do about it."""

    error: InDoubt
    next: Next
    retry_after: float


@dataclass(slots=True)
class Mismatch:
    """The key was used before with another payload."""

    error: KeyReused


@dataclass(slots=True)
class Down:
    """The store did not answer. Nothing was run."""

    error: StoreError
    retry_after: float = DOWN_RETRY_SECONDS


Unopened = Refusal | NotKept | Waiting | Doubt | Mismatch | Down


def unopened(error: Exception, call: Call) -> Unopened:
    """The value for an error of the guard; an error of the adapter's own code is raised."""
    match error:
        case KeyReused():
            return Mismatch(error)
        case Busy():
            return Waiting(error, error.retry_after)
        case Fenced():
            return Waiting(error, 0.0)
        case InDoubt():
            return Doubt(error, error.next, error.retry_after)  # type: ignore[arg-type]
        case ResultNotKept() | ResultUnreadable():
            return NotKept(error)
        case StoreError():
            return Down(error)
    if isinstance(error, (Refused, *call.policy.closes)) and not isinstance(error, SamekeyError):
        return Refusal(error)
    raise error


# -- what ending a run answers -------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """What the record says after a run.

    state       completed, closed, released, in_doubt; started where the store did not take the write, or where
                another attempt holds the key; None where there is no record (a rolled back transaction, guards off)
    recorded    whether the store has what this run ended with
    replayed    the key changed hands meanwhile, and this is the other attempt's answer
    result      of a completed run
    error       what the run ended in: the adapter's own error, a refusal on record, or an error of the guard
    next        what a next delivery can do: it "answers", "runs", "asks" the provider, or a "person" must resolve it
    retry_after seconds until a next delivery can do that
    """

    state: State | None
    recorded: bool
    replayed: bool = False
    result: Any = None
    error: BaseException | None = None
    next: Next = "answers"
    retry_after: float = 0.0


class _Running:
    """What both colours share."""

    _token: Token[Any] | None = None

    def __init__(self, held: Any, *, decides: bool = False, here: bool = True) -> None:
        self.held = held
        self._performer = held._performer
        if decides:
            held.decision = ""
        held.enter(here)

    @property
    def lost(self) -> bool:
        """Whether the lease was lost or is over: another attempt may hold the key, so nothing more should be sent."""
        held: Hold = self.held
        return held.lost or (held.record is not None and self._performer.leases is not None and held.seconds_left <= 0)

    @property
    def decision(self) -> str:
        """What the effect decided by `current().release()` or `current().keep()`; "" for neither."""
        return self.held.decision or ""

    def keep(self) -> Ended:
        """End it without writing: the record stays held until its lease ends. The only ending for a finalizer."""
        held = self.held
        record = held.record
        held.let_go()
        held._handed_out = None  # its finalizer frees the callers of this process that follow this attempt
        if record is None:
            return Ended(None, recorded=False, next="runs")
        return Ended(
            record.state,
            recorded=False,
            next=next_of(self._performer.call, record),
            retry_after=held.seconds_left,
        )

    def __enter__(self) -> Any:
        """Make it the `current()` hold of this context: for an effect that runs in another thread or task."""
        self._token = current_hold.set(ref(self.held))
        return self

    def __exit__(self, *_: object) -> None:
        token, self._token = self._token, None
        if token is not None:
            current_hold.reset(token)

    def _check_part(self) -> None:
        if self._performer.call.terms.checked:
            self._performer.check_part(self.held)

    def _begin_end(self) -> Any:
        self.held.leave()
        self._performer.last = None
        return self.held.take_back()

    def _ended(self, given: BaseException | None, ended: Any) -> Ended:
        """What the record says; `ended` is what the attempt came to, or the error of the guard that it raised."""
        performer, held = self._performer, self.held
        left: BaseException
        if isinstance(ended, SamekeyError):
            left = ended
        else:
            try:
                answer: Answer[Any] = performer.conclude(ended)
            except BaseException as error:
                left = error
            else:
                if answer.recorded:
                    return Ended(answer.state, True, answer.replayed, answer.result)
                return Ended(answer.state, False, result=answer.result, next=next_of(performer.call, held.record))
        if isinstance(left, Misconfigured) and left is not given:
            raise left
        unwritten = performer.unwritten
        record = held.record if unwritten else performer.last
        return Ended(
            None if record is None else record.state,
            recorded=record is not None and not unwritten and (left is given or not isinstance(left, SamekeyError)),
            replayed=left is not given and not isinstance(left, SamekeyError),
            error=left,
            next=next_of(performer.call, record),
            retry_after=held.seconds_left if unwritten else seconds_until(record),
        )


class Running(_Running):
    """The key is held and the effect runs: end it once. `held` has `provider_key()`, `sending()`, `seconds_left`."""

    held: Held

    def succeed(self, result: Any = None, *, happened: bool = True) -> Ended:
        """The effect happened, and this is what the key answers from now on.

        `happened=False`: an answer that is kept although it is no success, such as a page for an error.
        """
        if happened:
            self._check_part()
        return self._end(self.held.returned(result), None)

    def fail(self, error: BaseException) -> Ended:
        """The effect raised this. The policy judges it as in a guarded function; it is not raised here."""
        return self._end(self.held.outcome(error), error)

    def release(self, why: str = "") -> Ended:
        """The effect certainly did not happen: the key is free for the next delivery."""
        return self.fail(NotDone(why))

    def cut(self, why: str = "cut short") -> Ended:
        """The effect was cut short, so that it is unknown whether it happened: the boundary says what follows."""
        return self.fail(CutShort(why))

    def also_renew(self, renew: Callable[[], Any]) -> None:
        """Call `renew()` after each renewal of the lease, in a thread of its own: a broker's timer, for example.

        It is not called while the store does not renew the lease: then the broker redelivers, too.
        """
        held = self.held
        held.also_renew = (*held.also_renew, _InThread(renew))

    def _end(self, outcome: Outcome, given: BaseException | None) -> Ended:
        steps = self._begin_end()
        try:
            ended = self._performer.go_on(steps, outcome)
        except SamekeyError as error:
            ended = error
        return self._ended(given, ended)


class AsyncRunning(_Running):
    """The same, awaited."""

    held: AsyncHeld

    def succeed(self, result: Any = None, *, happened: bool = True) -> Awaitable[Ended]:
        """The effect happened, and this is what the key answers from now on."""
        if happened:
            self._check_part()
        return self._end(self.held.returned(result), None)

    def fail(self, error: BaseException) -> Awaitable[Ended]:
        """The effect raised this. The policy judges it as in a guarded function; it is not raised here."""
        return self._end(self.held.outcome(error), error)

    def release(self, why: str = "") -> Awaitable[Ended]:
        """The effect certainly did not happen: the key is free for the next delivery."""
        return self.fail(NotDone(why))

    def cut(self, why: str = "cut short") -> Awaitable[Ended]:
        """The effect was cut short, so that it is unknown whether it happened: the boundary says what follows."""
        return self.fail(CutShort(why))

    def also_renew(self, renew: Callable[[], Any]) -> None:
        """As for `Running`; an async function is called in the effect's loop."""
        held = self.held
        made = _InLoop(renew, held.loop) if inspect.iscoroutinefunction(renew) else _InThread(renew)
        held.also_renew = (*held.also_renew, made)

    async def _end(self, outcome: Outcome, given: BaseException | None) -> Ended:
        steps = self._begin_end()
        try:
            ended = await self._performer.go_on(steps, outcome)
        except SamekeyError as error:
            ended = error
        return self._ended(given, ended)


Opened = Answer[Any] | Running | Unopened
AsyncOpened = Answer[Any] | AsyncRunning | Unopened


class _InThread:
    """Calls a function of the adapter's in a thread: the lease timer must not wait for a broker."""

    def __init__(self, renew: Callable[[], Any]) -> None:
        self._renew = renew
        self._thread: threading.Thread | None = None

    def __call__(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return  # the last one still waits for its broker
        self._thread = thread = threading.Thread(target=self._run, name="samekey-also-renew", daemon=True)
        if not started(thread):
            _log.warning("samekey cannot start a thread for also_renew: the broker's timer was not renewed")

    def _run(self) -> None:
        try:
            self._renew()
        except Exception:
            _log.exception("a function given to also_renew raised; the lease itself is renewed")


class _InLoop:
    """Starts an async function of the adapter's in the loop of its effect."""

    def __init__(self, renew: Callable[[], Any], loop: Any) -> None:
        self._renew, self._loop = renew, loop
        self._started: Any = None

    def __call__(self) -> None:
        if self._started is None or self._started.done():
            self._started = self._loop.start(self._guarded)

    async def _guarded(self) -> None:
        try:
            await self._renew()
        except Exception:
            _log.exception("a function given to also_renew raised; the lease itself is renewed")


# -- one call ------------------------------------------------------------------------------------------------------


def patience(wait: float) -> float:
    return as_seconds("wait", wait, zero_allowed=True)


def pairs(ends: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Outcome, BaseException | None]]:
    """Each run with its outcome: an exception is what it ended in, anything else is its result."""
    return [
        (running, running.held.outcome(end), end)
        if isinstance(end, BaseException)
        else (running, running.held.returned(end), None)
        for running, end in ends
    ]
