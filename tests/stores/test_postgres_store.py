"""The PostgreSQL store keeps the contract, in both colours, on two majors."""

from __future__ import annotations

import pytest

from samekey.drivers.psycopg import migrate
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.servers import NoServer, postgres
from samekey.testing.store_suite import AsyncStoreSuite, StoreSuite


@pytest.fixture(scope="module", params=[15, 18], ids=lambda major: f"postgres-{major}")
def address(request: pytest.FixtureRequest):
    """One database for both suites: no scenario needs an empty one."""
    try:
        with postgres(request.param) as server:
            url = server.create_database()
            migrate(url)
            yield url
    except NoServer as missing:
        pytest.skip(str(missing))


class TestPostgresStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _here(self, address: str):
        self.url = address

    def make_store(self):
        return PostgresStore(self.url)

    def address(self):
        return ("samekey.stores.postgres:PostgresStore", self.url)


class TestAsyncPostgresStore(AsyncStoreSuite):
    @pytest.fixture(autouse=True)
    def _here(self, address: str):
        self.url = address

    async def make_store(self):
        return AsyncPostgresStore(self.url)

    def address(self):
        return ("samekey.stores.postgres:AsyncPostgresStore", self.url)
