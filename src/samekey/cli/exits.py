"""Exit codes: one table for every command, so that scripts can branch without parsing."""

from __future__ import annotations

from enum import IntEnum

from samekey.core.errors import CallerError, InDoubt, RecordUnreadable, SamekeyError
from samekey.ops import CannotResolve, MovedOn, NoSuchKey


class Exit(IntEnum):
    FINE = 0  # fine, and no record needs a person
    FOUND = 1  # ran well, and found something: a doubt, a hold past its lease, a warning
    USAGE = 2  # the command cannot be run as written
    NO_STORE = 3  # cannot connect, not permitted, or no samekey tables there
    INCOMPLETE = 4  # not everything was read or done: never reported as clean
    MOVED_ON = 5  # refused, nothing written: the record is not, or no longer, what the command is about
    NO_SUCH_KEY = 6
    OUR_BUG = 70


class NoStore(SamekeyError):
    """The store cannot be opened."""


def exit_of(error: SamekeyError) -> Exit:
    match error:
        case MovedOn() | CannotResolve() | InDoubt():
            return Exit.MOVED_ON
        case NoSuchKey():
            return Exit.NO_SUCH_KEY
        case RecordUnreadable():
            return Exit.INCOMPLETE  # the store answered, but the record cannot be read
        case CallerError():
            return Exit.USAGE
        case _:
            return Exit.NO_STORE
