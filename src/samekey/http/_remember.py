"""What an answer means for its key: the presets of `remember=`.

                     2xx 3xx   listed final   4xx                             5xx         exception
    success_only     keep      close          release, or unknown             unknown     unknown
    ietf_draft       keep      close          keep, 429 as success_only       keep, 503 unknown   unknown
    stripe_v1        keep      close          keep, or release (see below)    keep        keep

A 4xx releases the key only if this attempt cannot have reached its provider: it took no `provider_key()` and called
no `sending()`. Otherwise it is unknown, and the boundary decides what that means. `current().release()` and
`current().keep()` overrule the table, because the handler knows more.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

Meaning = Literal["keep", "close", "release", "unknown"]
Remember = Literal["success_only", "ietf_draft", "stripe_v1"]

PRESETS: tuple[str, ...] = get_args(Remember)
BEFORE_EXECUTION = frozenset({400, 401, 409, 422, 429})  # validation, authentication, conflicts, rate limits

TRY_LATER = frozenset({429, 503})  # a replay of one would refuse every retry for the whole retention


def meaning_of(status: int, remember: str, final: frozenset[int], held: Any) -> Meaning:
    """What an answer of this status, given under this hold, means for its key."""
    decision = held.decision
    if decision == "release":
        return "release"
    if decision == "keep" or status < 400:
        return "keep"
    if status in final:
        return "close"
    if remember == "ietf_draft" and status not in TRY_LATER:
        return "keep"
    if remember == "stripe_v1":
        # Stripe keeps every answer after execution began, which is here: once the provider may have been reached.
        return "release" if status in BEFORE_EXECUTION and not held.reached_out else "keep"
    if status < 500:
        return "unknown" if held.reached_out else "release"
    return "unknown"
