"""Two stores as one: a fast front that may forget, before a durable store that alone lets an effect run.

`core.layers` decides which command goes through which layer; this module carries it out. The front has a circuit
breaker: while the front is away no caller waits for it, and one caller at a time tries whether it is back.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from samekey.core.books import Count, Finding, FindingQuery
from samekey.core.commands import Command, Read, StoreCommand, Wait
from samekey.core.drive import adrive, drive
from samekey.core.errors import Misconfigured, SamekeyError
from samekey.core.layers import FRONT_TTL_SECONDS, Front, FrontTime, Linger, Look, Put, Sight
from samekey.core.parking import Parked, ParkedQuery
from samekey.core.ports import AsyncFrontStore, AsyncStore, Due, FrontStore, Health, Query, Reply, Store
from samekey.core.record import Audit, Record
from samekey.loops import Bell, ThreadBell, running
from samekey.stores._waiting import async_wait, wait

F = TypeVar("F", FrontStore, AsyncFrontStore)
B = TypeVar("B", Store, AsyncStore)

_log = logging.getLogger("samekey")

LINGER_SECONDS = 0.05  # how long to wait for the entry of the caller that left a mark, before looking again
BREAK_SECONDS = 0.5  # how long the front is left alone after it failed, half as much more or less
ASKED_SECONDS = 5.0  # how long a caller waits for another one that reads the incarnation, before it reads it itself
FRONT_TTL_MAX_SECONDS = 24 * 3600.0  # a freed or redacted answer may be replayed for as long
TRUTH_SECONDS = 1.0  # how often a waiter at the front looks at the durable store


class Breaker:
    """Whether a caller may use the front: not while it is away, and then one caller first.

    Callers use the front in a `with` block of the breaker. An error of the front ends the block and is logged.
    """

    def __init__(self, name: str) -> None:
        self._name, self.away_until = name, 0.0

    @property
    def closed(self) -> bool:
        if self.away_until == 0.0:
            return True
        now = time.monotonic()
        if now < self.away_until:
            return False
        self.away_until = now + BREAK_SECONDS  # this caller tries; the others do not use the front meanwhile
        return True

    def __enter__(self) -> None:
        """Callers look at `closed` first."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, SamekeyError):
            _log.warning("the front %s is away: slower, never wrong (%s)", self._name, error)
            # With jitter, so that the processes do not all come back at the same moment.
            self.away_until = time.monotonic() + BREAK_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311
            return True
        if error is None:
            self.away_until = 0.0
        return False


