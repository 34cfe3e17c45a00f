"""Lanes: the connections of a process or of an event loop, and whoever wants to use them at the same time.

Flush on free, no timer: a lone caller's command goes out at once, inline. While the lane is busy commands queue
up, and when it is free they travel together in one pipeline. Among threads the one at the head of the queue then
leads: it sends for all, answers all, and hands the lead on. Among tasks one pump task does it, so that cancelling
a caller never cancels a command.

A lost reply says nothing about the command. Every command recognises itself, so it is asked again over a new
connection, for as long as a server takes to restart or a replica to be promoted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from samekey.core.commands import Open, Read, StoreCommand, Wait
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers import redis as driver
from samekey.stores._redis_links import (
    GREET,
    Dial,
    Hang,
    Links,
    Memory,
    Receive,
    Redirected,
    Request,
    Send,
    Unreachable,
)
from samekey.stores._redis_steps import steps

BATCH_MAX = 512  # commands in one go: bounds how long the first of them waits for the last
BATCH_BYTES_MAX = 8 << 20  # and what they carry: bounds memory, and how long the connection is taken
REASK_SECONDS = 8.0  # how long a lost reply is asked after: a restart, a sentinel's or a cluster's failover
REASK_PAUSE_SECONDS = 0.02
REASK_PAUSE_MAX_SECONDS = 0.25
REDIRECTS_MAX = 16  # servers that each say another one has the key: a cluster that is being rearranged settles
TURN_SECONDS = 60.0  # many times what the commands before us may take; only for a leader that vanished

Asking = Generator[Any, Any, Any]  # yields a request or a list of them, is sent the answer or a list of them


class Pause(NamedTuple):
    seconds: float


class Job:
    """One piece of work, and what became of it."""

    __slots__ = ("answers", "done", "error", "question", "reply", "requests", "several", "working")

    def __init__(self, command: StoreCommand | None, working: Asking) -> None:
        self.question = command
        self.working = working
        self.requests: list[Request] = []
        self.answers: list[Any] = []  # to each of them; None while there is none
        self.several = False
        self.reply: Any = None
        self.error: Exception | None = None
        self.done = False

    @property
    def name(self) -> Any:
        """Jobs of one name are done one after the other."""
        return id(self) if self.question is None else self.question.key.digest

    def advance(self, answer: Any) -> None:
        """Go on with this answer until the next request, or to the end."""
        try:
            asked = self.working.send(answer)
        except StopIteration as stop:
            self.reply, self.done = stop.value, True
        except SamekeyError as error:
            self.fail(error)
        else:
            self.several = type(asked) is list
            self.requests = asked if self.several else [asked]
            self.answers = [None] * len(self.requests)

    def fail(self, error: Exception) -> None:
        self.error, self.done = error, True
        self.working.close()

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.reply


def weight(jobs: Sequence[Job]) -> int:
    """The bytes of the results that these carry."""
    return sum([len(getattr(job.question, "result", None) or b"") for job in jobs])


def portions(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs in order, no more at a time than may travel together."""
    parts: list[list[Job]] = [[]]
    carried = 0
    for job in jobs:
        carried += weight((job,))
        if parts[-1] and (len(parts[-1]) >= BATCH_MAX or carried > BATCH_BYTES_MAX):
            parts.append([])
            carried = weight((job,))
        parts[-1].append(job)
    return parts


def job_of(command: StoreCommand, memory: Memory) -> Job:
    return Job(command, steps(command, memory))


def working_all(jobs: Sequence[Job], links: Links, memory: Memory) -> Generator[Any, Any, None]:
    """Every job to its end; those about one key one after the other, all others together."""
    live: list[Job] = []
    behind: dict[Any, deque[Job]] = {}  # who waits for whom, by name
    for job in jobs:
        name = job.name
        if name in behind:
            behind[name].append(job)
        else:
            behind[name] = _NOBODY if len(jobs) == 1 else deque()
            live.append(job)
            if not job.requests:
                job.advance(None)
    trouble = _Trouble(memory.address.name, 0.0 if memory.address.hasty else REASK_SECONDS)
    while live:
        asked = [(job, at) for job in live for at, answer in enumerate(job.answers) if answer is None]
        replies = (yield from links.exchanging([job.requests[at] for job, at in asked])) if asked else []
        pause = 0.0
        for (job, at), reply in zip(asked, replies, strict=True):
            if reply.__class__ is list:
                job.answers[at] = reply
            elif not job.done:
                pause = max(pause, trouble.heard(job, at, reply))
        going: list[Job] = []
        for job in live:
            if not job.done and None not in job.answers:
                job.advance(job.answers if job.several else job.answers[0])
            going += _next(job, behind[job.name]) if job.done else (job,)
        live = going
        if pause:
            yield Pause(pause)


