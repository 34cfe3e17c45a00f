"""Parked messages in MySQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from samekey.stores.mysql._connections import Links
from samekey.stores.mysql._rows import AUDIT, CLOCK, Run, literal

_FIELDS = tuple(Parked.__dataclass_fields__)
_COLUMNS = ", ".join(f"`{name}`" for name in _FIELDS)
_AS_THEY_ARE = ("at", "redelivered_at", "body")
_SHOWN = ", ".join(f"`{name}`" if name in _AS_THEY_ARE else f"CAST(`{name}` AS BINARY)" for name in _FIELDS)

_PARK = f"REPLACE INTO samekey_parked ({_COLUMNS}) VALUES (%s)"  # noqa: S608

_HELD = f"SELECT {CLOCK}, {_SHOWN} FROM samekey_parked WHERE id = %s FOR UPDATE"  # noqa: S608 - constants only

_MARK = "UPDATE samekey_parked SET redelivered_at = %s, redelivered_by = %s WHERE id = %s"

_FORGET = f"DELETE FROM samekey_parked WHERE redelivered_at < %s LIMIT {REDELIVERED_FORGOTTEN_MAX}"  # noqa: S608


class Parking:
    """The parked messages of `MysqlStore`."""

    _links: Callable[[], Links]

    def park(self, parked: Parked) -> None:
        statement = _PARK % _literals(getattr(parked, name) for name in _FIELDS)
        self._links().insist(lambda run: run(statement))

    def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        statement = _list_statement(query)
        (rows, _), _ = self._links().insist(lambda run: run(statement), desk=True)
        return [_parked_of(row) for row in rows]

    def redelivered(self, id: str, *, by: str) -> Parked | None:
        check_redelivery(by)
        # Not again after a lost reply: it would be audited twice.
        return self._links().insist(lambda run: _mark(run, id, by), again=False)[0]


def _mark(run: Run, id: str, by: str) -> Parked | None:
    run("BEGIN")
    rows, _ = run(_HELD % literal(id))
    after = None
    if rows:
        now, before = int(rows[0][0]) / 1e6, _parked_of(rows[0][1:])
        run(_MARK % (literal(now), literal(by), literal(id)))
        run(AUDIT % _literals(redelivery_entry(before, by, now)))
        run(_FORGET % literal(now - REDELIVERED_KEPT_SECONDS))
        after = replace(before, redelivered_at=now, redelivered_by=by)
    run("COMMIT")
    return after


def _list_statement(query: ParkedQuery) -> str:
    conditions = ["1 = 1"]
    for column in ("id", "operation", "tenant", "key", "kind"):
        if getattr(query, column) is not None:
            # As bytes: even a binary collation takes "a" and "a " for equal.
            conditions.append(f"CAST(`{column}` AS BINARY) = {literal(getattr(query, column))}")
    if query.waiting is not None:
        conditions.append(f"redelivered_at IS {'' if query.waiting else 'NOT '}NULL")
    if query.before is not None:
        at, id = literal(float(query.before[0])), literal(query.before[1])
        conditions.append(f"at <= {at} AND (at < {at} OR id < {id})")
    return (
        f"SELECT {_SHOWN} FROM samekey_parked FORCE INDEX (samekey_parked_at) "  # noqa: S608
        f"WHERE {' AND '.join(conditions)} ORDER BY at DESC, id DESC LIMIT {query.page_size}"
    )


def _parked_of(row: Sequence[Any]) -> Parked:
    texts = [isinstance(value, bytes) and name != "body" for name, value in zip(_FIELDS, row, strict=True)]
    return parked_of([value.decode() if text else value for value, text in zip(row, texts, strict=True)])


def _literals(values: Iterable[Any]) -> str:
    return ", ".join(map(literal, values))
