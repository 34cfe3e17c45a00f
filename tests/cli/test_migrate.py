"""samekey migrate: what it does, what it would do, and what other tools can do instead."""

from __future__ import annotations

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from samekey import Guard
from samekey.core.errors import Misconfigured
from samekey.drivers.postgres import migrate as driver
from samekey.drivers.postgres.migrate import MIGRATION_LOCK
from samekey.drivers.postgres.self_check import SCHEMA
from samekey.testing.servers import postgres
from tests.cli.conftest import Shell


@pytest.fixture(scope="module")
def server():
    with postgres() as running:
        yield running


@pytest.fixture
def url(server):
    """An empty database."""
    return server.create_database()


def made(number: int, phase: str, sql: str) -> driver.Migration:
    """A migration as a later version will ship it: it counts itself."""
    counted = {"pre": "schema", "post": "contracted"}[phase]
    count = (
        f"INSERT INTO samekey_meta VALUES ('{counted}', '{number}') "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value;"
    )
    return driver.Migration(number, phase, f"number {number}", f"{sql};\n{count}\n")  # type: ignore[arg-type]


LATER = [
    made(2, "pre", "ALTER TABLE samekey_records ADD COLUMN later text"),
    made(3, "post", "UPDATE samekey_meta SET value = '2' WHERE name = 'oldest_client'"),
    made(4, "pre", "ALTER TABLE samekey_audit ADD COLUMN later text"),
]


def known() -> list[driver.Migration]:
    return [*driver.migrations(), *LATER]


def numbers(found) -> list[int]:
    return [one.number for one in found]


# -- the command -------------------------------------------------------------------------------------------


def test_tables_are_made_once_and_a_second_time_is_fine(shell: Shell, url):
    first = shell("migrate", "--store", url)
    second = shell("migrate", "--store", url)

    assert (first.exit_code, first.stdout) == (0, "0001 records (pre): done\n")
    assert (second.exit_code, second.stdout) == (0, "")
    assert "nothing to do" in second.stderr
    with psycopg.connect(url) as link:
        assert link.execute("SELECT count(*) FROM samekey_records").fetchone() == (0,)


def test_a_dry_run_prints_what_would_run_and_changes_nothing(shell: Shell, server, url):
    """What it prints is a script: given to psql it leaves a database that has nothing left to do."""
    dry = shell("migrate", "--store", url, "--dry-run")

    assert dry.exit_code == 1
    assert "BEGIN;" in dry.stdout
    assert f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK});" in dry.stdout
    with psycopg.connect(url) as link:
        assert link.execute("SELECT to_regclass('samekey_meta')").fetchone() == (None,)
    server.sql(dry.stdout, database=url.rpartition("/")[2])
    assert shell("migrate", "--store", url, "--dry-run").exit_code == 0


def test_the_sql_for_other_tools_needs_no_server(shell: Shell, server, url):
    """Bare, without a transaction: Alembic, Django and Flyway have one of their own."""
    printed = shell("migrate", "--store", "postgresql://nowhere.invalid/x", "--sql")

    assert printed.exit_code == 0
    assert printed.stdout.strip() == driver.migrations()[0].sql.strip()
    assert "COMMIT;" not in printed.stdout
    assert shell("migrate", "--store", "postgresql:///x", "--sql", "--after", str(SCHEMA)).stdout == ""
    server.sql(printed.stdout, database=url.rpartition("/")[2])
    assert driver.migrate(url) == []


def test_programs_get_json(shell: Shell, url):
    dry = shell("migrate", "--store", url, "--dry-run", "--json")
    done = shell("migrate", "--store", url, "--json")

    printed = json.loads(dry.stdout)
    assert (printed["dry_run"], printed["complete"], [one["number"] for one in printed["migrations"]]) == (
        True,
        False,
        [1],
    )
    assert printed["migrations"][0]["sql"].startswith("BEGIN;")
    assert json.loads(done.stdout)["migrations"] == [{"number": 1, "phase": "pre", "title": "records"}]


def test_a_password_is_never_printed(shell: Shell, url):
    secret = url.replace("samekey@", "samekey:s3cret@")
    for words in (["--json"], ["--dry-run"], []):
        done = shell("migrate", "--store", secret, *words)
        assert "s3cret" not in done.stdout + done.stderr


