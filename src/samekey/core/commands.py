"""Commands: what an attempt needs from outside. The core yields them, a driver carries them out.

`reply = yield from command` sends the command out and brings the reply back, typed. Store commands
answer with the record as it is now (None where the key is gone); every one of them carries the
attempt's own id, so that a repeated statement recognises itself.

Treat commands as immutable. They are not declared frozen: a frozen dataclass takes three times as long to make,
and every call makes several.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from samekey.core.boundary import Verdict
from samekey.core.errors import RecordUnreadable
from samekey.core.fingerprint import Fingerprint, Intent
from samekey.core.key import Key
from samekey.core.record import Record
from samekey.core.states import Role, State


class Command:
    """Base of everything an attempt may yield."""

    __slots__ = ()


class StoreCommand(Command):
    """A command that a store carries out; `verb` names it in messages, and in the faults of tests."""

    __slots__ = ()
    verb: ClassVar[str]
    key: Key

    @property
    def bulk(self) -> int:
        """How many bytes of a result or a payload it carries; stores bound how many go into one batch."""
        return len(getattr(self, "result", None) or getattr(self, "payload", None) or b"")

    def __iter__(self) -> Generator[Command, Any, Record | None]:
        """The record as it is now; None where the key is gone."""
        reply: Record | None = yield self
        return reply


class OnRecord(StoreCommand):
    """A command about a record that was seen."""

    __slots__ = ()
    seen: Record

    @property
    def key(self) -> Key:  # type: ignore[override]
        return self.seen.key


@dataclass(slots=True)
class Open(StoreCommand):
    """Insert and hold if absent (or past retention); otherwise show what is there."""

    verb: ClassVar[str] = "open"
    key: Key
    attempt: str
    intent: Intent | Fingerprint  # its short field digests are made only when a store inserts
    boundary: str
    lease_seconds: float
    sends: bool  # the provider's window counts from this claim: keyed, and without a later mark
    attributes: tuple[tuple[str, str], ...] = ()
    payload: bytes | None = None
    retain_seconds: float = 0.0  # Repeatable only: after that the hold counts as gone, unless it was renewed

    @property
    def fingerprint(self) -> Fingerprint:
        return self.intent.fingerprint()

    def __iter__(self) -> Generator[Command, Any, Record]:
        reply: Record | None = yield self
        if reply is None:  # an open always leaves a record: without one we do not know who holds the key
            raise RecordUnreadable(f"the store took the claim of {self.key} and shows no record of it")
        return reply


@dataclass(slots=True)
class Take(OnRecord):
    """Hold a record that another attempt let go, with a new, higher token.

    Succeeds only if the fence is still `seen`'s, the state is still `seen`'s, and no evidence says
    that the effect happened. From STARTED: only if the lease is dead, the boundary marks, this
    attempt had not begun, and no earlier one is unsure.
    """

    verb: ClassVar[str] = "take"
    seen: Record
    attempt: str
    boundary: str  # of the new claim; a take out of doubt keeps the old one
    lease_seconds: float
    sends: bool
    terms: tuple[bytes, ...] = ()
    retain_seconds: float = 0.0  # as for Open


@dataclass(slots=True)
class Begin(OnRecord):
    """The fenced mark right before the provider is called.

    Written only while the lease lives, the fence is ours and no evidence says it happened.
    """

    verb: ClassVar[str] = "begin"
    seen: Record


@dataclass(slots=True)
class Renew(OnRecord):
    """Extend our own live lease: state started, fence unmoved."""

    verb: ClassVar[str] = "renew"
    seen: Record
    lease_seconds: float
    retain_seconds: float = 0.0  # as for Open


@dataclass(slots=True)
class Settle(OnRecord):
    """Write how it ended, if the fence is still `seen`'s and NEXT allows this role the move."""

    verb: ClassVar[str] = "settle"
    seen: Record
    role: Role
    state: State
    by: str  # the attempt id of the settler; for people their name
    result: bytes | None = None
    error: str | None = None
    why: str = ""
    retain_seconds: float = 0.0
    next_round: bool = False
    notes: bytes | None = None  # None keeps those that are there
    terms: tuple[bytes, ...] = ()  # added to those that are there
    answered: bool = False  # the provider answered this attempt, and it was no; it holds for the whole provider key
    to_caller: bool = True  # a caller waits for this outcome; False for a worker that runs the effect


