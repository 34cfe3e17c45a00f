"""Asking the provider about a record now, without a call that runs the effect: for operators and workers."""

from __future__ import annotations

from typing import Any

from samekey.core.boundary import Verdict
from samekey.core.drive import adrive, drive
from samekey.core.errors import Misconfigured
from samekey.core.record import Record
from samekey.core.recovery import ask_now
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.operations import Operation, no_effect
from samekey.loops import running

Asked = tuple[Record | None, Verdict | None]


def operation_of(guard: Guard | AsyncGuard, name: str) -> Operation:
    """The rules that this guard has for records of an operation; Misconfigured if it has none that can ask."""
    found = [one for one in guard.declared() if one.covers(name)]
    exact = [one for one in found if one.name == name or name in one.aliases] or found
    for declared in exact:
        if declared.operation is not None and declared.lookup is not None:
            return declared.operation
    if not found:
        raise Misconfigured(f"this guard has no operation {name!r}")
    raise Misconfigured(f"{name!r} has no lookup: declare Asks(lookup) or Keyed(lookup=...), or resolve it by hand")


def ask(guard: Guard, record: Record) -> Asked:
    """Call the lookup of the record's boundary and write its verdict down; the record after that, and the verdict."""
    operation = operation_of(guard, record.key.operation)
    call = guard.new_call(operation, record.key.text, None, record.key.tenant)
    performer = guard._performer(call, no_effect).alone()
    try:
        asked: Any = drive(ask_now(call, record), performer.perform)
    except BaseException as error:
        if not isinstance(error, Exception):
            performer.ask_again()  # interrupted: let the next attempt ask at once
        raise
    found: Asked = asked
    return found


async def async_ask(guard: AsyncGuard, record: Record) -> Asked:
    """The same, awaited; the lookup may be async."""
    operation = operation_of(guard, record.key.operation)
    call = guard.new_call(operation, record.key.text, None, record.key.tenant)
    performer = guard._performer(call, no_effect).alone()
    try:
        asked: Any = await adrive(ask_now(call, record), performer.perform)
    except BaseException as error:
        if not isinstance(error, Exception):
            await running().shielded(performer.ask_again)
        raise
    found: Asked = asked
    return found
