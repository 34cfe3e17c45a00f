"""What one attempt reports: its events on the way, and exactly one outcome at its end.

An attempt ends in `conclude` (an answer, or the effect's own error), in `end_in` (an error of the guard), in
`end_interrupted` (Ctrl-C, a cancelled task), or in `end_later` (its hold was dropped). The first of them counts.

Without hooks an attempt costs one count and nothing else: no clock is read and no event is made.
"""

from __future__ import annotations

import time
from typing import Any

from samekey.core.boundary import ATOMIC
from samekey.core.call import Answer, Call, Failed
from samekey.core.commands import CallLookup, Open, Settle, Take, Tell, Testify
from samekey.core.events import (
    EVENTS,
    LAST_EVENT,
    outcome_of_answer,
    outcome_of_error,
    outcome_of_failure,
)
from samekey.core.ports import Event
from samekey.core.record import Record
from samekey.core.states import SETTLED, State
from samekey.guard.facts import Facts, WatchedHook
from samekey.guard.hold import leaving

TRACEPARENT = "traceparent"


class Reporting:
    """The part of a performer that reports, in both colours."""

    call: Call
    last: Record | None
    waited_seconds: float
    unwritten: bool
    outcome: str = ""  # of core.events.OUTCOMES, once the attempt is over; `conclude` is always the last, and sets none
    _facts: Facts
    _hooks: tuple[WatchedHook, ...]
    _settled: Record | None
    ran: bool
    _unguarded = False
    _late = False
    _effect_from: float | None = None
    _effect_seconds: float | None = None
    _sent_at: float | None = None
    _sent_seconds: float | None = None

    # -- the end of an attempt -------------------------------------------------------------------------------------

    def conclude(self, ended: Answer[Any] | Failed | Any) -> Answer[Any]:
        """Report how it ended, and return or raise it."""
        if isinstance(ended, Failed):
            self._end_failed(ended.error)
            raise leaving(ended.error)
        answer: Answer[Any] = ended
        if answer.guarded and not answer.replayed:
            outcome = "new"
        else:
            outcome = outcome_of_answer(answer, waited=self.waited_seconds > 0)
        call = self.call
        source = self._facts.source(call.attributes) if call.attributes else ""
        self._facts.count(call.key.operation, source, outcome)  # not by `_count`: most attempts end here
        if self._hooks:
            self._tell_end("replayed" if answer.replayed else "completed", outcome)
        return answer

    def end_in(self, error: BaseException) -> None:
        """It ended in an error of the guard, unless it has ended already."""
        if not self.outcome:
            outcome = outcome_of_error(error, waited=self.waited_seconds > 0)
            self._end_as(LAST_EVENT.get(outcome, "raised"), outcome, type(error).__name__)

    def end_interrupted(self, asked: Any) -> None:
        """It was interrupted; `asked` is the command that the store had not answered, and was asked again."""
        if self.outcome:
            return
        match asked:
            case Open() | Take():
                outcome = "released"
            case Settle(state=state):
                outcome = "new" if state is State.COMPLETED else outcome_of_failure(state, ran=True, unguarded=False)
            case Testify():
                outcome = "fenced"
            case CallLookup():
                outcome = "in_doubt"
            case _:
                outcome = "in_doubt" if self.ran else "in_progress"
        event = "released" if outcome == "released" else LAST_EVENT.get(outcome, "raised")
        self._end_as(event, outcome, "")

    def end_later(self, event: str, outcome: str) -> None:
        """The garbage collector found its hold. It may run inside any lock, so hooks are called by another thread."""
        if not self.outcome:
            self.outcome = outcome
            self._facts.books.later(lambda: self._report(event, outcome, ""))

    def _end_failed(self, error: BaseException) -> None:
        record, state = self.last, None
        if self.call.terms.kind is ATOMIC and record is None:
            state = State.RELEASED  # undone with its transaction
        elif record is not None and not self.unwritten and not isinstance(error, GeneratorExit):
            if record.attempt == self.call.attempt or record.state is State.CLOSED:
                state = record.state
        outcome = outcome_of_failure(state, ran=self.ran, unguarded=self._unguarded)
        name = type(error).__name__
        if self._hooks and self.ran and outcome == "refused":
            self.tell("closed", record, error=name)
        self._end_as("raised", outcome, name)

    def _end_as(self, event: str, outcome: str, error: str) -> None:
        self.outcome = outcome
        self._report(event, outcome, error)

    def _report(self, event: str, outcome: str, error: str) -> None:
        self._count(outcome)
        if self._hooks or EVENTS[event].needs_a_person:
            self._tell_end(event, outcome, error)

    def _count(self, outcome: str) -> None:
        call = self.call
        self._facts.count(call.key.operation, self._facts.source(call.attributes) if call.attributes else "", outcome)

    def _tell_end(self, event: str, outcome: str, error: str = "") -> None:
        if self.waited_seconds:
            self.tell("waited", self._settled, duration=self.waited_seconds)
        if self._late and event != "fenced":
            self.tell("fenced", self.last)
        detail = "refused" if event == "store_down" else error
        record = self._settled or self.last
        self.tell(event, record, detail, error=error, outcome=outcome, duration=self._effect_seconds)

    # -- on the way ------------------------------------------------------------------------------------------------

    def note_answered(self, record: Record | None) -> None:
        """The store replied to a claim. Events name the record that a replay comes from."""
        if self._hooks and record is not None and record.state in SETTLED:
            self._settled = record

    def note_effect(self, record: Record | None) -> None:
        """The effect begins, and there are hooks."""
        if record is not None:
            self.tell("claimed", record)
        self._effect_from = time.monotonic()

    def note_sending(self) -> None:
        if self._hooks and self._sent_at is None:
            self._sent_at = time.monotonic()

    def note_effect_over(self) -> None:
        if self._effect_from is not None:
            now = time.monotonic()
            self._effect_seconds = now - self._effect_from
            if self._sent_at is not None:
                self._sent_seconds = now - self._sent_at

    def report(self, command: Tell) -> None:
        """A fact of the core."""
        name, record = command.event, command.record
        if name == "unguarded":
            self._unguarded = True
        elif name == "late" or name == "conflicting":
            self._late = self._late or name == "late"
            self._find(name, record, command.detail)
        self.tell(name, record, command.detail, error=command.error)

    def tell(
        self,
        name: str,
        record: Record | None,
        detail: str = "",
        *,
        error: str = "",
        outcome: str = "",
        duration: float | None = None,
    ) -> None:
        """An event for the hooks; without hooks, a log line for what needs a person."""
        facts, call = self._facts, self.call
        if not (self._hooks or EVENTS[name].needs_a_person):
            return
        key, attributes = call.key, call.attributes
        facts.tell(
            Event(
                name,
                key.operation,
                key.short,
                key.tenant,
                "" if record is None else record.state.value,
                0 if record is None else record.token,
                call.attempt,
                detail,
                error,
                outcome,
                duration,
                self._sent_seconds if outcome else None,
                "" if record is None else record.fingerprint[:8].hex(),
                facts.source(attributes) if attributes else "",
                dict(attributes) if attributes else {},
                _first_trace(call, record) if facts.begins and record is not None else "",
            )
        )

    def _find(self, kind: str, record: Record | None, detail: str) -> None:
        """A finding for a person, written to the store soon. An attempt has one of each kind."""
        call, late = self.call, kind == "late"
        happened = detail == State.COMPLETED
        self._facts.books.find(
            kind,
            severity=("high" if happened else "low") if late else "critical",
            title=f"a late attempt reports {detail}" if late else f"the provider has it more than once: {detail}",
            about=(call.attempt,),
            operation=call.key.operation,
            tenant=call.key.tenant,
            digest=call.key.digest.hex(),
            evidence={
                "attempt": call.attempt,
                "token": 0 if record is None else record.token,
                "state": "" if record is None else record.state.value,
                "reports": detail,
            },
            proposal="compare the record's evidence with the provider: of two effects, undo one"
            if late
            else "refund all but one at the provider, then resolve the key",
            source="guard",
        )


def _first_trace(call: Call, record: Record) -> str:
    """The traceparent of the attempt that made the record, if it is not this one."""
    for name, value in record.attributes:
        if name == TRACEPARENT:
            return "" if (name, value) in call.attributes else value
    return ""
