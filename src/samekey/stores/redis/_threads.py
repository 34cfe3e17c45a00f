"""Lanes: the connections of a process, and the threads that want to use them at the same time.

Flush on free, no timer. A lone caller's command goes out at once, inline. While the lane is busy commands queue up, and
when it is free they travel together in one pipeline: the thread at the head of the queue leads, sends for all, answers
all, and hands the lead on. Tasks have lanes of their own (`_redis_tasks`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.drivers.redis import connect as driver
from samekey.stores.redis._batches import BATCH_BYTES_MAX, BATCH_MAX, Closed, Job, Pause, weight, working_all
from samekey.stores.redis._servers import GREET, Dial, Hang, Links, Memory, Receive, Send

TURN_SECONDS = 60.0  # many times what the commands before us may take; only for a leader that vanished


class Asked:
    """What one caller wants, and how it is told that it is its turn, or over."""

    __slots__ = ("again", "behind", "bell", "jobs", "told")

    def __init__(self, jobs: Sequence[Job], behind: Sequence[Job] | None) -> None:
        self.jobs = jobs
        self.behind = behind  # whose turn it was when we came
        self.bell = threading.Lock()  # held until rung: the cheapest thing a thread can sleep on
        self.bell.acquire()
        self.told = False  # somebody else did it for us
        self.again = False  # or not all of it

    def ring(self) -> None:
        if self.bell.locked():  # twice is once
            self.bell.release()


class Lane:
    """Connections that threads take turns on.

    An interrupt (Ctrl-C, a signal handler that raises) may strike between any two steps. So whose turn it is, is one
    field, and whoever finds its own jobs there when it ends passes the turn on, once more if it was interrupted at it.
    Nobody leaves the queue but by itself, or to be told.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.links = Links(memory)
        self._mutex = threading.Lock()
        self._queue: deque[Asked] = deque()
        self._leader: Sequence[Job] | None = None  # whose turn it is: the very jobs that it came with
        self._closed = False

    def perform(self, jobs: Sequence[Job], *, look: bool = False) -> None:
        """Carry these out, alone or together with whatever others want at the same time."""
        asked: Asked | None = None
        others: list[Asked] | None = None
        try:
            with self._mutex:
                if self._leader is None:
                    self._leader = jobs
                else:
                    asked = Asked(jobs, self._leader)
                    self._queue.append(asked)
            if asked is not None:
                self._await_turn(asked)
            if self._leader is jobs:
                if look:
                    self._drive(self.links.looking())
                else:
                    if self._queue:
                        others = []
                        self._gather(jobs, asked, others)
                    if others or len(jobs) != 1 or not self._alone(jobs[0]):
                        everything = [*jobs, *(job for one in others or () for job in one.jobs)]
                        self._drive(working_all(everything, self.links, self._memory))
        finally:
            try:
                if asked is None or not asked.told:
                    self._pass_on(jobs, asked, others)
            except BaseException:
                self._pass_on(jobs, asked, others)
                raise
        if asked is not None and asked.again:
            self._perform_again([job for job in jobs if not job.done])

    def _perform_again(self, jobs: Sequence[Job]) -> None:
        """Whoever did it for us was interrupted, and what became of it is not known."""
        for job in jobs:
            for request in job.requests:
                request.lost = True
        self.perform(jobs)

    def _alone(self, job: Job) -> bool:
        """The short way for one command over one good connection; where anything is odd, `working_all` goes on."""
        link = self.links.plain()
        if link is None:
            return False
        if not job.requests:  # else somebody has begun it for us, and was interrupted
            job.advance(None)
        while not job.done and not job.several:
            (request,) = job.requests
            if request.script is GREET:
                return False
            try:
                link.wire.send(self.links.packed(link, request), 1)
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
        self.perform([], look=True)  # no jobs: nobody can do it for us

    def close(self) -> None:
        self._closed = True
        for link in list(self.links.links.values()):
            link.wire.close()

    # -- taking turns --------------------------------------------------------------------------------------

    def _await_turn(self, asked: Asked) -> None:
        """Until it is our turn, or somebody else did it for us."""
        if asked.bell.acquire(timeout=TURN_SECONDS):
            return
        with self._mutex:
            if self._leader is asked.jobs:
                return
            if self._leader is asked.behind and asked in self._queue:
                # It vanished, or it takes far too long: either way its connections stay its own.
                self.links = Links(self._memory)
                self._leader = asked.jobs
                return
        raise StoreUnavailable(f"no turn on a connection to {self._memory.address.name} in {TURN_SECONDS:.0f} s")

    def _gather(self, mine: Sequence[Job], asked: Asked | None, others: list[Asked]) -> None:
        """Those whose jobs go together with ours."""
        count, carried = len(mine), weight(mine)
        with self._mutex:
            if asked is not None:
                self._queue.remove(asked)
            while self._queue and count < BATCH_MAX and carried < BATCH_BYTES_MAX and self._queue[0].jobs:
                others.append(self._queue[0])  # noted first: whoever is noted is told
                self._queue.popleft()
                count += len(others[-1].jobs)
                carried += weight(others[-1].jobs)

    def _pass_on(self, jobs: Sequence[Job], asked: Asked | None, others: list[Asked] | None) -> None:
        """Those we did it for are told, and if it is our turn, the next one leads. Twice is once."""
        queue = self._queue
        with self._mutex:
            if others:
                for one in others:
                    if queue and queue[0] is one:
                        queue.popleft()
                    one.again = not all(job.done for job in one.jobs)  # we were interrupted: it asks for itself
                    one.told = True
                    one.ring()
            if asked is not None and asked in queue:
                queue.remove(asked)
            if self._leader is jobs:
                self._leader = queue[0].jobs if queue else None
            if queue and queue[0].jobs is self._leader:
                queue[0].ring()

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
        case Send(wire, data, replies):
            return wire.send(data, replies)
        case Receive(wire, sent):
            return wire.receive(sent)
        case Hang(wire):
            return wire.close()
        case Pause(seconds):
            return time.sleep(seconds)
        case Dial(place):
            wire = driver.Wire(place)
            wire.connect()
            return wire
