"""audit --retry-test: the verdict of each kind of table, with rows and without, and nothing stays in the database."""

from __future__ import annotations

import json

import psycopg
import pytest

from samekey.detect.audit import open_database, read_catalog
from samekey.detect.retry_test import Tried, Verdict, try_all
from tests.detect.conftest import plant_sqlite, run_mysql
from tests.detect.test_command import run

TWICE, REFUSED, UNKNOWN = Verdict.STORED_TWICE, Verdict.REFUSED, Verdict.UNKNOWN
TABLES = """
CREATE TABLE sound (id INTEGER NOT NULL PRIMARY KEY, slot INT NOT NULL, UNIQUE (slot));
CREATE TABLE bare (a INT);
CREATE TABLE pair_null (tenant_id INT NOT NULL, slot INT, UNIQUE (tenant_id, slot));
CREATE TABLE diluted (slot INT NOT NULL, created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (slot, created_at))
"""
ROWS = """
INSERT INTO sound VALUES (1, 1);
INSERT INTO bare VALUES (1);
INSERT INTO pair_null VALUES (1, 1), (1, NULL);
INSERT INTO diluted (slot) VALUES (1)
"""
EXPECTED = {"sound": REFUSED, "bare": TWICE, "pair_null": TWICE, "diluted": TWICE}
POSTGRES = """
CREATE TABLE surrogate (id bigserial PRIMARY KEY, slot int);
CREATE TABLE partial (id int PRIMARY KEY, slot int, state int);
CREATE UNIQUE INDEX partial_open ON partial (slot) WHERE state = 1;
CREATE TABLE folded (email text NOT NULL); CREATE UNIQUE INDEX folded_email ON folded (lower(email));
CREATE TABLE equal_null (a int, UNIQUE NULLS NOT DISTINCT (a));
CREATE TABLE unfinished (a int);
CREATE TABLE made_uuid (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), slot int);
CREATE TABLE checked (a int NOT NULL PRIMARY KEY CHECK (a > 100), b int GENERATED ALWAYS AS (a + 1) STORED);
"""
POSTGRES_ROWS = """
INSERT INTO surrogate (slot) VALUES (1); INSERT INTO partial VALUES (1, 1, 1), (2, 2, 2);
INSERT INTO folded VALUES ('A'); INSERT INTO equal_null VALUES (NULL); INSERT INTO unfinished VALUES (1), (1);
INSERT INTO made_uuid (slot) VALUES (1); INSERT INTO checked VALUES (101)
"""
POSTGRES_EXPECTED = {
    "surrogate": TWICE, "partial": REFUSED, "folded": REFUSED, "equal_null": REFUSED, "unfinished": TWICE,
    "made_uuid": TWICE, "checked": REFUSED,
}  # fmt: skip


def tried(url: str) -> dict[str, Tried]:
    engine, reading = open_database(url)
    try:
        catalog = read_catalog(engine, reading)
        found = try_all(catalog, reading, {table.full_name for table in catalog.tables})
    finally:
        reading.close()
    return {one.table.removeprefix("public."): one for one in found}


def verdicts(url: str) -> dict[str, Verdict]:
    return {name: one.verdict for name, one in tried(url).items()}


@pytest.fixture(params=["postgres", "mysql", "sqlite"])
def database(request, tmp_path):
    if request.param == "postgres":
        url = request.getfixturevalue("samekey_postgres").create_database()

        def execute(script: str) -> None:
            with psycopg.connect(url, autocommit=True) as link:
                link.execute(script.encode())
    elif request.param == "mysql":
        url = request.getfixturevalue("samekey_mariadb").create_database()

        def execute(script: str) -> None:
            run_mysql(url, script)
    else:
        url = f"sqlite:///{tmp_path}/t.db"

        def execute(script: str) -> None:
            plant_sqlite(tmp_path / "t.db", script)

    return url, execute


def test_a_retry_is_tried_with_a_row_of_the_table_or_a_made_up_one(database):
    url, execute = database
    execute(TABLES)
    empty = tried(url)
    execute(ROWS)
    filled = tried(url)

    assert {name: one.verdict for name, one in empty.items()} == EXPECTED
    assert all(one.made_up for one in empty.values())
    assert {name: one.verdict for name, one in filled.items()} == EXPECTED
    assert filled["pair_null"].why in ("a row without slot", "any row")  # which row is first is the server's choice


def test_every_kind_of_key_of_postgres(samekey_postgres):
    url = samekey_postgres.create_database()
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(POSTGRES.encode())
        empty = verdicts(url)
        link.execute(POSTGRES_ROWS.encode())
        with pytest.raises(psycopg.errors.UniqueViolation):
            link.execute("CREATE UNIQUE INDEX CONCURRENTLY unfinished_a ON unfinished (a)")
        filled = verdicts(url)
        left = link.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'samekey_trial%'").fetchone()
        sequence = link.execute("SELECT last_value FROM surrogate_id_seq").fetchone()

    assert empty["checked"] is UNKNOWN  # the made-up value is not allowed
    # The primary key of `partial` is the client's: it refuses the retry itself.
    assert filled == POSTGRES_EXPECTED
    assert left == (0,)
    assert sequence == (1,)  # no number of the table's own sequence was used


def test_the_command_names_the_tables(tmp_path):
    url = plant_sqlite(tmp_path / "t.db", TABLES)
    result = run(url, "--retry-test", "--json", "--fail-on", "high")
    report = json.loads(result.stdout)

    assert {one["table"]: one["verdict"] for one in report["retry_test"]} == EXPECTED
    assert {one["object"] for one in report["findings"] if one["rule"] == "SK129"} == {"bare", "pair_null", "diluted"}
    assert result.exit_code == 1