class _Layers(Generic[F, B]):
    """What both colours share: the seal of the durable store's incarnation, the front's clock, the breaker."""

    _front: Any
    _back: Any

    def __init__(self, front: F, back: B, *, front_ttl: float | timedelta = FRONT_TTL_SECONDS) -> None:
        seconds: Any = front_ttl.total_seconds() if isinstance(front_ttl, timedelta) else front_ttl
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= FRONT_TTL_MAX_SECONDS:
            raise Misconfigured(f"front_ttl is how old an answer may be, in seconds up to a day; not {front_ttl!r}")
        self._front, self._back, self._front_ttl = front, back, float(seconds)
        self.name = f"{front.name} {back.name}"
        self._breaker = Breaker(front.name)
        self._front_time: float | None = None  # what its clock showed when we last looked
        self._seal: Front | None = None
        self._mutex = threading.Lock()
        self._asking: list[Bell] | None = None  # bells of callers that wait while one reads the incarnation

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def incarnation(self) -> str:
        known: str = self._back.incarnation
        return known

    # -- what the durable store answers alone: in the async store these return awaitables ----------------------

    def batch(self, commands: Sequence[StoreCommand]) -> Any:
        return self._back.batch(commands)

    def list(self, query: Query) -> Any:
        return self._back.list(query)

    def due(self, due: Due) -> Any:
        return self._back.due(due)

    def doubtful(self) -> Any:
        return self._back.doubtful()

    def sweep(self, limit: int) -> Any:
        return self._back.sweep(limit)

    def audit(self, limit: int) -> Any:
        return self._back.audit(limit)

    def join(self, connection: Any) -> Any:
        """The durable store inside the caller's transaction: what is not committed yet is not put into the front."""
        return self._back.join(connection)

    # -- both layers -----------------------------------------------------------------------------------------

    def _perform(self: Any, command: Command) -> Any:
        """The reply to a step of `core.layers`; in the async store an awaitable of it."""
        match command:
            case Look(digest):
                return self._look(digest, mark=True)
            case StoreCommand():
                return self._back.carry_out(command)
            case Put(digest, entry, until):
                return self._put(digest, entry, until)
            case FrontTime():
                return self._time_of_front()
            case Linger(digest):
                return self._linger(digest)
        raise TypeError(f"{type(command).__name__} has no place in a layered store")

    def _rules(self, incarnation: str) -> Front:
        seal = self._seal
        if seal is None or seal.incarnation != incarnation:  # at the start, and after a failover of the durable store
            self._seal = seal = Front(incarnation, self._front_ttl)
        return seal

    def _is_asked(self, bell: Bell) -> bool:
        """Whether another caller already reads the incarnation, and will ring; if not, this caller must read it."""
        with self._mutex:
            if self._asking is None:
                self._asking = []
                return False
            self._asking.append(bell)
            return True

    def _has_asked(self) -> None:
        with self._mutex:
            waiting, self._asking = self._asking or [], None
        for bell in waiting:
            bell.ring()

    def _saw(self, sight: Sight) -> Sight:
        self._front_time = sight.now
        return sight

    # The books are the durable store's: in both colours its own answer, which is awaitable where the store is async.

    def add_counts(self, counts: Sequence[Count]) -> Any:
        return self._back.add_counts(counts)

    def counts(self, since: float, until: float) -> Any:
        return self._back.counts(since, until)

    def note_action(self, entry: Audit) -> Any:
        return self._back.note_action(entry)

    def keep_finding(self, finding: Finding) -> Any:
        return self._back.keep_finding(finding)

    def findings(self, query: FindingQuery) -> Any:
        return self._back.findings(query)

    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Any:
        return self._back.accept_finding(id, by=by, why=why, until=until)

    def park(self, parked: Parked) -> Any:
        return self._back.park(parked)

    def parked(self, query: ParkedQuery) -> Any:
        return self._back.parked(query)

    def redelivered(self, id: str, *, by: str) -> Any:
        return self._back.redelivered(id, by=by)

    def _health(self, back: Health) -> Health:
        away: list[str] = ["the front is away: slower, never wrong"] if self._breaker.away_until else []
        return replace(
            back,
            store=self.name,
            warnings=(*back.warnings, *away),
            facts=(*back.facts, ("front", self._front.name), ("front_ttl", f"{self._front_ttl:g} s")),
        )


