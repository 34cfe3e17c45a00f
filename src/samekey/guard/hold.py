"""The hold: what an effect may know and do while it has the key, and what its end means."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Awaitable, Generator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol
from weakref import ref

from samekey.core.attempt import sending
from samekey.core.call import Answer, Call, open_command
from samekey.core.commands import Command, Outcome, Raised, Returned
from samekey.core.drive import adrive, drive
from samekey.core.errors import Fenced, Misconfigured, SamekeyError
from samekey.core.record import Record, provider_key
from samekey.guard.lease_timer import Leases
from samekey.loops import Loop, in_a_loop

_log = logging.getLogger("samekey")

DEADLINE_PART = 0.9  # a holder treats its lease as over before the store does: it is always the more careful one

# The hold that was entered here last, by a weak reference: a hold that nobody has any more is no longer renewed.
_current: ContextVar[Any] = ContextVar("samekey_current", default=None)
_order = itertools.count(1)  # when a hold began, and when an error left a guard: which of them was first
_process = os.urandom(8).hex()  # whose numbers these are: an error may come back from another process
_forked_at: dict[str, int] = {}  # the processes we were forked from, and their number when it happened
_born = 0  # our own number when we were forked: what began before is our parent's
_MARK = "__samekey_left__"


class Carrier(Protocol):
    """Whoever carries out this hold's commands."""

    call: Call
    leases: Leases | None

    @property
    def perform(self) -> Any: ...
    @property
    def end(self) -> Any: ...
    def abandon(self) -> None: ...
    def too_late(self) -> SamekeyError | None: ...
    def withdraw(self, command: Any) -> Any: ...
    def conclude(self, ended: Any) -> Answer[Any]: ...


def current() -> Any:
    """The hold whose effect is running here: `Held` under Guard, `AsyncHeld` under AsyncGuard."""
    held = _running()
    if held is None:
        raise Misconfigured(
            "no guarded effect is running here: current() works inside an effect only, and in a thread that was given "
            "its context (asyncio.to_thread, contextvars.copy_context().run)"
        )
    return held


def _running() -> Any:
    """The innermost hold we are inside of and that is not over.

    A context outlives the effects that it saw: it is copied for tasks, and a hold may be left in another one.
    """
    known = _current.get()
    held = None if known is None else known()
    while held is not None and held.over:
        around = held._around
        held = None if around is None else around()
    return held


def depth() -> int:
    """Inside how many effects we are."""
    return len(lineage())


def lineage() -> tuple[str, ...]:
    """The attempts inside whose effects we are, the innermost first."""
    held = _running()
    return () if held is None else held.lineage


def leaving(error: BaseException) -> BaseException:
    """Mark an error that leaves a guard: what it says, it said about that guard's effect."""
    # Plain values: the error may be pickled, and read by another version. Past any __setattr__ of its own.
    BaseException.__setattr__(error, _MARK, (_process, next(_order)))
    return error


def _after_fork_in_child() -> None:
    global _process, _born
    _born = _forked_at[_process] = next(_order)
    _process = os.urandom(8).hex()


class _HandedOut:
    """The rest of an attempt whose hold is in the caller's hands.

    Only this has a finalizer, and not the hold: most holds are never handed out, and it would run for each.
    """

    __slots__ = ("_performer", "_steps")

    def __init__(self, performer: Carrier, steps: Generator[Command, Any, Any]) -> None:
        self._performer = performer
        self._steps: Generator[Command, Any, Any] | None = steps

    def taken_back(self) -> Generator[Command, Any, Any]:
        steps, self._steps = self._steps, None
        assert steps is not None  # noqa: S101 - whoever takes it back forgets us first
        return steps

    def __del__(self) -> None:
        # Thrown away with its hold: the lease speaks; only the callers behind us must not wait for us.
        if getattr(self, "_steps", None) is not None:  # interrupted as it was made, it has none
            self._performer.abandon()


