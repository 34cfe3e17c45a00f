"""samekey migrate, and the rest of the command line, on MariaDB."""

from __future__ import annotations

import json

import pytest

from samekey import Guard
from tests.cli.conftest import Shell

pytestmark = pytest.mark.slow


def test_the_line_that_the_error_prints_makes_the_tables(shell: Shell, samekey_mariadb):
    """What would be done, what is done, and that it was done."""
    url = samekey_mariadb.create_database()
    missing = shell("ls", "--store", url)
    assert f"samekey migrate --store {url}" in missing.stderr

    planned = shell("migrate", "--store", url, "--dry-run")
    assert (planned.exit_code, "CREATE TABLE IF NOT EXISTS samekey_records" in planned.stdout) == (1, True)
    assert shell("migrate", "--store", url, "--sql").stdout == planned.stdout
    done = shell("migrate", "--store", url)
    assert (done.exit_code, done.stdout) == (0, "0001 records: done\n")
    again = shell("migrate", "--store", url, "--json")
    assert (again.exit_code, json.loads(again.stdout)["migrations"]) == (0, [])

    with Guard(url) as guard, pytest.raises(TimeoutError):
        guard.run("pay", timing_out, key="inv-7", payload={})
    assert "in_doubt\tpay\tinv-7" in shell("ls", "--store", url).stdout
    assert shell("resolve", "pay", "inv-7", "--not-done", "--why", "looked", "--yes", "--store", url).exit_code == 0
    assert "released" in shell("show", "pay", "inv-7", "--store", url).stdout
    assert shell("sweep", "--store", url).exit_code == 0


def timing_out() -> None:
    raise TimeoutError


def test_what_cannot_be_migrated_is_reported(shell: Shell, samekey_mariadb):
    url = samekey_mariadb.create_database()

    assert shell("migrate", "--store", url + "_not_there").exit_code == 3
    assert shell("migrate", "--store", "mysql://samekey@127.0.0.1:1/shop").exit_code == 3
    assert shell("migrate", "--store", url, "--partitions", "4").exit_code == 2
