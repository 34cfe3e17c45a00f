"""`samekey db load`: a second run changes nothing, also after a run that was killed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import duckdb
import psycopg
import pymysql
import pytest

from samekey.cli._root import root
from samekey.detect import loading
from samekey.drivers.mysql.address import parse_url
from tests.detect.watching import RUNNER

SCHEMA = (
    "CREATE TABLE orders (tenant INT NOT NULL, order_ref VARCHAR(50) NOT NULL, amount INT, "
    "note VARCHAR(100), UNIQUE (tenant, order_ref))"
)
ROWS = 'tenant,order_ref,amount,note\n1,a,5,"x, ""y""\\t"\n1,b,7,\n2,a,1,é\n'


def run(url, path, *words, key=("tenant", "order_ref")):
    keys = [part for name in key for part in ("--key", name)]
    result = RUNNER().invoke(root, ["db", "load", url, str(path), "--into", "orders", *keys, *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(params=["postgres", "mysql", "sqlite"])
def shop(request, tmp_path):
    """An address, and a function that gives all rows."""
    if request.param == "postgres":
        url = request.getfixturevalue("samekey_postgres").create_database()
        connect: Any = lambda: psycopg.connect(url)  # noqa: E731
    elif request.param == "mysql":
        url = request.getfixturevalue("samekey_mariadb").create_database()
        connect = lambda: pymysql.connect(**parse_url(url).arguments, charset="utf8mb4")  # noqa: E731
    else:
        path = tmp_path / "shop.db"
        url, connect = f"sqlite:///{path}", lambda: sqlite3.connect(path)

    def rows(statement="SELECT tenant, order_ref, amount, note FROM orders ORDER BY 1, 2"):
        with closing(connect()) as link, closing(link.cursor()) as cursor:
            cursor.execute(statement)
            found = cursor.fetchall() if cursor.description else []
            link.commit()
            return [tuple(row) for row in found]

    rows(SCHEMA)
    return url, rows


def test_a_second_run_changes_nothing(shop, tmp_path):
    url, rows = shop
    path = tmp_path / "orders.csv"
    path.write_text(ROWS)
    first = run(url, path)
    stored = rows()
    second = run(url, path, "--json")

    assert first.exit_code == 0, first.output
    assert stored == [(1, "a", 5, 'x, "y"\\t'), (1, "b", 7, None), (2, "a", 1, "é")]
    assert second.exit_code == 1
    assert {name: json.loads(second.stdout)[name] for name in ("rows", "inserted", "existing")} == {
        "rows": 3,
        "inserted": 0,
        "existing": 3,
    }
    assert rows() == stored


def test_duplicate_and_rejected_rows_are_reported(shop, tmp_path):
    url, rows = shop
    path = tmp_path / "orders.csv"
    path.write_text(ROWS + "1,a,9,again\n3,,1,no key\n4\n5,e,1,new\n")
    done = run(url, path, "--json")
    report = json.loads(done.stdout)

    assert done.exit_code == 4
    assert [report[name] for name in ("rows", "inserted", "existing", "repeated", "rejected")] == [7, 4, 0, 1, 2]
    assert sorted(row for row, _ in report["reported"]) == [4, 5, 6]
    assert (1, "a", 5, 'x, "y"\\t') in rows()  # the first row of the file won


def test_a_run_that_was_stopped_continues(shop, tmp_path, monkeypatch):
    url, rows = shop
    path = tmp_path / "orders.csv"
    path.write_text("tenant,order_ref,amount,note\n" + "".join(f"1,r{n},{n},\n" for n in range(50)))
    monkeypatch.setattr(loading, "CHUNK_ROWS", 10)
    written: list[int] = []
    original = loading._Load._write

    def dies(self, some):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(len(some))
        original(self, some)

    monkeypatch.setattr(loading._Load, "_write", dies)
    run(url, path)
    assert rows() == []  # nothing half

    def lives(self, some):
        written.append(len(some))
        original(self, some)

    monkeypatch.setattr(loading._Load, "_write", lives)
    done = run(url, path)

    assert done.exit_code == 0, done.output
    assert written == [10, 10, 10, 10, 10]  # what was staged is not staged again
    assert len(rows()) == 50
    assert run(url, path).exit_code == 1


def test_parquet(shop, tmp_path):
    url, rows = shop
    path = tmp_path / "orders.parquet"
    with closing(duckdb.connect()) as link:
        link.execute(
            "COPY (SELECT 1 AS tenant, 'r' || i AS order_ref, i::INT AS amount FROM range(5) t(i)) "
            f"TO '{path}' (FORMAT parquet)"
        )
    done = run(url, path)

    assert done.exit_code == 0, done.output
    assert [row[1:3] for row in rows()] == [(f"r{n}", n) for n in range(5)]


def test_a_table_without_the_unique_key_is_refused(shop, tmp_path):
    url, rows = shop
    path = tmp_path / "orders.csv"
    path.write_text(ROWS)
    done = run(url, path, key=("order_ref",))

    assert done.exit_code == 2
    assert "no unique key over (order_ref)" in done.stderr
    assert rows() == []


def test_a_value_that_does_not_fit_stores_nothing(samekey_postgres, tmp_path):
    url = samekey_postgres.create_database()
    with psycopg.connect(url) as link:
        link.execute(SCHEMA)
    path = tmp_path / "orders.csv"
    path.write_text(ROWS + "1,c,many,\n")
    done = run(url, path)

    assert done.exit_code == 4
    assert "nothing was stored" in done.stderr
    with psycopg.connect(url) as link:
        assert link.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_texts_that_are_one_value_of_the_column_are_one_key(samekey_postgres, tmp_path):
    url = samekey_postgres.create_database()
    with psycopg.connect(url) as link:
        link.execute(SCHEMA)
    path = tmp_path / "orders.csv"
    path.write_text("tenant,order_ref,amount,note\n1,a,1,\n01,a,2,\n")
    report = json.loads(run(url, path, "--json").stdout)

    assert [report["inserted"], report["repeated"]] == [1, 1]