@dataclass(slots=True)
class Ask(OnRecord):
    """Become the only attempt that asks about a doubt; `lease_seconds=0` ends our own asking.

    With `look_after` the end of an asking also writes what came of it and when a worker looks next. That needs no
    asking before it, as long as no other attempt asks.
    """

    verb: ClassVar[str] = "ask"
    seen: Record
    asker: str
    lease_seconds: float
    look_after: float | None = None
    verdict: str = ""
    parked: str = ""


@dataclass(slots=True)
class Deliver(OnRecord):
    """Mark the late truth of this record as delivered."""

    verb: ClassVar[str] = "deliver"
    seen: Record


@dataclass(slots=True)
class Testify(StoreCommand):
    """Keep what a late attempt knows as evidence, whatever became of the key since."""

    __test__: ClassVar[bool] = False  # not a test class, whatever pytest thinks of the name
    verb: ClassVar[str] = "testify"
    key: Key
    attempt: str
    token: int
    state: State
    result: bytes | None
    why: str


@dataclass(slots=True)
class Redact(OnRecord):
    """Drop the stored results and keep the record: a privacy request never causes a second charge."""

    verb: ClassVar[str] = "redact"
    seen: Record
    by: str
    why: str


@dataclass(slots=True)
class Free(OnRecord):
    """Remove a settled or released record so that the key may run again.

    Refused for the other states, and if anything was written since `seen`: a late "it happened" must not be deleted
    unread.
    """

    verb: ClassVar[str] = "free"
    seen: Record
    by: str
    why: str


@dataclass(slots=True)
class Read(StoreCommand):
    """The record as it is now, or None; past retention counts as gone."""

    verb: ClassVar[str] = "read"
    key: Key


@dataclass(slots=True)
class Wait(OnRecord):
    """Come back when the hold or the asking ended or changed hands, or when patience is over."""

    verb: ClassVar[str] = "wait"
    seen: Record


# -- commands the driver carries out itself -----------------------------------------------------------


@dataclass(slots=True)
class Returned:
    """The effect returned this value; the notes and search terms of its hold go into the record with it."""

    value: Any
    notes: bytes | None = None
    terms: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Raised:
    """The effect ended in this error; `inner`: it had already left another guard."""

    error: BaseException
    inner: bool = False
    begun: bool = False  # held.sending() was written before it
    notes: bytes | None = None
    terms: tuple[bytes, ...] = ()


Outcome = Returned | Raised


@dataclass(slots=True)
class RunEffect(Command):
    """Run the user's effect; `held` is None when the store is down and the policy says run."""

    held: Record | None

    def __iter__(self) -> Generator[Command, Any, Outcome]:
        reply: Outcome = yield self
        return reply


@dataclass(slots=True)
class CallLookup(Command):
    """Ask the provider; a lookup that raises answers StillUnknown."""

    record: Record

    def __iter__(self) -> Generator[Command, Any, Verdict]:
        reply: Verdict = yield self
        return reply


@dataclass(slots=True)
class Undo(Command):
    """Atomic only: roll the transaction back to before the effect, or to before the claim."""

    claim_too: bool

    def __iter__(self) -> Generator[Command, Any, None]:
        yield self


@dataclass(slots=True)
class Sleep(Command):
    """Pause before a store is tried again."""

    seconds: float

    def __iter__(self) -> Generator[Command, Any, None]:
        yield self


@dataclass(slots=True)
class SettleLater(Command):
    """The store does not take this outcome now: go on trying for so long while the caller gets its answer."""

    command: Settle | Testify
    seconds: float

    def __iter__(self) -> Generator[Command, Any, None]:
        yield self


@dataclass(slots=True)
class Tell(Command):
    """A fact for the hooks; there is no reply."""

    event: str
    record: Record | None
    detail: str = ""
    error: str = ""  # the name of a type

    def __iter__(self) -> Generator[Command, Any, None]:
        yield self
