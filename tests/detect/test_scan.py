"""Scan: the same pairs on every server and by both engines, nothing missed while transactions are open, resumable."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pymysql
import pytest

from samekey.core.errors import Misconfigured
from samekey.detect.pairs import Pair
from samekey.detect.rule_file import Rule
from samekey.detect.scan import Scan, State, Wanted, scan
from samekey.drivers.mysql.address import parse_url
from tests.detect.conftest import plant_sqlite, run_mysql

HOUR = 3600.0
BY_KEY = Rule("orders-key", "orders", ("tenant_id", "order_ref"))
BY_CONTENT = Rule(
    "orders-content", "orders", canonical=frozenset({"email"}), ignore=("trace",), nulls_equal=True,
    window_seconds=24 * HOUR, time="created_at", source=("region",), request_id="order_ref",
)  # fmt: skip

COLUMNS = "id, tenant_id, order_ref, email, amount, trace, region, created_at"
# Rows 2 and 5 repeat row 1 in other spellings. Row 3 is a day later: no duplicate of 2, and 4 is one of 3. In 6 and 7
# the content has NULL. 8 and 9 have no key.
ROWS = """
(1, 1, 'a', 'Ann@x.de', 5, 't1', 'eu', '2026-01-01 10:00:00'),
(2, 1, 'a', 'ann@x.de ', 5, 't2', 'us', '2026-01-01 10:00:01'),
(3, 1, 'c', 'ann@x.de', 5, 't3', 'eu', '2026-01-02 10:00:02'),
(4, 1, 'd', 'ann@x.de', 5, 't4', 'eu', '2026-01-02 10:00:32'),
(5, 2, 'a', 'ANN@X.DE', 5, 't5', 'eu', '2026-01-01 09:00:00'),
(6, 1, 'f', NULL, 7, 't6', NULL, '2026-01-01 10:00:00'),
(7, 1, 'g', NULL, 7, 't7', 'eu', '2026-01-01 11:00:00'),
(8, 1, NULL, 'bo@x.de', 8, 't8', 'eu', '2026-01-01 10:00:00'),
(9, 1, NULL, 'cy@x.de', 9, 't9', 'eu', '2026-01-01 10:00:00')
"""
TABLE = (
    "CREATE TABLE orders (id INT PRIMARY KEY, tenant_id INT, order_ref VARCHAR(40), email VARCHAR(40), amount INT, "
    "trace VARCHAR(40), region VARCHAR(40), created_at {time})"
)
CONTENT_PAIRS = {(2, 1): 1.0, (4, 3): 30.0, (7, 6): HOUR}  # tenants differ: 5 is no duplicate of 1


class Kept:
    """A sink in memory."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, Pair]] = []

    def pair(self, rule: Rule, pair: Pair) -> None:
        self.pairs.append((rule.name, pair))

    def place(self) -> int:
        return len(self.pairs)

    def cut(self, place: int) -> None:
        del self.pairs[place:]

    def found(self) -> dict[tuple[Any, Any], float | None]:
        return {(pair.row[0], pair.earlier[0]): pair.gap_seconds for _, pair in self.pairs}


def run(url: str, *rules: Rule, sink: Kept | None = None, **wanted: Any) -> tuple[Scan, Kept]:
    sink = sink or Kept()
    return scan(Wanted(url, rules, **wanted), sink), sink


@pytest.fixture(scope="module", params=["postgres", "mysql", "sqlite"])
def orders(request, tmp_path_factory):
    insert = f"INSERT INTO orders ({COLUMNS}) VALUES {ROWS}"
    if request.param == "postgres":
        url = request.getfixturevalue("samekey_postgres").create_database()
        with psycopg.connect(url, autocommit=True) as link:
            link.execute("SET TimeZone = 'UTC'")
            link.execute(TABLE.format(time="timestamptz").encode())
            link.execute(insert.encode())
    elif request.param == "mysql":
        url = request.getfixturevalue("samekey_mariadb").create_database()
        run_mysql(url, f"{TABLE.format(time='datetime(6)')};\n{insert}")
    else:
        url = plant_sqlite(tmp_path_factory.mktemp("scan") / "orders.db", f"{TABLE.format(time='TEXT')}; {insert}")
    return url


@pytest.mark.parametrize("duckdb", [False, True])
def test_every_pair_is_found_with_its_gap_and_source(orders, duckdb):
    report, sink = run(orders, BY_KEY, BY_CONTENT, duckdb=duckdb)
    by_key, by_content = (
        {(pair.row[0], pair.earlier[0]): pair for name, pair in sink.pairs if name == rule.name}
        for rule in (BY_KEY, BY_CONTENT)
    )

    assert {*by_key} == {(2, 1)}
    assert {rows: pair.gap_seconds for rows, pair in by_content.items()} == pytest.approx(CONTENT_PAIRS, abs=1e-3)
    assert (by_content[2, 1].source, by_content[2, 1].earlier_source) == (("us",), ("eu",))
    assert (by_content[4, 3].request, by_content[4, 3].earlier_request) == ("d", "c")
    key, content = (one.tally for one in report.results)
    assert (key.rows, key.duplicates) == (7, 1)  # two rows have no key
    assert (content.rows, content.duplicates) == (9, 3)
    assert dict(content.by_source) == {("us",): 1, ("eu",): 2}
    assert content.rows_by_source[("eu",)] == 7
    assert report.incomplete == []


