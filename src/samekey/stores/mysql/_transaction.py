"""The MySQL store inside a transaction that the caller began and will commit.

Two callers with one key: the INSERT of the second waits for the commit of the first, and the second must then see that
record, although its own snapshot (REPEATABLE READ, the default) is older. So a settled record is looked for over a
connection of the store, which sees all that is committed and locks nothing; and what is read here is read with FOR
UPDATE, which ignores the snapshot. There is never a locking read before the INSERT: for a missing row it would lock the
gap, and two callers would wait for each other.

The server may roll a transaction back in favour of another one (a deadlock). Then nothing of it is left, and the error
tells the caller to begin again: going on would commit the second half alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from samekey.core.commands import Open, Read, Settle, StoreCommand
from samekey.core.errors import InProgress, Misconfigured, StoreError, StoreUnavailable, TransactionConflict
from samekey.core.record import Record
from samekey.core.register import apply, expired, seen_at
from samekey.core.states import Role
from samekey.core.transaction import Act, RecordGone, Savepoint, SavepointGone
from samekey.drivers.mysql import connect as driver
from samekey.drivers.mysql import errors
from samekey.drivers.mysql.address import Address
from samekey.drivers.mysql.errors import DriverError
from samekey.drivers.mysql.self_check import place_of
from samekey.loops import aside, running
from samekey.stores._over_sync import OverSyncTransaction, PlainTransaction
from samekey.stores.mysql import _rows as rows
from samekey.stores.mysql._connections import Links, TooLarge, without_result

T = TypeVar("T")

LOCK_WAIT_MAX_SECONDS = 100_000_000  # MariaDB's limit, and MySQL's is higher: three years
RETRY_SECONDS = 1.0  # in the error, as the time to wait: the other transaction took longer than the patience already

# Whatever the session's completion_type is: a transaction that COMMIT begins would look like the caller's.
_COMMIT, _ROLLBACK = "COMMIT AND NO CHAIN NO RELEASE", "ROLLBACK AND NO CHAIN NO RELEASE"

_HASTE = "SET @samekey_wait = @@innodb_lock_wait_timeout, innodb_lock_wait_timeout = %d"  # whole seconds, at least one
_HASTE_OVER = "SET innodb_lock_wait_timeout = @samekey_wait"

# A locking read makes no snapshot. The caller's own first read makes it, which may come after a long wait of ours.
_WHERE = "SELECT CAST(value AS BINARY), %s FROM samekey_meta WHERE name = 'epoch' LIMIT 1 LOCK IN SHARE MODE"


class MysqlTransaction(PlainTransaction):
    """The store's commands on the caller's connection; seen by others when the caller commits."""

    # With autocommit off it `begins_by_itself` all the same; an explicit BEGIN is harmless then.

    def __init__(self, links: Callable[[], Links], address: Address, connection: Any) -> None:
        if not driver.is_connection(connection):
            raise Misconfigured(f"Atomic on {address.name} takes a PyMySQL connection, not {type(connection).__name__}")
        self.name = address.name
        self._links = links
        self._address = address
        self.connection = self._connection = connection
        self._began = False  # the transaction is ours, and holds nothing else

    def same_database(self) -> bool:
        """Whether the connection's tables are the store's own, on the same server."""
        links = self._links()
        with links.borrowed():
            pass  # so that the facts of our own connection are known
        facts = links.facts
        if facts is None:
            return False
        try:
            found, _ = driver.run(self._connection, _WHERE % place_of(facts.place))
        except DriverError as error:
            if not errors.is_elsewhere(error):
                self._raise(error, None)
            return False
        return [tuple(map(bytes.decode, row)) for row in found] == [(facts.epoch, facts.place)]

    @property
    def in_transaction(self) -> bool:
        return driver.in_transaction(self._connection)

    @property
    def lost(self) -> bool:
        return not self._connection.open

    @property
    def stale(self) -> bool:
        return driver.is_stale(self._connection)

    def look_again(self) -> None:
        driver.refresh(self._connection)

    def begin(self, patience: float) -> None:
        self._began = True
        self._say("START TRANSACTION")  # BEGIN opens a block in sql_mode ORACLE

    def commit(self) -> None:
        try:
            self._statement(_COMMIT)
        except DriverError as error:
            if errors.is_lost(error):
                raise StoreUnavailable(
                    f"{self.name}: the connection was lost during the commit. Ask again with the same key: "
                    "it answers if the commit got through, and runs if it did not"
                ) from error
            self._raise(error, None)

    def rollback(self) -> None:
        if self.in_transaction:
            self._say(_ROLLBACK)

    def carry_out(self, *acts: Act, patience: float) -> Record | None:
        record = None
        for act in acts:
            if isinstance(act, StoreCommand):
                record = self._perform(act, patience)
            else:
                self._say(act.sql)
                if isinstance(act, Savepoint):
                    self._require_begun()
        return record

    def conflicts(self, error: BaseException) -> bool:
        return errors.is_rolled_back(error)

    def _require_begun(self) -> None:
        """The savepoint's reply has the server's state: without it a transaction that a deadlock ended looks open."""
        if self._connection.get_autocommit() and not self.in_transaction:
            raise Misconfigured(
                "the connection is in no transaction, so nothing would be atomic: none was begun (connection.begin()), "
                "or the server ended it, as it does for a deadlock; then run the whole transaction again"
            )

    # -- commands ------------------------------------------------------------------------------------------

    def _perform(self, command: StoreCommand, patience: float) -> Record | None:
        try:
            if isinstance(command, Open):
                return self._open(command, patience)
            if isinstance(command, Read):
                return self._read(command)
            try:
                return self._change(command)
            except TooLarge as error:
                return self._change(without_result(command, error))
        except DriverError as error:
            self._raise(error, command)

    def _open(self, command: Open, patience: float) -> Record | None:
        links = self._links()
        (record, moment), _ = links.insist(lambda run: rows.look(run, command.key))
        if record is not None and record.settled and not expired(record, moment):
            return links.shown(record, moment)  # it will never change: no need to lock it
        fresh = apply(None, command, moment)
        assert fresh is not None  # noqa: S101 - what an Open makes of nothing
        self._statement(_HASTE % max(1, min(math.ceil(patience), LOCK_WAIT_MAX_SECONDS)))
        try:
            # The locking read shows whether it is new; the meaning of the count is the caller's setting (FOUND_ROWS).
            rows.insert_all(self._statement, [fresh])
            return self._change(command)
        finally:
            if self._connection.open:
                self._statement(_HASTE_OVER)

    def _read(self, command: Read) -> Record | None:
        record, moment = rows.look(self._statement, command.key, rows.LOOK_INSIDE)
        if record is None:  # not in our snapshot: it may be there by now
            (record, moment), _ = self._links().insist(lambda run: rows.look(run, command.key))
        return None if record is None or expired(record, moment) else seen_at(record, moment)

    def _change(self, command: StoreCommand) -> Record | None:
        for _ in range(rows.CAS_MAX):
            held, _ = self._statement(rows.LOOK_AND_HOLD % rows.literal(command.key.digest))
            if not held:
                self._require_moved(command)
                return None
            before, moment = rows.record_of(held[0], command.key), rows.moment_of(held[0])
            after = apply(before, command, moment)
            if after is before:
                self._require_moved(command)
            if after is None:
                wrote = rows.delete(self._statement, before)
            else:
                wrote = after is before or rows.update(self._statement, before, after)
            if wrote:
                return None if after is None else self._links().shown(after, moment)
        raise StoreUnavailable(f"{command.key} changes although it is held")

    def _require_moved(self, command: StoreCommand) -> None:
        """The command changed nothing; but a record that was claimed in this transaction must be there to settle."""
        if isinstance(command, Settle) and command.role is Role.HOLDER:
            raise RecordGone(f"{self.name}: the record that was claimed is not here")

    # -- statements ----------------------------------------------------------------------------------------

    def _statement(self, statement: str) -> tuple[Sequence[Any], int]:
        return self._links().runner(self._connection)(statement)

    def _say(self, statement: str) -> None:
        try:
            self._statement(statement)
        except DriverError as error:
            self._raise(error, None)

    def _raise(self, error: DriverError, command: StoreCommand | None) -> NoReturn:
        """The driver's error as ours: in a transaction some mean something else than outside."""
        key = "this transaction" if command is None else str(command.key)
        text = "" if command is None else command.key.text
        rolled_back = errors.is_rolled_back(error)
        if rolled_back or errors.is_busy(error):
            driver.refresh(self._connection)
            # With innodb_rollback_on_timeout all of it is gone: going on as if busy would commit the other half.
            rolled_back |= not (self.in_transaction or self._began)
        if rolled_back:
            raise TransactionConflict(
                f"{key}: the server rolled the transaction back in favour of another one. Claim keys in the same "
                "order everywhere; run the whole transaction again with the same key",
                key=text,
                retry_after=0.0,
            ) from error
        if errors.no_such_savepoint(error):
            raise SavepointGone(f"{self.name}: {error}") from error
        if errors.is_busy(error) or (isinstance(command, Open) and errors.is_timed_out(error)):
            raise InProgress(
                f"{key} is held by another transaction that has not ended; try again with the same key",
                key=text,
                token=0,
                retry_after=RETRY_SECONDS,
            ) from error
        if errors.is_lost(error):
            # Not StoreUnavailable: in a transaction that is gone there is nothing to try again.
            raise StoreError(f"the connection to {self.name} was lost, and with it the transaction") from error
        raise errors.store_error(self._address, error) from error


class AsyncMysqlTransaction(OverSyncTransaction):
    """The same for an AsyncGuard: the caller's sync connection is used in a thread, so that the loop does not block."""

    immediate = False

    async def begin(self, patience: float) -> None:
        await self._do(lambda: self._sync.begin(patience))

    async def carry_out(self, *acts: Act, patience: float) -> Record | None:
        return await self._do(lambda: self._sync.carry_out(*acts, patience=patience))

    async def _do(self, work: Callable[[], T]) -> T:
        """In a thread of its own: in the store's few threads, callers that wait for a row would keep its holder out."""
        return await running().shielded(aside(work))  # no other call may use the connection meanwhile