class LayeredStore(_Layers[FrontStore, Store]):
    """A store for `Guard`: a fast one before a durable one, `"redis://cache/0 postgresql://db/app"`."""

    _front: FrontStore
    _back: Store

    # -- the port ------------------------------------------------------------------------------------------

    def carry_out(self, command: StoreCommand) -> Reply:
        if type(command) is Read:
            return self._back.carry_out(command)
        return drive(self._seals().steps(command), self._perform)

    def wait(self, command: Wait, timeout: float) -> Record | None:
        truth_at = time.monotonic() + TRUTH_SECONDS

        def look() -> Record | None:
            nonlocal truth_at
            sight = self._look(command.key.digest, mark=False)
            copy = None if sight is None else self._seals().answer(command.key, sight)
            if copy is not None and time.monotonic() < truth_at:
                return copy
            truth_at = time.monotonic() + TRUTH_SECONDS
            record: Record | None = self._back.carry_out(Read(command.key))
            if copy is not None and sight is not None:
                drive(self._seals().corrected(copy, record, sight.now), self._perform)
            return record

        with self._front.watching(command.key.digest):
            return wait(command.seen, timeout, look, self._front.bells)

    def health(self) -> Health:
        return self._health(self._back.health())

    def close(self) -> None:
        self._front.close()
        self._back.close()

    # -- both layers -----------------------------------------------------------------------------------------

    def _seals(self) -> Front:
        return self._rules(self._back.incarnation or self._asked())

    def _asked(self) -> str:
        """The incarnation, at the start: one caller reads it, and those that came with it share the reply."""
        bell = ThreadBell()
        asked = self._is_asked(bell)
        try:
            if asked:
                bell.wait(ASKED_SECONDS)
            return self._back.incarnation or self._back.health().incarnation
        finally:
            if not asked:
                self._has_asked()

    def _time_of_front(self) -> float | None:
        return self._front_time

    def _look(self, digest: bytes, *, mark: bool) -> Sight | None:
        if self._breaker.closed:
            with self._breaker:
                return self._saw(self._front.look(digest, mark=mark))
        return None

    def _put(self, digest: bytes, entry: bytes, until: float) -> bool:
        if self._breaker.closed:
            with self._breaker:
                self._front.put(digest, entry, until)
                return True
        return False

    def _linger(self, digest: bytes) -> None:
        bell = ThreadBell()
        self._front.bells.add(digest, bell)
        try:
            with self._front.watching(digest):
                bell.wait(LINGER_SECONDS)
        finally:
            self._front.bells.remove(digest, bell)


class AsyncLayeredStore(_Layers[AsyncFrontStore, AsyncStore]):
    """A store for `AsyncGuard`: the same, awaited."""

    _front: AsyncFrontStore
    _back: AsyncStore

    async def carry_out(self, command: StoreCommand) -> Reply:
        if type(command) is Read:
            return await self._back.carry_out(command)
        return await adrive((await self._seals()).steps(command), self._perform)

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        truth_at = time.monotonic() + TRUTH_SECONDS

        async def look() -> Record | None:
            nonlocal truth_at
            sight = await self._look(command.key.digest, mark=False)
            copy = None if sight is None else (await self._seals()).answer(command.key, sight)
            if copy is not None and time.monotonic() < truth_at:
                return copy
            truth_at = time.monotonic() + TRUTH_SECONDS
            record: Record | None = await self._back.carry_out(Read(command.key))
            if copy is not None and sight is not None:
                await adrive((await self._seals()).corrected(copy, record, sight.now), self._perform)
            return record

        with self._front.watching(command.key.digest):
            return await async_wait(command.seen, timeout, look, self._front.bells)

    async def health(self) -> Health:
        return self._health(await self._back.health())

    async def close(self) -> None:
        await self._front.close()
        await self._back.close()

    async def _seals(self) -> Front:
        return self._rules(self._back.incarnation or await self._asked())

    async def _asked(self) -> str:
        bell = running().bell()
        asked = self._is_asked(bell)
        try:
            if asked:
                await bell.wait(ASKED_SECONDS)
            return self._back.incarnation or (await self._back.health()).incarnation
        finally:
            if not asked:
                self._has_asked()

    async def _time_of_front(self) -> float | None:
        return self._front_time

    async def _look(self, digest: bytes, *, mark: bool) -> Sight | None:
        if self._breaker.closed:
            with self._breaker:
                return self._saw(await self._front.look(digest, mark=mark))
        return None

    async def _put(self, digest: bytes, entry: bytes, until: float) -> bool:
        if self._breaker.closed:
            with self._breaker:
                await self._front.put(digest, entry, until)
                return True
        return False

    async def _linger(self, digest: bytes) -> None:
        bell = running().bell()
        self._front.bells.add(digest, bell)
        try:
            with self._front.watching(digest):
                await bell.wait(LINGER_SECONDS)
        finally:
            self._front.bells.remove(digest, bell)
