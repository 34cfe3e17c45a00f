"""Addresses, durability, health, and what a guard makes of them."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from samekey import Guard
from samekey.core.commands import Read, Wait
from samekey.core.errors import Misconfigured, StoreBusy
from samekey.core.states import Role, State
from samekey.drivers.postgres.address import parse_url
from samekey.drivers.postgres.connect import CONNECT_SECONDS
from samekey.stores.postgres import PostgresStore, _batches
from samekey.testing.stores.scene import A, settling
from tests.servers.postgres.helpers import sql, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("durability", "claims", "settles"),
    [("durable", "on", "on"), ("claim-durable", "on", "off"), ("fast", "off", "off")],
)
def test_durability_is_said_for_claims_and_settles(url, durability, claims, settles):
    """Whatever the role or the database is set to."""
    sql(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET synchronous_commit = 'local'")
    with contextlib.closing(PostgresStore(f"{url}?durability={durability}")) as store:
        links = store._connections()
        show = ("SHOW synchronous_commit", ())

        assert [links.claims.ask(show), links.settles.ask(show)] == [[(claims,)], [(settles,)]]
        assert any("fast" in one for one in store.health().warnings) is (durability == "fast")


def test_health_names_what_weakens_the_promise(store):
    health = store.health()

    assert "fsync is off" in health.guarantee
    assert any("fsync" in one for one in health.warnings)
    assert dict(health.facts)["server"].startswith("PostgreSQL 1")


def test_addresses():
    """Our options are ours, the rest is libpq's, and a password is nobody's to see."""
    address = parse_url(
        "postgresql://app:s3cret@db1,db2:5433/shop?durability=claim-durable&sslmode=require&password=x&pgbouncer=1"
    )

    assert (address.durability, address.pgbouncer) == ("claim-durable", True)
    assert "s3cret" in address.url
    assert "durability" not in address.url
    assert "s3cret" not in address.name
    assert "password" not in address.name
    assert address.name.startswith("postgresql://app@db1,db2:5433/shop?durability=claim-durable")
    for wrong in (
        "mysql://x/y",
        "postgresql://db/x?durability=maybe",
        "postgresql://db/x?nonsense=1",
        "postgresql://db/x?pgbouncer=yes",
        "postgresql://db/x?target_session_attrs=any",
        "postgresql://[",
    ):
        with pytest.raises(Misconfigured):
            PostgresStore(wrong)


def test_whatever_encoding_an_address_names_texts_are_kept_as_they_are(url, scene):
    """A process that spoke another one would write keys that no other process finds."""
    command = scene.opening("ключ 😀")
    with contextlib.closing(PostgresStore(f"{url}?client_encoding=latin1")) as odd:
        odd.carry_out(command)
    with contextlib.closing(PostgresStore(url)) as store:
        found = store.carry_out(Read(command.key))

    assert found is not None
    assert sql(url, "SELECT key FROM samekey_records") == command.key.text


def test_a_search_path_in_the_address_is_refused_with_pgbouncer():
    """PgBouncer refuses or ignores it: one sentence that says what to do instead."""
    address = "postgresql://app@db/shop?options=-csearch_path%3Dpay"

    assert "search_path" in parse_url(address).url
    with pytest.raises(Misconfigured, match=r"does not pass options=-csearch_path=pay on .*ALTER ROLE"):
        parse_url(f"{address}&pgbouncer=1")


@pytest.mark.parametrize("address", ["postgresql:///shop", "postgresql://", "postgresql:///shop?host=/run/postgresql"])
def test_an_address_without_a_host_is_that_of_the_local_server(address):
    assert parse_url(address).name == address


def test_nothing_depends_on_the_session_behind_pgbouncer(url, scene):
    """Nothing prepared, nothing set, nobody listens - and everything works."""
    with contextlib.closing(PostgresStore(f"{url}?pgbouncer=1")) as store:
        held = store.carry_out(scene.opening())
        many = store.batch([scene.opening(str(number)) for number in range(5)])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, Wait(held), 10.0)
            until(lambda: len(store._connections().bells))
            with contextlib.closing(PostgresStore(url)) as other:
                other.carry_out(settling(held, State.COMPLETED, result=b"done"))
            found = waiting.result(5)
        claims = store._connections().claims

        assert found is not None
        assert found.result == b"done"
        assert [one.attempt for one in many if not isinstance(one, Exception) and one is not None] == [A] * 5
        assert claims.ask(("SELECT count(*) FROM pg_prepared_statements", ())) == [(0,)]
        assert claims.ask(("SHOW statement_timeout", ())) == [("0",)]
        assert any("PgBouncer" in one for one in store.health().warnings)


def test_a_guard_runs_once_and_replays(url):
    ran = []
    with Guard(PostgresStore(url)) as guard:

        @guard.once(name="charge", key="order")
        def charge(order: str, amount: int) -> int:
            ran.append(order)
            return amount

        assert [charge("o-1", 200), charge("o-1", 200)] == [200, 200]
    assert ran == ["o-1"]


def test_a_rival_transaction_that_never_ends_is_told(store, url, scene):
    """A row that somebody's open transaction holds: refused after the lock timeout, not waited for for ever."""
    held = store.carry_out(scene.opening())
    with psycopg.connect(url) as rival:
        rival.execute("SELECT 1 FROM samekey_records FOR UPDATE")
        with pytest.raises(StoreBusy, match="another transaction holds the record"):
            store.carry_out(settling(held, State.IN_DOUBT))
        assert store.carry_out(scene.opening("other")).attempt == A

    assert store.carry_out(settling(held, State.IN_DOUBT, role=Role.HOLDER)) is not None
    assert _batches.REASK_SECONDS > CONNECT_SECONDS - 1
