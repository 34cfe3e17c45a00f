"""A connection that the tasks of one event loop share.

As among threads (`stores._turns`): while the connection is busy commands queue up, and when it is free they go out
together. Callbacks of the event loop send and answer. No caller's task runs a statement, so cancelling a caller never
cancels a statement. An answer goes straight to the task that waits for it. The commands of all tasks that are running
right now are sent after these tasks, together (`Round`). A task that got its answer mostly sends its next command at
once, over another connection: so after an answer the round looks at all connections of the loop. Only what may take
longer has a task of its own: connecting, pausing, operator queries.

A signal handler may raise in any of these callbacks, and the loop may be run on, or again. So the callers of a batch
are noted before anything is sent. An interrupted callback fails them, closes the connection, and sends what is queued.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.connect import connect_async, with_settings
from samekey.drivers.postgres.connection import AsyncConnection
from samekey.drivers.postgres.errors import DriverError, is_spent, translated
from samekey.drivers.postgres.self_check import Purpose
from samekey.stores._failures import own_copy
from samekey.stores.postgres._batches import BATCH_MAX, Closed, Item, Pause, Step, Steps, carrying_all
from samekey.stores.postgres._rows import Statement
from samekey.stores.postgres._threads import WithSpare

Futures = list[asyncio.Future[Any]]  # of the callers of one batch
Then = Callable[[Futures, Any, Exception | None], None]  # called with a result or an error


class Round:
    """Sends for the connections of one event loop after all tasks that are running right now."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: dict[AsyncSharedConnection, None] = {}  # that have something to send
        self.due = False

    def call(self) -> None:
        if not self.due:
            self.loop.call_soon(self.go)
            self.due = True  # not before: one round too many does no harm

    def go(self) -> None:
        try:
            self.due = False
            for connection in list(self.connections):
                connection.flush()
                self.connections.pop(connection, None)  # not before, for the same reason
        except BaseException:
            self.loop.call_soon(self.go)
            raise


