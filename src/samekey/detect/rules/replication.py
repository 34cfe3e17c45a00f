"""Tables that receive rows from another server, or send them."""

from __future__ import annotations

from collections.abc import Iterator

from samekey.detect.catalog import Catalog
from samekey.detect.dialect import Dialect
from samekey.detect.findings import POSTGRES, Check, Finding, Rule, Severity
from samekey.detect.rules import _fixes as fixes
from samekey.detect.rules.missing_keys import WHOLE_ROW_MICROSECONDS


def subscriber_without_key(catalog: Catalog) -> Iterator[Finding]:
    """SK124."""
    sql = Dialect(catalog)
    for table in catalog.tables:
        if table.subscriptions and not table.enforced:
            yield Finding(
                "SK124",
                Severity.HIGH,
                table.full_name,
                f"the subscription {table.subscriptions[0]} copies rows into a table without a unique key: "
                "a second copy stores every row again",
                (*fixes.add_id(sql, table), "-- Better: the publisher's own primary key, before the subscription."),
                table.full_name,
                Check(
                    table.full_name,
                    tuple(sql.exactly(column) for column in table.columns),
                    microseconds=WHOLE_ROW_MICROSECONDS,
                ),
            )


def two_sources(catalog: Catalog) -> Iterator[Finding]:
    """SK125."""
    for table in catalog.tables:
        if len(table.subscriptions) > 1:
            yield Finding(
                "SK125",
                Severity.HIGH,
                table.full_name,
                f"{len(table.subscriptions)} subscriptions write into it: the same key may come from two servers",
                ("-- Add a column for the source, and make it a part of the key.",),
                table.full_name,
            )


def key_not_published(catalog: Catalog) -> Iterator[Finding]:
    """SK126."""
    for table in catalog.tables:
        wanted = [key for key in table.enforced if not key.primary and key.columns]
        for publication, columns in table.published:
            for key in wanted:
                missing = sorted(set(key.columns) - columns)
                if missing:
                    yield Finding(
                        "SK126",
                        Severity.LOW,
                        f"{table.full_name}.{key.name}",
                        f"the publication {publication} leaves out {', '.join(missing)}: "
                        "a subscriber cannot compare this key",
                        (f"-- ALTER PUBLICATION {publication} SET TABLE ..., with {missing[0]} in its columns.",),
                        table.full_name,
                    )


RULES = (
    Rule("SK124", "subscriber table without a unique key", "high / high", POSTGRES, subscriber_without_key),
    Rule("SK125", "table fed by two subscriptions", "high", POSTGRES, two_sources, False),
    Rule("SK126", "publication hides a key", "low", POSTGRES, key_not_published, False),
)
