"""Events as log lines, for the standard library's logging.

A log is read by more people than the records are, and kept longer. So a line carries no key, payload, result,
tenant or error text: an event's name, the operation, eight digits of the key's digest (`samekey ls --json` shows
the keys with their digests), state, token, eight digits of the attempt, and names of types.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from samekey.core.ports import Event

_LEVELS = {
    "taken_over": logging.INFO,
    "resolved": logging.INFO,
    "in_doubt": logging.WARNING,
    "late": logging.WARNING,
    "not_kept": logging.WARNING,
    "not_recorded": logging.WARNING,
    "store_unreachable": logging.WARNING,
    "unguarded": logging.WARNING,
    "conflicting": logging.ERROR,
    "store_lost_memory": logging.ERROR,
    "unmarked": logging.ERROR,
}
_ORDINARY = frozenset({"claimed", "completed", "replayed", "released", "raised"})

# Events whose detail is the name of a type or a state, or a phrase of ours. Other details may quote a key or a result.
_SAFE_DETAIL = frozenset({"in_doubt", "late", "resolved", "conflicting"})
_DETAIL = re.compile(r"the lease ended|\d{1,9} results|[A-Za-z_][A-Za-z0-9_]{0,79}")

_ATTEMPT_CHARS = 8


class LoggingHook:
    """One line per event to the logger `samekey.events`, or to the one given.

    `level` is the level of ordinary events: claimed, completed, replayed, released, raised. Events that need
    attention are INFO (taken over, resolved), WARNING (in doubt, late, not kept, not recorded, unguarded) or ERROR
    (conflicting, the store lost its memory, unmarked), whatever `level` is.

    >>> from samekey import Guard
    >>> guard = Guard("memory://", hooks=[LoggingHook(level=logging.INFO)])
    """

    def __init__(self, logger: logging.Logger | None = None, *, level: int = logging.DEBUG) -> None:
        self._logger = logging.getLogger("samekey.events") if logger is None else logger
        self._level = level

    def __call__(self, event: Event) -> None:
        level = self._level if event.name in _ORDINARY else _LEVELS.get(event.name, logging.INFO)
        if not self._logger.isEnabledFor(level):
            return
        fields = _fields(event)
        line = " ".join(f"{name}={value}" for name, value in fields.items() if name != "event" and value not in ("", 0))
        self._logger.log(
            level, "%s %s", fields["event"], line, extra={f"samekey_{name}": value for name, value in fields.items()}
        )


def _fields(event: Event) -> dict[str, Any]:
    safe = event.name in _SAFE_DETAIL and _DETAIL.fullmatch(event.detail) is not None
    return {
        "event": event.name,
        "operation": event.operation,
        "digest": event.key_digest,
        "state": event.state,
        "token": event.token,
        "attempt": event.attempt[:_ATTEMPT_CHARS],
        "detail": event.detail if safe else "",
    }