class AsyncSharedConnection(WithSpare[AsyncConnection]):
    """A connection that the tasks of one event loop take turns on."""

    def __init__(
        self,
        address: Address,
        round: Round,
        purpose: Purpose,
        *,
        spare: AsyncSharedConnection | None = None,
        batch_max: int = BATCH_MAX,
    ) -> None:
        super().__init__(address, purpose, spare)
        self._round, self._loop = round, round.loop
        self._batch_max = batch_max
        self._asked: deque[tuple[Statement, asyncio.Future[Any]]] = deque()
        self._wanted: list[tuple[Sequence[Item], asyncio.Future[Any]]] = []
        self._busy = False
        self._under_way: Futures | None = None  # of the callers whose commands were sent
        self._slow: asyncio.Task[None] | None = None  # kept here, or the garbage collector would take it
        self._idle: asyncio.Future[None] | None = None  # `close` waits for it

    def perform(self, items: Sequence[Item]) -> asyncio.Future[None]:
        """Carry these out together with the commands of other tasks; the future is done when all have answers."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._wanted.append((items, future))
        if not self._busy:
            self._line_up()
        return future

    async def ask(self, statement: Statement) -> list[Any]:
        """The rows of one statement that is no command, in a turn of its own."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._asked.append((statement, future))
        if not self._busy:
            self._line_up()
        with translated(self.address):
            return await future

    async def close(self) -> None:
        self._closed = True
        if self._busy:
            self._idle = self._loop.create_future()
            await self._idle
        if self._connection is not None:
            await self._connection.close()

    def abandon(self) -> None:
        """The loop has ended, or runs in another thread: no caller of it waits any more."""
        self._closed = True
        if self._connection is None:
            return
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._connection.drop)  # only the loop itself may stop watching a socket
        else:
            self._connection.drop()

    # -- taking turns --------------------------------------------------------------------------------------

    def _line_up(self) -> None:
        self._round.connections[self] = None
        self._round.call()
        self._busy = True  # not before: if we are interrupted, the next caller lines up

    def flush(self) -> None:
        """If the connection is free: send what queued up."""
        if self._under_way is not None:
            return
        try:
            if self._asked:
                statement, future = self._asked[0]
                self._under_way = [future]
                self._asked.popleft()
                self._go_slowly(lambda: self._fetch(statement), self._under_way, self._over)
            elif self._wanted:
                items, futures = self._gather()
                self._advance(carrying_all(items, self), futures, None, None, items)
            else:
                self._busy = False
                if self._idle is not None and not self._idle.done():
                    self._idle.set_result(None)
        except BaseException:
            self._interrupted()
            raise

    def _gather(self) -> tuple[list[Item], Futures]:
        """The items of as many callers as may travel in one batch, and their futures."""
        wanted = self._wanted[: self._batch_max]
        items = [item for some, _ in wanted for item in some]
        while len(items) > self._batch_max and len(wanted) > 1:  # a caller brought several
            del items[-len(wanted.pop()[0]) :]
        futures: Futures = [future for _, future in wanted]
        self._under_way = futures
        del self._wanted[: len(wanted)]
        return items, futures

    def _interrupted(self) -> None:
        """Fail those under way, because their replies are lost. Calling it twice has no effect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
        for one in self._under_way or ():
            if not one.done():
                one.set_exception(StoreUnavailable(f"interrupted on the way to {self.address.name}"))
        self._under_way = None
        self._line_up()

    def _advance(
        self, steps: Steps, futures: Futures, reply: Any, error: Exception | None, items: Sequence[Item] = ()
    ) -> None:
        """Take the next step, in this callback unless it has to wait for more than the server's answer.

        `reply` or `error` is how the step before it ended. `items`: those of the batch, as long as nothing was sent.
        """
        try:
            step = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration:
            return self._over(futures, None, None)
        except Exception as raised:
            return self._over(futures, None, raised)
        link = self._connection
        if isinstance(step, Pause) or link is None or link.closed or self._closed:
            self._go_slowly(lambda: self._prepare(step, items), futures, partial(self._prepared, steps, step))
        else:
            query = with_settings(self.address, step, self._purpose.durable)
            link.start(query, partial(self._landed, steps, futures))

    def _landed(self, steps: Steps, futures: Futures, answer: Any, error: DriverError | None) -> None:
        if futures is not self._under_way:
            return  # they have failed already: a callback was interrupted
        try:
            self._advance(steps, futures, answer, error)
        except BaseException:
            self._interrupted()
            raise

    def _over(self, futures: Futures, result: Any, error: Exception | None) -> None:
        for one in futures:
            if one.done():
                continue  # the caller was cancelled
            if error is None:
                one.set_result(result)
            else:
                one.set_exception(own_copy(error))
        self._round.call()  # it runs after the tasks that were answered just now
        self._under_way = None
        self.flush()

    # -- what may take longer: connecting, pausing, operator queries ---------------------------------------

    def _go_slowly(self, work: Callable[[], Awaitable[Any]], futures: Futures, then: Then) -> None:
        self._slow = self._loop.create_task(self._slowly(work, futures, then))

    async def _slowly(self, work: Callable[[], Awaitable[Any]], futures: Futures, then: Then) -> None:
        if futures is not self._under_way:
            return  # they have failed already: a callback was interrupted
        result, error = None, None
        try:
            try:
                result = await work()
            except Exception as raised:
                error = raised
            then(futures, result, error)
        except BaseException as ended:
            if isinstance(ended, asyncio.CancelledError):  # the loop is being closed
                for one in (*futures, *(future for _, future in (*self._asked, *self._wanted))):
                    one.cancel()
                self._asked.clear()
                self._wanted.clear()
            self._interrupted()
            raise

    async def _prepare(self, step: Step, items: Sequence[Item]) -> bool:
        """Pause or connect, as the step needs it; True if the spare carried out all items instead."""
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return False
        try:
            if items:
                self._check_may_connect()
            await self._connected()
            return False
        except SamekeyError as error:
            if not (items and self._may_use_spare(error)):
                raise
        await self._spare.perform(items)
        return True

    def _prepared(self, steps: Steps, step: Step, futures: Futures, done: bool, error: Exception | None) -> None:
        if done:
            self._over(futures, None, None)
        elif error is not None or isinstance(step, Pause):
            self._advance(steps, futures, None, error)
        elif self._connection is not None:
            query = with_settings(self.address, step, self._purpose.durable)
            self._connection.start(query, partial(self._landed, steps, futures))

    async def _fetch(self, statement: Statement) -> list[Any]:
        connection = await self._connected()
        connection.rest()
        try:
            return await (await connection.execute(*statement, binary=True)).fetchall()
        except DriverError as error:
            if is_spent(error):
                connection.drop()
            raise

    async def _connected(self) -> AsyncConnection:
        if self._closed:
            raise Closed(f"{self.address.name} was closed")
        if self._connection is None or self._connection.closed:
            self._connection, self.facts = await connect_async(self.address, self._purpose, self.facts)
            self.lost_at = self.facts.lost_at
        return self._connection
