"""samekey: same key, same answer, always.

The exactly-once-effects layer for Python. Start with `Guard`; raise `Refused` and `NotDone` for what your effect
knows; declare with a boundary what may be done after a crash.
"""

import inspect as _inspect
import typing as _typing

from samekey.core.boundary import (
    Absent,
    Asks,
    Atomic,
    Compensatable,
    Conflicting,
    Declined,
    Happened,
    Keyed,
    Opaque,
    Repeatable,
    StillUnknown,
)
from samekey.core.call import Answer
from samekey.core.errors import (
    Busy,
    CallerError,
    Fenced,
    InDoubt,
    InProgress,
    KeyMalformed,
    KeyMissing,
    KeyReused,
    Misconfigured,
    NotDone,
    PayloadRefused,
    RecordUnreadable,
    Refused,
    ResultNotKept,
    ResultUnreadable,
    SamekeyError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    Uncertain,
)
from samekey.core.notes import notes_of
from samekey.core.policy import FOREVER, Policy
from samekey.core.record import Record
from samekey.core.shapes import DEFINED_IN as _DEFINED_IN
from samekey.core.states import State
from samekey.guard.binding import CONTENT, Content
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.hold import AsyncHeld, Held, current

__all__ = [
    "CONTENT",
    "FOREVER",
    "Absent",
    "Answer",
    "Asks",
    "Compensatable",
    "AsyncGuard",
    "AsyncHeld",
    "Atomic",
    "Busy",
    "CallerError",
    "Conflicting",
    "Content",
    "Declined",
    "Fenced",
    "Guard",
    "Happened",
    "Held",
    "InDoubt",
    "InProgress",
    "KeyMalformed",
    "KeyMissing",
    "KeyReused",
    "Keyed",
    "Misconfigured",
    "NotDone",
    "Opaque",
    "PayloadRefused",
    "Policy",
    "Record",
    "RecordUnreadable",
    "Refused",
    "Repeatable",
    "ResultNotKept",
    "ResultUnreadable",
    "SamekeyError",
    "State",
    "StillUnknown",
    "StoreError",
    "StoreBusy",
    "StoreUnavailable",
    "TransactionConflict",
    "Uncertain",
    "current",
    "notes_of",
]

__version__ = "0.1.0"


def _publish(thing: _typing.Any) -> None:
    """Show a public name as `samekey.KeyReused`, in tracebacks and in help, and not by the file that defines it."""
    if isinstance(thing, type):
        _DEFINED_IN[thing] = thing.__module__
        own = _inspect.get_annotations(thing)
        if own:
            # Annotations are texts, and are read in the namespace of `__module__`: resolve them in the defining one.
            hints = _typing.get_type_hints(thing, include_extras=True)
            thing.__annotations__ = {name: hints[name] for name in own}
    if hasattr(thing, "__qualname__"):
        thing.__module__ = "samekey"


for _name in __all__:
    _publish(globals()[_name])


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__version__"]
