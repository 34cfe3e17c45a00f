"""A connection that the tasks of one event loop share.

As among threads (`stores._turns`): while the connection is busy commands queue up, and when it is free they go out
together. Callbacks of the event loop send and answer. No caller's task runs a statement, so cancelling a caller never
cancels a statement. An answer goes straight to the task that waits for it. The commands of all tasks that are running
right now are sent after these tasks, together (`Round`). A task that got its answer mostly sends its next command at
once, over another connection: so after an answer the round looks at all connections of the loop. Only what may take
longer has a task of its own: connecting, pausing, asking again.

A signal handler may raise in any of these callbacks, and the loop may be run on, or again. So the callers of a batch
are noted before anything is sent. An interrupted callback fails them, closes the connection, and sends what is queued.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.connect import connect_async, with_settings
from samekey.drivers.postgres.connection import AsyncConnection
from samekey.drivers.postgres.errors import DriverError, is_spent, translated
from samekey.drivers.postgres.exchange import Query
from samekey.drivers.postgres.self_check import LOCK_SECONDS, Facts
from samekey.stores._failures import own_copy
from samekey.stores.postgres._batches import BATCH_MAX, Closed, Item, Loss, Pause, Run, Steps, carrying_all
from samekey.stores.postgres._rows import Statement
from samekey.stores.postgres._threads import SPARE_SECONDS


class Round:
    """Sends for the connections of one event loop after all tasks that are running right now."""

    def __init__(self) -> None:
        self.connections: dict[AsyncSharedConnection, None] = {}  # that have something to send
        self.due = False

    def call(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.due:
            loop.call_soon(self.go)
            self.due = True  # not before: one round too many does no harm

    def go(self) -> None:
        try:
            self.due = False
            for connection in list(self.connections):
                connection.flush()
                self.connections.pop(connection, None)  # not before, for the same reason
        except BaseException:
            asyncio.get_running_loop().call_soon(self.go)
            raise


class AsyncSharedConnection:
    """A connection that the tasks of one event loop take turns on; the options are those of `SharedConnection`."""

    def __init__(
        self,
        address: Address,
        round: Round,
        *,
        durable: bool = True,
        operator: bool = False,
        lock_seconds: float = LOCK_SECONDS,
        batch_max: int = BATCH_MAX,
        spare: AsyncSharedConnection | None = None,
    ) -> None:
        self._address = address
        self._round = round
        self._durable, self._operator, self._lock_seconds = durable, operator, lock_seconds
        self._batch_max = batch_max
        self._spare, self._spare_until = spare, 0.0
        self._connection: AsyncConnection | None = None
        self._asked: deque[tuple[Callable[[], Awaitable[None]], asyncio.Future[None]]] = deque()
        self._wanted: list[tuple[Sequence[Item], asyncio.Future[None]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = False
        self._under_way: list[asyncio.Future[None]] | None = None  # of the callers whose commands were sent
        self._slow: asyncio.Task[None] | None = None  # kept here, or the garbage collector would take it
        self._idle: asyncio.Future[None] | None = None  # `close` waits for it
        self._closed = False
        self.facts: Facts | None = None
        self._loss = Loss()

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def perform(self, items: Sequence[Item]) -> asyncio.Future[None]:
        """Carry these out together with the commands of other tasks; the future is done when all have answers."""
        loop = self._loop or self._begin()
        future: asyncio.Future[None] = loop.create_future()
        self._wanted.append((items, future))
        if not self._busy:
            self._line_up(loop)
        return future

    async def ask(self, statement: Statement) -> list[Any]:
        """The rows of one statement that is no command, in a turn of its own."""
        rows: list[Any] = []

        async def fetch(connection: AsyncConnection) -> None:
            connection.rest()
            rows.extend(await (await connection.execute(*statement, binary=True)).fetchall())

        loop = self._loop or self._begin()
        future: asyncio.Future[None] = loop.create_future()
        self._asked.append((lambda: self._on_connection(fetch), future))
        if not self._busy:
            self._line_up(loop)
        with translated(self._address):
            await future
        return rows

    async def close(self) -> None:
        self._closed = True
        if self._busy and self._loop is not None:
            self._idle = self._loop.create_future()
            await self._idle
        if self._connection is not None:
            await self._connection.close()

    def abandon(self) -> None:
        """The loop has ended, or runs in another thread: no caller of it waits any more."""
        self._closed = True
        connection, loop = self._connection, self._loop
        if connection is None or loop is None:
            return
        if loop.is_running():
            loop.call_soon_threadsafe(connection.drop)  # only the loop itself may stop watching a socket
        else:
            connection.drop()

    # -- taking turns --------------------------------------------------------------------------------------

    def _begin(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _line_up(self, loop: asyncio.AbstractEventLoop) -> None:
        self._round.connections[self] = None
        self._round.call(loop)
        self._busy = True  # not before: if we are interrupted, the next caller lines up

    def flush(self) -> None:
        """If the connection is free: send what queued up."""
        if self._under_way is not None:
            return
        try:
            if self._asked:
                work, future = self._asked[0]
                self._under_way = [future]
                self._asked.popleft()
                self._go_slowly(work, self._under_way)
            elif self._wanted:
                items, futures = self._gather()
                if self._connection is None or self._connection.closed:
                    self._go_slowly(lambda: self._connect_and_drive(items), futures)
                else:
                    self._advance(carrying_all(items, self._address, self._loss), futures, None)
            else:
                self._busy = False
                if self._idle is not None and not self._idle.done():
                    self._idle.set_result(None)
        except BaseException:
            self._interrupted()
            raise

    def _gather(self) -> tuple[list[Item], list[asyncio.Future[None]]]:
        """The items of as many callers as may travel in one batch, and their futures."""
        wanted = self._wanted[: self._batch_max]
        items = [item for some, _ in wanted for item in some]
        while len(items) > self._batch_max and len(wanted) > 1:  # a caller brought several
            del items[-len(wanted.pop()[0]) :]
        futures = self._under_way = [future for _, future in wanted]
        del self._wanted[: len(wanted)]
        return items, futures

    def _interrupted(self) -> None:
        """Fail those under way, because their replies are lost. Calling it twice has no effect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
        for one in self._under_way or ():
            if not one.done():
                one.set_exception(StoreUnavailable(f"interrupted on the way to {self._address.name}"))
        self._under_way = None
        if self._loop is not None:
            self._line_up(self._loop)

    def _advance(self, steps: Steps, futures: list[asyncio.Future[None]], reply: Any) -> None:
        """Take the next step, in this callback unless it has to wait for more than the server's answer."""
        try:
            step = steps.send(reply)
        except StopIteration:
            return self._over(futures, None)
        except Exception as error:
            return self._over(futures, error)
        link = self._connection
        if isinstance(step, Pause) or link is None or link.closed or self._closed:
            self._go_slowly(lambda: self._drive(steps, step), futures)
        else:
            query = with_settings(self._address, step.query, self._durable)
            link.start(query, lambda answer, error: self._landed(steps, futures, answer, error))

    def _landed(
        self, steps: Steps, futures: list[asyncio.Future[None]], answer: Any, error: DriverError | None
    ) -> None:
        if futures is not self._under_way:
            return  # they have failed already: a callback was interrupted
        try:
            if error is None:
                self._advance(steps, futures, answer)
            else:
                self._go_slowly(lambda: self._drive_on(steps, error), futures)
        except BaseException:
            self._interrupted()
            raise

    def _over(self, futures: list[asyncio.Future[None]], error: Exception | None) -> None:
        self._answer(futures, error)
        self._under_way = None
        self.flush()

    def _answer(self, futures: list[asyncio.Future[None]], error: Exception | None) -> None:
        for one in futures:
            if one.done():
                continue  # the caller was cancelled
            if error is None:
                one.set_result(None)
            else:
                one.set_exception(own_copy(error))
        if self._loop is not None:
            self._round.call(self._loop)  # it runs after the tasks that were answered just now

    # -- sending, with what may take longer: connecting, pausing, asking again -----------------------------

    def _go_slowly(self, work: Callable[[], Awaitable[None]], futures: list[asyncio.Future[None]]) -> None:
        assert self._loop is not None  # noqa: S101 - set by every caller that queues
        self._slow = self._loop.create_task(self._slowly(work, futures))

    async def _slowly(self, work: Callable[[], Awaitable[None]], futures: list[asyncio.Future[None]]) -> None:
        if futures is not self._under_way:
            return  # they have failed already: a callback was interrupted
        error: Exception | None = None
        try:
            await work()
        except Exception as raised:
            error = raised
        except BaseException:
            for one in (*futures, *(future for _, future in (*self._asked, *self._wanted))):
                one.cancel()  # the loop is being closed
            self._asked.clear()
            self._wanted.clear()
            self._interrupted()
            raise
        try:
            self._over(futures, error)
        except BaseException:
            self._interrupted()
            raise

    async def _connect_and_drive(self, items: Sequence[Item]) -> None:
        error = await self._connect()
        if error is not None and self._may_use_spare(error):
            await self._spare.perform(items)  # type: ignore[union-attr]
            return
        steps = carrying_all(items, self._address, self._loss)
        try:
            step = next(steps) if error is None else _thrown(steps, error)
        except StopIteration:
            return
        await self._drive(steps, step)

    async def _drive_on(self, steps: Steps, error: DriverError) -> None:
        await self._give_up_spent(error)
        try:
            step = steps.throw(error)
        except StopIteration:
            return
        await self._drive(steps, step)

    async def _drive(self, steps: Steps, step: Run | Pause) -> None:
        try:
            while True:
                try:
                    if isinstance(step, Pause):
                        await asyncio.sleep(step.seconds)
                        reply = None
                    else:
                        query = with_settings(self._address, step.query, self._durable)
                        reply = await self._on_connection(partial(_ask, query))
                except (DriverError, SamekeyError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration:
            pass
        finally:
            steps.close()

    async def _on_connection(self, work: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:
        connection = await self._connected()
        try:
            return await work(connection)
        except DriverError as error:
            await self._give_up_spent(error)
            raise

    async def _connect(self) -> Exception | None:
        """Open the connection; the error where that fails."""
        if self._spare_until and time.monotonic() < self._spare_until:
            return StoreUnavailable(f"{self._address.name} refused a connection less than {SPARE_SECONDS:.0f} s ago")
        try:
            await self._connected()
        except SamekeyError as error:
            return error
        return None

    def _may_use_spare(self, error: Exception) -> bool:
        usable = self._spare is not None and self._spare.is_open and not isinstance(error, Misconfigured | Closed)
        self._spare_until = time.monotonic() + SPARE_SECONDS if usable else 0.0
        return usable

    async def _connected(self) -> AsyncConnection:
        if self._closed:
            raise Closed(f"{self._address.name} was closed")
        if self._connection is None or self._connection.closed:
            self._connection, self.facts = await connect_async(
                self._address,
                durable=self._durable,
                operator=self._operator,
                lock_seconds=self._lock_seconds,
                before=self.facts,
            )
            self._loss.lost_at = self.facts.lost_at
        return self._connection

    async def _give_up_spent(self, error: DriverError) -> None:
        if is_spent(error) and self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


async def _ask(query: Query, link: AsyncConnection) -> Any:
    return await link.ask(query)


def _thrown(steps: Steps, error: Exception) -> Run | Pause:
    """The step after the first one ended with this error."""
    next(steps)
    return steps.throw(error)
