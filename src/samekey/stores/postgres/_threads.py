"""Lanes of threads: one connection each, and whoever wants to use it at the same time.

Flush on free, no timer: a lone caller's statement goes out at once, inline. While the connection is busy
commands queue up, and when it is free they go out together. The one at the head of the queue then leads: it sends
for all, answers all, and hands the lead on.

Threads that were answered together wake up one after the other, and the first one would find the next lane free and
go alone, before the rest of them has had its say: half of all commits were for one. So whoever is about to lead
while others are still waking up lets these come first. Lanes of tasks (`_postgres_tasks`) need no such thing.

A signal's handler may raise anywhere in here, in the main thread. So who leads is known by what it wants done, which
the caller has in hand before it asks, and whoever leaves looks whether it leads; to hand the lead on twice is once.
Whoever was interrupted at that, too, has left a lead that nobody has: after a very long wait it is taken over.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.connect import connect, with_settings
from samekey.drivers.postgres.connection import Connection
from samekey.drivers.postgres.errors import DriverError, is_spent, translated
from samekey.drivers.postgres.exchange import Query
from samekey.drivers.postgres.self_check import Facts
from samekey.loops import ThreadBell
from samekey.stores.postgres._batches import BATCH_MAX, Closed, Job, Loss, Pause, Steps, carrying_all
from samekey.stores.postgres._rows import Statement

COME_SECONDS = 0.001  # a thread wakes up in a tenth of it; where all cores are busy nobody is waited for much longer
TURN_SECONDS = 60.0  # many times what the statements before us may take; only for a leader that vanished


class Asked:
    """What one caller wants, and how it is told that it is its turn, or over."""

    __slots__ = ("again", "behind", "bell", "finished", "gone", "jobs", "next")

    def __init__(self, jobs: Sequence[Job], behind: Sequence[Job]) -> None:
        self.jobs = jobs
        self.behind = behind  # whose turn it was when we came
        self.bell = threading.Lock()  # held until rung: the cheapest thing a thread can sleep on
        self.bell.acquire()
        self.finished = False
        self.again = False
        self.gone = False  # interrupted while it waited
        self.next: Asked | None = None  # whom to wake when we are awake


class Crowd:
    """How many threads of this process have their answers and did not wake up yet."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waking: set[Asked] = set()
        self._leaders: list[ThreadBell] = []

    def rung(self, some: Sequence[Asked]) -> None:
        with self._mutex:
            self._waking.update(some)

    def awake(self, one: Asked) -> None:
        leaders: list[ThreadBell] = []
        with self._mutex:
            self._waking.discard(one)
            if not self._waking:
                leaders, self._leaders = self._leaders, leaders
        for leader in leaders:
            leader.ring()

    def let_come(self) -> None:
        """Come back when everybody woke up, or soon enough all the same."""
        if self._waking:
            bell = ThreadBell()
            with self._mutex:
                if not self._waking:
                    return
                self._leaders.append(bell)
            bell.wait(COME_SECONDS)


