"""`samekey db audit` and `db scan` on large databases: CPU seconds beside the plain query.

    python -m bench.detect --tables 1500 --rows 10000000

A private PostgreSQL without fsync. The audit reads the catalog of so many tables. The scan is compared with the plain
LAG query over the same columns (CPU of the server's process), and the DuckDB path with DuckDB alone over the same
extract (CPU of this process). Exit 1 above 2 s, 1.3 times, or 1.3 times.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psycopg

from samekey.detect.audit import audit, open_database, read_catalog
from samekey.detect.duckdb_pairs import compare
from samekey.detect.pairs import Pair, PairSql, Span, find_table
from samekey.detect.rule_file import Rule
from samekey.detect.scan import Wanted, scan
from samekey.testing.servers import postgres

SETTINGS: dict[str, Any] = {"shared_buffers": "1GB", "work_mem": "64MB", "max_wal_size": "8GB", "autovacuum": "off"}
RULE = Rule("bench", "orders", ("customer_id", "amount", "currency", "payload"), window_seconds=86_400.0,
            time="created_at")  # fmt: skip
# One row of a thousand repeats the row before it, a minute later.
FILL = """
CREATE TABLE orders AS
SELECT n AS id, (m * 7919 % 1000003)::int AS customer_id, (m % 9973)::int AS amount, 'EUR'::text AS currency,
  md5(m::text) AS payload, timestamptz '2026-01-01' + n * interval '250 ms' AS created_at
FROM (SELECT n, CASE WHEN n %% 1000 = 0 THEN n - 1 ELSE n END AS m FROM generate_series(1, %s) n) x
"""
PLAIN = """
SELECT id, prev, gap FROM (SELECT id, lag(id) OVER w AS prev, created_at - lag(created_at) OVER w AS gap FROM orders
WINDOW w AS (PARTITION BY customer_id, amount, currency, payload ORDER BY created_at, id)) x
WHERE gap <= interval '24 hours'
"""


class Nowhere:
    """A sink that counts."""

    def __init__(self) -> None:
        self.pairs = 0

    def pair(self, rule: Rule, pair: Pair) -> None:
        self.pairs += 1

    def place(self) -> int:
        return 0

    def cut(self, place: int) -> None: ...


def own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def servers(url: str) -> float:
    """CPU seconds of all processes of the server, those that ended included."""
    with psycopg.connect(url) as link:
        found = link.execute("SELECT pg_read_file('postmaster.pid', 0, 20)").fetchone()
    assert found is not None
    postmaster = int(found[0].split()[0])
    total, ticks = 0, os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and (int(entry.name) == postmaster or int(fields[1]) == postmaster):
            total += int(fields[11]) + int(fields[12])
            total += int(fields[13]) + int(fields[14]) if int(entry.name) == postmaster else 0
    return total / ticks


def measured(url: str, run: Callable[[], Any]) -> tuple[float, float, Any]:
    """CPU seconds of the server, of this process, and the result."""
    there, here = servers(url), own()
    result = run()
    time.sleep(0.2)  # the server's process has ended
    return servers(url) - there, own() - here, result


def plain(url: str) -> int:
    with psycopg.connect(url) as link:
        link.execute("SET max_parallel_workers_per_gather = 0")
        return len(link.execute(PLAIN).fetchall())


def scanned(url: str, *, with_duckdb: bool) -> int:
    sink = Nowhere()
    scan(Wanted(url, (RULE,), duckdb=with_duckdb), sink)
    return sink.pairs


def duckdb_alone(url: str) -> tuple[float, int]:
    """CPU seconds of DuckDB over an extract that is there already."""
    engine, reading = open_database(url)
    catalog = read_catalog(engine, reading)
    table = find_table(catalog, RULE)
    sql = PairSql(catalog, table, RULE.bound(column.name for column in table.columns))
    with tempfile.TemporaryDirectory() as folder:
        extract = Path(folder) / "extract.csv"
        with extract.open("wb") as file:
            reading.copy_out(sql.thin(Span(), 17), file, seconds=3600)  # type: ignore[attr-defined]
        reading.close()
        before = own()
        with duckdb.connect(":memory:", config={"memory_limit": "1GB", "temp_directory": folder}) as link:
            found = len(link.execute(compare(sql, Span(), extract)).fetchall())
        return own() - before, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tables", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=10_000_000)
    given = parser.parse_args()
    with postgres(**SETTINGS) as server:
        catalog = server.create_database()
        with psycopg.connect(catalog, autocommit=True) as link:
            for number in range(given.tables):
                link.execute(
                    f"CREATE TABLE t{number} (id bigserial PRIMARY KEY, tenant_id int, request_id text, amount int, "
                    f"created_at timestamptz DEFAULT now(), UNIQUE (tenant_id, request_id))".encode()
                )
        there, here, report = measured(catalog, lambda: audit(catalog))
        print(f"audit of {report.tables} tables: {there + here:.2f} CPU s ({here:.2f} here)")
        slow = there + here > 2.0

        rows = server.create_database()
        with psycopg.connect(rows, autocommit=True) as link:
            link.execute(FILL.replace("%s", str(given.rows)).replace("%%", "%").encode())
            link.execute("ANALYZE orders")
        base, _, found = measured(rows, lambda: plain(rows))
        there, here, ours = measured(rows, lambda: scanned(rows, with_duckdb=False))
        ratio = (there + here) / base
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"plain LAG over {given.rows} rows: {base:.1f} CPU s, {found} pairs")
        print(
            f"db scan: {there + here:.1f} CPU s ({here:.1f} here), {ours} pairs: {ratio:.2f} times; peak {peak:.0f} MB"
        )
        alone, by_duckdb = duckdb_alone(rows)
        there, here, thin = measured(rows, lambda: scanned(rows, with_duckdb=True))
        duck_ratio = here / alone
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"DuckDB alone: {alone:.1f} CPU s, {by_duckdb} pairs")
        print(f"db scan --engine duckdb: {here:.1f} CPU s here, {there:.1f} in the server, {thin} pairs: "
              f"{duck_ratio:.2f} times; peak {peak:.0f} MB")  # fmt: skip
    return int(slow or ratio > 1.3 or duck_ratio > 1.3 or not found == ours == by_duckdb == thin)


if __name__ == "__main__":
    sys.exit(main())
