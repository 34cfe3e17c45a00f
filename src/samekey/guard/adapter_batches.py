"""`begin_many` and `settle_many`: many calls of an adapter in few round trips.

Claims of up to MANY_MAX keys go to the store in one `batch`, and so do the settles. All other steps (waiting, asking,
a settle that must be tried again) are taken one call at a time, as for a single call. As in `batch.py`, the steps are
written once for both colours.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from samekey.core.call import Answer, Call
from samekey.core.commands import Settle
from samekey.core.drive import Steps
from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.guard.adapters import AsyncRunning, Running, unopened
from samekey.guard.batch import Begun
from samekey.guard.deadline import store_of
from samekey.guard.operations import no_effect


class BeginSome:
    """Calls to begin, as many as are claimed in one go."""

    def __init__(self, guard: Any, seconds: float) -> None:
        self._guard, self._seconds = guard, seconds
        self._opened: list[Any] = []
        self._begun: list[Begun] = []

    def run(self, some: list[Call]) -> Steps:
        opened = self._opened = [None] * len(some)
        for number, call in enumerate(some):
            performer = self._guard._performer(call, no_effect).alone()
            performer.wait_at_most(self._seconds)
            # A call with an earlier name first reads that one; in a transaction claims cannot be batched.
            if call.unguarded or call.aliases or performer.leases is None:
                opened[number] = yield from self._open(performer)
            else:
                self._begun.append(Begun.of(number, performer))
        for one, reply in zip(self._begun, (yield from _carried_out(self._begun)), strict=True):
            opened[one.number] = yield from self._open(one.performer, one.steps, reply)
        return opened

    def let_go(self) -> Steps:
        """Interrupted: nothing has run, so every key is let go."""
        for running in self._opened:
            if isinstance(running, Running | AsyncRunning):
                yield partial(running.release, "interrupted")
        for one in self._begun:
            if self._opened[one.number] is None:
                one.steps.close()
                yield one.performer.ask_again

    def _open(self, performer: Any, steps: Any = None, reply: Any = None) -> Steps:
        try:
            held = yield partial(performer.hold, steps, reply)
            if isinstance(held, Answer):
                return held
            late = held.too_late()
            if late is not None:
                yield performer.withdraw
                raise late
        except Exception as error:
            return unopened(error, performer.call)
        return (AsyncRunning if self._guard._asynchronous else Running)(held, here=False)


class _Write(NamedTuple):
    """One run as far as its settle."""

    number: int
    running: Any
    given: BaseException | None
    steps: Any
    performer: Any


class SettleSome:
    """Runs to end, as many as are settled in one go."""

    def __init__(self) -> None:
        self._writes: list[_Write] = []

    def run(self, some: list[Any]) -> Steps:
        ended: list[Any] = [None] * len(some)
        for number, (running, outcome, given) in enumerate(some):
            performer = running._performer
            if performer.leases is None or running.held.record is None:
                ended[number] = yield partial(running._end, outcome, given)
                continue
            steps = running._begin_end()
            reached = yield partial(performer.reach, Settle, steps, outcome)
            if type(reached) is Settle:
                performer.unanswered = reached
                self._writes.append(_Write(number, running, given, steps, performer))
            else:
                performer.finish()
                ended[number] = running._ended(given, reached)
        if not self._writes:
            return ended
        start = time.monotonic()
        for one, reply in zip(self._writes, (yield from _carried_out(self._writes)), strict=True):
            if isinstance(reply, StoreUnavailable):
                one.performer.tried(reply, start)
            elif not isinstance(reply, Exception):
                one.performer.unanswered = None
                one.performer._note(reply)
            try:
                reached = yield partial(one.performer.go_on, one.steps, reply)
            except SamekeyError as error:
                reached = error
            ended[one.number] = one.running._ended(one.given, reached)
        return ended

    def let_go(self) -> Steps:
        """Interrupted in the middle of the batch: written again, each settle recognises itself."""
        for one in self._writes:
            one.steps.close()
            yield one.performer.ask_again


def _carried_out(some: Sequence[Begun | _Write]) -> Steps:
    """The replies to what each of them asks the store."""
    if not some:
        return []
    commands = [one.performer.unanswered for one in some]
    guard = some[0].performer._guard
    try:
        if type(commands[0]) is not Settle:
            guard._require_open()  # a closed guard takes no claims; what runs is still settled
        return (yield partial(store_of(guard, [one.performer.call for one in some]).batch, commands))
    except SamekeyError as error:
        return [copy.copy(error) for _ in commands]  # one error object for each call
