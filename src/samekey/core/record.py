"""A record: everything the store keeps about one key.

Records are immutable tuples, so that a store can hand them out, a schedule can hash them, and two
readers can never change each other's copy. The last four fields are not stored: the store computes
them by its own clock when it answers.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from samekey.core.errors import RecordUnreadable
from samekey.core.inquiry import Inquiry
from samekey.core.key import Key
from samekey.core.states import SETTLED, STARTED, STATES, State

MOVES_MAX = 16  # the last moves that a record keeps; older ones are only in the audit log
EVIDENCE_MAX = 64  # testimonies of late attempts; each one is an effect that may have doubled
ATTRIBUTES_MAX = 16  # names a user may attach to a record
ATTRIBUTE_MAX_CHARS = 256
TERM_BYTES = 16  # of a search term

# What reading bytes that are no record may raise: they may nest without end, or hold any number.
DAMAGED = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError)


class Move(NamedTuple):
    """One step in the story of a key."""

    at: float
    token: int
    before: str
    after: str
    who: str
    why: str


class Evidence(NamedTuple):
    """What a late attempt or a provider reported about the effect when it could no longer settle it."""

    at: float
    token: int
    attempt: str
    state: State  # what it reports: completed or closed; in_doubt for contradicting reports
    result: bytes | None
    why: str


class Audit(NamedTuple):
    """One action of a person, kept for ever."""

    at: float
    who: str
    action: str
    operation: str
    tenant: str | None
    text: str
    before: str
    after: str
    why: str


class Record(NamedTuple):
    """Everything the store keeps about one key; `peek` returns it, and a lookup gets it as its argument."""

    key: Key
    state: State
    token: int
    attempt: str  # with the token: the fence
    fingerprint: bytes
    form: str  # how the fingerprint was made: version, ignore set, secret id
    fields: tuple[tuple[str, bytes], ...]
    boundary: str  # as written by the claim; recovery follows this one, not today's declaration
    version: int  # raised by every write
    attempts: int
    created_at: float
    changed_at: float
    lease_until: float  # on the store's lease clock
    lease_clock: str  # which clock that is (a boot id); "" for a server's own clock
    unsure: bool = False  # an earlier attempt of this key may have happened
    begun_at: float | None = None  # the fenced mark of held.sending()
    first_sent_at: float | None = None  # from when the provider's window counts
    round: int = 0
    settled_by: str | None = None
    settled_at: float | None = None
    retain_until: float | None = None
    result: bytes | None = None
    error: str | None = None  # type of the error that led here, or why a result was not kept
    asker: str | None = None
    ask_until: float = 0.0
    attributes: tuple[tuple[str, str], ...] = ()
    evidence: tuple[Evidence, ...] = ()
    moves: tuple[Move, ...] = ()
    content: bytes | None = None  # digest of the payload without the parts that make the key; equal under two keys
    payload: bytes | None = None  # the kept payload, sealed; dropped when the effect is known to have ended
    notes: bytes | None = None  # what the effect noted about itself: see core/notes.py
    terms: tuple[bytes, ...] = ()  # what it can be found by, besides what its key and attributes give: core/search.py
    inquiry: Inquiry | None = None  # the looks at a doubt, and what was reported to callers: core/inquiry.py
    now: float = 0.0
    lease_left: float = 0.0
    ask_left: float = 0.0
    after_loss: bool = False  # claimed soon after the store lost its memory: ask first, where that is possible

    @property
    def fence(self) -> tuple[int, str]:
        return (self.token, self.attempt)

    @property
    def lease_live(self) -> bool:
        return self.state is STARTED and self.lease_left > 0

    @property
    def being_asked(self) -> bool:
        return self.state is State.IN_DOUBT and self.asker is not None and self.ask_left > 0

    @property
    def ends_by_itself(self) -> bool:
        """Whether it is a hold of Repeatable: dead, it ends with its retention, and is never a doubt."""
        return self.state is STARTED and self.boundary.partition(" ")[0] == "repeatable"

    @property
    def settled(self) -> bool:
        return self.state in SETTLED

    @property
    def doubt_since(self) -> float:
        """When the record came into doubt. A question to the provider changes the record, and not this."""
        for move in reversed(self.moves):
            if move.after == State.IN_DOUBT:
                return move.at
        return self.changed_at

    @property
    def happened(self) -> Evidence | None:
        """The first testimony that the effect happened, if there is one."""
        for evidence in self.evidence:
            if evidence.state is State.COMPLETED:
                return evidence
        return None

    def changed(self, **changes: Any) -> Record:
        """A copy with these fields changed; as `_replace`, which looks at all fields by name, but twice as fast."""
        values = list(self)
        for name, value in changes.items():
            values[_AT[name]] = value
        return Record._make(values)

    def provider_key(self, label: str = "") -> str:
        """The key to send to the provider for this record, or to look the effect up by."""
        return provider_key(self.key, self.round, label)


def evidence_of(at: float, token: int, attempt: str, state: str, result: str | None, why: str) -> Evidence:
    """Evidence from its JSON form, in which the result is hexadecimal."""
    return Evidence(at, token, attempt, STATES[state], None if result is None else bytes.fromhex(result), why)


def terms_of(joined: bytes) -> tuple[bytes, ...]:
    """Search terms from one run of bytes, as some stores keep them."""
    if len(joined) % TERM_BYTES:
        raise ValueError(f"{len(joined)} bytes are no search terms")
    return tuple([joined[at : at + TERM_BYTES] for at in range(0, len(joined), TERM_BYTES)])


def unreadable(key: Key | None, created_at: Any, why: Exception) -> RecordUnreadable:
    """What a store raises or lists for a row that is no record, with its key and position if those can be read.

    One such row must not hide the others.
    """
    what = "a record" if key is None else f"the record of {key}"
    return RecordUnreadable(
        f"{what} is damaged or was written by a newer version: {why!r}",
        cursor=None if key is None else (created_at, key.digest),
    )


_AT = {name: at for at, name in enumerate(Record._fields)}


def provider_key(key: Key, round: int, label: str = "") -> str:
    """A stable key for the provider, in the shape of a UUID4 (some providers insist on one).

    Unkeyed and frozen for ever, like the digest: if it changed with a deploy or a secret, a re-run
    would reach the provider as a new request.
    """
    name = label.encode()
    hexes = hashlib.sha256(b"samekey.provider.1%b%d:%b%d" % (key.digest, len(name), name, round)).hexdigest()
    # As str(UUID(bytes=..., version=4)), which takes three times as long: stores with an index make one for each claim.
    variant = "89ab"[int(hexes[16], 16) & 3]
    return f"{hexes[:8]}-{hexes[8:12]}-4{hexes[13:16]}-{variant}{hexes[17:20]}-{hexes[20:32]}"
