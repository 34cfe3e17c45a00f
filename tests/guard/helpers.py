"""What the guard's tests share: a place for records, one side of the guard in either colour, and some trouble."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import pickle
import select
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import trio

from samekey import AsyncGuard, Guard
from samekey.core.commands import Read
from samekey.core.key import make_key
from samekey.core.ports import Event
from samekey.core.record import Record
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.stores.sqlite import AsyncSqliteStore, SqliteStore
from samekey.testing.clock import ManualClock

SOON = 20.0  # seconds in which anything that happens at all has happened; never waited for when all is well


# -- places and sides ----------------------------------------------------------------------------------------


class Place:
    """Where records are kept; every guard made here sees the same ones."""

    def __init__(self, kind: str, folder: Path, clock: ManualClock | None = None) -> None:
        self.kind, self.folder, self.clock = kind, folder, clock
        self.path = folder / "keys.db"
        self._memory = MemoryStore(clock)
        self._made: list[Any] = []
        self._looking: Any = None

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def store(self) -> Any:
        made = self._memory if self.kind == "memory" else SqliteStore(self.path, clock=self.clock)
        self._made.append(made)
        return made

    def async_store(self) -> Any:
        if self.kind == "memory":
            return AsyncMemoryStore(self._memory)
        made = AsyncSqliteStore(self.path, clock=self.clock)
        self._made.append(made.sync)
        return made

    def guard(self, **kwargs: Any) -> Any:
        return Guard(self.store(), **kwargs)

    def async_guard(self, **kwargs: Any) -> Any:
        return AsyncGuard(self.async_store(), **kwargs)

    def side(self, colour: str, **kwargs: Any) -> Side:
        return Sync(self.guard(**kwargs)) if colour == "sync" else Async(self.async_guard(**kwargs), colour)

    def peek(self, name: str, key: str, tenant: str | None = None) -> Record:
        """The record as it stands; there must be one."""
        record = self.look(name, key, tenant)
        assert record is not None, f"no record of {name} {key}"
        return record

    def look(self, name: str, key: str, tenant: str | None = None) -> Record | None:
        if self._looking is None:
            self._looking = self.store()
        found: Record | None = self._looking.carry_out(Read(make_key(name, key, tenant)))
        return found

    def close(self) -> None:
        for made in self._made:
            made.close()


class Side:
    """A guard called from plain code, whatever its colour: effects and functions are given as plain functions."""

    guard: Any

    def run(self, name: str, effect: Callable[[], Any], **kwargs: Any) -> Any:
        raise NotImplementedError

    def once(self, **kwargs: Any) -> Callable[[Callable[..., Any]], Any]:
        raise NotImplementedError

    def run_many(self, name: str, effect: Callable[[Any], Any], payloads: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Sync(Side):
    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def run(self, name: str, effect: Callable[[], Any], **kwargs: Any) -> Any:
        return self.guard.run(name, effect, **kwargs)

    def run_many(self, name: str, effect: Callable[[Any], Any], payloads: Any, **kwargs: Any) -> Any:
        return self.guard.run_many(name, effect, payloads, **kwargs)

    def once(self, **kwargs: Any) -> Callable[[Callable[..., Any]], Any]:
        decorate: Callable[[Callable[..., Any]], Any] = self.guard.once(**kwargs)
        return decorate


class Async(Side):
    """Each call in an event loop of its own, as a program that starts a loop per job would do."""

    def __init__(self, guard: AsyncGuard, loop: str) -> None:
        self.guard = guard
        self._start = start_trio if loop == "trio" else start_asyncio

    def run(self, name: str, effect: Callable[[], Any], **kwargs: Any) -> Any:
        return self._start(lambda: self.guard.run(name, as_async(effect), **kwargs))

    def run_many(self, name: str, effect: Callable[[Any], Any], payloads: Any, **kwargs: Any) -> Any:
        return self._start(lambda: self.guard.run_many(name, as_async(effect), payloads, **kwargs))

    def once(self, **kwargs: Any) -> Callable[[Callable[..., Any]], Any]:
        def decorate(function: Callable[..., Any]) -> Any:
            guarded = self.guard.once(**kwargs)(as_async(function))
            return Called(guarded, self._start)

        return decorate


class Called:
    """An async guarded function, called from plain code."""

    def __init__(self, guarded: Any, start: Callable[..., Any]) -> None:
        self.guarded, self._start = guarded, start

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._start(lambda: self.guarded(*args, **kwargs))

    def answer(self, *args: Any, **kwargs: Any) -> Any:
        return self._start(lambda: self.guarded.answer(*args, **kwargs))

    def peek(self, *args: Any, **kwargs: Any) -> Any:
        return self._start(lambda: self.guarded.peek(*args, **kwargs))


def as_async(function: Callable[..., Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return called


def start_asyncio(work: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await work()

    return asyncio.run(main())


def start_trio(work: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await work()

    return trio.run(main)


# -- effects ---------------------------------------------------------------------------------------------------


class Ledger:
    """The world outside: what really happened, in order."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: Any = "effect") -> int:
        self.entries.append(entry)
        return len(self.entries)


