"""`samekey db watch --source audit-table` on PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

import random
import sqlite3
import threading
from contextlib import closing

import psycopg
import pymysql
import pytest

from samekey.detect.catalog import Engine
from samekey.detect.opening import open_writing
from samekey.detect.watching.running import How
from samekey.drivers.mysql.address import parse_url
from tests.detect.watching import DUPLICATES, ORDERS, Watching

MYSQL = """
CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, tenant INT NOT NULL, order_ref VARCHAR(100) NOT NULL,
  region VARCHAR(10), secret_payload TEXT, created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))
"""
SQLITE = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, order_ref TEXT NOT NULL, region TEXT,
  secret_payload TEXT, created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')))
"""
WORDS = ("--source", "audit-table")
ENGINES = ["postgres", "mysql", "sqlite"]


class Shop:
    """One table `orders` on one server, and a connection to it."""

    def __init__(self, engine, url, connect):
        self.engine, self.url, self.connect = engine, url, connect

    def insert(self, *rows, link=None):
        statement = "INSERT INTO orders (tenant, order_ref, region) VALUES (%s, %s, 'eu')"
        if self.engine is Engine.SQLITE:
            statement = statement.replace("%s", "?")
        if link is not None:
            return link.cursor().executemany(statement, rows)
        with closing(self.connect()) as own:
            own.cursor().executemany(statement, rows)
            own.commit()

    def kept(self):
        with closing(open_writing(self.engine, self.url)) as link:
            return link.run("SELECT count(*) FROM samekey_audit WHERE at > 0")[0][0]


@pytest.fixture(params=ENGINES)
def shop(request, tmp_path):
    if request.param == "postgres":
        url = request.getfixturevalue("samekey_postgres").create_database()
        made = Shop(Engine.POSTGRES, url, lambda: psycopg.connect(url))
        schema = ORDERS
    elif request.param == "mysql":
        url = request.getfixturevalue("samekey_mariadb").create_database()
        made = Shop(Engine.MYSQL, url, lambda: pymysql.connect(**parse_url(url).arguments, charset="utf8mb4"))
        schema = MYSQL
    else:
        path = tmp_path / "shop.db"
        made = Shop(Engine.SQLITE, f"sqlite:///{path}", lambda: sqlite3.connect(path))
        schema = SQLITE
    with closing(made.connect()) as link:
        link.cursor().execute(schema)
        link.commit()
    return made


@pytest.fixture
def watching(shop, tmp_path):
    one = Watching(tmp_path, shop.url)
    ended = one.run(*WORDS, "--install-trigger")
    assert ended.returncode == 0, ended.stderr
    one.catch_up(*WORDS)
    return one


def test_a_pair_is_reported_once_with_the_finding_that_prevents_it(shop, watching):
    shop.insert((1, "a"), (2, "a"), (1, "a"))
    (alert,) = watching.catch_up(*WORDS)

    assert (alert["first"]["row"], alert["second"]["row"]) == ("1", "3")
    assert alert["source"] == {"region": "eu"}
    assert alert["prevented_by"]["finding"] == "SK107"
    assert watching.catch_up(*WORDS) == []
    assert shop.kept() == 0  # pruned


@pytest.mark.parametrize("shop", ["postgres", "mysql"], indirect=True)  # SQLite has one writer at a time
def test_a_transaction_that_commits_late_is_not_skipped(shop, watching):
    """It inserted before another transaction that committed first: its row numbers and times are lower."""
    with closing(shop.connect()) as late:
        shop.insert((1, "a"), (1, "b"), link=late)
        shop.insert((1, "a"))
        watching.glance(How.AUDIT_TABLE)
        late.commit()
    watching.catch_up(*WORDS)
    pairs = [{one["first"]["row"], one["second"]["row"]} for one in watching.alerts()]

    assert pairs == [{"1", "3"}]


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)  # the others' columns have types
def test_values_of_every_kind_are_stored_and_no_insert_fails(shop, watching):
    with closing(shop.connect()) as link:
        link.executemany(
            "INSERT INTO orders (tenant, order_ref) VALUES (1, ?)",
            [(b"\xff\x00",), (b"\xff\x00",), (1.5,), (1.5,), ("é",)],
        )
        link.commit()

    assert [one["second"]["row"] for one in watching.catch_up(*WORDS)] == ["2", "4"]


