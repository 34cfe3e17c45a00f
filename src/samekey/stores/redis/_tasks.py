"""Lanes of an event loop: what its tasks ask of Redis, over connections that all of them share.

What is asked in one turn of the loop travels together, and the next ones do not wait for it to come back. None of it
belongs to the task that asked, so that cancelling a caller never cancels a command.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from samekey.core.errors import SamekeyError
from samekey.drivers.redis import connect as driver
from samekey.stores._failures import own_copy
from samekey.stores.redis._batches import BATCH_BYTES_MAX, BATCH_MAX, Closed, Job, Pause, weight, working_all
from samekey.stores.redis._servers import GREET, Dial, Hang, Link, Links, Memory, Receive, Send

TOGETHER = 16  # commands that wait for company; then the server may begin while we prepare the next ones
TRIP_BYTES_MAX = 1 << 16  # a larger command takes turns: what is on its way at once is bounded
CLOSE_LOOK_SECONDS = 0.005  # how often a lane that is being closed looks whether everybody was answered


class AsyncLane:
    """Connections that the tasks of one event loop share.

    Single commands go over the one good connection on trips, several at a time, and one trip does not wait for
    another. What is not that simple - several servers, a connection to be made, an answer that is none, more about a
    key that is on its way - goes through the pump, one batch after the other.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.links = Links(memory)
        self._loop = asyncio.get_running_loop()
        self._leaving: list[tuple[Job, asyncio.Future[None]]] = []  # for the next trip
        self._away: dict[bytes, list[tuple[Job, asyncio.Future[None]]]] = {}  # by digest: who came after
        self._trips: set[_Trip] = set()
        self._queue: deque[tuple[Sequence[Job] | Callable[[], Any], asyncio.Future[None]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    def perform(self, jobs: Sequence[Job]) -> asyncio.Future[None]:
        """Carry these out. Whoever stops waiting for it stops nothing."""
        if len(jobs) == 1:
            return self.perform_one(jobs[0])
        future: asyncio.Future[None] = self._loop.create_future()
        self._enqueue(jobs, future)
        return future

    def perform_one(self, job: Job) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        name, leaving = job.name, self._leaving
        behind = self._away.get(name) if name else None
        if behind is None:
            if self._trips and not leaving:
                self._loop.call_soon(self._leave)
            leaving.append((job, future))
            if name:
                self._away[name] = _NONE
            if not self._trips or len(leaving) >= TOGETHER:
                self._leave()
        elif behind is _NONE:
            # The answer on its way may be older than this question. All who come meanwhile are asked for at once.
            self._away[name] = [(job, future)]
        else:
            behind.append((job, future))
        return future

    async def look(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._enqueue(self.links.looking, future)
        await future

    async def close(self) -> None:
        self._closed = True
        while self._trips or self._leaving or (self._pump is not None and not self._pump.done()):
            self._leave()  # no more company to wait for
            await asyncio.sleep(CLOSE_LOOK_SECONDS)
        for link in list(self.links.links.values()):
            await link.wire.close()

    def abandon(self) -> None:
        """The loop is gone; so is whoever waited."""
        self._closed = True
        for link in list(self.links.links.values()):
            link.wire.abandon()

    # -- trips ---------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        link = self.links.plain()
        if link is None:  # not met yet, lost since, or one of several
            for job, future in leaving:
                self._hand_over(job, future)
        elif leaving:
            trip = _Trip(self, link, leaving)
            try:
                for job, _ in leaving:
                    job.advance(None)
                self._trips.add(trip)
                self.travel(trip)
            except BaseException:
                self.interrupted(trip)
                raise

    def travel(self, trip: _Trip) -> None:
        """Away with those who want something; those who are done are home."""
        going, data = [], []
        links, link = self.links, trip.link
        for job, future in trip.travellers:
            if job.done:
                self._home(job, future)
            elif job.several or job.requests[0].script is GREET:
                self._hand_over(job, future)
            else:
                packed = links.packed(link, job.requests[0])
                if len(packed) > TRIP_BYTES_MAX:
                    self._hand_over(job, future)
                    continue
                going.append((job, future))
                data.append(packed)
        trip.travellers = going
        if not going:
            self._trips.discard(trip)
            if self._leaving:  # as a rule they have left by themselves
                self._leave()
            return
        try:
            link.wire.ask(b"".join(data), len(data), trip)
        except driver.Lost as lost:  # it was closed while nobody asked: met with the same patience
            trip.lost(lost)

    def part(self, trip: _Trip, answers: list[Any]) -> None:
        """Whoever got no plain answer is asked for again, the short of it: every request recognises itself."""
        for (job, future), answer in zip(trip.travellers, answers, strict=True):
            if answer.__class__ is not list:
                job.requests[0].whole = driver.is_unknown_script(answer)
                self._hand_over(job, future)
        trip.travellers = [
            one for one, answer in zip(trip.travellers, answers, strict=True) if answer.__class__ is list
        ]

    def stranded(self, trip: _Trip) -> None:
        """No answer for any of them."""
        self._trips.discard(trip)
        self.links.drop(trip.link)
        for job, future in trip.travellers:
            job.requests[0].lost = True
            self._hand_over(job, future)

    def interrupted(self, trip: _Trip) -> None:
        """Ctrl-C has left the loop while they were on their way: nobody knows how far each came."""
        self._trips.discard(trip)
        for job, future in trip.travellers:
            future.cancel()
            for another, waiting in self._away.pop(job.name, _NONE):
                self._enqueue((another,), waiting)

    def _home(self, job: Job, future: asyncio.Future[None]) -> None:
        if not future.done():  # cancelled: whoever asked has gone, and asks again if it matters
            future.set_result(None)
        for another, waiting in self._away.pop(job.name, _NONE):
            self._enqueue((another,), waiting)

    def _hand_over(self, job: Job, future: asyncio.Future[None]) -> None:
        """Not that simple: the pump goes on where the trip is."""
        self._enqueue((job,), future)
        for another, waiting in self._away.pop(job.name, _NONE):
            self._enqueue((another,), waiting)

    # -- taking turns --------------------------------------------------------------------------------------

    def _enqueue(self, work: Sequence[Job] | Callable[[], Any], future: asyncio.Future[None]) -> None:
        self._queue.append((work, future))
        if self._pump is None or self._pump.done():
            self._pump = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while self._queue:
            work, future = self._queue.popleft()
            futures, error = [future], None
            try:
                if callable(work):
                    await self._drive(work())
                else:
                    jobs, carried = list(work), weight(work)
                    while self._queue and len(jobs) < BATCH_MAX and carried < BATCH_BYTES_MAX:
                        if callable(self._queue[0][0]):
                            break
                        more, another = self._queue.popleft()
                        jobs += more  # type: ignore[arg-type]
                        carried += weight(more)  # type: ignore[arg-type]
                        futures.append(another)
                    await self._drive(working_all(jobs, self.links, self._memory))
            except Exception as raised:
                error = raised
            except BaseException:
                for one in (*futures, *(waiting for _, waiting in self._queue)):
                    one.cancel()  # the loop is being closed under us
                self._queue.clear()
                raise
            for one in futures:
                if one.done():
                    continue  # cancelled: whoever asked has gone, and asks again if it matters
                if error is None:
                    one.set_result(None)
                else:
                    one.set_exception(error if len(futures) == 1 else own_copy(error))

    # -- sending -------------------------------------------------------------------------------------------

    async def _drive(self, working: Generator[Any, Any, Any]) -> None:
        await drive(working, self._do)

    async def _do(self, step: Any) -> Any:
        if self._closed and isinstance(step, Dial):
            raise Closed(f"{self._memory.address.name} was closed")
        return await do(step)


async def drive(working: Generator[Any, Any, Any], perform: Callable[[Any], Awaitable[Any]]) -> Any:
    """Carry out what it yields, in this task; what it returns."""
    try:
        step = next(working)
        while True:
            try:
                reply = await perform(step)
            except (driver.DriverError, driver.Lost, SamekeyError, OSError) as error:
                step = working.throw(error)
            else:
                step = working.send(reply)
    except StopIteration as stop:
        return stop.value
    finally:
        working.close()


async def do(step: Any) -> Any:
    match step:
        case Send(wire, data, replies):
            return await wire.send(data, replies)
        case Receive(wire, sent):
            return await wire.receive(sent)
        case Hang(wire):
            return await wire.close()
        case Pause(seconds):
            return await asyncio.sleep(seconds)
        case Dial(place):
            wire = driver.AsyncWire(place)
            async with asyncio.timeout(place.connect_seconds + place.answer_seconds):
                await wire.connect()
            return wire


class _Trip:
    """Some jobs on their way together: each answer leads to the next request, in the loop's own callbacks."""

    __slots__ = ("lane", "link", "travellers")

    def __init__(self, lane: AsyncLane, link: Link, travellers: list[tuple[Job, asyncio.Future[None]]]) -> None:
        self.lane, self.link, self.travellers = lane, link, travellers

    def heard(self, answers: list[Any]) -> None:
        try:
            odd = False
            for (job, _), answer in zip(self.travellers, answers, strict=True):
                if answer.__class__ is list:
                    job.advance(answer)
                else:
                    odd = True
            if odd:
                self.lane.part(self, answers)
            self.lane.travel(self)
        except BaseException:
            self.lane.interrupted(self)
            raise

    def lost(self, lost: driver.Lost) -> None:
        self.lane.stranded(self)


_NONE: list[tuple[Job, asyncio.Future[None]]] = []
