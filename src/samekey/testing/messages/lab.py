"""What a scenario has at hand: a broker, workers that are processes, the ledger, and the guard's records."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from samekey import Guard
from samekey.core.parking import Parked, ParkedQuery
from samekey.core.record import Record
from samekey.testing.messages.worker import OPERATION, Ledger, Task, work

WAIT_SECONDS = 60.0  # a scenario that is not there by then has failed; a quiet machine needs a second or two
LOOK_SECONDS = 0.02


class Broker:
    """A broker as the suite needs it. Inherit from it for each library that is tested."""

    consumer: str  # "module:function", run in the worker: consume(handler, address, stop, task)
    asynchronous = False
    free_later = True  # a message can come later without costing a try
    buffers = True  # a consumer has messages in hand whose effect has not begun
    ordered = False  # one message waits for the one before it: a busy key holds up its neighbours
    timer_seconds = 0.0  # how long a delivery may take before the broker gives it to another; 0: no limit
    settle_seconds = 0.0  # how long `depth` must be 0: some brokers count late, or not while a message moves
    preload: tuple[str, ...] = ()  # modules that every worker needs

    def address(self) -> dict[str, Any]:
        """What the consumer needs to connect; it is pickled."""
        raise NotImplementedError

    def publish(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        raise NotImplementedError

    def depth(self) -> int:
        """How many messages the broker has not forgotten: waiting, in hand, or to come later."""
        raise NotImplementedError

    def gone(self, pid: int) -> None:
        """A worker has died. A real broker notices by itself."""

    def take_away(self, pid: int) -> None:
        """Give the deliveries of this worker, which does not answer, to another. Some brokers have a timer for it."""

    def close(self) -> None:
        """The test is over."""


class Worker:
    """One process that consumes."""

    def __init__(self, lab: Lab, process: Any) -> None:
        self._lab, self.process = lab, process

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """Ask it to stop, as a deployment does."""
        os.kill(self.pid, signal.SIGTERM)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        self.process.join(WAIT_SECONDS)
        assert self.process.exitcode is not None, "the worker did not end"
        self._lab.broker.gone(self.pid)
        return int(self.process.exitcode)


class Lab:
    """One scenario: its own folder, store, ledger and workers."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.folder = Path(tempfile.mkdtemp(prefix="samekey-lab-", dir="/tmp"))
        self.store = f"sqlite:///{self.folder}/keys.db"
        self.guard = Guard(self.store)
        self.guard.check()
        self.ledger = Ledger(self.folder)
        self._workers: list[Worker] = []
        self._context: Any = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["samekey.testing.messages.worker", *broker.preload])

    def plan(self, **steps: list[str]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(steps))

    def publish(self, key: str = "k1", *, headers: dict[str, str] | None = None, **more: Any) -> None:
        self.broker.publish(json.dumps({"key": key, "amount": 1, **more}).encode(), headers or {})

    def start(self, **options: Any) -> Worker:
        """A worker, started; it is connected some time after."""
        broker = self.broker
        task = Task(str(self.folder), self.store, broker.consumer, broker.address(), broker.asynchronous)
        process = self._context.Process(target=work, args=(replace(task, **options),), daemon=True)
        process.start()
        worker = Worker(self, process)
        self._workers.append(worker)
        return worker

    # -- what became of it

    def runs(self, key: str = "k1") -> int:
        """How often the effect reached the provider."""
        return len(self.ledger.lines("run", key))

    def provider_keys(self, key: str = "k1") -> set[str]:
        return {str(line[2]) for line in self.ledger.lines("run", key)}

    def begun(self, key: str = "k1") -> int:
        return len(self.ledger.lines("begin", key))

    def actions(self, key: str = "k1") -> list[str]:
        return [str(line[2]) for line in self.ledger.lines("action", key)]

    def record(self, key: str = "k1") -> Record | None:
        return self.guard.peek(OPERATION, key)

    def state(self, key: str = "k1") -> str:
        record = self.record(key)
        return "" if record is None else str(record.state)

    def parked(self, **query: Any) -> list[Parked]:
        return list(self.guard.store.parked(ParkedQuery(operation=OPERATION, **query)))

    def open_gate(self, name: str) -> None:
        self.ledger.gate(name).touch()

    def close_gate(self, name: str) -> None:
        self.ledger.gate(name).unlink(missing_ok=True)

    # -- waiting

    def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not happen; {self.story()}")
            time.sleep(LOOK_SECONDS)

    def until_empty(self) -> None:
        since = [float("inf")]

        def empty() -> bool:
            now = time.monotonic()
            since[0] = min(since[0], now) if self.broker.depth() == 0 else float("inf")
            return now - since[0] >= self.broker.settle_seconds

        self.until(empty, "an empty broker")

    def until_begun(self, key: str = "k1", times: int = 1) -> None:
        self.until(lambda: self.begun(key) >= times, f"run {times} of {key}")

    def story(self) -> str:
        path = self.folder / "ledger"
        return f"depth {self.broker.depth()}, parked {len(self.parked())}, ledger:\n" + (
            path.read_text() if path.exists() else "(empty)"
        )

    def close(self) -> None:
        for worker in self._workers:
            if worker.process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                worker.process.join(WAIT_SECONDS)
            worker.process.close()
        self.guard.close()
        self.broker.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def lab_of(broker: Broker) -> Iterator[Lab]:
    lab = Lab(broker)
    try:
        yield lab
    finally:
        lab.close()
