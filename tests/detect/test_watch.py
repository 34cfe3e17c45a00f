"""`samekey db watch` on PostgreSQL: exact, also after a crash, and never clean when it could not see."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import psycopg
import pytest

from samekey.detect.watching.journal import Journal
from samekey.testing.servers import postgres
from tests.detect.watching import LOGICAL, ORDERS, SECONDS, Watching, in_database

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"


@pytest.fixture(scope="module")
def server():
    if os.environ.get("SAMEKEY_TEST_PG"):
        pytest.skip("SAMEKEY_TEST_PG names a server whose wal_level is not ours to set")
    with postgres(None, **LOGICAL) as one:
        yield one


@pytest.fixture
def watching(server, tmp_path):
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(ORDERS)
    one = Watching(tmp_path, url)
    yield one
    with psycopg.connect(url, autocommit=True) as link:  # a slot that stays would keep WAL for the next test
        link.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database() "
            "AND active_pid IS NOT NULL"
        )
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                link.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                    "WHERE database = current_database()"
                )
                break
            except psycopg.errors.ObjectInUse:
                continue


def insert(watching, *rows):
    with psycopg.connect(watching.url) as link:
        for tenant, ref in rows:
            link.execute("INSERT INTO orders (tenant, order_ref, region) VALUES (%s, %s, 'eu')", (tenant, ref))


def lines(stream):
    assert stream is not None
    return stream


def got(url):
    with urlopen(url, timeout=SECONDS) as reply:
        return reply.read().decode()


def wait_for(true, process=None):
    deadline = time.monotonic() + SECONDS
    while not true():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_a_pair_is_reported_once_with_its_source_and_the_finding_that_prevents_it(watching):
    watching.catch_up()
    insert(watching, (1, "a"), (2, "a"), (1, "a"))
    (alert,) = watching.catch_up()

    assert (alert["first"]["row"], alert["second"]["row"]) == ("1", "3")
    assert alert["source"] == {"region": "eu"}
    assert alert["table"] == "public.orders"
    assert alert["prevented_by"]["finding"] == "SK107"
    assert "UNIQUE INDEX CONCURRENTLY" in alert["prevented_by"]["fix"][0]
    assert watching.catch_up() == []
    insert(watching, (1, "a"))
    assert [(one["first"]["row"], one["second"]["row"]) for one in watching.catch_up()] == [("3", "4")]


def test_a_row_that_was_rolled_back_is_none(watching):
    watching.catch_up()
    with psycopg.connect(watching.url) as link:
        link.execute("INSERT INTO orders (tenant, order_ref) VALUES (1, 'a')")
        link.rollback()
    insert(watching, (1, "a"))

    assert watching.catch_up() == []


def test_only_the_columns_of_the_rules_leave_the_server(watching):
    watching.catch_up()
    with psycopg.connect(watching.url) as link:
        row = link.execute("SELECT attnames::text[] FROM pg_publication_tables").fetchone()

    assert row == (["id", "tenant", "order_ref", "region", "created_at"],)


def test_rows_of_partitions_belong_to_their_table(watching):
    with psycopg.connect(watching.url) as link:
        link.execute("DROP TABLE orders")
        link.execute(
            "CREATE TABLE orders (id bigint, tenant int, order_ref text, region text, created_at timestamptz NOT NULL, "
            "PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)"
        )
        for day in (1, 2):
            link.execute(
                f"CREATE TABLE orders_{day} PARTITION OF orders FOR VALUES FROM ('2026-01-0{day}') "
                f"TO ('2026-01-0{day + 1}')".encode()
            )
    watching.rules.write_text(watching.rules.read_text() + 'row_id = ["id", "created_at"]\n')
    watching.catch_up()
    with psycopg.connect(watching.url) as link:
        link.execute("INSERT INTO orders VALUES (1, 1, 'a', 'eu', '2026-01-01 23:59'), (2, 1, 'a', 'eu', '2026-01-02')")

    (alert,) = watching.catch_up()
    assert alert["prevented_by"]["finding"] == "SK110" or alert["prevented_by"]["finding"] == "SK107"


@pytest.mark.slow
def test_kill_9_under_load_loses_no_alert_and_makes_none_up(watching):
    """Transactions of random size, some rolled back, 1 % duplicates; the watch dies at any moment."""
    kills, chance = (24 if FULL else 5), random.Random(20)
    watching.catch_up()
    over = threading.Event()

    def write():
        refs = random.Random(21)
        with psycopg.connect(watching.url) as link:
            while not over.is_set():
                known = [f"r{refs.getrandbits(48)}" for _ in range(refs.choice((1, 3, 40)))]
                rows = known + [refs.choice(known) for _ in known if refs.random() < 0.02]
                link.cursor().executemany(
                    "INSERT INTO orders (tenant, order_ref) VALUES (1, %s)", [(one,) for one in rows]
                )
                link.rollback() if refs.random() < 0.2 else link.commit()
                if refs.random() < 0.1:
                    time.sleep(0.002)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for one in writers:
        one.start()
    try:
        for _ in range(kills):
            before = watching.checkpoint()["position"]
            process = watching.start()
            wait_for(lambda before=before: watching.checkpoint()["position"] != before, process)
            time.sleep(chance.random() * 0.4)  # anywhere in the work that follows
            process.send_signal(signal.SIGKILL)
            process.communicate()
    finally:
        over.set()
        for one in writers:
            one.join()
    watching.catch_up()
    found = watching.alerts()
    truth = in_database(watching.url)
    print(f"{kills} kills, {len(truth)} duplicates, {len(found)} alerts")

    assert len(truth) > 20
    assert sorted(one["second"]["row"] for one in found) == truth
    assert len({one["id"] for one in found}) == len(found)


def test_a_dropped_slot_is_a_gap_and_not_clean(watching):
    watching.catch_up()
    insert(watching, (1, "a"))
    with psycopg.connect(watching.url, autocommit=True) as link:
        link.execute("SELECT pg_drop_replication_slot('samekey_watch')")
    insert(watching, (1, "a"))
    ended = watching.run("--catch-up")

    assert ended.returncode == 4
    assert "slot samekey_watch is gone" in ended.stderr
    assert watching.run("--catch-up").returncode == 4  # and it stays one
    assert watching.run("--catch-up", "--accept-gap").returncode == 0
    assert "slot samekey_watch is gone" in watching.checkpoint()["gaps"][0]
    assert watching.run("--catch-up").returncode == 0


def test_a_slot_that_another_reader_moved_is_a_gap(watching):
    watching.catch_up()
    insert(watching, (1, "a"))
    with psycopg.connect(watching.url, autocommit=True) as link:
        link.execute("SELECT pg_replication_slot_advance('samekey_watch', pg_current_wal_lsn())")
    ended = watching.run("--catch-up")

    assert ended.returncode == 4
    assert "after the checkpoint" in ended.stderr


def test_above_max_lag_the_slot_is_dropped_and_that_is_a_gap(watching):
    watching.catch_up()
    insert(watching, *[(1, f"r{number}") for number in range(300)])
    ended = watching.run("--max-lag", "1kB")

    assert ended.returncode == 4
    assert "--max-lag" in ended.stderr
    with psycopg.connect(watching.url) as link:
        assert link.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone() == (0,)


def test_a_full_disk_stops_the_watch_and_the_next_start_continues(watching):
    watching.catch_up()
    insert(watching, *[(1, f"r{number % 1500}") for number in range(3000)])

    def full():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    ended = watching.run("--catch-up", preexec_fn=full)

    assert ended.returncode == 4, ended.stderr
    assert "cannot be written" in ended.stderr
    watching.catch_up()
    assert sorted(one["second"]["row"] for one in watching.alerts()) == in_database(watching.url)


def test_a_server_without_a_limit_for_slots_is_refused(tmp_path, server):
    with postgres(wal_level="logical") as unlimited:
        url = unlimited.create_database()
        with psycopg.connect(url, autocommit=True) as link:
            link.execute(ORDERS)
        ended = Watching(tmp_path, url).run("--catch-up")

        assert ended.returncode == 2
        assert "max_slot_wal_keep_size" in ended.stderr
        assert Watching(tmp_path, url).run("--catch-up", "--allow-unbounded-wal").returncode == 0


def test_a_restarted_server_is_waited_for_and_nothing_is_lost(tmp_path):
    with postgres(None, **LOGICAL) as server:
        url = server.create_database()
        with psycopg.connect(url, autocommit=True) as link:
            link.execute(ORDERS)
        watching = Watching(tmp_path, url)
        watching.catch_up()
        insert(watching, (1, "a"))
        process = watching.start("--json", "--metrics", "127.0.0.1:0")
        try:
            metrics = lines(process.stderr).readline().split()[-1]
            wait_for(lambda: "\nsamekey_watch_up 1" in got(metrics), process)
            server.stop("immediate")
            wait_for(lambda: "\nsamekey_watch_up 0" in got(metrics), process)
            server.start()
            insert(watching, (1, "a"))
            alert = json.loads(lines(process.stdout).readline())
        finally:
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=SECONDS)

    assert alert["second"]["row"] != alert["first"]["row"]
    assert process.returncode == 1
    assert "trying again" in stderr
    assert "answers again" in stderr


def test_alerts_reach_a_webhook_and_a_table_and_wait_for_them(watching):
    received, answers = [], [500]

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.headers["Idempotency-Key"], body["id"], answers[0]))
            self.send_response(answers[0])
            self.end_headers()

        def log_message(self, *_): ...

    receiver = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    try:
        words = ["--webhook", f"http://127.0.0.1:{receiver.server_port}/alerts", "--into-table", "public.found"]
        watching.catch_up(*words)
        insert(watching, (1, "a"), (1, "a"))
        assert watching.run("--catch-up", *words).returncode == 4  # found, and not delivered
        answers[0] = 204
        assert watching.run("--catch-up", *words).returncode == 0
    finally:
        receiver.shutdown()
        receiver.server_close()
    with psycopg.connect(watching.url) as link:
        stored = link.execute("SELECT id, first_row, second_row FROM found").fetchall()

    assert received[-1][2] == 204
    assert len({one[:2] for one in received}) == 1
    assert stored == [(received[0][0], "1", "2")]


def test_one_watch_has_one_state_directory(watching):
    watching.catch_up()
    journal = Journal(watching.state)
    try:
        ended = watching.run("--catch-up")
    finally:
        journal.close()

    assert ended.returncode == 4
    assert "in use by another watch" in ended.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('row_id = ["secret_payload"]',), "does not identify a row"),
        (('request_id = "nowhere"',), "has no column nowhere"),
    ],
)
def test_a_rule_that_could_not_see_a_duplicate_is_refused(change, says, watching):
    watching.rules.write_text("\n".join([watching.rules.read_text(), *change]))
    ended = watching.run("--catch-up")

    assert ended.returncode == 2
    assert says in ended.stderr


def test_remove_leaves_nothing_on_the_server(watching):
    watching.catch_up()
    ended = watching.run("--remove")
    with psycopg.connect(watching.url) as link:
        left = link.execute(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() "
            "UNION SELECT pubname::text FROM pg_publication"
        )

        assert ended.returncode == 0, ended.stderr
        assert left.fetchall() == []
