"""The audit on real servers: what it may read, what it never does, and when it is not the whole answer."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pymysql
import pytest

from samekey.core.errors import Misconfigured
from samekey.detect import dialect
from samekey.detect.audit import audit, open_database, read_catalog
from samekey.detect.catalog import Engine
from samekey.detect.confirm import Confirming, How
from samekey.detect.findings import Check, Finding, Severity
from samekey.drivers.reading import CannotRead, StatementStopped
from tests.detect import fixtures
from tests.detect.conftest import plant, plant_sqlite, run_mysql

LABS = ["postgres_lab", "mysql_lab", "sqlite_lab"]


@contextmanager
def reading_of(url):
    engine, reading = open_database(url)
    with closing(reading):
        yield engine, reading


def names(report):
    return {(one.finding.rule, one.finding.object) for one in report.results}


@pytest.fixture
def database(samekey_postgres):
    return samekey_postgres.create_database()


# -- what it reads and never does ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lab", LABS)
def test_the_connection_of_an_audit_cannot_write(lab, request):
    with reading_of(request.getfixturevalue(lab)) as (_, reading):
        before = reading.rows("SELECT count(*) FROM " + ("public.bare" if lab == "postgres_lab" else "bare"))
        with pytest.raises((psycopg.Error, pymysql.Error, sqlite3.Error, CannotRead)):
            reading.rows("DELETE FROM " + ("public.bare" if lab == "postgres_lab" else "bare"))
        assert reading.rows("SELECT count(*) FROM " + ("public.bare" if lab == "postgres_lab" else "bare")) == before


def test_a_count_uses_no_index(postgres_lab, sqlite_lab):
    """An index that is broken would hide the duplicates that it let in."""
    with reading_of(postgres_lab) as (_, reading):
        assert reading.rows("SHOW enable_indexscan", whole_table=True) == [("off",)]
        assert reading.rows("SHOW enable_indexonlyscan", whole_table=True) == [("off",)]
        assert reading.rows("SHOW enable_bitmapscan", whole_table=True) == [("off",)]
        assert reading.rows("SHOW enable_indexscan") == [("on",)]
    counts = [one.sql for one in audit(sqlite_lab).results if one.sql]
    with reading_of(sqlite_lab) as (_, reading):
        plans = [str(row[3]) for sql in counts for row in reading.rows(f"EXPLAIN QUERY PLAN {sql}")]

    assert len(counts) > 10
    assert not [step for step in plans if "INDEX" in step]


@pytest.mark.parametrize(
    ("lab", "endless"),
    [
        ("postgres_lab", "SELECT pg_sleep(60)"),
        ("mysql_lab", "SELECT count(*) FROM seq_1_to_100000 a, seq_1_to_100000 b"),
        ("sqlite_lab", "WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"),
    ],
)
def test_a_statement_ends_with_its_time(lab, endless, request):
    with reading_of(request.getfixturevalue(lab)) as (_, reading):
        started = time.monotonic()
        with pytest.raises(StatementStopped):
            reading.rows(endless, seconds=0.05)
        assert time.monotonic() - started < 30
        assert reading.rows("SELECT 1") == [(1,)]


def test_a_locked_table_is_not_waited_for_and_makes_the_audit_incomplete(database):
    with psycopg.connect(database) as writer:
        writer.execute("CREATE TABLE held (a int)")
        writer.commit()
        writer.execute("LOCK TABLE held")
        report = audit(database, confirm=True)

    (result,) = [one for one in report.results if one.finding.rule == "SK101"]
    assert result.evidence is not None
    assert result.evidence.how is How.STOPPED
    assert any("held" in reason for reason in report.incomplete)


def test_a_budget_that_is_used_up_is_incomplete(sqlite_lab):
    report = audit(sqlite_lab, confirm=True, budget_seconds=1e-9)

    assert not any(one.confirmed for one in report.results)
    assert len(report.incomplete) > 5
    assert all("skipped" in reason or "stopped" in reason for reason in report.incomplete)


# -- rights --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roles(samekey_postgres, postgres_lab):
    """Addresses of the lab for a monitoring role, and for a role without rights on tables."""
    with psycopg.connect(postgres_lab, autocommit=True) as link:
        for role in ("lab_monitor", "lab_stranger"):
            link.execute(
                f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$".encode()
            )
        link.execute("GRANT pg_read_all_data, pg_monitor TO lab_monitor")
        user = link.info.user
    assert f"//{user}" in postgres_lab
    return {role: postgres_lab.replace(f"//{user}", f"//lab_{role}", 1) for role in ("monitor", "stranger")}


def test_a_monitoring_role_sees_what_the_owner_sees(postgres_lab, roles):
    report = audit(roles["monitor"], confirm=True)

    assert names(report) == names(audit(postgres_lab, confirm=True))
    assert report.incomplete == ()


def test_a_role_without_rights_sees_the_gaps_and_is_incomplete_with_confirm(postgres_lab, roles):
    latent, report = audit(roles["stranger"]), audit(roles["stranger"], confirm=True)

    assert ("SK101", "public.bare") in names(latent)
    assert not any(one.confirmed for one in report.results)
    assert any("SK101 public.bare: refused" in reason for reason in report.incomplete)


def test_rows_that_a_policy_hides_are_not_called_clean(samekey_postgres, database, roles):
    with psycopg.connect(database, autocommit=True) as link:
        link.execute("CREATE TABLE hidden (a int)")
        link.execute("INSERT INTO hidden VALUES (1), (1)")
        link.execute("ALTER TABLE hidden ENABLE ROW LEVEL SECURITY")
        user = link.info.user
    report = audit(database.replace(f"//{user}", "//lab_monitor", 1), confirm=True)

    assert any("SK101 public.hidden: refused" in reason for reason in report.incomplete)


def test_a_mysql_role_that_may_not_see_every_table_is_incomplete(samekey_mariadb):
    url = samekey_mariadb.create_database()
    run_mysql(url, "CREATE TABLE seen (a int);\nCREATE TABLE unseen (a int)")
    with closing(pymysql.connect(**open_arguments(url), autocommit=True)) as link:
        cursor = link.cursor()
        cursor.execute("CREATE OR REPLACE USER lab_stranger@'%' IDENTIFIED BY 'a'")
        cursor.execute("CREATE OR REPLACE USER lab_stranger@localhost IDENTIFIED BY 'a'")
        cursor.execute("GRANT SELECT ON seen TO lab_stranger@'%'")
        cursor.execute("GRANT SELECT ON seen TO lab_stranger@localhost")
    host = url.partition("//")[2].rpartition("@")[2]
    report = audit(f"mysql://lab_stranger:a@{host}", confirm=True)

    assert {one.finding.object for one in report.results if one.finding.rule == "SK101"} == {"seen"}
    assert any("hides tables" in reason for reason in report.incomplete)


def open_arguments(url):
    from samekey.drivers.mysql.address import parse_url

    return dict(parse_url(url).arguments)


# -- how much is counted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["postgres", "mysql", "sqlite"])
def test_a_sample_has_every_row_of_its_keys(server, request, tmp_path):
    """A thousand keys, each twice: in one key of a hundred, each has exactly one row too many."""
    if server == "sqlite":
        numbers = "WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 1000)"
        rows = f"{numbers} INSERT INTO t SELECT n FROM n"
        url = plant_sqlite(tmp_path / "t.db", f"CREATE TABLE t (slot INT); {rows}; INSERT INTO t SELECT slot FROM t")
    elif server == "mysql":
        url = request.getfixturevalue("samekey_mariadb").create_database()
        run_mysql(
            url,
            "CREATE TABLE t (slot int);\nINSERT INTO t SELECT a.seq FROM seq_1_to_1000 a, seq_1_to_2 b",
        )
    else:
        url = request.getfixturevalue("samekey_postgres").create_database()
        with psycopg.connect(url) as link:
            link.execute("CREATE TABLE t AS SELECT n AS slot FROM generate_series(1, 1000) n, generate_series(1, 2)")
    with reading_of(url) as (engine, reading):
        catalog = read_catalog(engine, reading)
        (table,) = catalog.tables
        check = Check(table.full_name, (dialect.quoted("slot", engine),))
        finding = Finding("SK101", Severity.HIGH, "t", "", check=check)

        def counted(rows):
            """With this estimate of the server: one second of budget."""
            guessed = replace(catalog, tables=(replace(table, rows=rows),))
            return Confirming(reading, guessed, 1.0).confirm([finding])[0]

        exact, sampled, skipped = counted(1000.0), counted(1e6), counted(1e9)

    assert (exact.how, exact.groups, exact.rows) == (How.EXACT, 1000, 1000)
    assert sampled.how is How.SAMPLED
    assert 0 < sampled.groups == sampled.rows < 100
    assert skipped.how is How.SKIPPED
    assert not skipped.conclusive


# -- fixes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["postgres", "mysql", "sqlite"])
def test_every_statement_of_a_fix_runs_on_an_empty_table(server, request, tmp_path):
    from tests.detect import lab

    if server == "postgres":
        url = plant(request.getfixturevalue("samekey_postgres").create_database())
    elif server == "mysql":
        url = request.getfixturevalue("samekey_mariadb").create_database()
        run_mysql(url, lab.MYSQL)
    else:
        url = plant_sqlite(tmp_path / "lab.db", lab.SQLITE)
    results = audit(url).results
    fixes = [statement for one in results for statement in one.finding.fix if not statement.startswith("--")]
    tables = dict.fromkeys(one.finding.table for one in results if one.finding.table)

    assert len(fixes) > 8
    if server == "postgres":
        with psycopg.connect(url, autocommit=True) as link:
            link.execute(f"TRUNCATE {', '.join(tables)}".encode())
            for statement in dict.fromkeys(fixes):
                link.execute(statement.encode())
    elif server == "mysql":
        run_mysql(url, ";\n".join(f"DELETE FROM {table}" for table in tables))
        run_mysql(url, ";\n".join(statement.rstrip(";") for statement in dict.fromkeys(fixes)))
    else:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as link:
            for statement in [*(f"DELETE FROM {table}" for table in tables), *dict.fromkeys(fixes)]:
                link.execute(statement)
            link.commit()
    closed = names(audit(url))
    if server == "postgres":
        assert not {rule for rule, _ in closed} & {"SK105", "SK106", "SK113", "SK115", "SK116"}
    assert len(closed) < len(results)


# -- two tables that teams really have -----------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["postgres", "sqlite"])
def test_an_idempotency_keys_table_is_named_with_all_it_lacks(server, request, tmp_path):
    if server == "sqlite":
        url = plant_sqlite(tmp_path / "keys.db", fixtures.IDEMPOTENCY_KEYS.format(document="JSON"))
    else:
        url = request.getfixturevalue("samekey_postgres").create_database()
        with psycopg.connect(url) as link:
            link.execute(fixtures.IDEMPOTENCY_KEYS.format(document="JSONB").encode())
    why = [one.finding.why for one in audit(url).results if one.finding.rule in ("SK118", "SK119")]

    assert len(why) == 4
    assert any("unique across all clients" in text for text in why)
    assert any("request_hash may be NULL" in text for text in why)
    assert any("status is free text" in text for text in why)
    assert any("nothing to collect by" in text for text in why)


@pytest.mark.parametrize("server", ["postgres", "sqlite"])
def test_orders_with_a_sound_key_are_clean_although_their_insert_returns_no_row(server, request, tmp_path):
    """The schema refuses the retry. That the retry gets no row is a gap of the statement, which no catalog shows."""
    if server == "sqlite":
        url = plant_sqlite(tmp_path / "orders.db", fixtures.ORDERS)
        with closing(sqlite3.connect(tmp_path / "orders.db")) as link:
            answers = [link.execute(fixtures.ORDERS_INSERT).fetchall() for _ in range(2)]
            link.commit()
    else:
        url = request.getfixturevalue("samekey_postgres").create_database()
        with psycopg.connect(url) as connection:
            connection.execute(fixtures.ORDERS.encode())
            answers = [connection.execute(fixtures.ORDERS_INSERT.encode()).fetchall() for _ in range(2)]
    report = audit(url, confirm=True)

    assert answers == [[(1, 17, 200)], []]
    assert [one for one in report.results if one.finding.table] == []
    assert report.incomplete == ()


# -- odd schemas ---------------------------------------------------------------------------------------------------

ODD = """
CREATE TABLE "we ird""%s'x" ("a b" TEXT, "c""d" INT, UNIQUE ("a b", "c""d"));
INSERT INTO "we ird""%s'x" VALUES ('x', NULL), ('x', NULL);
CREATE TABLE folded (id INT NOT NULL PRIMARY KEY, email TEXT);
CREATE UNIQUE INDEX folded_email ON folded (lower(email)) WHERE email IS NOT NULL;
"""


@pytest.mark.parametrize("server", ["postgres", "sqlite"])
def test_names_need_quotes_and_keys_may_be_expressions(server, request, tmp_path):
    if server == "sqlite":
        url = plant_sqlite(tmp_path / "odd.db", ODD)
    else:
        url = request.getfixturevalue("samekey_postgres").create_database()
        with psycopg.connect(url, autocommit=True) as link:
            link.execute(ODD.encode())
            link.execute("CREATE TABLE no_column ()")
    report = audit(url, confirm=True)
    counted = [(one.finding.rule, one.evidence.rows) for one in report.results if one.evidence]

    assert counted == [("SK102", 1), ("SK104", 0)]
    assert report.incomplete == ()


def test_rows_whose_time_cannot_be_compared_count_as_near(tmp_path):
    """Seconds since 1970 in a column of SQLite, where a time has no type."""
    made = "CREATE TABLE visits (id INTEGER PRIMARY KEY, page TEXT, created_at TIMESTAMP)"
    rows = "INSERT INTO visits (page, created_at) VALUES ('a', 1700000000), ('a', 1700000060), ('b', 1), ('c', NULL)"
    (result,) = audit(plant_sqlite(tmp_path / "visits.db", f"{made}; {rows}"), confirm=True).results

    assert result.finding.rule == "SK108"
    assert result.evidence is not None
    assert (result.evidence.groups, result.evidence.rows) == (1, 1)


def test_a_text_that_is_not_utf8_makes_its_count_incomplete(tmp_path):
    script = "CREATE TABLE bad (name TEXT NOT NULL UNIQUE); INSERT INTO bad VALUES (CAST(x'ff41' AS TEXT))"
    report = audit(plant_sqlite(tmp_path / "bad.db", script), confirm=True)

    assert any(reason.startswith("SK104 bad.") for reason in report.incomplete)


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("shop.db", Misconfigured),
        ("oracle://db/shop", Misconfigured),
        ("sqlite:///missing/shop.db", CannotRead),
        ("postgresql://nobody@127.0.0.1:1/shop", CannotRead),
        ("mysql://nobody@127.0.0.1:1/shop", CannotRead),
    ],
)
def test_what_cannot_be_read_is_refused(url, expected):
    with pytest.raises(expected):
        audit(url)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "notes.db").write_text("x" * 4096)

    with pytest.raises(CannotRead):
        audit(f"sqlite:///{tmp_path}/notes.db")


def test_a_missing_file_is_not_made(tmp_path):
    with pytest.raises(CannotRead):
        audit(f"sqlite:///{tmp_path}/missing.db")

    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_not_called_clean(tmp_path):
    report = audit(plant_sqlite(tmp_path / "empty.db", "VACUUM"))

    assert report.engine is Engine.SQLITE
    assert report.incomplete == ("no table was seen: the database is empty, or the role may see none",)