def test_a_server_that_is_not_there_and_wrong_usage(shell: Shell):
    no_server = "postgresql://samekey@127.0.0.1:1/x"

    assert shell("migrate", "--store", no_server).exit_code == 3
    assert shell("migrate", "--store", no_server, "--sql", "--dry-run").exit_code == 2
    assert shell("migrate", "--store", no_server, "--after", "1").exit_code == 2
    assert shell("migrate", "--store", no_server, "--phase", "later").exit_code == 2
    assert shell("migrate", "--store", "sqlite:///keys.db", "--partitions", "8").exit_code == 2
    assert shell("migrate", "--store", "memory://").exit_code == 2


def test_a_role_that_may_not_make_tables_gets_a_clear_error(shell: Shell, server, url):
    server.sql("CREATE ROLE app LOGIN")
    done = shell("migrate", "--store", url.replace("samekey@", "app@"))

    assert done.exit_code == 3
    assert "may not" in done.stderr


@pytest.mark.parametrize("words", [("ls",), ("show", "charge", "o-1"), ("explain", "o-1"), ("doctor",), ("sweep",)])
def test_a_server_without_tables_and_a_role_without_rights_are_no_usage_errors(shell: Shell, server, url, words):
    """Nothing is wrong with the command: the code is that of a store which cannot be opened, as with a file."""
    empty = shell(*words, "--store", url)
    shell("migrate", "--store", url)
    server.sql("DROP ROLE IF EXISTS stranger")
    server.sql("CREATE ROLE stranger LOGIN")
    stranger = shell(*words, "--store", url.replace("samekey@", "stranger@"))

    assert (empty.exit_code, stranger.exit_code) == (3, 3)
    assert "samekey migrate --store" in empty.stderr
    assert "may not" in stranger.stderr


def test_sqlite_gets_its_tables_before_a_transaction_of_the_user_holds_the_file(shell: Shell):
    """A transaction locks the file, and no tables can be made in it then, so the command makes them before."""
    sent_nothing = shell("migrate", "--dry-run")
    assert not shell.path.exists()
    done, again, checked = shell("migrate"), shell("migrate"), shell("migrate", "--dry-run")
    with closing(sqlite3.connect(shell.path, isolation_level=None)) as connection, Guard(shell.store) as guard:
        connection.execute("CREATE TABLE orders (id TEXT)")
        connection.execute("BEGIN IMMEDIATE")
        guard.on(connection).run("order", lambda: "placed", key="o-1", payload={})
        connection.execute("COMMIT")

    assert (sent_nothing.exit_code, done.exit_code, again.exit_code, checked.exit_code) == (1, 0, 0, 0)
    assert "CREATE TABLE samekey_records" in sent_nothing.stdout
    assert done.stdout == "0001 records: done\n"
    assert "nothing to do" in again.stderr
    assert "nothing to do" in checked.stderr


def test_a_dry_run_changes_nothing_in_a_file_of_another_program(shell: Shell):
    with closing(sqlite3.connect(shell.path)) as connection:
        connection.execute("CREATE TABLE orders (id TEXT)")
    before = shell.path.read_bytes()
    done = shell("migrate", "--dry-run", "--json")

    assert done.exit_code == 1
    assert [one["number"] for one in json.loads(done.stdout)["migrations"]] == [1]
    assert shell.path.read_bytes() == before


def test_the_sql_of_sqlite_is_printed_for_others(shell: Shell):
    assert "CREATE TABLE" in shell("migrate", "--sql").stdout
    assert not shell.path.exists()


def test_of_two_addresses_the_durable_one_has_tables(shell: Shell):
    done = shell("migrate", "--store", f"redis://cache:6379/0 {shell.store}")

    assert (done.exit_code, done.stdout) == (0, "0001 records: done\n")


# -- phases ------------------------------------------------------------------------------------------------


def test_what_the_code_needs_is_the_newest_pre_migration_that_it_ships():
    """And every file says its phase, and counts itself (`migrate` refuses one that does not)."""
    shipped = driver.migrations()

    assert numbers(shipped) == list(range(1, len(shipped) + 1))
    assert max(one.number for one in shipped if one.phase == "pre") == SCHEMA


def test_expand_before_the_deploy_and_contract_after_it(url):
    """A deploy may skip versions: pre-migrations go ahead of older post-migrations, and each phase counts by itself."""
    driver.migrate(url)
    assert numbers(driver.migrate(url, known=known(), dry_run=True)) == [2, 4, 3]
    with pytest.raises(Misconfigured, match="--phase pre"):
        driver.migrate(url, known=known(), phase="post")

    assert numbers(driver.migrate(url, known=known(), phase="pre")) == [2, 4]
    assert numbers(driver.migrate(url, known=known(), phase="pre")) == []
    assert numbers(driver.migrate(url, known=known(), phase="post")) == [3]
    assert numbers(driver.migrate(url, known=known())) == []


