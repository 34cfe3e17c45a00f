"""A run as the public trigger API shows it: one serializer for both stores."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from samekey.intake.runs import Problem, Run, RunState
from samekey.intake.times import iso

STATUS = {
    RunState.QUEUED: "QUEUED",
    RunState.STARTED: "EXECUTING",
    RunState.COMPLETED: "COMPLETED",
    RunState.FAILED: "FAILED",
    RunState.CANCELED: "CANCELED",
    RunState.EXPIRED: "EXPIRED",
}
STATES = {status: state.value for state, status in STATUS.items()} | {"DELAYED": "queued"}
# The names that a realtime row has for them.
_ROW_STATUS = {"QUEUED": "PENDING", "COMPLETED": "COMPLETED_SUCCESSFULLY", "FAILED": "COMPLETED_WITH_ERRORS"}


def status_of(run: Run) -> str:
    if run.state is RunState.QUEUED and run.delayed_until is not None and run.delayed_until > time.time():
        return "DELAYED"
    return STATUS[run.state]


def shown(run: Run, *, whole: bool = True) -> dict[str, Any]:
    """The fields that the client requires, and those it may have; an optional one is left out, never null."""
    state, ended = run.state, run.finished_at
    fields: dict[str, Any] = {
        "id": run.id,
        "status": status_of(run),
        "taskIdentifier": run.task,
        "isQueued": state is RunState.QUEUED,
        "isExecuting": state is RunState.STARTED,
        "isWaiting": False,
        "isCompleted": state.over,
        "isSuccess": state is RunState.COMPLETED,
        "isFailed": state in (RunState.FAILED, RunState.EXPIRED),
        "isCancelled": state is RunState.CANCELED,
        "isTest": bool(run.options.get("test")),
        "createdAt": iso(run.created_at),
        "updatedAt": iso(run.updated_at),
        "tags": list(run.tags),
        "costInCents": 0,
        "baseCostInCents": 0,
        "durationMs": int((ended - run.started_at) * 1000) if ended and run.started_at else 0,
        "env": {"id": run.environment, "name": run.environment},
        "buffered": run.buffered,
        "options": dict(run.options),
    }
    optional = {
        "idempotencyKey": run.key_shown or run.key if whole else run.key,
        "metadata": dict(run.metadata) or None,
        "startedAt": run.started_at and iso(run.started_at),
        "finishedAt": ended and iso(ended),
        "delayedUntil": run.delayed_until and iso(run.delayed_until),
        "expiredAt": iso(ended) if ended and state is RunState.EXPIRED else None,
        "ttl": run.options.get("ttl"),
        "batchId": run.batch,
        "error": {"message": run.error or "the run failed"} if state is RunState.FAILED else None,
    }
    fields |= {name: value for name, value in optional.items() if value is not None}
    if whole:
        fields |= {"depth": 0, "triggerFunction": run.function, "relatedRuns": {}, "attemptCount": int(state.over)}
        if run.payload is not None:
            fields["payload"] = value_of(run.payload, run.payload_type)
        if run.output is not None:
            fields["output"] = value_of(run.output, run.output_type or "application/json")
    return fields


def value_of(text: str, kind: str) -> Any:
    """What a serialised payload holds; a text that is no JSON is shown as it is."""
    if kind not in ("application/json", "application/super+json"):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if kind == "application/super+json" and isinstance(value, dict) and "json" in value:
        return value["json"]
    return value


def meaning_of(text: str | None, kind: str) -> Any:
    """What a fingerprint is made of: the content, not its spelling, nor the path of a packet."""
    if text is None:
        return None
    if kind not in ("application/json", "application/super+json"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise Problem(422, f"the payload is no {kind}") from None


def result_of(run: Run) -> dict[str, Any]:
    """The outcome of a run that is over."""
    if run.state is RunState.COMPLETED:
        return {"ok": True, "id": run.id, "outputType": run.output_type or "application/json", "output": run.output}
    reason = run.error or f"the run is {run.state.value}"
    return {"ok": False, "id": run.id, "error": {"type": "STRING_ERROR", "raw": reason}}


# -- realtime ------------------------------------------------------------------------------------------------------

_TYPES = {"runTags": {"type": "text", "dims": 1}, "isTest": {"type": "bool"}, "number": {"type": "int4"}}
_ROW_FIELDS = (
    "id", "taskIdentifier", "friendlyId", "status", "createdAt", "updatedAt", "startedAt", "delayUntil", "expiredAt",
    "completedAt", "idempotencyKey", "isTest", "ttl", "payload", "payloadType", "metadata", "metadataType", "output",
    "outputType", "runTags", "error",
)  # fmt: skip
SCHEMA: Mapping[str, Any] = {name: _TYPES.get(name, {"type": "text"}) for name in _ROW_FIELDS}


def row_of(run: Run) -> dict[str, str | None]:
    """A row of the realtime shape: every value is a text, as PostgreSQL writes it, times without their zone."""
    status = status_of(run)

    def at(seconds: float | None) -> str | None:
        return None if seconds is None else iso(seconds).removesuffix("Z")

    return {
        "id": run.id,
        "friendlyId": run.id,
        "taskIdentifier": run.task,
        "status": _ROW_STATUS.get(status, status),
        "createdAt": at(run.created_at),
        "updatedAt": at(run.updated_at),
        "startedAt": at(run.started_at),
        "delayUntil": at(run.delayed_until),
        "expiredAt": at(run.finished_at) if run.state is RunState.EXPIRED else None,
        "completedAt": at(run.finished_at),
        "idempotencyKey": run.key,
        "isTest": "t" if run.options.get("test") else "f",
        "ttl": run.options.get("ttl"),
        "payload": run.payload,
        "payloadType": run.payload_type,
        "metadata": json.dumps(dict(run.metadata)),
        "metadataType": "application/json",
        "output": run.output,
        "outputType": run.output_type,
        "runTags": "{" + ",".join(json.dumps(tag, ensure_ascii=False) for tag in run.tags) + "}",
        "error": json.dumps({"type": "STRING_ERROR", "raw": run.error or ""}) if run.state is RunState.FAILED else None,
    }
