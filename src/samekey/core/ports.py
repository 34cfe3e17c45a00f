"""The store port: what a store must do. The conformance suite has a scenario for each sentence.

A store is a register with compare-and-set. It knows tokens, leases and its own clock, and decides
nothing else: `register.apply` defines what each command does. Every method returns the record as it is
now, read on the store's clock (`now`, `lease_left`, `ask_left`), or None where the key is gone;
a refused command changes nothing. A method returns only when the write is committed and visible to
every other connection. The store wraps the driver's exceptions once: StoreUnavailable
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

Reply = Any  # Record | None; for an Open always a Record
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
        """Whether this record is asked for; a store that filters by itself must agree with it."""
        return (
            (not self.states or record.state in self.states)
            and (self.operation is None or record.key.operation == self.operation)
            and (self.tenant is None or record.key.tenant == self.tenant)
            and (self.text is None or record.key.text == self.text)
            and (self.before is None or (record.created_at, record.key.digest) < self.before)
        )


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
    """Gets facts and returns nothing: a hook decides nothing. What it raises is logged and dropped."""

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
