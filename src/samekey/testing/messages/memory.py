"""A broker in the memory of the test process, with the count rules of each real one, and its consumer.

Workers are processes and reach it over a socket (`multiprocessing.managers`). It has the traps of real brokers: a
late ack of an old delivery removes the message, a delivery that takes too long goes to another consumer, and some
brokers count every delivery.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager
from typing import Any
from uuid import uuid4

from samekey.messages import Action, Message
from samekey.testing.messages.lab import Broker

TRIES = "samekey-tries"
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class CountRules:
    """How a broker counts deliveries, and what it can do."""

    name: str
    free_later: bool  # a message can be given back without costing a try; else it is sent anew
    death_counts: bool  # a delivery that ended with its consumer counts
    timer: float  # seconds after which a delivery goes to another consumer; 0: never


RULES = {
    "rabbitmq-4.3": CountRules("rabbitmq-4.3", free_later=True, death_counts=True, timer=0.0),
    "rabbitmq-classic": CountRules("rabbitmq-classic", free_later=False, death_counts=False, timer=0.0),
    "sqs": CountRules("sqs", free_later=False, death_counts=True, timer=6.0),
    "jetstream": CountRules("jetstream", free_later=False, death_counts=True, timer=6.0),
    "redis-streams": CountRules("redis-streams", free_later=True, death_counts=True, timer=6.0),
}


@dataclass
class _Stored:
    body: bytes
    headers: dict[str, str]
    not_before: float = 0.0
    counted: int = 0  # tries that ended
    in_hand: dict[int, tuple[int, float]] = field(default_factory=dict)  # tag -> consumer, since


class MemoryBroker:
    """One queue. Every method is atomic."""

    def __init__(self, rules: CountRules) -> None:
        self._rules = rules
        self._messages: dict[int, _Stored] = {}
        self._owner: dict[int, int] = {}  # tag -> message
        self._next = 0
        self._mutex = threading.Lock()

    def publish(self, body: bytes, headers: dict[str, str], seconds: float = 0.0) -> None:
        with self._mutex:
            self._next += 1
            self._messages[self._next] = _Stored(body, dict(headers), time.monotonic() + seconds)

    def get(self, consumer: int) -> tuple[int, bytes, dict[str, str], int] | None:
        """The next message: a tag of this delivery, body, headers, and how many tries ended before."""
        now = time.monotonic()
        with self._mutex:
            for number, stored in self._messages.items():
                self._expire(stored, now)
                if not stored.in_hand and stored.not_before <= now:
                    self._next += 1
                    stored.in_hand[self._next] = (consumer, now)
                    self._owner[self._next] = number
                    return self._next, stored.body, dict(stored.headers), stored.counted
        return None

    def ack(self, tag: int) -> None:
        """Forget the message. A late ack of an old delivery forgets it, too: that is the trap."""
        with self._mutex:
            self._messages.pop(self._owner.get(tag, 0), None)

    def later(self, tag: int, seconds: float, counted: bool) -> None:
        with self._mutex:
            stored = self._messages.get(self._owner.get(tag, 0))
            if stored is not None and stored.in_hand.pop(tag, None) is not None:
                stored.not_before = time.monotonic() + seconds
                stored.counted += counted or not self._rules.free_later

    def extend(self, tag: int) -> None:
        with self._mutex:
            stored = self._messages.get(self._owner.get(tag, 0))
            if stored is not None and tag in stored.in_hand:
                stored.in_hand[tag] = (stored.in_hand[tag][0], time.monotonic())

    def disconnect(self, consumer: int) -> None:
        """The connection of this consumer is gone: what it has in hand goes to another."""
        with self._mutex:
            for stored in self._messages.values():
                for tag in [tag for tag, (owner, _) in stored.in_hand.items() if owner == consumer]:
                    del stored.in_hand[tag]
                    stored.counted += self._rules.death_counts

    def depth(self) -> int:
        with self._mutex:
            return len(self._messages)

    def _expire(self, stored: _Stored, now: float) -> None:
        if self._rules.timer:
            for tag in [tag for tag, (_, since) in stored.in_hand.items() if now - since > self._rules.timer]:
                del stored.in_hand[tag]
                stored.counted += 1


class _Manager(BaseManager):
    """What workers connect to; the test process serves it as `_Server`."""


class _Server(BaseManager):
    """One for the whole run: its queues have names."""


_queues: dict[str, MemoryBroker] = {}
_addresses: list[Any] = []  # where the one server of this process is, once it is started


def _served() -> Any:
    if not _addresses:
        _Server.register("queue", callable=_queues.__getitem__)
        server: Any = _Server(address=("127.0.0.1", 0), authkey=b"samekey").get_server()
        server.stop_event = threading.Event()
        threading.Thread(target=server.accepter, daemon=True, name="memory-broker").start()
        _addresses.append(server.address)
    return _addresses[0]


class MemoryLabBroker(Broker):
    """The in-memory broker for the suite."""

    consumer = "samekey.testing.messages.memory:consume"

    def __init__(self, rules: CountRules) -> None:
        self.queue = MemoryBroker(rules)
        self.rules, self.timer_seconds = rules, rules.timer
        self._name = uuid4().hex
        _queues[self._name] = self.queue

    def address(self) -> dict[str, Any]:
        host, port = _served()
        return {"host": host, "port": port, "name": self._name, "free_later": self.rules.free_later}

    def publish(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.queue.publish(body, headers or {})

    def depth(self) -> int:
        return self.queue.depth()

    def gone(self, pid: int) -> None:
        self.queue.disconnect(pid)

    def take_away(self, pid: int) -> None:
        self.queue.disconnect(pid)

    def close(self) -> None:
        del _queues[self._name]


def consume(handler: Any, address: dict[str, Any], stop: threading.Event, task: Any) -> None:
    """The consumer: as thin as those of real brokers. Each thread has one delivery at a time."""
    _Manager.register("queue")
    consumer = _Consumer(handler, address, stop)
    threads = [threading.Thread(target=consumer.run, daemon=True) for _ in range(task.threads)]
    for thread in threads:
        thread.start()
    stop.wait()
    handler.stopping = True
    deadline = time.monotonic() + task.grace
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    queue = consumer.connect()
    for message, action in handler.cut():
        consumer.translate(queue, message, action)


class _Consumer:
    def __init__(self, handler: Any, address: dict[str, Any], stop: threading.Event) -> None:
        self._handler, self._address, self._stop = handler, address, stop
        self._down = threading.Event()

    def connect(self) -> Any:
        manager = _Manager(address=(self._address["host"], self._address["port"]), authkey=b"samekey")
        manager.connect()
        return manager.queue(self._address["name"])  # type: ignore[attr-defined]

    def run(self) -> None:
        queue = self.connect()
        while not self._stop.is_set():
            if self._down.is_set():
                if not self._handler.well():
                    self._stop.wait(0.1)
                    continue
                self._down.clear()
            got = queue.get(os.getpid())
            if got is None:
                self._stop.wait(POLL_SECONDS)
                continue
            tag, body, headers, counted = got
            tries = counted + int(headers.get(TRIES, "0")) + 1
            message = Message(body, headers, "memory", tries, str(tag), tag)
            action = self._handler.process(message, extend=lambda: self.connect().extend(tag))  # noqa: B023
            self.translate(queue, message, action)

    def translate(self, queue: Any, message: Message, action: Action) -> None:
        tag = message.raw
        if action.stop:
            self._down.set()
        match action.verb:
            case "ack" | "park" | "dead":
                queue.ack(tag)
            case "later" if self._address["free_later"] or action.counted:
                queue.later(tag, action.seconds, action.counted)
            case "later":  # this broker counts every delivery: a free one is sent anew, and the old one forgotten
                queue.publish(message.body, {**message.headers, TRIES: str(message.tries - 1)}, action.seconds)
                queue.ack(tag)
            case "silent" if action.stop:
                queue.disconnect(os.getpid())
            case "silent":
                pass
