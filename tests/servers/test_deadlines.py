"""`Policy(store_deadline=)` and `settle_patience=` on real servers that hang, die and come back, in both colours.

The stores' own time-outs are 5 to 20 s. Each call here has a deadline of a quarter of a second, and ends long before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from samekey import AsyncGuard, Guard, Policy, State, StoreUnavailable
from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import postgres, redis_server
from tests.figures import figure
from tests.guard.helpers import Thread, as_async, until

DEADLINE = 0.25
WELL_BEFORE = 2.5  # half of the shortest time-out of a store; an idle machine needs 0.3 s


class Server:
    """A server that can hang, die, and come back."""

    name: str
    url: str

    def hang(self) -> None:
        raise NotImplementedError

    def go_on(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError


class OnRedis(Server):
    name = "redis"

    def __init__(self, server: Any) -> None:
        self._server, self.url = server, f"{server.url()}?allow_volatile=1"

    def hang(self) -> None:
        os.kill(self._server.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._server.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._server.call("SAVE")  # what was acknowledged is still there when it is back
        self._server.stop(kill=True)

    def start(self) -> None:
        self._server.start()


class OnPostgres(Server):
    name = "postgres"

    def __init__(self, server: Any) -> None:
        self._server, self.url = server, server.create_database()
        migrate(self.url)

    def hang(self) -> None:
        main = self._server.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        self._stopped = [main, *map(int, children)]
        for pid in self._stopped:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        self._server.stop("immediate")

    def start(self) -> None:
        self._server.start()


@pytest.fixture(scope="module", params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "redis":
        with redis_server(appendfsync="always") as running:  # else a server that is killed may forget its last second
            yield OnRedis(running)
    elif os.environ.get("SAMEKEY_TEST_PG"):
        pytest.skip("SAMEKEY_TEST_PG names a server that is not ours to stop")
    else:
        with postgres() as private:
            yield OnPostgres(private)


class Shop:
    """A guard of either colour, called from plain code. The loop of an async one runs on between calls."""

    def __init__(self, colour: str, url: str) -> None:
        self.colour = colour
        self.effects: list[str] = []
        self.guard: Any = Guard(url) if colour == "sync" else AsyncGuard(url)
        self._loop = asyncio.new_event_loop() if colour == "async" else None
        if self._loop is not None:
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        self.run("warm")

    def run(self, key: str, during: Callable[[], Any] = lambda: None, **policy: Any) -> Any:
        def effect() -> str:
            self.effects.append(key)
            during()
            return key

        rules = {"key": key, "payload": {}, "policy": Policy(**policy)}
        if self.colour == "sync":
            return self.guard.run("charge", effect, **rules)
        return self._awaited(self.guard.run("charge", as_async(effect), **rules))

    def state(self, key: str) -> State | None:
        found = self.guard.peek("charge", key)
        return getattr(found if self.colour == "sync" else self._awaited(found), "state", None)

    def close(self) -> None:
        if self._loop is None:
            self.guard.close()
        elif not self._loop.is_closed():
            self._awaited(self.guard.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _awaited(self, coming: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coming, self._loop).result(60)


@pytest.fixture(params=["sync", "async"])
def shop(request: pytest.FixtureRequest, server: Server) -> Iterator[Shop]:
    shop = Shop(request.param, server.url)
    yield shop
    shop.close()


@contextlib.contextmanager
def quick(shop: Shop, what: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    figure(
        f"deadline of {DEADLINE} s: {what}, {shop.guard.store_name.partition(':')[0]} {shop.colour}", f"{seconds:.2f} s"
    )
    assert seconds < WELL_BEFORE


def test_a_server_that_hangs_at_the_claim(server: Server, shop: Shop):
    """Run: unguarded. Refuse: nothing ran, and a claim that arrives late is let go."""
    runs, refused = f"hangs {shop.colour}", f"refused {shop.colour}"
    server.hang()
    try:
        with quick(shop, "hung at the claim, run"):
            answer = shop.run(runs, store_deadline=DEADLINE, store_down="run")
        with quick(shop, "hung at the claim, refuse"), pytest.raises(StoreUnavailable, match="within 0"):
            shop.run(refused, store_deadline=DEADLINE)
    finally:
        server.go_on()

    assert (answer.result, answer.guarded, answer.recorded) == (runs, False, False)
    assert refused not in shop.effects
    until(lambda: shop.state(refused) is not State.STARTED)
    assert shop.run(refused).result == refused
    assert shop.effects.count(refused) == 1


def test_a_server_that_dies_before_the_settle(server: Server, shop: Shop):
    """The answer goes out, and its record is written when the server is back."""
    try:
        with quick(shop, "killed before the settle"):
            answer = shop.run(f"dies {shop.colour}", server.kill, store_deadline=DEADLINE)
    finally:
        server.start()

    assert (answer.guarded, answer.recorded) == (True, False)
    until(lambda: shop.state(f"dies {shop.colour}") is State.COMPLETED)
    assert shop.run(f"dies {shop.colour}").replayed


@pytest.mark.parametrize("down", ["run", "refuse"])
def test_a_server_that_dies_under_a_waiter(server: Server, shop: Shop, down: str):
    holder, key = Shop("sync", server.url), f"waits {shop.colour} {down}"
    holding, done = threading.Event(), threading.Event()

    def hold_on() -> None:
        holding.set()
        done.wait(60)

    first = Thread(lambda: holder.run(key, hold_on, settle_patience=1))
    try:
        assert holding.wait(30)
        second = Thread(lambda: shop.run(key, store_deadline=DEADLINE, store_down=down, patience=60))
        second.join(1.5)  # three times the deadline: while the store answers, waiting does not count
        assert second.is_alive()
        server.kill()
        with quick(shop, f"killed under a waiter, {down}"):
            outcome = second.outcome()
    finally:
        server.start()
        done.set()
        first.outcome(60)
        holder.close()

    if down == "refuse":
        assert isinstance(outcome, StoreUnavailable)
    else:
        assert (outcome.result, outcome.guarded) == (key, False)
    assert shop.effects.count(key) == (0 if down == "refuse" else 1)


def test_a_finished_answer_does_not_wait_for_a_server_that_died(server: Server, shop: Shop):
    """settle_patience alone: the claim waits as always, the answer does not; close() waits for its record."""
    key = f"finished {shop.colour}"
    again = threading.Timer(1.0, server.start)
    with quick(shop, "settle_patience, killed in mid-effect"):
        answer = shop.run(key, server.kill, settle_patience=DEADLINE)
    again.start()
    shop.close()
    again.join()
    later = Shop("sync", server.url)

    assert (answer.guarded, answer.recorded) == (True, False)
    assert later.state(key) is State.COMPLETED
    later.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_locked_sqlite_file(colour: str, tmp_path: Path):
    path = tmp_path / "keys.db"
    shop = Shop(colour, f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with quick(shop, "locked at the claim"), pytest.raises(StoreUnavailable):
            shop.run("refused", store_deadline=DEADLINE)
        with quick(shop, "locked at the claim, run"):
            assert not shop.run("runs", store_deadline=DEADLINE, store_down="run").guarded
        other.execute("ROLLBACK")
        with quick(shop, "locked at the settle"):
            answer = shop.run("settles", lambda: other.execute("BEGIN EXCLUSIVE"), store_deadline=DEADLINE)
        other.execute("ROLLBACK")

    assert (answer.guarded, answer.recorded) == (True, False)
    until(lambda: shop.state("settles") is State.COMPLETED)
    until(lambda: shop.state("refused") is not State.STARTED)
    assert shop.run("refused").result == "refused"
    shop.close()
