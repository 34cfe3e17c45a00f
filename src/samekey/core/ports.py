"""The store port: what a store must do. The conformance suite has a scenario for each sentence.

A store is a register with compare-and-set. It knows tokens, leases and its own clock, and decides
nothing else: `register.apply` defines what each command does. Every method returns the record as it is
now, read on the store's clock (`now`, `lease_left`, `ask_left`), or None where the key is gone;
a refused command changes nothing. A method returns only when the write is committed and visible to
every other connection. The store wraps the driver's exceptions once: StoreUnavailable
where trying again may help, RecordUnreadable for damaged or foreign data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from samekey.core.books import Count, Finding, FindingQuery
from samekey.core.boundary import repeats
from samekey.core.commands import StoreCommand, Wait
from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.inquiry import DUE
from samekey.core.layers import Sight
from samekey.core.parking import Parked, ParkedQuery
from samekey.core.record import Audit, Record
from samekey.core.search import all_terms
from samekey.core.states import State

Reply = Any  # Record | None; for an Open always a Record
Replies = list[Record | None | Exception]
Audits = list[Audit]

LIST_MAX = 1000  # records in one page: bounds memory, and the time a reader may hold anything up


class Records(list[Record | RecordUnreadable]):
    """One page of records in the order of the query; a damaged row is in its place, and hides no other one."""

    cut: bool = False  # True: the store did not look at everything, so records that match may be missing

    @property
    def records(self) -> list[Record]:
        """Those that can be read."""
        return [one for one in self if isinstance(one, Record)]


@dataclass(frozen=True, slots=True)
class Query:
    """Which records to list, newest first; `before` is the cursor (created_at, digest) of the last page.

    `waiting` picks what waits for a decision: records in doubt, and holds whose lease is over (not those of Repeatable,
    which end by themselves). `digest` is a prefix. `since` and `until` bound created_at (since <= created_at < until).
    """

    states: tuple[State, ...] = ()
    waiting: bool = False
    operation: str | None = None
    tenant: str | None = None
    text: str | None = None
    digest: bytes = b""
    term: bytes | None = None  # of core/search.py
    noted: bool = False  # the term is of a note, so records keep it: a store without an index computes no other one
    attributes: tuple[tuple[str, str], ...] = ()  # the record has all of them
    error: str | None = None
    since: float | None = None
    until: float | None = None
    changed_before: float | None = None
    content: bytes | None = None
    oldest_first: bool = False  # then `before` is the place after which the page begins
    limit: int = 100
    before: tuple[float, bytes] | None = None

    def picks(self, record: Record) -> bool:
        """Whether this record, as seen now, is asked for; a store that filters by itself must agree with it."""
        key = record.key
        return (
            (not self.states or record.state in self.states)
            and (not self.waiting or waits(record))
            and (self.operation is None or key.operation == self.operation)
            and (self.tenant is None or key.tenant == self.tenant)
            and (self.text is None or key.text == self.text)
            and key.digest.startswith(self.digest)
            and (self.error is None or record.error == self.error)
            and (self.since is None or record.created_at >= self.since)
            and (self.until is None or record.created_at < self.until)
            and (self.changed_before is None or record.changed_at < self.changed_before)
            and (self.content is None or record.content == self.content)
            and set(self.attributes).issubset(record.attributes)
            and (self.before is None or self.comes_after((record.created_at, key.digest), self.before))
            and (self.term is None or self.term in all_terms(record))
        )

    def comes_after(self, place: tuple[float, bytes], other: tuple[float, bytes]) -> bool:
        """Whether this place comes after the other one in the order of the pages."""
        return place > other if self.oldest_first else place < other

    def page(self, found: Iterable[Record | RecordUnreadable], *, cut: bool = False) -> Records:
        """These records in the order of the query, as one page: for a store that cannot sort by itself."""
        page = Records(sorted(found, key=place_of, reverse=not self.oldest_first)[: self.size])
        page.cut = cut
        return page

    @property
    def size(self) -> int:
        """How many records a page has at most."""
        return max(0, min(self.limit, LIST_MAX))


@dataclass(frozen=True, slots=True)
class Due:
    """Which records a worker should look at now, the longest due first.

    Those are doubts whose `look_at` has passed (without one: `quiet` seconds after their lease), and holds whose lease
    ended `quiet` seconds ago; a hold of Repeatable only if its payload is kept. `shard` is (number, of): the records
    whose digest begins with such a byte. `late`: instead the records whose late truth is not delivered yet; `operation`
    may then be None, for all of them.
    """

    operation: str | None
    limit: int = 100
    quiet: float = 0.0
    shard: tuple[int, int] = (0, 1)
    late: bool = False

    @property
    def size(self) -> int:
        return max(0, min(self.limit, LIST_MAX))

    def picks(self, record: Record) -> bool:
        """Whether this record, as seen now, is due; a store that filters by itself must agree with it."""
        if self.operation is not None and record.key.operation != self.operation:
            return False
        if record.key.digest[0] % self.shard[1] != self.shard[0]:
            return False
        if self.late:
            return record.inquiry is not None and record.inquiry.late == DUE
        return self.since(record) is not None

    def since(self, record: Record) -> float | None:
        """For how many seconds it has been due; None: it is not."""
        if record.state is State.STARTED:
            if repeats(record.boundary) and record.payload is None:
                return None
            left = record.lease_left + self.quiet
        elif record.state is State.IN_DOUBT:
            if record.being_asked:
                return None
            look_at = None if record.inquiry is None else record.inquiry.look_at
            left = record.lease_left + self.quiet if look_at is None else look_at - record.now
        else:
            return None
        return None if left > 0 else -left

    def page(self, found: Iterable[Record]) -> Records:
        """These records in the order of the query: for a store that cannot sort by itself."""
        picked = [one for one in found if self.picks(one)]
        if not self.late:
            picked.sort(key=lambda one: self.since(one) or 0.0, reverse=True)
        return Records(picked[: self.size])


def waits(record: Record) -> bool:
    """Whether the record waits for a decision about how its effect ended."""
    if record.state is not State.STARTED:
        return record.state is State.IN_DOUBT
    return not record.lease_live and not repeats(record.boundary)


def place_of(one: Record | RecordUnreadable) -> tuple[float, bytes]:
    """The place of a record in a list: the cursor of the page after it. One without a known time is the oldest."""
    if isinstance(one, RecordUnreadable):
        return one.cursor or (0.0, b"")
    return one.created_at, one.key.digest


@dataclass(frozen=True, slots=True)
class Health:
    """What the store's self-check found: the guarantee reached, and what weakens it."""

    store: str
    guarantee: str
    incarnation: str
    warnings: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


