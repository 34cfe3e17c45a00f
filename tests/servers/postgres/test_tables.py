"""Tables that are missing, foreign, newer, restored or damaged."""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from samekey import Guard, Policy
from samekey.core.commands import Read, Redact
from samekey.core.errors import Misconfigured, RecordUnreadable, StoreUnavailable
from samekey.core.ports import Query
from samekey.core.states import State
from samekey.drivers.postgres.migrate import migrate, migrations
from samekey.ops import Ops
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.stores.scene import A, settling
from tests.servers.postgres.helpers import sql

pytestmark = pytest.mark.slow


def test_missing_tables_are_told_with_the_command_that_makes_them(server, scene):
    """The store never makes tables by itself."""
    url = server.create_database()
    store = PostgresStore(url)
    with pytest.raises(Misconfigured, match=re.escape(f"samekey migrate --store {url}")):
        store.carry_out(scene.opening())
    store.close()

    store = PostgresStore(url)
    migrate(url)
    assert store.carry_out(scene.opening()).attempt == A
    sql(url, "DROP FUNCTION samekey_settle")
    with pytest.raises(Misconfigured, match="samekey migrate"):
        store.carry_out(settling(store.carry_out(scene.opening()), State.COMPLETED))
    store.close()


FOREIGN = {
    "other columns": "DROP TABLE samekey_records CASCADE; CREATE TABLE samekey_records (id int, payload text)",
    "other types": "ALTER TABLE samekey_records ALTER COLUMN token TYPE text",
    "other order": "ALTER TABLE samekey_records RENAME state TO x; ALTER TABLE samekey_records RENAME key TO state",
    "other meta": "ALTER TABLE samekey_meta RENAME value TO worth",
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=list(FOREIGN))
def test_a_foreign_table_is_no_outage(url, scene, change):
    """A guard that runs while the store is down would run without protection for ever: it is refused at the start."""
    sql(url, change)
    guard = Guard(PostgresStore(url), policy=Policy(store_down="run"))

    with pytest.raises(Misconfigured, match="that samekey did not make"):
        guard.run("charge", lambda: "unguarded", key="k", payload={})
    with pytest.raises(Misconfigured, match="that samekey did not make"):
        guard.store.health()
    guard.close()


def test_a_table_that_is_changed_under_a_connection_is_no_outage_either(store, url, scene):
    """The server refuses the statement: trying again does not help, and neither does running unguarded."""
    store.carry_out(scene.opening("connected"))
    sql(url, "ALTER TABLE samekey_records ADD COLUMN owner text NOT NULL DEFAULT 'x'")
    sql(url, "ALTER TABLE samekey_records ALTER COLUMN owner DROP DEFAULT")

    with pytest.raises(Misconfigured, match="not as `samekey migrate` made them"):
        store.carry_out(scene.opening())


def test_migrating_next_to_a_foreign_table_names_it(server):
    url = server.create_database()
    sql(url, "CREATE TABLE samekey_records (id int)")

    with pytest.raises(Misconfigured, match="has a table samekey_records that samekey did not make"):
        migrate(url)
    assert sql(url, "SELECT to_regclass('samekey_meta')::text") is None


async def test_the_self_check_says_who_can_fix_it(server):
    """health() connects and checks: missing tables are a mistake of ours, a server that is away is an outage."""
    url = server.create_database()
    with contextlib.closing(PostgresStore(url)) as store, pytest.raises(Misconfigured, match="samekey migrate"):
        store.health()
    tasks = AsyncPostgresStore(url)
    with pytest.raises(Misconfigured, match="samekey migrate"):
        await tasks.health()
    await tasks.close()
    away = PostgresStore("postgresql://samekey@127.0.0.1:1/shop")
    with contextlib.closing(away), pytest.raises(StoreUnavailable):
        away.health()


def test_a_missing_table_without_which_claims_work_is_a_warning_of_health(store, url):
    health = store.health()
    assert ("audit table", "present") in health.facts
    assert not [one for one in health.warnings if "is missing" in one]
    sql(url, "DROP TABLE samekey_audit, samekey_counts, samekey_findings, samekey_parked")
    with contextlib.closing(PostgresStore(url)) as later:
        health = later.health()

    assert ("audit table", "missing") in health.facts
    missing = [one.split()[2] for one in health.warnings if "is missing" in one]
    assert missing == ["samekey_audit", "samekey_counts", "samekey_findings", "samekey_parked"]


