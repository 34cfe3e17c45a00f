"""A fast store in front of a durable one: what the front may answer, and what is written to it.

Only the durable store grants a claim. The front holds sealed copies, which save work: they replay a settled record,
let callers wait while a key is held, and wake them. The front may forget everything at any moment, answer late
or go back in time; that costs speed, and at most an answer that was true within the last `front_ttl`.

    a copy       a settled record, to be replayed; or a held one, to wait for
    a mark       another caller is asking the durable store: linger a moment, its answer is coming
    a tombstone  freed or redacted, or a record that no copy can answer for: ask the durable store

Three rules make a late or repeated entry harmless.
Order: an entry replaces only an older one, by token, then version; over the same version a tombstone wins. A key
that was freed comes back with a higher token.
Age: an entry carries the moment until which it counts, on the front's own clock: a reading of that clock from
*before* the durable store was asked, plus `front_ttl`. A caller that sleeps between asking and writing writes an entry
that is already over.
Seal: a digest keyed with the incarnation of the durable store. A foreign or damaged entry does not count, and after a
failover of the durable store none of the old entries do.

Steps without clock or I/O, like an attempt: every interleaving of them can be played.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from samekey.core.commands import Command, Free, Open, Redact, Renew, StoreCommand
from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.core.key import Key
from samekey.core.packing import pack, unpack
from samekey.core.record import Record

FRONT_TTL_SECONDS = 60.0  # how old an answer may be if the front did not learn that it changed
LINGERS_MAX = 20  # looks at another caller's mark before this caller asks the durable store

_MAGIC = b"f1"
_SEAL_BYTES = 16
_HEAD = len(_MAGIC) + 17  # magic, then the order: token, version, rank
_BODY = _HEAD + _SEAL_BYTES + 8  # where the record of a copy begins: after the seal and the time of the reading
_LAST_VERSION = (1 << 63) - 1
_COPY, _TOMBSTONE = 0, 1  # ranks: over the same version a tombstone wins


class Sight(NamedTuple):
    """The front's clock and its entry for the key; `marked`: there was none, and now there is our mark."""

    now: float
    entry: bytes | None
    marked: bool = False


@dataclass(slots=True)
class Look(Command):
    """See what the front has; leave a mark where it has nothing. The reply is None if the front cannot be reached."""

    digest: bytes


@dataclass(slots=True)
class Linger(Command):
    """Wait a moment for the entry of the caller that left the mark."""

    digest: bytes


@dataclass(slots=True)
class FrontTime(Command):
    """The last reading of the front's clock; None before the first look."""


@dataclass(slots=True)
class Put(Command):
    """Replace an older entry, until `until` on the front's clock; the reply is False if the front cannot be reached."""

    digest: bytes
    entry: bytes
    until: float


class MayStillReplay(StoreUnavailable):
    """Done in the durable store; the front could not be reached, and may replay the old answer for a while."""


def order_of(entry: bytes) -> bytes:
    """What a front compares: an entry replaces only one of lower order. A mark is below every entry."""
    return entry[:_HEAD]


