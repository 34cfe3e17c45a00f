"""Writing to a database that is not samekey's: one shape for every server, where a command makes or fills a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from samekey.drivers.reading import Row


class Writing(Protocol):
    """One connection in autocommit. Errors are those of `drivers.reading`."""

    name: str  # the address for people, without a password

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """The rows of one statement. Each `%s` in it is a value; without values the statement goes out as it is."""
        ...

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """The statement once for each row of values."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """The statements inside commit together; an exception rolls them back."""
        ...

    def close(self) -> None: ...