class Lane:
    """A connection that threads take turns on."""

    def __init__(
        self, address: Address, crowd: Crowd | None = None, *, durable: bool = True, operator: bool = False
    ) -> None:
        self._address = address
        self._crowd = crowd or Crowd()
        self._durable, self._operator = durable, operator
        self._connection: Connection | None = None
        self._mutex = threading.Lock()
        self._queue: deque[Asked] = deque()
        self._leader: Sequence[Job] | None = None  # what whoever leads wants done
        self._heir: Asked | None = None  # to whom the lead was given last
        self._closed = False
        self.facts: Facts | None = None
        self._known = Loss()

    def perform(self, jobs: Sequence[Job]) -> None:
        """Carry these out, alone or together with whatever others want at the same time."""
        others: list[Asked] = []
        try:
            asked = self._line_up(jobs)
            if asked is not None:
                self._await_turn(asked)
                if asked.finished:
                    return
                if asked.again:
                    return self.perform([job for job in jobs if not job.done])
            self._crowd.let_come()
            self._gather(others, len(jobs))
            together = [*jobs, *(job for one in others for job in one.jobs)] if others else jobs
            self._drive(carrying_all(together, self._address, self._known), jobs)
        except BaseException:
            self._withdraw(jobs)
            raise
        finally:
            if self._leader is jobs:
                try:
                    self._pass_on(jobs, others)
                except BaseException:  # interrupted in there
                    self._pass_on(jobs, others)
                    raise

    def ask(self, statement: Statement) -> list[Any]:
        """The rows of one statement that is no command, in our turn."""
        turn: list[Job] = []  # nobody else's
        try:
            asked = self._line_up(turn)
            if asked is not None:
                self._await_turn(asked)
            with translated(self._address):
                rows: list[Any] = self._on_connection(
                    lambda link: link.execute(*statement, binary=True).fetchall(), turn
                )
                return rows
        except BaseException:
            self._withdraw(turn)
            raise
        finally:
            if self._leader is turn:
                try:
                    self._pass_on(turn, [])
                except BaseException:
                    self._pass_on(turn, [])
                    raise

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    # -- taking turns --------------------------------------------------------------------------------------

    def _line_up(self, jobs: Sequence[Job]) -> Asked | None:
        """Our place behind those who are there already; None where nobody is, and we lead."""
        with self._mutex:
            if self._leader is None:
                self._leader = jobs
                return None
            asked = Asked(jobs, self._leader)
            self._queue.append(asked)
            return asked

    def _await_turn(self, asked: Asked) -> None:
        try:
            self._await_bell(asked)
        finally:
            if asked.finished or asked.again:
                self._wake(asked.next)
                self._crowd.awake(asked)
            elif self._leader is asked.jobs and self._queue and self._queue[0] is asked:
                self._queue.popleft()  # whoever gave us the lead was interrupted before this

    def _await_bell(self, asked: Asked) -> None:
        try:
            rung = asked.bell.acquire(timeout=TURN_SECONDS)
            # Whoever should have rung may have been interrupted; then it is our turn, or over, all the same.
            if not (rung or asked.finished or asked.again or self._leader is asked.jobs or self._taken_over(asked)):
                raise StoreUnavailable(f"no turn on a connection to {self._address.name} within {TURN_SECONDS:.0f} s")
        except BaseException:
            with self._mutex:
                asked.gone = True
            raise

    def _taken_over(self, asked: Asked) -> bool:
        """The lead of whoever has had it all the time: it vanished, or takes far too long. Its connection stays its."""
        with self._mutex:
            if self._leader is not asked.behind or asked not in self._queue:
                return False
            self._queue.remove(asked)
            self._connection = None
            self._leader = asked.jobs
            return True

    def _withdraw(self, jobs: Sequence[Job]) -> None:
        """We were interrupted, or told that it takes too long: nobody may wait for our lead."""
        if self._queue:
            with self._mutex:
                for asked in [one for one in self._queue if one.jobs is jobs]:
                    asked.gone = True
                    self._queue.remove(asked)

    def _gather(self, others: list[Asked], count: int) -> None:
        """Whoever lines up behind us, as many as may travel together."""
        if self._queue:  # who comes this very moment is next
            with self._mutex:
                while self._queue and count < BATCH_MAX and self._queue[0].jobs:
                    others.append(self._queue.popleft())
                    count += len(others[-1].jobs)

    def _pass_on(self, jobs: Sequence[Job], others: list[Asked]) -> None:
        """These have their answers; whoever is first in the line leads now. Said twice, it is done once."""
        if others:
            with self._mutex:
                waiting = [one for one in others if not (one.gone or one.finished or one.again)]
                for one, after in zip_longest(waiting, waiting[1:]):
                    one.next = after
                    one.finished = all(job.done for job in one.jobs)
                    one.again = not one.finished  # we were interrupted: it asks for itself
            self._crowd.rung(waiting)
            self._wake(next((one for one in others if one.finished or one.again), None))
            others.clear()
        with self._mutex:
            if self._leader is jobs:
                self._heir = heir = self._queue[0] if self._queue else None
                self._leader = None if heir is None else heir.jobs
                if heir is not None:
                    self._queue.popleft()
        self._wake(self._heir)

    def _wake(self, one: Asked | None) -> None:
        """Wake this one, who wakes the next: all at once they would only fight for the interpreter."""
        if one is not None and one.bell.locked():
            one.bell.release()

    # -- sending -------------------------------------------------------------------------------------------

    def _drive(self, steps: Steps, turn: Sequence[Job]) -> None:
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Pause):
                        time.sleep(step.seconds)
                        reply = None
                    else:
                        reply = self._send(step.query, turn)
                except (DriverError, SamekeyError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration:
            pass
        finally:
            steps.close()

    def _send(self, query: Query, turn: Sequence[Job]) -> Any:
        return self._on_connection(
            lambda connection: connection.ask(with_settings(self._address, query, self._durable)), turn
        )

    def _on_connection(self, work: Callable[[Connection], Any], turn: Sequence[Job]) -> Any:
        if self._closed:
            raise Closed(f"{self._address.name} was closed")
        connection = self._connection
        if self._leader is not turn:
            raise self._too_late()
        if connection is None or connection.closed:
            connection, facts = connect(
                self._address, durable=self._durable, operator=self._operator, before=self.facts
            )
            with self._mutex:
                if self._leader is turn:
                    self._connection, self.facts, self._known.lost_at = connection, facts, facts.lost_at
            if self._connection is not connection:
                connection.close()
                raise self._too_late()
        try:
            return work(connection)
        except DriverError as error:
            if is_spent(error):
                connection.close()
                if self._connection is connection:
                    self._connection = None
            raise

    def _too_late(self) -> StoreUnavailable:
        return Closed(f"a turn on a connection to {self._address.name} took so long that others have it now")