class Store(Protocol):
    """A store for `Guard`."""

    name: str  # for people: never with a password in it

    @property
    def incarnation(self) -> str:
        """The incarnation of the store, as last seen; "" before it was ever reached. Needs no round trip."""

    def carry_out(self, command: StoreCommand) -> Reply:
        """Carry out one command, whichever of `core.commands` it is, in one round trip where nothing goes wrong.

        An Open always leaves a record. A Wait goes to `wait`, which has a time-out.
        """

    def wait(self, command: Wait, timeout: float) -> Record | None:
        """Return when state, fence or asker differ from `seen`, its lease or asking ends, or the timeout is over."""

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        """Carry out many commands in as few round trips as the store can; each command fails by itself."""

    def list(self, query: Query) -> Records:
        """One page of records; in the place of a row that cannot be read, the RecordUnreadable with its `cursor`.

        A store that has no index for the query may look at a bounded number of records; then the page says `cut`.
        """

    def due(self, due: Due) -> Records:
        """What a worker should look at now, as `Due` says; a row that cannot be read is left out."""

    def doubtful(self) -> Sequence[str]:
        """The operations that have records in doubt or held, sorted; for a worker, which asks for each of them."""

    def sweep(self, limit: int) -> int:
        """Delete up to `limit` records past retention; never one that is held, in doubt, or was made anew.

        Only a hold of Repeatable ends by itself: when its lease is over and its `retain_until` has passed.
        """

    def audit(self, limit: int) -> Audits:
        """The last operator actions, newest first: each operator's settle, redact, free, and accepted finding."""

    def note_action(self, entry: Audit) -> None:
        """Add an entry to the audit log for an action that is about no single record, or changed none: it was refused,
        it only read, or it adopted many.

        The time of the entry is the store's own; `entry.at` is not used.
        """

    def add_counts(self, counts: Sequence[Count]) -> None:
        """Add these to the counts that are there, in one round trip that waits for no claim.

        Minutes that are outside `books.kept_minutes` are not kept; each addition deletes some of those that have
        become too old.
        """

    def counts(self, since: float, until: float) -> Sequence[Count]:
        """What was counted in this time, oldest minute first, each series once; at most COUNTS_MAX, see `counts_of`."""

    def keep_finding(self, finding: Finding) -> bool:
        """Keep it unless there is one with its id, which stays as it is; whether it was new."""

    def findings(self, query: FindingQuery) -> Sequence[Finding]:
        """One page of findings, newest first; `query.picks` says which."""

    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        """Write who accepts it, why and until when, and the same into the audit log; None if there is no such id."""

    def park(self, parked: Parked) -> None:
        """Keep this message; one with its id is replaced, and waits again if it was redelivered before."""

    def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        """One page of parked messages, newest first; `query.picks` says which."""

    def redelivered(self, id: str, *, by: str) -> Parked | None:
        """Mark the message as published again, with the store's time, and write the same into the audit log.

        None if there is no such id. Each call deletes some messages that were redelivered long ago.
        """

    def health(self) -> Health: ...

    def join(self, connection: Any) -> Any:
        """This store inside the caller's own transaction, for `Atomic`: a `core.transaction.Transaction`.

        A store that is no database raises `no_transactions(self.name)`.
        """

    def close(self) -> None: ...


