"""What `samekey db audit` looks at besides the schema: another database, code, and migrations that did not run yet."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from samekey.cli import _out as out
from samekey.detect.audit import open_database, read_catalog
from samekey.detect.catalog import Catalog
from samekey.detect.code import Located, located
from samekey.detect.drift import drift
from samekey.detect.findings import Finding, Severity
from samekey.detect.migration_effects import applied, lint
from samekey.detect.migrations import locate, places, statements
from samekey.detect.retry_test import Tried, Verdict, as_findings, try_all
from samekey.detect.rules import TITLES, examine
from samekey.drivers.reading import Reading


class Extras:
    def __init__(
        self,
        against: str | None,
        code: Path | None,
        lints: tuple[Path, ...],
        *,
        confirm: bool,
        retry_test: bool,
    ) -> None:
        self._retry_test = retry_test
        self.tried: list[Tried] = []
        self._against, self._code, self._lints, self._confirm = against, code, lints, confirm
        self.sites: list[Located] = []
        self.problems: list[str] = []

    def look(self, catalog: Catalog, reading: Reading) -> list[Finding]:
        """Findings about the schema; the call sites are kept apart."""
        if self._code is not None:
            self.sites, self.problems = located(self._code, catalog, reading if self._confirm else None)
        found = drift(catalog, _catalog_of(self._against)) if self._against else []
        if self._retry_test:
            self.tried = try_all(catalog, reading, {table.full_name for table in catalog.tables})
            found += as_findings(self.tried)
            self.problems += [
                f"--retry-test {one.table}: {one.why}" for one in self.tried if one.verdict is Verdict.UNKNOWN
            ]
        return [*found, *self._lint(catalog)]

    def _lint(self, catalog: Catalog) -> list[Finding]:
        """What the files would do, one after another."""
        found: list[Finding] = []
        for path in self._lints:
            after, unknown = applied(catalog, statements(path))
            self.problems += unknown
            made = places(path)
            found += [locate(one, made) for one in lint(catalog, after, examine(catalog), examine(after))]
            catalog = after
        return found

    def as_object(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._code is not None:
            found["call_sites"] = [_site(one) for one in self.sites]
        if self._retry_test:
            found["retry_test"] = [
                {"table": one.table, "verdict": one.verdict.value, "why": one.why, "made_up": one.made_up}
                for one in self.tried
            ]
        return found

    def show(self) -> None:
        for one in self.sites:
            found = one.finding
            out.line()
            out.line(f"{found.rule} {found.object} {one.function}: {TITLES[found.rule]}")
            out.line(f"  {found.why}")
            if one.duplicates:
                since = "" if one.since is None else f" since {datetime.fromtimestamp(one.since, UTC):%Y-%m-%d %H:%M}"
                rows = "" if one.pair is None else f", first rows {_ids(one.pair[0])} and {_ids(one.pair[1])}"
                out.line(f"  {found.table}: {one.duplicates} rows too many{since}{rows}")
            elif one.duplicates == 0:
                out.line(f"  {found.table}: no row is doubled yet")
            for statement in found.fix:
                out.line(f"  {statement}")

    def failing(self, least: Severity | None) -> bool:
        """As for the schema: doubled rows fail, and latent ones from this severity on."""
        return any(one.duplicates or (least is not None and one.finding.severity >= least) for one in self.sites)


def _catalog_of(url: str) -> Catalog:
    engine, reading = open_database(url)
    try:
        return read_catalog(engine, reading)
    finally:
        reading.close()


def _ids(row: tuple[Any, ...]) -> str:
    return " ".join(map(str, row))


def _site(one: Located) -> dict[str, Any]:
    found = one.finding
    return {
        "rule": found.rule,
        "title": TITLES[found.rule],
        "severity": found.severity.label,
        "file": str(one.file),
        "line": one.line,
        "function": one.function,
        "why": found.why,
        "table": found.table,
        "missing_key": list(found.unique_on),
        "duplicates": one.duplicates,
        "since": one.since,
        "until": one.until,
        "pair": None if one.pair is None else [[str(v) if not isinstance(v, int) else v for v in r] for r in one.pair],
        "fix_sql": list(found.fix),
    }