class Front:
    """How one incarnation of a durable store seals its entries, and how long they count."""

    def __init__(self, incarnation: str, front_ttl: float = FRONT_TTL_SECONDS) -> None:
        self.incarnation = incarnation
        self.front_ttl = front_ttl
        secret = hashlib.sha256(b"samekey.front.1:" + incarnation.encode()).digest()
        self._keyed = hmac.new(secret, digestmod="sha256")  # copied for each seal: keying takes half of the time

    # -- steps ---------------------------------------------------------------------------------------------

    def steps(self, command: StoreCommand) -> Generator[Command, Any, Record | None]:
        """Carry out one command through both layers."""
        if isinstance(command, Open):
            return self._open(command)
        if isinstance(command, (Free, Redact)):
            return self._take_back(command)
        return self._write(command)

    def _open(self, command: Open) -> Generator[Command, Any, Record | None]:
        digest = command.key.digest
        sight: Sight | None = None
        for _ in range(LINGERS_MAX):
            sight = yield Look(digest)
            if sight is None or sight.entry is None:
                break
            if not sight.entry:  # another caller's mark
                yield Linger(digest)
                continue
            record = self.answer(command.key, sight)
            # Our own claim comes from the durable store or not at all: the front never grants one.
            if record is not None and record.attempt != command.attempt:
                return record
            break
        record = yield from command
        if sight is not None:
            yield from self._write_entry(record, sight.now)
        return record

    def _write(self, command: StoreCommand) -> Generator[Command, Any, Record | None]:
        # Guessing the front's clock from our own is unsafe: if ours runs fast, or ran on while this process slept, the
        # entry would live longer than `front_ttl`. The last reading may be old, but never too young.
        known_at = yield FrontTime()
        if isinstance(command, Renew):  # a long hold: other callers should find a copy that still counts
            sight = yield Look(command.key.digest)
            known_at = None if sight is None else sight.now
        record = yield from command
        if known_at is not None and record is not None:
            yield from self._write_entry(record, known_at)
        return record

    def _take_back(self, command: Free | Redact) -> Generator[Command, Any, Record | None]:
        """Write to the front first, or it would go on replaying what the durable store no longer has."""
        written = yield from self._bury_for_good(command.seen)
        record = yield from command
        # Once more: a caller that read the old record in between may write it to the front for front_ttl from now.
        written = (yield from self._bury_for_good(command.seen)) and written
        if not written and _carried_out(command, record):
            raise MayStillReplay(
                f"done in the durable store; the front could not be reached for {command.key} and may replay the old "
                f"answer for up to {self.front_ttl:g} s"
            )
        return record

    def corrected(self, copy: Record, truth: Record | None, known_at: float) -> Generator[Command, Any, Any]:
        """Correct the front after the durable store was asked about a copy, after `known_at`."""
        if truth is None:
            yield from self._bury(copy.changed(version=_LAST_VERSION), known_at)
        elif (truth.token, truth.version) != (copy.token, copy.version):
            yield from self._write_entry(truth, known_at)

    def _write_entry(self, record: Record, known_at: float) -> Generator[Command, Any, bool]:
        if not (record.settled or record.lease_live):
            return (yield from self._bury(record, known_at))
        ends = self.front_ttl
        if record.retain_until is not None:
            ends = min(ends, record.retain_until - record.now)
        entry = self._sealed(record, _COPY, b"%b%b" % (_number(round(known_at * 1e6)), pack(record)))
        written: bool = yield Put(record.key.digest, entry, known_at + ends)
        return written

    def _bury_for_good(self, record: Record) -> Generator[Command, Any, bool]:
        """Over every version under this token: the record may have moved since it was seen."""
        sight = yield Look(record.key.digest)
        return sight is not None and (yield from self._bury(record.changed(version=_LAST_VERSION), sight.now))

    def _bury(self, record: Record, known_at: float) -> Generator[Command, Any, bool]:
        entry = self._sealed(record, _TOMBSTONE, b"")
        written: bool = yield Put(record.key.digest, entry, known_at + self.front_ttl)
        return written

    # -- entries -----------------------------------------------------------------------------------------------

    def answer(self, key: Key, sight: Sight) -> Record | None:
        """The record of an entry, if it counts: settled, or held by a lease that still lives."""
        entry = sight.entry
        if not entry or len(entry) < _BODY or not self._genuine(key, entry):  # a tombstone is shorter
            return None
        age = sight.now - int.from_bytes(entry[_BODY - 8 : _BODY], "big") / 1e6
        if not 0 <= age < self.front_ttl:  # kept too long, or by a clock that was set back: its age is unknown
            return None
        try:
            record = unpack(entry[_BODY:], key, sight.now)
        except RecordUnreadable:
            return None
        if record.settled:
            return record
        left = record.lease_left - age
        return record.changed(lease_left=left) if left > 0 else None

    def _sealed(self, record: Record, rank: int, body: bytes) -> bytes:
        head = b"%b%b%b%c" % (_MAGIC, _number(record.token), _number(record.version), rank)
        return head + self._seal(record.key, head, body) + body

    def _genuine(self, key: Key, entry: bytes) -> bool:
        head, seal, body = entry[:_HEAD], entry[_HEAD : _HEAD + _SEAL_BYTES], entry[_HEAD + _SEAL_BYTES :]
        return hmac.compare_digest(seal, self._seal(key, head, body))

    def _seal(self, key: Key, head: bytes, body: bytes) -> bytes:
        seal = self._keyed.copy()
        seal.update(key.digest + head + body)
        return seal.digest()[:_SEAL_BYTES]


def _carried_out(command: Free | Redact, record: Record | None) -> bool:
    """Whether the durable store did it: it changes nothing in a record that moved since it was seen."""
    if isinstance(command, Free):
        return record is None
    return record is not None and record.settled and record.fence == command.seen.fence


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")
