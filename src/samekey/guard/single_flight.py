"""In-process single flight: callers of one key in one process cost the store one claim.

The first caller makes the claim; its call is the flight. The other callers follow it: they get the record it holds (so
that a wrong payload is refused at once), wait for the flight to land, and replay what it settled. The core decides all
of that, and does not see whether a reply came from the store or from a flight. If another process holds the key, the
first caller waits for that process, and the followers wait for the first caller. Only a settled record is handed to
followers: for anything else each follower asks the store itself, with the patience it has left.

The first caller may be interrupted anywhere, also on its way out: a flight whose caller is gone counts as landed.

There is no mutex. Each step is one operation on a dict or a list, which no other thread can see half done. A follower
adds its bell first and looks second; the first caller lands first and rings second. So no ring is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from weakref import ref

from samekey.core.record import Record
from samekey.loops import Bell


class Flight:
    """One call with one key, which other callers of this process follow."""

    __slots__ = ("bells", "flyer", "held", "landed", "settled")

    def __init__(self, flyer: object) -> None:
        self.flyer: Callable[[], object | None] = ref(flyer)
        self.held: Record | None = None
        self.settled: Record | None = None
        self.landed = False
        self.bells: dict[Bell, None] = {}  # a thousand may be removed at once, each in one step

    def ring(self) -> None:
        for bell in tuple(self.bells):
            bell.ring()


class Batch:
    """A run_many, or a caller that claims without a flight: in flight for as long as this object lives.

    No caller of this process follows it; callers of its keys ask the store.
    """

    __slots__ = ("__weakref__",)


def _gone() -> None:
    """The caller of a flight that was abandoned."""


class Flights:
    def __init__(self) -> None:
        self._batches: dict[ref[Batch], None] = {}
        self._flying: dict[bytes, Flight] = {}
        self._abandoned: deque[tuple[bytes, Flight]] = deque()

    def board(self, digest: bytes, ours: Flight) -> Flight:
        """The flight of this key: `ours`, if there is no other one."""
        while self._abandoned:
            self.land(*self._abandoned.popleft(), None)
        flight = self._flying.setdefault(digest, ours)
        if flight is ours or flight.flyer() is not None:
            return flight
        self.land(digest, flight, None)
        return self._flying.setdefault(digest, ours)

    def batch(self) -> Batch:
        """To be kept by a run_many, or by a caller that claims without a flight, until it is over."""
        batch = Batch()
        # The dict's own pop removes it, so no signal handler can interrupt that. It can in a WeakSet, which then would
        # never be empty.
        self._batches[ref(batch, self._batches.pop)] = None
        return batch

    def under_way(self) -> bool:
        """Whether any call of this guard may still need the store."""
        return bool(self._batches) or any(flight.flyer() for flight in list(self._flying.values()))

    def hold(self, flight: Flight, record: Record) -> None:
        """The store replied to the first caller: show the record to the followers."""
        flight.held = record
        if flight.bells:
            flight.ring()

    def land(self, digest: bytes, flight: Flight, settled: Record | None) -> None:
        """The call is over; `settled` is what the followers may replay."""
        flight.settled = settled
        flight.landed = True
        if self._flying.get(digest) is flight:  # only its own caller ever removes it
            del self._flying[digest]
        if flight.bells:
            flight.ring()

    def abandon(self, digest: bytes, flight: Flight) -> None:
        """For the garbage collector, which may run anywhere: only note it. The next caller of any key lands it."""
        flight.flyer = _gone  # the caller's object may live on until the fact is reported
        self._abandoned.append((digest, flight))

    def listen(self, flight: Flight, bell: Bell) -> None:
        flight.bells[bell] = None
        if flight.landed:
            bell.ring()

    def leave(self, flight: Flight, bell: Bell) -> None:
        flight.bells.pop(bell, None)
