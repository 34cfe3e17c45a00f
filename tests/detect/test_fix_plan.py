"""The fix plan: ends with a valid unique index, loses nothing, changes nothing the second time, and can be undone."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

from samekey.detect.audit import open_database, read_catalog
from samekey.detect.fix_plan import Plan, make
from samekey.detect.rules import examine
from samekey.drivers.mysql.address import parse_url
from tests.detect.conftest import plant_sqlite, run_mysql
from tests.detect.test_command import run as command

# An order and its lines were stored twice and three times. `items` has its own line numbers for each order, so that the
# lines of the copies collide; `notes` are free; an order may follow another order; shipments refer by the order's code.
SCHEMA = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, tenant_id INT NOT NULL, order_ref VARCHAR(40), code VARCHAR(40) NOT NULL
  UNIQUE, follows INT, FOREIGN KEY (follows) REFERENCES orders (id));
CREATE TABLE items (order_id INT NOT NULL, line INT NOT NULL, item VARCHAR(40), PRIMARY KEY (order_id, line),
  FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE);
CREATE TABLE notes (id INTEGER PRIMARY KEY, order_id INT, body VARCHAR(40),
  FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE);
CREATE TABLE shipments (id INTEGER PRIMARY KEY, order_code VARCHAR(40),
  FOREIGN KEY (order_code) REFERENCES orders (code));
INSERT INTO orders VALUES (1, 1, 'a', 'c1', NULL), (2, 1, 'a', 'c2', NULL), (3, 1, 'a', 'c3', 2), (4, 2, 'a', 'c4', 3),
  (5, 1, 'b', 'c5', NULL), (6, 1, NULL, 'c6', NULL), (7, 1, NULL, 'c7', NULL), (8, 1, 'b', 'c8', 1);
INSERT INTO items VALUES (1, 1, 'x'), (1, 2, 'y'), (2, 1, 'x'), (2, 3, 'z'), (3, 3, 'z'), (4, 1, 'q'), (8, 1, 'n');
INSERT INTO notes VALUES (1, 1, 'n1'), (2, 2, 'n2'), (3, 3, 'n3'), (4, 4, 'n4');
INSERT INTO shipments VALUES (1, 'c1'), (2, 'c2'), (3, 'c5'), (4, 'c8')
"""
TABLES = ("orders", "items", "notes", "shipments")
CLEAN = {
    "orders": [(1, 1, "a", "c1", None), (4, 2, "a", "c4", 1), (5, 1, "b", "c5", None), (6, 1, None, "c6", None),
               (7, 1, None, "c7", None)],
    "items": [(1, 1, "x"), (1, 2, "y"), (1, 3, "z"), (4, 1, "q"), (5, 1, "n")],
    "notes": [(1, 1, "n1"), (2, 1, "n2"), (3, 1, "n3"), (4, 4, "n4")],
    "shipments": [(1, "c1"), (2, "c1"), (3, "c5"), (4, "c5")],
}  # fmt: skip


class Database:
    """One server's way to plant, read, and run a file of a plan."""

    def __init__(self, url: str, engine: str) -> None:
        self.url, self.engine = url, engine

    def connect(self) -> Any:
        if self.engine == "postgres":
            return psycopg.connect(self.url, autocommit=True)
        if self.engine == "mysql":
            return pymysql.connect(**parse_url(self.url).arguments, autocommit=True)
        return sqlite3.connect(self.url.removeprefix("sqlite:///"))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as link:
            cursor = link.cursor()
            cursor.execute(f"SELECT * FROM {table}")
            return sorted(map(tuple, cursor.fetchall()), key=repr)

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        return {table: self.rows(table) for table in TABLES}

    def plan(self) -> Plan:
        engine, reading = open_database(self.url)
        try:
            catalog = read_catalog(engine, reading)
            return make(catalog, [one for one in examine(catalog) if one.rule in ("SK102", "SK105", "SK107", "SK109")])
        finally:
            reading.close()

    def run(self, script: str, tmp_path: Any) -> subprocess.CompletedProcess[str] | None:
        """With the server's own client, as the header of the file has it."""
        if self.engine == "sqlite":
            with closing(self.connect()) as link:
                link.isolation_level = None
                link.executescript(script)
            return None
        file = tmp_path / "plan.sql"
        file.write_text(script)
        if self.engine == "postgres":
            command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(file), self.url]
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        given = parse_url(self.url).arguments
        command = [str(shutil.which("mariadb") or "mysql"), f"--user={given['user']}", str(given["database"])]
        command += [f"--socket={given['unix_socket']}"] if given.get("unix_socket") else [
            f"--host={given['host']}", f"--port={given['port']}", "--protocol=tcp"]  # fmt: skip
        environment = {**os.environ, "MYSQL_PWD": str(given.get("password") or "")}
        return subprocess.run(
            command, input=script, capture_output=True, text=True, check=False, timeout=300, env=environment
        )


