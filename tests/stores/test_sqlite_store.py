"""The SQLite store keeps the contract, in both colours, on asyncio and on trio; and what is its own."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from samekey import Guard, Policy
from samekey.core.commands import Free, Read
from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.key import Key
from samekey.core.states import State
from samekey.drivers import sqlite as driver
from samekey.stores.sqlite import AsyncSqliteStore, SqliteStore, _process
from samekey.testing.clock import ManualClock
from samekey.testing.stores import AsyncStoreSuite, StoreSuite
from samekey.testing.stores.scene import A, B, C, Scene, assert_same, settling
from tests.stores.test_memory_store import OnTrio

scene = Scene(0.02)


@pytest.fixture(scope="class")
def shared_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file for a whole suite: no scenario needs an empty one."""
    return str(tmp_path_factory.mktemp("sqlite") / "keys.db")


class TestSqliteStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _here(self, shared_file: str):
        self.path = shared_file

    def make_store(self):
        return SqliteStore(self.path)

    def address(self):
        return ("samekey.stores.sqlite:SqliteStore", self.path)


class TestAsyncSqliteStore(AsyncStoreSuite):
    @pytest.fixture(autouse=True)
    def _here(self, shared_file: str):
        self.path = shared_file

    async def make_store(self):
        return AsyncSqliteStore(self.path)

    def address(self):
        return ("samekey.stores.sqlite:AsyncSqliteStore", self.path)


@pytest.mark.slow
@pytest.mark.variant
class TestAsyncSqliteStoreOnTrio(OnTrio, TestAsyncSqliteStore):
    pass


@pytest.mark.slow
@pytest.mark.variant
class TestAsyncSqliteStoreWithoutFsync(TestAsyncSqliteStore):
    """Its writes go another way: inline, in the loop's own thread."""

    async def make_store(self):
        return AsyncSqliteStore(self.path, synchronous="normal")


@pytest.mark.slow
@pytest.mark.variant
class TestSqliteStoreOnAManualClock(StoreSuite):
    survives_process = False  # another process has another clock

    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path):
        self.path = str(tmp_path / "keys.db")  # a file of its own: this clock starts again with every test
        self.clock = ManualClock(1_700_000_000)

    def make_store(self):
        return SqliteStore(self.path, clock=self.clock)

    def pass_seconds(self, seconds):
        self.clock.advance(seconds)


# -- its own -------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


def test_both_colours_share_the_file(file: Path):
    store, other = SqliteStore(file), AsyncSqliteStore(file)
    held = store.carry_out(scene.opening())

    assert other.sync.carry_out(scene.opening(by=B)).fence == held.fence
    store.close()
    other.sync.close()


def test_the_setting_that_survives_a_power_loss_is_on_and_the_other_one_is_told(file: Path):
    """A power cut cannot be made here; SQLite's own setting against it can be looked at."""
    levels = {"normal": 1, "full": 2}
    for synchronous in ("full", "normal"):
        connection = driver.connect(file, synchronous=synchronous)
        assert connection.execute("PRAGMA synchronous").fetchone() == (levels[synchronous],)
        connection.close()
    full, normal = SqliteStore(file), SqliteStore(file, synchronous="normal")
    told = [one.health() for one in (full, normal)]
    full.close()
    normal.close()

    assert "and power losses" in told[0].guarantee
    assert any("a power loss may forget the last claims" in warning for warning in told[1].warnings)
    assert not any("power" in warning for warning in told[0].warnings)


def test_a_record_of_another_key_is_not_ours(file: Path):
    """Two keys with one digest: foreign data stops at the door."""
    store = SqliteStore(file)
    key = store.carry_out(scene.opening()).key
    impostor = Key(key.operation, key.tenant, "order-2", key.digest)

    with pytest.raises(RecordUnreadable):
        store.carry_out(Read(impostor))
    store.close()


def _replace(file: Path) -> None:
    """Somebody restores a backup, or cleans up: the file at this path is another one."""
    for one in file.parent.iterdir():
        os.unlink(one)


