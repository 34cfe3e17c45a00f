"""A database for each test, and a server that tests may stop."""

from __future__ import annotations

import contextlib

import pytest

from samekey.drivers.mysql.migrate import migrate
from samekey.testing.servers import PrivateMariadb, mariadb
from samekey.testing.stores.scene import Scene
from tests.servers.mysql.helpers import opened
from tests.stores.wire import Wire


@pytest.fixture(scope="session")
def mortal(samekey_mariadb):
    """A server that tests may stop."""
    if not isinstance(samekey_mariadb, PrivateMariadb):
        pytest.skip("SAMEKEY_TEST_MYSQL names a server that is not ours to stop")
    with mariadb(innodb_flush_log_at_trx_commit="1") as running:
        yield running


@pytest.fixture
def url(samekey_mariadb):
    made = samekey_mariadb.create_database()
    migrate(made)
    return made


@pytest.fixture
def store(url):
    with opened(url) as one:
        yield one


@pytest.fixture
def wire(url):
    with contextlib.closing(Wire(url)) as one:
        yield one


@pytest.fixture
def scene():
    return Scene(0.02)