class FileLedger:
    """The same for several processes: one line per effect."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, entry: str = "effect") -> str:
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{entry}\n".encode())
        return entry

    @property
    def entries(self) -> list[str]:
        return self.path.read_text().splitlines()

    def __len__(self) -> int:
        return len(self.entries)


class Seen:
    """A hook that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]


# -- stores with trouble ---------------------------------------------------------------------------------------


class _Spied:
    """What is asked of the store is counted; `before` and `after` may look, act, or raise."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.name = store.name
        self.commands: list[tuple[str, Any]] = []
        self.before: dict[str, Callable[[Any], Any]] = {}
        self.after: dict[str, Callable[[Any], Any]] = {}

    def count(self, *verbs: str) -> int:
        return sum(1 for verb, _ in self.commands if verb in verbs)

    def _come(self, verb: str, command: Any) -> None:
        self.commands.append((verb, command))
        if verb in self.before:
            self.before[verb](command)

    def _go(self, verb: str, command: Any) -> None:
        if verb in self.after:
            self.after[verb](command)

    def __getattr__(self, name: str) -> Any:
        if name in ("sync", "join"):
            raise AttributeError(name)  # a store that is neither a twin nor a database
        return getattr(self.__dict__["store"], name)


class SpiedStore(_Spied):
    """A sync store with a spy in front of it."""

    def carry_out(self, command: Any) -> Any:
        self._come(command.verb, command)
        record = self.store.carry_out(command)
        self._go(command.verb, command)
        return record

    def wait(self, command: Any, timeout: float) -> Any:
        self._come("wait", command)
        record = self.store.wait(command, timeout)
        self._go("wait", command)
        return record

    def batch(self, commands: Any) -> Any:
        self._come("batch", commands)
        replies = self.store.batch(commands)
        self._go("batch", commands)
        return replies


class AsyncSpiedStore(_Spied):
    """The same for an async store; it has no sync twin, as a server's store has none."""

    async def carry_out(self, command: Any) -> Any:
        self._come(command.verb, command)
        record = await self.store.carry_out(command)
        self._go(command.verb, command)
        return record

    async def wait(self, command: Any, timeout: float) -> Any:
        self._come("wait", command)
        record = await self.store.wait(command, timeout)
        self._go("wait", command)
        return record

    async def batch(self, commands: Any) -> Any:
        self._come("batch", commands)
        replies = await self.store.batch(commands)
        self._go("batch", commands)
        return replies


def spied(store: Any) -> Any:
    return AsyncSpiedStore(store) if inspect.iscoroutinefunction(store.carry_out) else SpiedStore(store)


