"""One server and one database for the tests of PostgreSQL, made anew for each test."""

from __future__ import annotations

import contextlib
import os

import pytest

from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import PostgresStore
from samekey.testing.servers import postgres
from samekey.testing.stores.scene import Scene
from tests.servers.postgres.helpers import MAJOR, sql
from tests.stores.wire import Wire


@pytest.fixture(scope="session")
def server():
    # Without autovacuum all transaction ids are those of the test.
    with postgres(MAJOR, autovacuum="off") as running:
        yield running


@pytest.fixture
def own_server():
    """A server that a test may stop."""
    if os.environ.get("SAMEKEY_TEST_PG"):
        pytest.skip("SAMEKEY_TEST_PG names a server that is not ours to stop")
    with postgres(MAJOR) as running:
        yield running


@pytest.fixture(scope="session")
def database(server):
    return server.create_database()


@pytest.fixture
def url(database):
    """One database, made anew for each test: a new one each time would be a hundred times the files."""
    sql(database, f"ALTER DATABASE {database.rpartition('/')[2]} RESET ALL")
    sql(database, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    migrate(database)
    return database


@pytest.fixture
def store(url):
    with contextlib.closing(PostgresStore(url)) as one:
        yield one


@pytest.fixture
def scene():
    return Scene(0.02)


@pytest.fixture
def wire(url):
    """A proxy that can swallow an answer: the server carries the statement out, and its reply is lost."""
    with contextlib.closing(Wire(url)) as one:
        yield one