class AsyncStore(Protocol):
    """A store for `AsyncGuard`: the same names, awaited."""

    name: str

    @property
    def incarnation(self) -> str: ...
    async def carry_out(self, command: StoreCommand) -> Reply: ...
    async def wait(self, command: Wait, timeout: float) -> Record | None: ...
    async def batch(self, commands: Sequence[StoreCommand]) -> Replies: ...
    async def list(self, query: Query) -> Records: ...
    async def due(self, due: Due) -> Records: ...
    async def doubtful(self) -> Sequence[str]: ...
    async def sweep(self, limit: int) -> int: ...
    async def audit(self, limit: int) -> Audits: ...
    async def note_action(self, entry: Audit) -> None: ...
    async def add_counts(self, counts: Sequence[Count]) -> None: ...
    async def counts(self, since: float, until: float) -> Sequence[Count]: ...
    async def keep_finding(self, finding: Finding) -> bool: ...
    async def findings(self, query: FindingQuery) -> Sequence[Finding]: ...
    async def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None: ...
    async def park(self, parked: Parked) -> None: ...
    async def parked(self, query: ParkedQuery) -> Sequence[Parked]: ...
    async def redelivered(self, id: str, *, by: str) -> Parked | None: ...
    async def health(self) -> Health: ...
    def join(self, connection: Any) -> Any: ...
    async def close(self) -> None: ...


def listed(read: Callable[[Any], Any], rows: Iterable[Any]) -> Records:
    """A page of rows: of each its record, or why it cannot be read."""
    page = Records()
    for row in rows:
        try:
            page.append(read(row))
        except RecordUnreadable as damaged:
            if damaged.cursor is None:
                raise  # without its place in the order, no page could go on after it
            page.append(damaged)
    return page


def no_transactions(name: str) -> Misconfigured:
    """What `join` raises where the store has no transactions that a caller could share."""
    return Misconfigured(f"{name} cannot take part in a transaction: Atomic needs a database store")


class FrontStore(Protocol):
    """The fast half of a layered store: entries with an order and an end, and a bell for waiting callers.

    It may lose everything at any time. Every method raises StoreUnavailable, soon, if the server cannot be reached.
    """

    name: str

    def look(self, digest: bytes, *, mark: bool) -> Sight:
        """Its clock and the entry for this digest; with `mark`, leave a short-lived empty entry where there is none."""

    def put(self, digest: bytes, entry: bytes, until: float) -> None:
        """Replace an entry of lower `layers.order_of`, until `until` on its clock; wake the waiters.

        An entry whose time is already over still removes the older one: then there is none.
        """

    def watching(self, digest: bytes) -> AbstractContextManager[Any]:
        """While inside, `bells` rings for this digest whenever an entry for it is put; a hint, never a promise."""

    @property
    def bells(self) -> Any: ...
    def close(self) -> None: ...


class AsyncFrontStore(Protocol):
    """The same, awaited."""

    name: str

    async def look(self, digest: bytes, *, mark: bool) -> Sight: ...
    async def put(self, digest: bytes, entry: bytes, until: float) -> None: ...
    def watching(self, digest: bytes) -> AbstractContextManager[Any]: ...
    @property
    def bells(self) -> Any: ...
    async def close(self) -> None: ...


class Hook(Protocol):
    """Gets facts and returns nothing: a hook decides nothing. What it raises is logged and dropped.

    It runs on the caller's thread and must not block. One that took too long is called in a thread of its own from
    then on (`guard.facts`). Three attributes are looked for, and none is needed: `logs = True` for a hook that writes
    a log line for each event, `bind(guard)`, which is called once, and `begin(operation, attributes)`, which is called
    before the claim and returns the attributes that the claim shall write.
    """

    def __call__(self, event: Event) -> Any: ...


@dataclass(slots=True)
class Event:
    """One fact about one key, without its payload, its result or the key itself. Treat it as immutable."""

    name: str  # one of core.events.EVENTS
    operation: str
    key_digest: str
    tenant: str | None = None
    state: str = ""
    token: int = 0
    attempt: str = ""
    detail: str = ""
    error: str = ""  # the name of a type
    outcome: str = ""  # one of core.events.OUTCOMES, in the last event of an attempt
    duration: float | None = None  # seconds: of the effect, of the wait, of the lookup
    sent: float | None = None  # seconds from sending() to the end of the effect: how long the provider took
    fingerprint: str = ""  # 16 hexadecimal digits
    source: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    first: str = ""  # the traceparent of the attempt that made the record, where that is another one

    @property
    def request_id(self) -> str:
        return self.attributes.get("request_id", "")

    @property
    def trace_id(self) -> str:
        return self.attributes.get("trace_id", "")
