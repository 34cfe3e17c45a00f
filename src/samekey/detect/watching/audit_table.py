"""Changes from the table that an audit trigger fills, where logical replication is not allowed or does not exist."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

from samekey.core.errors import Misconfigured
from samekey.detect.watching.audit_trigger import Server, table_name
from samekey.detect.watching.changes import Batch, Gap, SourceLost
from samekey.detect.watching.pgoutput import PlansOf
from samekey.detect.watching.plans import Plan
from samekey.drivers.reading import CannotRead, StatementStopped
from samekey.drivers.writing import Writing

POLL_SECONDS = 0.5  # while no row comes
CHECK_SECONDS = 10.0  # between two looks whether the triggers are there, and between two prunings
READ_ROWS = 20_000  # in one batch
PRUNE_ROWS = 10_000  # that one statement deletes: short locks


class AuditTableSource:
    def __init__(
        self, server: Server, link: Writing, audit: str, tables: Mapping[str, Sequence[str]], plans_of: PlansOf
    ) -> None:
        """`tables`: full name -> the columns that the rules need."""
        self._server, self._link, self._audit, self._tables = server, link, audit, tables
        self._table = table_name(audit, server.engine)
        self.name = link.name
        self._plans: dict[str, list[Plan]] = {table: plans_of(table, columns) for table, columns in tables.items()}
        self._position = self._end = 0
        self._confirmed = self._pruned = 0
        self._next_prune = 0.0

    def install(self) -> None:
        """Make the table and the triggers; a second time brings the triggers up to date with the rules."""
        for statement in self._server.create(self._audit, secrets.token_hex(8)):
            self._link.run(statement)
        for table, columns in self._tables.items():
            for statement in self._server.trigger(self._audit, table, columns):
                self._link.run(statement)

    def remove(self) -> None:
        for table in self._tables:
            for statement in self._server.drop_trigger(table):
                self._link.run(statement)
        self._link.run(f"DROP TABLE IF EXISTS {self._table}")

    @property
    def identity(self) -> str:
        return f"audit table {self._audit} {self._epoch()}"

    def open(self, position: str | None) -> str:
        self._epoch()
        self._check()
        self._position = self._server.horizon(self._link, self._audit)[0] if position is None else int(position)
        return str(self._position)

    def _epoch(self) -> str:
        try:
            found = self._link.run(f"SELECT row_values FROM {self._table} WHERE at = 0")
        except StatementStopped as error:
            raise Misconfigured(
                f"there is no audit table {self._audit}: make it and its triggers with --install-trigger"
            ) from error
        if not found:
            raise Gap(f"the audit table {self._audit} was emptied: changes were not seen")
        return str(found[0][0])

    def _check(self) -> None:
        for table in self._tables:
            ((there,),) = self._link.run(self._server.installed(table))
            if not there:
                raise Gap(
                    f"{table} has no audit trigger, or it is disabled: changes are not seen. --install-trigger makes it"
                )

    def batches(self) -> Iterator[Batch]:
        checked = time.monotonic()
        try:
            while True:
                batch = self._batch()
                yield batch
                if not batch.rows:
                    time.sleep(POLL_SECONDS)
                if time.monotonic() - checked >= CHECK_SECONDS:
                    checked = time.monotonic()
                    self._epoch()
                    self._check()
                    self._prune()
        except (CannotRead, StatementStopped) as error:
            raise SourceLost(error.message) from error

    def _batch(self) -> Batch:
        horizon, now = self._server.horizon(self._link, self._audit)
        batch = Batch(clock=now, heartbeat=True)
        if horizon > self._position:
            horizon = self._not_too_far(horizon)
            for at, table, row, stored_at in self._link.run(self._server.read(self._audit), (self._position, horizon)):
                self._add(batch, table, json.loads(row), stored_at, str(at))
            self._position = horizon
        batch.position = str(self._position)
        return batch

    def _not_too_far(self, horizon: int) -> int:
        """An earlier end when more than `READ_ROWS` rows are there; rows of one transaction stay together."""
        found = self._link.run(
            f"SELECT at FROM {self._table} WHERE at >= %s AND at < %s ORDER BY at LIMIT 1 OFFSET {READ_ROWS}",
            (self._position, horizon),
        )
        return max(int(found[0][0]), self._position + 1) if found else horizon

    def _add(self, batch: Batch, table: str, row: dict[str, str | None], stored_at: int, at: str) -> None:
        batch.rows += 1
        for plan in self._plans.get(table, ()):
            names = self._tables[table]
            missing = [name for name in names if name not in row]
            if missing:
                raise Gap(
                    f"the audit trigger of {table} does not store {', '.join(missing)}: install it again with "
                    "--install-trigger"
                )
            values = [None if (value := row[name]) is None else value.encode() for name in names]
            event = plan.event(values, stored_at, at)
            if event is not None:
                batch.events.append((plan, event))

    def mark_end(self) -> None:
        """The rows that are committed now: those of transactions that still run come later, as does their commit."""
        self._end = self._newest() + 1

    def _newest(self) -> int:
        ((newest,),) = self._link.run(f"SELECT coalesce(max(at), 0) FROM {self._table}")
        return int(newest)

    def reached_end(self, position: str) -> bool:
        return int(position) >= self._end

    def confirm(self, position: str) -> None:
        self._confirmed = int(position)

    def _prune(self) -> None:
        """Delete what is durable elsewhere, in small statements."""
        limit = f"at > 0 AND at < {self._confirmed}"
        self._link.run(
            f"DELETE FROM {self._table} WHERE at IN "
            f"(SELECT at FROM (SELECT at FROM {self._table} WHERE {limit} ORDER BY at LIMIT {PRUNE_ROWS}) old)"
        )

    def gauges(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """The last pruning of a run that ends well; one that fails leaves the rows for the next run."""
        try:
            if self._confirmed:
                self._prune()
        except (CannotRead, StatementStopped):
            pass
        self._link.close()
