"""One worker of a scenario: a process of its own, so that it can be killed, paused and stopped like a real one.

What its effect does with a message is planned by the scenario: `plan.json` names for each key what the first, second
and each later run does. What happened is written to a ledger, one line each, outside of the guard: so the effects are
counted on the provider's side. A gate is a file: an effect that waits for it goes on when the file is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from samekey import (
    Absent,
    Asks,
    AsyncGuard,
    Atomic,
    Guard,
    Happened,
    Keyed,
    NotDone,
    Opaque,
    Policy,
    Refused,
    Repeatable,
    StoreUnavailable,
    current,
)
from samekey.core.boundary import Boundary
from samekey.guard.store_urls import open_store
from samekey.messages import Action, AsyncHandler, Handler, Message, Rules
from samekey.testing.messages.sqlite import async_business, business

OPERATION = "suite"
GATE_SECONDS = 120.0  # an effect waits no longer for its gate: the scenario has failed by then
LOOK_SECONDS = 0.01
PAUSE_SECONDS = 0.5  # a stop reaches a thread some time after it was sent, and must not find it in a write


@dataclass(frozen=True)
class Task:
    """What a worker needs to know; it is pickled."""

    folder: str
    store: str
    consumer: str  # "module:function": it gets the handler, the address, and what says that it shall stop
    address: dict[str, Any]
    asynchronous: bool = False
    boundary: str = "keyed"
    lease: float = 5.0
    grace: float = 20.0
    threads: int = 1
    key: Any = "key"
    ignore: tuple[str, ...] = ()
    rules: Rules = field(default_factory=lambda: Rules(backoff=0.2, backoff_max=1.0, later_max=0.5))
    message_max_bytes: int = 10_000
    gated_store: bool = False


class Ledger:
    """What happened, one line each, in the order in which it happened. Several processes append to it."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / "ledger"
        self._folder = Path(folder)

    def write(self, event: str, key: str, detail: str = "") -> None:
        line = json.dumps([event, key, detail, os.getpid(), time.time()]) + "\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def lines(self, event: str, key: str | None = None) -> list[list[Any]]:
        if not self._path.exists():
            return []
        found = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [line for line in found if line[0] == event and key in (None, line[1])]

    def planned(self, key: str, number: int) -> str:
        """What the run of this number, from 0, does; the last one that is planned counts for all after it."""
        path = self._folder / "plan.json"
        plan = json.loads(path.read_text()) if path.exists() else {}
        steps = plan.get(key) or plan.get("*") or ["ok"]
        return str(steps[min(number, len(steps) - 1)])

    def gate(self, name: str) -> Path:
        return self._folder / f"gate-{name}"


class Effect:
    """What the handler does with a message."""

    def __init__(self, task: Task) -> None:
        self.ledger = Ledger(task.folder)
        self._atomic = task.boundary == "atomic"

    def __call__(self, message: Message, connection: Any = None) -> Any:
        key = str(message.value.get("key", "content"))
        do, _, name = self.ledger.planned(key, len(self.ledger.lines("begin", key))).partition(":")
        self.ledger.write("begin", key, do)
        if do == "die_first":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "hang_first":
            self._wait(name)
        if do == "not_done":
            raise NotDone("the provider is busy")
        if do == "refused":
            raise Refused("stolen card")
        if do == "error":
            raise RuntimeError("an ordinary failure")
        self.ledger.write("run", key, "" if self._atomic else current().provider_key())
        if connection is not None:
            connection.execute("INSERT INTO business VALUES (?)", (key,))
        if do == "error_after":
            raise RuntimeError("the answer of the provider was lost")
        if do == "die_after":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "pause":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(PAUSE_SECONDS)
        if do == "hang":
            self._wait(name)
        if do == "sleep":
            time.sleep(float(name))
        self.ledger.write("end", key)
        return {"done": key}

    def _wait(self, name: str) -> None:
        deadline = time.monotonic() + GATE_SECONDS
        while not self.ledger.gate(name).exists() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)


class AsyncEffect:
    """The same in a thread, so that the loop goes on."""

    def __init__(self, task: Task) -> None:
        self._effect = Effect(task)
        self.ledger = self._effect.ledger

    async def __call__(self, message: Message, connection: Any = None) -> Any:
        if connection is not None:
            return self._effect(message, connection)  # a connection of sqlite3 belongs to its thread
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def run() -> None:
            result: Any = None
            raised: Exception | None = None
            try:
                result = self._effect(message)
            except Exception as error:
                raised = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_end, done, result, raised)

        # A daemon: an effect that hangs must not keep its worker from ending.
        threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
        return await done


