"""In-process single flight: callers of one key in one process cost the store one claim.

The first caller flies; the others read over its shoulder. They get the record it holds (so that a wrong
payload is told at once), wait for it to land, and replay what it settled - all decided by the core, which
cannot tell our reply from the store's. Only a settled record is ever handed on: anything else the
followers ask the store themselves. One mutex, held for dict work only, never over a wait.
"""

from __future__ import annotations

import threading
from collections import deque

from samekey.core.record import Record
from samekey.loops import Bell


class Flight:
    """One caller under way with one key."""

    __slots__ = ("bells", "held", "landed", "settled")

    def __init__(self) -> None:
        self.held: Record | None = None
        self.settled: Record | None = None
        self.landed = False
        self.bells: list[Bell] = []


class Flights:
    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._flying: dict[bytes, Flight] = {}
        self._abandoned: deque[tuple[bytes, Flight]] = deque()

    def board(self, digest: bytes) -> tuple[Flight, bool]:
        """The flight of this key, and whether we are the one who flies."""
        while self._abandoned:
            self.land(*self._abandoned.popleft(), None)
        with self._mutex:
            flight = self._flying.get(digest)
            if flight is not None:
                return flight, False
            flight = self._flying[digest] = Flight()
            return flight, True

    def hold(self, flight: Flight, record: Record) -> None:
        """The store gave us the key: tell those who wait which record it is."""
        with self._mutex:
            flight.held = record
            bells = list(flight.bells)
        for bell in bells:
            bell.ring()

    def land(self, digest: bytes, flight: Flight, settled: Record | None) -> None:
        """We are done; `settled` is what the followers may replay."""
        with self._mutex:
            if self._flying.get(digest) is flight:
                del self._flying[digest]
            flight.settled = settled
            flight.landed = True
            bells = list(flight.bells)
        for bell in bells:
            bell.ring()

    def abandon(self, digest: bytes, flight: Flight) -> None:
        """Called by the garbage collector, which may run anywhere, also under our mutex: only take note."""
        self._abandoned.append((digest, flight))

    def listen(self, flight: Flight, bell: Bell) -> None:
        with self._mutex:
            flight.bells.append(bell)
            over = flight.landed
        if over:
            bell.ring()

    def leave(self, flight: Flight, bell: Bell) -> None:
        with self._mutex:
            if bell in flight.bells:
                flight.bells.remove(bell)
