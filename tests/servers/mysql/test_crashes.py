"""Crowds of processes, and processes and servers that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from samekey import Guard, InDoubt, Policy
from samekey.core.commands import Read, Wait
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.states import State
from samekey.drivers.mysql.migrate import migrate
from samekey.stores.mysql import MysqlStore
from samekey.testing.stores.scene import settling
from tests.servers.mysql.helpers import opened, sql, until

pytestmark = pytest.mark.slow


def test_eight_processes_and_one_key(url, tmp_path):
    """Forked from one guard that was connected already: one effect, and everybody has its answer."""
    guard = Guard(url, policy=Policy(patience=30))
    guard.run("warm", lambda: None, key="up", payload={})
    book, meeting = tmp_path / "effects", tmp_path / "meeting"
    meeting.mkdir()
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:

                def effect(number: int = number) -> int:
                    with open(book, "a") as file:
                        file.write(f"{number}\n")
                    until(lambda: len(list(meeting.iterdir())) == 8)
                    return number

                (meeting / str(number)).touch()
                answer = guard.run("charge", effect, key="o-1", payload={"amount": 200})
                os._exit(answer.result)
            finally:
                os._exit(99)
        children.append(child)
    codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}

    effects = book.read_text().split()
    assert len(effects) == 1
    assert codes == {int(effects[0])}
    assert guard.run("charge", lambda: 99, key="o-1", payload={"amount": 200}).result == int(effects[0])
    guard.close()


def test_a_waiter_in_another_process_is_woken_by_the_watcher(store, url, scene, monkeypatch):
    """Without the slow re-read nothing else would tell it."""
    monkeypatch.setattr("samekey.stores._waiting.REREAD_SECONDS", 60.0)
    held = store.carry_out(scene.opening())
    with opened(url) as other, ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(other.wait, Wait(held), 30.0) for _ in range(20)]
        until(lambda: other._links().watch._thread)
        until(lambda: sum(map(len, list(other._links().bells._waiting.values()))) == 20)
        store.carry_out(settling(held, State.COMPLETED, result=b"done"))

        assert {one.result(30).result for one in waiting} == {b"done"}


def test_a_server_that_is_killed_keeps_what_it_answered(mortal):
    """kill -9 under load: every claim that was answered is there, none twice, and the callers are served again."""
    url = mortal.create_database()
    migrate(url)
    guard = Guard(url, policy=Policy(patience=30))
    effects: list[str] = []
    answers: list[tuple[str, Any]] = []
    over = threading.Event()

    def charge(key: str) -> str:
        effects.append(key)
        return key

    def work(worker: int) -> None:
        number = 0
        while not over.is_set():
            key = f"{worker} {number}"
            try:
                answer = guard.run("charge", partial(charge, key), key=key, payload={})
            except StoreUnavailable:
                continue  # the same key again
            answers.append((key, answer.result))
            number += 1

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, number) for number in range(4)]
        for _ in range(2):
            before = len(answers)
            until(lambda before=before: len(answers) > before + 20)
            mortal.restart("kill")
        before = len(answers)
        until(lambda: len(answers) > before + 20)
        over.set()
        for one in workers:
            one.result(60)

    assert len(effects) == len(set(effects))
    assert all(key == result for key, result in answers)
    for key, result in answers:
        assert guard.run("charge", lambda: "again", key=key, payload={}).result == result
    guard.close()


def test_another_server_in_its_place_is_noticed(mortal, scene):
    """A failover changes who answers: claims since then say so, also to a process that starts later."""
    url = mortal.create_database()
    migrate(url)
    store: Any = MysqlStore(url)
    before = store.carry_out(scene.opening("before"))
    known = store.health().incarnation
    mortal.restart("kill", server_id="7")

    after = store.carry_out(scene.opening("after"))
    assert store.health().incarnation != known
    assert any("another server" in warning for warning in store.health().warnings)
    assert (before.after_loss, after.after_loss) == (False, True)
    assert not store.carry_out(Read(before.key)).after_loss
    with opened(url) as later:
        assert later.carry_out(scene.opening("later")).after_loss
    store.close()


def test_tables_that_were_made_anew_are_noticed(store, url, scene):
    store.carry_out(scene.opening("before"))
    for table in ("records", "meta", "audit"):
        sql(url, f"DROP TABLE samekey_{table}")
    with pytest.raises(Misconfigured, match=r"samekey migrate --store mysql://"):
        store.carry_out(scene.opening("between"))
    migrate(url)
    store.health()  # a new connection

    assert store.carry_out(scene.opening("after")).after_loss


def test_a_process_that_dies_while_it_holds_is_outlived(url, tmp_path):
    """Killed in its effect: nobody runs it again by itself, and its lease ends by the server's clock."""
    child = os.fork()
    if child == 0:
        guard = Guard(url, policy=Policy(lease=0.5, patience=0.2))
        guard.run("charge", lambda: os.kill(os.getpid(), signal.SIGKILL), key="o-1", payload={})
    os.waitpid(child, 0)
    with contextlib.closing(Guard(url, policy=Policy(lease=0.5, patience=5))) as guard, pytest.raises(InDoubt):
        guard.run("charge", lambda: "again", key="o-1", payload={})
