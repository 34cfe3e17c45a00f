"""A worker's look at one record, with the rules that the guard has for its operation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from samekey.core.boundary import Boundary, Compensatable, Lookup
from samekey.core.call import Call
from samekey.core.pursuit import Pursued, pursue
from samekey.core.record import Record
from samekey.core.recovery import Look
from samekey.core.sealing import PAYLOAD, unseal
from samekey.core.shapes import Unreadable
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.operations import Declared, Operation, no_effect

Wrap = Callable[[Lookup], Lookup]


def declared_for(guard: Guard | AsyncGuard, name: str) -> Declared | None:
    """The entry of the registry for records of this operation name, with its rules; None if there is none."""
    found = [one for one in guard.declared() if one.covers(name) and one.operation is not None]
    exact = [one for one in found if one.name == name or name in one.aliases]
    return next(iter((*exact, *found)), None)


def pursue_record(guard: Guard, record: Record, declared: Declared, look: Look, wrap: Wrap | None = None) -> Pursued:
    """Look at this record once. `wrap` gets the lookup, and returns the one to call."""
    call, effect = prepared(guard, record, declared, wrap)
    look = replace(look, can_run=effect is not None)
    performer = guard._performer(call, effect or no_effect).alone()
    pursued: Pursued = performer.go_on(pursue(call, look))
    return pursued


async def async_pursue_record(
    guard: AsyncGuard, record: Record, declared: Declared, look: Look, wrap: Wrap | None = None
) -> Pursued:
    """The same, awaited; lookup and effect may be async."""
    call, effect = prepared(guard, record, declared, wrap)
    look = replace(look, can_run=effect is not None)
    performer = guard._performer(call, effect or no_effect).alone()
    pursued: Pursued = await performer.go_on(pursue(call, look))
    return pursued


def prepared(
    guard: Guard | AsyncGuard, record: Record, declared: Declared, wrap: Wrap | None
) -> tuple[Call, Callable[[], Any] | None]:
    """The call of a worker about this record, and its effect if the payload was kept and can be read."""
    operation = declared.operation
    if operation is None:
        raise TypeError(f"the rules of {declared.name} are not known")
    payload: Any = None
    effect: Callable[[], Any] | None = None
    run, kept = declared.effect, record.payload
    if run is not None and kept is not None:
        try:
            payload = read_payload(operation, record, kept)
            effect = _with(run, payload)
        except (Unreadable, ValueError):
            payload, effect = None, None
    call = guard.new_call(operation, record.key.text, payload, record.key.tenant)
    call.key, call.aliases, call.to_caller = record.key, (), False
    if wrap is not None:
        call.boundary = with_lookup(call.boundary, wrap)
    return call, effect


def read_payload(operation: Operation, record: Record, kept: bytes) -> Any:
    """The kept payload as plain values; ValueError where it holds others (a date, a Decimal, bytes)."""
    sealer = None if operation.keeping is None else operation.keeping.sealer
    return json.loads(unseal(sealer, kept, PAYLOAD, record.key))


def with_lookup(boundary: Boundary, wrap: Wrap) -> Boundary:
    lookup = boundary.asks_with
    if lookup is None:
        return boundary
    if isinstance(boundary, Compensatable):
        return replace(boundary, inner=with_lookup(boundary.inner, wrap))
    changed: Boundary = replace(boundary, lookup=wrap(lookup))  # type: ignore[call-arg]
    return changed


def _with(run: Callable[[Any], Any], payload: Any) -> Callable[[], Any]:
    return lambda: run(payload)
