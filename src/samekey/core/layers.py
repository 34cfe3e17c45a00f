"""A fast store before a durable one: what the front may answer, and what it must be told.

Only the durable store says "go". The front holds sealed copies and may save work with them: replay a settled
record, make those wait who come while it is held, wake them. It may forget everything at any moment, answer late
or go back in time; that costs speed, and at most an answer that was true within the last `front_ttl`.

    a copy       a settled record, to be replayed; or a held one, to wait for
    a mark       somebody is on the way to the durable store: linger a moment, the answer is coming
    a tombstone  freed or redacted, or nothing a copy could say: ask the durable store

Three rules keep a late or repeated word harmless.
Order: a word is written only over an older one - by token, then version, and a tombstone over the copy of the
same version. A key that was freed comes back with a higher token.
Age: a word carries the moment until which it may be believed, on the front's own clock: what that clock showed
some time *before* the durable store was asked, and `front_ttl` more. Whoever sleeps between asking and telling tells it
in vain.
Seal: a digest keyed with the incarnation of the durable store. A foreign or damaged word says nothing, and after a
failover of the durable store none of the old ones do.

Steps, without clock or I/O, like an attempt: every interleaving of them can be played.
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

FRONT_TTL_SECONDS = 60.0  # how old an answer may be if the front was not told that it changed
LINGERS_MAX = 20  # looks at somebody else's mark before we ask the durable store ourselves

_MAGIC = b"f1"
_SEAL_BYTES = 16
_HEAD = len(_MAGIC) + 17  # magic, then the order: token, version, rank
_BODY = _HEAD + _SEAL_BYTES + 8  # where a copy's record begins: behind the seal and the moment it was known at
_LAST_VERSION = (1 << 63) - 1
_COPY, _TOMBSTONE = 0, 1  # ranks: over the same version a tombstone wins


class Sight(NamedTuple):
    """What the front showed: its clock, and the word it has for the key; `marked`: there was none, and now our mark."""

    now: float
    word: bytes | None
    marked: bool = False


@dataclass(slots=True)
class Look(Command):
    """See what the front has; leave a mark where it has nothing. The reply is None where the front is away."""

    digest: bytes


@dataclass(slots=True)
class Linger(Command):
    """Wait a moment for the word of whoever left the mark."""

    digest: bytes


@dataclass(slots=True)
class FrontTime(Command):
    """What the front's clock showed when we last looked; None if we never did."""


@dataclass(slots=True)
class Put(Command):
    """Write a word over an older one, to be forgotten at `until` on the front's clock; False: the front is away."""

    digest: bytes
    word: bytes
    until: float


class MayStillReplay(StoreUnavailable):
    """Done in the durable store; the front could not be told, and may replay the old answer for a while."""


def order_of(word: bytes) -> bytes:
    """What a front compares: it writes a word only over one of lower order. A mark is below every word."""
    return word[:_HEAD]


