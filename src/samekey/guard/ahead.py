"""Claims made ahead of their turn: a batch holds keys whose effects have not begun.

An effect of the batch may need the key of one behind it. To wait for that one would be to wait for itself, so the
batch gives the claim up: whoever needs the key runs it, and the batch asks again when its turn comes. A claim is in
one hand only: to take it out of the dict is one step, for the batch as for the effect.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

Ahead = dict[str, Any]  # by attempt: what its batch keeps of the claim

# Of the batches we run inside of, the innermost first.
batches: ContextVar[tuple[Ahead, ...]] = ContextVar("samekey_batches", default=())


def given_up(attempt: str) -> Any:
    """The claim of this attempt, now ours to let go, if a batch that we run inside of made it for later."""
    for ahead in batches.get():
        claim = ahead.pop(attempt, None)
        if claim is not None:
            return claim
    return None
