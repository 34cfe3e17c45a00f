"""A connection that the threads of a process share: `stores._turns` says how they take turns.

A lone command on an open connection takes the short way: built, sent, read. Everything else (several commands, no
connection yet, an error, a lost reply) is carried out by the steps of `_batches`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.connect import connect, with_settings
from samekey.drivers.postgres.connection import AsyncConnection, Connection
from samekey.drivers.postgres.errors import DriverError, is_spent, translated
from samekey.drivers.postgres.self_check import Facts, Purpose
from samekey.stores._turns import Turns, Waking
from samekey.stores.postgres._batches import BATCH_MAX, Closed, Item, Pause, Steps, carrying_all
from samekey.stores.postgres._rows import Statement
from samekey.stores.postgres._wire import single

SPARE_SECONDS = 1.0  # how long the spare connection is used before we try to connect again

C = TypeVar("C", Connection, AsyncConnection)


class WithSpare(Generic[C]):
    """A connection, what its self-check found, and its spare, for both colours.

    `spare` is a connection that carries out the commands while this one cannot be opened: a server at its limit of
    connections still takes a settle over the connection of the claim.
    """

    def __init__(self, address: Address, purpose: Purpose, spare: Any) -> None:
        self.address, self._purpose = address, purpose
        self._spare, self._spare_until = spare, 0.0
        self._connection: C | None = None
        self._closed = False
        self.facts: Facts | None = None
        self.lost_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def _check_may_connect(self) -> None:
        if self._spare_until and time.monotonic() < self._spare_until:
            raise StoreUnavailable(f"{self.address.name} refused a connection less than {SPARE_SECONDS:.0f} s ago")

    def _may_use_spare(self, error: Exception) -> bool:
        """Whether the spare can do the work, after this error on connecting."""
        usable = self._spare is not None and self._spare.is_open and not isinstance(error, Misconfigured | Closed)
        self._spare_until = time.monotonic() + SPARE_SECONDS if usable else 0.0
        return usable


class SharedConnection(Turns[Item], WithSpare[Connection]):
    """A connection that threads take turns on."""

    def __init__(
        self,
        address: Address,
        waking: Waking,
        purpose: Purpose,
        *,
        spare: SharedConnection | None = None,
        batch_max: int = BATCH_MAX,
    ) -> None:
        Turns.__init__(self, address.name, batch_max=batch_max, waking=waking)
        WithSpare.__init__(self, address, purpose, spare)

    def ask(self, statement: Statement) -> list[Any]:
        """The rows of one statement that is no command, in a turn of its own."""

        def fetch(turn: Sequence[Item]) -> list[Any]:
            connection = self._connected(turn)
            try:
                return connection.execute(*statement, binary=True).fetchall()
            except DriverError as error:
                if is_spent(error):
                    connection.close()
                raise

        with translated(self.address):
            rows: list[Any] = self.perform([], fetch)
        return rows

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _leave_connection(self) -> None:
        self._connection = None

    def _carry_out(self, items: Sequence[Item], turn: Sequence[Item]) -> None:
        connection = self._connection
        error: Exception | None = None
        if connection is None or connection.closed:
            try:
                self._check_may_connect()
                self._connected(turn)
            except SamekeyError as failed:
                error = failed
            if error is not None and self._may_use_spare(error):
                self._spare.perform(items)
                return
        elif len(items) == 1 and not self._closed and self._leader is turn:
            (item,) = items
            try:
                query = single(item.command)
                if self.address.pgbouncer:
                    query = with_settings(self.address, query, self._purpose.durable)
                reply = connection.ask(query)
            except (SamekeyError, UnicodeError):
                pass  # the command cannot be written as a query: `carrying_all` reports it
            except DriverError as failed:
                error = failed
            else:
                return item.read(reply, self.lost_at)
        self._drive(carrying_all(items, self), turn, error)

    def _drive(self, steps: Steps, turn: Sequence[Item], error: Exception | None) -> None:
        """Carry out the steps; `error` is how the first statement ended, where it was sent already."""
        try:
            step = next(steps)
            if error is not None:
                step = steps.throw(error)
            while True:
                try:
                    if isinstance(step, Pause):
                        time.sleep(step.seconds)
                        reply = None
                    else:
                        query = with_settings(self.address, step, self._purpose.durable)
                        reply = self._connected(turn).ask(query)
                except (DriverError, SamekeyError) as failed:
                    step = steps.throw(failed)
                else:
                    step = steps.send(reply)
        except StopIteration:
            pass
        finally:
            steps.close()

    # -- connecting ----------------------------------------------------------------------------------------

    def _connected(self, turn: Sequence[Item]) -> Connection:
        if self._closed:
            raise Closed(f"{self.address.name} was closed")
        if self._leader is not turn:
            raise self._too_late()
        connection = self._connection
        if connection is None or connection.closed:
            connection, facts = connect(self.address, self._purpose, self.facts)
            with self._mutex:
                if self._leader is turn:
                    self._connection, self.facts, self.lost_at = connection, facts, facts.lost_at
            if self._connection is not connection:
                connection.close()
                raise self._too_late()
        return connection

    def _too_late(self) -> StoreUnavailable:
        return Closed(f"a turn on a connection to {self.address.name} took so long that others have it now")
