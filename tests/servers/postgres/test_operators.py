"""Pages of records and the sweep."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import PostgresStore
from samekey.stores.postgres._operators import list_statement
from samekey.testing.stores.scene import B, settling
from tests.servers.postgres.helpers import sql, until_past

pytestmark = pytest.mark.slow


def test_sweeping_while_claims_run(store, url, scene):
    """Expired records go, and the keys that are claimed anew at the same time are held, every one of them."""
    texts = [str(number) for number in range(400)]
    held = store.batch([scene.opening(text) for text in texts])
    store.batch([settling(one, State.COMPLETED, retain=0.001) for one in held])
    until_past(url, "retain_until")
    swept = []
    begun, over = threading.Event(), threading.Event()

    def sweep() -> None:
        with contextlib.closing(PostgresStore(url)) as sweeper:
            while not over.is_set():
                swept.append(sweeper.sweep(20))
                begun.set()

    with ThreadPoolExecutor(9) as pool:
        sweeping = pool.submit(sweep)
        begun.wait()
        anew = list(pool.map(lambda text: store.carry_out(scene.opening(text, by=B)), texts))
        over.set()
        sweeping.result()

    assert {one.attempt for one in anew} == {B}
    assert {store.carry_out(scene.opening(text)).fence for text in texts} == {one.fence for one in anew}
    assert 20 <= sum(swept) <= 400
    tokens = {one.key.text: one.token for one in held}
    assert all(one.token > tokens[one.key.text] for one in anew)


def test_a_sweep_keeps_its_limit_whatever_the_plan(store, url, scene):
    """In a small table that was never analyzed the limit was looked for row by row: five of five went."""
    held = store.batch([scene.opening(str(number)) for number in range(5)])
    store.batch([settling(one, State.COMPLETED, retain=0.001) for one in held])
    until_past(url, "retain_until")

    assert [store.sweep(2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_row_that_somebody_writes_is_swept_the_next_time(store, url, scene):
    held = store.carry_out(scene.opening())
    store.carry_out(settling(held, State.COMPLETED, retain=0.001))
    until_past(url, "retain_until")
    with psycopg.connect(url) as rival:
        rival.execute("SELECT 1 FROM samekey_records FOR UPDATE")
        assert store.sweep(100) == 0

    assert store.sweep(100) == 1


def test_old_records_are_found_beyond_the_newest(store, url, scene):
    """A page looks at the newest first; what is older is found too, in order."""
    for number in range(6):
        store.carry_out(scene.opening(str(number)))
    sql(url, "UPDATE samekey_records SET created_at = created_at - 100000 * key::int")

    found = store.list(Query(operation=scene.operation, limit=4))
    rest = store.list(Query(operation=scene.operation, limit=4, before=(found[-1].created_at, found[-1].key.digest)))

    assert [one.key.text for one in (*found, *rest)] == ["0", "1", "2", "3", "4", "5"]


# -- pages ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(server):
    """20,000 records, of which the older half was swept and filled again: new rows lie all over the table."""
    address = server.create_database()
    migrate(address)
    sql(address, FILL.format(start=0, age=40_000))
    sql(address, "DELETE FROM samekey_records WHERE token % 2 = 0")
    sql(address, "VACUUM samekey_records")
    sql(address, FILL.format(start=20_000, age=20_000))
    sql(address, "UPDATE samekey_records SET state = 'in_doubt', retain_until = NULL WHERE token % 1000 = 1")
    sql(address, "UPDATE samekey_records SET state = 'closed' WHERE token % 1000 = 5")
    sql(address, "VACUUM ANALYZE samekey_records")
    return address


FILL = """
INSERT INTO samekey_records (
  digest, operation, key, state, token, attempt, fingerprint, form, boundary, version, attempts, created_at, changed_at,
  lease_until, unsure, happened, round, settled_at, retain_until, moves, provider, terms, attributes, content
)
SELECT md5(n::text)::uuid, 'charge', n::text, 'completed', n, md5(n::text)::uuid, 'f', '1', 'opaque', 2, 1, now - age,
       now - age, now - age, false, false, 0, now - age, now + 86400, '[0,1,"","started","a",""]',
       md5('p' || n)::uuid,
       ARRAY[md5('r' || n / 2)::uuid]
         || CASE WHEN n % 100 = 0 THEN ARRAY[md5('n' || n)::uuid, md5('party' || n % 1000)::uuid] END,
       CASE WHEN n % 10 = 0 THEN '[["region","eu"]]' END, 'c'
