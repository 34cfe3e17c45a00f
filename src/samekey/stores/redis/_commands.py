"""How each command is carried out: which request it makes, and what it makes of the answer.

Sans-IO. `register.apply` decides here, in Python, and the server decides whether the decision still holds: it
writes only if the record is the very version that was looked at, and only within the span of time for which the
decision is right. `apply` looks at the clock only to compare it with the deadlines in the record, so that span
reaches from the last deadline behind us to the next one before us. What is refused is shown, and decided again.

Every request recognises itself when it is repeated: a claim by its attempt, a write by its very bytes.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Generator
from functools import lru_cache
from typing import Any

from samekey.core.boundary import Kind, parse_terms
from samekey.core.commands import Ask, Free, Open, Read, Redact, Renew, Settle, StoreCommand, Take, Testify, Wait
from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.core.key import Key
from samekey.core.record import Record
from samekey.core.register import Moment, apply, audit_entry, expired
from samekey.core.states import Role, State
from samekey.stores.redis._operators import audit_words
from samekey.stores.redis._records import (
    HEAD,
    attempt_of,
    dated,
    draft,
    micros,
    open_body,
    opened,
    record_of,
)
from samekey.stores.redis._servers import AUDITS, GREET, MARKERS, OPEN, READ, TAGS, UNSETTLED, WRITE, Memory, Request

CAS_MAX = 100  # lost races for one record before we call the store busy; each one means somebody else won
_EVER = 10**16 - 1
_TOLD = frozenset({Take, Settle, Ask, Free})  # what those who wait, wait for

Steps = Generator[Request, Any, Record | None]


def steps(command: StoreCommand, memory: Memory) -> Steps:
    if isinstance(command, Open):
        return _open(command, memory)
    if isinstance(command, (Read, Wait)):
        return _read(command.key, memory)
    return _write(command, getattr(command, "seen", None), memory)


def _open(command: Open, memory: Memory) -> Steps:
    key, bucket = command.key, command.key.digest[0]
    record_key = key_of(key)
    attempt = attempt_of(command.attempt)
    words = (attempt, open_body(command, attempt))
    keys = (record_key, UNSETTLED[bucket], MARKERS[bucket])
    request = Request(bucket, OPEN, keys, words, _risky(command.boundary))
    for _ in range(CAS_MAX):
        reply = yield request
        now = int(reply[0])
        memory.heard(now)
        if len(reply) == 1:
            return opened(command, now, lost=memory.lost[bucket])
        if reply[1] is None:
            yield Request(bucket, GREET, (MARKERS[bucket],), ())
            continue
        found = record_of(reply[1], key, key.digest, now=now, lost=memory.lost[bucket])
        if expired(found, _moment(now)):
            found_anew = yield from _write(command, found, memory, now=now)
            if found_anew is None:
                continue  # Redis forgot it meanwhile
            return found_anew
        if request.lost and found.attempt == command.attempt and found.state is State.STARTED:
            return (yield from _confirmed(found, memory))
        return found
    raise StoreUnavailable(f"{key} changes faster than it can be claimed")


def _confirmed(found: Record | None, memory: Memory) -> Steps:
    """What was written already: where replicas count it is written once more, or nobody would wait until they have it.

    A server waits for what was written over the same connection, and for nothing else.
    """
    if not memory.address.wait_replicas:
        return found
    for _ in range(CAS_MAX):
        if found is None:
            return None
        key, bucket, moment = found.key, found.key.digest[0], (memory.now() + 0.5) / 1e6
        again = found.changed(version=found.version + 1)
        request, drafted = _request(Renew(found, 0.0), key_of(key), found, again, moment, memory)
        reply = yield request
        now = int(reply[0])
        memory.heard(now)
        if len(reply) == 3:
            return dated(drafted, now, int(reply[2]), lost=memory.lost[bucket])
        found = record_of(reply[1], key, key.digest, now=now, lost=memory.lost[bucket]) if len(reply) == 2 else None
    raise StoreUnavailable(f"{key} changes faster than it can be written")


def _said_before(command: StoreCommand, found: Record | None) -> bool:
    """Whether there is nothing to write because this very command may have written it, and was told that it failed."""
    if found is None or isinstance(command, Testify):
        return found is not None
    seen: Record | None = getattr(command, "seen", None)
    return found.attempt == getattr(command, "attempt", None) or (seen is not None and seen.fence == found.fence)


def _read(key: Key, memory: Memory) -> Steps:
    bucket = key.digest[0]
    now, value = yield Request(bucket, READ, (key_of(key),), ())
    memory.heard(int(now))
    if value is None:
        return None
    record = record_of(value, key, key.digest, now=int(now), lost=memory.lost[bucket])
    return None if expired(record, _moment(int(now))) else record


def _write(command: StoreCommand, before: Record | None, memory: Memory, now: int | None = None) -> Steps:
    """Compare and set; `now` is given where `before` was shown by the server at that time."""
    key, bucket = command.key, command.key.digest[0]
    record_key = key_of(key)
    for _ in range(CAS_MAX):
        # Half a microsecond off every time that was ever written: what equals it is what this write dates.
        moment = ((memory.now() if now is None else now) + 0.5) / 1e6
        after = None if before is None else apply(before, command, Moment(moment, moment, "", 0))
        if before is None or after is before:
            if now is not None:
                return (yield from _confirmed(before, memory)) if _said_before(command, before) else before
            stamp, value = yield Request(bucket, READ, (record_key,), ())
        else:
            request, drafted = _request(command, record_key, before, after, moment, memory)
            reply = yield request
            if len(reply) == 3:
                memory.heard(int(reply[0]))
                if drafted is None:
                    return None
                return dated(drafted, int(reply[0]), int(reply[2]), lost=memory.lost[bucket])
            stamp, value = reply if len(reply) == 2 else (reply[0], None)
            if request.lost and drafted is not None and value is not None and value[HEAD:] == drafted.body:
                found = record_of(value, key, key.digest, now=int(stamp), lost=memory.lost[bucket])
                return (yield from _confirmed(found, memory))
        now = int(stamp)
        memory.heard(now)
        if value is None:
            return None
        before = record_of(value, key, key.digest, now=now, lost=memory.lost[bucket])
        if not isinstance(command, Open) and expired(before, _moment(now)):
            return None
    raise StoreUnavailable(f"{key} changes faster than it can be written")


def _request(
    command: StoreCommand, record_key: bytes, before: Record, after: Record | None, moment: float, memory: Memory
) -> tuple[Request, Any]:
    bucket = before.key.digest[0]
    drafted = None if after is None else draft(after, before, moment)
    index = _index(before, after, moment)
    words = [_head(command, before, after, moment) + index + memory.told_in, b"" if drafted is None else drafted.body]
    # No more keys than are touched: while a cluster moves a slot, it refuses commands about keys here and there.
    keys: tuple[bytes, ...] = (record_key,) if index is _AS_IT_IS else (record_key, UNSETTLED[bucket])
    if _audited(command):
        entry = audit_entry(command, before, after, _moment(moment * 1e6))
        if entry is not None:
            words.append(audit_words(entry))
            keys = (record_key, UNSETTLED[bucket], AUDITS[bucket])
    return Request(bucket, WRITE, keys, words, type(command) is Take and _risky(command.boundary)), drafted


def _audited(command: StoreCommand) -> bool:
    """Whether a person does it; looked at before the entry is made, because nearly never."""
    return command.role is Role.OPERATOR if isinstance(command, Settle) else isinstance(command, (Redact, Free))


def _head(command: StoreCommand, before: Record, after: Record | None, moment: float) -> bytes:
    """What must still be so, what of the new record the script writes itself, whom it tells, when it may be forgotten.

    All in fixed places.
    """
    now = before if after is None else after
    was = attempt_of(before.attempt)
    return b"%010d%016d%b%016d%016d%010d%b%016d%b%b" % (
        before.version,
        before.token,
        was,
        *_span(before, moment),
        now.version,
        was if now.attempt is before.attempt else attempt_of(now.attempt),
        now.token if now.token != before.token else 0,
        b"1" if type(command) in _TOLD else b"0",
        _retention(after, before, moment),
    )


def _span(record: Record, moment: float) -> tuple[int, int]:
    """From when until when `apply` decides about this record as it does at this moment, in microseconds."""
    since = 0
    if not record.ask_until and record.retain_until is None:  # the common case: held, and nothing but a lease
        ends = micros(record.lease_until)
        return (since, ends) if record.lease_until > moment else (ends, _EVER)
    for deadline in sorted(filter(None, (record.lease_until, record.ask_until, record.retain_until))):
        if deadline > moment:
            return since, micros(deadline)
        since = micros(deadline)
    return since, _EVER


def _retention(after: Record | None, before: Record, moment: float) -> bytes:
    """When Redis may forget it."""
    if after is None or after.retain_until is None:
        return b"-0000000000000000"
    if after.retain_until == before.retain_until:
        return b"@%016d" % micros(after.retain_until)
    return b"+%016d" % max(0, micros(after.retain_until - moment))


def _index(before: Record, after: Record | None, moment: float) -> bytes:
    """What becomes of it in the set of unsettled keys."""
    was = before.state in _UNSETTLED
    if after is None or after.state not in _UNSETTLED:
        return _NO_LONGER if was else _AS_IT_IS
    if was:
        return _AS_IT_IS
    return b"+%016d" % (0 if after.created_at == moment else micros(after.created_at))


_NO_LONGER = b"-0000000000000000"
_AS_IT_IS = b"=0000000000000000"
_UNSETTLED = (State.STARTED, State.IN_DOUBT)


@lru_cache(maxsize=1024)
def _risky(boundary: str) -> bool:
    """Whether an effect under these terms may happen twice when its claim is forgotten."""
    try:
        return parse_terms(boundary).kind not in (Kind.KEYED, Kind.REPEATABLE, Kind.ATOMIC)
    except SamekeyError:
        return True


def key_of(key: Key) -> bytes:
    digest = key.digest
    return b"%b%b" % (TAGS[digest[0]], hexlify(digest))


def _moment(now: float) -> Moment:
    return Moment(now / 1e6, now / 1e6, "", 0)