@pytest.fixture
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which file lies there is looked at before every write, however short ago that was done."""
    monkeypatch.setattr(_process, "LOOK_SECONDS", 0.0)


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("looks_each_time")
def test_a_replaced_file_is_noticed_by_the_next_claim(file: Path):
    """The claim is written to the file that is there, and says that memory was lost."""
    store = SqliteStore(file)
    store.carry_out(scene.opening("before"))
    _replace(file)

    held = store.carry_out(scene.opening("after"))

    assert held.attempt == A
    assert held.after_loss
    other = SqliteStore(file)
    assert other.carry_out(Read(held.key)) is not None
    assert other.carry_out(Read(scene.key("before"))) is None
    store.close()
    other.close()


@pytest.mark.timeout(20)
def test_a_busy_process_notices_a_replaced_file_a_moment_later(file: Path, monkeypatch: pytest.MonkeyPatch):
    """What it wrote to the old one in that moment is gone, as if it had been written just before the file was."""
    monkeypatch.setattr(_process, "LOOK_SECONDS", 3600.0)
    store = SqliteStore(file)
    store.carry_out(scene.opening("before"))
    _replace(file)

    at_once = store.carry_out(scene.opening("at once"))
    store._process._look_again_at = 0.0  # the moment is over
    later = store.carry_out(scene.opening("later"))

    assert (at_once.after_loss, later.after_loss) == (False, True)
    assert store.carry_out(settling(at_once, State.COMPLETED)) is None
    assert store.carry_out(Read(later.key)) is not None
    store.close()


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("looks_each_time")
async def test_a_replaced_file_is_noticed_by_the_next_async_claim(file: Path):
    store = AsyncSqliteStore(file)
    await store.carry_out(scene.opening("before"))
    _replace(file)

    held = await store.carry_out(scene.opening("after"))

    assert held.after_loss
    other = SqliteStore(file)
    assert other.carry_out(Read(held.key)) is not None
    other.close()
    await store.close()


FOREIGN = [
    "CREATE TABLE samekey_records (id INTEGER)",
    "CREATE TABLE samekey_meta (name TEXT PRIMARY KEY, value TEXT); CREATE TABLE samekey_records (id INTEGER); "
    "INSERT INTO samekey_meta VALUES ('schema', '1')",
]


@pytest.mark.parametrize("statements", FOREIGN)
def test_a_foreign_table_is_refused_and_never_taken_for_an_outage(file: Path, statements: str):
    """With store_down="run" an outage runs the effect unguarded: a table that is not ours would do so for ever."""
    with closing(sqlite3.connect(file)) as application:
        application.executescript(statements)
    ran: list[int] = []

    with pytest.raises(Misconfigured, match="samekey_records"):
        Guard(f"sqlite:///{file}", policy=Policy(store_down="run")).run(
            "charge", lambda: ran.append(1), key="o-1", payload={}
        )
    assert ran == []


def test_a_table_that_is_changed_under_a_running_store_is_no_outage(file: Path):
    store = SqliteStore(file)
    with closing(sqlite3.connect(file)) as application:
        application.execute("ALTER TABLE samekey_records RENAME COLUMN story TO theirs")

    with pytest.raises(Misconfigured, match="not ours"):
        store.carry_out(scene.opening())
    store.close()


def _back_up(file: Path) -> Path:
    backup = file.with_name("backup.db")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    return backup


def _restore_by_mv(file: Path, backup: Path) -> None:
    for log in ("-wal", "-shm"):  # a log of the old file would be replayed into the backup
        file.with_name(file.name + log).unlink(missing_ok=True)
    backup.replace(file)


def _restore_by_backup_api(file: Path, backup: Path) -> None:
    with closing(sqlite3.connect(backup)) as source, closing(sqlite3.connect(file)) as target:
        source.backup(target)


RESTORES = [_restore_by_mv, _restore_by_backup_api]


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("looks_each_time")
@pytest.mark.parametrize("restore", RESTORES)
def test_a_file_restored_from_its_own_backup_is_noticed_by_the_next_claim(file: Path, restore: Any):
    """The epoch in the backup is the same one. The claims made since are gone, so the next ones ask first."""
    store = SqliteStore(file)
    store.carry_out(scene.opening("before"))
    backup = _back_up(file)
    incarnation = store.incarnation
    assert not store.carry_out(scene.opening("since")).after_loss
    restore(file, backup)

    held = store.carry_out(scene.opening("since", by=B))

    assert (held.attempt, held.after_loss) == (B, True)
    assert store.incarnation != incarnation
    assert any("restored" in warning for warning in store.health().warnings)
    assert not store.carry_out(Read(scene.key("before"))).after_loss
    store.close()


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("looks_each_time")
@pytest.mark.parametrize("restore", RESTORES)
async def test_a_restored_file_is_noticed_by_the_next_async_claim(file: Path, restore: Any):
    store = AsyncSqliteStore(file)
    await store.carry_out(scene.opening("before"))
    backup = _back_up(file)
    await store.carry_out(scene.opening("since"))
    restore(file, backup)

    assert (await store.carry_out(scene.opening("later", by=B))).after_loss
    await store.close()


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("looks_each_time")
@pytest.mark.parametrize("restore", RESTORES)
def test_a_process_that_wrote_nothing_since_the_backup_learns_of_the_restore_too(file: Path, restore: Any):
    """Its own claims are all in the backup; those of the other process, which it saw or is told of, are not."""
    store, other = SqliteStore(file), SqliteStore(file)
    store.carry_out(scene.opening("before"))
    backup = _back_up(file)
    other.carry_out(scene.opening("since"))
    store.carry_out(scene.opening("before"))  # sees the newest claim
    restore(file, backup)

    assert store.carry_out(scene.opening("later")).after_loss
    assert other.carry_out(scene.opening("later still")).after_loss
    assert store.incarnation == other.incarnation
    store.close()
    other.close()


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("looks_each_time")
def test_what_others_do_to_the_file_is_no_loss(file: Path):
    """Records freed and swept, tables of the application, VACUUM: the newest claim is there, or was deleted."""
    store, other = SqliteStore(file), SqliteStore(file)
    for number, remove in enumerate(("free", "sweep")):
        held = store.carry_out(scene.opening(f"o-{number}"))
        done = store.carry_out(settling(held, State.COMPLETED, retain=-1.0 if remove == "sweep" else 60.0))
        if remove == "free":
            assert other.carry_out(Free(done, "ada", "again")) is None
        else:
            assert other.sweep(10) == 1
        assert not store.carry_out(scene.opening(f"after {remove}")).after_loss
    with closing(sqlite3.connect(file)) as application:
        application.execute("CREATE TABLE orders (id TEXT)")
        assert not store.carry_out(scene.opening("with their table")).after_loss
        application.execute("VACUUM")
    assert not store.carry_out(scene.opening("vacuumed")).after_loss
    assert not other.carry_out(scene.opening("theirs")).after_loss
    store.close()
    other.close()


@pytest.mark.parametrize("state", [State.COMPLETED, State.CLOSED])
def test_a_plain_story_is_told_from_the_columns(file: Path, state: State):
    """Claimed and settled by its holder without a word: the row says that already, and the record tells it all."""
    store = SqliteStore(file)
    settled = store.carry_out(settling(store.carry_out(scene.opening()), state, result=b"done"))
    assert settled is not None
    read = store.carry_out(Read(settled.key))

    assert read is not None
    assert [(move.before, move.after, move.who) for move in read.moves] == [("", "started", A), ("started", state, A)]
    assert_same(read, settled)
    assert _story(file)[-1] == []
    store.close()


def test_a_row_that_tells_its_plain_story_itself_loses_no_move(file: Path):
    """Files from before: the claim's move is written out, and the settle of today adds nothing to it."""
    store = SqliteStore(file)
    held = store.carry_out(scene.opening())
    with driver.connect(file, synchronous="normal") as before:
        told = json.dumps([*_story(file)[:-1], held.moves])
        before.execute("UPDATE samekey_records SET story = ?", (told,))
    before.close()
    settled = store.carry_out(settling(held, State.COMPLETED))
    assert settled is not None
    read = store.carry_out(Read(settled.key))

    assert read is not None
    assert_same(read, settled)
    assert len(read.moves) == 2
    store.close()