def _end(done: asyncio.Future[Any], result: Any, raised: Exception | None) -> None:
    if done.done():
        return
    if raised is None:
        done.set_result(result)
    else:
        done.set_exception(raised)


class DyingHandler(Handler):
    """A handler whose process may be killed after the record is settled, and before the broker gets its answer."""

    ledger: Ledger

    def process(self, message: Message, **more: Any) -> Action:
        action = super().process(message, **more)
        die_before_ack(self.ledger, message, action)
        return action

    def process_many(self, messages: Any, **more: Any) -> list[Action]:
        actions = super().process_many(messages, **more)
        for message, action in zip(messages, actions, strict=True):
            die_before_ack(self.ledger, message, action)
        return actions


class AsyncDyingHandler(AsyncHandler):
    """The same, awaited."""

    ledger: Ledger

    async def process(self, message: Message, **more: Any) -> Action:
        action = await super().process(message, **more)
        die_before_ack(self.ledger, message, action)
        return action

    async def process_many(self, messages: Any, **more: Any) -> list[Action]:
        actions = await super().process_many(messages, **more)
        for message, action in zip(messages, actions, strict=True):
            die_before_ack(self.ledger, message, action)
        return actions


def die_before_ack(ledger: Ledger, message: Message, action: Action) -> None:
    key = str(message.value.get("key", "content")) if isinstance(message.value, dict) else "poison"
    ledger.write("action", key, f"{action.verb} {action.row} {'counted' if action.counted else ''}".strip())
    begun = len(ledger.lines("begin", key))
    if begun and ledger.planned(key, begun - 1) == "die_before_ack" and not action.replayed and action.verb == "ack":
        os.kill(os.getpid(), signal.SIGKILL)


class GatedStore:
    """A store that is down while the file `store-down` is there. Sync or async: what it returns is passed on."""

    in_process = False

    def __init__(self, inner: Any, ledger: Ledger, *, asynchronous: bool) -> None:
        self._inner, self._ledger, self._asynchronous = inner, ledger, asynchronous
        self.name = inner.name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("carry_out", "batch", "park", "health", "wait"):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            if self._ledger.gate("store-down").exists():
                self._ledger.write("down", "", name)
                raise StoreUnavailable("the store is down")
            return found(*arguments, **named)

        async def acall(*arguments: Any, **named: Any) -> Any:
            return await call(*arguments, **named)

        return acall if self._asynchronous else call


def boundary_of(task: Task) -> Boundary:
    ledger = Ledger(task.folder)

    def lookup(record: Any) -> Any:
        ledger.write("ask", record.key.text)
        return Happened({"done": record.key.text}) if ledger.lines("run", record.key.text) else Absent()

    found: dict[str, Boundary] = {
        "keyed": Keyed(),
        "asks": Asks(lookup),
        "opaque": Opaque(),
        "marked": Opaque(marked=True),
        "repeatable": Repeatable(),
        "atomic": Atomic("connection"),
    }
    return found[task.boundary]


def work(task: Task) -> None:
    """Consume until SIGTERM. Everything of it may be killed at any time."""
    module, _, function = task.consumer.partition(":")
    consume = getattr(import_module(module), function)
    if task.asynchronous:
        asyncio.run(_awork(task, consume))
        return
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Guard(_store(task), policy=Policy(lease=task.lease, store_deadline=None)) as guard:
        effect = Effect(task)
        handler = DyingHandler(guard, effect, **_options(task, business))
        handler.ledger = effect.ledger
        consume(handler, task.address, stop, task)


async def _awork(task: Task, consume: Any) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncGuard(_store(task), policy=Policy(lease=task.lease)) as guard:
        effect = AsyncEffect(task)
        handler = AsyncDyingHandler(guard, effect, **_options(task, async_business))
        handler.ledger = effect.ledger
        await consume(handler, task.address, stop, task)


def _store(task: Task) -> Any:
    if not task.gated_store:
        return task.store
    inner = open_store(task.store, asynchronous=task.asynchronous)
    return GatedStore(inner, Ledger(task.folder), asynchronous=task.asynchronous)


def _options(task: Task, connection: Any) -> dict[str, Any]:
    path = task.store.removeprefix("sqlite:///")
    return {
        "name": OPERATION,
        "key": task.key,
        "ignore": task.ignore,
        "boundary": boundary_of(task),
        "rules": task.rules,
        "message_max_bytes": task.message_max_bytes,
        "connection": (lambda: connection(path)) if task.boundary == "atomic" else None,
    }
