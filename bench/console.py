"""The console's pages on a large table: how long each takes on the server, and by which plans.

    python -m bench.console --records 10000000
    python -m bench.console --sqlite 100000

PostgreSQL is a private server with generated rows, as in bench.search. The requests come from this process, without a
network, so a time has the store's queries and the rendering in it. Exit 1 if a page takes longer than 300 ms (p95), or
if a statement reads the whole table of records. On a busy machine look at the CPU column: wall times are its load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg

from bench.search import SETTINGS, Sample, _scans, fill, sampled
from samekey import Guard
from samekey.console import Access, console_app
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import store as store_module
from samekey.testing.servers import postgres

PAGE_MS = 300.0
TOKEN = "bench-token-0123456789"  # noqa: S105 - of a console that lives as long as this program


class Page(NamedTuple):
    """One page; `path` takes the number of the try."""

    name: str
    path: Callable[[int], str]


def pages(samples: list[Sample]) -> list[Page]:
    def of(number: int) -> Sample:
        return samples[number % len(samples)]

    def plain(path: str) -> Page:
        return Page(path, lambda number: path)

    return [
        plain("/"),
        plain("/?span=1h"),
        plain("/?span=7d"),
        plain("/operations"),
        plain("/operations?state=in_doubt"),
        plain("/operations?state=completed"),
        plain("/operations?operation=operation-19"),
        plain("/operations?q=region%3Deu"),
        plain("/operations?q=nothing-has-this"),
        plain("/operations?q=order-0&as=starts"),
        Page("/operations?q=DIGEST", lambda n: f"/operations?q={of(n).digest[:10]}"),
        Page("/operations?q=PROVIDER KEY", lambda n: f"/operations?q={of(n).provider_key}"),
        Page("/operations?q=REQUEST", lambda n: f"/operations?q={of(n).request_id}"),
        Page("/operations?q=PROVIDER REFERENCE", lambda n: f"/operations?q={of(n).provider_ref}"),
        Page("/operations?q=CUSTOMER", lambda n: f"/operations?q={of(n).party}"),
        Page("/record/DIGEST", lambda n: f"/record/{of(n).digest}"),
        plain("/doubts"),
        plain("/doubts?error=TimeoutError"),
        plain("/doubts?turn=person&age=5m"),
        plain("/claims"),
        plain("/duplicates"),
        plain("/stores"),
        plain("/audit"),
    ]


async def measure(url: str, asked: list[Page], tries: int) -> list[str]:
    """Print the times of each page; the names of those that are too slow."""
    slow = []
    app = console_app(url, Access(operator_token=TOKEN))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://console", follow_redirects=True) as client:
        await client.post("/sign-in", data={"token": TOKEN, "who": "bench"})
        for one in asked:
            times, work = [], []
            for number in range(-2, tries):  # the first two fill what the console keeps
                begun, cpu = time.perf_counter(), time.process_time()
                answer = await client.get(one.path(number))
                if number >= 0:
                    times.append(1000 * (time.perf_counter() - begun))
                    work.append(1000 * (time.process_time() - cpu))
                assert answer.status_code == 200, (one.name, answer.status_code)
            p95 = statistics.quantiles(times, n=20, method="inclusive")[-1]
            print(
                f"{one.name:<42} median {statistics.median(times):7.1f} ms  p95 {p95:7.1f} ms  "
                f"CPU of this process, median {statistics.median(work):6.1f} ms",
                flush=True,
            )
            if p95 > PAGE_MS:
                slow.append(one.name)
    await app.state.console.store.close()
    return slow


def whole_reads(url: str, asked: list[Page]) -> list[str]:
    """The names of pages of which a statement reads the whole table of records, in its plan."""
    found: dict[str, tuple[str, Any]] = {}
    module: Any = store_module  # where the store looks its statement up
    real = module.list_statement
    current = ""

    def noted(query: Any) -> Any:
        statement, values = real(query)
        found.setdefault(statement, (current, values))
        return statement, values

    async def visit() -> None:
        nonlocal current
        app = console_app(url, Access(operator_token=TOKEN))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://console", follow_redirects=True) as client:
            await client.post("/sign-in", data={"token": TOKEN, "who": "bench"})
            for one in asked:
                current = one.name
                await client.get(one.path(0))
        await app.state.console.store.close()

    module.list_statement = noted
    try:
        asyncio.run(visit())
    finally:
        module.list_statement = real
    whole = []
    with psycopg.connect(url) as link:
        for statement, (name, values) in found.items():
            row = link.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode(), values).fetchone()
            assert row is not None
            scans = list(_scans(row[0][0]["Plan"]))
            print(f"{name:<42} {', '.join(scans)}", flush=True)
            if "Seq Scan samekey_records" in scans:
                whole.append(name)
    return whole


@contextlib.contextmanager
def small_file(records: int) -> Iterator[tuple[str, list[Sample]]]:
    """A SQLite store with so many records: copies of a few that a guard wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.db"
        url = f"sqlite:///{path}"
        with Guard(url) as guard:
            for number in range(100):
                with contextlib.suppress(TimeoutError):
                    guard.run(
                        f"operation-{number % 7}", _slow if number % 50 == 3 else int, key=str(number), payload={}
                    )
        link = sqlite3.connect(path)
        columns = [row[1] for row in link.execute("PRAGMA table_info(samekey_records)")]
        changed = {"digest": "randomblob(16)", "key": "key || '-' || n.value", "created_at": "created_at - n.value"}
        picked = ", ".join(changed.get(name, name) for name in columns)
        link.execute(
            "WITH RECURSIVE n(value) AS "  # noqa: S608 - a number, and names of columns
            f"(SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {records // 100 - 1}) "
            f"INSERT INTO samekey_records ({', '.join(columns)}) SELECT {picked} FROM samekey_records, n"
        )
        link.commit()
        rows = link.execute("SELECT digest FROM samekey_records LIMIT 50").fetchall()
        link.close()
        yield url, [Sample(row[0].hex(), "nothing", "req-1", "ch_1", "cus_1") for row in rows]


def _slow() -> None:
    raise TimeoutError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, help="in PostgreSQL; 0 leaves it out")
    parser.add_argument("--sqlite", type=int, default=100_000, help="in a SQLite file; 0 leaves it out")
    parser.add_argument("--tries", type=int, default=20, help="of each page")
    given = parser.parse_args()
    slow: list[str] = []
    whole: list[str] = []
    if given.sqlite:
        with small_file(given.sqlite) as (url, samples):
            print(f"SQLite, {given.sqlite:,} records", flush=True)
            slow += asyncio.run(measure(url, pages(samples), given.tries))
    if given.records:
        with postgres(**SETTINGS) as server:
            url = server.create_database()
            migrate(url)
            with psycopg.connect(url, autocommit=True) as link:
                begun = time.perf_counter()
                fill(link, given.records)
                samples = sampled(link, given.records)
                link.execute("CHECKPOINT")
            print(f"PostgreSQL, {given.records:,} records, made in {time.perf_counter() - begun:,.0f} s", flush=True)
            slow += asyncio.run(measure(url, pages(samples), given.tries))
            whole = whole_reads(url, pages(samples))
    for name in slow:
        print(f"too slow: {name}")
    for name in whole:
        print(f"reads the whole table: {name}")
    return 1 if slow or whole else 0


if __name__ == "__main__":
    sys.exit(main())