def test_old_code_works_until_it_is_contracted_away(url, scene_of_claims):
    """Between the two phases both versions run; afterwards the old one is refused with the request to upgrade."""
    driver.migrate(url)
    driver.migrate(url, known=known(), phase="pre")
    scene_of_claims(url)
    with pytest.raises(Misconfigured, match=r"newer samekey \(schema 4, this one knows 1\): upgrade samekey"):
        driver.migrate(url)

    driver.migrate(url, known=known(), phase="post")
    with pytest.raises(Misconfigured, match="upgrade samekey"):
        scene_of_claims(url)


def test_an_older_schema_is_named_with_the_line_that_mends_it(url, scene_of_claims):
    driver.migrate(url)
    with psycopg.connect(url) as link:
        link.execute("UPDATE samekey_meta SET value = '0' WHERE name = 'schema'")

    with pytest.raises(Misconfigured, match=r"schema 0, this samekey needs 1\. .*samekey migrate --store postgresql:"):
        scene_of_claims(url)


def test_a_migration_that_does_not_count_itself_is_rolled_back(url):
    driver.migrate(url)
    forgetful = driver.Migration(2, "pre", "forgetful", "CREATE TABLE forgotten (x int);")
    with pytest.raises(ValueError, match="does not count itself"):
        driver.migrate(url, known=[*driver.migrations(), forgetful])

    with psycopg.connect(url) as link:
        assert link.execute("SELECT to_regclass('forgotten')").fetchone() == (None,)


@pytest.fixture
def scene_of_claims():
    def claim(url: str) -> None:
        with Guard(url) as guard:
            assert guard.run("charge", lambda: "paid", key="o-1", payload={}).result == "paid"

    return claim


# -- under load --------------------------------------------------------------------------------------------


def test_two_at_once_are_one_after_the_other(server, url):
    """The second waits for the first one's lock, whatever the role's patience is, and then finds it done."""
    server.sql(f"ALTER DATABASE {url.rpartition('/')[2]} SET statement_timeout = '50ms'")
    server.sql(f"ALTER DATABASE {url.rpartition('/')[2]} SET lock_timeout = '50ms'")
    with psycopg.connect(url) as first, ThreadPoolExecutor(2) as pool:
        first.execute(b"SELECT pg_advisory_xact_lock(%d)" % MIGRATION_LOCK)
        second = pool.submit(driver.migrate, url)
        third = pool.submit(driver.migrate, url)
        waiting = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                     AND clock_timestamp() - waitstart > '100 ms'"""
        while server.sql(waiting) != "2":
            assert not second.done()
        first.rollback()

        assert sorted([numbers(second.result(30)), numbers(third.result(30))]) == [[], [1]]


def test_a_busy_table_is_waited_for_briefly_and_tried_again(shell: Shell, url, scene_of_claims, monkeypatch):
    """A long transaction has the table: the migration gives way, claims go on, and later it is done."""
    monkeypatch.setattr(driver, "FIRST_PAUSE_SECONDS", 0.01)
    driver.migrate(url)
    gave_way, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(driver, "TRIES_MAX", 3)

    def pause(seconds: float) -> None:
        gave_way.set()
        go_on.wait(30)

    monkeypatch.setattr("samekey.drivers.postgres.migrate.time.sleep", pause)

    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(url) as report:
            report.execute("SELECT count(*) FROM samekey_records")
            migrating = pool.submit(driver.migrate, url, known=known(), phase="pre")
            assert gave_way.wait(30)
            scene_of_claims(url)  # no claim waits for a migration that has given way
        go_on.set()

        assert numbers(migrating.result(30)) == [2, 4]


def test_a_table_that_is_busy_for_ever_is_reported_as_incomplete(shell: Shell, url, monkeypatch):
    driver.migrate(url)
    monkeypatch.setattr(driver, "TRIES_MAX", 2)
    monkeypatch.setattr(driver, "FIRST_PAUSE_SECONDS", 0.0)
    all_of_them = known()
    monkeypatch.setattr(driver, "migrations", lambda partitions=0: all_of_them)
    with psycopg.connect(url) as report:
        report.execute("SELECT count(*) FROM samekey_records")
        done = shell("migrate", "--store", url, "--json")

    assert done.exit_code == 4
    assert "busy 2 times" in done.stderr
    assert json.loads(done.stdout)["complete"] is False


def test_the_help_says_what_it_is_for(shell: Shell):
    printed = shell("migrate", "--help")

    assert printed.exit_code == 0
    assert "--phase" in printed.stdout
    assert "--dry-run" in printed.stdout
