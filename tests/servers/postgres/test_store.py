"""The PostgreSQL store keeps the contract, in both colours, on two majors, in one piece and in partitions."""

from __future__ import annotations

import os

import pytest

from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.servers import postgres
from samekey.testing.stores import AsyncStoreSuite, StoreSuite

# Majors and partitions; the whole suite in partitions with the full budget, tests of their own in test_postgres_sweep.
VARIANTS = {"postgres-15": (15, 0)}
if os.environ.get("SAMEKEY_BUDGET") == "full":
    VARIANTS |= {"postgres-15-partitions": (15, 16), "postgres-18-partitions": (18, 16)}
PLACES = [
    pytest.param((18, 0), id="postgres-18"),
    *(pytest.param(place, id=name, marks=pytest.mark.variant) for name, place in VARIANTS.items()),
]


@pytest.fixture(scope="module", params=PLACES)
def address(request: pytest.FixtureRequest):
    """One database for both suites: no scenario needs an empty one."""
    major, partitions = request.param
    with postgres(major) as server:
        url = server.create_database()
        migrate(url, partitions=partitions)
        yield url


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
