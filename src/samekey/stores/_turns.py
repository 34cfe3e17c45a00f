"""Threads take turns on a connection: one thread leads, sends the commands of all, and answers all.

There is no timer. The commands of a lone caller go out at once, in its own thread. While the connection is busy,
callers queue up. When it is free, the first of the queue leads: it carries out its own commands together with those of
the queue in one batch, wakes their callers, and gives the lead to the next in the queue. From 8 to 16 threads on this
needs less than half of the client's CPU time of a connection for each thread, and a process needs few connections.

Threads that were answered together wake up one after the other. The first of them would find the next connection free
and send its command alone, before the others are awake: half of all commits carried one command. So a thread that is
about to lead waits a moment while others are still waking up (`Waking`). Event loops do not need this.

A signal handler may raise anywhere in here, in the main thread. So a leader is identified by its own list of items,
which the caller holds before it asks for the lead. A caller that leaves passes the lead on if it leads, and tries again
if it is interrupted there: every part of that may be done twice. The callers whose commands an interrupted leader did
not finish send them again. If a leader vanished nevertheless, a caller takes the lead over after `TURN_SECONDS`.

Python 3.13 leaves a `with` or `try` without its exit if an interrupt comes where a loop inside it jumps back from a
condition (python/cpython#130279): the mutex would stay locked. So a loop with a condition is a function of its own
here, which the block calls; tests/stores/test_jumps_back.py checks it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Generic, Protocol, TypeVar

from samekey.core.errors import StoreUnavailable
from samekey.loops import ThreadBell

WAKING_SECONDS = 0.001  # a thread wakes up in a tenth of it; on busy cores the leader does not wait much longer
TURN_SECONDS = 60.0  # many times what the batches before us may take; reached only if the leader vanished


class Item(Protocol):
    """One command on its way to the server."""

    done: bool


T = TypeVar("T", bound=Item)


class Place(Generic[T]):
    """The place of one caller in the queue."""

    __slots__ = ("answered", "bell", "gone", "items", "leader", "next")

    def __init__(self, items: Sequence[T], leader: Sequence[T]) -> None:
        self.items = items
        self.leader = leader  # the items of the caller that led when this one queued up
        self.bell = threading.Lock()  # locked until the caller is to wake up: nothing is cheaper to sleep on
        self.bell.acquire()
        self.answered = False  # a leader is done with the items; it was interrupted if some of them are not
        self.gone = False  # interrupted while it waited
        self.next: Place[T] | None = None  # the caller to wake as soon as this one is awake


class Waking:
    """The threads of a process that have their answers and are not awake yet."""

    def __init__(self) -> None:
        self.places: set[Place[Any]] = set()
        self._mutex = threading.Lock()
        self._leaders: list[ThreadBell] = []

    def add(self, places: Sequence[Place[Any]]) -> None:
        with self._mutex:
            self.places.update(places)

    def remove(self, place: Place[Any]) -> None:
        leaders: list[ThreadBell] = []
        with self._mutex:
            self.places.discard(place)
            if not self.places:
                leaders, self._leaders = self._leaders, leaders
        for leader in leaders:
            leader.ring()

    def wait(self) -> None:
        """Return when all of them are awake, or after `WAKING_SECONDS`."""
        bell = ThreadBell()
        with self._mutex:
            if not self.places:
                return
            self._leaders.append(bell)
        bell.wait(WAKING_SECONDS)


class Turns(ABC, Generic[T]):
    """Callers in threads, their queue, and the lead; a subclass adds the connection."""

    def __init__(self, name: str, *, batch_max: int, bytes_max: int = 0, waking: Waking | None = None) -> None:
        self._server_name = name
        self._batch_max, self._bytes_max = batch_max, bytes_max
        self._waking = waking or Waking()
        self._mutex = threading.Lock()
        self._queue: deque[Place[T]] = deque()
        self._leader: Sequence[T] | None = None  # the items of the caller that leads

    @abstractmethod
    def _carry_out(self, items: Sequence[T], turn: Sequence[T]) -> None:
        """Carry out all these items. `turn` is the leader's own list: it may send while `_leader is turn`."""

    @abstractmethod
    def _leave_connection(self) -> None:
        """Forget the connection: a leader that vanished, or is very late, still owns it. The mutex is held."""

    def _weight(self, items: Sequence[T]) -> int:
        """The bytes that these items carry; 0 where `bytes_max` is 0 too, which limits nothing then."""
        return 0

    def _perform_rest(self, items: Sequence[T]) -> None:
        """Carry out items whose leader was interrupted: the server may or may not have done them."""
        self.perform(items)

    def perform(self, items: Sequence[T], work: Callable[[Sequence[T]], Any] | None = None) -> Any:
        """Carry these items out, alone or together with those of other callers.

        With `work` (and an empty list of this caller's own) call it in a turn instead, and return its result.
        """
        place: Place[T] | None = None
        others: list[Place[T]] = []
        try:
            with self._mutex:
                if self._leader is None:
                    self._leader = items
                else:
                    place = Place(items, self._leader)
                    self._queue.append(place)
            if place is not None:
                self._await_turn(place)
                if place.answered:
                    rest = _not_done(items)
                    return self._perform_rest(rest) if rest else None
            if work is not None:
                return work(items)
            if self._waking.places and self._batch_max > 1:
                self._waking.wait()
            if self._queue:  # a caller that queues up at this very moment comes with the next batch
                self._gather(items, others)
            self._carry_out([*items, *(item for one in others for item in one.items)] if others else items, items)
        except BaseException:
            if place is not None:
                self._withdraw(place)
            raise
        finally:
            try:
                if self._leader is items:
                    self._pass_on(items, others)
            except BaseException:  # interrupted in there
                self._pass_on(items, others)
                raise

    def _await_turn(self, place: Place[T]) -> None:
        """Return when this caller leads, or when a leader has answered it."""
        woken = place.bell.acquire(timeout=TURN_SECONDS)
        if place.answered:
            self._wake_next(place)
        # The leader may have been interrupted after it gave us the lead and before it woke us.
        elif woken or self._leader is place.items or self._taken_over(place):
            with self._mutex:
                self._queue.remove(place)
        else:
            raise StoreUnavailable(f"no turn on a connection to {self._server_name} within {TURN_SECONDS:.0f} s")

    def _taken_over(self, place: Place[T]) -> bool:
        """Take the lead from a caller that has had it all the time: it vanished, or takes far too long."""
        with self._mutex:
            if self._leader is not place.leader or place not in self._queue:
                return False
            self._leave_connection()
            self._leader = place.items
            return True

    def _withdraw(self, place: Place[T]) -> None:
        """This caller was interrupted, or waited too long: no leader may hand it the lead."""
        with self._mutex:
            place.gone = True
            if place in self._queue:
                self._queue.remove(place)
        if place.answered:
            self._wake_next(place)

    def _wake_next(self, place: Place[T]) -> None:
        """This caller is awake: wake the one that was answered with it."""
        _wake(place.next)
        self._waking.remove(place)

    def _gather(self, items: Sequence[T], others: list[Place[T]]) -> None:
        """Move callers from the queue to `others`: as many as may travel in one batch with these items."""
        with self._mutex:
            self._move(items, others)

    def _move(self, items: Sequence[T], others: list[Place[T]]) -> None:
        count, weight = len(items), self._weight(items)
        while self._leader is items and self._queue and self._queue[0].items:
            if count >= self._batch_max or weight > self._bytes_max:
                return
            others.append(self._queue[0])  # noted before it leaves the queue: it is answered if we are interrupted
            self._queue.popleft()
            count += len(others[-1].items)
            if self._bytes_max:
                weight += self._weight(others[-1].items)

    def _pass_on(self, items: Sequence[T], others: list[Place[T]]) -> None:
        """Wake those we did the work for, and give the lead to the first in the queue, which then leaves the queue."""
        if others:
            with self._mutex:
                if self._queue and self._queue[0] is others[-1]:
                    self._queue.popleft()  # interrupted in `_gather`
                waiting = _waiting(others)
                for one, after in zip_longest(waiting, waiting[1:]):
                    one.next = after
                    one.answered = True
            self._waking.add(waiting)
            _wake(next((one for one in others if one.answered), None))
            others.clear()
        with self._mutex:
            first = self._queue[0] if self._queue else None
            if self._leader is items:
                self._leader = None if first is None else first.items
        if first is not None and self._leader is first.items:
            _wake(first)


def _not_done(items: Sequence[T]) -> list[T]:
    return [item for item in items if not item.done]


def _waiting(places: list[Place[T]]) -> list[Place[T]]:
    return [one for one in places if not (one.gone or one.answered)]


def _wake(place: Place[Any] | None) -> None:
    """Wake this caller, which wakes the next one: all at once they would only fight for the interpreter."""
    if place is not None:
        try:
            place.bell.release()
        except RuntimeError:
            pass  # it was woken already