FROM (SELECT n, {age} - (n - {start}) AS age, date_part('epoch', clock_timestamp()) AS now
      FROM generate_series({start} + 1, {start} + 20000) AS n) AS numbered
"""


def visited(url: str, query: Query) -> tuple[set[str], int]:
    """The kinds of nodes in the plan of this page, and how many rows the scans visit."""
    statement, values = list_statement(query)
    with psycopg.connect(url) as link:
        row = link.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}".encode(), values).fetchone()
    assert row
    kinds, rows, todo = set(), 0, [row[0][0]["Plan"]]
    while todo:
        node = todo.pop()
        kinds.add(node["Node Type"])
        todo += node.get("Plans", [])
        if "Scan" in node["Node Type"] and "Relation Name" in node:
            rows += node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            rows += node.get("Rows Removed by Index Recheck", 0)
    return kinds, rows


@pytest.mark.parametrize("states", [(), (State.COMPLETED,)], ids=["any", "completed"])
@pytest.mark.parametrize("cursor", ["first", "middle", "last"])
def test_a_page_visits_about_as_many_rows_as_it_shows(filled, states, cursor):
    """The first page, and the pages after a cursor: also where new rows are spread over the whole table."""
    before = None
    if cursor != "first":
        order = "created_at" if cursor == "last" else "abs(created_at - (SELECT avg(created_at) FROM samekey_records))"
        with psycopg.connect(filled) as link:
            row = link.execute(f"SELECT created_at, digest FROM samekey_records ORDER BY {order} LIMIT 1".encode())
            found = row.fetchone()
        assert found
        before = (found[0] + (50 if cursor == "last" else 0), found[1].bytes)

    kinds, rows = visited(filled, Query(states=states, limit=100, before=before))

    assert "Seq Scan" not in kinds
    assert 20 <= rows <= (130 if states else 250)  # a page of each state, and two of them are rare


def test_records_in_doubt_are_found_without_reading_the_others(filled):
    kinds, rows = visited(filled, Query(states=(State.STARTED, State.IN_DOUBT), limit=100))

    assert "Seq Scan" not in kinds
    assert rows <= 100
    with contextlib.closing(PostgresStore(filled)) as store:
        found = store.list(Query(states=(State.IN_DOUBT,), limit=100))
        tenth = found[9]
        assert isinstance(tenth, Record)
        cursor = (tenth.created_at, tenth.key.digest)
        rest = store.list(Query(states=(State.IN_DOUBT,), limit=100, before=cursor))
    assert len(found) == 40
    assert [one.key for one in rest if isinstance(one, Record)] == [
        one.key for one in found[10:] if isinstance(one, Record)
    ]
    assert len(rest) == 30


def md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest", "oldest"])
@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"waiting": True}, 40),
        ({"states": (State.IN_DOUBT,)}, 40),
        ({"states": (State.CLOSED,)}, 40),
        ({"digest": md5("30000")}, 1),
        ({"digest": md5("30000")[:5]}, 1),
        ({"digest": md5("30000")[:2]}, 1),
        ({"term": md5("p30000")}, 1),
        ({"term": md5("r15000")}, 2),
        ({"term": md5("n30000")}, 1),
        ({"term": md5("party0")}, 20),
        ({"term": md5("nothing")}, 0),
    ],
)
def test_every_indexed_filter_reads_what_it_finds_and_little_more(filled, asked, count, oldest_first):
    query = Query(**asked, oldest_first=oldest_first, limit=100)
    kinds, rows = visited(filled, query)
    with contextlib.closing(PostgresStore(filled)) as store:
        found = store.list(query)

    assert "Seq Scan" not in kinds
    assert rows <= 2 * count + 10
    assert count <= len(found) <= count + 5


def test_other_filters_read_the_named_span_only(filled):
    with psycopg.connect(filled) as link:
        row = link.execute("SELECT max(created_at) FROM samekey_records").fetchone()
    assert row
    since, until = row[0] - 3000.0, row[0] - 2000.0
    for asked in ({"attributes": (("region", "eu"),)}, {"error": "TimeoutError"}, {"content": b"other"}, {"text": "1"}):
        kinds, rows = visited(filled, Query(**asked, since=since, until=until, limit=100))
        assert "Seq Scan" not in kinds
        assert rows <= 2100  # of a bitmap those of the index are counted too