def ran(done: subprocess.CompletedProcess[str] | None) -> None:
    assert done is None or done.returncode == 0, done.stderr


@pytest.fixture(params=["postgres", "mysql", "sqlite"])
def shop(request, tmp_path):
    if request.param == "postgres":
        url = request.getfixturevalue("samekey_postgres").create_database()
        with psycopg.connect(url, autocommit=True) as link:
            link.execute(SCHEMA.encode())
    elif request.param == "mysql":
        url = request.getfixturevalue("samekey_mariadb").create_database()
        run_mysql(url, SCHEMA)
    else:
        url = plant_sqlite(tmp_path / "shop.db", SCHEMA)
    return Database(url, request.param)


def test_a_plan_cleans_up_once_and_can_be_undone(shop, tmp_path):
    before = shop.everything()
    apply, undo = shop.plan().files.values()
    ran(shop.run(apply, tmp_path))
    once = shop.everything()
    with closing(shop.connect()) as link, pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        link.cursor().execute("INSERT INTO orders VALUES (9, 1, 'a', 'c9', NULL)")
    ran(shop.run(apply, tmp_path))
    twice = shop.everything()
    ran(shop.run(undo, tmp_path))

    assert once == CLEAN
    assert twice == once
    assert shop.everything() == before
    ran(shop.run(undo, tmp_path))  # and undoing twice changes nothing either
    assert shop.everything() == before
    ran(shop.run(apply, tmp_path))
    assert shop.everything() == CLEAN


# -- with a writer ---------------------------------------------------------------------------------------------------

ROWS = 1_000_000 if os.environ.get("SAMEKEY_BUDGET") == "full" else 10_000


