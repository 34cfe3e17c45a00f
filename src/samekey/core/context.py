"""Which effect is running here: one context variable. The guard sets it; hooks and `detect` read it.

Neither hooks nor detect may import the guard, so the variable is here. It has a weak reference to the hold: a hold that
its caller dropped is not renewed, and no context keeps it alive.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

current_hold: ContextVar[Any] = ContextVar("samekey_current", default=None)  # of the hold that was entered last


class Effect(NamedTuple):
    """The effect that runs here, in values that a log line may hold."""

    operation: str
    key_digest: str  # eight hexadecimal digits
    request_id: str
    trace_id: str


def running_hold() -> Any:
    """The innermost hold of this context that is not over, or None.

    A context outlives the effects that ran in it: it is copied for tasks, and a hold may be left in another context.
    """
    known = current_hold.get()
    held = None if known is None else known()
    while held is not None and held.over:
        around = held._around
        held = None if around is None else around()
    return held


def running_effect() -> Effect | None:
    """What runs here, or None outside every effect."""
    held = running_hold()
    effect: Effect | None = None if held is None else held.effect
    return effect
