"""Batches: commands on their way through the servers, until each has an outcome.

Sans-IO. A lost reply leaves the outcome of a command unknown. Every command recognises its own earlier write, so it is
sent again over a new connection, for as long as a server takes to restart or a replica to be promoted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from samekey.core.commands import Open, Read, StoreCommand, Wait
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers.redis.errors import is_again, is_unknown_script, store_error
from samekey.drivers.redis.wire import Lost
from samekey.stores._failures import own_copy
from samekey.stores.redis._discovery import Closed
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._requests import Request
from samekey.stores.redis._servers import Redirected, Servers, Unreachable

BATCH_MAX = 512  # commands in one batch: bounds how long the first of them waits for the last
BATCH_BYTES_MAX = 8 << 20  # bytes of their results: bounds memory, and how long the connection is busy
REASK_SECONDS = 8.0  # how long a command without a reply is sent again: a restart, a failover of sentinels or a cluster
REASK_PAUSE_SECONDS = 0.02
REASK_PAUSE_MAX_SECONDS = 0.25
REDIRECTS_MAX = 16  # redirects followed at once; after that with pauses, until the servers of the cluster agree

Requests = Generator[Any, Any, Any]  # yields a request or a list of them, is sent the answer or a list of them


class Item:
    """One command (or operator query) of a batch, and its outcome."""

    __slots__ = ("answers", "command", "digest", "done", "error", "reply", "requests", "several", "steps")

    def __init__(self, command: StoreCommand | None, steps: Requests) -> None:
        self.command = command
        self.digest = b"" if command is None else command.key.digest  # items of one digest run one after the other
        self.steps = steps
        self.requests: list[Request] = []
        self.answers: list[Any] = []  # to each request; None until it arrives
        self.several = False
        self.reply: Any = None
        self.error: Exception | None = None
        self.done = False

    def advance(self, answer: Any) -> None:
        """Continue with this answer until the next request, or to the end."""
        try:
            try:
                wanted = self.steps.send(answer)
            except StopIteration as stop:
                self.reply, self.done = stop.value, True
            else:
                if wanted.__class__ is Request:
                    self.requests, self.answers, self.several = [wanted], [None], False
                else:
                    self.requests, self.answers, self.several = wanted, [None] * len(wanted), True
        except Exception as error:  # of this command alone
            self.fail(error)
        except BaseException:  # Ctrl-C between two requests: the generator cannot continue
            self.fail(StoreUnavailable("interrupted while a reply was being read"))
            raise

    def fail(self, error: Exception) -> None:
        """End with this error, as an object of this caller's own.

        It keeps no frames: on Python 3.13 those of `steps` lead back to the leader's, with values of another caller.
        """
        self.error, self.done = own_copy(error), True
        self.steps.close()

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.reply


def weight(items: Sequence[Item]) -> int:
    """The bytes of the results and payloads that these commands carry."""
    return sum([0 if item.command is None else item.command.bulk for item in items])


def portions(items: Sequence[Item]) -> list[list[Item]]:
    """The items in order, split into batches of at most the permitted size."""
    parts: list[list[Item]] = [[]]
    carried = 0
    for item in items:
        carried += weight((item,))
        if parts[-1] and (len(parts[-1]) >= BATCH_MAX or carried > BATCH_BYTES_MAX):
            parts.append([])
            carried = weight((item,))
        parts[-1].append(item)
    return parts


def carrying_out(items: Sequence[Item], servers: Servers, known: Knowledge) -> Generator[Any, Any, None]:
    """Every item to its end: items about one key one after the other, all others together."""
    live: list[Item] = []
    later: dict[Any, deque[Item]] = {}  # items that wait for an earlier one about the same key
    for item in items:
        name = item.digest or id(item)
        if name in later:
            later[name].append(item)
        else:
            later[name] = _NONE if len(items) == 1 else deque()
            live.append(item)
            if not item.requests:
                item.advance(None)
    failures = _Failures(known.address.name, 0.0 if known.address.hasty else REASK_SECONDS)
    while live:
        wanted = [(item, at) for item in live for at, answer in enumerate(item.answers) if answer is None]
        replies = (yield from servers.exchanging([item.requests[at] for item, at in wanted])) if wanted else []
        pause = 0.0
        for (item, at), reply in zip(wanted, replies, strict=True):
            if reply.__class__ is list:
                item.answers[at] = reply
            elif not item.done:
                pause = max(pause, failures.handle(item, at, reply))
        unfinished: list[Item] = []
        for item in live:
            if not item.done and None not in item.answers:
                item.advance(item.answers if item.several else item.answers[0])
            unfinished += _next(item, later[item.digest or id(item)]) if item.done else (item,)
        live = unfinished
        if pause:
            yield partial(servers.network.sleep, pause)


def _next(ended: Item, later: deque[Item]) -> Sequence[Item]:
    """The next unfinished item about the same key, after one has ended."""
    while later:
        item = later.popleft()
        if ended.error is None and _same(ended.command, item.command):
            item.steps.close()
            item.reply, item.done = ended.reply, True
            continue
        item.advance(None)
        if not item.done:
            return (item,)
        ended = item
    return ()


_NONE: deque[Item] = deque()


def _same(first: StoreCommand | None, second: StoreCommand | None) -> bool:
    """Whether the reply to the first command is also the reply to the second, which comes directly after it."""
    if first is None or second is None or first.key != second.key:
        return False
    reads = isinstance(first, (Read, Wait)) and isinstance(second, (Read, Wait))
    return reads or (isinstance(first, Open) and isinstance(second, Open))


class _Failures:
    """Decides for each reply that is not a list: take it, fail the item, or send the request again."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, seconds
        self._deadline: float | None = None
        self._pause = REASK_PAUSE_SECONDS

    def handle(self, item: Item, at: int, reply: Any) -> float:
        """Seconds to pause before the request is sent again; 0.0 for none."""
        request = item.requests[at]
        if not isinstance(reply, Exception):
            item.answers[at] = _NIL if reply is None else reply
            return 0.0
        if isinstance(reply, SamekeyError):  # not sent, or not on its replicas
            item.fail(reply)
            return 0.0
        if isinstance(reply, Lost):
            request.lost = True
            return self._again(item, store_error(self._name, reply.cause), reply.cause)
        if isinstance(reply, Unreachable):
            # Fail at once unless an earlier try may have written something.
            if not (request.lost or request.tried) or isinstance(reply.error, (Misconfigured, Closed)):
                item.fail(reply.error)
                return 0.0
            return self._again(item, reply.error, None)
        if isinstance(reply, Redirected):
            request.redirects += 1
            if request.redirects > REDIRECTS_MAX:
                text = f"{self._name}: every server of the cluster says that another one has the key"
                return self._again(item, StoreUnavailable(text), None)
            return 0.0
        if is_unknown_script(reply) and not request.whole:
            request.whole = True
            return 0.0
        if is_again(reply):
            request.tried = True
            return self._again(item, store_error(self._name, reply), reply)
        error = store_error(self._name, reply)
        error.__cause__ = reply
        item.fail(error)
        return 0.0

    def _again(self, item: Item, error: Exception, cause: BaseException | None) -> float:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if isinstance(error, Misconfigured) or now >= self._deadline:
            error.__cause__ = cause or error.__cause__
            item.fail(error)
            return 0.0
        self._pause, pause = min(self._pause * 2, REASK_PAUSE_MAX_SECONDS), self._pause
        return pause


class _Nil(list[Any]):
    """The reply nil to a plain command. It is an answer: None means that no answer has arrived."""


_NIL = _Nil()
