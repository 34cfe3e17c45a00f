"""The answers of samekey itself: problem details (RFC 9457), one type for each.

Each has a heading of the same name in docs/problems.md. A problem reveals nothing of the store, of the first request or
of its answer: any stranger may read it.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from samekey.core import errors

RETRY_AFTER_MAX_SECONDS = 5  # the holder's lease may be long; it is likely done much sooner
TYPES_AT = "https://samekey.readthedocs.io/problems/#"


class Problem(NamedTuple):
    """One kind of problem; with `retry` the same request may simply be sent again."""

    name: str
    status: int
    title: str
    retry: bool = False


KEY_MISSING = Problem("key-missing", 400, "Idempotency-Key is missing")
KEY_MALFORMED = Problem("key-malformed", 400, "Idempotency-Key is malformed")
EVENT_ID_MISSING = Problem("event-id-missing", 400, "The event has no id")
BODY_INCOMPLETE = Problem("body-incomplete", 400, "The request body ended early")
NO_PRINCIPAL = Problem("no-principal", 401, "The Idempotency-Key has no authenticated owner")
BAD_SIGNATURE = Problem("bad-signature", 401, "The signature of this event does not verify")
REFUSED = Problem("refused", 403, "The operation was refused for good")
IN_PROGRESS = Problem("in-progress", 409, "A request is outstanding for this Idempotency-Key", retry=True)
IN_DOUBT = Problem("in-doubt", 409, "Whether this operation happened is unknown")
NOT_KEPT = Problem("result-not-kept", 409, "The operation happened; its answer was not kept")
BODY_TOO_LARGE = Problem("body-too-large", 413, "The request body is too large to be guarded by an Idempotency-Key")
KEY_REUSED = Problem("key-reused", 422, "Idempotency-Key is already used")
NOT_DONE = Problem("not-done", 503, "The operation did not happen", retry=True)
STORE_UNAVAILABLE = Problem("store-unavailable", 503, "The keys cannot be looked up right now", retry=True)

PROBLEMS = tuple(one for one in list(globals().values()) if isinstance(one, Problem))  # all of the above


def problem_of(error: Exception) -> tuple[Problem, str, dict[str, Any], float] | None:
    """Problem, detail, more members and seconds to wait; None for an error that the application must answer."""
    match error:
        case errors.KeyMalformed():
            return KEY_MALFORMED, error.message, {}, 0
        case errors.KeyReused():
            # The sender may know the names of these fields: the key belongs to the same tenant.
            named = {"fields": list(error.fields)} if error.fields else {}
            return KEY_REUSED, "This key was used before for another request. Use a new key for a new one.", named, 0
        case errors.Busy():
            return IN_PROGRESS, "Send the same request with the same key again later.", {}, error.retry_after
        case errors.Fenced():
            return IN_PROGRESS, "Another attempt took the key meanwhile. Send the same request again.", {}, 1
        case errors.InDoubt():
            return (
                IN_DOUBT,
                "An earlier attempt ended before its outcome was known. Do not send it again under a new key: it may "
                "have happened. A person or the provider settles it; send it again later with the same key.",
                {"age_seconds": round(getattr(error, "age_seconds", 0.0))},
                0,
            )
        case errors.ResultNotKept() | errors.ResultUnreadable():
            return NOT_KEPT, "It is done and is not done again. Read the resource itself to see the outcome.", {}, 0
        case errors.StoreError():
            return STORE_UNAVAILABLE, "This request did nothing. Send the same request with the same key again.", {}, 1
        case errors.Refused():
            return REFUSED, error.reason or "Every request with this key gets this answer.", {}, 0
        case errors.NotDone():
            return NOT_DONE, error.reason or "Send the same request with the same key again.", {}, 1
    return None


def problem_body(problem: Problem, detail: str, members: dict[str, Any], types_at: str) -> bytes:
    fixed = {"type": types_at + problem.name, "title": problem.title, "status": problem.status, "detail": detail}
    return json.dumps({**fixed, **members}).encode()


def retry_after(seconds: float) -> str:
    return str(max(1, min(math.ceil(seconds), RETRY_AFTER_MAX_SECONDS)))
