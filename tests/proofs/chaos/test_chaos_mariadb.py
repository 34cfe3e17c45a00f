"""The same on MariaDB: kills and pauses, and a server that is killed too and flushes at every commit."""

from __future__ import annotations

import os

import pytest

from samekey.drivers.mysql.migrate import migrate
from samekey.testing.servers import mariadb
from tests.proofs.chaos.judging import FULL, judged, seconds
from tests.proofs.chaos.trial import Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def mortal():
    if os.environ.get("SAMEKEY_TEST_MYSQL"):
        pytest.skip("SAMEKEY_TEST_MYSQL names a server that is not ours to kill")
    with mariadb(innodb_flush_log_at_trx_commit="1") as running:
        yield running


@pytest.mark.parametrize("effects", ["asks", "opaque"] if FULL else ["asks"])
def test_mariadb_under_kills_pauses_and_restarts(mortal, effects):
    url = mortal.create_database()
    migrate(url)
    trial = Trial(url, effects, restart=mortal.restart, seconds=seconds(4))
    verdict = judged(f"MariaDB under kills, pauses and restarts, {effects}", trial.run())

    assert verdict.done["restarts"] > 0
