"""Count in the rows what came through a gap, within a budget: exact, by a sample of keys, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from samekey.detect.catalog import Catalog, Table
from samekey.detect.dialect import SAMPLE, Dialect
from samekey.detect.findings import Check, Finding
from samekey.drivers.reading import NotPermitted, Reading, StatementStopped

SAMPLED_MICROSECONDS = 0.45  # for a row, measured on 10 million rows: the table is still read once


class How(StrEnum):
    EXACT = "exact"
    SAMPLED = "sampled"  # one key of a hundred, with all of its rows
    SKIPPED = "skipped"  # the budget does not allow a sample either
    STOPPED = "stopped"  # the time was over, a lock was held, or the table changed
    REFUSED = "refused"  # the role may not read the table


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rows showed."""

    how: How
    groups: int = 0  # keys with more rows than they should have; of the sample, if sampled
    rows: int = 0  # rows too many
    worst: tuple[tuple[int, tuple[Any, ...]], ...] = ()  # (rows, values of the key)
    reason: str = ""

    @property
    def conclusive(self) -> bool:
        """Whether it answers the question. A sample without a duplicate does not."""
        return self.how is How.EXACT or (self.how is How.SAMPLED and self.groups > 0)


class Confirming:
    """Runs checks until the budget is used. The same statement runs once."""

    def __init__(
        self,
        reading: Reading,
        catalog: Catalog,
        budget_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reading, self._catalog, self._clock = reading, catalog, clock
        self._ends = clock() + budget_seconds
        self._sql = Dialect(catalog)
        self._known: dict[str, Evidence] = {}

    def confirm(self, findings: list[Finding]) -> dict[int, Evidence]:
        """Evidence by the position of the finding; the gravest first, because the budget may end."""
        order = sorted(
            (number for number, found in enumerate(findings) if found.check),
            key=lambda number: (-findings[number].severity, number),
        )
        return {number: self._look(check) for number in order if (check := findings[number].check)}

    def _look(self, check: Check) -> Evidence:
        table = self._catalog.table(check.table)
        assert table is not None, check.table  # noqa: S101 - a rule takes it from the catalog
        exact = self._sql.count(check, table)
        if exact not in self._known:
            self._known[exact] = self._run(check, table, exact)
        return self._known[exact]

    def _run(self, check: Check, table: Table, exact: str) -> Evidence:
        if not table.readable:
            return Evidence(How.REFUSED, reason=f"the role may not read {table.full_name}")
        left, rows = self._ends - self._clock(), self._rows(table)
        if left <= 0:
            return Evidence(How.SKIPPED, reason="the budget is used")
        how = How.EXACT
        if rows * check.microseconds / 1e6 > left:
            how = How.SAMPLED
            if rows * SAMPLED_MICROSECONDS / 1e6 > left:
                return Evidence(How.SKIPPED, reason=f"about {rows:.0f} rows do not fit into the {left:.1f} s left")
        sql = exact if how is How.EXACT else self._sql.count(check, table, sampled=True)
        try:
            found = self._reading.rows(sql, seconds=left, whole_table=True)
        except StatementStopped as stopped:
            return Evidence(How.STOPPED, reason=stopped.message)
        except NotPermitted as refused:
            return Evidence(How.REFUSED, reason=refused.message)
        if not found:
            return Evidence(how)
        worst = tuple((int(row[2]), tuple(row[3:])) for row in found)
        return Evidence(how, int(found[0][0]), int(found[0][1]), worst)

    def _rows(self, table: Table) -> float:
        """With the rows of its partitions and heirs: a statement on a parent reads them too."""
        parts = [part for part in map(self._catalog.table, self._catalog.heirs.get(table.full_name, ())) if part]
        return max(table.rows, 0.0) + sum(self._rows(part) for part in parts)


def described(evidence: Evidence) -> str:
    """For people: how many, and how it is known."""
    if evidence.how is How.EXACT:
        keys = f"{evidence.groups} key{'s' * (evidence.groups != 1)}"
        return f"{keys}, {evidence.rows} rows too many" if evidence.groups else "none in the rows"
    if evidence.how is How.SAMPLED:
        about = f"about {evidence.groups * SAMPLE} keys, {evidence.rows * SAMPLE} rows too many (sampled)"
        return about if evidence.groups else "none in a sample of 1 %"
    return f"not counted: {evidence.how}"
