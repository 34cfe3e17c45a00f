"""The hold: what an effect may read and do while it holds the key, and how the end of the effect is judged."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import Token
from types import TracebackType
from typing import Any, Protocol
from weakref import ref

from samekey.core.attempt import sending
from samekey.core.call import Answer, Call, hold_seconds
from samekey.core.commands import Command, Outcome, Raised, Returned
from samekey.core.context import Effect, current_hold, running_hold
from samekey.core.drive import adrive, drive
from samekey.core.errors import Fenced, Misconfigured, SamekeyError
from samekey.core.notes import Note
from samekey.core.record import Record, provider_key
from samekey.guard.lease_timer import Leases
from samekey.guard.noting import Noted
from samekey.loops import Loop, in_a_loop

_log = logging.getLogger("samekey")

DEADLINE_PART = 0.9  # a holder treats its lease as over before the store does: it is always the more careful one

_order = itertools.count(1)  # when a hold began, and when an error left a guard: which of them was first
_process = os.urandom(8).hex()  # which process counts these numbers: an error may come back from another process
_forked_at: dict[str, int] = {}  # the processes this one was forked from, and their number at the fork
_born = 0  # this process's number when it was forked: a hold that began before is the parent's
_MARK = "__samekey_left__"


class Carrier(Protocol):
    """The performer that carries out this hold's commands."""

    call: Call
    leases: Leases | None

    @property
    def perform(self) -> Any: ...
    @property
    def go_on(self) -> Any: ...
    def abandon(self) -> None: ...
    def check_part(self, held: Any) -> None: ...
    def dropped(self) -> None: ...
    def too_late(self) -> SamekeyError | None: ...
    def withdraw(self) -> Any: ...
    def conclude(self, ended: Any) -> Answer[Any]: ...
    def tell(self, name: str, record: Record | None) -> None: ...
    def note_sending(self) -> None: ...
    def note_effect_over(self) -> None: ...
    def end_in(self, error: BaseException) -> None: ...


def current() -> Hold:
    """The hold whose effect is running here: `Held` under Guard, `AsyncHeld` under AsyncGuard."""
    held: Hold | None = running_hold()
    if held is None:
        raise Misconfigured(
            "no guarded effect is running here: current() works inside an effect only, and in a thread that was given "
            "its context (asyncio.to_thread, contextvars.copy_context().run)"
        )
    return held


def lineage() -> tuple[str, ...]:
    """The attempts whose effects the caller is inside of, the innermost first."""
    held = running_hold()
    return () if held is None else held.lineage


def is_inside(attempt: str) -> bool:
    """Whether the effect of this attempt makes this very call: in the same thread or task, so that it waits for us.

    A thread or task that the effect started has a copy of its context, and the effect may end while it goes on.
    """
    known = current_hold.get()
    held = running_hold()
    while held is not None and held.attempt != attempt:
        held = None if held._around is None else held._around()
    if held is None or held._was is None:
        return False
    try:
        current_hold.reset(held._was)  # only in the context in which the hold was entered
    except ValueError:
        return False
    held._was = current_hold.set(ref(held))
    current_hold.set(known)
    return True


def leaving(error: BaseException) -> BaseException:
    """Mark an error that leaves a guard: from there on it is about that guard's effect, not about an outer one.

    Plain values: the error may be pickled, and read by another version. Set past any __setattr__ of its own.
    """
    BaseException.__setattr__(error, _MARK, (_process, next(_order)))
    return error


def _after_fork_in_child() -> None:
    global _process, _born
    _born = _forked_at[_process] = next(_order)
    _process = os.urandom(8).hex()


class _HandedOut:
    """The rest of an attempt whose hold was handed out to the caller.

    Only this object has a finalizer: most holds are never handed out, and a finalizer on the hold would run for each.
    """

    __slots__ = ("_performer", "_process", "steps", "used")

    def __init__(self, performer: Carrier, steps: Generator[Command, Any, Any]) -> None:
        self._performer = performer
        self._process = _process  # a forked child has a copy, and must not let go what its parent holds
        self.used = False  # entered, or asked for something that an effect needs: the effect may have begun
        self.steps: Generator[Command, Any, Any] | None = steps

    def __del__(self) -> None:
        if getattr(self, "steps", None) is None:  # taken back; or interrupted as it was made
            return
        if self.used or self._process != _process:
            self._performer.abandon()
        else:
            self._performer.dropped()


