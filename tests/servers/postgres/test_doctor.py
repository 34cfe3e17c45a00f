"""samekey doctor names what is wrong with a PostgreSQL server, its tables, or the role in the address."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from samekey.drivers.postgres.migrate import migrate
from samekey.drivers.postgres.self_check import RIGHTS
from samekey.testing.servers import USER
from tests.servers.doctor import examined
from tests.servers.postgres.helpers import sql
from tests.servers.postgres.standby import standby

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "postgresql.md"

# What is done to a sound database, the options in the address, and what doctor finds.
FAULTS = {
    "a disk that is not waited for": ("", "", "fsync is off: a crash of the machine may lose or damage every record"),
    "a table that a crash empties": (
        "ALTER TABLE samekey_records SET UNLOGGED",
        "",
        "the table samekey_records is UNLOGGED: a crash of the server empties it, and every effect may run again",
    ),
    "commits that are not waited for": ("", "?durability=fast", "durability=fast: a crash of the server may forget"),
    "a wrong isolation": (
        "ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'",
        "?pgbouncer=1",
        "sessions start in serializable: a lost race ends in an error instead of a replay",
    ),
    "a missing table": (
        "DROP TABLE samekey_counts",
        "",
        "the table samekey_counts is missing: attempts are not counted, so rates and alarms see nothing",
    ),
}

# What is done to a sound database so that it cannot be the store, and what doctor says.
REFUSED = {
    "no tables": ("DROP SCHEMA public CASCADE; CREATE SCHEMA public", "has no samekey tables. Make them with: samekey"),
    "an old schema": (
        "UPDATE samekey_meta SET value = '0' WHERE name = 'schema'",
        "has schema 0, this samekey needs 1. Bring it up to date with: samekey migrate --store",
    ),
    "a schema of a newer version": (
        "UPDATE samekey_meta SET value = '9' WHERE name IN ('schema', 'oldest_client')",
        "was migrated by a newer samekey (schema 9, this one knows 1): upgrade samekey",
    ),
    "a foreign table": (
        "ALTER TABLE samekey_records ALTER COLUMN token TYPE text",
        "has a table samekey_records that samekey did not make. Rename that table",
    ),
}


def changed(url, statement):
    if statement:
        sql(url, statement.format(database=url.rpartition("/")[2]))


@pytest.mark.parametrize("fault", FAULTS)
def test_it_names_each_fault(url, fault):
    statement, options, sentence = FAULTS[fault]
    changed(url, statement)
    code, printed = examined(url + options)

    assert code == 1
    assert f"found: {sentence}" in printed


def test_a_partition_that_a_crash_empties(url):
    sql(url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    migrate(url, partitions=2)
    part = sql(url, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'samekey_records'::regclass")
    assert "UNLOGGED" not in examined(url)[1]
    sql(url, f"ALTER TABLE {part} SET UNLOGGED")

    assert "found: the table samekey_records is UNLOGGED" in examined(url)[1]


@pytest.mark.parametrize("fault", REFUSED)
def test_it_names_why_a_database_cannot_be_the_store(url, fault):
    statement, sentence = REFUSED[fault]
    changed(url, statement)
    code, printed = examined(url)

    assert code == 3
    assert sentence in printed


def test_a_standby(server, url):
    with standby(server) as copy:
        address = copy.url(url.rpartition("/")[2])
        code, printed = examined(address)
        named = examined(f"{address}?target_session_attrs=primary")

    assert (code, named[0]) == (3, 3)
    assert "It is a standby, or set to read-only, and claims go to the primary only" in printed
    assert "It is a standby" in named[1]


@pytest.fixture
def examined_role(url):
    """What doctor finds for a role with the rights of the page."""
    (grants,) = re.findall(r"```sql\n(GRANT .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with contextlib.suppress(Exception):
        sql(url, "DROP OWNED BY examined; DROP ROLE examined")
    sql(url, "CREATE ROLE examined LOGIN; GRANT USAGE ON SCHEMA public TO examined")
    sql(url, grants.replace("TO app", "TO examined"))
    yield url.replace(f"{USER}@", "examined@")
    sql(url, "DROP OWNED BY examined; DROP ROLE examined")


@pytest.mark.parametrize(
    ("right", "code", "sentence"),
    [
        (
            "INSERT ON samekey_audit",
            1,
            "found: this role lacks rights, and commands that need them fail: GRANT {right}\n",
        ),
        ("DELETE ON samekey_records", 1, "fail: GRANT {right}\n"),
        ("USAGE ON SEQUENCE samekey_tokens", 1, "fail: GRANT USAGE ON samekey_tokens\n"),
        (
            "USAGE ON SCHEMA public",
            3,
            "tables are in the schema public, and this role does not see them. GRANT {right}",
        ),
        ("SELECT ON samekey_meta", 3, "this role may not use the samekey tables"),
    ],
)
def test_a_role_without_a_right(url, examined_role, right, code, sentence):
    assert "lacks rights" not in examined(examined_role)[1]
    sql(url, f"REVOKE {right} FROM examined")
    found = examined(examined_role)

    assert found[0] == code
    assert sentence.format(right=right) in found[1]


def test_the_rights_that_are_checked_are_those_of_the_page():
    granted = re.findall(r"^GRANT ([A-Z, ]+) ON (?:SEQUENCE )?(\w+) TO app;", PAGE.read_text(encoding="utf-8"), re.M)

    assert {name: tuple(rights.split(", ")) for rights, name in granted} == RIGHTS
