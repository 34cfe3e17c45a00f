"""What a run is, and how a change becomes part of it: the same code for both stores.

A change is an operation with an id of its own. A run remembers the ids it has applied, so the drainer may apply the
log of a buffered run again without counting an increment twice.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from samekey.intake.metadata import MetadataError, apply_operations

VERSION = 1  # of a buffered entry; an entry of a newer version is a dead letter here
APPLIED_MAX = 1100  # operation ids that a run remembers: more than a buffered run may have
TAGS_MAX = 10
TAG_MAX_CHARACTERS = 128


class Problem(Exception):
    """A request that cannot be served: an HTTP status, a text for the caller, and when to come again."""

    def __init__(self, status: int, message: str, *, code: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.retry_after = status, message, code, retry_after


class RunState(enum.StrEnum):
    QUEUED = "queued"
    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def over(self) -> bool:
        return self not in (RunState.QUEUED, RunState.STARTED)


@dataclass(frozen=True, slots=True)
class Run:
    """One run, from either store. Times are seconds since 1970."""

    id: str
    environment: str
    task: str
    payload: str | None
    payload_type: str = "application/json"
    fingerprint: str = ""
    created_at: float = 0.0  # when it was accepted, in either store
    key: str | None = None
    key_shown: str | None = None  # the text that the key was made of, where the client sent it
    digest: str | None = None
    generation: int = 0
    key_expires_at: float | None = None
    until: str = "ttl"
    on_failure: str = "free"
    maker: str | None = None  # the request id of the trigger that made it: its retry hears isCached false again
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: str | None = None
    function: str = "trigger"
    unlisted: bool = False  # the filter of known keys may not have its key yet
    state: RunState = RunState.QUEUED
    updated_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    delayed_until: float | None = None
    expires_at: float | None = None  # of a run that must start by then
    output: str | None = None
    output_type: str | None = None
    error: str | None = None
    key_freed: bool = False
    applied: tuple[str, ...] = ()
    buffered: bool = False  # read from the buffer

    def key_live(self, now: float) -> bool:
        """Whether its key still answers with this run."""
        if self.digest is None or self.key_freed:
            return False
        if self.key_expires_at is not None and self.key_expires_at <= now:
            return False
        if self.state in (RunState.FAILED, RunState.EXPIRED) and self.on_failure == "free":
            return False
        return not (self.until == "terminal" and self.state.over)

    def blob(self) -> bytes:
        """The immutable part of a buffered run."""
        facts = {name: value for name, value in asdict(self).items() if value not in (None, (), {}, False, "")}
        return json.dumps({"v": VERSION, **facts, "payload": self.payload}, separators=(",", ":")).encode()

    @classmethod
    def from_blob(cls, blob: bytes, *, created_at: float | None = None) -> Run:
        """Raises ValueError for an entry that this version cannot read."""
        facts = json.loads(blob)
        if not isinstance(facts, dict) or facts.pop("v", None) != VERSION:
            raise ValueError("an entry of another version")
        try:
            facts["state"] = RunState(facts.get("state", "queued"))
            facts["tags"], facts["applied"] = tuple(facts.get("tags", ())), tuple(facts.get("applied", ()))
            made = cls(**{"payload": None, **facts})
        except TypeError as error:
            raise ValueError(f"not an entry of this version: {error}") from None
        return made if created_at is None else replace(made, created_at=created_at, updated_at=created_at)


Operation = Mapping[str, Any]  # {"id": ..., "op": ..., "at": seconds, ...}


def fold(run: Run, operations: Iterable[Operation]) -> Run:
    """The run with these operations applied, each once. An operation that no longer fits changes nothing."""
    for operation in operations:
        if operation["id"] in run.applied:
            continue
        try:
            changed = apply(run, operation)
        except Problem:
            changed = run  # it was checked when it was accepted, and the run has moved on since
        run = replace(changed, applied=(*changed.applied, operation["id"])[-APPLIED_MAX:])
    return run


def apply(run: Run, operation: Operation) -> Run:
    """The run after one operation; raises Problem where it cannot be applied."""
    at = float(operation["at"])
    match operation["op"]:
        case "tags":
            return replace(run, tags=merged_tags(run.tags, operation["tags"]), updated_at=at)
        case "metadata":
            try:
                given = operation.get("metadata")
                changed = apply_operations(run.metadata if given is None else given, operation.get("operations") or ())
            except MetadataError as error:
                raise Problem(422, str(error)) from None
            return replace(run, metadata=changed, updated_at=at)
        case "cancel":
            if run.state.over:
                return run
            return replace(run, state=RunState.CANCELED, finished_at=at, updated_at=at)
        case "reschedule":
            if run.delayed_until is None or run.state is not RunState.QUEUED or run.delayed_until <= at:
                raise Problem(422 if run.buffered else 400, "only a run whose delay has not ended can be rescheduled")
            return replace(run, delayed_until=operation["delayed_until"], updated_at=at)
        case "start":
            if run.state is RunState.QUEUED:
                return replace(run, state=RunState.STARTED, started_at=at, updated_at=at)
            return run
        case "complete" | "fail" as ended:
            if run.state.over:
                return run  # the first outcome stays
            done = replace(run, finished_at=at, updated_at=at, started_at=run.started_at or at)
            if ended == "fail":
                return replace(done, state=RunState.FAILED, error=operation.get("error"))
            return replace(
                done,
                state=RunState.COMPLETED,
                output=operation.get("output"),
                output_type=operation.get("output_type", "application/json"),
            )
        case "expire":
            if run.state is not RunState.QUEUED:
                return run
            return replace(run, state=RunState.EXPIRED, finished_at=at, updated_at=at)
        case "free":
            return replace(run, key_freed=True, updated_at=at)
        case other:
            raise Problem(422, f"unknown operation {other!r}")


def merged_tags(before: tuple[str, ...], given: Any) -> tuple[str, ...]:
    """The tags with these added, each once."""
    new = [given] if isinstance(given, str) else given
    if not isinstance(new, (list, tuple)) or not all(isinstance(one, str) and one for one in new):
        raise Problem(422, "tags must be a text or a list of texts")
    if any(len(one) > TAG_MAX_CHARACTERS for one in new):
        raise Problem(422, f"a tag has at most {TAG_MAX_CHARACTERS} characters")
    tags = tuple(dict.fromkeys((*before, *new)))
    if len(tags) > TAGS_MAX:
        raise Problem(422, f"a run has at most {TAGS_MAX} tags")
    return tags
