"""Tables that exist to recognise repeated requests, and what they lack for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samekey.detect import names
from samekey.detect.catalog import Catalog, Engine, Kind, Table
from samekey.detect.dialect import Dialect
from samekey.detect.findings import EVERYWHERE, Finding, Rule, Severity
from samekey.detect.rules import _fixes as fixes


def across_tenants(catalog: Catalog) -> Iterator[Finding]:
    """SK118."""
    sql = Dialect(catalog)
    for table in catalog.whole_tables():
        tenant = names.tenant_of(table)
        for key in table.enforced:
            if len(key.columns) != 1 or key.expressions or key.columns[0] in table.foreign:
                continue
            (name,) = key.columns
            sent = re.search(r"idempoten|request_?(id|key)|client_?", name, re.I) or (
                names.KEY.search(name) and names.is_key_store(table)
            )
            if not sent or table.column(name).made.value or (not tenant and not names.is_key_store(table)):
                continue
            lacking = "" if tenant else ", and the table has no column for the client"
            yield Finding(
                "SK118",
                Severity.MEDIUM,
                f"{table.full_name}.{key.name}",
                f"{name} is unique across all clients{lacking}: two clients that send one key get one answer",
                fixes.unique_index(sql, table, (tenant, name))
                if tenant
                else (
                    f"-- ALTER TABLE {sql.table(table)} ADD COLUMN tenant_id ...; then PRIMARY KEY (tenant_id, {name})",
                ),
                table.full_name,
            )


def incomplete_store(catalog: Catalog) -> Iterator[Finding]:
    """SK119."""
    sql = Dialect(catalog)
    for table in catalog.whole_tables():
        if names.is_key_store(table):
            for lacking, fix in _lacking(sql, table):
                yield Finding("SK119", Severity.MEDIUM, table.full_name, lacking, fix, table.full_name)


def _lacking(sql: Dialect, table: Table) -> Iterator[tuple[str, tuple[str, ...]]]:
    altered, blob = f"ALTER TABLE {sql.table(table)}", "bytea" if sql.engine is Engine.POSTGRES else "blob"
    prints = [column for column in table.columns if names.FINGERPRINT.search(column.name)]
    if not prints:
        yield (
            "no fingerprint of the request: one key with another request gets the answer of the first",
            (f"{altered} ADD COLUMN request_hash {blob};",),
        )
    elif all(column.nullable for column in prints):
        yield (
            f"the fingerprint {prints[0].name} may be NULL: such a key fits every request",
            fixes.not_null(sql, table, [prints[0].name]),
        )
    states = [column for column in table.columns if names.STATE.search(column.name)]
    if not states:
        yield (
            "no state: a claim whose holder crashed looks like one that is done",
            (f"{altered} ADD COLUMN status varchar(16);",),
        )
    for state in states:
        checked = any(re.search(rf"\b{re.escape(state.name)}\b", check) for check in table.checks)
        if state.kind is Kind.TEXT and not checked:
            yield (
                f"the state {state.name} is free text: a misspelled state is neither done nor free",
                (f"{altered} ADD CHECK ({sql.name(state.name)} IN ('started', 'completed'));",),
            )
    times = [column for column in table.columns if column.kind is Kind.TIME]
    collectable = [column for column in times if column.name in table.indexed or names.EXPIRY.search(column.name)]
    if not collectable:
        fix = fixes.index_name(table, [times[0].name], "idx") if times else ""
        yield (
            "nothing to collect by: no column says when a key may go, and no index finds the old ones",
            (f"CREATE INDEX {sql.name(fix)} ON {sql.table(table)} ({sql.name(times[0].name)});",)
            if times
            else (f"{altered} ADD COLUMN expires_at timestamp;",),
        )


RULES = (
    Rule("SK118", "key unique across tenants", "medium", EVERYWHERE, across_tenants, False),
    Rule("SK119", "key store lacks fingerprint, state or time", "medium", EVERYWHERE, incomplete_store, False),
)
