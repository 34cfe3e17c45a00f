"""A SQLite file against the two statements a careful person would write by hand.

Raw: INSERT .. ON CONFLICT DO NOTHING, then UPDATE .. WHERE token, each its own commit, with the same durability,
in rows as wide as ours are at that moment. It keeps no fingerprint, no lease clock, no story; that is the point.
A plain table, because that is what one writes, and because it is faster here than WITHOUT ROWID by a fifth.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from bench.figures import Experiment, Figure, Reading, at_least, at_most
from bench.measure import (
    Effort,
    Lap,
    Prepare,
    Work,
    cpu_ratios,
    interleave,
    microseconds,
    operations_per_second,
    quiet,
    sync_laps,
    wall_ratios,
)
from samekey import AsyncGuard, Guard
from samekey.core.commands import Open, Settle
from samekey.core.envelope import encode
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.states import Role, State
from samekey.drivers.sqlite import Synchronous
from samekey.stores.sqlite import AsyncSqliteStore, SqliteStore

CALLERS = 32
CROWD_ROUNDS_MAX = 5
SLOW_FSYNC_US = 2500  # two of them make the 200 pairs a second of the disk that the target was set on
REPLAYED_KEYS = 100
PAYLOAD = {"order": "ord_00000001", "amount": 1999, "currency": "EUR"}
RESULT = {"id": "ch_1", "amount": 1999, "currency": "EUR", "paid": True}
ENVELOPE = encode(RESULT, max_bytes=1000)
FINGERPRINT = Intent(PAYLOAD).fingerprint()

_numbers = itertools.count()


# -- by hand ---------------------------------------------------------------------------------------------------


class Raw:
    """The two statements, on a connection of one's own."""

    TABLE = """
    CREATE TABLE IF NOT EXISTS keys (
      key    BLOB PRIMARY KEY,
      state  TEXT NOT NULL,
      token  INTEGER NOT NULL,
      claim  BLOB NOT NULL,
      result BLOB
    )
    """
    CLAIM = "INSERT INTO keys (key, state, token, claim) VALUES (?, 'started', ?, ?) ON CONFLICT (key) DO NOTHING"
    COMPLETE = "UPDATE keys SET state = 'completed', result = ? WHERE key = ? AND token = ?"
    REPLAY = "SELECT state, token, claim, result FROM keys WHERE key = ?"

    def __init__(self, path: Path, synchronous: Synchronous, width: tuple[int, int]) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA synchronous = {synchronous.upper()}")
        self.connection.execute(self.TABLE)
        fixed = 16 + len("completed") + 8
        self._claim = bytes(width[0] - fixed)
        self._result = bytes(width[1] - width[0])

    def pair(self, key: bytes) -> bool:
        token = 1
        if self.connection.execute(self.CLAIM, (key, token, self._claim)).rowcount == 0:
            return False
        return self.connection.execute(self.COMPLETE, (self._result, key, token)).rowcount == 1

    def replay(self, key: bytes) -> bytes:
        found: bytes = self.connection.execute(self.REPLAY, (key,)).fetchone()[3]
        return found


def our_width(directory: Path) -> tuple[int, int]:
    """The bytes in one of our rows: claimed, and completed."""
    store = SqliteStore(directory / "width.db", synchronous="normal")
    record = store.carry_out(command(new_key()))
    reader = sqlite3.connect(directory / "width.db")
    columns = [row[1] for row in reader.execute("PRAGMA table_info(samekey_records)")]
    total = " + ".join(f"coalesce(length(CAST({column} AS BLOB)), 0)" for column in columns)
    [claimed] = reader.execute(f"SELECT {total} FROM samekey_records").fetchone()  # noqa: S608 - our own columns
    store.carry_out(Settle(record, Role.HOLDER, State.COMPLETED, by=record.attempt, result=ENVELOPE, retain_seconds=60))
    [completed] = reader.execute(f"SELECT {total} FROM samekey_records").fetchone()  # noqa: S608
    reader.close()
    store.close()
    return claimed, completed


# -- one caller ------------------------------------------------------------------------------------------------


