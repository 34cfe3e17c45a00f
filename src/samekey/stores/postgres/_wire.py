"""The binary form of commands and rows on samekey's own connections.

One command is one call of its function. Several of a kind are one statement too: one array for each parameter,
one transaction for all. The values are the same that `_rows` gives to any other connection. Only their form
differs, because a text has to be written, quoted, sent, parsed and thrown away, once per value.

A record comes back as one value, the row of the table as it is. As thirty columns the server would have to unpack, name
and describe it each time, for a client that knows all that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from samekey.core.commands import Open, Read, Settle, StoreCommand
from samekey.core.record import Record
from samekey.drivers.postgres.exchange import COMMIT, Query
from samekey.stores.postgres._rows import CALLS, COLUMNS, SQL_TYPE, from_short, record_of


class Shape:
    """A statement, and how its values are encoded."""

    def __init__(self, name: str, types: Sequence[str], columns: str, source: str = "", *, many: bool = False) -> None:
        holes = ", ".join(
            f"${number}::{SQL_TYPE.get(kind, kind)}{'[]' if many else ''}" for number, kind in enumerate(types, 1)
        )
        self._name = name.encode()
        self._sql = f"SELECT {columns}{COMMIT} {source}".replace("$*", holes).encode()
        self._formats = [1] * len(types)
        self._one = [_TYPES[kind][1] for kind in types]
        self._many = [_ARRAYS[kind] for kind in types]

    def one(self, values: Sequence[Any]) -> Query:
        coded = [None if value is None else code(value) for code, value in zip(self._one, values, strict=True)]
        return Query(self._name, self._sql, coded, self._formats)

    def many(self, rows: Sequence[Sequence[Any]]) -> Query:
        columns = zip(*rows, strict=True)
        coded: list[bytes | None] = [code(column) for code, column in zip(self._many, columns, strict=True)]
        return Query(self._name, self._sql, coded, self._formats)


def single(command: StoreCommand) -> Query:
    """One command as one query."""
    kind = type(command)
    values = (command.key.digest,) if kind is Read else CALLS[kind].values(command)
    return _SINGLE[kind].one(values)


# The two commands in every transaction of a caller's: the claim with its lock timeout, and the holder's settle.


def open_inside(command: Open, table: int, lock_timeout: str) -> Query:
    return _OPEN_WAITING.one((table, lock_timeout, *CALLS[Open].values(command)))


def settle_inside(command: Settle) -> Query:
    return _SETTLE_OR_FAIL.one(CALLS[Settle].values(command))


def many(commands: Sequence[StoreCommand]) -> Query:
    """Several commands of one kind, each about another key, as one query; the rows come back in any order."""
    kind = type(commands[0])
    if kind is Read:
        return _MANY[kind].many([(command.key.digest,) for command in commands])
    values = CALLS[kind].values
    return _MANY[kind].many([values(command) for command in commands])


# -- rows --------------------------------------------------------------------------------------------------

# The answer: a record and when it was read; to many claims or settles also the short replies of all of them.
_ROW, _NOW, _DIGESTS, _TOKENS, _WRITTEN_AT = range(5)
_ROWS = "CASE WHEN r.state IS NOT NULL THEN r END, clock_timestamp()"
_SHORT_AND_ROWS = "shown, clock_timestamp(), told_digests, told_tokens, told_at"


def record_in(answer: Any, command: StoreCommand, lost_at: float | None, row: int = 0) -> Record | None:
    """The record in this row of the answer, or None where there is none."""
    raw = answer.get_value(row, _ROW) if answer.ntuples else None
    if raw is None:
        return None
    digest_size, attempt_size, token, changed_at = _short(raw)
    if digest_size == _NOTHING:
        return None
    if attempt_size == _NOTHING:  # a short reply, as most are: the other columns are null
        return from_short(command, token, changed_at, lost_at)
    return record_of([*_values(raw), _time(answer.get_value(row, _NOW))], command, lost_at)


def answers_in(answer: Any) -> tuple[dict[bytes, int], float, dict[bytes, int]]:
    """The reply to many commands, by digest: tokens of those with a short reply and their time, rows of the others.

    Of two rows for one digest it is the later one, which is the newer.
    """
    value = answer.get_value
    tokens, written_at, rows = {}, 0.0, {}
    for row in range(answer.ntuples):
        raw = value(row, _ROW)
        if raw is not None:
            rows[raw[_DIGEST]] = row
        elif answer.nfields > _WRITTEN_AT and (digests := value(row, _DIGESTS)) is not None:
            count = _count(digests)[0]
            written_at = _float(value(row, _WRITTEN_AT))
            tokens = dict(zip(_items("16s", count)(digests), _items("q", count)(value(row, _TOKENS)), strict=True))
    return tokens, written_at, rows


# A row is the number of its columns, and for each of them its type, its size and so many bytes. Columns that are never
# null have a fixed place and are read together.
_NOTHING = -1  # the size of a null
_short = struct.Struct(">8xi16x4xi4x4xq4x4x4x4xd").unpack_from  # digest, attempt, token, created_at (null), changed_at
_DIGEST = slice(12, 28)  # of a row
_size = struct.Struct(">i").unpack_from
_first = struct.Struct(">4x8x16s8x16s8xq8xd8xd8xd")  # digest to lease_until
_counts = struct.Struct(">8xi8xi8xi8x?8x?")  # version to happened


def _values(raw: bytes) -> list[Any]:
    """As COLUMNS has them."""
    digest, attempt, *values = _first.unpack_from(raw)
    values[:0] = digest.hex(), attempt.hex()
    at = _sized(raw, _first.size, _BEFORE_COUNTS, values)
    values += _counts.unpack_from(raw, at)
    _sized(raw, at + _counts.size, _AFTER_COUNTS, values)
    return values


def _sized(raw: bytes, at: int, loads: Sequence[Callable[[bytes], Any]], values: list[Any]) -> int:
    """Read the columns from here on, whose sizes vary; returns where they end."""
    for load in loads:
        (size,) = _size(raw, at + 4)
        at += 8
        if size == _NOTHING:
            values.append(None)
        else:
            end = at + size
            values.append(load(raw[at:end]))
            at = end
    return at


def _long(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


_count = struct.Struct(">12xi4x").unpack_from  # of an array's items


@lru_cache(maxsize=1024)
def _items(form: str, count: int) -> Callable[[bytes], tuple[Any, ...]]:
    """Reads an array of so many items, none of which is null."""
    return struct.Struct(">20x" + f"4x{form}" * count).unpack


_unpack_float = struct.Struct(">d").unpack


def _float(raw: bytes) -> float:
    number: float = _unpack_float(raw)[0]
    return number


_YEAR_2000 = 946_684_800_000_000  # where the times of the server begin, in microseconds of ours


def _time(raw: bytes) -> float:
    return (_long(raw) + _YEAR_2000) / 1e6


_LOADS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("begun_at", "first_sent_at", "settled_at", "retain_until", "ask_until"), _float),
    "waited_for": _long,
    **dict.fromkeys(("fingerprint", "result", "content", "payload", "notes"), bytes),
    "terms::text": lambda raw: "{" + ",".join(map(bytes.hex, _items("16s", _count(raw)[0])(raw))) + "}",
    **dict.fromkeys(("evidence::text", "inquiry::text"), lambda raw: raw[1:].decode()),  # first the form's version
}
_LOADERS = [_LOADS.get(column, bytes.decode) for column in COLUMNS]
_BEFORE_COUNTS = _LOADERS[COLUMNS.index("begun_at") : COLUMNS.index("version")]
_AFTER_COUNTS = _LOADERS[COLUMNS.index("state") :]


# -- values ------------------------------------------------------------------------------------------------

_pack_float = struct.Struct(">d").pack
_pack_long = struct.Struct(">q").pack
_pack_int = struct.Struct(">i").pack
_TYPES: dict[str, tuple[int, Callable[[Any], bytes]]] = {  # the server's number for each, and how one is written
    "uuid": (2950, bytes),
    "bytea": (17, bytes),
    "text": (25, str.encode),
    "enum": (25, str.encode),
    "float8": (701, _pack_float),
    "bigint": (20, _pack_long),
    "integer": (23, _pack_int),
    "boolean": (16, {True: b"\x01", False: b"\x00"}.__getitem__),
    "oid": (26, struct.Struct(">I").pack),
}

_head = struct.Struct(">iiIii").pack  # dimensions, whether there are nulls, the elements' type, how many, from where
_NULL = b"\xff\xff\xff\xff"


def _array(kind: str) -> Callable[[tuple[Any, ...]], bytes]:
    oid, code = _TYPES[kind]
    plain = code is bytes

    def array(values: tuple[Any, ...]) -> bytes:
        first, count = values[0], len(values)
        if values[-1] == first and values.count(first) == count:  # most columns are the same for a whole batch
            body = (_NULL if first is None else _sized_bytes(code(first))) * count
        elif None in values:
            body = b"".join([_NULL if value is None else _sized_bytes(code(value)) for value in values])
        else:
            coded = values if plain else [code(value) for value in values]
            if len(set(map(len, coded))) == 1:  # digests, ids, numbers, and mostly keys: one size for all
                size = _pack_int(len(coded[0]))
                body = size + size.join(coded)
            else:
                body = b"".join(map(_sized_bytes, coded))
        return _head(1, 1, oid, count, 1) + body

    return array


def _sized_bytes(value: bytes) -> bytes:
    return _pack_int(len(value)) + value


_ARRAYS = {kind: _array(kind) for kind in _TYPES}


# -- statements --------------------------------------------------------------------------------------------


def _each(function: str, types: Sequence[str]) -> str:
    """The function called for one row after the other, in one statement."""
    names = [f"a{number}" for number in range(len(types))]
    return f"FROM unnest($*) AS u ({', '.join(names)}), {function}({', '.join('u.' + name for name in names)}) AS r"


_SINGLE: dict[type[StoreCommand], Shape] = {
    kind: Shape(call.function, call.types, f"{call.function}($*), clock_timestamp()") for kind, call in CALLS.items()
}
_SINGLE[Read] = Shape("samekey_read", ["uuid"], "r, clock_timestamp()", "FROM samekey_records AS r WHERE r.digest = $*")
_OPEN_WAITING = Shape(
    "samekey_open_waiting", ["oid", "text", *CALLS[Open].types], "samekey_open_waiting($*), clock_timestamp()"
)
_SETTLE_OR_FAIL = Shape("samekey_settle", CALLS[Settle].types, "samekey_settle($*, true), clock_timestamp()")
_MANY: dict[type[StoreCommand], Shape] = {
    kind: Shape(
        f"{call.function}s",
        call.types,
        _SHORT_AND_ROWS if call.together else _ROWS,
        f"FROM {call.together}($*)" if call.together else _each(call.function, call.types),
        many=True,
    )
    for kind, call in CALLS.items()
}
_MANY[Read] = Shape("samekey_reads", ["uuid"], _ROWS, "FROM samekey_records AS r WHERE r.digest = ANY ($*)", many=True)