def _next(ended: Job, behind: deque[Job]) -> Sequence[Job]:
    """Whoever comes after a job that is done, about the same key."""
    while behind:
        job = behind.popleft()
        if ended.error is None and _same(ended.question, job.question):
            job.working.close()  # the answer to the one is the answer to the other
            job.reply, job.done = ended.reply, True
            continue
        job.advance(None)
        if not job.done:
            return (job,)
        ended = job
    return ()


_NOBODY: deque[Job] = deque()


def _same(one: StoreCommand | None, other: StoreCommand | None) -> bool:
    """Whether the answer to the one is the answer to the other that comes right after it."""
    if one is None or other is None or one.key != other.key:
        return False
    reads = isinstance(one, (Read, Wait)) and isinstance(other, (Read, Wait))
    return reads or (isinstance(one, Open) and isinstance(other, Open))


class _Trouble:
    """What is done about answers that are none."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, seconds
        self._deadline: float | None = None
        self._pause = REASK_PAUSE_SECONDS

    def heard(self, job: Job, at: int, reply: Any) -> float:
        """Take the reply in; seconds to pause before it is asked again, if it is."""
        request = job.requests[at]
        if not isinstance(reply, Exception):
            job.answers[at] = _NOTHING if reply is None else reply
            return 0.0
        if isinstance(reply, SamekeyError):  # ours already: not asked, or not on its replicas
            job.fail(reply)
            return 0.0
        if isinstance(reply, driver.Lost):
            request.lost = True
            return self._again(job, driver.store_error(self._name, reply.cause), reply.cause)
        if isinstance(reply, Unreachable):
            # If nothing of ours was under way, that is the answer.
            if not (request.lost or request.tried) or isinstance(reply.error, (Misconfigured, Closed)):
                job.fail(reply.error)
                return 0.0
            return self._again(job, reply.error, None)
        if isinstance(reply, Redirected):
            request.redirects += 1
            if request.redirects > REDIRECTS_MAX:
                job.fail(StoreUnavailable(f"{self._name}: no server of the cluster admits to having the key"))
            return 0.0
        if driver.is_unknown_script(reply) and not request.whole:
            request.whole = True
            return 0.0
        if driver.is_again(reply):
            request.tried = True
            return self._again(job, driver.store_error(self._name, reply), reply)
        error = driver.store_error(self._name, reply)
        error.__cause__ = reply
        job.fail(error)
        return 0.0

    def _again(self, job: Job, error: Exception, cause: BaseException | None) -> float:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if isinstance(error, Misconfigured) or now >= self._deadline:
            error.__cause__ = cause or error.__cause__
            job.fail(error)
            return 0.0
        self._pause, pause = min(self._pause * 2, REASK_PAUSE_MAX_SECONDS), self._pause
        return pause


class _Nothing(list[Any]):
    """A reply of nil to a plain command: an answer, and not the want of one."""


_NOTHING = _Nothing()


class Closed(StoreUnavailable):
    """The store was closed: nothing to wait for."""


class Asked:
    """What one caller wants, and how it is told that it is its turn, or over."""

    __slots__ = ("again", "bell", "finished", "jobs", "leads")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.bell = threading.Lock()  # held until rung: the cheapest thing a thread can sleep on
        self.bell.acquire()
        self.leads = False
        self.finished = False
        self.again = False


class Lane:
    """Connections that threads take turns on."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.links = Links(memory)
        self._mutex = threading.Lock()
        self._queue: deque[Asked] = deque()
        self._busy = False
        self._closed = False

    def perform(self, jobs: Sequence[Job]) -> None:
        """Carry these out, alone or together with whatever others want at the same time."""
        asked = self._in_turn(jobs)
        if asked.finished:
            return
        if asked.again:
            return self.perform([job for job in jobs if not job.done])
        together = self._gather(asked)
        try:
            if len(together) == 1 and len(jobs) == 1 and self._alone(jobs[0]):
                return
            self._drive(working_all([job for one in together for job in one.jobs], self.links, self._memory))
        finally:
            self._pass_on(asked, together)

    def _alone(self, job: Job) -> bool:
        """The short way for one command over one good connection; where anything is odd, `working_all` goes on."""
        link = self.links.plain()
        if link is None:
            return False
        job.advance(None)
        while not job.done and not job.several:
            (request,) = job.requests
            if request.script is GREET:
                return False
            try:
                link.wire.send(self.links.packed(link, request))
                (reply,) = link.wire.receive(1)
            except driver.Lost:
                request.lost = True
                self.links.drop(link)
                return False
            if reply.__class__ is not list:
                return False  # asked again, the short of it: every request recognises itself
            job.advance(reply)
        return job.done

    def look(self) -> None:
        """Ask the servers again who they are."""
        asked = self._in_turn(())
        try:
            self._drive(self.links.looking())
        finally:
            self._pass_on(asked, [asked])

    def close(self) -> None:
        self._closed = True
        for link in list(self.links.links.values()):
            link.wire.close()

    # -- taking turns --------------------------------------------------------------------------------------

    def _in_turn(self, jobs: Sequence[Job]) -> Asked:
        asked = Asked(jobs)
        with self._mutex:
            asked.leads = not self._busy
            self._busy = True
            if not asked.leads:
                self._queue.append(asked)
        if not asked.leads:
            self._await_turn(asked)
        return asked

    def _await_turn(self, asked: Asked) -> None:
        try:
            if not asked.bell.acquire(timeout=TURN_SECONDS):
                raise StoreUnavailable(
                    f"no turn on a connection to {self._memory.address.name} in {TURN_SECONDS:.0f} s"
                )
        except BaseException:  # also Ctrl-C: nobody may wait for our lead
            with self._mutex:
                if asked in self._queue:
                    self._queue.remove(asked)
            if asked.leads:
                self._pass_on(asked, [asked])
            raise

    def _gather(self, first: Asked) -> list[Asked]:
        together, count = [first], len(first.jobs)
        if self._queue:
            carried = weight(first.jobs)
            with self._mutex:
                while self._queue and count < BATCH_MAX and carried < BATCH_BYTES_MAX and self._queue[0].jobs:
                    together.append(self._queue.popleft())
                    count += len(together[-1].jobs)
                    carried += weight(together[-1].jobs)
        return together

    def _pass_on(self, mine: Asked, together: list[Asked]) -> None:
        for one in together:
            if one is not mine:
                one.finished = all(job.done for job in one.jobs)
                one.again = not one.finished  # we were interrupted: it asks for itself
                one.bell.release()
        with self._mutex:
            heir = self._queue.popleft() if self._queue else None
            if heir is None:
                self._busy = False
            else:
                heir.leads = True
        if heir is not None:
            heir.bell.release()

    # -- sending -------------------------------------------------------------------------------------------

    def _drive(self, working: Generator[Any, Any, Any]) -> None:
        drive(working, self._do)

    def _do(self, step: Any) -> Any:
        if self._closed and isinstance(step, Dial):
            raise Closed(f"{self._memory.address.name} was closed")
        return do(step)


