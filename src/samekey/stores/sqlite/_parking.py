"""Parked messages in a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from samekey.core.parking import (
    REDELIVERED_FORGOTTEN_MAX,
    REDELIVERED_KEPT_SECONDS,
    Parked,
    ParkedQuery,
    check_redelivery,
    parked_of,
    redelivery_entry,
)
from samekey.drivers import sqlite as driver
from samekey.stores.sqlite._rows import AUDIT

_FIELDS = tuple(Parked.__dataclass_fields__)
_COLUMNS = ", ".join(_FIELDS)

_PARK = f"INSERT OR REPLACE INTO samekey_parked ({_COLUMNS}) VALUES ({', '.join('?' for _ in _FIELDS)})"  # noqa: S608

_ONE = f"SELECT {_COLUMNS} FROM samekey_parked WHERE id = ?"  # noqa: S608 - constants only

_MARK = "UPDATE samekey_parked SET redelivered_at = ?, redelivered_by = ? WHERE id = ?"

_FORGET = """
DELETE FROM samekey_parked
 WHERE id IN (SELECT id FROM samekey_parked WHERE redelivered_at < ? LIMIT ?)
"""


class Parking:
    """The parked messages of `SqliteStore`."""

    def _wall(self) -> float:
        raise NotImplementedError

    def _rows(self, statement: str, values: Any) -> list[Any]:
        raise NotImplementedError

    def _writing(self) -> AbstractContextManager[driver.Connection]:
        raise NotImplementedError

    def park(self, parked: Parked) -> None:
        with self._writing() as writer:
            writer.execute(_PARK, tuple(getattr(parked, name) for name in _FIELDS))

    def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        return [parked_of(row) for row in self._rows(*_list_statement(query))]

    def redelivered(self, id: str, *, by: str) -> Parked | None:
        check_redelivery(by)
        now = self._wall()
        with self._writing() as writer:
            row = writer.execute(_ONE, (id,)).fetchone()
            if row is None:
                return None
            before = parked_of(row)
            writer.execute(_MARK, (now, by, id))
            writer.execute(AUDIT, redelivery_entry(before, by, now))
            writer.execute(_FORGET, (now - REDELIVERED_KEPT_SECONDS, REDELIVERED_FORGOTTEN_MAX))
            return replace(before, redelivered_at=now, redelivered_by=by)


def _list_statement(query: ParkedQuery) -> tuple[str, dict[str, Any]]:
    conditions: list[str] = ["1"]
    named: dict[str, Any] = {"limit": query.page_size}
    for column in ("id", "operation", "tenant", "key", "kind"):
        if getattr(query, column) is not None:
            conditions.append(f"{column} = :{column}")
            named[column] = getattr(query, column)
    if query.waiting is not None:
        conditions.append(f"redelivered_at IS {'' if query.waiting else 'NOT '}NULL")
    if query.before is not None:
        conditions.append("(at, id) < (:before_at, :before_id)")
        named["before_at"], named["before_id"] = query.before
    statement = (
        f"SELECT {_COLUMNS} FROM samekey_parked WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants only
        "ORDER BY at DESC, id DESC LIMIT :limit"
    )
    return statement, named
