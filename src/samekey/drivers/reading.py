"""Reading a database that is not samekey's: one shape for every server, and the three ways in which a statement fails.

Each `rows` is one read-only transaction with a time limit. Nothing is written, and no transaction stays open between
two statements, so a long audit does not hold back the clean-up of old row versions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from samekey.core.errors import SamekeyError

LOCK_SECONDS = 0.1  # an audit gives way: it never waits longer for a lock, and queues no writer for longer
CATALOG_SECONDS = 30.0  # for one catalog query; 1,500 tables take less than one second

CHUNK = 1000  # rows that `each` keeps in memory at a time

Row = tuple[Any, ...]


class CannotRead(SamekeyError):
    """The database cannot be reached, or the login is refused."""


class StatementStopped(SamekeyError):
    """The statement did not end in its time, or another session kept a lock that it needs."""


class NotPermitted(SamekeyError):
    """The role may not read this."""


class Refused(SamekeyError):
    """A unique key refused the row."""


Run = Callable[[str], list[Row]]  # runs one statement of a trial; raises Refused or StatementStopped


class Reading(Protocol):
    """One connection that only reads."""

    name: str  # the address for people, without a password

    def rows(self, sql: str, *, seconds: float = CATALOG_SECONDS, whole_table: bool = False) -> list[Row]:
        """The rows of one SELECT. `whole_table`: the planner may use no index, because an index may be broken."""
        ...

    def each(self, sql: str, *, seconds: float, whole_table: bool = False) -> Generator[Row, None, None]:
        """The same, one row after another: a result of any size needs little memory. One at a time, to its end."""
        ...

    def trial(self) -> AbstractContextManager[Run]:
        """A transaction in which temporary tables can be made and filled. Nothing of it stays."""
        ...

    def close(self) -> None: ...
