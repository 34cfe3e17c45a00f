"""Threads of one process take turns on a SQLite file, however many intakes they belong to."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from samekey.drivers import sqlite
from samekey.intake.database import SqliteDatabase
from samekey.intake.rows import Sql, SqlSteps


def test_an_intake_waits_for_its_turn_and_not_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other intake keeps the file for far longer than a connection tries to get it."""
    monkeypatch.setattr(sqlite.patiently, "__defaults__", (0.01,))
    (tmp_path / "link.db").symlink_to(tmp_path / "runs.db")
    first, second = (SqliteDatabase(f"sqlite:///{tmp_path}/{name}.db") for name in ("runs", "link"))
    first.migrate()
    second.migrate()
    holds, ended = threading.Event(), threading.Event()
    answers: list[object] = []

    def holding() -> SqlSteps:
        yield Sql("SELECT 1", ())
        holds.set()
        ended.wait(0.5)  # a writer that tries for the file by itself gives up long before this

    def once() -> SqlSteps:
        return (yield Sql("SELECT 2", ()))

    def other() -> None:
        try:
            answers.append(second.run(once))
        except Exception as error:
            answers.append(error)
        ended.set()

    holder = threading.Thread(target=first.run, args=(holding,))
    holder.start()
    assert holds.wait(30)
    waiter = threading.Thread(target=other)
    waiter.start()
    waiter.join(30)
    holder.join(30)
    first.close()
    second.close()
    assert answers == [[(2,)]]
