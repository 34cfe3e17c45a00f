"""What the console shows of rooms that may be absent: each plugs in by one small source object.

A page whose source is None says what the room does, and the line that adds it. A source answers with plain values, so
that a page needs no import of its room. Every method is async; what it raises is shown as a sentence on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class IntakeGate:
    """One gate: how many triggers passed, were answered from memory, waited in the buffer."""

    name: str
    open: bool
    direct: int
    diverted: int
    depth: int
    cap: int
    says: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One trigger that the drainer gave up on."""

    id: str
    key: str
    at: float
    why: str
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class IntakeStatus:
    """What intake holds now."""

    runs_of_one_key: int | None  # keys with more than one run id: 0 is the promise; None: not known
    depth: int
    cap: int
    drained_a_minute: float
    gates: Sequence[IntakeGate] = ()
    dead: Sequence[DeadLetter] = ()
    says: str = ""


class IntakeSource(Protocol):
    """The intake room."""

    name: str

    async def status(self) -> IntakeStatus: ...

    async def put_back(self, id: str, *, who: str, why: str) -> str:
        """Put one dead letter back into the buffer; a sentence about what happened."""


@dataclass(frozen=True, slots=True)
class MessageSource:
    """One queue, topic or stream that handlers read."""

    name: str
    operation: str
    handled: int
    replayed: int
    sent_back: int
    parked: int
    remembers_seconds: float | None  # how long a settled record is kept
    redelivers_seconds: float | None  # how long the broker may bring a message back
    says: str = ""

    @property
    def forgets_too_early(self) -> bool:
        """Whether a message may come back after its record is gone: then it takes effect twice."""
        return None not in (self.remembers_seconds, self.redelivers_seconds) and (self.remembers_seconds or 0) < (
            self.redelivers_seconds or 0
        )


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """One message that its handler could not take, kept for a person."""

    id: str
    source: str
    key: str
    at: float
    why: str
    digest: str = ""  # of its record, in hexadecimal
    in_doubt: bool = False  # its doubt is resolved first


class MessagesSource(Protocol):
    """The messages room."""

    async def sources(self) -> Sequence[MessageSource]: ...

    async def parked(self, *, limit: int) -> Sequence[ParkedMessage]: ...

    async def redeliver(self, id: str, *, who: str, why: str) -> str:
        """Send one parked message again; a sentence about what happened."""


@dataclass(frozen=True, slots=True)
class ReconciledDay:
    """How the last comparison with the provider's books ended."""

    day: str  # such as 2026-11-15
    clean: bool
    says: str = ""


class ReconcileSource(Protocol):
    """The doubt room's reconciliation."""

    async def last_days(self, *, limit: int) -> Sequence[ReconciledDay]:
        """The last days that were compared, newest first."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The rooms that are there."""

    intake: IntakeSource | None = None
    messages: MessagesSource | None = None
    reconcile: ReconcileSource | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """What a page says about a room that is not there."""

    name: str
    does: str
    lines: tuple[str, ...] = field(default=())


INTAKE = Absent(
    "Intake",
    "It absorbs bursts of triggers, and gives one key one run id.",
    ('pip install "samekey[intake]"', "samekey console --store ... --intake URL"),
)
MESSAGES = Absent(
    "Messages",
    "It makes the handlers of queue messages safe to repeat, and parks what they cannot take.",
    ("from samekey.console import Sources, console_app", "console_app(store, access, sources=Sources(messages=...))"),
)
RECONCILE = Absent(
    "Reconcile",
    "It compares the records of a day with the provider's books.",
    ("samekey reconcile --help",),
)
