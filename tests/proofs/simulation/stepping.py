"""The real AsyncGuard, one step at a time: no event loop, no thread, no clock of its own.

Everything a guard waits for - the store, an effect, a lookup, a pause, a bell - is a `Wish` that it yields to whoever
steps it. `stepping` puts a stage in the place of the event loop, the client's clock, the source of attempt ids and
the timer thread; the rest is the code that users run. (The sync guard blocks where this one waits. Both turn the
crank of the same core with the same performer, method by method, which is why stepping one of them says so much.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, Protocol, TypeVar, cast

from samekey.core.commands import Wait
from samekey.core.layers import Sight
from samekey.core.ports import AsyncStore
from samekey.guard import bookkeeping, claiming, facts, hold, lease_timer, operations, performer, reporting
from samekey.guard.guards import AsyncGuard
from samekey.guard.lease_timer import Leases, renew_with
from samekey.guard.single_flight import Flights
from samekey.guard.store_urls import LAYERED
from samekey.loops import Bells

T = TypeVar("T")

# Found as a guard finds it, by the table of addresses: this room knows the port, and no store by name.
_layered: Any = import_module(LAYERED[True].partition(":")[0])
_waiting: Any = import_module(_layered.async_wait.__module__)


class Wish:
    """Something that a stepped task waits for; whoever steps it sends the reply, or throws."""

    __slots__ = ("about", "kind")

    def __init__(self, kind: str, about: Any) -> None:
        self.kind = kind  # store | front | wait | sleep | bell, and whatever effects and lookups ask for
        self.about = about

    def __await__(self) -> Generator[Wish, Any, Any]:
        return (yield self)


class Stage(Protocol):
    """What surrounds the guards that are stepped."""

    def monotonic(self) -> float:
        """The clock of the client whose step this is."""

    def uniform(self, least: float, most: float) -> float: ...
    def new_attempt(self) -> str: ...
    @property
    def current_incarnation(self) -> str:
        """Which durable store it is that would answer now."""

    @property
    def heard_incarnation(self) -> str:
        """Which it was that answered whoever is stepped."""

    def front_bells(self) -> Bells: ...
    def shield(self, on: bool) -> None:
        """From here on, or no longer, a cancellation waits."""

    def rung(self, bell: Bell) -> None: ...
    def at_once(self, wish: Wish) -> Any:
        """Carry out a wish of the timer thread, which has no steps."""

    def renew_at(self, leases: SteppedLeases, seconds: float) -> None:
        """Call `lease_timer.renew_due()` after so many seconds of the client's clock."""


class Bell:
    """Rung by another task, waited for by one."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.ringing = False

    def ring(self) -> None:
        self.ringing = True
        self._stage.rung(self)

    async def wait(self, timeout: float | None) -> None:
        if not self.ringing:
            await Wish("bell", (self, timeout))
        self.ringing = False


class SteppedLoop:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def sleep(self, seconds: float) -> None:
        await Wish("sleep", seconds)

    def bell(self) -> Bell:
        return Bell(self._stage)

    async def shielded(self, work: Callable[[], Awaitable[T]]) -> T:
        self._stage.shield(True)
        try:
            return await work()
        finally:
            self._stage.shield(False)

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        done = Future[T]()
        try:
            done.set_result(self._all_of(work()))
        except Exception as error:
            done.set_exception(error)
        return done

    def closed(self) -> bool:
        return False

    def _all_of(self, steps: Coroutine[Any, Any, T]) -> T:
        try:
            wish = steps.send(None)
            while True:
                try:
                    reply = self._stage.at_once(wish)
                except Exception as error:
                    wish = steps.throw(error)
                else:
                    wish = steps.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value


class SteppedStore:
    """A store whose every method is a wish."""

    name = "stepped"
    incarnation = ""

    async def carry_out(self, command: Any) -> Any:
        return await Wish("store", command)

    async def wait(self, command: Wait, timeout: float) -> Any:
        return await Wish("wait", (command, timeout))


class SteppedBack:
    """The same as the durable one of two: it remembers, for its process, which incarnation answered."""

    name = "stepped"

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._heard = ""

    async def carry_out(self, command: Any) -> Any:
        record = await Wish("store", command)
        self._heard = self.stage.heard_incarnation
        return record

    @property
    def incarnation(self) -> str:
        """Whoever comes for the first time asks, before anything else; that takes no time here."""
        if not self._heard:
            self._heard = self.stage.current_incarnation
        return self._heard


class SteppedFront:
    """The front of one process: its bells are those of the stage, which rings or does not."""

    name = "front"
    watching = nullcontext

    def __init__(self, stage: Stage) -> None:
        self.bells = stage.front_bells()

    async def look(self, digest: bytes, *, mark: bool) -> Sight:
        sight: Sight = await Wish("front", ("look", (digest, mark)))
        return sight

    async def put(self, digest: bytes, word: bytes, until: float) -> None:
        await Wish("front", ("put", (digest, word, until)))


class SteppedLeases(Leases):
    """The real timer, without its thread."""

    stage: Stage

    def _wake(self, part: float) -> None:
        self.stage.renew_at(self, part)

    def renew_due(self) -> None:
        now = self.stage.monotonic()
        for lease in [lease for lease in self.living() if lease.renew_at <= now]:
            self._renew_one(lease)
        living = self.living()
        if living:
            self.stage.renew_at(self, min(lease.renew_at for lease in living) - now)


_STORE: AsyncStore = cast(Any, SteppedStore())


class SteppedGuard(AsyncGuard):
    """A guard whose timer is stepped, too."""

    _leases: SteppedLeases

    def __init__(self, *, layered: bool) -> None:
        super().__init__(_STORE)
        self._layered = layered
        self._leases = SteppedLeases(lambda lease: renew_with(self.store, lease))

    @property
    def incarnation(self) -> str:
        """Of the durable store that this process has last heard."""
        known: str = self.store.incarnation
        return known

    def started(self, stage: Stage) -> SteppedGuard:
        """As in a process that just started: with the rules it was given, and nothing under way."""
        self._flights = Flights()
        self._leases._held = {}
        self._leases.stage = stage
        if self._layered:
            self._opened = _layered.AsyncLayeredStore(SteppedFront(stage), SteppedBack(stage))
        return self

    def left(self) -> None:
        """The stage is taken down; another one may come."""
        del self._leases.stage
        self._opened = None


def stepped(stage: Stage) -> list[tuple[Any, str, Any]]:
    """(module, name, what it is replaced by): every loop, clock and source of chance of the code that is played."""
    loop = SteppedLoop(stage)
    return [
        (claiming, "running", lambda: loop),
        (performer, "running", lambda: loop),
        (hold, "in_a_loop", lambda: True),
        (claiming, "time", stage),
        (performer, "time", stage),
        (hold, "time", stage),
        (reporting, "time", stage),
        (facts, "time", stage),
        (bookkeeping, "started", lambda thread: False),  # no thread writes counts and findings
        (lease_timer, "time", stage),
        (_layered, "running", lambda: loop),
        (_layered, "time", stage),
        (_layered, "random", stage),
        (_waiting, "running", lambda: loop),
        (_waiting, "time", stage),
        (operations, "new_attempt", stage.new_attempt),
    ]


@contextmanager
def stepping(stage: Stage) -> Iterator[None]:
    """Within it, guards live on this stage."""
    places = stepped(stage)
    real = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, ours in places:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for module, name, theirs in real:
            setattr(module, name, theirs)