class Writer(threading.Thread):
    """Inserts orders with an item each, every third one under a key that is there, until it is stopped."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.stored, self.refused, self.failed = url, list[int](), 0, list[BaseException]()
        self.over, self.begun = threading.Event(), threading.Event()

    def run(self) -> None:
        try:
            with psycopg.connect(self.url) as link:
                for number in range(10_000_000):
                    if self.over.is_set():
                        return
                    order = 10_000_000 + number
                    key = number % ROWS if number % 3 == 0 else order
                    try:
                        with link.transaction():
                            link.execute("INSERT INTO orders VALUES (%s, 1, %s, 'new')", (order, key))
                            link.execute("INSERT INTO items VALUES (%s, %s)", (order, order))
                        self.stored.append(order)
                    except psycopg.errors.UniqueViolation:
                        self.refused += 1
                    self.begun.set()
        except BaseException as error:
            self.failed.append(error)
            raise


def test_with_a_writer_the_plan_ends_valid_and_loses_nothing(samekey_postgres, tmp_path):
    """One order of a hundred is stored twice; each has an item."""
    shop = Database(samekey_postgres.create_database(), "postgres")
    with closing(shop.connect()) as link:
        link.execute("CREATE TABLE orders (id bigint PRIMARY KEY, tenant_id int, order_ref bigint, note text)")
        link.execute("CREATE TABLE items (id bigint PRIMARY KEY, order_id bigint REFERENCES orders ON DELETE CASCADE)")
        link.execute(
            f"INSERT INTO orders SELECT n, 1, CASE WHEN n % 100 = 0 THEN n - 1 ELSE n END, 'old' "
            f"FROM generate_series(1, {ROWS}) n"
        )
        link.execute("INSERT INTO items SELECT id, id FROM orders")
        link.execute("CREATE INDEX ON items (order_id)")
        link.execute("ANALYZE")
    apply, undo = shop.plan().files.values()
    writer = Writer(shop.url)
    writer.start()
    assert writer.begun.wait(60)
    ends = [shop.run(apply, tmp_path)]
    while ends[-1] and ends[-1].returncode and len(ends) < 5:  # the file tells to run it again
        ends.append(shop.run(apply, tmp_path))
    writer.over.set()
    writer.join(60)
    ran(ends[-1])
    everything = {*range(1, ROWS + 1), *writer.stored}
    slug = re.findall(r'samekey_fix."(\w+)_archive"', apply)[0]

    with closing(shop.connect()) as link:

        def ids(statement: str) -> set[int]:
            return {row[0] for row in link.execute(statement.encode()).fetchall()}

        kept, archived = ids("SELECT id FROM orders"), ids(f'SELECT id FROM samekey_fix."{slug}_archive"')
        assert writer.failed == []
        assert len(writer.stored) > 0
        assert kept | archived == everything
        assert kept & archived == set()
        assert len(archived) >= ROWS // 100
        assert ids("SELECT id FROM items") == everything  # every item is there, with an order
        assert ids("SELECT order_id FROM items") <= kept
        doubled = "SELECT order_ref FROM orders GROUP BY tenant_id, order_ref HAVING count(*) > 1"
        assert ids(doubled) == set()
        valid = "SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass AND indisunique AND indisvalid"
        assert ids(valid) == {2}
        assert ids("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass AND NOT tgisinternal") == {0}
        before = ids("SELECT id FROM orders")
        ran(shop.run(apply, tmp_path))
        assert ids("SELECT id FROM orders") == before
        ran(shop.run(undo, tmp_path))
        assert ids("SELECT id FROM orders") == everything
        assert ids("SELECT id FROM items WHERE id <> order_id") == set()  # every item is with its own order again


# -- what needs a person ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("CREATE TABLE payments (request_id INT, amount INT UNIQUE)", "no key without NULL"),
        (
            "CREATE TABLE payments (id INTEGER PRIMARY KEY, request_id INT); "
            "CREATE TABLE parts (payment_id INT REFERENCES payments (id), part INT)",
            "refers to it and has no key",
        ),
        (
            "CREATE TABLE payments (id INTEGER PRIMARY KEY, request_id INT); "
            "CREATE TABLE parts (id INTEGER PRIMARY KEY, payment_id INT REFERENCES payments (id), part INT, "
            "UNIQUE (payment_id, part)); "
            "CREATE TABLE crumbs (id INTEGER PRIMARY KEY, part_id INT REFERENCES parts (id) ON DELETE CASCADE)",
            "rows would be lost",
        ),
        (
            "CREATE TABLE seats (id INTEGER PRIMARY KEY, a INT NOT NULL, b INT, UNIQUE (a, b))",
            "make the columns NOT NULL",
        ),
    ],
)
def test_what_no_plan_can_do_is_named(schema, sentence, tmp_path):
    plan = Database(plant_sqlite(tmp_path / "shop.db", schema), "sqlite").plan()

    assert plan.files == {}
    assert any(sentence in why for _, _, why in plan.by_hand)


def test_the_command_writes_the_files_into_an_empty_folder_only(tmp_path):
    url = plant_sqlite(tmp_path / "shop.db", SCHEMA)
    first = command(url, "--confirm", "--fix-plan", str(tmp_path / "plan"))
    again = command(url, "--confirm", "--fix-plan", str(tmp_path / "plan"))

    assert first.exit_code == 1
    assert len(list((tmp_path / "plan").iterdir())) == 2
    assert "read them, then run them" in first.stderr
    assert again.exit_code == 2
