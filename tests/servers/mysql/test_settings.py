"""What the store asks of its server, its address and its tables."""

from __future__ import annotations

import contextlib
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from samekey import Guard, Policy, ResultNotKept
from samekey.core.commands import Free
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.ports import Query
from samekey.core.states import State
from samekey.drivers.mysql.address import parse_url
from samekey.drivers.mysql.migrate import migrate, migrations, statements
from samekey.guard.store_urls import open_store
from samekey.testing.stores.scene import A, B, settling
from tests.servers.mysql.helpers import opened, plain, sql

pytestmark = pytest.mark.slow

# -- settings ------------------------------------------------------------------------------------------


def test_a_read_only_server_is_refused(url, scene):
    """A replica does not know the last claims; one that is demoted under us is noticed at the next write."""
    with opened(plain(url)) as store:
        done = store.carry_out(settling(store.carry_out(scene.opening("before")), State.COMPLETED, result=b"done"))
        sql(url, "SET GLOBAL read_only = 1")
        try:
            with opened(url) as other, pytest.raises(StoreUnavailable, match="read-only"):
                other.carry_out(scene.opening("refused"))
            # Settled for good: as true as ever.
            assert store.carry_out(scene.opening("before", by=B)).result == done.result
            with pytest.raises(StoreUnavailable, match="read-only"):
                store.carry_out(scene.opening("refused"))
        finally:
            sql(url, "SET GLOBAL read_only = 0")
        assert store.carry_out(scene.opening("refused")).attempt == A


def test_a_binary_log_is_looked_at(mortal, scene):
    """One that cannot log READ COMMITTED is refused; one that a power loss may leave behind is told."""
    url = mortal.create_database()
    migrate(url)
    mortal.restart("fast", log_bin="binlog", binlog_format="STATEMENT")
    with opened(url) as store, pytest.raises(Misconfigured, match="ROW or MIXED"):
        store.carry_out(scene.opening())
    mortal.restart("fast", binlog_format="ROW", sync_binlog="0", innodb_doublewrite="0")
    with opened(url) as store:
        assert store.carry_out(scene.opening()).attempt == A
        told = " ".join(store.health().warnings)
        assert "sync_binlog is 0" in told
        assert "innodb_doublewrite is off" in told
    mortal.restart("fast", binlog_format="MIXED", sync_binlog="1", innodb_doublewrite="1")
    with opened(url) as store:
        store.carry_out(settling(store.carry_out(scene.opening(by=B)), State.COMPLETED))
        assert store.health().warnings == ()


@pytest.mark.parametrize("setting", ["completion_type = 1", "completion_type = 2", "sql_select_limit = 1"])
def test_what_a_server_is_set_to_for_everybody_does_not_hold_for_the_store(mortal, scene, setting):
    """Commits that begin the next transaction would leave a claim in one that nobody ends."""
    url = mortal.create_database()
    migrate(url)
    name = setting.partition(" ")[0]
    before = sql(url, f"SELECT @@GLOBAL.{name}")
    sql(url, f"SET GLOBAL {setting}")
    try:
        with opened(url) as store:
            first, second = store.batch([scene.opening("a"), scene.opening("b")])
            assert (first.attempt, second.attempt) == (A, A)
            store.sweep(10)
            store.carry_out(scene.opening("c"))
            with opened(url) as other:
                assert {one.key.text for one in other.list(Query())} == {"a", "b", "c"}
    finally:
        sql(url, f"SET GLOBAL {name} = {before if isinstance(before, int) else repr(before)}")


@pytest.mark.parametrize("said", ["SET autocommit = 0", "START TRANSACTION"])
def test_what_a_server_says_to_everybody_who_connects_holds_no_claim_back(mortal, scene, said):
    """An init_connect that leaves a transaction open: the claim is committed all the same, and outlives its process."""
    url = mortal.create_database()
    sql(url, "CREATE USER IF NOT EXISTS owner@'%' IDENTIFIED BY ''")
    sql(url, "GRANT ALL ON `samekey%`.* TO owner@'%'")
    sql(url, f"SET GLOBAL init_connect = '{said}'")
    try:
        ordinary = url.replace("samekey@", "owner@")  # who may do everything is not told
        migrate(ordinary)
        with opened(ordinary) as store:
            store.carry_out(scene.opening())
            with opened(url) as other:
                assert other.carry_out(scene.opening(by=B)).attempt == A
    finally:
        sql(url, "SET GLOBAL init_connect = ''")


def test_the_health_says_which_guarantee_is_reached(store, mortal):
    weak = store.health()
    assert "not all power losses" in weak.guarantee
    assert any("innodb_flush_log_at_trx_commit is 2" in one for one in weak.warnings)
    made = mortal.create_database()
    migrate(made)
    with opened(made) as strong:
        assert strong.health().guarantee == (
            "claims survive crashes of clients and of the server; "
            "a failover to an asynchronous replica may lose the last ones"
        )
        assert dict(strong.health().facts)["server"].startswith("MariaDB 1")


def test_a_table_that_is_not_innodb_is_refused(url, scene):
    sql(url, "ALTER TABLE samekey_audit ENGINE = MyISAM")

    with opened(url) as store, pytest.raises(Misconfigured, match="make it InnoDB"):
        store.carry_out(scene.opening())


@pytest.mark.parametrize("change", ["DROP COLUMN story", "ADD COLUMN theirs INT NOT NULL"])
def test_a_foreign_table_is_refused_and_never_taken_for_an_outage(url, change):
    """With store_down="run" an outage runs the effect unguarded: a table that is not ours would do so for ever."""
    sql(url, f"ALTER TABLE samekey_records {change}")
    ran: list[int] = []

    with Guard(url, policy=Policy(store_down="run")) as guard, pytest.raises(Misconfigured, match="is not ours"):
        guard.run("charge", lambda: ran.append(1), key="o-1", payload={})
    assert ran == []