def drive(working: Generator[Any, Any, Any], perform: Callable[[Any], Any]) -> Any:
    """Carry out what it yields, in this thread; what it returns."""
    try:
        step = next(working)
        while True:
            try:
                reply = perform(step)
            except (driver.DriverError, driver.Lost, SamekeyError, OSError) as error:
                step = working.throw(error)
            else:
                step = working.send(reply)
    except StopIteration as stop:
        return stop.value
    finally:
        working.close()


def do(step: Any) -> Any:
    match step:
        case Send(wire, data):
            return wire.send(data)
        case Receive(wire, count):
            return wire.receive(count)
        case Hang(wire):
            return wire.close()
        case Pause(seconds):
            return time.sleep(seconds)
        case Dial(place):
            wire = driver.Wire(place)
            wire.connect()
            return wire


class AsyncLane:
    """Connections that the tasks of one event loop take turns on."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.links = Links(memory)
        self._queue: deque[tuple[Sequence[Job] | Callable[[], Any], asyncio.Future[None]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    async def perform(self, jobs: Sequence[Job]) -> None:
        await self._enqueue(jobs)

    async def look(self) -> None:
        await self._enqueue(self.links.looking)

    async def close(self) -> None:
        self._closed = True
        if self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])
        for link in list(self.links.links.values()):
            await link.wire.close()

    def abandon(self) -> None:
        """The loop is gone; so is whoever waited."""
        self._closed = True
        for link in list(self.links.links.values()):
            link.wire.abandon()

    # -- taking turns --------------------------------------------------------------------------------------

    async def _enqueue(self, work: Sequence[Job] | Callable[[], Any]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._queue.append((work, future))
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        await future

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
                    one.set_exception(error)

    # -- sending -------------------------------------------------------------------------------------------

    async def _drive(self, working: Generator[Any, Any, Any]) -> None:
        try:
            step = next(working)
            while True:
                try:
                    reply = await self._do(step)
                except (driver.DriverError, driver.Lost, SamekeyError, OSError) as error:
                    step = working.throw(error)
                else:
                    step = working.send(reply)
        except StopIteration:
            pass
        finally:
            working.close()

    async def _do(self, step: Any) -> Any:
        match step:
            case Send(wire, data):
                return await wire.send(data)
            case Receive(wire, count):
                return await wire.receive(count)
            case Hang(wire):
                return await wire.close()
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Dial(place):
                if self._closed:
                    raise Closed(f"{self._memory.address.name} was closed")
                wire = driver.AsyncWire(place)
                async with asyncio.timeout(place.connect_seconds + place.answer_seconds):
                    await wire.connect()
                return wire
