"""A read-only connection to any MySQL or MariaDB database, a replica included."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

import pymysql
from pymysql.constants import ER
from pymysql.cursors import SSCursor

from samekey.drivers.mysql.address import parse_url
from samekey.drivers.mysql.connect import CONNECT_SECONDS, Connection, close, connect_unchecked, run
from samekey.drivers.mysql.errors import number
from samekey.drivers.reading import (
    CATALOG_SECONDS,
    CHUNK,
    CannotRead,
    NotPermitted,
    Refused,
    Row,
    Run,
    StatementStopped,
)

_STOPPED = {1969, 3024, ER.LOCK_WAIT_TIMEOUT, ER.QUERY_INTERRUPTED, ER.NO_SUCH_TABLE}
_REFUSED = {1227, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR}
_LOCK = "SET SESSION lock_wait_timeout = 1"  # whole seconds on this server: the shortest there is


class MysqlReading:
    def __init__(self, url: str) -> None:
        address = parse_url(url)
        self.name = address.name
        try:
            self._link: Connection = connect_unchecked(address, 24 * 3600)  # the server's own time limit comes first
            try:
                run(self._link, _LOCK)
                run(self._link, "SET SESSION sql_mode = ''")
                self._mariadb = "mariadb" in str(run(self._link, "SELECT version()")[0][0][0]).lower()
            except BaseException:
                close(self._link)
                raise
        except pymysql.Error as error:
            raise CannotRead(f"{self.name} cannot be read: {_text(error)}") from error

    def rows(self, sql: str, *, seconds: float = CATALOG_SECONDS, whole_table: bool = False) -> list[Row]:
        """`whole_table` is in the statement itself here: USE INDEX ()."""
        with self._transaction(seconds):
            return run(self._link, sql)[0]

    def each(self, sql: str, *, seconds: float, whole_table: bool = False) -> Generator[Row, None, None]:
        with self._transaction(seconds), closing(self._link.cursor(SSCursor)) as cursor:
            cursor.execute(sql)
            while found := cursor.fetchmany(CHUNK):
                yield from found

    @contextmanager
    def trial(self) -> Iterator[Run]:
        """Temporary tables of this connection, which end with it: they are dropped by name before they are made."""

        def trial_run(sql: str) -> list[Row]:
            try:
                return run(self._link, sql)[0]
            except pymysql.err.IntegrityError as error:
                if number(error) != ER.DUP_ENTRY:
                    raise StatementStopped(_text(error)) from error
                raise Refused(_text(error)) from error
            except pymysql.Error as error:
                raise StatementStopped(_text(error)) from error

        yield trial_run

    @contextmanager
    def _transaction(self, seconds: float) -> Iterator[None]:
        """One read-only transaction with this limit; its errors as `drivers.reading` has them."""
        limit = max(seconds, 0.001)
        limited = (
            f"SET SESSION max_statement_time = {limit:.3f}"
            if self._mariadb
            else f"SET SESSION max_execution_time = {int(limit * 1000)}"
        )
        try:
            run(self._link, limited)
            run(self._link, "START TRANSACTION READ ONLY")
            try:
                yield
            finally:
                if self._link.open:
                    run(self._link, "ROLLBACK")
        except pymysql.Error as error:
            if number(error) in _STOPPED:
                raise StatementStopped(_text(error)) from error
            if number(error) in _REFUSED:
                raise NotPermitted(_text(error)) from error
            if isinstance(error, pymysql.err.ProgrammingError):
                raise  # a statement of ours that the server cannot read is a bug
            raise CannotRead(f"{self.name} stopped answering: {_text(error)}") from error

    def close(self) -> None:
        close(self._link)


def _text(error: pymysql.Error) -> str:
    return str(error.args[1]) if len(error.args) > 1 else f"no answer within {CONNECT_SECONDS} s"
