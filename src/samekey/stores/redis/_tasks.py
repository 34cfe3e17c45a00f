"""The connections of one event loop, shared by its tasks.

Commands that are given in one iteration of the loop travel in one pipeline, and the next pipeline does not wait for its
replies. No command belongs to the task that gave it, so cancelling a caller never cancels a command.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from samekey.core.drive import adrive, do
from samekey.drivers.redis.connect import Place
from samekey.drivers.redis.errors import is_unknown_script
from samekey.drivers.redis.wire import AsyncWire, Lost
from samekey.stores._failures import own_copy
from samekey.stores.redis._batches import BATCH_BYTES_MAX, BATCH_MAX, Item, carrying_out, weight
from samekey.stores.redis._discovery import Connection, Network
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._requests import SELF_CHECK
from samekey.stores.redis._servers import Servers

TOGETHER = 16  # commands of one pipeline; then the server may begin while the loop prepares the next ones
PIPELINE_BYTES_MAX = 1 << 16  # a larger command goes into a batch: this bounds the bytes in flight
CLOSE_LOOK_SECONDS = 0.005  # how often close() checks whether all commands have their replies

_Entry = tuple[Item, "asyncio.Future[None]"]


class TaskQueue:
    """Carries out the commands of the tasks of one event loop.

    Single commands go over the one good connection in pipelines; several pipelines are in flight at a time. All else
    goes into batches, one after the other: several servers, a connection to be made, a reply that is an error, another
    command about a key that is in flight.
    """

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self.servers = Servers(known, NETWORK)
        self._loop = asyncio.get_running_loop()
        self._next: list[_Entry] = []  # for the next pipeline
        self._in_flight: dict[bytes, list[_Entry]] = {}  # by digest: the commands that came after it
        self._pipelines: set[_Pipeline] = set()
        self._queue: deque[tuple[Sequence[Item] | Callable[[], Any], asyncio.Future[None]]] = deque()
        self._batches: asyncio.Task[None] | None = None

    def perform(self, items: Sequence[Item]) -> asyncio.Future[None]:
        """Carry these out. A task that stops waiting for the future stops no command."""
        if len(items) == 1:
            return self.perform_one(items[0])
        future: asyncio.Future[None] = self._loop.create_future()
        self._enqueue(items, future)
        return future

    def perform_one(self, item: Item) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        digest, gathered = item.digest, self._next
        later = self._in_flight.get(digest) if digest else None
        if later is None:
            if self._pipelines and not gathered:
                self._loop.call_soon(self._send_next)
            gathered.append((item, future))
            if digest:
                self._in_flight[digest] = _NONE
            if not self._pipelines or len(gathered) >= TOGETHER:
                self._send_next()
        elif later is _NONE:
            # The reply in flight may be older than this command. All that come meanwhile are sent together after it.
            self._in_flight[digest] = [(item, future)]
        else:
            later.append((item, future))
        return future

    async def check_servers(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._enqueue(self.servers.checking_all, future)
        await future

    async def close(self) -> None:
        self.servers.closed = True
        while self._pipelines or self._next or (self._batches is not None and not self._batches.done()):
            self._send_next()
            await asyncio.sleep(CLOSE_LOOK_SECONDS)
        for connection in list(self.servers.connections.values()):
            await connection.wire.close()

    def abandon(self) -> None:
        """Give the connections up: the loop is closed, and its tasks are gone."""
        self.servers.closed = True
        for connection in list(self.servers.connections.values()):
            connection.wire.abandon()

    # -- pipelines -----------------------------------------------------------------------------------------

    def _send_next(self) -> None:
        entries, self._next = self._next, []
        connection = self.servers.simple_connection()
        if connection is None:  # not connected yet, lost since, or one of several servers
            for item, future in entries:
                self._to_batch(item, future)
        elif entries:
            pipeline = _Pipeline(self, connection, entries)
            try:
                for item, _ in entries:
                    item.advance(None)
                self._pipelines.add(pipeline)
                self.send(pipeline)
            except BaseException:
                self.interrupted(pipeline)
                raise

    def send(self, pipeline: _Pipeline) -> None:
        """Send the next request of each unfinished item."""
        going, data = [], []
        servers, connection = self.servers, pipeline.connection
        for item, future in pipeline.entries:
            if item.done:
                self._finish(item, future)
            elif item.several or item.requests[0].script is SELF_CHECK:
                self._to_batch(item, future)
            else:
                packed = servers.packed(connection, item.requests[0])
                if len(packed) > PIPELINE_BYTES_MAX:
                    self._to_batch(item, future)
                    continue
                going.append((item, future))
                data.append(packed)
        pipeline.entries = going
        if not going:
            self._pipelines.discard(pipeline)
            if self._next:  # usually sent already, by `call_soon`
                self._send_next()
            return
        try:
            connection.wire.request(b"".join(data), len(data), pipeline)
        except Lost as lost:  # it was closed while it was idle: the same as a loss in flight
            pipeline.lose(lost)

    def separate(self, pipeline: _Pipeline, answers: list[Any]) -> None:
        """Move the items with an error reply into a batch, which sends the same request again."""
        entries, pipeline.entries = pipeline.entries, []
        for (item, future), answer in zip(entries, answers, strict=True):
            if answer.__class__ is list:
                pipeline.entries.append((item, future))
            else:
                item.requests[0].whole = is_unknown_script(answer)
                self._to_batch(item, future)

    def connection_lost(self, pipeline: _Pipeline) -> None:
        self._pipelines.discard(pipeline)
        self.servers.drop(pipeline.connection)
        for item, future in pipeline.entries:
            item.requests[0].lost = True
            self._to_batch(item, future)

    def interrupted(self, pipeline: _Pipeline) -> None:
        """Ctrl-C left the loop within this pipeline: how far each item came is unknown."""
        self._pipelines.discard(pipeline)
        for item, future in pipeline.entries:
            future.cancel()
            self._release_later(item)

    def _finish(self, item: Item, future: asyncio.Future[None]) -> None:
        if not future.done():  # else the task was cancelled
            future.set_result(None)
        self._release_later(item)

    def _to_batch(self, item: Item, future: asyncio.Future[None]) -> None:
        self._enqueue((item,), future)
        self._release_later(item)

    def _release_later(self, item: Item) -> None:
        for another, waiting in self._in_flight.pop(item.digest, _NONE):
            self._enqueue((another,), waiting)

    # -- batches -------------------------------------------------------------------------------------------

    def _enqueue(self, work: Sequence[Item] | Callable[[], Any], future: asyncio.Future[None]) -> None:
        self._queue.append((work, future))
        if self._batches is None or self._batches.done():
            self._batches = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while self._queue:
            work, future = self._queue.popleft()
            futures, error = [future], None
            try:
                if callable(work):
                    await adrive(work(), do)
                else:
                    items, carried = list(work), weight(work)
                    while self._queue and len(items) < BATCH_MAX and carried < BATCH_BYTES_MAX:
                        if callable(self._queue[0][0]):
                            break
                        more, another = self._queue.popleft()
                        items += more  # type: ignore[arg-type]
                        carried += weight(more)  # type: ignore[arg-type]
                        futures.append(another)
                    await adrive(carrying_out(items, self.servers, self._known), do)
            except Exception as raised:
                error = raised
            except BaseException:
                for one in (*futures, *(waiting for _, waiting in self._queue)):
                    one.cancel()  # the loop is being closed
                self._queue.clear()
                raise
            for one in futures:
                if one.done():
                    continue  # the task was cancelled
                if error is None:
                    one.set_result(None)
                else:
                    one.set_exception(error if len(futures) == 1 else own_copy(error))


async def _connect(place: Place) -> AsyncWire:
    wire = AsyncWire(place)
    async with asyncio.timeout(place.connect_seconds + place.answer_seconds):
        await wire.connect()
    return wire


NETWORK = Network(_connect, asyncio.sleep)


class _Pipeline:
    """Some items in flight together. Each reply leads to the next request, in the loop's own callbacks."""

    __slots__ = ("connection", "entries", "queue")

    def __init__(self, queue: TaskQueue, connection: Connection, entries: list[_Entry]) -> None:
        self.queue, self.connection, self.entries = queue, connection, entries

    def receive(self, answers: list[Any]) -> None:
        try:
            odd = False
            for (item, _), answer in zip(self.entries, answers, strict=True):
                if answer.__class__ is list:
                    item.advance(answer)
                else:
                    odd = True
            if odd:
                self.queue.separate(self, answers)
            self.queue.send(self)
        except BaseException:
            self.queue.interrupted(self)
            raise

    def lose(self, lost: Lost) -> None:
        self.queue.connection_lost(self)


_NONE: list[_Entry] = []
