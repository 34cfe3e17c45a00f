"""Operator commands on a large table: how long `ls`, `stats` and `doubles` take in PostgreSQL, and by which plans.

    python -m bench.search --records 10000000

A private server without fsync, and a table that is filled with generated rows: a day of records, 20 operations, rare
states, notes and request ids. Each command runs as a person would type it, in this process, so its time has the
connection and the printing in it. Exit 1 if a first page is slower than 300 ms (p95), or if any statement reads the
whole table.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg

from samekey.cli._root import root
from samekey.core.key import make_key
from samekey.core.record import provider_key
from samekey.core.search import provider_term
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import store as store_module
from samekey.testing.servers import postgres

FIRST_PAGE_MS = 300.0
CHUNK = 500_000  # rows of one INSERT
SAMPLES = 100  # records that are searched for by what they have alone
DAY = 86_400
OPERATIONS, PARTIES, DAYS_COUNTED = 20, 1000, 14
SETTINGS: dict[str, Any] = {
    "shared_buffers": "1GB",
    "maintenance_work_mem": "512MB",
    "max_wal_size": "8GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
}

# As `core.search.term` computes it.
TERM = """
CREATE FUNCTION term(name text, value text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT encode(substr(sha256(convert_to('samekey.term.1:' || name, 'UTF8') || '\\x00'::bytea
    || convert_to(value, 'UTF8')), 1, 16), 'hex')::uuid
$$
"""

# Of 100,000: 10 in doubt, 2 held past their lease, 300 closed, 500 released; operation 19 has one of 10,000 records.
FILL = """
INSERT INTO samekey_records (
  digest, operation, tenant, key, state, token, attempt, fingerprint, form, boundary, version, attempts, created_at,
  changed_at, lease_until, unsure, happened, round, settled_by, settled_at, retain_until, result, error, moves,
  attributes, content, notes, terms, provider
)
SELECT md5('digest' || n)::uuid,
       'operation-' || CASE WHEN n %% 10000 = 77 THEN 19 ELSE n %% 7 * (n / 7 %% 3) END, 'tenant-' || n %% 50,
       'order-' || lpad(n::text, 12, '0'), state, n, md5('attempt' || n)::uuid, sha256(n::text::bytea), '1', 'opaque',
       2, 1, made, made + 0.2, made + 30, false, false, 0,
       CASE WHEN ended THEN md5('attempt' || n) END, CASE WHEN ended THEN made + 0.2 END,
       CASE WHEN ended THEN made + 7 * 86400 END,
       CASE WHEN state = 'completed' THEN decode(repeat(md5('result' || n), 6), 'hex') END,
       CASE WHEN state IN ('released', 'in_doubt') THEN
         CASE n %% 2 WHEN 0 THEN 'TimeoutError' ELSE 'ValueError' END END,
       CASE WHEN state = 'in_doubt' THEN
         '[' || made || ',' || n || ',"","started","' || md5('attempt' || n) || '",""]' || chr(10) || '[' || made + 0.2
           || ',' || n || ',"started","' || state || '","' || md5('attempt' || n) || '",""]' END,
       '[["region","' || CASE n %% 3 WHEN 0 THEN 'eu' ELSE 'us' END || '"],["request_id","req-' || n / 2 || '"]]',
       substr(sha256((CASE WHEN n %% 500 = 1 THEN n - 1 ELSE n END)::text::bytea), 1, 16), NULL,
       ARRAY[term('request_id', 'req-' || n / 2)] || CASE WHEN n %% 5 = 0 THEN ARRAY[
         term('note.provider_ref', 'ch_' || n), term('note.party', 'cus_' || n / 5 %% {parties})] END,
       md5('provider' || n)::uuid
  FROM (
    SELECT n, date_part('epoch', clock_timestamp()) - %(records)s * {step} + n * {step} AS made, state,
           state NOT IN ('started', 'in_doubt') AS ended
      FROM (
        SELECT n, CASE WHEN n %% 10000 = 3 THEN 'in_doubt' WHEN n %% 50000 = 4 THEN 'started'
                       WHEN n %% 1000 < 3 THEN 'closed' WHEN n %% 1000 < 8 THEN 'released' ELSE 'completed' END AS state
          FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
      ) AS numbered
  ) AS timed
"""

COUNTS = """
INSERT INTO samekey_counts
SELECT minute, 'operation-' || operation, source, outcome, 100
  FROM generate_series(floor(date_part('epoch', clock_timestamp()) / 60)::int - %s, \
floor(date_part('epoch', clock_timestamp()) / 60)::int) AS minute,
       generate_series(0, 4) AS operation, unnest(ARRAY['', 'web']) AS source,
       unnest(ARRAY['new', 'replayed', 'in_doubt']) AS outcome
"""


class Asked(NamedTuple):
    """One command; `arguments` takes the number of the try, `page` counts towards the limit."""

    name: str
    arguments: Callable[[int], list[str]]
    page: bool = True


class Sample(NamedTuple):
    digest: str
    provider_key: str
    request_id: str
    provider_ref: str
    party: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--tries", type=int, default=20, help="of each command")
    parser.add_argument("--plans", action="store_true", help="print every plan")
    given = parser.parse_args()
    with postgres(**SETTINGS) as server:
        url = server.create_database()
        migrate(url)
        with psycopg.connect(url, autocommit=True) as link:
            begun = time.perf_counter()
            fill(link, given.records)
            row = link.execute("SELECT pg_total_relation_size('samekey_records')").fetchone()
            assert row is not None
            print(
                f"{given.records:,} records in {time.perf_counter() - begun:,.0f} s, {row[0] / 1e9:.1f} GB", flush=True
            )
            samples = sampled(link, given.records)
            link.execute("CHECKPOINT")
        slow = measure(url, commands(samples, given.records), given.tries)
        whole = plans(url, commands(samples, given.records), shown=given.plans)
    for name in slow:
        print(f"too slow: {name}")
    for name in whole:
        print(f"reads the whole table: {name}")
    return 1 if slow or whole else 0


def fill(link: psycopg.Connection[Any], records: int) -> None:
    """Indexes are made after the rows: ten times faster, and as dense as those of a table that is in use are not."""
    link.execute(TERM)
    link.execute("ALTER TABLE samekey_records DROP CONSTRAINT samekey_records_pkey")
    indexes = link.execute("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'samekey_records'").fetchall()
    for name, _ in indexes:
        link.execute(f"DROP INDEX {name}".encode())
    statement = FILL.format(parties=PARTIES, step=DAY / records).encode()
    for first in range(1, records + 1, CHUNK):
        link.execute(statement, {"records": records, "first": first, "last": min(first + CHUNK - 1, records)})
    link.execute("ALTER TABLE samekey_records ADD PRIMARY KEY (digest)")
    for _, definition in indexes:
        link.execute(definition.encode())
    link.execute(COUNTS, (DAYS_COUNTED * 1440,))
    link.execute("VACUUM ANALYZE samekey_records")
    link.execute("VACUUM ANALYZE samekey_counts")


def sampled(link: psycopg.Connection[Any], records: int) -> list[Sample]:
    """Some records, with the search term of their provider key, which only Python computes."""
    found = []
    chosen = random.Random(1)
    for number in {5 * chosen.randrange(1, records // 5) for _ in range(SAMPLES)}:
        row = link.execute(
            "SELECT operation, tenant, key, digest FROM samekey_records WHERE digest = md5('digest' || %s)::uuid",
            (str(number),),
        ).fetchone()
        assert row is not None
        key = make_key(row[0], row[2], row[1])._replace(digest=row[3].bytes)
        link.execute(
            "UPDATE samekey_records SET provider = %s::uuid WHERE digest = %s", (provider_term(key, 0).hex(), row[3])
        )
        shown = provider_key(key, 0)
        found.append(Sample(row[3].hex, shown, f"req-{number // 2}", f"ch_{number}", f"cus_{number // 5 % PARTIES}"))
    return found


def commands(samples: list[Sample], records: int) -> list[Asked]:
    def of(number: int) -> Sample:
        return samples[number % len(samples)]

    def plain(name: str, *arguments: str, page: bool = True) -> Asked:
        return Asked(name, lambda number: [*name.split(), *arguments], page)

    hour = f"{max(1, DAY // 24)}s"
    return [
        plain("ls"),
        plain("ls --oldest-first"),
        Asked("ls DIGEST", lambda n: ["ls", of(n).digest[:10]]),
        *[plain(f"ls --state {state}") for state in ("started", "completed", "closed", "released", "in_doubt")],
        plain("ls --state closed --state released"),
        plain("ls --waiting"),
        plain("ls --waiting --oldest-first --operation operation-19"),
        plain("ls --since 2h --until 1h"),
        Asked("ls --provider-key", lambda n: ["ls", "--provider-key", of(n).provider_key]),
        Asked("ls --request-id", lambda n: ["ls", "--request-id", of(n).request_id]),
        Asked("ls --note provider_ref", lambda n: ["ls", "--note", f"provider_ref={of(n).provider_ref}"]),
        Asked("ls --note party", lambda n: ["ls", "--note", f"party={of(n).party}"]),
        plain("ls --operation operation-0"),
        plain("ls --operation operation-19", page=False),
        plain("ls --operation none", "--since", hour, page=False),
        plain("ls --error TimeoutError", "--since", hour, page=False),
        plain("ls --attribute region=eu", "--since", hour, page=False),
        Asked("explain OPERATION KEY", lambda n: ["explain", "operation-0", "order-nothing"]),
        plain("stats", page=False),
        Asked("doubles --window", lambda n: ["doubles", "--window", f"{max(1, 50_000 * DAY // records)}s"], False),
    ]


def measure(url: str, asked: list[Asked], tries: int) -> list[str]:
    """Print the times of each command; the names of first pages that are too slow."""
    slow = []
    for one in asked:
        times, codes, lines = [], set(), 0
        for number in range(tries if one.page else max(3, tries // 5)):
            begun = time.perf_counter()
            code, text = typed([*one.arguments(number), "--store", url, "--json"])
            times.append(1000 * (time.perf_counter() - begun))
            codes.add(code)
            lines = max(lines, text.count("\n"))
        p95 = statistics.quantiles(times, n=20, method="inclusive")[-1]
        print(
            f"{one.name:<52} median {statistics.median(times):8.1f} ms  p95 {p95:8.1f} ms  "
            f"{lines:5} lines, exit {', '.join(map(str, sorted(codes)))}",
            flush=True,
        )
        if one.page and p95 > FIRST_PAGE_MS:
            slow.append(one.name)
    return slow


def typed(arguments: list[str]) -> tuple[int, str]:
    """Exit code and stdout of a command, in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as written, contextlib.redirect_stderr(io.StringIO()):
        try:
            root.main(arguments, prog_name="samekey")
        except SystemExit as ended:
            return int(ended.code or 0), written.getvalue()
    return 0, written.getvalue()


def plans(url: str, asked: list[Asked], *, shown: bool) -> list[str]:
    """The names of commands of which a statement reads the whole table, in its plan."""
    whole = []
    for one in asked:
        for statement, values in statements(url, [*one.arguments(0), "--store", url]):
            with psycopg.connect(url) as link:
                row = link.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode(), values).fetchone()
            assert row is not None
            scans = list(_scans(row[0][0]["Plan"]))
            if shown:
                print(f"{one.name:<52} {', '.join(scans)}")
            if any(scan == "Seq Scan samekey_records" for scan in scans):
                whole.append(one.name)
    return whole


def statements(url: str, arguments: list[str]) -> list[tuple[str, Any]]:
    """The different statements over the table of records that this command asks the operators' connection."""
    found: dict[str, Any] = {}
    module: Any = store_module  # where the store looks its statement up
    real = module.list_statement

    def noted(query: Any) -> Any:
        statement, values = real(query)
        found.setdefault(statement, values)
        return statement, values

    module.list_statement = noted
    try:
        typed(arguments)
    finally:
        module.list_statement = real
    return list(found.items())


def _scans(node: dict[str, Any]) -> Iterator[str]:
    if "Scan" in node["Node Type"]:
        yield " ".join(str(node[name]) for name in ("Node Type", "Relation Name", "Index Name") if name in node)
    for child in node.get("Plans", ()):
        yield from _scans(child)


if __name__ == "__main__":
    sys.exit(main())
