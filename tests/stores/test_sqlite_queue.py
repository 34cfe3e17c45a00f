"""SQLite's queue of writers: who shares a commit, and who is served when the file is another one by then."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from samekey.core.commands import Read
from samekey.stores.sqlite import AsyncSqliteStore, SqliteStore
from samekey.stores.sqlite._process import Item
from samekey.testing.stores.scene import A, B, Scene
from tests.guard.helpers import Thread, until

scene = Scene(0.02)
LONG = 30.0  # nobody waits for so long: whoever comes back before was woken


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands each shared commit had."""
    sizes: list[int] = []
    together = SqliteStore._commit_together

    def counted(self, here, jobs):
        sizes.append(len(jobs))
        together(self, here, jobs)

    monkeypatch.setattr(SqliteStore, "_commit_together", counted)
    return sizes


async def test_tasks_that_are_ready_together_share_a_commit(file: Path, commits: list[int]):
    store = AsyncSqliteStore(file)

    await asyncio.gather(*(store.carry_out(scene.opening(f"o-{number}")) for number in range(20)))

    assert commits == [20]
    await store.close()


@pytest.mark.timeout(20)
def test_the_writer_waits_for_as_many_as_it_answered(file: Path, commits: list[int]):
    store = SqliteStore(file)
    process = store._process
    gathering = threading.Thread(target=process._gather, args=(2, time.monotonic() + LONG))
    process._thread = gathering  # in the writer's place
    gathering.start()
    until(lambda: process._wanted == 2)

    process.enqueue(Item(scene.opening("o-1"), None))
    assert not process._work.is_set()
    process.enqueue(Item(scene.opening("o-2"), None))
    gathering.join()

    assert len(process.queue) == 2
    process.queue.clear()
    store.close()


@pytest.mark.timeout(20)
def test_the_writer_waits_no_longer_than_they_are_expected(file: Path):
    store = SqliteStore(file)

    store._process._gather(2, time.monotonic())

    assert store._process._wanted == 1
    store.close()


@pytest.mark.timeout(20)
def test_closing_wakes_a_writer_that_waits_for_others(file: Path):
    store = SqliteStore(file)
    gathering = threading.Thread(target=store._process._gather, args=(2, time.monotonic() + LONG))
    gathering.start()
    until(lambda: store._process._wanted == 2)

    store.close()
    gathering.join()


@pytest.mark.timeout(20)
def test_whoever_waits_when_the_file_is_replaced_is_served_by_the_new_one(file: Path):
    """Their claims are written to the file that is there, and nobody is refused."""
    store = SqliteStore(file)
    old = store._process
    with old.turn:
        waiting = [Thread(partial(store.carry_out, scene.opening(f"o-{number}"))) for number in range(3)]
        until(lambda: len(old.queue) == 3)
        for one in file.parent.iterdir():
            os.unlink(one)

    opened = [one.result() for one in waiting]
    other = SqliteStore(file)

    assert all(record.attempt == A and record.after_loss for record in opened)
    assert [other.carry_out(Read(record.key)) is not None for record in opened] == [True] * 3
    other.close()
    store.close()


@pytest.mark.timeout(20)
def test_whoever_comes_late_to_a_replaced_file_is_served_by_the_new_one(file: Path):
    """It looked before the file was found to be another one, and queues up after that."""
    store = SqliteStore(file)
    old = store._process
    for one in file.parent.iterdir():
        os.unlink(one)
    store.carry_out(scene.opening("o-1"))
    assert store._process is not old

    late = Thread(lambda: store._queued(old, scene.opening("o-2", by=B)))

    assert late.result().attempt == B
    assert store.carry_out(Read(scene.key("o-2"))) is not None
    store.close()


@pytest.mark.timeout(20)
def test_whoever_waits_is_told_why_the_new_file_cannot_be_opened(file: Path):
    store = SqliteStore(file)
    with store._process.turn:
        waiting = Thread(lambda: store.carry_out(scene.opening()))
        until(lambda: len(store._process.queue) == 1)
        for one in file.parent.iterdir():
            os.unlink(one)
        file.mkdir()

    assert "is a directory" in str(waiting.outcome())
    store.close()
