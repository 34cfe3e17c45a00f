"""samekey doctor names what is wrong with a MariaDB or MySQL server and its tables."""

from __future__ import annotations

import contextlib

import pytest

from samekey.drivers.mysql.migrate import migrate
from tests.servers.doctor import examined
from tests.servers.mysql.helpers import sql

pytestmark = pytest.mark.slow

# A setting of the server, and what doctor finds.
SETTINGS = {
    "max_allowed_packet = 1048576": "max_allowed_packet is 1048576 bytes: a result of more than about 524288 cannot",
    "innodb_flush_log_at_trx_commit = 0": "innodb_flush_log_at_trx_commit is 0: a power loss may forget",
}
REFUSED = {
    "ALTER TABLE samekey_records ENGINE = MyISAM": "is kept by MyISAM, which forgets: make it InnoDB",
    "DROP TABLE samekey_records": "has no samekey tables. Make them with: samekey migrate --store",
    "ALTER TABLE samekey_records DROP COLUMN story": "is not ours (column story): rename it and make ours with",
    "UPDATE samekey_meta SET value = '0' WHERE name = 'schema'": "has schema 0, this samekey needs 1. Bring it up",
}


@contextlib.contextmanager
def set_to(url, setting):
    name = setting.partition(" ")[0]
    before = sql(url, f"SELECT @@GLOBAL.{name}")
    sql(url, f"SET GLOBAL {setting}")
    try:
        yield
    finally:
        sql(url, f"SET GLOBAL {name} = {before}")


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_names_each_fault(mortal, setting):
    url = mortal.create_database()
    migrate(url)
    assert examined(url) == (0, "")
    with set_to(url, setting):
        code, printed = examined(url)

    assert code == 1
    assert f"found: {SETTINGS[setting]}" in printed


def test_a_server_that_is_read_only(mortal):
    url = mortal.create_database()
    migrate(url)
    with set_to(url, "read_only = 1"):
        code, printed = examined(url)

    assert code == 3
    assert "is read-only (read_only): claims go to the primary only" in printed


@pytest.mark.parametrize("statement", REFUSED)
def test_it_names_why_a_database_cannot_be_the_store(url, statement):
    sql(url, statement)
    code, printed = examined(url)

    assert code == 3
    assert REFUSED[statement] in printed