def one_caller(effort: Effort) -> Sequence[Reading]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        width = our_width(directory)
        raw = Raw(directory / "raw.db", "normal", width)
        store = SqliteStore(directory / "store.db", synchronous="normal")
        guard = Guard(SqliteStore(directory / "guard.db", synchronous="normal"))

        def by_store(operations: int) -> Work:
            commands = [command(new_key()) for _ in range(operations)]

            def work() -> None:
                for one in commands:
                    held = store.carry_out(one)
                    store.carry_out(
                        Settle(
                            held, Role.HOLDER, State.COMPLETED, by=held.attempt, result=ENVELOPE, retain_seconds=60.0
                        )
                    )

            return work

        def by_guard(operations: int) -> Work:
            keys = [new_key() for _ in range(operations)]
            return lambda: [guard.run("charge", charge, key=key, payload=PAYLOAD) for key in keys]

        def by_hand(operations: int) -> Work:
            keys = [os.urandom(16) for _ in range(operations)]
            return lambda: all(map(raw.pair, keys))

        def in_between(prepare: Prepare) -> Prepare:
            """As in a program that does other things, too: neither finds the processor's caches as it left them."""

            def mixed(operations: int) -> Work:
                works = [prepare(1) for _ in range(operations)]
                return lambda: [(other_work(number), work()) for number, work in enumerate(works)]

            return mixed

        def nothing(operations: int) -> Work:
            return lambda: None

        stored, guarded, bare, *mixed = interleave(
            effort, by_store, by_guard, by_hand, in_between(by_store), in_between(by_hand), in_between(nothing)
        ).laps
        guard.close()
        store.close()
        raw.connection.close()
    wide = f"rows of {width[0]} and {width[1]} bytes"
    return [
        ratio(stored, bare, cpu_ratios(stored, bare), wide),
        ratio(stored, bare, wall_ratios(stored, bare)),
        above(*mixed),
        ratio(guarded, bare, cpu_ratios(guarded, bare)),
        ratio(guarded, bare, wall_ratios(guarded, bare)),
    ]


def other_work(number: int) -> int:
    """Some microseconds of the standard library."""
    text = json.dumps({"order": f"ord_{number:08d}", "lines": [number, str(number / 7)]}, sort_keys=True)
    name = str(UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4))
    found = re.sub(r"[0-9]+", "#", f"{text} {name} {datetime.fromtimestamp(number, UTC).isoformat()}")
    return len(json.loads(text)) + len(sorted(found.split("#"), key=len))


def above(ours: Sequence[Lap], raw: Sequence[Lap], other: Sequence[Lap]) -> Reading:
    ratios = [(mine.cpu - none.cpu) / (hand.cpu - none.cpu) for mine, hand, none in zip(ours, raw, other, strict=True)]
    parts = [microseconds(laps) - microseconds(other) for laps in (ours, raw)]
    note = f"{parts[0]:.1f} against {parts[1]:.1f} us CPU above {microseconds(other):.1f} of other work"
    return Reading(statistics.median(ratios), ratios, note)


def replayed(effort: Effort) -> Sequence[Reading]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        raw = Raw(directory / "raw.db", "normal", our_width(directory))
        guard = Guard(SqliteStore(directory / "guard.db", synchronous="normal"))
        texts, digests = [new_key() for _ in range(REPLAYED_KEYS)], [os.urandom(16) for _ in range(REPLAYED_KEYS)]
        for text, digest in zip(texts, digests, strict=True):
            guard.run("charge", charge, key=text, payload=PAYLOAD)
            raw.pair(digest)

        def by_guard(operations: int) -> Work:
            keys = list(itertools.islice(itertools.cycle(texts), operations))
            return lambda: [guard.run("charge", charge, key=key, payload=PAYLOAD) for key in keys]

        def by_hand(operations: int) -> Work:
            keys = list(itertools.islice(itertools.cycle(digests), operations))
            return lambda: [raw.replay(key) for key in keys]

        guarded, bare = interleave(effort, by_guard, by_hand).laps
        guard.close()
        raw.connection.close()
    return [ratio(guarded, bare, cpu_ratios(guarded, bare))]


def ratio(ours: Sequence[Lap], raw: Sequence[Lap], ratios: Sequence[float], more: str = "") -> Reading:
    note = f"{microseconds(ours):.1f} against {microseconds(raw):.1f} us CPU"
    return Reading(statistics.median(ratios), ratios, f"{note}; {more}" if more else note)


# -- a crowd, and a disk that has to be waited for -------------------------------------------------------------


def crowd(effort: Effort) -> Sequence[Reading]:
    return compared(rates(effort))


