"""Whether the tables of a server fit this code, and what to do where they do not."""

from __future__ import annotations

import shlex

from samekey.core.errors import Misconfigured


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
