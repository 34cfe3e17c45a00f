"""What a scenario has at hand: its own corner of a store, and the few sentences that most scenarios are made of.

A scenario is a generator, like an attempt of the core: it yields commands and is sent replies, so that it
exists once for both colours. Apart from store commands it may yield the steps of `steps.py`. A scenario never
knows which store it plays on, and never finds another scenario's records: each has an operation name of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from samekey.core.commands import (
    Ask,
    Begin,
    Command,
    Free,
    Open,
    Read,
    Redact,
    Renew,
    Settle,
    StoreCommand,
    Take,
    Testify,
)
from samekey.core.fingerprint import Fingerprint
from samekey.core.key import Key, make_key
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.testing.stores.steps import Invoke, Pass, over

T = TypeVar("T")
Steps = Generator[Command, Any, T]

LEASE = 30.0  # outlives every scenario
RENEWALS = 20  # tries to renew a short lease in time: a busy machine may miss some
RETAIN = 3600.0  # so does this
A, B, C = "a" * 32, "b" * 32, "c" * 32  # attempts: 128 bits in hex, and a person can tell them apart
OPAQUE, MARKED, REPEATABLE = "opaque", "opaque marked", "repeatable"  # boundaries, as claims write them
FINGERPRINT = Fingerprint(b"\x01" * 32, "1", (("amount", b"\x02" * 8),), b"\x03" * 16)
ENDED = (State.COMPLETED, State.CLOSED, State.RELEASED)


# -- the scene -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """One scenario's own corner of the store."""

    short: float  # seconds that the store can tell from none
    address: tuple[str, str] = ("", "")  # of the store, for another process: "module:callable", and its argument
    colour: str = "sync"
    random_steps: int = 300  # of the one scenario that plays random commands
    expires_by_itself: bool = False  # a record past its retention is gone without a sweep
    operation: str = field(default_factory=lambda: f"suite-{uuid4().hex[:16]}")

    def key(self, text: str = "order-1", *, tenant: str | None = None) -> Key:
        return make_key(self.operation, text, tenant)

    def opening(
        self,
        text: str = "order-1",
        *,
        by: str = A,
        lease: float = LEASE,
        boundary: str = OPAQUE,
        sends: bool = False,
        fingerprint: Fingerprint = FINGERPRINT,
        attributes: tuple[tuple[str, str], ...] = (),
        tenant: str | None = None,
        payload: bytes | None = None,
        retain: float = 0.0,
    ) -> Open:
        key = self.key(text, tenant=tenant)
        return Open(key, by, fingerprint, boundary, lease, sends, attributes, payload, retain)

    def held(self, text: str = "order-1", *, by: str = A, boundary: str = OPAQUE, sends: bool = False) -> Steps[Record]:
        """A new key, held by attempt A under a long lease."""
        record = yield from self.opening(text, by=by, boundary=boundary, sends=sends)
        assert record.attempt == by, f"the key {text!r} of this scenario should have been new"
        return record

    def dead(self, text: str = "order-1", *, boundary: str = OPAQUE, begun: bool = False) -> Steps[Record]:
        """A key whose holder A is gone: started, and its lease has ended."""
        record = yield from self.held(text, boundary=boundary)
        if begun:
            record = yield from self.begin(record)
        return (yield from self.lose_lease(record))

    def lose_lease(self, held: Record) -> Steps[Record]:
        """Shorten the lease by renewing it, and outlive it."""
        yield from self.renew(held, seconds=self.short)
        yield from self.outlive()
        record = yield from self.read(held)
        assert not record.lease_live, f"the lease lives on for {record.lease_left} s"
        return record

    def renewed_since(self, text: str = "order-1", *, boundary: str = OPAQUE) -> Steps[Record]:
        """A view of a hold whose lease was renewed after it, and would be over by now otherwise."""
        for number in range(RENEWALS):
            held = yield from self.held(f"{text} {number}", boundary=boundary)
            seen = yield from self.renew(held, seconds=self.short)
            renewed = yield from self.renew(seen)
            if renewed.lease_left > self.short:
                yield from self.outlive()
                return seen
        raise AssertionError(
            f"{RENEWALS} times a lease of {self.short} s was over before it could be renewed: a store that is slow, or "
            "far away, gives its suite a longer short_seconds"
        )

    def outlive(self) -> Pass:
        """Longer than a lease, an asking or a retention of `short` seconds."""
        return Pass(self.short * 1.5)

    def settled(self, state: State, text: str = "order-1", *, boundary: str = OPAQUE) -> Steps[Record]:
        """A key that attempt A held and ended so; a started one is dead."""
        if state is State.STARTED:
            return (yield from self.dead(text, boundary=boundary))
        held = yield from self.held(text, boundary=boundary)
        return (yield from self.settle(held, state))

    def doubted(self, text: str = "order-1", *, boundary: str = OPAQUE) -> Steps[Record]:
        return (yield from self.settled(State.IN_DOUBT, text, boundary=boundary))

    # -- one command each; the record is there

    def read(self, seen: Record) -> Steps[Record]:
        return there((yield from Read(seen.key)))

    def take(
        self, seen: Record, by: str = B, *, boundary: str = OPAQUE, seconds: float = LEASE, sends: bool = False
    ) -> Steps[Record]:
        return there((yield from Take(seen, by, boundary, seconds, sends)))

    def begin(self, held: Record) -> Steps[Record]:
        return there((yield from Begin(held)))

    def renew(self, held: Record, *, seconds: float = LEASE) -> Steps[Record]:
        return there((yield from Renew(held, seconds)))

    def settle(self, seen: Record, state: State, **options: Any) -> Steps[Record]:
        return there((yield from settling(seen, state, **options)))

    def ask(self, seen: Record, by: str = B, *, seconds: float = LEASE) -> Steps[Record]:
        return there((yield from Ask(seen, by, seconds)))

    def say_late(
        self,
        seen: Record,
        by: str = C,
        *,
        state: State = State.COMPLETED,
        result: bytes | None = b"late",
        why: str = "settled too late",
    ) -> Steps[Record]:
        return there((yield from Testify(seen.key, by, seen.token, state, result, why)))

    def listing(self, **asked: Any) -> Steps[list[Record]]:
        """The records of this scenario's operation, or of the query that is asked for."""
        records: list[Record] = yield from Invoke("list", (Query(**{"operation": self.operation, **asked}),))
        return records

    # -- sentences

    def refused(self, command: StoreCommand | Invoke) -> Steps[Record]:
        """The command changes nothing, and is answered with what is there."""
        key = command.arguments[0].key if isinstance(command, Invoke) else command.key
        before = there((yield from Read(key)))
        reply: Record | None = yield command
        assert_same(before, there(reply))
        assert_same(before, there((yield from Read(key))))
        return before

    def written(self, command: StoreCommand | Invoke) -> Steps[Record]:
        """The command is carried out: the version rises, and every other connection sees what was answered."""
        key = command.arguments[0].key if isinstance(command, Invoke) else command.key
        before: Record | None = yield from Read(key)
        reply: Record | None = yield command
        elsewhere: Record | None = yield from over(1, Read(key))
        assert reply is not None, "a command that should have been carried out found no record"
        assert_same(reply, there(elsewhere))
        if before is not None:
            assert reply.version > before.version, f"{command} was refused, or did not raise the version"
        return reply


