"""The store port: what a store must do, in words that the conformance suite tests one by one.

A store is a register with compare-and-set. It knows tokens, leases and its own clock, and decides
nothing else: `register.apply` says what each command does. Every method returns the record as it now
stands, read on the store's clock (`now`, `lease_left`, `ask_left`), or None where the key is gone;
a refused command changes nothing. A method returns only when the write is committed and visible to
every other connection. What the driver raises is wrapped once, here at the edge: StoreUnavailable
where trying again may help, RecordUnreadable for damaged or foreign data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from samekey.core.commands import StoreCommand, Wait
from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.layers import Sight
from samekey.core.record import Audit, Record
from samekey.core.states import State

Reply = Any  # Record | None; of an Open always a Record, which no one type can say of all commands
Replies = list[Record | None | Exception]
Records = Sequence[Record | RecordUnreadable]  # newest first; a damaged row hides no other one
Audits = list[Audit]

LIST_MAX = 1000  # records in one page: bounds memory, and the time a reader may hold anything up


@dataclass(frozen=True, slots=True)
class Query:
    """Which records to list, newest first; `before` is the cursor (created_at, digest) of the last page."""

    states: tuple[State, ...] = ()
    operation: str | None = None
    tenant: str | None = None
    text: str | None = None
    limit: int = 100
    before: tuple[float, bytes] | None = None

    def picks(self, record: Record) -> bool:
        """Whether this record is asked for; a store that can filter by itself must agree with it."""
        return (
            (not self.states or record.state in self.states)
            and (self.operation is None or record.key.operation == self.operation)
            and (self.tenant is None or record.key.tenant == self.tenant)
            and (self.text is None or record.key.text == self.text)
            and (self.before is None or (record.created_at, record.key.digest) < self.before)
        )


@dataclass(frozen=True, slots=True)
class Health:
    """What the store found when it looked at itself: the guarantee reached, and what weakens it."""

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
        """Which life of the store this is, as last learned; "" before it was ever reached. Costs nothing to ask."""

    def carry_out(self, command: StoreCommand) -> Reply:
        """Carry out one command, whichever of `core.commands` it is, in one round trip where nothing goes wrong.

        An Open always leaves a record. A Wait goes to `wait`, which has a time-out.
        """

    def wait(self, command: Wait, timeout: float) -> Record | None:
        """Return when state, fence or asker differ from `seen`, its lease or asking ends, or the timeout is over."""

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        """Carry out many commands in as few round trips as the store can; one's failure is its own."""

    def list(self, query: Query) -> Records:
        """One page of records; in the place of a row that cannot be read, the RecordUnreadable with its `cursor`."""

    def sweep(self, limit: int) -> int:
        """Delete up to `limit` records past retention; never one that is held, in doubt, or was made anew."""

    def audit(self, limit: int) -> Audits:
        """The last operator actions, newest first; every operator's settle, redact and free is one."""

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
    async def sweep(self, limit: int) -> int: ...
    async def audit(self, limit: int) -> Audits: ...
    async def health(self) -> Health: ...
    def join(self, connection: Any) -> Any: ...
    async def close(self) -> None: ...


def listed(read: Callable[[Any], Any], rows: Iterable[Any]) -> Records:
    """A page of rows: of each its record, or why it cannot be read."""
    page: list[Record | RecordUnreadable] = []
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
    """The fast half of a layered store: words with an order and an end, and a bell for those who wait.

    It may lose everything at any time. Every method raises StoreUnavailable, soon, where the server is away.
    """

    name: str

    def look(self, digest: bytes, *, mark: bool) -> Sight:
        """Its clock and the word for this digest; with `mark`, leave a short-lived empty word where there is none."""

    def put(self, digest: bytes, word: bytes, until: float) -> None:
        """Put the word in place of one of lower `layers.order_of`, to be gone at `until` on its clock; tell who waits.

        A word whose time is over already still takes the older one's place: then there is none.
        """

    def watching(self, digest: bytes) -> AbstractContextManager[Any]:
        """While inside, `bells` rings for this digest whenever a word for it is put; a hint, never a promise."""

    @property
    def bells(self) -> Any: ...
    def close(self) -> None: ...


class AsyncFrontStore(Protocol):
    """The same, awaited."""

    name: str

    async def look(self, digest: bytes, *, mark: bool) -> Sight: ...
    async def put(self, digest: bytes, word: bytes, until: float) -> None: ...
    def watching(self, digest: bytes) -> AbstractContextManager[Any]: ...
    @property
    def bells(self) -> Any: ...
    async def close(self) -> None: ...


class Hook(Protocol):
    """Facts in, nothing out: a hook may look, never decide. What it raises is swallowed."""

    def __call__(self, event: Event) -> Any: ...


@dataclass(frozen=True, slots=True)
class Event:
    """One fact about one key, without its payload, its result or the key itself."""

    name: str  # claimed, completed, replayed, in_doubt, ...: docs/operations.md has all of them
    operation: str
    key_digest: str
    tenant: str | None = None
    state: str = ""
    token: int = 0
    attempt: str = ""
    detail: str = ""
