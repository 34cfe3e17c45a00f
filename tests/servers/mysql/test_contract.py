"""The MySQL store keeps the contract, in both colours, on MariaDB."""

from __future__ import annotations

import pytest

from samekey.drivers.mysql.migrate import migrate
from samekey.stores.mysql import AsyncMysqlStore, MysqlStore
from samekey.testing.stores import AsyncStoreSuite, StoreSuite


@pytest.fixture(scope="module")
def address(samekey_mariadb):
    """One database for both suites: no scenario needs an empty one."""
    url = samekey_mariadb.create_database()
    migrate(url)
    return url


class TestMysqlStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _here(self, address: str):
        self.url = address

    def make_store(self):
        return MysqlStore(self.url)

    def address(self):
        return ("samekey.stores.mysql:MysqlStore", self.url)


class TestAsyncMysqlStore(AsyncStoreSuite):
    @pytest.fixture(autouse=True)
    def _here(self, address: str):
        self.url = address

    async def make_store(self):
        return AsyncMysqlStore(self.url)

    def address(self):
        return ("samekey.stores.mysql:AsyncMysqlStore", self.url)
