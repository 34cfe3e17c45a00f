"""Checks what a caller gives, and makes steps of it: shared by Intake, AsyncIntake and the HTTP service."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict
from uuid import uuid4

from samekey.core.errors import CallerError
from samekey.core.fingerprint import Intent
from samekey.intake import admin, pipeline
from samekey.intake import commands as c
from samekey.intake.ids import check_key, check_name, key_digest
from samekey.intake.metadata import MetadataError, apply_operations
from samekey.intake.pipeline import Steps, Trigger
from samekey.intake.runs import Problem, Run, RunState, merged_tags
from samekey.intake.settings import Settings, Task
from samekey.intake.times import duration, moment

PAGE_SIZE = 25
PAGE_MAX = 100
WAITED_MAX = 10_000  # runs that trigger_and_wait has a bell for


class TriggerOptions(TypedDict, total=False):
    """What a trigger may be given besides its task and payload."""

    environment: str | None
    key: str | None
    key_ttl: Any  # seconds, or a text such as "24h"
    key_shown: str | None
    tags: Any
    metadata: Mapping[str, Any] | None
    delay: Any
    ttl: Any
    options: Mapping[str, Any]  # kept with the run and shown; the intake does not act on them
    payload_type: str
    fingerprinted: Any  # what the payload means, where its text has another form (a packet, super+json)
    request_id: str | None  # the same on every retry of one request
    batch: str | None
    function: str


class Requests:
    """The steps of each request."""

    def __init__(self, environment: str, settings: Settings, tasks: Mapping[str, Task]) -> None:
        self.environment = check_name("environment", environment)
        self.settings, self.tasks = settings, tasks
        self._bells: dict[str, threading.Event] = {}

    # -- triggers

    def triggering(self, task: str, payload: Any, given: Mapping[str, Any], *, wait: bool = False) -> Steps:
        trigger = self.trigger_of(task, payload, given, wait=wait)
        known = yield admin.Know()
        return (yield from pipeline.resolve_or_create(trigger, known))

    def item(self, item: Mapping[str, Any]) -> Steps:
        """One item of a batch."""
        rest = {name: value for name, value in item.items() if name not in ("task", "payload")}
        unknown = sorted(set(rest) - set(TriggerOptions.__annotations__))
        if "task" not in item or unknown:
            raise Problem(400, f"an item has a task, a payload and options; not {unknown or 'without a task'}")
        return (yield from self.triggering(item["task"], item.get("payload"), {"function": "batchTrigger", **rest}))

    def trigger_of(self, task: str, payload: Any, given: Mapping[str, Any], *, wait: bool = False) -> Trigger:
        """The checked trigger; raises Problem before anything is written."""
        now, settings = time.time(), self.settings
        check_name("task", task)
        environment = self._where(given.get("environment"))
        rules = self.tasks.get(task, _DEFAULT)
        key = check_key(given.get("key"))
        life = settings.key_life if given.get("key_ttl") is None else duration("idempotencyKeyTTL", given["key_ttl"])
        text, kind = _payload_text(payload, given.get("payload_type"))
        if text is not None and len(text.encode("utf-8", "surrogatepass")) > settings.payload_max_bytes:
            raise Problem(413, f"the payload is larger than {settings.payload_max_bytes} bytes")
        meaning = given.get("fingerprinted", payload)
        try:
            fingerprint = Intent(meaning, rules.ignore).digest.hex()
        except CallerError as error:
            raise Problem(422, f"the payload cannot be compared: {error}") from None
        metadata = given.get("metadata")
        try:
            metadata = apply_operations({} if metadata is None else metadata, ())
        except MetadataError as error:
            raise Problem(422, str(error)) from None
        delay = given.get("delay")
        delayed_until = None if delay is None else moment("delay", delay, now)
        ttl = given.get("ttl")
        expires_at = None if ttl is None else (delayed_until or now) + duration("ttl", ttl)
        options = dict(given.get("options") or {})
        if ttl is not None:
            options["ttl"] = ttl if isinstance(ttl, str) else f"{ttl}s"
        tags = given.get("tags")
        run = Run(
            id="",
            environment=environment,
            task=task,
            payload=text,
            payload_type=kind,
            fingerprint=fingerprint,
            created_at=now,
            updated_at=now,
            key=key,
            key_shown=given.get("key_shown"),
            digest=None if key is None else key_digest(environment, task, key),
            key_expires_at=None if key is None else now + life,
            until=rules.until,
            on_failure=rules.on_failure,
            maker=given.get("request_id"),
            tags=merged_tags((), [] if tags is None else tags),
            metadata=metadata,
            options=options,
            batch=given.get("batch"),
            function=given.get("function") or ("triggerAndWait" if wait else "trigger"),
            delayed_until=delayed_until,
            expires_at=expires_at,
        )
        return Trigger(
            run, now, life, uuid4().hex, request=given.get("request_id"), wait=wait, patience=settings.patience
        )

    def _where(self, environment: Any) -> str:
        return self.environment if environment is None else check_name("environment", environment)

    # -- reads and changes

    def getting(self, run_id: str, environment: str | None) -> Steps:
        known = yield admin.Know()
        return (yield from pipeline.get(self._where(environment), run_id, known))

    def listing(self, environment: str | None, filters: Mapping[str, Any]) -> Steps:
        given = dict(filters)
        size = given.pop("size", PAGE_SIZE)
        if not isinstance(size, int) or not 1 <= size <= PAGE_MAX:
            raise Problem(400, f"a page has 1 to {PAGE_MAX} runs")
        before, after = given.pop("before", None), given.pop("after", None)
        unknown = sorted(set(given) - {"state", "task", "tag", "batch", "from", "to"})
        if unknown:
            raise Problem(400, f"unknown filter {unknown[0]!r}")
        wanted = {
            name: ((value,) if isinstance(value, str) else tuple(value)) if name not in ("from", "to") else value
            for name, value in given.items()
            if value is not None
        }
        asked = c.Page(self._where(environment), size, _place(before), wanted, _place(after))
        found = yield from pipeline.page(asked, lambda run: _matches(run, wanted))
        return found[:size]

    def tagging(self, run_id: str, tags: Any, environment: str | None) -> Steps:
        new = [tags] if isinstance(tags, str) else list(tags) if isinstance(tags, Iterable) else tags
        merged_tags((), new)
        return (yield from self._changing(run_id, {"op": "tags", "tags": new}, environment))

    def annotating(
        self, run_id: str, metadata: Any, operations: Any, environment: str | None, operation_id: str | None = None
    ) -> Steps:
        operation = {"op": "metadata", "metadata": metadata, "operations": list(operations or ())}
        return (yield from self._changing(run_id, operation, environment, operation_id))

    def canceling(self, run_id: str, environment: str | None) -> Steps:
        known = yield admin.Know()
        changed: c.Changed = yield from pipeline.change(
            self._where(environment), run_id, _operation({"op": "cancel"}), known
        )
        if changed.after.state is RunState.CANCELED and not changed.before.state.over:
            yield from pipeline.free_if_over(changed.after, known, time.time())
            yield admin.Ended(changed.after, canceled=not changed.after.buffered)
        return changed.after

    def rescheduling(self, run_id: str, delay: Any, environment: str | None) -> Steps:
        now = time.time()
        until = moment("delay", delay, now)
        if until <= now:
            raise Problem(400, "the delay is in the past")
        return (yield from self._changing(run_id, {"op": "reschedule", "delayed_until": until}, environment))

    def resetting(self, task: str, key: str, environment: str | None) -> Steps:
        where, checked = self._where(environment), check_key(key)
        if checked is None:
            raise Problem(400, "an empty key is no key")
        known = yield admin.Know()
        digest = key_digest(where, check_name("task", task), checked)
        return (yield from pipeline.reset_key(where, digest, known, _operation({"op": "free"})))

    def _changing(
        self, run_id: str, operation: Mapping[str, Any], environment: str | None, operation_id: str | None = None
    ) -> Steps:
        known = yield admin.Know()
        changed: c.Changed = yield from pipeline.change(
            self._where(environment), run_id, _operation(operation, operation_id), known
        )
        return changed.after

    # -- reports of the worker

    def reporting(self, run_id: str, what: str, facts: Mapping[str, Any], environment: str | None) -> Steps:
        known = yield admin.Know()
        changed: c.Changed = yield from pipeline.change_row(
            self._where(environment), run_id, _operation({"op": what, **facts}), known
        )
        if changed.after.state.over and not changed.before.state.over:
            yield admin.Ended(changed.after, canceled=False)
        return changed.after

    def output_of(self, output: Any) -> dict[str, Any]:
        try:
            text = json.dumps(output)
        except (TypeError, ValueError) as error:
            raise Problem(422, f"the output is not JSON: {error}") from None
        if len(text) > self.settings.payload_max_bytes:
            raise Problem(413, f"the output is larger than {self.settings.payload_max_bytes} bytes")
        return {"output": text, "output_type": "application/json"}

    # -- waiting for the end of a run

    def bell(self, run_id: str) -> threading.Event:
        """Rings when the run ends in this process; another process is noticed by looking again."""
        if len(self._bells) > WAITED_MAX:
            self._bells.clear()
        return self._bells.setdefault(run_id, threading.Event())

    def ring(self, run_id: str) -> None:
        bell = self._bells.pop(run_id, None)
        if bell is not None:
            bell.set()

    @staticmethod
    def not_over(run: Run) -> Problem:
        return Problem(408, f"the run {run.id} is {run.state.value}: it did not end before the deadline")


_DEFAULT = Task()


def _operation(facts: Mapping[str, Any], operation_id: str | None = None) -> dict[str, Any]:
    return {"id": operation_id or uuid4().hex, "at": time.time(), **facts}


def _place(run: Any) -> tuple[float, str] | None:
    if run is None or isinstance(run, tuple):
        return run
    return run.created_at, run.id


def _matches(run: Run, wanted: Mapping[str, Any]) -> bool:
    """Whether a buffered run fits the filters that the database applies to its rows."""
    return (
        ("state" not in wanted or run.state.value in wanted["state"])
        and ("task" not in wanted or run.task in wanted["task"])
        and ("batch" not in wanted or run.batch in wanted["batch"])
        and ("tag" not in wanted or bool(set(run.tags) & set(wanted["tag"])))
        and ("from" not in wanted or run.created_at >= wanted["from"])
        and ("to" not in wanted or run.created_at <= wanted["to"])
    )


def _payload_text(payload: Any, kind: str | None) -> tuple[str | None, str]:
    """The payload as it is kept: text of a known type as it came, anything else as JSON."""
    if kind is not None:
        if payload is not None and not isinstance(payload, str):
            raise Problem(400, "a payload with a payloadType is a text")
        return payload, kind
    if payload is None:
        return None, "application/json"
    try:
        return json.dumps(payload), "application/json"
    except (TypeError, ValueError) as error:
        raise Problem(422, f"the payload is not JSON: {error}") from None