def slow_crowd(effort: Effort) -> Sequence[Reading]:
    """The same where every fsync takes as long as on a plain disk: what committing together is for.

    A process of its own, with a library before libc that sleeps in each fsync; it needs a C compiler.
    """
    with tempfile.TemporaryDirectory() as name:
        library = Path(name) / "slow_fsync.so"
        source = Path(__file__).parents[1] / "slow_fsync.c"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source], check=True)
        program = f"import json, bench.groups.sqlite as one; print(json.dumps(one.rates(one.{effort!r})))"
        slow = {**os.environ, "LD_PRELOAD": str(library), "SLOW_FSYNC_US": str(SLOW_FSYNC_US)}
        found = subprocess.run([sys.executable, "-c", program], env=slow, capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(found.stderr.strip().rpartition("\n")[2])
    return compared(json.loads(found.stdout))


OURS = ("threads", "tasks")
BY_HAND = ("a connection per thread", "threads taking turns on one", "one, inline in the event loop")


def rates(effort: Effort) -> dict[str, list[float]]:
    """Operations per second of each contender, and the milliseconds of an fsync, round by round."""
    found: dict[str, list[float]] = {name: [] for name in (*OURS, *BY_HAND, "fsync")}
    seconds = effort.crowd_seconds
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        width = our_width(directory)
        guard = Guard(SqliteStore(directory / "guard.db"))
        store = AsyncSqliteStore(directory / "tasks.db")
        lone, turn = Raw(directory / "shared.db", "full", width), threading.Lock()
        inline = Raw(directory / "inline.db", "full", width)
        made = Raw(directory / "raw.db", "full", width)  # or 32 who make it at once find it locked

        def by_guard(number: int) -> Work:
            return lambda: guard.run("charge", charge, key=new_key(), payload=PAYLOAD)

        def by_hand(number: int) -> Work:
            mine = Raw(directory / "raw.db", "full", width)
            return lambda: mine.pair(os.urandom(16))

        def in_turn(number: int) -> Work:
            def pair() -> None:
                with turn:
                    lone.pair(os.urandom(16))

            return pair

        async def by_async_guard(guard: AsyncGuard) -> None:
            await guard.run("charge", async_charge, key=new_key(), payload=PAYLOAD)

        async def in_the_loop(guard: AsyncGuard) -> None:
            inline.pair(os.urandom(16))
            await asyncio.sleep(0)

        async def among_tasks(pair: Callable[[AsyncGuard], Awaitable[None]]) -> float:
            guard, done, stop_at = AsyncGuard(store), 0, time.perf_counter() + seconds

            async def caller() -> None:
                nonlocal done
                while True:
                    await pair(guard)
                    if time.perf_counter() >= stop_at:
                        return
                    done += 1

            with quiet():
                await asyncio.gather(*(caller() for _ in range(CALLERS)))
            return done / seconds

        for _ in range(min(effort.rounds, CROWD_ROUNDS_MAX)):
            found["fsync"] += sync_laps(3)
            found["threads"].append(operations_per_second(CALLERS, seconds, by_guard))
            found["tasks"].append(asyncio.run(among_tasks(by_async_guard)))
            for name, raw in zip(BY_HAND, (by_hand, in_turn), strict=False):
                found[name].append(operations_per_second(CALLERS, seconds, raw))
            found[BY_HAND[2]].append(asyncio.run(among_tasks(in_the_loop)))
        guard.close()
        store.sync.close()
        for raw_file in (lone, inline, made):
            raw_file.connection.close()
    return found


def compared(rates: dict[str, list[float]]) -> list[Reading]:
    """Each of ours against the best by hand of the same round."""
    readings = []
    best = [max(each) for each in zip(*(rates[name] for name in BY_HAND), strict=True)]
    by_hand = ", ".join(f"{name} {statistics.median(rates[name]):.0f}" for name in BY_HAND)
    # A slow disk is what committing together saves: without it the CPU decides.
    disk = f"machine.fsync took {statistics.median(rates['fsync']):.2f} ms in these rounds"
    for name in OURS:
        ratios = [mine / max(other, 1.0) for mine, other in zip(rates[name], best, strict=True)]
        note = f"{statistics.median(rates[name]):.0f} operations/s; by hand: {by_hand}; {disk}"
        readings.append(Reading(statistics.median(ratios), ratios, note))
    return readings


def charge() -> dict[str, object]:
    return RESULT


async def async_charge() -> dict[str, object]:
    return RESULT


def new_key() -> str:
    return f"ord_{next(_numbers):08d}"


def command(text: str) -> Open:
    return Open(
        key=make_key("charge", text),
        attempt=os.urandom(16).hex(),
        intent=FINGERPRINT,
        boundary="opaque",
        lease_seconds=30.0,
        sends=False,
    )


PAIR = "the raw two statements"
BEST = "the best of " + ", ".join(BY_HAND)
SLOWER = f"with {SLOW_FSYNC_US / 1000:g} ms added to every fsync"
EXPERIMENTS = (
    Experiment(
        (
            Figure("sqlite.normal.1.store", "x CPU", f"{PAIR}; ours: store.open + store.settle", at_most(1.5)),
            Figure("sqlite.normal.1.store.wall", "x", "the same, by the clock on the wall"),
            Figure("sqlite.normal.1.store.between", "x CPU", "the same, each after other work, which is not counted"),
            Figure("sqlite.normal.1.guard", "x CPU", f"{PAIR}; ours: the whole guard.run"),
            Figure("sqlite.normal.1.guard.wall", "x", "the same, by the clock on the wall"),
        ),
        one_caller,
    ),
    Experiment((Figure("sqlite.replay.1", "x CPU", "a bare SELECT; ours: the whole guard.run"),), replayed),
    Experiment(
        (
            Figure(f"sqlite.full.{CALLERS}.threads", "x ops/s", f"{PAIR}, {BEST}; ours: guard.run", at_least(10.0)),
            Figure(f"sqlite.full.{CALLERS}.tasks", "x ops/s", f"the same; ours: {CALLERS} tasks", at_least(10.0)),
        ),
        crowd,
    ),
    Experiment(
        (
            Figure(f"sqlite.full.{CALLERS}.slow.threads", "x ops/s", f"the first, {SLOWER}", at_least(10.0)),
            Figure(f"sqlite.full.{CALLERS}.slow.tasks", "x ops/s", f"the second, {SLOWER}", at_least(10.0)),
        ),
        slow_crowd,
    ),
)
