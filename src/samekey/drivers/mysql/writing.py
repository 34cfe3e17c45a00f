"""A connection that writes to any MySQL or MariaDB database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql

from samekey.drivers.mysql.address import parse_url
from samekey.drivers.mysql.connect import DESK_SECONDS, Connection, abandon, close, connect_unchecked
from samekey.drivers.reading import CannotRead, NotPermitted, Row, StatementStopped

_REFUSED = {1044, 1045, 1142, 1143, 1227, 1419}


class MysqlWriting:
    def __init__(self, url: str) -> None:
        address = parse_url(url)
        self.name = address.name
        try:
            self._link: Connection = connect_unchecked(address, DESK_SECONDS)
        except (pymysql.Error, OSError) as error:
            raise CannotRead(f"{self.name} cannot be reached: {_text(error)}") from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (pymysql.Error, OSError) as error:
            number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            if number in _REFUSED:
                raise NotPermitted(f"{self.name}: {_text(error)}") from error
            if not self._link.open or number in (0, 2006, 2013, 2055):
                abandon(self._link)
                raise CannotRead(f"{self.name} stopped answering: {_text(error)}") from error
            raise StatementStopped(_text(error)) from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._translated(), self._link.cursor() as cursor:
            cursor.execute(sql, tuple(values) if values else None)
            return list(cursor.fetchall()) if cursor.description else []

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._translated(), self._link.cursor() as cursor:
            cursor.executemany(sql, [tuple(row) for row in rows])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._translated():
            self._link.begin()
            try:
                yield
            except BaseException:
                if self._link.open:
                    self._link.rollback()
                raise
            self._link.commit()

    def close(self) -> None:
        close(self._link)


def _text(error: BaseException) -> str:
    return str(error.args[1]) if len(error.args) > 1 else type(error).__name__
