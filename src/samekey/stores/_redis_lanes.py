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
from samekey.drivers import redis as driver
from samekey.stores._redis_jobs import BATCH_BYTES_MAX, BATCH_MAX, Closed, Job, Pause, weight, working_all
from samekey.stores._redis_links import GREET, Dial, Hang, Links, Memory, Receive, Send

TURN_SECONDS = 60.0  # many times what the commands before us may take; only for a leader that vanished


class Asked:
    """What one caller wants, and how it is told that it is its turn, or over."""

    __slots__ = ("again", "bell", "jobs", "leads")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.bell = threading.Lock()  # held until rung: the cheapest thing a thread can sleep on
        self.bell.acquire()
        self.leads = False
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
        if asked is not None and not asked.leads:
            if asked.again:
                self.perform([job for job in jobs if not job.done])
            return
        others = self._gather(jobs) if self._queue else ()
        try:
            if others or len(jobs) != 1 or not self._alone(jobs[0]):
                everything = [*jobs, *(job for one in others for job in one.jobs)]
                self._drive(working_all(everything, self.links, self._memory))
        finally:
            self._pass_on(others)

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
        self._in_turn(())  # nobody answers for us: it is our own turn then
        try:
            self._drive(self.links.looking())
        finally:
            self._pass_on(())

    def close(self) -> None:
        self._closed = True
        for link in list(self.links.links.values()):
            link.wire.close()

    # -- taking turns --------------------------------------------------------------------------------------

    def _in_turn(self, jobs: Sequence[Job]) -> Asked | None:
        """None, or one that leads: it is our turn. Else somebody else did it for us."""
        with self._mutex:
            if not self._busy:
                self._busy = True
                return None
            asked = Asked(jobs)
            self._queue.append(asked)
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
                self._pass_on(())
            raise

    def _gather(self, mine: Sequence[Job]) -> Sequence[Asked]:
        """Those whose jobs go together with ours."""
        others, count, carried = [], len(mine), weight(mine)
        with self._mutex:
            while self._queue and count < BATCH_MAX and carried < BATCH_BYTES_MAX and self._queue[0].jobs:
                others.append(self._queue.popleft())
                count += len(others[-1].jobs)
                carried += weight(others[-1].jobs)
        return others

    def _pass_on(self, others: Sequence[Asked]) -> None:
        """Those we did it for are told, and the next one leads."""
        for one in others:
            one.again = not all(job.done for job in one.jobs)  # we were interrupted: it asks for itself
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