def test_a_trigger_that_is_gone_is_a_gap_and_not_clean(shop, watching):
    with closing(open_writing(shop.engine, shop.url)) as link:
        (name,) = trigger(shop, link)
        link.run(f"DROP TRIGGER {name}" + (" ON orders" if shop.engine is Engine.POSTGRES else ""))
    ended = watching.run(*WORDS, "--catch-up")

    assert ended.returncode == 4
    assert "no audit trigger" in ended.stderr


def trigger(shop, link):
    found = {
        Engine.POSTGRES: "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
        Engine.MYSQL: "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()",
        Engine.SQLITE: "SELECT name FROM sqlite_schema WHERE type = 'trigger'",
    }[shop.engine]
    return [name for (name,) in link.run(found)]


def test_a_table_that_was_made_again_is_a_gap(shop, watching):
    assert watching.run(*WORDS, "--remove").returncode == 0
    with closing(open_writing(shop.engine, shop.url)) as link:
        assert trigger(shop, link) == []
    ended = watching.run(*WORDS, "--catch-up")
    assert ended.returncode == 2
    assert "--install-trigger" in ended.stderr
    watching.run(*WORDS, "--install-trigger")
    ended = watching.run(*WORDS, "--catch-up")

    assert ended.returncode == 4
    assert "checkpoint belongs to" in ended.stderr
    assert watching.run(*WORDS, "--catch-up", "--accept-gap").returncode == 0


def test_a_role_that_may_only_insert_is_not_stopped_by_the_trigger(samekey_postgres, tmp_path):
    url = samekey_postgres.create_database()
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(ORDERS)
        watching = Watching(tmp_path, url)
        watching.run(*WORDS, "--install-trigger")
        link.execute("DROP ROLE IF EXISTS samekey_clerk")
        link.execute("CREATE ROLE samekey_clerk")
        link.execute("GRANT INSERT ON orders TO samekey_clerk")
        link.execute("SET ROLE samekey_clerk")
        link.execute("INSERT INTO orders (tenant, order_ref) VALUES (1, 'a'), (1, 'a')")
        link.execute("RESET ROLE")
        link.execute("REVOKE ALL ON orders FROM samekey_clerk")
        link.execute("DROP ROLE samekey_clerk")
        kept = link.execute("SELECT count(*) FROM samekey_audit WHERE at > 0").fetchone()

    assert kept == (2,)


@pytest.mark.slow
def test_writers_with_open_transactions_are_all_seen(samekey_postgres, tmp_path):
    """Transactions overlap and end in any order, some roll back; the watch reads all the while."""
    url = samekey_postgres.create_database()
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(ORDERS)
    watching = Watching(tmp_path, url)
    watching.run(*WORDS, "--install-trigger")
    watching.catch_up(*WORDS)
    ends = threading.Event()

    def write(seed):
        chance = random.Random(seed)
        with psycopg.connect(url) as link:
            for _ in range(60):
                rows = [(1, f"r{chance.randrange(400)}") for _ in range(chance.randrange(1, 6))]
                link.cursor().executemany("INSERT INTO orders (tenant, order_ref) VALUES (%s, %s)", rows)
                ends.wait(chance.random() * 0.03)
                link.rollback() if chance.random() < 0.2 else link.commit()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for one in writers:
        one.start()
    while any(one.is_alive() for one in writers):
        watching.glance(How.AUDIT_TABLE)
    for one in writers:
        one.join()
    watching.catch_up(*WORDS)
    with psycopg.connect(url) as link:
        truth = [row for (row,) in link.execute(DUPLICATES)]

    assert len(truth) > 100
    assert sorted(one["second"]["row"] for one in watching.alerts()) == truth
