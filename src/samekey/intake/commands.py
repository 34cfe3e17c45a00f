"""What the steps of the pipeline and the drainer ask for. A backend carries each command out in one atomic step.

To the database: Generation, Raise, Insert, Fetch, Change, Absorb, Page. To the buffer (Redis, or tables of the
database): Look, MarkUnknown, WriteCopy, Offer, Entry, Append, Pop, Ack, Bury. To the claims: Claim, Publish, Release.
Every one of them may be sent again after a lost reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from samekey.intake.runs import Operation, Run

# -- the database --------------------------------------------------------------------------------------------------


class Pinned(NamedTuple):
    """The generation of a key, and the secret that its ids are made with."""

    generation: int
    secret: int


FIRST = Pinned(0, 1)  # of a key that was never raised: it has no row


@dataclass(frozen=True, slots=True)
class Generation:
    """Read it from the primary. Reply: Pinned."""

    environment: str
    digest: str


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise it by one if it is still `seen`. Reply: Pinned, as it is now. The run of `seen` loses its key."""

    environment: str
    digest: str
    seen: int
    secret: int  # of the new generation


@dataclass(frozen=True, slots=True)
class Insert:
    """Write the run and call the sink, in one transaction. Reply: Inserted, Existing, or Moved."""

    run: Run


class Inserted(NamedTuple):
    run: Run


class Existing(NamedTuple):
    """There is a run with this id, or for this key and generation. Nothing was written."""

    run: Run


class Moved(NamedTuple):
    """The key has a later generation. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Reply: Run or None."""

    environment: str
    id: str


@dataclass(frozen=True, slots=True)
class Change:
    """Apply an operation to a row. Reply: the Run before and after it, or None; a Problem is raised."""

    environment: str
    id: str
    operation: Operation


class Changed(NamedTuple):
    before: Run
    after: Run


@dataclass(frozen=True, slots=True)
class Absorb:
    """Write drained entries and call the sink for each new row, in one transaction. Reply: a text for each entry.

    "new", "there" (the log was folded into the row), "differs" (the row has another payload), "moved".
    """

    entries: tuple[tuple[Run, tuple[Operation, ...]], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Runs older than `before` (created_at, id), newest first. Reply: list of Run."""

    environment: str
    size: int
    before: tuple[float, str] | None = None
    filters: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[float, str] | None = None  # the other direction: runs newer than this, oldest first


@dataclass(frozen=True, slots=True)
class Digests:
    """Keys of an environment in the order of their digests, for loading the filter. Reply: list of digests."""

    environment: str
    after: str
    size: int


@dataclass(frozen=True, slots=True)
class Raised:
    """Generations of an environment, in the order of their digests. Reply: list of (digest, Pinned)."""

    environment: str
    after: str
    size: int


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Keyed runs that the filter may not have. Reply: list of (id, digest)."""

    environment: str
    size: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The filter has these runs now."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Due:
    """Queued runs whose time to live has ended. Reply: list of (environment, id)."""

    now: float
    size: int


# -- the buffer ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """What the buffer's copy knows about a key. Reply: Seen."""

    environment: str
    digest: str


class Seen(NamedTuple):
    pinned: Pinned | None  # None: unknown here, read the database
    fresh: bool = False  # certainly no run has this key
    listed: bool = False  # the filter of known keys has it from now on


@dataclass(frozen=True, slots=True)
class MarkUnknown:
    """From now on the copy of this key is unknown. Must succeed before a generation is raised."""

    environment: str
    digest: str
    token: str


@dataclass(frozen=True, slots=True)
class WriteCopy:
    """After the raise: the copy is this, unless it is higher, or another raise has marked it unknown."""

    environment: str
    digest: str
    token: str
    pinned: Pinned


@dataclass(frozen=True, slots=True)
class Offer:
    """Ask the gate; where it diverts, put the run into the buffer in the same step.

    Reply: Passed, Accepted, Existing (the entry that is there), Moved, Full, or Unsure: with `unique`, a run of the
    same request may be in the database. Nothing was written then; look there, and offer it again without `unique`.
    """

    run: Run
    unique: str | None = None


class Passed(NamedTuple):
    """It goes to the database: the gate lets it through, or its key is being raised and only the database knows it."""


class Accepted(NamedTuple):
    run: Run


class Full(NamedTuple):
    retry_after: float


class Unsure(NamedTuple):
    """The database may have this run already."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Read a buffered run. Reply: Buffered or None."""

    environment: str
    id: str


class Buffered(NamedTuple):
    """An entry: the run as it was accepted, and the log of its changes."""

    run: Run
    operations: tuple[Operation, ...]
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """Add to an entry's log if it still has `seen` operations. Reply: True, or the entry as it is, or None."""

    environment: str
    id: str
    operation: Operation
    seen: int


@dataclass(frozen=True, slots=True)
class Pop:
    """Lease the oldest entries, or this one. Reply: list of Popped."""

    environment: str
    count: int
    lease: float
    id: str | None = None


class Popped(NamedTuple):
    id: str
    fence: int
    entry: Buffered | None  # None: this version cannot read it
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ack:
    """The entry is in the database with `seen` operations: delete it, unless there are more, or it was taken over.

    Reply: True, False (taken over, or gone), or the entry with its newer operations.
    """

    environment: str
    id: str
    fence: int
    seen: int


@dataclass(frozen=True, slots=True)
class Bury:
    """Move an entry to the dead letters. Reply: whether it was still leased under this fence."""

    environment: str
    id: str
    fence: int
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Runs in the buffer older than `before`, newest first. Reply: list of Buffered."""

    environment: str
    size: int
    before: tuple[float, str] | None = None
    after: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True)
class Depth:
    """Reply: Load."""

    environment: str


class Load(NamedTuple):
    depth: int
    leased: int
    oldest_at: float | None
    dead: int
    diverting: bool


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Reply: list of (id, reason, blob)."""

    environment: str
    size: int = 100


@dataclass(frozen=True, slots=True)
class Revive:
    """Put a dead letter back into the buffer. Reply: whether there was one."""

    environment: str
    id: str


# -- the claim -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim (key, generation), or wait for its holder. Reply: Claimed, Cached, TimedOut, Unclaimed, or Mismatched."""

    environment: str
    digest: str
    generation: int
    fingerprint: str
    patience: float
    life: float  # of the settled claim, in seconds: as long as the key


class Claimed(NamedTuple):
    """The caller holds the claim, and ends it with Publish or Release."""

    hold: Any


class Cached(NamedTuple):
    """The claim is settled: this is the run."""

    run_id: str


class TimedOut(NamedTuple):
    """Another trigger still holds the claim."""


class Unclaimed(NamedTuple):
    """The store of the claims did not answer: go on without one."""


class Mismatched(NamedTuple):
    """The claim is of another payload."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Settle the claim with the run's id. Never raises. Reply: whether this caller settled it; None: not known."""

    hold: Any
    run_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """The run was not written: let the next one take the claim. Never raises."""

    hold: Any
    error: BaseException