def _story(file: Path) -> list[Any]:
    connection = driver.connect(file, synchronous="normal")
    [(told,)] = connection.execute("SELECT story FROM samekey_records").fetchall()
    connection.close()
    story: list[Any] = json.loads(told)
    return story


@pytest.mark.timeout(4)  # a writer that is waited for is waited for longer
@pytest.mark.parametrize("last", ["new", "known"])
def test_a_record_that_is_there_is_shown_while_another_process_writes(file: Path, last: str):
    """Whatever the last key was: to look needs no turn."""
    store = SqliteStore(file)
    held = store.carry_out(scene.opening())
    if last == "known":
        store.carry_out(scene.opening(by=B))
    other = driver.connect(file, synchronous="normal")
    other.execute("BEGIN IMMEDIATE")

    assert store.carry_out(scene.opening(by=C)).fence == held.fence
    other.execute("ROLLBACK")
    other.close()
    store.close()


def test_where_the_boot_has_no_id_the_wall_clock_judges_a_lease(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Seconds since some boot say nothing after the next one: the lease of the dead would live as long as that was."""
    monkeypatch.setattr(driver, "BOOT_ID", tmp_path / "no proc here")
    store = SqliteStore(file)
    before, held, after = time.time(), store.carry_out(scene.opening(lease=30.0)), time.time()

    assert held.lease_clock == "wall"
    assert before + 30.0 <= held.lease_until <= after + 30.0
    store.close()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has time namespaces")
def test_containers_with_boot_clocks_of_their_own_agree_about_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A time namespace has the boot id of its machine, and a boot clock of its own: the kernel tells how far off."""
    told = tmp_path / "timens_offsets"
    monkeypatch.setattr(driver, "TIME_NAMESPACE", told)
    told.write_text("monotonic           0         0\nboottime            0         0\n")
    boot, plain = driver.lease_clock()
    told.write_text("monotonic           0         0\nboottime      1000000 500000000\n")
    same_boot, ours = driver.lease_clock()

    assert boot == same_boot
    assert 1_000_000.4 < plain() - ours() <= 1_000_000.5
    told.unlink()  # a kernel that has none
    assert abs(driver.lease_clock()[1]() - plain()) < 1


def test_a_sweep_that_finds_nothing_stands_in_nobody_s_way(file: Path):
    """What is past its retention is looked for, from end to end, without the turn to write: no claim waits for it."""
    store = SqliteStore(file)
    held = store.carry_out(scene.opening("young"))
    store.carry_out(settling(held, State.COMPLETED))
    other = driver.connect(file, synchronous="full")
    other.execute("BEGIN IMMEDIATE")  # whoever writes right now

    assert store.sweep(500) == 0
    other.execute("ROLLBACK")
    other.close()
    store.close()


def test_a_limit_below_zero_sweeps_and_shows_nothing(file: Path):
    """SQLite's own LIMIT -1 is no limit."""
    clock = ManualClock()
    store = SqliteStore(file, clock=clock)
    for text in ("one", "two"):
        store.carry_out(settling(store.carry_out(scene.opening(text)), State.COMPLETED))
        store.carry_out(Free(store.carry_out(scene.opening(text)), "ada", "again"))
        store.carry_out(settling(store.carry_out(scene.opening(text)), State.COMPLETED, retain=1.0))
    clock.advance(2.0)

    assert (store.sweep(-1), store.audit(-1)) == (0, [])
    assert (store.sweep(1), len(store.audit(1))) == (1, 1)
    store.close()
