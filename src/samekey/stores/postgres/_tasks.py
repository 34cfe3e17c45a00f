"""Lanes of tasks: one connection each, and whoever of one event loop wants to use it at the same time.

As among threads (`_postgres_lanes`): while the connection is busy commands queue up, and when it is free they go out
together. The event loop's own callbacks send and answer. No task of anybody's is under way with a statement, so
cancelling a caller never cancels one; an answer goes straight to whoever waits for it; and what all who run right now
want is sent after them, together. Whoever was answered wants the next thing at once, mostly of another lane: so an
answer looks after all lanes of its loop once those who got it have run. Only what may take longer has a task:
connecting, pausing, asking again.

A signal's handler may raise in any of these callbacks, and the loop may be run on, or again. So who is under way is
noted before anything is sent; whoever is interrupted there tells them, hangs up, and looks after those who wait.
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
from samekey.drivers.postgres.exchange import Query
from samekey.drivers.postgres.self_check import Facts
from samekey.stores.postgres._batches import BATCH_MAX, Closed, Job, Loss, Pause, Run, Steps, carrying_all
from samekey.stores.postgres._rows import Statement


class Round:
    """Calls on the lanes of one event loop when everybody who runs right now has had its say."""

    def __init__(self) -> None:
        self.lanes: dict[AsyncLane, None] = {}  # that have something to send
        self.due = False

    def call(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.due:
            loop.call_soon(self.go)
            self.due = True  # not before: to go once too often does no harm

    def go(self) -> None:
        try:
            self.due = False
            for lane in list(self.lanes):
                lane.flush()
                self.lanes.pop(lane, None)  # not before, for the same reason
        except BaseException:
            asyncio.get_running_loop().call_soon(self.go)
            raise


class AsyncLane:
    """A connection that the tasks of one event loop take turns on."""

    def __init__(self, address: Address, round: Round, *, durable: bool = True, operator: bool = False) -> None:
        self._address = address
        self._round = round
        self._durable, self._operator = durable, operator
        self._connection: AsyncConnection | None = None
        self._asked: deque[tuple[Callable[[], Awaitable[None]], asyncio.Future[None]]] = deque()
        self._wanted: list[tuple[Sequence[Job], asyncio.Future[None]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = False
        self._under_way: list[asyncio.Future[None]] | None = None  # of those whose turn it is
        self._slow: asyncio.Task[None] | None = None  # kept, or the garbage collector takes it
        self._idle: asyncio.Future[None] | None = None  # whoever closes waits for it
        self._closed = False
        self.facts: Facts | None = None
        self._known = Loss()

    def perform(self, jobs: Sequence[Job]) -> asyncio.Future[None]:
        """Carry these out together with whatever others want at the same time; done when all have their answers."""
        loop = self._loop or self._begin()
        future: asyncio.Future[None] = loop.create_future()
        self._wanted.append((jobs, future))
        if not self._busy:
            self._line_up(loop)
        return future

    async def ask(self, statement: Statement) -> list[Any]:
        """The rows of one statement that is no command, in our turn."""
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
        """The loop is gone, or another thread's: so is whoever waited."""
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
        self._round.lanes[self] = None
        self._round.call(loop)
        self._busy = True  # not before: interrupted, the next one lines up

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
                jobs, futures = self._gather()
                self._advance(carrying_all(jobs, self._address, self._known), futures, None)
            else:
                self._busy = False
                if self._idle is not None and not self._idle.done():
                    self._idle.set_result(None)
        except BaseException:
            self._interrupted()
            raise

    def _gather(self) -> tuple[list[Job], list[asyncio.Future[None]]]:
        """As many as may travel together."""
        wanted = self._wanted[:BATCH_MAX]
        jobs = [job for some, _ in wanted for job in some]
        while len(jobs) > BATCH_MAX and len(wanted) > 1:  # somebody brought several
            del jobs[-len(wanted.pop()[0]) :]
        futures = self._under_way = [future for _, future in wanted]
        del self._wanted[: len(wanted)]
        return jobs, futures

    def _interrupted(self) -> None:
        """Nobody knows how far those under way came. Said twice, it is done once."""
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
        """The next step, straight from the event loop where nothing has to be waited for but the answer."""
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
            return  # they were told already that it was interrupted
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
                continue  # cancelled: whoever asked has gone, and asks again if it matters
            if error is None:
                one.set_result(None)
            else:
                one.set_exception(error)
        if self._loop is not None:
            self._round.call(self._loop)  # behind those who were answered just now

    # -- sending, with what may take longer: connecting, pausing, asking again -----------------------------

    def _go_slowly(self, work: Callable[[], Awaitable[None]], futures: list[asyncio.Future[None]]) -> None:
        assert self._loop is not None  # noqa: S101 - whoever queues has set it
        self._slow = self._loop.create_task(self._slowly(work, futures))

    async def _slowly(self, work: Callable[[], Awaitable[None]], futures: list[asyncio.Future[None]]) -> None:
        if futures is not self._under_way:
            return  # they were told already that it was interrupted
        error: Exception | None = None
        try:
            await work()
        except Exception as raised:
            error = raised
        except BaseException:
            for one in (*futures, *(future for _, future in (*self._asked, *self._wanted))):
                one.cancel()  # the loop is being closed under us
            self._asked.clear()
            self._wanted.clear()
            self._interrupted()
            raise
        try:
            self._over(futures, error)
        except BaseException:
            self._interrupted()
            raise

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
        if self._closed:
            raise Closed(f"{self._address.name} was closed")
        if self._connection is None or self._connection.closed:
            self._connection, self.facts = await connect_async(
                self._address, durable=self._durable, operator=self._operator, before=self.facts
            )
            self._known.lost_at = self.facts.lost_at
        try:
            return await work(self._connection)
        except DriverError as error:
            await self._give_up_spent(error)
            raise

    async def _give_up_spent(self, error: DriverError) -> None:
        if is_spent(error) and self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


async def _ask(query: Query, link: AsyncConnection) -> Any:
    return await link.ask(query)