class Hold:
    """What the effect may read and do while it holds the key."""

    renew_at = 0.0
    lost = False
    over = False  # left, or about to be: even if leaving is interrupted, it is neither renewed nor current any more
    answer: Answer[Any] | None = None
    # "" where the effect may decide through an adapter what its answer means, then "release" or "keep"; else None.
    decision: str | None = None
    also_renew: tuple[Callable[[], None], ...] = ()  # called after each renewal of the lease, on the timer's thread
    _began = 0
    _judged: tuple[int, bool] | None = None  # the error that the block ended with, and whether it left an inner guard
    _around: ref[Any] | None = None  # the hold inside whose effect this one was entered
    gave_key = False
    _entered = False
    _result: Any = None
    _complete = False
    _handed_out: _HandedOut | None = None
    noted: Noted | None = None  # what the effect noted about itself so far
    _was: Token[Any] | None = None

    def __init__(self, performer: Carrier, record: Record | None, asked_at: float) -> None:
        self._performer = performer
        self._call = call = performer.call
        self.record = record
        self.attempt = call.attempt
        self.lease_seconds = lease = call.policy.lease_seconds
        self.deadline = asked_at + lease * DEADLINE_PART
        self.begun = record is not None and record.begun_at is not None

    @property
    def retain_seconds(self) -> float:
        return hold_seconds(self._call)

    @property
    def key(self) -> str:
        return self._call.key.text

    @property
    def tenant(self) -> str | None:
        return self._call.key.tenant

    @property
    def token(self) -> int:
        return 0 if self.record is None else self.record.token

    @property
    def effect(self) -> Effect:
        """For `core.context`: what runs here."""
        call, attributes = self._call, dict(self._call.attributes)
        known = attributes.get("request_id", ""), attributes.get("trace_id", "")
        return Effect(call.key.operation, call.key.short, *known)

    @property
    def lineage(self) -> tuple[str, ...]:
        """This hold and those it runs inside."""
        around = None if self._around is None else self._around()
        return (self.attempt,) if around is None else (self.attempt, *around.lineage)

    @property
    def seconds_left(self) -> float:
        """How long a provider call may take now: pass it to the client as its timeout."""
        return max(0.0, self.deadline - time.monotonic())

    def provider_key(self, label: str = "") -> str:
        """The key to send to the provider: the same for every attempt at this intent, in every process."""
        self.gave_key = True
        if self._handed_out is not None:
            self._handed_out.used = True
        if label:
            self._notes().took(label)
        if self.record is None:
            return provider_key(self._call.key, 0, label)
        return self.record.provider_key(label)

    def note(
        self,
        *,
        amount_minor: int | None = None,
        currency: str | None = None,
        party: str | None = None,
        provider_ref: str | None = None,
        **more: Note,
    ) -> None:
        """Write this into the record when the effect ends, however it ends: our side of the ledger.

        `amount_minor` counts the smallest unit (cents). Several calls add up; a name that comes again is replaced.
        At most 16 names with a str, an int or a bool each. Never the payload.
        """
        if self.over:
            raise Misconfigured("the effect is over: nothing more is written into its record")
        named = {"amount_minor": amount_minor, "currency": currency, "party": party, "provider_ref": provider_ref}
        self._notes().add({**named, **more})

    def _notes(self) -> Noted:
        noted = self.noted
        if noted is None:
            noted = self.noted = Noted()
        return noted

    @property
    def reached_out(self) -> bool:
        """Whether this attempt may have called its provider: it marked a sending, or took the provider's key."""
        return self.begun or self.gave_key

    def sending(self) -> Any:
        """Write the mark right before the provider is called; awaited under AsyncGuard. Raises Fenced if lost."""
        raise TypeError("a hold is Held or AsyncHeld")

    def release(self) -> None:
        """Under HTTP: nothing happened, whatever this request is answered; the key is free for the next try."""
        self._decide("release")

    def keep(self) -> None:
        """Under HTTP: the answer to this request is the key's answer from now on, whatever its status."""
        self._decide("keep")

    def _decide(self, decision: str) -> None:
        if self.decision is None:
            raise Misconfigured(
                f"{decision}() is about the answer of an HTTP request; "
                "a plain effect raises NotDone or Refused, or returns its result"
            )
        self.decision = decision

    def complete(self, result: Any = None) -> None:
        """Inside `with held:`: what the key answers from now on."""
        if self._handed_out is None or not self._entered:
            if self._handed_out is not None:
                self._handed_out.used = True
            raise Misconfigured(
                "complete() is for the block of a hold: `with held:`, and in it held.complete(result); "
                "a guarded function returns its result"
            )
        if self._complete:
            raise Misconfigured("this hold is already complete")
        self._result, self._complete = result, True

    def renewed(self, record: Record | None, at: float) -> bool:
        if record is not None and record.fence == (self.token, self.attempt) and record.lease_live:
            # The later one: replies may overtake each other.
            self.deadline = max(self.deadline, at + self.lease_seconds * DEADLINE_PART)
            for renew in self.also_renew:
                renew()
            return True
        if not (self.lost or self.over):
            self._performer.tell("lease_lost", self.record)
        self.lost = True
        return False

    def stranded(self) -> bool:
        """Whether the effect can never go on, so that the lease need not be renewed."""
        return False

    def outcome(self, error: BaseException | None) -> Outcome:
        """How the block ended, for the core to judge."""
        if error is not None:
            raised = self.raised(error)
            self._judged = id(error), raised.inner
            return raised
        if self._complete:
            return self.returned(self._result)
        return self.raised(
            Misconfigured("the block ended without held.complete(result): whether it happened is unknown")
        )

    def _block_ended(self, error: BaseException | None) -> Outcome:
        outcome = self.outcome(error)
        if type(outcome) is Returned and self._call.terms.checked:
            self._performer.check_part(self)
        return outcome

    def returned(self, value: Any) -> Returned:
        return Returned(value) if self.noted is None else Returned(value, *self._kept(self.noted))

    def raised(self, error: BaseException) -> Raised:
        notes, terms = (None, ()) if self.noted is None else self._kept(self.noted)
        return Raised(error, inner=self._is_inner(error), begun=self.begun, notes=notes, terms=terms)

    def _kept(self, noted: Noted) -> tuple[bytes | None, tuple[bytes, ...]]:
        if self.record is None:
            return None, ()
        call = self._call
        return noted.kept(self.record, call.intent.secret, call.keeping and call.keeping.sealer)

    def meaning(self, error: BaseException) -> str:
        """What the policy makes of an error of this effect: "closes", "releases" or "unknown"."""
        return self._call.policy.meaning(error, inner=self._is_inner(error))

    def _is_inner(self, error: BaseException) -> bool:
        """Whether this error left a guard inside this effect, and so is about that guard's effect, not this one."""
        if self._judged is not None and self._judged[0] == id(error):
            return self._judged[1]  # the error that the block ended with: by now it has left this guard, too
        if self._entered and self._began < _born:
            return True  # this is a child process, forked inside the parent's effect; the effect goes on in the parent
        try:
            left: tuple[str, int] = object.__getattribute__(error, _MARK)
        except AttributeError:
            return False
        process, order = left
        # An error that left a guard since this hold began may have left it inside this effect: where a thread, a task
        # or another context was started does not show which effect it works for. "Unknown" is the safe judgement.
        if order > self._began:
            return True
        return process != _process and order > _forked_at.get(process, 0)  # numbers of other processes do not compare

    def enter(self, here: bool = True) -> None:
        """The effect begins; `here`: in this context, where `current()` gives this hold from now on."""
        if self._entered:
            raise Misconfigured("this hold is running already")
        self._entered = True
        if self._handed_out is not None:
            self._handed_out.used = True
        if current_hold.get() is not None and (around := running_hold()) is not None:
            self._around = ref(around)
        self._began = next(_order)
        if here:
            self._was = current_hold.set(ref(self))
        leases = self._performer.leases
        if leases is not None and self.record is not None:
            leases.join(self)

    def keep_out(self) -> None:
        """The hold may not be entered any more."""
        self.over = True
        if self._handed_out is not None:
            self.take_back().close()

    def overslept(self) -> Fenced | None:
        """The error if the lease ended before the effect could begin: another attempt may hold the key by now."""
        if self.record is None or self._performer.leases is None or self.seconds_left > 0:
            return None
        late = "the claim of {} was answered" if self._handed_out is None else "the hold on {} was entered"
        self.keep_out()
        fenced = Fenced(
            f"{late.format(self._call.key)} so late that its lease had ended: nothing was run, and the key was let go. "
            "Ask again with the same key",
            key=self.key,
            token=self.token,
        )
        self._performer.end_in(fenced)
        return fenced

    def too_late(self) -> Fenced | None:
        """The same for a hold that was handed out; raises if the transaction of its claim has ended."""
        ended = self._performer.too_late()
        if ended is not None:
            self.keep_out()
            self._performer.end_in(ended)
            raise ended
        return self.overslept()

    def leave(self) -> None:
        self.over = True
        if self._was is not None:
            try:
                current_hold.reset(self._was)
            except ValueError:
                pass  # left in another context than it was entered in: there it is not current
            self._was = None
        leases = self._performer.leases
        if leases is not None:
            leases.leave(self)

    def let_go(self) -> None:
        """The owner dropped it: it is renewed no more, and its lease will end. For the garbage collector."""
        self.over = True
        if self._performer.leases is not None:
            self._performer.leases.leave(self)

    @property
    def rest(self) -> object:
        """What is left of the attempt. A finalizer that wants to settle the hold must keep a reference to it: else
        the garbage collector may end it together with the hold, and nothing is left to settle with."""
        return self._handed_out

    def take_back(self) -> Generator[Command, Any, Any]:
        """The steps that are left of the attempt, for the one that ends it."""
        handed_out, self._handed_out = self._handed_out, None
        if handed_out is None:
            raise Misconfigured(f"this attempt at {self._call.key} has ended already")
        steps, handed_out.steps = handed_out.steps, None
        assert steps is not None  # noqa: S101 - taken back once: the reference to `handed_out` is gone
        self._performer.note_effect_over()
        return steps

    def _to_be_entered(self) -> Fenced | None:
        """At the start of the block: the error if its lease has ended. Then the caller lets the claim go."""
        if self._handed_out is None or self._entered:
            raise Misconfigured("this hold is not to be entered: it is running, or it is over")
        late = self.too_late()
        if late is None:
            try:
                self.enter()
            except BaseException:
                self.over = True  # interrupted: the block will not run, so it will not be left either
                raise
        return late

    def _ended(self, ended: Any, error: BaseException | None) -> None:
        try:
            self.answer = self._performer.conclude(ended)
        except BaseException as left:
            if left is not error:  # the block's own error goes on by itself
                raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._call.key.operation} {self._call.key.short} token {self.token}>"

    def hand_out(self, steps: Generator[Command, Any, Any]) -> None:
        """The caller enters the hold, and drives the rest of these steps."""
        self._handed_out = _HandedOut(self._performer, steps)
        self._handed_out.used = self.record is None  # nothing was claimed: there is nothing to let go


