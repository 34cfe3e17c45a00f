"""From a rule file and a database to everything that a watch needs: tables, columns, plans, preventions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from samekey.core.errors import Misconfigured
from samekey.detect.audit import open_database, read_catalog
from samekey.detect.catalog import Catalog, Engine, Table
from samekey.detect.rule_file import Bound, Rule
from samekey.detect.watching.alerts import Prevention, prevention
from samekey.detect.watching.plans import Plan


@dataclass
class Watched:
    """The rules of a watch, bound to tables."""

    secret: bytes
    engine: Engine | None = None  # None: change events without a database
    bounds: dict[str, list[Bound]] = field(default_factory=dict)  # full name of a table -> its rules
    tables: dict[str, str] = field(default_factory=dict)  # rule -> full name of its table
    preventions: dict[str, Prevention] = field(default_factory=dict)  # by rule

    def columns(self, table: str) -> tuple[str, ...]:
        """The columns of a table that its rules need, each once."""
        return tuple(dict.fromkeys(name for bound in self.bounds[table] for name in bound.columns))

    def plans_of(self, table: str, columns: Sequence[str]) -> list[Plan]:
        return [Plan(bound, columns, self.secret) for bound in self.bounds.get(table, ())]

    def plans(self) -> list[Plan]:
        return [plan for table in self.bounds for plan in self.plans_of(table, self.columns(table))]


def watched_database(url: str, rules: Iterable[Rule], secret: bytes) -> Watched:
    """The rules bound to the tables of this database. A rule that could not see a duplicate is refused."""
    engine, reading = open_database(url)
    try:
        catalog = read_catalog(engine, reading)
    finally:
        reading.close()
    watched = Watched(secret, engine)
    for rule in rules:
        table = find_table(catalog, rule)
        bound = rule.bound(column.name for column in table.columns)
        _check_row_id(table, rule)
        watched.bounds.setdefault(table.full_name, []).append(bound)
        watched.tables[rule.name] = table.full_name
        watched.preventions[rule.name] = prevention(catalog, table, bound)
    return watched


def watched_events(rules: Iterable[Rule], secret: bytes) -> Watched:
    """The rules for change events without a database: each rule names its key, because no catalog names the content."""
    watched = Watched(secret)
    for rule in rules:
        if rule.by_content:
            raise Misconfigured(
                f"rule {rule.name}: content = true needs the columns of the table: name them as key, or give the "
                "address of the database too"
            )
        watched.bounds.setdefault(rule.table, []).append(Bound(rule, rule.key))
        watched.tables[rule.name] = rule.table
    return watched


def find_table(catalog: Catalog, rule: Rule) -> Table:
    found = [table for table in catalog.whole_tables() if rule.table in (table.full_name, table.name)]
    exact = [table for table in found if table.full_name == rule.table]
    if len(exact or found) != 1:
        many = "several tables have" if found else "no table has"
        raise Misconfigured(f"rule {rule.name}: {many} the name {rule.table}")
    return (exact or found)[0]


def _check_row_id(table: Table, rule: Rule) -> None:
    """Two rows with one row id would be taken for one change that is delivered twice."""
    named = {*rule.row_id}
    if not any(key.columns and not key.expressions and named.issuperset(key.columns) for key in table.enforced):
        keys = [f"[{', '.join(key.columns)}]" for key in table.enforced if not key.expressions]
        hint = f"its unique keys are {' and '.join(keys)}" if keys else "the table has no unique key (SK101)"
        raise Misconfigured(
            f"rule {rule.name}: row_id [{', '.join(rule.row_id)}] does not identify a row of {table.full_name}; {hint}"
        )
