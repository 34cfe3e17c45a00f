"""samekey: same key, same answer, always.

The exactly-once-effects layer for Python. Start with `Guard`; say what your effect knows with `Refused`
and `NotDone`; declare what stands behind it with a boundary.
"""

from samekey.core.boundary import (
    Absent,
    Asks,
    Atomic,
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
from samekey.core.policy import Policy
from samekey.core.record import Record
from samekey.core.states import State
from samekey.guard.binding import CONTENT, Content
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.hold import AsyncHeld, Held, current

__version__ = "0.1.0"

__all__ = [
    "CONTENT",
    "Absent",
    "Answer",
    "Asks",
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
]
