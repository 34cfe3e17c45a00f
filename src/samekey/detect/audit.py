"""One audit: read the catalog, let every rule look at it, count in the rows if asked, and judge."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.detect import catalog_mysql, catalog_postgres, catalog_sqlite
from samekey.detect.catalog import Catalog, Engine
from samekey.detect.confirm import Confirming, Evidence
from samekey.detect.dialect import FUNCTIONS, Dialect
from samekey.detect.findings import Finding, Severity
from samekey.detect.rules import examine
from samekey.drivers.reading import Reading

_ENGINES = {
    "postgresql": Engine.POSTGRES,
    "postgres": Engine.POSTGRES,
    "mysql": Engine.MYSQL,
    "mariadb": Engine.MYSQL,
    "sqlite": Engine.SQLITE,
}


@dataclass(frozen=True, slots=True)
class Result:
    """A finding, with what the rows showed about it."""

    finding: Finding
    sql: str = ""  # the statement that counts it
    evidence: Evidence | None = None

    @property
    def confirmed(self) -> bool:
        return self.evidence is not None and self.evidence.groups > 0

    @property
    def severity(self) -> Severity:
        if not self.confirmed:
            return self.finding.severity
        return max(self.finding.severity, self.finding.confirmed_severity)


@dataclass(frozen=True, slots=True)
class Audit:
    database: str  # the address, without a password
    engine: Engine
    version: str
    tables: int
    results: tuple[Result, ...]  # confirmed before latent, grave before slight
    incomplete: tuple[str, ...]  # why this is not the whole answer
    catalog: Catalog  # what the findings are about

    def failing(self, fail_on: Severity | None) -> list[Result]:
        """What makes the audit fail: all that is confirmed, and what is latent and at least this grave."""
        return [one for one in self.results if one.confirmed or (fail_on is not None and one.severity >= fail_on)]


def open_database(url: str) -> tuple[Engine, Reading]:
    """A read-only connection to the database at this address."""
    scheme, colon, _ = url.partition("://")
    engine = _ENGINES.get(scheme) if colon else None
    if engine is None:
        raise Misconfigured(
            "this is no address of a database that can be audited: write postgresql://..., mysql://... or sqlite:///..."
        )
    try:
        return engine, _connect(engine, url)
    except ModuleNotFoundError as missing:
        extra = "postgres" if engine is Engine.POSTGRES else "mysql"
        raise Misconfigured(f"{scheme}:// needs {missing.name}: pip install 'samekey[cli,{extra}]'") from missing


def _connect(engine: Engine, url: str) -> Reading:
    match engine:
        case Engine.POSTGRES:
            from samekey.drivers.postgres.reading import PostgresReading

            return PostgresReading(url)
        case Engine.MYSQL:
            from samekey.drivers.mysql.reading import MysqlReading

            return MysqlReading(url)
        case Engine.SQLITE:
            from samekey.drivers.sqlite_reading import SqliteReading

            return SqliteReading(url, FUNCTIONS)


def read_catalog(engine: Engine, reading: Reading) -> Catalog:
    match engine:
        case Engine.POSTGRES:
            return catalog_postgres.read(reading)
        case Engine.MYSQL:
            return catalog_mysql.read(reading)
        case Engine.SQLITE:
            return catalog_sqlite.read(reading)


def audit(
    url: str,
    *,
    confirm: bool = False,
    budget_seconds: float = 60.0,
    tables: tuple[str, ...] = (),
    more: Callable[[Catalog, Reading], list[Finding]] = lambda catalog, reading: [],
) -> Audit:
    """Look for gaps in the schema at `url`, and with `confirm` for the rows that came through them.

    `more` adds findings that no rule makes; it is called while the connection is open.
    """
    engine, reading = open_database(url)
    try:
        catalog = read_catalog(engine, reading)
        chosen = {table.full_name for table in catalog.tables if _matches(table.name, table.full_name, tables)}
        if tables and not chosen:
            raise Misconfigured(f"no table matches {' or '.join(map(repr, tables))}")
        findings = [
            found
            for found in (*examine(catalog), *more(catalog, reading))
            if not found.table or _matches(found.table.rpartition(".")[2], found.table, tables)
        ]
        evidence = Confirming(reading, catalog, budget_seconds).confirm(findings) if confirm else {}
    finally:
        reading.close()
    results = _results(catalog, findings, evidence)
    kept = [one for one in results if one.confirmed or not one.finding.only_confirmed]
    kept.sort(key=lambda one: (not one.confirmed, -one.severity, one.finding.rule, one.finding.object))
    incomplete = tuple(_incomplete(catalog, chosen, results))
    return Audit(reading.name, engine, catalog.version, len(chosen), tuple(kept), incomplete, catalog)


def _matches(name: str, full_name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(name, one) or fnmatchcase(full_name, one) for one in patterns)


def _results(catalog: Catalog, findings: list[Finding], evidence: dict[int, Evidence]) -> list[Result]:
    sql = Dialect(catalog)
    results = []
    for number, found in enumerate(findings):
        table = catalog.table(found.check.table) if found.check else None
        statement = sql.count(found.check, table) if found.check and table else ""
        results.append(Result(found, statement, evidence.get(number)))
    return results


def _incomplete(catalog: Catalog, chosen: set[str], results: list[Result]) -> list[str]:
    reasons = [catalog.hidden] if catalog.hidden else []
    if not chosen:
        reasons.append("no table was seen: the database is empty, or the role may see none")
    for one in results:
        if one.evidence is not None and not one.evidence.conclusive:
            reason = one.evidence.reason or "a sample without a duplicate proves nothing"
            reasons.append(f"{one.finding.rule} {one.finding.object}: {one.evidence.how}, {reason}")
    return reasons


class Shown:
    """Values as a report may show them: keyed hashes, unless the user wants the values."""

    def __init__(self, *, values: bool) -> None:
        self._values = values
        self._secret = secrets.token_bytes(32)  # a new one for each run: a short value could be found by trying

    def __call__(self, value: Any) -> str | None:
        if value is None:
            return None
        spelled = value.hex() if isinstance(value, bytes) else str(value)
        if self._values:
            return spelled
        digest = hashlib.blake2b(spelled.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=8)
        return "#" + digest.hexdigest()