def test_a_span_has_the_pairs_whose_second_row_is_in_it(orders):
    """In slices of an hour: the first row of a pair may be in an earlier slice."""
    whole, sliced = run(orders, BY_CONTENT)[1].found(), run(orders, BY_CONTENT, slice_seconds=24 * HOUR)

    assert sliced[1].found() == pytest.approx(whole)
    assert sliced[0].results[0].spans > 100
    assert run(orders, BY_CONTENT, since_seconds=HOUR)[1].pairs == []


def test_a_rate_above_its_limit_is_an_alert(orders):
    (quiet,), (loud,) = (run(orders, replace(BY_KEY, alert_above=share))[0].results for share in (0.5, 0.1))

    assert (quiet.tally.above, loud.tally.above) == (False, True)


@pytest.mark.parametrize(
    ("rule", "wanted", "sentence"),
    [
        (replace(BY_KEY, table="nowhere"), {}, "was not found"),
        (replace(BY_KEY, key=("nothing",)), {}, "no column nothing"),
        (BY_KEY, {"since_seconds": 5.0}, "has no window"),
        (BY_CONTENT, {"slice_seconds": 0.001}, "more than"),
    ],
)
def test_what_cannot_be_scanned_is_refused(orders, rule, wanted, sentence):
    with pytest.raises(Misconfigured, match=sentence):
        run(orders, rule, **wanted)


# -- the horizon ---------------------------------------------------------------------------------------------------

EVENTS = Rule("events", "events", ("slot",), window_seconds=24 * HOUR, time="created_at")
WRITERS, EACH = 6, 40


def postgres_events(server) -> tuple[str, Any]:
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("CREATE TABLE events (id bigserial PRIMARY KEY, slot int, created_at timestamptz DEFAULT now())")
    return url, lambda: psycopg.connect(url)


def mysql_events(server) -> tuple[str, Any]:
    url = server.create_database()
    run_mysql(
        url,
        "CREATE TABLE events (id bigint AUTO_INCREMENT PRIMARY KEY, slot int, created_at datetime(6) DEFAULT now(6))",
    )
    return url, lambda: pymysql.connect(**parse_url(url).arguments, autocommit=False)


