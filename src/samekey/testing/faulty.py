"""A store that fails on demand: it is down, slow, carries a command out twice, or ends the process.

    store = FaultyStore(MemoryStore(), [Fault("settle", when="after")])     # written, but the reply is lost

A fault names a command of the store and what goes wrong: before the command (nothing is written) or after it (the
command is written, and its reply is lost). Both colours use the same plan; only the code that acts exists twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from samekey.core.books import Count, Finding, FindingQuery
from samekey.core.commands import StoreCommand, Wait
from samekey.core.errors import StoreUnavailable
from samekey.core.parking import Parked, ParkedQuery
from samekey.core.ports import AsyncStore, Due, Query, Replies, Reply, Store
from samekey.core.record import Audit
from samekey.loops import running

EVERY = "*"
VERBS = frozenset(
    {
        *("open", "take", "begin", "renew", "settle", "ask", "testify", "read", "wait"),
        *("batch", "list", "sweep", "redact", "free", "audit", "note_action", "health"),
        *("add_counts", "counts", "keep_finding", "findings", "accept_finding"),
        *("park", "parked", "redelivered"),
    }
)


class Crashed(BaseException):
    """The process ends here. It is a BaseException, so that no `except Exception` of the code under test catches it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong at a verb of the store.

    `skip` calls of the verb go well first, the next `times` meet the fault (None: all of them, until `heal()`).
    Several faults may meet one call: they all act, in the order given.

    >>> Fault("settle", when="after", times=2).kind
    'unavailable'
    """

    verb: str  # a verb of the store, or "*" for every one
    kind: Literal["unavailable", "crash", "delay", "duplicate"] = "unavailable"
    when: Literal["before", "after"] = "before"  # for a duplicate: no difference
    skip: int = 0
    times: int | None = 1
    seconds: float = 0.0  # of a delay

    def __post_init__(self) -> None:
        if self.verb != EVERY and self.verb not in VERBS:
            raise ValueError(f"{self.verb!r} is no verb of a store; there are: {', '.join(sorted(VERBS))}")
        if self.kind not in ("unavailable", "crash", "delay", "duplicate") or self.when not in ("before", "after"):
            raise ValueError(f"no such fault: {self.kind!r} {self.when!r} the command")


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that a call met."""

    verb: str
    fault: Fault