def there(reply: Record | None) -> Record:
    assert reply is not None, "the store lost the record"
    return reply


def settling(
    seen: Record,
    state: State,
    *,
    role: Role = Role.HOLDER,
    by: str | None = None,
    result: bytes | None = None,
    error: str | None = None,
    why: str = "",
    retain: float = RETAIN,
    next_round: bool = False,
    notes: bytes | None = None,
    terms: tuple[bytes, ...] = (),
    answered: bool = False,
    to_caller: bool = True,
) -> Settle:
    by = by or seen.attempt
    return Settle(seen, role, state, by, result, error, why, retain, next_round, notes, terms, answered, to_caller)


def redacting(seen: Record, *, by: str = "ada", why: str = "asked to") -> Invoke:
    return over(0, Redact(seen, by, why))


def freeing(seen: Record, *, by: str = "ada", why: str = "may run again") -> Invoke:
    return over(0, Free(seen, by, why))


def assert_same(one: Record, other: Record) -> None:
    """Equal but for the clock's own fields."""
    first, second = stored(one), stored(other)
    pairs = zip(Record._fields, first, second, strict=True)
    differ = [f"{name}: {was!r} is not {now!r}" for name, was, now in pairs if was != now]
    assert not differ, "; ".join(differ)


def stored(record: Record) -> Record:
    """The record without the fields that only say when it was looked at."""
    return record._replace(now=0.0, lease_left=0.0, ask_left=0.0)


# -- the list of all -----------------------------------------------------------------------------------

Scenario = Callable[[Scene], Steps[None]]
SCENARIOS: list[Scenario] = []
PROCESS_SCENARIOS: list[Scenario] = []  # for stores that outlive their process


def scenario(function: Scenario) -> Scenario:
    """Make it part of the suite: its name becomes the test's, its docstring is the sentence it shows."""
    SCENARIOS.append(function)
    return function


def process_scenario(function: Scenario) -> Scenario:
    PROCESS_SCENARIOS.append(function)
    return function
