"""Events as log lines, for the standard library's logging.

A log is read by more people than the records are, and kept longer. So a line carries no key, payload, result,
tenant or error text: an event's name, the operation, eight digits of the key's digest (`samekey ls --json` shows
the keys with their digests), state, token, eight digits of the attempt, names of types, and seconds.
"""

from __future__ import annotations

import logging

from samekey.core.context import running_effect
from samekey.core.events import DEBUG, EVENTS, line_of, loggable
from samekey.core.ports import Event


class LoggingHook:
    """One line per event to the logger `samekey.events`, or to the one given.

    `level` is the level of ordinary events. Events that need attention have the level of `core.events.EVENTS`,
    whatever `level` is. A guard without this hook logs the events from WARNING on, to the logger `samekey`; with it
    the guard leaves them to the hook.

    >>> from samekey import Guard
    >>> guard = Guard("memory://", hooks=[LoggingHook(level=logging.INFO)])
    """

    logs = True  # the guard writes no line of its own for an event

    def __init__(self, logger: logging.Logger | None = None, *, level: int = logging.DEBUG) -> None:
        self._logger = logging.getLogger("samekey.events") if logger is None else logger
        self._levels = {name: level if fact.level == DEBUG else fact.level for name, fact in EVENTS.items()}

    def __call__(self, event: Event) -> None:
        level = self._levels[event.name]
        if not self._logger.isEnabledFor(level):
            return
        fields = loggable(event)
        self._logger.log(
            level, "%s", line_of(fields), extra={f"samekey_{name}": value for name, value in fields.items()}
        )


class SamekeyFilter(logging.Filter):
    """Puts four fields on the application's own log lines: which effect wrote them.

    `samekey_operation`, `samekey_digest` (eight digits of the key's digest), `samekey_request_id` and
    `samekey_trace_id`; "" outside every effect. Add it to a handler, so that it sees the lines of all loggers.

    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(SamekeyFilter())
    >>> handler.setFormatter(logging.Formatter("%(message)s [%(samekey_operation)s %(samekey_digest)s]"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "samekey_operation"):  # a line of LoggingHook has its own
            effect = running_effect()
            operation, digest, request_id, trace_id = ("", "", "", "") if effect is None else effect
            record.samekey_operation, record.samekey_digest = operation, digest
            record.samekey_request_id, record.samekey_trace_id = request_id, trace_id
        return True
