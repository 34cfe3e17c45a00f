"""Asking a provider from the console: with the lookups that a guard of the user declares."""

from __future__ import annotations

from samekey.console.desk import Ask
from samekey.core.errors import Misconfigured
from samekey.core.record import Record
from samekey.core.recovery import spoken
from samekey.core.states import State
from samekey.guard.asking import Asked, ask, async_ask, operation_of
from samekey.guard.guards import AsyncGuard, Guard
from samekey.loops import aside

AnyGuard = Guard | AsyncGuard


def asks(guard: AnyGuard) -> Ask:
    """A function that asks about one record, and returns a sentence about the verdict."""

    async def asked(record: Record) -> str:
        operation_of(guard, record.key.operation)  # Misconfigured, with a sentence, where nothing can be asked
        if isinstance(guard, AsyncGuard):
            return _sentence(await async_ask(guard, record))
        sync = guard
        return _sentence(await aside(lambda: ask(sync, record))())

    return asked


def operations_of(guard: AnyGuard) -> tuple[str, ...]:
    return tuple(declared.name for declared in guard.declared())


def cannot_be_asked(record: Record) -> str | None:
    """Why there is nothing to ask about this record; None if there is."""
    if record.lease_live:
        return "its holder is alive, and will settle it"
    if record.settled or (record.state is State.RELEASED and record.happened is None):
        return f"it is {record.state.value.replace('_', ' ')}: there is no doubt to ask about"
    return None


def check_asked(record: Record) -> None:
    reason = cannot_be_asked(record)
    if reason is not None:
        raise Misconfigured(f"{record.key} cannot be asked about: {reason}")


def _sentence(asked: Asked) -> str:
    record, verdict = asked
    answer = "The provider was not asked" if verdict is None else f"The provider's answer: {spoken(verdict)}"
    state = "is gone" if record is None else f"is now {record.state.value.replace('_', ' ')}"
    return f"{answer}. The record {state}."
