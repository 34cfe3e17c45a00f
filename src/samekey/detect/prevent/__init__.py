"""Helpers that keep duplicates out: an insert that returns the row that is there, a content hash, and canonical keys.

`prevent.psycopg`, `prevent.sqlalchemy` and `prevent.django` have the inserts, each for its own library.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from samekey.core.errors import Misconfigured
from samekey.core.fingerprint import Intent
from samekey.detect.canonical import canonical
from samekey.detect.catalog import Engine
from samekey.detect.dialect import quoted
from samekey.detect.prevent._statement import Outcome, Stored

__all__ = ["Content", "Outcome", "Stored", "canonical_key", "canonical_text", "content_columns", "content_hash"]

FORM_CHARS = 4096  # the guard's own limit


class Content(NamedTuple):
    """What two columns hold: equal payloads have equal digests, as long as the form is the same."""

    digest: bytes
    form: str


def content_hash(payload: Any, *, ignore: Collection[str] = (), secrets: Sequence[bytes] = ()) -> Content:
    """The guard's own fingerprint of a payload. The order of fields does not count, types do.

    >>> content_hash({"amount": 5, "to": "ann"}) == content_hash({"to": "ann", "amount": 5})
    True
    >>> content_hash({"amount": 5}).form
    '1'
    """
    intent = Intent(payload, ignore, secrets)
    return Content(intent.digest, intent.form)


def content_columns(table: str, *, engine: str = "postgresql", schema: str = "") -> tuple[str, ...]:
    """SQL that adds the two columns and their unique index to a table without rows.

    A table with rows needs the hash of each row first: its statements fail, because the columns have no default.
    """
    try:
        server = Engine(engine)
    except ValueError as error:
        raise Misconfigured(f"engine is one of {', '.join(Engine)}, not {engine!r}") from error
    name = ".".join(quoted(part, server) for part in (schema, table) if part)
    blob, text = {
        Engine.POSTGRES: ("bytea", "text"),
        Engine.MYSQL: ("binary(32)", "varchar(255)"),
        Engine.SQLITE: ("BLOB", "TEXT"),
    }[server]
    # SQLite adds a NOT NULL column only with a default. The unique index refuses the second row with an empty hash.
    default = " DEFAULT ''" if server is Engine.SQLITE else ""
    return (
        f"ALTER TABLE {name} ADD COLUMN payload_sha256 {blob} NOT NULL{default}",
        f"ALTER TABLE {name} ADD COLUMN payload_form {text} NOT NULL{default}",
        f"CREATE UNIQUE INDEX {quoted(f'{table}_payload_key'[:63], server)} ON {name} (payload_sha256)",
    )


def canonical_text(value: str) -> str:
    """The text without differences that people do not see: case, kind of space, width, invisible characters.

    >>> canonical_text(" Order\\u00a017")
    'order 17'
    """
    text: str = canonical(value)
    return text


def canonical_key(*parts: object) -> str:
    """One key of several values. Its parts stay separate: ('a', 'bc') and ('ab', 'c') are two keys.

    >>> canonical_key("Tenant ", 17)
    '6:tenant,2:17'
    """
    if not parts or any(part is None or isinstance(part, float) for part in parts):
        raise Misconfigured("a key has at least one part, and none of them is None or a binary fraction")
    texts = [canonical_text(str(part)) for part in parts]
    return ",".join(f"{len(text)}:{text}" for text in texts)
