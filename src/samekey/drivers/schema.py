"""The tables of samekey: their columns, whether those of a server fit this code, and what to do where they do not."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from samekey.core.errors import Misconfigured

# Of the table samekey_records, in MySQL and SQLite.
RECORD_COLUMNS = (
    "digest", "operation", "tenant", "key", "state", "token", "attempt", "fingerprint", "form", "boundary", "version",
    "attempts", "created_at", "changed_at", "lease_until", "lease_clock", "unsure", "begun_at", "first_sent_at",
    "round", "settled_by", "settled_at", "retain_until", "result", "error", "asker", "ask_until", "story", "content",
    "payload", "notes", "terms", "inquiry",
)  # fmt: skip

# Tables without which claims work, and what fails without each of them.
OTHER_TABLES = {
    "samekey_audit": "resolve, redact and free fail",
    "samekey_counts": "attempts are not counted, so rates and alarms see nothing",
    "samekey_findings": "findings are not kept",
    "samekey_parked": "message handlers cannot set messages aside",
}


def table_warnings(missing: Collection[str], store: str) -> list[str]:
    """A warning for each of these tables that is missing; `store` is what an address looks like."""
    return [
        f"the table {table} is missing: {fails}; its statement is in: samekey migrate --sql --store {store}"
        for table, fails in OTHER_TABLES.items()
        if table in missing
    ]


def check_schema(name: str, schema: int, oldest_client: int, known: int) -> None:
    """Raise unless code that knows the schema `known` may use these tables, which have `schema`."""
    if oldest_client > known:
        raise newer(name, schema, known)
    if schema < known:
        raise Misconfigured(
            f"{name} has schema {schema}, this samekey needs {known}. Bring it up to date with: {migrate_line(name)}"
        )


def newer(name: str, schema: int, known: int) -> Misconfigured:
    return Misconfigured(
        f"{name} was migrated by a newer samekey (schema {schema}, this one knows {known}): upgrade samekey"
    )


def migrate_line(name: str) -> str:
    return f"samekey migrate --store {shlex.quote(name)}"


def foreign_table(name: str, table: str) -> Misconfigured:
    return Misconfigured(
        f"{name} has a table {table} that samekey did not make. Rename that table, or give samekey a schema or a "
        f"database of its own, and then make its tables with: {migrate_line(name)}"
    )


def quoted(name: str) -> str:
    """A name of a table or column as SQL takes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'
