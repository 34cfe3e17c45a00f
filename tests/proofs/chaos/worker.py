"""One customer of the guard, made to be killed: it wants the keys that everybody wants, until somebody ends it.

What it does is told to the judge by the effect itself, and what it is answered afterwards. Errors that say "later" or
"nobody knows" are part of the game; anything else is trouble, and the judge hears of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import socket
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from samekey import (
    Absent,
    Asks,
    Conflicting,
    Fenced,
    Guard,
    Happened,
    InDoubt,
    InProgress,
    Keyed,
    Opaque,
    Policy,
    Repeatable,
    StoreUnavailable,
    current,
)
from samekey.core.boundary import Boundary
from samekey.core.record import Record

LEASE_SECONDS = 1.0  # a killed worker's keys are looked at soon
PATIENCE_SECONDS = 0.3
GENERATION_SECONDS = 2.0  # then everybody wants new keys: settled ones are only replayed, and nothing can go wrong
EFFECT_SECONDS_MAX = 0.03  # effects take their time, so that kills strike inside them
FINISH_SECONDS = 60.0
LOOKS = 0.2  # how often a worker looks at a record, beside what it is told anyway


class Judge:
    """Our line to the judge."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._line = self._socket.makefile("rw")

    def close(self) -> None:
        self._line.close()
        self._socket.close()

    def tell(self, **said: Any) -> Any:
        self._line.write(json.dumps(said) + "\n")
        self._line.flush()
        return json.loads(self._line.readline())


# -- what an effect is -------------------------------------------------------------------------------------

Run = Callable[[str], Any]  # runs a key and returns its answer's result


def at_provider(
    boundary: Callable[[Judge], Boundary], *, marks: bool = False, keyed: bool = False
) -> Callable[[Guard, Judge, str], Run]:
    """The judge itself is the provider: an effect is a line in its ledger; `keyed`: one for each provider key."""

    def prepared(guard: Guard, judge: Judge, address: str) -> Run:
        terms = boundary(judge)

        def run(key: str) -> Any:
            def effect() -> Any:
                if marks:
                    current().sending()
                _dawdle()
                under = {"under": current().provider_key()} if keyed else {}
                receipt = judge.tell(effect=key, **under)
                _dawdle()
                return receipt

            return guard.run("chaos", effect, key=key, payload={"key": key}, boundary=terms).result

        return run

    return prepared


def _asks(judge: Judge) -> Boundary:
    def find(record: Any) -> Any:
        match judge.tell(find=record.key.text):
            case []:
                return Absent()
            case [receipt]:
                return Happened(receipt)
            case receipts:
                return Conflicting(tuple(receipts))

    return Asks(find, marked=True)


def atomic(guard: Guard, judge: Judge, address: str) -> Run:
    """An effect is a row in the store's own database, in the transaction of the record."""
    with contextlib.suppress(StoreUnavailable):  # a server may just be down
        guard.store.health()  # opened before a transaction of ours keeps the file to itself

    def run(key: str) -> Any:
        with connected(address) as connection:
            connection.execute("BEGIN IMMEDIATE" if address.startswith("sqlite") else "BEGIN")

            def effect() -> str:
                _dawdle()
                row = connection.execute(f"INSERT INTO chaos_effects (key) VALUES ('{key}') RETURNING number")
                _dawdle()
                return f"{key} row {row.fetchone()[0]}"

            result = guard.on(connection).run("chaos", effect, key=key, payload={"key": key}).result
            connection.execute("COMMIT")
            return result

    return run


EFFECTS: dict[str, Callable[[Guard, Judge, str], Run]] = {
    "asks": at_provider(_asks, marks=True),
    "opaque": at_provider(lambda judge: Opaque()),
    "keyed": at_provider(lambda judge: Keyed(), keyed=True),
    "repeatable": at_provider(lambda judge: Repeatable()),  # doubles on purpose: it shows that the judge sees them
    "atomic": atomic,
}


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A connection of the caller's own, in autocommit."""
    if address.startswith("sqlite"):
        path = address.partition("///")[2].partition("?")[0]
        connection: Any = sqlite3.connect(path, isolation_level=None, timeout=10)
    else:
        connection = psycopg.connect(address.partition("?")[0], autocommit=True, connect_timeout=5)
    try:
        yield connection
    finally:
        connection.close()


_haste = False  # when nobody is killed any more, nobody needs to take time


def _dawdle() -> None:
    if not _haste:
        time.sleep(random.random() * EFFECT_SECONDS_MAX / 2)  # real time: effects take long enough to be killed in


# -- what a worker does ------------------------------------------------------------------------------------


def work(address: str, port: int, effects: str, keys: int, seed: int) -> None:
    """Want random keys of the current generation, until somebody ends us."""
    random.seed(seed)
    with _ready(address, port, effects) as (judge, run, watched):
        while True:
            generation = int(time.monotonic() / GENERATION_SECONDS)
            key = f"{generation}-{random.randrange(keys)}"
            want(judge, run, key)
            if random.random() < LOOKS:
                watched.look(key)
            watched.tell(judge)


def finish(address: str, port: int, effects: str) -> None:
    """Everybody else is gone: every key that was ever wanted gets its answer, or its doubt."""
    global _haste
    _haste = True
    with _ready(address, port, effects) as (judge, run, watched):
        deadline = time.monotonic() + FINISH_SECONDS
        left = judge.tell(wanted=True)
        while left and time.monotonic() < deadline:
            left = [key for key in left if not want(judge, run, key)]
            watched.tell(judge)
        if left:
            judge.tell(trouble=f"never answered: {left[:10]}")


class Watched:
    """A store of which every answer is written down: what it showed of which record, and when."""

    def __init__(self, guard: Guard, store: Any, verbs: frozenset[str]) -> None:
        self._guard, self._store, self._verbs = guard, store, verbs
        self._seen: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def carry_out(self, command: Any) -> Record | None:
        began = time.monotonic()
        record: Record | None = self._store.carry_out(command)
        if record is not None and command.verb in self._verbs:
            result = hashlib.sha256(record.result or b"").hexdigest()[:8]
            what = f"{record.state} {record.token} {record.attempt} {result}"
            self._seen.append((record.key.text, began, time.monotonic(), record.version, what))
        return record

    def look(self, key: str) -> None:
        with contextlib.suppress(StoreUnavailable):
            self._guard.peek("chaos", key)

    def tell(self, judge: Judge) -> None:
        if self._seen:
            judge.tell(saw=self._seen)
            self._seen.clear()


_DURABLE = frozenset(("take", "begin", "renew", "settle", "testify", "read"))


@contextlib.contextmanager
def _ready(address: str, port: int, effects: str) -> Iterator[tuple[Judge, Run, Watched]]:
    judge = Judge(port)
    policy = Policy(lease=LEASE_SECONDS, patience=PATIENCE_SECONDS)
    verbs = _DURABLE if " " in address else _DURABLE | {"open"}  # a front may show a claim what was true a while ago
    try:
        with Guard(address, policy=policy) as guard:
            watched = Watched(guard, guard.store, verbs)
            with guard.through(lambda _: watched):
                yield judge, EFFECTS[effects](guard, judge, address), watched
    except Exception:
        judge.tell(trouble=traceback.format_exc())


def want(judge: Judge, run: Run, key: str) -> bool:
    """Whether the key has its answer, or its doubt."""
    judge.tell(want=key)
    try:
        result = run(key)
    except InDoubt:
        judge.tell(doubt=key)
        return True
    except (InProgress, Fenced, StoreUnavailable, psycopg.OperationalError, sqlite3.OperationalError):
        return False
    judge.tell(answer=key, result=result)
    return True
