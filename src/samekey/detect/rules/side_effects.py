"""Triggers and rules that change what is compared, or repeat what was done."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samekey.detect.catalog import Catalog, Engine
from samekey.detect.dialect import Dialect
from samekey.detect.findings import POSTGRES, Finding, Rule, Severity

_WRITES = re.compile(r"\b(INSERT\s+INTO|UPDATE\s+\w|DELETE\s+FROM|PERFORM|http_|dblink|pg_notify|NOTIFY)\b", re.I)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.S)


def rewritten_key(catalog: Catalog) -> Iterator[Finding]:
    """SK114."""
    sql = Dialect(catalog)
    for table in catalog.whole_tables():
        for trigger in table.triggers:
            source = _COMMENT.sub("", trigger.source)
            written = {name.lower() for name in re.findall(r"\bNEW\.[\"`]?(\w+)[\"`]?\s*:?=(?!=)", source, re.I)}
            for key in table.keys:
                changed = [name for name in key.columns if name.lower() in written]
                if not trigger.before_insert or not changed:
                    continue
                on = f" ON {sql.table(table)}" if catalog.engine is Engine.POSTGRES else ""
                yield Finding(
                    "SK114",
                    Severity.HIGH,
                    f"{table.full_name}.{key.name}",
                    f"the trigger {trigger.name} assigns {', '.join(changed)} before the insert: "
                    "what is compared may not be the client's key",
                    (f"-- Read the trigger first. To remove it: DROP TRIGGER {sql.name(trigger.name)}{on};",),
                    table.full_name,
                )


def repeated_on_replica(catalog: Catalog) -> Iterator[Finding]:
    """SK115."""
    sql = Dialect(catalog)
    for table in catalog.tables:
        for trigger in table.triggers:
            if not trigger.on_replica:
                continue
            writes = bool(_WRITES.search(_COMMENT.sub("", trigger.source)))
            yield Finding(
                "SK115",
                Severity.HIGH if writes else Severity.LOW,
                f"{table.full_name}.{trigger.name}",
                "the trigger also fires for replicated rows: each subscriber repeats its effect",
                (f"ALTER TABLE {sql.table(table)} ENABLE TRIGGER {sql.name(trigger.name)};",),
                table.full_name,
            )


def insert_rules(catalog: Catalog) -> Iterator[Finding]:
    """SK117."""
    for table in catalog.whole_tables():
        for rule in table.insert_rules:
            yield Finding(
                "SK117",
                Severity.MEDIUM,
                f"{table.full_name}.{rule}",
                "a rule rewrites inserts: ON CONFLICT is refused, and functions in the insert run more than once",
                ("-- Write a trigger that does the same, then: DROP RULE ...",),
                table.full_name,
            )


RULES = (
    Rule("SK114", "trigger rewrites a key column", "high", (Engine.POSTGRES, Engine.MYSQL), rewritten_key, False),
    Rule(
        "SK115",
        "trigger fires for replicated rows",
        "high if it writes, else low",
        POSTGRES,
        repeated_on_replica,
        False,
    ),
    Rule("SK117", "rule on inserts", "medium", POSTGRES, insert_rules, False),
)
