"""Late truth: an effect happened, and its callers had got another answer.

The write that first shows it marks the record (`core.inquiry`), so nothing is lost between that write and the delivery.
A worker delivers: to the function that `guard.on_late_truth` declares, under a key of its own, so that it runs once for
each key, or again where it raised or its process died; or, without such a function, as a finding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samekey.core.books import Finding, make_finding
from samekey.core.boundary import Boundary, Compensatable, Repeatable
from samekey.core.call import Answer, replay
from samekey.core.commands import Deliver
from samekey.core.errors import SamekeyError
from samekey.core.inquiry import Inquiry
from samekey.core.ports import Event
from samekey.core.record import Record
from samekey.core.states import State
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.operations import Declared
from samekey.guard.pursuing import declared_for

LATE = "samekey.late_truth"  # the operation under which handlers run
AGAIN = Repeatable()  # a handler that raised, or whose process died, is called again


@dataclass(frozen=True, slots=True)
class LateTruth:
    """What was reported to the callers of a key, and what turned out."""

    operation: str
    key: str
    tenant: str | None
    reported: str  # "failed" or "unknown"
    reported_at: float
    reported_error: str
    happened_at: float
    result: Any  # as a replay returns it; None where it was not kept
    by: str  # the attempt, lookup or person that brought it
    reference: str  # what the provider knows the effect by: the provider key of its round


def truth_of(guard: Guard | AsyncGuard, record: Record, declared: Declared | None) -> LateTruth:
    inquiry = record.inquiry or Inquiry()
    return LateTruth(
        operation=record.key.operation,
        key=record.key.text,
        tenant=record.key.tenant,
        reported=inquiry.reported,
        reported_at=inquiry.reported_at,
        reported_error=inquiry.reported_error,
        happened_at=record.settled_at or record.changed_at,
        result=_result(guard, record, declared),
        by=record.settled_by or "",
        reference=record.provider_key(),
    )


def _result(guard: Guard | AsyncGuard, record: Record, declared: Declared | None) -> Any:
    """The result as a replay returns it; of a closed record, that of the evidence."""
    if declared is None or declared.operation is None:
        return None
    evidence = record.happened
    if record.state is State.CLOSED and evidence is not None:
        record = record.changed(state=State.COMPLETED, result=evidence.result)
    call = guard.new_call(declared.operation, record.key.text, None, record.key.tenant)
    call.key = record.key
    try:
        answer = replay(call, record)
    except SamekeyError:
        return None
    return answer.result if isinstance(answer, Answer) else None


def finding_of(truth: LateTruth, record: Record) -> Finding:
    return make_finding(
        "late-truth",
        at=record.now,
        severity="high",
        title=f"{record.key.operation} happened, and its callers got: {truth.reported}",
        operation=record.key.operation,
        tenant=record.key.tenant,
        digest=record.key.digest.hex(),
        evidence={"reported": truth.reported, "error": truth.reported_error, "token": record.token},
        proposal="tell the customer, or undo it; declare guard.on_late_truth to have this done by a function",
        source="worker",
    )


Todo = tuple[str, str, Boundary, Callable[[], Any]]  # operation, key, boundary, effect


def handlers_of(guard: Guard | AsyncGuard, record: Record, truth: LateTruth, declared: Declared | None) -> list[Todo]:
    """What is to be run for it."""
    found: list[Todo] = []
    boundary = None if declared is None else declared.boundary
    if isinstance(boundary, Compensatable) and boundary.wants(truth):
        undo = functools.partial(boundary.compensate, truth)
        found.append((f"{truth.operation}.compensate", truth.reference, boundary.boundary, undo))
    handler = guard.late_handlers.get(truth.operation)
    if handler is not None:
        key = f"{record.key.digest.hex()}:{record.token}"
        found.append((LATE, key, AGAIN, functools.partial(handler, truth)))
    return found


def payload_of(truth: LateTruth, record: Record) -> dict[str, Any]:
    return {"digest": record.key.digest.hex(), "token": record.token, "reported": truth.reported}


def event_of(truth: LateTruth, record: Record) -> Event:
    return Event(
        "late_truth",
        record.key.operation,
        record.key.digest.hex(),
        record.key.tenant,
        str(record.state),
        record.token,
        record.attempt,
        detail=truth.reported,
        error=truth.reported_error,
    )


def deliver(guard: Guard, record: Record) -> bool:
    """Deliver the late truth of this record; whether a function took it. What a function raises goes out."""
    declared = declared_for(guard, record.key.operation)
    truth = truth_of(guard, record, declared)
    todo = handlers_of(guard, record, truth, declared)
    for name, key, boundary, effect in todo:
        guard.run(name, effect, key=key, payload=payload_of(truth, record), boundary=boundary)
    if not todo:
        guard.store.keep_finding(finding_of(truth, record))
    guard._facts.tell(event_of(truth, record), logged=True)
    guard.store.carry_out(Deliver(record))
    return bool(todo)


async def async_deliver(guard: AsyncGuard, record: Record) -> bool:
    """The same, awaited; the functions are async."""
    declared = declared_for(guard, record.key.operation)
    truth = truth_of(guard, record, declared)
    todo = handlers_of(guard, record, truth, declared)
    for name, key, boundary, effect in todo:
        await guard.run(name, effect, key=key, payload=payload_of(truth, record), boundary=boundary)
    if not todo:
        await guard.store.keep_finding(finding_of(truth, record))
    guard._facts.tell(event_of(truth, record), logged=True)
    await guard.store.carry_out(Deliver(record))
    return bool(todo)
