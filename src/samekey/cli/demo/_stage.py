"""The stage: starts the provider and the workers, hands out orders, restarts who was killed.

One thread decides (`Stage.play`); one small thread for each child only reads its lines into the inbox.
Every child is ended by its own handle, and ends by itself when our end of its stdin closes.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from samekey.cli.demo._plan import COLUMNS, KILLED, SLOW_ANSWER_SECONDS, deliveries, plan
from samekey.cli.demo._provider import LEDGER_TIMEOUT_SECONDS
from samekey.cli.demo._service import Message, Remote

WORKERS = 3  # in each column: the smallest crowd in which two can meet while one is dead
START_SECONDS = 30.0  # for a service to say where it listens
PLAY_SECONDS = 120.0  # the whole play; 10 s is usual
LOOK_SECONDS = 0.2  # how often the judge is asked for its books
LATE_LOOKS_MAX = 50  # 10 s for the last charges to land; half a second is usual
RESTARTS_MAX = KILLED + 3  # in one column; more than that is a worker that cannot start

PROVIDER = ("-m", "samekey.cli.demo._provider")
WORKER = ("-m", "samekey.cli.demo._worker")


class Broken(Exception):
    """The demo itself did not get through; says why."""


@dataclass
class Column:
    """What is seen of one column while it plays."""

    name: str
    waiting: deque[str]
    deliveries: int
    ended: int = 0
    killed: list[str] = field(default_factory=list)
    restarts: int = 0
    charged: dict[str, int] = field(default_factory=dict)  # by the provider's books
    lookups: int = 0
    in_doubt: set[str] = field(default_factory=set)

    @property
    def over(self) -> bool:
        return self.ended == self.deliveries


Inbox = SimpleQueue[tuple["Child", Message | None]]


class Child:
    """A process we started: lines in, lines out."""

    def __init__(self, command: tuple[str, ...], part: Message, *, inbox: Inbox, log: Any) -> None:
        self.column, self.order = part.get("column", ""), ""
        self._inbox = inbox
        self.process = subprocess.Popen(  # noqa: S603 - our own modules, our own interpreter
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,  # Ctrl-C is for the parent; it ends the children in its own order
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.tell(part)

    def tell(self, message: Message) -> None:
        assert self.process.stdin is not None  # noqa: S101 - a pipe, see above
        with suppress(BrokenPipeError):  # just killed: its reader says so in the inbox
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            with suppress(BrokenPipeError):  # an order it did not live to read
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - a pipe, see above
        for line in self.process.stdout:
            self._inbox.put((self, json.loads(line)))
        self._inbox.put((self, None))


class Stage:
    """`with Stage(...) as stage: stage.play(watch)`; leaving it ends every process."""

    def __init__(self, *, seed: int, orders: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="samekey-demo-"))
        self.ledger = self.folder / "ledger.jsonl"
        self.store = f"sqlite:///{self.folder / 'keys.db'}"
        self.log = self.folder / "workers.log"
        queue = [order.id for order in deliveries(plan(seed=seed, orders=orders))]
        self.columns = {name: Column(name, deque(queue), len(queue)) for name in COLUMNS}
        files = {"ledger": str(self.ledger), "store": self.store}
        self._part: Message = {"seed": seed, "orders": orders, "secret": secrets.token_hex(16), **files}
        self._children: list[Child] = []
        self._inbox: Inbox = SimpleQueue()
        self._log = self.log.open("a", encoding="utf-8")

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *raised: object) -> None:
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.stop()
        self._log.close()

    def play(self, watch: Callable[[], None]) -> None:
        """Play until every delivery has ended; `watch` is called now and then, with `columns` up to date."""
        self._part["provider"] = self._serving(PROVIDER)
        self._books = Remote(port=self._part["provider"], secret=self._part["secret"])
        for _ in range(WORKERS):
            for name in COLUMNS:
                self._start(WORKER, column=name)

        ends, look_at = time.monotonic() + PLAY_SECONDS, 0.0
        while not all(column.over for column in self.columns.values()):
            if time.monotonic() > ends:
                raise self._broken(f"not over after {PLAY_SECONDS:.0f} s")
            if time.monotonic() > look_at:
                self._look()
                watch()
                look_at = time.monotonic() + LOOK_SECONDS
            try:
                self._take(*self._inbox.get(timeout=LOOK_SECONDS))
            except Empty:
                pass
        self._wait_for_late_charges()
        watch()

    def _wait_for_late_charges(self) -> None:
        """The clients are gone; what they sent may still land, and the judge must not look away too early."""
        time.sleep(SLOW_ANSWER_SECONDS)
        for _ in range(LATE_LOOKS_MAX):
            if self._look() == 0:
                return
            time.sleep(LOOK_SECONDS)
        raise self._broken("the provider never came to rest")

    def _take(self, child: Child, message: Message | None) -> None:
        column = self.columns.get(child.column)
        if column is None:
            raise self._broken("the provider ended")
        match message:
            case None:
                self._ended(child, column)
            case {"event": "trouble", "what": "InDoubt"}:
                column.in_doubt.add(child.order)
            case {"event": "trouble"}:
                pass  # it says it again by itself
            case {"event": "ready"}:
                self._hand_out(child, column)
            case {"event": event}:
                column.ended += 1
                if event == "done":
                    column.in_doubt.discard(child.order)
                self._hand_out(child, column)

    def _hand_out(self, child: Child, column: Column) -> None:
        child.order = column.waiting.popleft() if column.waiting else ""
        if child.order:
            child.tell({"order": child.order})

    def _ended(self, child: Child, column: Column) -> None:
        """A worker is gone: what it worked on goes back to the front of the queue, and another takes its place."""
        child.stop()
        self._children.remove(child)
        if child.order:
            column.waiting.appendleft(child.order)
        if child.process.returncode == -signal.SIGKILL:
            column.killed.append(child.order)
        column.restarts += 1
        if column.restarts > RESTARTS_MAX:
            raise self._broken(f"the workers of {column.name!r} end again and again")
        self._start(WORKER, column=column.name)

    def _look(self) -> int:
        """Bring `columns` up to date with the provider's books; how many charges are still on their way."""
        try:
            books = self._books.call("books", timeout_seconds=LEDGER_TIMEOUT_SECONDS)
        except OSError as error:
            raise self._broken(f"the provider does not answer ({error})") from error
        for name, column in self.columns.items():
            column.charged, column.lookups = books["charged"][name], books["lookups"].get(name, 0)
        return int(books["on_their_way"])

    def _serving(self, command: tuple[str, ...]) -> int:
        """Start a service and learn where it listens; before any worker, so its lines are the only ones."""
        self._start(command)
        try:
            _, message = self._inbox.get(timeout=START_SECONDS)
        except Empty:
            message = None
        if message is None:
            raise self._broken(f"{command[-1]} did not start")
        return int(message["port"])

    def _start(self, command: tuple[str, ...], **more: Any) -> None:
        self._children.append(Child(command, {**self._part, **more}, inbox=self._inbox, log=self._log))

    def _broken(self, why: str) -> Broken:
        return Broken(f"{why}; its processes wrote {self.log}")