def _drop_all(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "DROP TABLE samekey_records, samekey_meta, samekey_audit, samekey_counts, samekey_findings, "
            "samekey_parked CASCADE"
        )
        admin.execute("DROP SEQUENCE samekey_tokens")
        functions = admin.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE proname LIKE 'samekey%'")
        for (function,) in functions.fetchall():
            admin.execute(f"DROP FUNCTION {function}")


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_tables_that_were_made_anew_are_noticed(server, scene, colour):
    """Under a process that runs: it goes on with the new ones, and says that memory was lost."""
    url = server.create_database()
    migrate(url)
    store: Any = PostgresStore(url) if colour == "sync" else AsyncPostgresStore(url)

    async def said(answer: Any) -> Any:
        return await answer if colour == "async" else answer

    for number in range(3):
        before = await said(store.carry_out(scene.opening(str(number))))
    known = (await said(store.health())).incarnation
    _drop_all(url)
    migrate(url)
    after = await said(store.carry_out(scene.opening("2")))
    health = await said(store.health())

    assert (before.after_loss, after.after_loss) == (False, True)
    assert health.incarnation != known
    assert any("lost its memory" in warning for warning in health.warnings)
    await said(store.close())
    with contextlib.closing(PostgresStore(url)) as later:  # whoever was not there before is told too
        assert later.carry_out(scene.opening("3")).after_loss


def test_tables_that_were_restored_from_a_dump_are_noticed(server, scene):
    """They have the epoch that they had; what was claimed after the dump is gone."""
    url = server.create_database()
    migrate(url)
    with contextlib.closing(PostgresStore(url)) as store:
        store.carry_out(scene.opening("lost"))
        with psycopg.connect(url, autocommit=True) as admin:
            dump = admin.execute("SELECT name, value FROM samekey_meta").fetchall()
        _drop_all(url)
        migrate(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("TRUNCATE samekey_meta")
            admin.cursor().executemany("INSERT INTO samekey_meta VALUES (%s, %s)", dump)
        assert store.carry_out(scene.opening("lost")).after_loss

    with contextlib.closing(PostgresStore(url)) as later:
        assert later.carry_out(scene.opening("later")).after_loss


def test_migrating_is_done_once_by_many(server):
    """Several processes start at once: one migrates, the others find it done; a dry run changes nothing."""
    url = server.create_database()
    assert [one.number for one in migrate(url, dry_run=True)] == [1]
    assert sql(url, "SELECT to_regclass('samekey_records')::text") is None

    with ThreadPoolExecutor(4) as pool:
        done = [[one.number for one in made] for made in pool.map(lambda _: migrate(url), range(4))]

    assert sorted(done) == [[], [], [], [1]]
    assert "CREATE TABLE samekey_records" in migrations()[0].sql


def test_a_newer_schema_is_refused(store, url, scene):
    """Tables that this version no longer understands; one that only has more in it is fine."""
    sql(url, "UPDATE samekey_meta SET value = '2' WHERE name = 'schema'")
    assert store.carry_out(scene.opening()).attempt == A

    sql(url, "UPDATE samekey_meta SET value = '2' WHERE name = 'oldest_client'")
    with contextlib.closing(PostgresStore(url)) as later, pytest.raises(Misconfigured, match="upgrade samekey"):
        later.carry_out(scene.opening())
    with pytest.raises(Misconfigured, match="upgrade samekey"):
        migrate(url)


def test_two_keys_with_one_digest_are_told_apart(store, scene):
    """128 bits will not collide; a damaged row might: it is never another key's answer."""
    held = store.carry_out(scene.opening("one"))
    stranger = replace(scene.opening("two"), key=scene.key("two")._replace(digest=held.key.digest))

    with pytest.raises(RecordUnreadable, match="another key"):
        store.carry_out(stranger)


def test_a_damaged_record_is_told(store, url, scene):
    held = store.carry_out(scene.opening())
    sql(url, "UPDATE samekey_records SET state = 'elsewhere'")

    with pytest.raises(RecordUnreadable):
        store.carry_out(Read(held.key))


def test_a_damaged_record_does_not_hide_the_others_from_an_operator(store, url, scene):
    keys = [store.carry_out(scene.opening(name)).key for name in ("one", "two", "three")]
    sql(url, f"UPDATE samekey_records SET state = 'elsewhere' WHERE key = '{keys[1].text}'")
    page = Ops(store).list_records(Query())

    assert [record.key for record in page.records] == [keys[2], keys[0]]
    assert [str(keys[1]) in str(one) for one in page.unreadable] == [True]


def test_the_plain_story_is_not_written_and_is_read_all_the_same(store, url, scene):
    """Claimed and settled by one attempt: its moves follow from the other columns. Any other move writes them all."""
    held = store.carry_out(scene.opening("one"))
    done = store.carry_out(settling(held, State.COMPLETED))
    assert sql(url, "SELECT count(moves) FROM samekey_records") == 0
    found = store.carry_out(Read(held.key))
    assert found.moves == done.moves
    assert [(move.before, move.after) for move in found.moves] == [("", "started"), ("started", "completed")]

    redacted = store.carry_out(Redact(found, "ann", "a request"))
    assert redacted.moves[:2] == done.moves
    assert redacted.moves[2].who == "ann"
