"""A schema per tenant, with samekey tables in each: which of them a connection sees changes between two statements."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from samekey import Atomic, Guard, Misconfigured, NotDone
from samekey.drivers.postgres.migrate import migrate
from tests.servers.postgres.atomic.conftest import Shop
from tests.servers.postgres.atomic.libraries import Conn
from tests.servers.postgres.atomic.test_libraries import inserting

AWAY = "SET LOCAL search_path = tenant_b, public"


@pytest.fixture(scope="session")
def tenants(databases: dict[str, str]) -> None:
    url = databases["read committed"]
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA tenant_b")
    migrate(f"{url}?options={quote('-csearch_path=tenant_b')}")


pytestmark = pytest.mark.usefixtures("tenants")


def records_elsewhere(shop: Shop) -> int:
    with psycopg.connect(shop.url) as connection:
        row = connection.execute("SELECT count(*) FROM tenant_b.samekey_records").fetchone()
    return 0 if row is None else int(row[0])


async def test_a_connection_that_moved_on_to_other_tables_is_refused(shop: Shop, conn: Conn):
    """It was the store's own at its first call; the same key would be claimed where nobody else looks."""
    await conn.begin()
    await shop.on(conn, inserting(shop))
    await conn.commit()

    await conn.begin()
    await conn.sql(AWAY)
    with pytest.raises(Misconfigured, match="cannot be atomic"):
        await shop.on(conn, inserting(shop, "again"))
    await conn.insert(shop.order("after"))  # the transaction goes on
    await conn.commit()
    assert (shop.orders(), records_elsewhere(shop)) == (["after", "o-1"], 0)

    await conn.begin()  # and it is the store's own again, where it sees its tables
    answer = await shop.on(conn, inserting(shop, "never"))
    await conn.commit()
    assert answer.replayed


def test_an_earlier_name_is_not_looked_for_in_other_tables(databases: dict[str, str]):
    """Another tenant's answer would be replayed."""
    url = databases["read committed"]
    with Guard(url) as guard, psycopg.connect(url) as connection:

        @guard.once(name="renamed", aliases=["before"], key="key", boundary=Atomic("session"))
        def order(session: Any, key: str) -> str:
            return key

        assert order(connection, "o-1") == "o-1"
        connection.execute(AWAY)
        with pytest.raises(Misconfigured, match="other samekey tables"):
            order(connection, "o-1")


@pytest.mark.parametrize("begun_by", ["guard", "caller"])
async def test_an_effect_that_goes_to_other_tables_leaves_nothing(shop: Shop, conn: Conn, begun_by: str):
    """Its record cannot be settled from there, and an effect without its record must not be committed."""

    async def effect(conn: Conn) -> str:
        await conn.insert(shop.order("o-1"))
        await conn.sql(AWAY)
        return "done"

    if begun_by == "caller":
        await conn.begin()
        await conn.insert(shop.order("before"))
    with pytest.raises(Misconfigured, match="not where it was claimed"):
        await (shop.on if begun_by == "caller" else shop.once)(conn, effect)
    if begun_by == "caller":
        await conn.commit()

    assert shop.orders() == (["before"] if begun_by == "caller" else [])
    assert (shop.state(), records_elsewhere(shop)) == ("none", 0)


async def test_an_effect_that_comes_back_with_a_word_is_kept(shop: Shop, conn: Conn):
    """The savepoint takes the search_path back as well."""

    async def effect(conn: Conn) -> Any:
        await conn.sql(AWAY)
        raise NotDone("funds")

    await conn.begin()
    with pytest.raises(NotDone):
        await shop.on(conn, effect)
    await conn.commit()

    assert shop.state() == "released"