def test_a_result_larger_than_a_packet_is_not_kept_and_never_runs_again(url):
    """The server would hang up: it is told before, and the record says completed."""
    before = sql(url, "SELECT @@GLOBAL.max_allowed_packet")
    sql(url, "SET GLOBAL max_allowed_packet = 1048576")
    try:
        with contextlib.closing(Guard(url, policy=Policy(result_max_bytes=4 << 20))) as guard:
            assert any("max_allowed_packet" in one for one in guard.store.health().warnings)
            runs: list[int] = []

            def big() -> str:
                runs.append(1)
                return "x" * 700_000

            answer = guard.run("big", big, key="k", payload={})
            assert (answer.state, len(answer.result)) == (State.COMPLETED, 700_000)

            with pytest.raises(ResultNotKept, match="max_allowed_packet"):
                guard.run("big", big, key="k", payload={})
            assert runs == [1]
            assert guard.run("fits", lambda: "x" * 400_000, key="k", payload={}).recorded
    finally:
        sql(url, f"SET GLOBAL max_allowed_packet = {before}")


def test_addresses():
    address = parse_url("mariadb://app:p%40ss@db.example:3307/shop?ssl_ca=/etc/ca.pem")
    assert address.name == "mariadb://app@db.example:3307/shop?ssl_ca=/etc/ca.pem"
    assert address.arguments["password"] == "p@ss"
    assert address.arguments["ssl_verify_identity"] is True
    assert "p@ss" not in repr(address)
    with pytest.raises(Misconfigured) as told:
        parse_url("mysql://db/shop?password=secret")
    assert "secret" not in str(told.value)
    for wrong in ("mysql://db", "mysql://db/", "mysql://db/a/b", "mysql://db:x/shop", "mysql://db/shop?charset=latin1"):
        with pytest.raises(Misconfigured):
            parse_url(wrong)
    with contextlib.closing(open_store("mysql://app:secret@db/shop", asynchronous=False)) as store:
        assert "secret" not in repr(store)


def test_who_may_not_come_in_is_told(url):
    sql(url, "DROP USER IF EXISTS weak@'%'")
    sql(url, "CREATE USER weak@'%' IDENTIFIED BY 'right'")
    for changed in (url.replace("samekey@", "weak:wrong@"), url.replace("samekey@", "weak:right@"), url + "_not_there"):
        with opened(changed) as store, pytest.raises(Misconfigured) as told:
            store.health()
        assert "wrong" not in str(told.value)
    with opened("mysql://app@127.0.0.1:1/shop") as store, pytest.raises(StoreUnavailable):
        store.health()


def test_a_user_needs_no_more_than_rows(url, scene):
    """SELECT, INSERT, UPDATE and DELETE: a store never makes or changes a table."""
    with opened(plain(url)) as store:
        done = store.carry_out(settling(store.carry_out(scene.opening()), State.COMPLETED))
        assert store.carry_out(Free(done, "ada", "again")) is None
        assert store.health().warnings


def test_a_socket_and_tls(mortal, scene, tmp_path):
    """Over the server's own socket; and over TLS, where a server that cannot prove itself is refused."""
    url = mortal.create_database()
    migrate(url)
    with opened(f"{url}?unix_socket={mortal.socket}") as store:
        assert store.carry_out(scene.opening("socket")).attempt == A
    for name in ("right", "wrong"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            check=True, capture_output=True, cwd=tmp_path,
        )  # fmt: skip
    for name in ("right.key", "right.pem"):
        target = mortal.folder / name
        target.write_bytes((tmp_path / name).read_bytes())
        target.chmod(0o644)
    mortal.restart("fast", ssl_cert=str(mortal.folder / "right.pem"), ssl_key=str(mortal.folder / "right.key"))

    with opened(f"{url}?ssl_ca={tmp_path / 'right.pem'}") as store:
        assert store.carry_out(scene.opening("tls")).attempt == A
        with store._links().borrowed() as run:
            assert run("SHOW STATUS LIKE 'Ssl_cipher'")[0][0][1]
    with (
        opened(f"{url}?ssl_ca={tmp_path / 'wrong.pem'}") as store,
        pytest.raises(StoreUnavailable, match="certificate"),
    ):
        store.carry_out(scene.opening("wrong"))


# -- migrations ----------------------------------------------------------------------------------------


def test_tables_are_made_by_migrate_and_never_by_a_store(samekey_mariadb, scene):
    url = samekey_mariadb.create_database()
    with opened(url) as store:
        with pytest.raises(Misconfigured, match=r"Make them with: samekey migrate --store mysql://"):
            store.carry_out(scene.opening())
        assert [one.number for one in migrate(url, dry_run=True)] == [1]
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda _: len(migrate(url)), range(4)))
        assert sorted(done) == [0, 0, 0, 1]
        assert store.carry_out(scene.opening()).attempt == A


def test_a_migration_that_was_interrupted_is_carried_out_again(samekey_mariadb, scene):
    url = samekey_mariadb.create_database()
    first, second, *_ = statements(migrations()[0].sql)
    sql(url, first)
    sql(url, second)

    assert len(migrate(url)) == 1
    with opened(url) as store:
        assert store.carry_out(scene.opening()).attempt == A


def test_a_newer_schema_is_refused(url, scene):
    sql(url, "UPDATE samekey_meta SET value = '9' WHERE name IN ('schema', 'oldest_client')")

    with pytest.raises(Misconfigured, match="upgrade samekey"):
        migrate(url)
    with opened(url) as store, pytest.raises(Misconfigured, match="upgrade samekey"):
        store.carry_out(scene.opening())
