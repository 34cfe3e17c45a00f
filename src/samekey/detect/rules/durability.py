"""Keys that a crash forgets: the claim was acknowledged, and the retry finds nothing."""

from __future__ import annotations

from collections.abc import Iterator

from samekey.detect.catalog import Catalog, Engine
from samekey.detect.dialect import Dialect
from samekey.detect.findings import POSTGRES, Finding, Rule, Severity


def unlogged(catalog: Catalog) -> Iterator[Finding]:
    """SK113."""
    sql = Dialect(catalog)
    for table in catalog.tables:
        if not table.logged and table.keys:
            yield Finding(
                "SK113",
                Severity.CRITICAL,
                table.full_name,
                "the table is UNLOGGED: a crash of the server empties it, and every retry is new again",
                (f"ALTER TABLE {sql.table(table)} SET LOGGED;",),
                table.full_name,
            )


def not_durable(catalog: Catalog) -> Iterator[Finding]:
    """SK123."""
    for setting, value, whom in catalog.unsafe:
        yield Finding(
            "SK123",
            Severity.CRITICAL if setting in ("fsync", "full_page_writes") else Severity.HIGH,
            f"{setting} = {value} ({whom})",
            "a crash can lose commits that were acknowledged: the key is gone, and its effect is not",
            (
                f"-- Set {setting} to {'1' if catalog.engine is Engine.MYSQL else 'on'}"
                + (
                    ", or in the transaction that claims: SET LOCAL synchronous_commit = on;"
                    if setting == "synchronous_commit"
                    else " in the server's configuration."
                ),
            ),
        )


RULES = (
    Rule("SK113", "keys in an UNLOGGED table", "critical", POSTGRES, unlogged, confirms=False),
    Rule("SK123", "commits are not durable", "critical or high", (Engine.POSTGRES, Engine.MYSQL), not_durable, False),
)