class _Hold:
    """What the effect may know and do while it holds the key."""

    renew_at = 0.0
    lost = False
    over = False  # left, or about to be: whatever interrupts the leaving, it is not renewed and not current any more
    answer: Answer[Any] | None = None
    word: str | None = None  # "" where an HTTP answer may be spoken about, then "release" or "keep"
    _began = 0
    _judged: tuple[int, bool] | None = None  # which error the block ended with, and whether it was an inner word
    _around: ref[Any] | None = None  # the hold whose effect we were entered in
    _gave_key = False
    _entered = False
    _result: Any = None
    _complete = False
    _handed_out: _HandedOut | None = None
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
    def key(self) -> str:
        return self._call.key.text

    @property
    def tenant(self) -> str | None:
        return self._call.key.tenant

    @property
    def token(self) -> int:
        return 0 if self.record is None else self.record.token

    @property
    def lineage(self) -> tuple[str, ...]:
        """This hold and those it runs inside."""
        around = None if self._around is None else self._around()
        return (self.attempt,) if around is None else (self.attempt, *around.lineage)

    @property
    def seconds_left(self) -> float:
        """How long a provider call may take now: give it to the client as its timeout."""
        return max(0.0, self.deadline - time.monotonic())

    def provider_key(self, label: str = "") -> str:
        """The key to send to the provider: the same for every attempt at this intent, in every process."""
        self._gave_key = True
        if self.record is None:
            return provider_key(self._call.key, 0, label)
        return self.record.provider_key(label)

    @property
    def reached_out(self) -> bool:
        """Whether this attempt may have spoken to its provider: it marked a sending, or took the provider's key."""
        return self.begun or self._gave_key

    def release(self) -> None:
        """Under HTTP: whatever this request is answered, nothing happened; the key is free for the next try."""
        self._say("release")

    def keep(self) -> None:
        """Under HTTP: the answer to this request is the key's answer from now on, whatever its status."""
        self._say("keep")

    def _say(self, word: str) -> None:
        if self.word is None:
            raise Misconfigured(
                f"{word}() speaks about the answer of an HTTP request; "
                "a plain effect raises NotDone or Refused, or returns its result"
            )
        self.word = word

    def complete(self, result: Any = None) -> None:
        """Inside `with held:` - what the key shall answer from now on."""
        if self._handed_out is None or not self._entered:
            raise Misconfigured(
                "complete() is for the block of a hold: `with held:`, and in it held.complete(result); "
                "a guarded function returns its result"
            )
        if self._complete:
            raise Misconfigured("this hold is already complete")
        self._result, self._complete = result, True

    def renewed(self, record: Record | None, at: float) -> bool:
        if record is not None and record.fence == (self.token, self.attempt) and record.lease_live:
            self.deadline = max(
                self.deadline, at + self.lease_seconds * DEADLINE_PART
            )  # answers may overtake each other
            return True
        self.lost = True
        return False

    def stranded(self) -> bool:
        """Whether nobody can ever go on with it, so that there is nothing to stay alive for."""
        return False

    def outcome(self, error: BaseException | None) -> Outcome:
        """How a with-block ended, for the core to judge."""
        if error is not None:
            raised = self.raised(error)
            self._judged = id(error), raised.inner
            return raised
        if self._complete:
            return Returned(self._result)
        return self.raised(Misconfigured("the block ended without held.complete(result): nobody knows if it happened"))

    def raised(self, error: BaseException) -> Raised:
        return Raised(error, inner=self._is_inner(error), begun=self.begun)

    def meaning(self, error: BaseException) -> str:
        """What the policy makes of an error of this effect: "closes", "releases" or "unknown"."""
        return self._call.policy.meaning(error, inner=self._is_inner(error))

    def _is_inner(self, error: BaseException) -> bool:
        """Whether this error left a guard inside our effect, and so speaks for that one's effect, not for ours."""
        if self._judged is not None and self._judged[0] == id(error):
            return self._judged[1]  # what our block ended with: by now it has left our own guard, too
        if self._entered and self._began < _born:
            return True  # we are a child that was forked inside our parent's effect, which goes on there
        try:
            left: tuple[str, int] = object.__getattribute__(error, _MARK)
        except AttributeError:
            return False
        process, order = left
        # Whatever left a guard since we began may have left it inside our effect: what a thread, a task or another
        # context works on is not told by where it was started. Unknown is the safe word for it.
        if order > self._began:
            return True
        return process != _process and order > _forked_at.get(process, 0)  # another process's numbers say nothing

    def enter(self) -> None:
        if self._entered:
            raise Misconfigured("this hold is running already")
        self._entered = True
        if _current.get() is not None and (around := _running()) is not None:
            self._around = ref(around)
        self._began = next(_order)
        self._was = _current.set(ref(self))
        leases = self._performer.leases
        if leases is not None and self.record is not None:
            leases.join(self)

    def _give_up(self) -> None:
        self.over = True
        handed_out, self._handed_out = self._handed_out, None
        if handed_out is not None:
            handed_out.taken_back().close()

    def _overslept(self) -> Fenced | None:
        """Whether the lease ended before we were entered; then our key may be somebody else's, and nothing may run."""
        if self.record is None or self._performer.leases is None or self.seconds_left > 0:
            return None
        self._give_up()
        return Fenced(
            f"the hold on {self._call.key} was entered when its lease had ended, so nothing may be done with it any "
            "more; ask again with the same key",
            key=self.key,
            token=self.token,
        )

    def leave(self) -> None:
        self.over = True
        if self._was is not None:
            try:
                _current.reset(self._was)
            except ValueError:
                pass  # left in another context than it was entered in, where it does not count any more
            self._was = None
        leases = self._performer.leases
        if leases is not None:
            leases.leave(self)

    def let_go(self) -> None:
        """Whoever had to end it has dropped it: it is renewed no more, the lease speaks. For the garbage collector."""
        self.over = True
        if self._performer.leases is not None:
            self._performer.leases.leave(self)

    @property
    def rest(self) -> object:
        """What is left of the attempt. Somebody must have it, or the garbage collector may end it together with the
        hold: then whoever wants to end the hold in a finalizer finds nothing to settle it with."""
        return self._handed_out

    def _ended(self, ended: Any, error: BaseException | None) -> None:
        try:
            self.answer = self._performer.conclude(ended)
        except BaseException as left:
            if left is not error:  # the block's own error goes on by itself
                raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._call.key.operation} {self._call.key.short} token {self.token}>"

    def hand_out(self, steps: Generator[Command, Any, Any]) -> None:
        """To be entered by the caller, who then drives the rest of these steps."""
        self._handed_out = _HandedOut(self._performer, steps)