def spied_side(place: Place, colour: str, **kwargs: Any) -> tuple[Side, Any]:
    """A side of the guard on a store that is spied on, and the spy."""
    if colour == "sync":
        spy = spied(place.store())
        return Sync(Guard(spy, **kwargs)), spy
    spy = spied(place.async_store())
    return Async(AsyncGuard(spy, **kwargs), colour), spy


def raising(error: BaseException, times: int | None = None) -> Callable[[Any], None]:
    """For `before` and `after`: raise this, the first so many times."""
    left = [times]

    def act(command: Any) -> None:
        if left[0] is None:
            raise error
        if left[0] > 0:
            left[0] -= 1
            raise error

    return act


# -- threads and processes -------------------------------------------------------------------------------------


class Thread(threading.Thread):
    """A thread whose result, or error, `result()` brings back."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self, timeout: float = SOON) -> Any:
        self.join(timeout)
        assert not self.is_alive(), "the thread is still not done"
        if self._error is not None:
            raise self._error
        return self._value

    def outcome(self, timeout: float = SOON) -> Any:
        """The result, or the exception as a value."""
        try:
            return self.result(timeout)
        except AssertionError:
            raise
        except BaseException as error:
            return error


def together(count: int, work: Callable[[int], Any], timeout: float = 20.0) -> list[Any]:
    """`work(number)` in so many threads at once; their results, or their exceptions as values."""
    start = threading.Barrier(count)

    def one(number: int) -> Any:
        start.wait(SOON)
        return work(number)

    threads = [Thread(functools.partial(one, number)) for number in range(count)]
    return [thread.outcome(timeout) for thread in threads]


def leave_nobody_behind() -> None:
    """In a child: whatever becomes of the test, this process ends; also when a lock hangs and no handler can run."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(30)


class Child:
    """A forked process that runs `work` and sends back what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            leave_nobody_behind()
            os.close(reading)
            code = 1
            try:
                try:
                    said = (True, work())
                except BaseException as error:
                    said = (False, repr(error))
                with open(writing, "wb") as out:
                    pickle.dump(said, out)
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        self._reading = reading

    def result(self) -> Any:
        """What `work` returned; an AssertionError with what it raised."""
        with open(self._reading, "rb") as file:
            data = file.read()
        self.wait()
        assert data, "the process was killed before it could say anything"
        fine, value = pickle.loads(data)
        assert fine, value
        return value

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        with contextlib.suppress(OSError):
            os.close(self._reading)

    def wait(self) -> int:
        return os.waitpid(self.pid, 0)[1]


class Signal:
    """One process tells another, through a pipe, that it has come to some point."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def send(self) -> None:
        os.write(self._writing, b"x")

    def wait(self, timeout: float = 15.0) -> None:
        ready, _, _ = select.select([self._reading], [], [], timeout)
        assert ready, "the other process never came to this point"
        os.read(self._reading, 1)

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


def until(condition: Callable[[], Any], *, every: float = 0.002) -> None:
    """Return when the condition holds; for what has no event of its own."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(every)


async def until_async(condition: Callable[[], Any]) -> None:
    """The same in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await anyio.sleep(0.002)


def outlived(place: Place, name: str, *keys: str) -> Callable[[], bool]:
    """A condition for `until`: the leases that these records have now would have ended, and renewals kept them live."""
    ends = {key: place.peek(name, key).lease_until for key in keys}

    def passed() -> bool:
        records = {key: place.peek(name, key) for key in keys}
        assert all(record.lease_live for record in records.values()), "a lease ended"
        return all(record.lease_until - record.lease_left >= ends[key] for key, record in records.items())

    return passed


def followers(guard: Any) -> int:
    """How many callers of this guard wait for the answer of another of its callers."""
    return sum(len(flight.bells) for flight in list(guard._flights._flying.values()))


def writing(guard: Any) -> bool:
    """Whether a thread of this guard has the turn on the SQLite file's writing connection."""
    store = guard.store
    return bool(getattr(store, "sync", store)._process.turn.locked())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else's write transaction on the file."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.close()
