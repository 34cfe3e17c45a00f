"""Many deliveries at once: one round trip of claims and one of settles, and no outcome touches another.

Keys that are twice in a batch are begun in waves: the second delivery begins when the first is settled, and is a
replay then. Runs are settled together when 100 have ended, after 50 ms, or after a quarter of the lease, and the
caller acknowledges nothing before that. Under Opaque each run is settled by itself: a crash before a common settle
would leave a doubt for each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from samekey.core.boundary import Kind
from samekey.core.call import Call
from samekey.guard.adapters import AsyncRunning, Running
from samekey.messages._ack import Action, Poison, Shutdown, TooBig
from samekey.messages._message import Message

FLUSH_RUNS = 100
FLUSH_SECONDS = 0.05

Item = tuple[int, Message, Call]


class _Batch:
    """What both colours share."""

    def __init__(self, handler: Any, messages: Sequence[Message], extend: Callable[[Message], Any] | None) -> None:
        self._handler, self._messages, self._extend = handler, messages, extend
        self.actions: list[Action | None] = [None] * len(messages)
        self._ended: list[tuple[Item, Any, Any, bool]] = []  # item, running, end, lost
        self._since = 0.0
        alone = handler.operation.terms.kind is Kind.OPAQUE
        self._most = 1 if alone else FLUSH_RUNS
        self._longest = min(FLUSH_SECONDS, handler.lease_seconds / 4)

    def waves(self, calls: list[Any]) -> Iterator[list[Item]]:
        """Items whose keys are distinct, then those whose keys came a second time, and so on."""
        waiting = [
            (number, self._messages[number], call)
            for number, call in enumerate(calls)
            if not isinstance(call, (Poison, TooBig))
        ]
        while waiting:
            seen: set[bytes] = set()
            wave: list[Item] = []
            rest: list[Item] = []
            for item in waiting:
                digest = item[2].key.digest
                (rest if digest in seen else wave).append(item)
                seen.add(digest)
            yield wave
            waiting = rest

    def add(self, item: Item, running: Any, end: Any, lost: bool) -> None:
        if not self._ended:
            self._since = time.monotonic()
        self._ended.append((item, running, end, lost))

    @property
    def full(self) -> bool:
        return len(self._ended) >= self._most or (bool(self._ended) and time.monotonic() - self._since >= self._longest)

    def extender(self, message: Message) -> Callable[[], Any] | None:
        extend = self._extend
        return None if extend is None else lambda: extend(message)

    def whole(self) -> list[Action]:
        return [action if action is not None else Action("silent") for action in self.actions]


class Batch(_Batch):
    """For `Handler`."""

    def run(self) -> list[Action]:
        handler = self._handler
        calls = [handler.call_of(message) for message in self._messages]
        for number, call in enumerate(calls):
            if isinstance(call, (Poison, TooBig)):
                message = self._messages[number]
                self.actions[number] = handler.keep(message, handler.decide(call, message), None)
        for wave in self.waves(calls):
            self._wave(wave)
        return self.whole()

    def _wave(self, wave: list[Item]) -> None:
        handler = self._handler
        if handler.stopping:
            for number, message, _ in wave:
                self.actions[number] = handler.decide(Shutdown(), message)
            return
        opened = handler._guard.begin_many([call for _, _, call in wave], wait=0)
        stop: BaseException | None = None
        for item, one in zip(wave, opened, strict=True):
            number, message, call = item
            if not isinstance(one, Running):
                self.actions[number] = handler.keep(message, handler.decide(one, message), call)
            elif stop is not None or handler.stopping:
                one.release("shutdown")
                self.actions[number] = handler.decide(Shutdown(), message)
            else:
                renew = self.extender(message)
                if renew is not None:
                    one.also_renew(renew)
                ours, end = handler.run_one(one, message, call)
                if not ours:
                    self.actions[number] = Action("silent", row="16")
                    continue
                self.add(item, one, end, one.lost)
                if isinstance(end, BaseException) and not isinstance(end, Exception):
                    stop = end
                if self.full:
                    self._flush()
        self._flush()
        if stop is not None:
            raise stop

    def _flush(self) -> None:
        ended, self._ended = self._ended, []
        if not ended:
            return
        settled = self._handler._guard.settle_many([(running, end) for _, running, end, _ in ended])
        for ((number, message, call), _, _, lost), one in zip(ended, settled, strict=True):
            action = self._handler.decide(one, message, lost=lost)
            self.actions[number] = self._handler.keep(message, action, call)


class AsyncBatch(_Batch):
    """For `AsyncHandler`."""

    async def run(self) -> list[Action]:
        handler = self._handler
        calls = [handler.call_of(message) for message in self._messages]
        for number, call in enumerate(calls):
            if isinstance(call, (Poison, TooBig)):
                message = self._messages[number]
                self.actions[number] = await handler.keep(message, handler.decide(call, message), None)
        for wave in self.waves(calls):
            await self._wave(wave)
        return self.whole()

    async def _wave(self, wave: list[Item]) -> None:
        handler = self._handler
        if handler.stopping:
            for number, message, _ in wave:
                self.actions[number] = handler.decide(Shutdown(), message)
            return
        opened = await handler._guard.begin_many([call for _, _, call in wave], wait=0)
        stop: BaseException | None = None
        for item, one in zip(wave, opened, strict=True):
            number, message, call = item
            if not isinstance(one, AsyncRunning):
                self.actions[number] = await handler.keep(message, handler.decide(one, message), call)
            elif stop is not None or handler.stopping:
                await one.release("shutdown")
                self.actions[number] = handler.decide(Shutdown(), message)
            else:
                renew = self.extender(message)
                if renew is not None:
                    one.also_renew(renew)
                ours, end = await handler.run_one(one, message, call)
                if not ours:
                    self.actions[number] = Action("silent", row="16")
                    continue
                self.add(item, one, end, one.lost)
                if isinstance(end, BaseException) and not isinstance(end, Exception):
                    stop = end
                if self.full:
                    await self._flush()
        await self._flush()
        if stop is not None:
            raise stop

    async def _flush(self) -> None:
        ended, self._ended = self._ended, []
        if not ended:
            return
        settled = await self._handler._guard.settle_many([(running, end) for _, running, end, _ in ended])
        for ((number, message, call), _, _, lost), one in zip(ended, settled, strict=True):
            action = self._handler.decide(one, message, lost=lost)
            self.actions[number] = await self._handler.keep(message, action, call)