class Front:
    """How one incarnation of a durable store seals its words, and how long they may be believed."""

    def __init__(self, incarnation: str, front_ttl: float = FRONT_TTL_SECONDS) -> None:
        self.incarnation = incarnation
        self.front_ttl = front_ttl
        secret = hashlib.sha256(b"samekey.front.1:" + incarnation.encode()).digest()
        self._keyed = hmac.new(secret, digestmod="sha256")  # to be copied: half the work of a seal is the secret's

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
            if sight is None or sight.word is None:
                break
            if not sight.word:  # somebody's mark
                yield Linger(digest)
                continue
            record = self.answer(command.key, sight)
            # Our own claim comes from the durable store or not at all: the front never says "go".
            if record is not None and record.attempt != command.attempt:
                return record
            break
        record = yield from command
        if sight is not None:
            yield from self._tell(record, sight.now)
        return record

    def _write(self, command: StoreCommand) -> Generator[Command, Any, Record | None]:
        # By a clock of our own we could guess what the front's shows by now. If ours runs fast, or ran on while we
        # slept, the word would live longer than `front_ttl`: the last reading is old, and never too young.
        known_at = yield FrontTime()
        if isinstance(command, Renew):  # a hold that lasts: others shall find a copy of it that still counts
            sight = yield Look(command.key.digest)
            known_at = None if sight is None else sight.now
        record = yield from command
        if known_at is not None and record is not None:
            yield from self._tell(record, known_at)
        return record

    def _take_back(self, command: Free | Redact) -> Generator[Command, Any, Record | None]:
        """The front first: or it would go on replaying what the durable store no longer says."""
        told = yield from self._bury_for_good(command.seen)
        record = yield from command
        # Once more: whoever read the old record in between may tell it for as long as front_ttl from now.
        told = (yield from self._bury_for_good(command.seen)) and told
        if not told and _carried_out(command, record):
            raise MayStillReplay(
                f"done in the durable store; the front could not be told about {command.key} and may replay the old "
                f"answer for up to {self.front_ttl:g} s"
            )
        return record

    def corrected(self, copy: Record, truth: Record | None, known_at: float) -> Generator[Command, Any, Any]:
        """The durable store was asked about a copy, after `known_at`: where it knows better, the front is told."""
        if truth is None:
            yield from self._bury(copy.changed(version=_LAST_VERSION), known_at)
        elif (truth.token, truth.version) != (copy.token, copy.version):
            yield from self._tell(truth, known_at)

    def _tell(self, record: Record, known_at: float) -> Generator[Command, Any, bool]:
        if not (record.settled or record.lease_live):
            return (yield from self._bury(record, known_at))
        ends = self.front_ttl
        if record.retain_until is not None:
            ends = min(ends, record.retain_until - record.now)
        word = self._sealed(record, _COPY, b"%b%b" % (_number(round(known_at * 1e6)), pack(record)))
        told: bool = yield Put(record.key.digest, word, known_at + ends)
        return told

    def _bury_for_good(self, record: Record) -> Generator[Command, Any, bool]:
        """Over every version under this token: the record may have moved since it was seen."""
        sight = yield Look(record.key.digest)
        return sight is not None and (yield from self._bury(record.changed(version=_LAST_VERSION), sight.now))

    def _bury(self, record: Record, known_at: float) -> Generator[Command, Any, bool]:
        word = self._sealed(record, _TOMBSTONE, b"")
        told: bool = yield Put(record.key.digest, word, known_at + self.front_ttl)
        return told

    # -- words -----------------------------------------------------------------------------------------------

    def answer(self, key: Key, sight: Sight) -> Record | None:
        """The record that a word stands for, if it says anything: settled, or held by a lease that still lives."""
        word = sight.word
        if not word or len(word) < _BODY or not self._genuine(key, word):  # a tombstone ends before that
            return None
        age = sight.now - int.from_bytes(word[_BODY - 8 : _BODY], "big") / 1e6
        if not 0 <= age < self.front_ttl:  # kept past its time, or by a clock that was set back: nobody knows how old
            return None
        try:
            record = unpack(word[_BODY:], key, sight.now)
        except RecordUnreadable:
            return None
        if record.settled:
            return record
        left = record.lease_left - age
        return record.changed(lease_left=left) if left > 0 else None

    def _sealed(self, record: Record, rank: int, body: bytes) -> bytes:
        head = b"%b%b%b%c" % (_MAGIC, _number(record.token), _number(record.version), rank)
        return head + self._seal(record.key, head, body) + body

    def _genuine(self, key: Key, word: bytes) -> bool:
        head, seal, body = word[:_HEAD], word[_HEAD : _HEAD + _SEAL_BYTES], word[_HEAD + _SEAL_BYTES :]
        return hmac.compare_digest(seal, self._seal(key, head, body))

    def _seal(self, key: Key, head: bytes, body: bytes) -> bytes:
        seal = self._keyed.copy()
        seal.update(key.digest + head + body)
        return seal.digest()[:_SEAL_BYTES]


def _carried_out(command: Free | Redact, record: Record | None) -> bool:
    """Whether the durable store did it: it does nothing to a record that has moved on since it was seen."""
    if isinstance(command, Free):
        return record is None
    return record is not None and record.settled and record.fence == command.seen.fence


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")