class Held(Hold):
    """The hold of a sync effect. As a context manager only when it came from `guard.hold()`."""

    def sending(self) -> None:
        """Write the fenced mark, right before the provider is called; raises Fenced if the hold is lost."""
        if self._handed_out is not None:
            self._handed_out.used = True
        if self.record is not None:
            self.record = drive(sending(self._call, self.record), self._performer.perform)  # type: ignore[assignment]
            self.begun = True
            self._performer.note_sending()

    def __enter__(self) -> Held:
        late = self._to_be_entered()
        if late is not None:
            self._performer.withdraw()
            raise late
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        if self._handed_out is not None:
            self._ended(self._performer.go_on(self.take_back(), self._block_ended(error)), error)


class _Done:
    """An awaitable that is done."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_DONE = _Done()


class AsyncHeld(Hold):
    """The hold of an async effect."""

    loop: Loop  # where the effect runs: on a store without a sync twin the timer thread renews the lease there

    _unwritten = False  # sending() was called, and its mark is not written yet

    def sending(self) -> Awaitable[None]:
        """The same, to be awaited; in a thread without a loop (a plain `def` handler) it blocks until it is written."""
        if self._handed_out is not None:
            self._handed_out.used = True
        if self.record is None:
            return _DONE
        # Set at the call, not at the write: an effect that forgets the await sends all the same.
        before, self.begun, self._unwritten = self.begun, True, True
        if in_a_loop():
            return self._mark(before)
        self.loop.start(lambda: self._mark(before)).result(timeout=self.lease_seconds)
        return _DONE

    def stranded(self) -> bool:
        """Whether its loop is closed, though its task still exists: callers that follow it must not wait for it."""
        if not self.loop.closed():
            return False
        self._performer.abandon()
        return True

    async def _mark(self, before: bool) -> None:
        try:
            self.record = await adrive(sending(self._call, self.record), self._performer.perform)  # type: ignore[arg-type, assignment]
        except BaseException:
            self.begun = before  # refused: nothing may be sent
            raise
        finally:
            self._unwritten = False
        self._performer.note_sending()

    def leave(self) -> None:
        super().leave()
        if self._unwritten:
            _log.error(
                "held.sending() of %s was called and never awaited: no mark was written, so after a crash it may "
                "happen twice",
                self._call.key.operation,
            )

    async def __aenter__(self) -> AsyncHeld:
        late = self._to_be_entered()
        if late is not None:
            await self._performer.withdraw()
            raise late
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        if self._handed_out is not None:
            self._ended(await self._performer.go_on(self.take_back(), self._block_ended(error)), error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
