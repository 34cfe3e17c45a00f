"""In-process single flight: callers of one key in one process cost the store one claim.

The first caller flies; the others read over its shoulder. They get the record it holds (so that a wrong
payload is told at once), wait for it to land, and replay what it settled - all decided by the core, which
cannot tell our reply from the store's. If another process holds the key, the first caller waits for it, and the
others for the first caller. Only a settled record is ever handed on: anything else the followers ask the store
themselves, each with the patience it has left.

Whoever flies may be interrupted anywhere, also on its way out: a flight whose flyer is gone has landed.

There is no mutex. Each step is one operation on a dict or a list, which no other thread can see half done; a
follower adds its bell first and looks second, the flyer lands first and rings second, so no ring is lost.
"""

from __future__ import annotations

from collections import deque
from weakref import ref

from samekey.core.record import Record
from samekey.loops import Bell


class Flight:
    """One caller under way with one key."""

    __slots__ = ("bells", "flyer", "held", "landed", "settled")

    def __init__(self, flyer: object) -> None:
        self.flyer = ref(flyer)
        self.held: Record | None = None
        self.settled: Record | None = None
        self.landed = False
        self.bells: dict[Bell, None] = {}  # a thousand may leave at once: each in one step

    def ring(self) -> None:
        for bell in tuple(self.bells):
            bell.ring()


class Batch:
    """A run_many, or a caller that claims without a flight, as long as somebody has it.

    Nobody waits for it here: each of its claims is the store's to tell.
    """

    __slots__ = ("__weakref__",)


class Flights:
    def __init__(self) -> None:
        self._batches: dict[ref[Batch], None] = {}
        self._flying: dict[bytes, Flight] = {}
        self._abandoned: deque[tuple[bytes, Flight]] = deque()

    def board(self, digest: bytes, ours: Flight) -> Flight:
        """The flight of this key: ours, if nobody else is under way."""
        while self._abandoned:
            self.land(*self._abandoned.popleft(), None)
        flight = self._flying.setdefault(digest, ours)
        if flight is ours or flight.flyer() is not None:
            return flight
        self.land(digest, flight, None)
        return self._flying.setdefault(digest, ours)

    def batch(self) -> Batch:
        """To be kept by a run_many, or by whoever claims without a flight, until it is over."""
        batch = Batch()
        # Taken out by the dict itself: no signal comes between, as it does in a WeakSet, which then never is empty.
        self._batches[ref(batch, self._batches.pop)] = None
        return batch

    def under_way(self) -> bool:
        """Whether anybody here may still have to be told by the store, or to tell it something."""
        return bool(self._batches) or any(flight.flyer() for flight in list(self._flying.values()))

    def hold(self, flight: Flight, record: Record) -> None:
        """The store gave us the key: tell those who wait which record it is."""
        flight.held = record
        if flight.bells:
            flight.ring()

    def land(self, digest: bytes, flight: Flight, settled: Record | None) -> None:
        """We are done; `settled` is what the followers may replay."""
        flight.settled = settled
        flight.landed = True
        if self._flying.get(digest) is flight:  # only its own flyer ever takes it away
            del self._flying[digest]
        if flight.bells:
            flight.ring()

    def abandon(self, digest: bytes, flight: Flight) -> None:
        """Called by the garbage collector, which may run anywhere: only take note."""
        self._abandoned.append((digest, flight))

    def listen(self, flight: Flight, bell: Bell) -> None:
        flight.bells[bell] = None
        if flight.landed:
            bell.ring()

    def leave(self, flight: Flight, bell: Bell) -> None:
        flight.bells.pop(bell, None)
