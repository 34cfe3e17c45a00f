"""Behind PgBouncer in transaction mode: the whole contract is kept, and what is switched off is really off.

Two server connections serve every client, so whatever a statement left behind in its session, a stranger would find.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from samekey import Guard
from samekey.core.commands import Wait
from samekey.core.states import State
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.servers import postgres
from samekey.testing.stores import AsyncStoreSuite, StoreSuite
from samekey.testing.stores.scene import A, Scene, settling
from tests.servers.postgres.helpers import until
from tests.servers.postgres.pgbouncer import pgbouncer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def addresses():
    """One database, migrated through PgBouncer too: the address behind it, and the straight one."""
    with postgres() as server, pgbouncer(server) as bouncer:
        straight = server.create_database()
        behind = bouncer.url(straight) + "?pgbouncer=1"
        assert len(migrate(behind)) >= 1
        yield behind, straight


@pytest.fixture
def behind(addresses):
    return addresses[0]


@pytest.fixture
def straight(addresses):
    return addresses[1]


@pytest.fixture
def store(behind):
    with contextlib.closing(PostgresStore(behind)) as one:
        yield one


@pytest.fixture
def scene():
    return Scene(0.02)


@pytest.mark.variant
class TestBehindPgbouncer(StoreSuite):
    @pytest.fixture(autouse=True)
    def _here(self, behind: str):
        self.url = behind

    def make_store(self):
        return PostgresStore(self.url)

    def address(self):
        return ("samekey.stores.postgres:PostgresStore", self.url)


if os.environ.get("SAMEKEY_BUDGET") == "full":

    class TestAsyncBehindPgbouncer(AsyncStoreSuite):
        @pytest.fixture(autouse=True)
        def _here(self, behind: str):
            self.url = behind

        async def make_store(self):
            return AsyncPostgresStore(self.url)

        def address(self):
            return ("samekey.stores.postgres:AsyncPostgresStore", self.url)


# -- what is off ---------------------------------------------------------------------------------------


def test_nothing_is_prepared(store, straight, scene):
    """A prepared statement would belong to a session that the next statement does not get."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.carry_out(scene.opening(str(number))), range(40)))

    counted = ("SELECT count(*) FROM pg_prepared_statements", ())
    assert [store._connections().claims.ask(counted) for _ in range(4)] == [[(0,)]] * 4


def test_nothing_is_set_in_a_session(store, straight, behind, scene):
    """Not by claims, not by settles, not by a migration: the next client finds the server's own settings."""
    store.carry_out(settling(store.carry_out(scene.opening()), State.COMPLETED))
    migrate(behind)
    names = "'synchronous_commit', 'statement_timeout', 'lock_timeout', 'enable_seqscan'"
    changed = f"SELECT name, setting FROM pg_settings WHERE name IN ({names}) AND source = 'session'"

    assert [store._connections().claims.ask((changed, ())) for _ in range(4)] == [[]] * 4


@pytest.mark.parametrize(
    ("durability", "claims", "settles"),
    [("durable", "on", "on"), ("claim-durable", "on", "off"), ("fast", "off", "off")],
)
def test_durability_travels_with_each_statement(behind, straight, scene, durability, claims, settles):
    """Whatever the database says: a trigger writes down how each transaction will commit."""
    with psycopg.connect(straight, autocommit=True) as link:
        link.execute("CREATE TABLE IF NOT EXISTS commits (kind text, how text)")
        link.execute("TRUNCATE commits")
        link.execute(
            """CREATE OR REPLACE FUNCTION note_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO commits VALUES (TG_OP, current_setting('synchronous_commit')); RETURN NULL; END $$"""
        )
        link.execute(
            """CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT OR UPDATE ON samekey_records
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_commit()"""
        )
        try:
            with contextlib.closing(PostgresStore(f"{behind}&durability={durability}")) as store:
                held = store.carry_out(scene.opening(durability))
                store.carry_out(settling(held, State.COMPLETED))
            found = link.execute("SELECT kind, how FROM commits").fetchall()
        finally:
            link.execute("DROP TRIGGER note_commit ON samekey_records")

    assert found == [("INSERT", claims), ("UPDATE", settles)]


def test_nobody_listens_and_waiters_look_again(store, straight, scene):
    """No wake-up comes from another process; the slow re-read finds the answer all the same."""
    held = store.carry_out(scene.opening())
    with ThreadPoolExecutor(1) as pool, contextlib.closing(PostgresStore(straight)) as other:
        waiting = pool.submit(store.wait, Wait(held), 20.0)
        until(lambda: len(store._connections().bells))
        other.carry_out(settling(held, State.COMPLETED, result=b"done"))
        found = waiting.result(20)

    assert found is not None
    assert found.result == b"done"
    assert not [one for one in threading.enumerate() if one.name == "samekey-listener"]
    with psycopg.connect(straight) as link:
        assert link.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchone() == (0,)
    assert any("PgBouncer" in one for one in store.health().warnings)


def test_a_client_of_pgbouncer_that_is_killed_leaves_nothing_open(store, behind, straight, scene):
    """Its statements were transactions of their own: the next client of the same server connection claims."""
    with contextlib.closing(PostgresStore(behind)) as other:
        other.carry_out(scene.opening("theirs"))
        connection = other._connections().claims._connection
        assert connection is not None
        connection.pgconn.finish()  # as kill -9 would
        assert store.carry_out(scene.opening("ours")).attempt == A


def test_a_guard_runs_once_and_replays(behind):
    ran = iter(range(10))
    with Guard(behind) as one, Guard(behind) as other:
        answers = [guard.run("charge", lambda: next(ran), key="o-1", payload={}).result for guard in (one, other)]

    assert (answers, next(ran)) == ([0, 0], 1)
