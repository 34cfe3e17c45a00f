"""The MySQL store inside a transaction that the caller began and will commit.

Two callers with one key: the second one's INSERT waits for the first one's commit, and must then see its record,
although its own snapshot (REPEATABLE READ, the default) is older. So a settled record is looked for over a connection
of the store's own, which sees whatever is committed and locks nothing; and what is read here is read with FOR UPDATE,
which goes past the snapshot. Never a locking read before the INSERT: of a row that is not there it would lock the gap,
and two callers would wait for each other.

The server may give a transaction up for the sake of another one (a deadlock). Then nothing of it is left, and the
caller is told to begin again: going on would commit the second half alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from samekey.core.commands import Open, Read, StoreCommand
from samekey.core.errors import StoreError, StoreUnavailable
from samekey.core.record import Record
from samekey.core.register import apply, expired, seen_at
from samekey.drivers import pymysql as driver
from samekey.stores._mysql_links import Links, TooLarge, without_result
from samekey.stores._mysql_rows import (
    CAS_MAX,
    LOOK_AND_HOLD,
    delete,
    insert_all,
    literal,
    look,
    moment_of,
    record_of,
    update,
)

LOCK_SECONDS = 1  # the server's shortest; the guard asks again until its patience is over

_HASTE = f"SET @samekey_wait = @@innodb_lock_wait_timeout, innodb_lock_wait_timeout = {LOCK_SECONDS}"
_HASTE_OVER = "SET innodb_lock_wait_timeout = @samekey_wait"

# A locking read makes no snapshot: that is for the caller's own first look, which may come after a long wait of ours.
_EPOCH = "SELECT CAST(value AS BINARY) FROM samekey_meta WHERE name = 'epoch' LOCK IN SHARE MODE"
_PLACE = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('hostname', 'port', 'server_id', 'server_uuid')"

_numbers = count(1)


class MysqlTransaction:
    """The store's commands on the caller's connection; seen by others when the caller commits."""

    def __init__(self, links: Callable[[], Links], address: driver.Address, connection: Any) -> None:
        self.name = address.name
        self._links = links
        self._address = address
        self._connection: driver.Connection = connection
        self._marks: list[tuple[str, str]] = []  # names as the guard gives them, and as the server knows them

    @staticmethod
    def takes(connection: Any) -> bool:
        return driver.is_connection(connection)

    def same_database(self) -> bool:
        """Whether the connection's tables are the store's own, on the same server."""
        links = self._links()
        with links.borrowed():
            pass  # so that we know our own
        try:
            rows, _ = driver.run(self._connection, _EPOCH)
            said, _ = driver.run(self._connection, _PLACE)
        except driver.DriverError:
            return False  # no such table, or none that this user may see
        facts = links.facts
        return (
            facts is not None
            and bool(rows)
            and rows[0][0].decode() == facts.epoch
            and driver.place(said) == facts.place
        )

    @property
    def in_transaction(self) -> bool:
        return driver.in_transaction(self._connection)

    def begin_transaction(self) -> None:
        self._run("BEGIN")

    def commit_transaction(self) -> None:
        self._run("COMMIT")

    def rollback_transaction(self) -> None:
        if self.in_transaction:
            self._run("ROLLBACK")

    def savepoint(self, name: str) -> None:
        # A number of its own: here a second savepoint of the same name replaces the first, an effect's its caller's.
        mark = f"samekey_{name}_{next(_numbers)}"
        self._run(f"SAVEPOINT {mark}")
        self._marks.append((name, mark))

    def rollback_to(self, name: str) -> None:
        self._run(f"ROLLBACK TO SAVEPOINT {self._mark(name)}")

    def release_savepoint(self, name: str) -> None:
        mark = self._mark(name)
        del self._marks[self._marks.index((name, mark)) :]
        self._run(f"RELEASE SAVEPOINT {mark}")

    def perform(self, command: StoreCommand) -> Record | None:
        if isinstance(command, Open):
            return self._open(command)
        if isinstance(command, Read):
            return self._read(command)
        try:
            return self._change(command)
        except TooLarge as error:
            return self._change(without_result(command, error))

    def worth_waiting(self, error: StoreError) -> bool:
        return error.__cause__ is not None and driver.is_busy(error.__cause__)

    # -- commands ------------------------------------------------------------------------------------------

    def _open(self, command: Open) -> Record | None:
        links = self._links()
        (record, moment), _ = links.insist(lambda run: look(run, command.key))
        if record is not None and record.settled and not expired(record, moment):
            return links.shown(record, moment)  # it will never change: no need to hold it
        fresh = apply(None, command, moment)
        assert fresh is not None  # noqa: S101 - what an Open makes of nothing
        self._run(_HASTE)
        try:
            self._insert(fresh)
            return self._change(command)
        finally:
            if self._connection.open:
                self._run(_HASTE_OVER)

    def _insert(self, record: Record) -> None:
        """Whether it was new, the locking read says: what the count means is the caller's setting (FOUND_ROWS)."""
        with self._told():
            insert_all(self._statement, [record])

    def _read(self, command: Read) -> Record | None:
        with self._told():
            record, moment = look(self._statement, command.key)
        if record is None:  # not in our snapshot: is it there by now?
            (record, moment), _ = self._links().insist(lambda run: look(run, command.key))
        return None if record is None or expired(record, moment) else seen_at(record, moment)

    def _change(self, command: StoreCommand) -> Record | None:
        with self._told():
            for _ in range(CAS_MAX):
                rows, _ = self._statement(LOOK_AND_HOLD % literal(command.key.digest))
                if not rows:
                    return None
                before, moment = record_of(rows[0], command.key), moment_of(rows[0])
                after = apply(before, command, moment)
                if after is before or (
                    update(self._statement, before, after) if after else delete(self._statement, before)
                ):
                    return None if after is None else self._links().shown(after, moment)
        raise StoreUnavailable(f"{command.key} changes although it is held")

    # -- statements ----------------------------------------------------------------------------------------

    def _statement(self, statement: str) -> tuple[Sequence[Any], int]:
        return self._links().runner(self._connection)(statement)

    def _run(self, statement: str) -> None:
        with self._told():
            self._statement(statement)

    def _told(self) -> _Told:
        return _Told(self)

    def _mark(self, name: str) -> str:
        return next((mark for known, mark in reversed(self._marks) if known == name), f"samekey_{name}")


class _Told:
    """`with` statements on the caller's connection: what their errors mean to the transaction."""

    __slots__ = ("_in",)

    def __init__(self, transaction: MysqlTransaction) -> None:
        self._in = transaction

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, driver.DriverError):
            return
        name = self._in.name
        # StoreError, and not "unavailable": there is nothing to try again in a transaction that is gone.
        if driver.is_rolled_back(error):
            driver.refresh(self._in._connection)
            raise StoreError(
                f"{name} rolled the transaction back for the sake of another one: begin it again"
            ) from error
        if driver.is_lost(error):
            raise StoreError(f"the connection to {name} was lost, and with it the transaction") from error
        raise driver.store_error(self._in._address, error) from error
