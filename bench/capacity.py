"""What a key costs in PostgreSQL: bytes in the table, its indexes and TOAST, bytes of WAL, and seconds.

    python -m bench.capacity --keys 200000 --result-bytes 200

A private server with fsync, a table of its own, records made and settled by the store itself. Sizes are counted after
each step, so that the number in docs/capacity.md can be made again; rates are this machine's. With --partitions the
table is made in hash partitions.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg

from samekey.core.commands import Open, Settle
from samekey.core.envelope import encode
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.drivers.postgres.migrate import migrate
from samekey.ops.sweeping import sweeping
from samekey.stores.postgres import PostgresStore
from samekey.testing.servers import postgres

TOGETHER = 256  # commands in one batch, as busy callers' travel together
ROUNDS = 3  # of filling, forgetting and filling again: a table that is swept does not start as a new one does


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--result-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    found = dict(measure(given.keys, given.result_bytes, given.partitions))
    if given.as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<40} {value:>12,.0f}")


def measure(keys: int, result_bytes: int, partitions: int) -> Iterator[tuple[str, Any]]:
    # Random: a result that compresses well would make TOAST look small.
    result = encode(os.urandom(max(1, result_bytes // 2)).hex(), max_bytes=1 << 20)
    with postgres(fsync="on", max_wal_size="4GB", autovacuum="off") as server:
        url = server.create_database()
        migrate(url, partitions=partitions)
        with psycopg.connect(url, autocommit=True) as link, closing(PostgresStore(url)) as store:
            yield "keys", keys
            yield "result bytes, as kept", len(result)
            yield "partitions", partitions or 1
            for number in range(ROUNDS):
                # The last round is kept; what the others leave behind is what a table in use looks like.
                retain = 3600.0 if number == ROUNDS - 1 else 0.001
                wal, start = _wal(link), time.perf_counter()
                _fill(store, number, keys, result, retain)
                seconds = time.perf_counter() - start
                if number == 0:
                    yield from _sizes("new", link, keys)
                    yield "WAL bytes a key, claim and settle", (_wal(link) - wal) / keys
                    yield "keys a second, one caller in batches", keys / seconds
                if number < ROUNDS - 1:
                    wal, start = _wal(link), time.perf_counter()
                    swept = sum(step.gone for step in sweeping(store))
                    assert swept == keys, f"{swept} of {keys} were swept"
                    if number == 0:
                        yield "keys a second, swept without a pause", keys / (time.perf_counter() - start)
                        yield "WAL bytes a key, swept", (_wal(link) - wal) / keys
                    link.execute("VACUUM samekey_records")  # as autovacuum does by itself
            yield from _sizes(f"after {ROUNDS} rounds", link, keys)


def _fill(store: PostgresStore, number: int, keys: int, result: bytes, retain_seconds: float) -> None:
    for first in range(0, keys, TOGETHER):
        held = store.batch([_claim(number, one) for one in range(first, min(first + TOGETHER, keys))])
        store.batch([_settle(one, result, retain_seconds) for one in held if isinstance(one, Record)])


def _claim(number: int, one: int) -> Open:
    key = make_key("charge", f"order-{number:02}-{one:012}", "tenant-17")
    intent = Intent({"order_id": key.text, "amount": one, "currency": "EUR"})
    return Open(key, os.urandom(16).hex(), intent, "opaque", lease_seconds=30.0, sends=False)


def _settle(held: Record, result: bytes, retain_seconds: float) -> Settle:
    return Settle(held, Role.HOLDER, State.COMPLETED, by=held.attempt, result=result, retain_seconds=retain_seconds)


def _sizes(when: str, link: psycopg.Connection[Any], keys: int) -> Iterator[tuple[str, Any]]:
    row = link.execute(
        """
        WITH parts AS (
          SELECT relid FROM pg_partition_tree('samekey_records') WHERE isleaf
          UNION SELECT 'samekey_records'::regclass
        )
        SELECT sum(pg_relation_size(relid)), sum(pg_indexes_size(relid)), sum(pg_total_relation_size(relid)) FROM parts
        """
    ).fetchone()
    assert row is not None
    heap, indexes, total = (int(one) for one in row)
    yield f"bytes a key, {when}", total / keys
    yield f"  the table, {when}", heap / keys
    yield f"  indexes, {when}", indexes / keys
    yield f"  TOAST and maps, {when}", (total - heap - indexes) / keys
    for column in ("digest", "retain_until", "created_at"):
        size = link.execute(
            """
            SELECT coalesce(sum(pg_relation_size(indexrelid)), 0) FROM pg_index
            WHERE pg_get_indexdef(indexrelid) LIKE %s
              AND (indrelid = 'samekey_records'::regclass OR indrelid IN (
                SELECT inhrelid FROM pg_inherits WHERE inhparent = 'samekey_records'::regclass))
            """,
            (f"% ON %samekey_records% ({column})%",),
        ).fetchone()
        assert size is not None
        yield f"  index on {column}, {when}", float(size[0]) / keys


def _wal(link: psycopg.Connection[Any]) -> int:
    row = link.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    main()