class Plan:
    """Which faults are still to come, and which came; shared by threads and by both colours."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._mutex = threading.Lock()
        self._faults = list(faults)
        self._met = [0] * len(self._faults)  # how many calls each fault has seen
        self.fired: list[Fired] = []
        self.calls: Counter[str] = Counter()

    def add(self, *faults: Fault) -> None:
        with self._mutex:
            self._faults += faults
            self._met += [0] * len(faults)

    def heal(self) -> None:
        """Drop the remaining faults; `fired` and `calls` stay as they are."""
        with self._mutex:
            self._faults, self._met = [], []

    def meets(self, verb: str) -> tuple[Fault, ...]:
        """The faults that this call of the verb meets."""
        with self._mutex:
            self.calls[verb] += 1
            now = []
            for at, fault in enumerate(self._faults):
                if fault.verb not in (verb, EVERY):
                    continue
                self._met[at] += 1
                if self._met[at] > fault.skip and (fault.times is None or self._met[at] <= fault.skip + fault.times):
                    now.append(fault)
            self.fired += [Fired(verb, fault) for fault in now]
            return tuple(now)


def _pauses(faults: Sequence[Fault], when: str) -> float:
    return sum(fault.seconds for fault in faults if fault.kind == "delay" and fault.when == when)


def _strike(faults: Sequence[Fault], when: str, verb: str, name: str) -> None:
    """Raise the errors that these faults plan for this moment."""
    for fault in faults:
        if fault.when != when:
            continue
        if fault.kind == "crash":
            raise Crashed(f"the process ended {when} {verb}")
        if fault.kind == "unavailable":
            written = "nothing was written" if when == "before" else "the reply was lost"
            raise StoreUnavailable(f"{name} did not answer {verb}: {written} (a planned fault)")


class _Faulty:
    """What the two colours share: the plan, which faults fired, and the verbs that are only passed on."""

    def __init__(self, inner: Any, faults: Iterable[Fault] | Plan) -> None:
        self.inner = inner
        self.plan = faults if isinstance(faults, Plan) else Plan(faults)
        self.name: str = inner.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self.inner!r}, {len(self.plan.fired)} faults fired>"

    @property
    def incarnation(self) -> str:
        known: str = self.inner.incarnation
        return known

    def add(self, *faults: Fault) -> None:
        self.plan.add(*faults)

    def heal(self) -> None:
        self.plan.heal()

    @property
    def fired(self) -> list[Fired]:
        return self.plan.fired

    @property
    def calls(self) -> Counter[str]:
        return self.plan.calls

    def wait(self, command: Wait, timeout: float) -> Any:
        return self._call("wait", self.inner.wait, command, timeout)

    def list(self, query: Query) -> Any:
        return self._call("list", self.inner.list, query)

    def due(self, due: Due) -> Any:
        return self._call("due", self.inner.due, due)

    def doubtful(self) -> Any:
        return self._call("doubtful", self.inner.doubtful)

    def sweep(self, limit: int) -> Any:
        return self._call("sweep", self.inner.sweep, limit)

    def audit(self, limit: int) -> Any:
        return self._call("audit", self.inner.audit, limit)

    def note_action(self, entry: Audit) -> Any:
        return self._call("note_action", self.inner.note_action, entry)

    def add_counts(self, counts: Sequence[Count]) -> Any:
        return self._call("add_counts", self.inner.add_counts, counts)

    def counts(self, since: float, until: float) -> Any:
        return self._call("counts", self.inner.counts, since, until)

    def keep_finding(self, finding: Finding) -> Any:
        return self._call("keep_finding", self.inner.keep_finding, finding)

    def findings(self, query: FindingQuery) -> Any:
        return self._call("findings", self.inner.findings, query)

    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Any:
        accept = partial(self.inner.accept_finding, by=by, why=why, until=until)
        return self._call("accept_finding", accept, id)

    def park(self, parked: Parked) -> Any:
        return self._call("park", self.inner.park, parked)

    def parked(self, query: ParkedQuery) -> Any:
        return self._call("parked", self.inner.parked, query)

    def redelivered(self, id: str, *, by: str) -> Any:
        return self._call("redelivered", partial(self.inner.redelivered, by=by), id)

    def health(self) -> Any:
        return self._call("health", self.inner.health)

    def join(self, connection: Any) -> Any:
        return self.inner.join(connection)

    def _call(self, verb: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the inner store's method, and meet the faults that are planned for this verb."""
        raise NotImplementedError


class FaultyStore(_Faulty):
    """A store around another one, for `Guard`."""

    inner: Store

    def __init__(self, inner: Store, faults: Iterable[Fault] | Plan = ()) -> None:
        super().__init__(inner, faults)

    def carry_out(self, command: StoreCommand) -> Reply:
        return self._call(command.verb, self.inner.carry_out, command)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        replies: Replies = self._call("batch", self.inner.batch, commands)
        return replies

    def close(self) -> None:
        self.inner.close()

    def _call(self, verb: str, method: Callable[..., Any], *arguments: Any) -> Any:
        faults = self.plan.meets(verb)
        if faults:
            time.sleep(_pauses(faults, "before"))
        _strike(faults, "before", verb, self.name)
        for fault in faults:
            if fault.kind == "duplicate":
                method(*arguments)  # the first of two: its reply is lost
        reply = method(*arguments)
        if faults:
            time.sleep(_pauses(faults, "after"))
        _strike(faults, "after", verb, self.name)
        return reply


class AsyncFaultyStore(_Faulty):
    """A store around another one, for `AsyncGuard`."""

    inner: AsyncStore

    def __init__(self, inner: AsyncStore, faults: Iterable[Fault] | Plan = ()) -> None:
        super().__init__(inner, faults)

    async def carry_out(self, command: StoreCommand) -> Reply:
        return await self._call(command.verb, self.inner.carry_out, command)

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        replies: Replies = await self._call("batch", self.inner.batch, commands)
        return replies

    async def close(self) -> None:
        await self.inner.close()

    async def _call(self, verb: str, method: Callable[..., Any], *arguments: Any) -> Any:
        faults = self.plan.meets(verb)
        if faults:
            await running().sleep(_pauses(faults, "before"))
        _strike(faults, "before", verb, self.name)
        for fault in faults:
            if fault.kind == "duplicate":
                await method(*arguments)
        reply = await method(*arguments)
        if faults:
            await running().sleep(_pauses(faults, "after"))
        _strike(faults, "after", verb, self.name)
        return reply