class Held(_Hold):
    """The hold of a sync effect. As a context manager only when it came from `guard.hold()`."""

    def sending(self) -> None:
        """Write the fenced mark, right before the provider is called; raises Fenced if the hold is lost."""
        if self.record is not None:
            self.record = drive(sending(self._call, self.record), self._performer.perform)  # type: ignore[assignment]
            self.begun = True

    def __enter__(self) -> Held:
        if self._handed_out is None or self._entered:
            raise Misconfigured("this hold is not to be entered: it is running, or it is over")
        if (ended := self._performer.too_late()) is not None:
            self._give_up()
            raise ended
        if (fenced := self._overslept()) is not None:
            self._performer.withdraw(open_command(self._call))
            raise fenced
        try:
            self.enter()
        except BaseException:
            self.over = True  # interrupted: the block will not run, and nobody will leave it
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        handed_out, self._handed_out = self._handed_out, None
        if handed_out is not None:
            self._ended(self._performer.end(handed_out.taken_back(), self.outcome(error)), error)


class _Done:
    """What is there to await where nothing is left to do."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_DONE = _Done()


class AsyncHeld(_Hold):
    """The hold of an async effect."""

    loop: Loop  # where it runs: the timer thread renews it there, on a store without a sync twin

    _unwritten = False  # sending() was called, and its mark is not written yet

    def sending(self) -> Awaitable[None]:
        """The same, to be awaited; in a thread without a loop (a plain `def` handler) it blocks until it is written."""
        if self.record is None:
            return _DONE
        # From the call on, not from the write: whoever forgets the await goes on to send all the same.
        before, self.begun, self._unwritten = self.begun, True, True
        if in_a_loop():
            return self._mark(before)
        self.loop.start(lambda: self._mark(before)).result(timeout=self.lease_seconds)
        return _DONE

    def stranded(self) -> bool:
        """Left behind in a loop that is closed, though somebody has its task; who stands behind it need not wait."""
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

    def leave(self) -> None:
        super().leave()
        if self._unwritten:
            _log.error(
                "held.sending() of %s was called and never awaited: no mark was written, so after a crash it may "
                "happen twice",
                self._call.key.operation,
            )

    async def __aenter__(self) -> AsyncHeld:
        if self._handed_out is None or self._entered:
            raise Misconfigured("this hold is not to be entered: it is running, or it is over")
        if (ended := self._performer.too_late()) is not None:
            self._give_up()
            raise ended
        if (fenced := self._overslept()) is not None:
            await self._performer.withdraw(open_command(self._call))
            raise fenced
        try:
            self.enter()
        except BaseException:
            self.over = True  # interrupted: the block will not run, and nobody will leave it
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        handed_out, self._handed_out = self._handed_out, None
        if handed_out is not None:
            self._ended(await self._performer.end(handed_out.taken_back(), self.outcome(error)), error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