@pytest.mark.parametrize("server", ["postgres", "mysql"])
def test_no_row_of_an_open_transaction_is_missed(server, request, tmp_path, monkeypatch):
    """Writers keep transactions open while scans pass; each slot is inserted twice, by transactions that overlap."""
    monkeypatch.setattr("samekey.detect.horizon.MARGIN_SECONDS", 0.1)  # the margin itself would take seconds
    url, connect = (
        postgres_events(request.getfixturevalue("samekey_postgres"))
        if server == "postgres"
        else mysql_events(request.getfixturevalue("samekey_mariadb"))
    )
    turns = threading.Barrier(WRITERS + 1, timeout=60)
    rounds = 6

    def write(number: int) -> None:
        """In round r writer w begins, inserts, and commits w rounds of scans later."""
        with closing(connect()) as link:
            for turn in range(rounds):
                turns.wait()
                for slot in range(3):
                    link.cursor().execute(
                        "INSERT INTO events (slot) VALUES (%s)", (turn * 100 + number // 2 * 10 + slot,)
                    )
                turns.wait()
                if turn % (number + 1) == number:
                    link.commit()
            link.commit()
            turns.wait()

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    sink, state = Kept(), tmp_path / "state.json"
    for _ in range(rounds):
        turns.wait()
        run(url, EVENTS, sink=sink, state=state)
        turns.wait()
    turns.wait()
    for thread in threads:
        thread.join()
    early = len(sink.pairs)
    import time

    time.sleep(0.3 if server == "postgres" else 2.2)  # the last rows are before the horizon now
    run(url, EVENTS, sink=sink, state=state)
    whole = run(url, EVENTS)[1].found()

    assert len(whole) == rounds * 9  # three slots of each of three pairs of writers
    assert {*sink.found()} == {*whole}
    assert len(sink.pairs) == len(whole)  # and none twice
    assert early < len(whole)


def test_the_naive_end_would_have_missed_a_row(samekey_postgres, tmp_path, monkeypatch):
    """The check itself: with the newest row as the end, the row of an open transaction is lost."""
    url, connect = postgres_events(samekey_postgres)
    monkeypatch.setattr("samekey.detect.horizon.MARGIN_SECONDS", 0.0)
    naive = "SELECT false, true, extract(epoch FROM clock_timestamp())::float8"
    state, sink = tmp_path / "state.json", Kept()
    with closing(connect()) as slow, closing(connect()) as fast:
        slow.execute("INSERT INTO events (slot) VALUES (1)")
        fast.execute("INSERT INTO events (slot) VALUES (1)")
        fast.commit()
        with monkeypatch.context() as patch:
            patch.setattr("samekey.detect.horizon.POSTGRES", naive)
            run(url, EVENTS, sink=sink, state=state)
        slow.commit()
    run(url, EVENTS, sink=sink, state=state)

    assert sink.pairs == []
    assert len(run(url, EVENTS)[1].pairs) == 1


def test_where_open_transactions_cannot_be_seen_a_state_is_refused(samekey_postgres, tmp_path):
    url, connect = postgres_events(samekey_postgres)
    with closing(connect()) as link:
        link.execute("DO $$ BEGIN CREATE ROLE scan_reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        link.execute("GRANT SELECT ON events TO scan_reader")
        link.commit()
        user = link.info.user
    reader = url.replace(f"//{user}", "//scan_reader", 1)

    with pytest.raises(Misconfigured, match="pg_read_all_stats"):
        run(reader, EVENTS, state=tmp_path / "state.json")
    assert run(reader, EVENTS)[0].incomplete == []


def test_sqlite_needs_a_lateness(tmp_path):
    made = "CREATE TABLE events (id INTEGER PRIMARY KEY, slot INT, created_at TEXT DEFAULT CURRENT_TIMESTAMP)"
    url = plant_sqlite(tmp_path / "e.db", f"{made}; INSERT INTO events (slot) VALUES (1), (1)")
    state = tmp_path / "state.json"

    with pytest.raises(Misconfigured, match="give --lateness"):
        run(url, EVENTS, state=state)
    assert run(url, EVENTS, state=state, lateness_seconds=60.0)[1].pairs == []  # not old enough yet
    with closing(sqlite3.connect(tmp_path / "e.db")) as link:
        link.execute("UPDATE events SET created_at = datetime('now', '-1 hour')")
        link.commit()
    state.unlink()
    assert len(run(url, EVENTS, state=state, lateness_seconds=60.0)[1].pairs) == 1


# -- a scan that is killed ---------------------------------------------------------------------------------------


class Killed(Exception):
    pass


class Dying(Kept):
    """Dies with the pair of this number."""

    def __init__(self, dies: int) -> None:
        super().__init__()
        self.dies = dies

    def pair(self, rule: Rule, pair: Pair) -> None:
        super().pair(rule, pair)
        if len(self.pairs) == self.dies:
            raise Killed


def test_a_killed_scan_continues_and_writes_no_pair_twice(tmp_path):
    """Ten days, ten duplicates each: killed at every tenth pair, and started again."""
    made = "CREATE TABLE events (id INTEGER PRIMARY KEY, slot INT, created_at TEXT)"
    rows = ", ".join(
        f"({slot}, '2026-01-{day:02} 10:00:{second:02}')"
        for day in range(1, 11)
        for slot in range(10)
        for second in (0, 30)
    )
    url = plant_sqlite(tmp_path / "e.db", f"{made}; INSERT INTO events (slot, created_at) VALUES {rows}")
    rule, state = replace(EVENTS, window_seconds=60.0), tmp_path / "state.json"
    sink, tries = Dying(7), 0
    while True:
        tries += 1
        try:
            run(url, rule, sink=sink, state=state, slice_seconds=24 * HOUR, lateness_seconds=60.0)
            break
        except Killed:
            sink.dies = sink.dies + 7

    assert tries > 5
    assert len(sink.pairs) == len(sink.found()) == 100


def test_a_changed_rule_begins_again_and_another_database_is_refused(tmp_path):
    state = State(tmp_path / "state.json", "db")
    state.reached(EVENTS, 5.0, 17)
    again = State.load(tmp_path / "state.json", "db")

    assert (again.since(EVENTS), again.place) == (5.0, 17)
    assert again.since(replace(EVENTS, key=("other",))) is None
    with pytest.raises(Misconfigured, match="of another version, or of db"):
        State.load(tmp_path / "state.json", "other")
    (tmp_path / "state.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(Misconfigured, match="cannot be read"):
        State.load(tmp_path / "state.json", "db")


def test_rows_without_a_time_make_a_spanned_scan_incomplete(tmp_path):
    made = "CREATE TABLE events (id INTEGER PRIMARY KEY, slot INT, created_at TEXT)"
    url = plant_sqlite(tmp_path / "e.db", f"{made}; INSERT INTO events (slot) VALUES (1), (1)")

    assert len(run(url, EVENTS)[1].pairs) == 1  # a time that is not known counts as near
    assert run(url, EVENTS, since_seconds=HOUR)[0].incomplete == [
        "rule events: rows without created_at were not compared"
    ]
