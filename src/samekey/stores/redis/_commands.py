"""How each command is carried out: the requests it makes, and what follows from the answers.

Sans-IO. `register.apply` decides in Python, and the server checks that the decision still holds: its script writes only
if the record is the version that was read, and only within the span of time for which the decision is right. `apply`
uses the clock only to compare it with the deadlines in the record. So the span reaches from the last deadline that has
passed to the next one. When the script refuses, it returns the record, and `apply` decides again.

A repeated request recognises its own earlier write: a claim by its attempt, any other write by its exact bytes.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Generator
from functools import lru_cache
from math import ceil
from typing import Any

from samekey.core.boundary import Kind, parse_terms, repeats
from samekey.core.commands import Ask, Free, Open, Read, Renew, Settle, StoreCommand, Take, Testify, Wait
from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.core.inquiry import DUE
from samekey.core.key import Key
from samekey.core.record import Record
from samekey.core.register import Moment, apply, audit_entry, audited, expired
from samekey.core.states import State
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._operators import audit_body
from samekey.stores.redis._records import HEAD, attempt_of, dated, draft, micros, open_body, opened, record_of
from samekey.stores.redis._requests import AUDITS, MARKERS, OPEN, READ, SELF_CHECK, TAGS, UNSETTLED, WRITE, Request

CAS_MAX = 100  # lost races for one record before the command fails; in each one another command won
_EVER = 10**16 - 1
WAKING = frozenset({Take, Settle, Ask, Free})  # waiters are woken by these

Steps = Generator[Request, Any, Record | None]


def steps(command: StoreCommand, known: Knowledge) -> Steps:
    if isinstance(command, Open):
        return _open(command, known)
    if isinstance(command, (Read, Wait)):
        return _read(command.key, known)
    return _write(command, getattr(command, "seen", None), known)


def _open(command: Open, known: Knowledge) -> Steps:
    key, bucket = command.key, command.key.digest[0]
    record_key = key_of(key)
    attempt = attempt_of(command.attempt)
    arguments = (attempt, open_body(command, attempt), *_ttl(command))
    keys = (record_key, UNSETTLED[bucket], MARKERS[bucket])
    request = Request(bucket, OPEN, keys, arguments, _risky(command.boundary))
    for _ in range(CAS_MAX):
        reply = yield request
        now = int(reply[0])
        known.set_clock(now)
        if len(reply) == 1:
            return opened(command, now, lost=known.lost[bucket])
        if reply[1] is None:
            yield Request(bucket, SELF_CHECK, (MARKERS[bucket],), ())
            continue
        found = record_of(reply[1], key, key.digest, now=now, lost=known.lost[bucket])
        if expired(found, _moment(now)):
            found_anew = yield from _write(command, found, known, now=now)
            if found_anew is None:
                continue  # its retention ended meanwhile
            return found_anew
        if request.lost and found.attempt == command.attempt and found.state is State.STARTED:
            return (yield from _confirmed(found, known))
        return found
    raise StoreUnavailable(f"{key} changes faster than it can be claimed")


def _ttl(command: Open) -> tuple[bytes, ...]:
    """When Redis may delete a claim that is never settled: only one of Repeatable, and not while its lease lives."""
    if not command.retain_seconds or not repeats(command.boundary):
        return ()
    return (b"%d" % ceil(max(command.lease_seconds, command.retain_seconds) * 1000),)


def _confirmed(found: Record | None, known: Knowledge) -> Steps:
    """A record that was written before. With `wait_replicas` it is written once more, so that WAIT covers it.

    WAIT covers only what was written over the same connection.
    """
    if not known.address.wait_replicas:
        return found
    for _ in range(CAS_MAX):
        if found is None:
            return None
        key, bucket, moment = found.key, found.key.digest[0], (known.now() + 0.5) / 1e6
        again = found.changed(version=found.version + 1)
        request, drafted = _request(Renew(found, 0.0), key_of(key), found, again, moment, known)
        reply = yield request
        now = int(reply[0])
        known.set_clock(now)
        if len(reply) == 3:
            return dated(drafted, now, int(reply[2]), lost=known.lost[bucket])
        found = record_of(reply[1], key, key.digest, now=now, lost=known.lost[bucket]) if len(reply) == 2 else None
    raise StoreUnavailable(f"{key} changes faster than it can be written")


def _may_be_own(command: StoreCommand, found: Record | None) -> bool:
    """Whether this command may itself have written the record, in an earlier try that counted as failed."""
    if found is None or isinstance(command, Testify):
        return found is not None
    seen: Record | None = getattr(command, "seen", None)
    return found.attempt == getattr(command, "attempt", None) or (seen is not None and seen.fence == found.fence)


def _read(key: Key, known: Knowledge) -> Steps:
    bucket = key.digest[0]
    now, value = yield Request(bucket, READ, (key_of(key),), ())
    known.set_clock(int(now))
    if value is None:
        return None
    record = record_of(value, key, key.digest, now=int(now), lost=known.lost[bucket])
    return None if expired(record, _moment(int(now))) else record


def _write(command: StoreCommand, before: Record | None, known: Knowledge, now: int | None = None) -> Steps:
    """Compare and set; `now` is given if the server returned `before` at that time."""
    key = command.key
    bucket, record_key = key.digest[0], key_of(key)
    for _ in range(CAS_MAX):
        # Half a microsecond off every time that was ever written: a time that equals it belongs to this write.
        moment = ((known.now() if now is None else now) + 0.5) / 1e6
        after = None if before is None else apply(before, command, Moment(moment, moment, "", 0))
        if before is None or after is before:
            if now is not None:
                return (yield from _confirmed(before, known)) if _may_be_own(command, before) else before
            stamp, value = yield Request(bucket, READ, (record_key,), ())
        else:
            request, drafted = _request(command, record_key, before, after, moment, known)
            reply = yield request
            if len(reply) == 3:
                known.set_clock(int(reply[0]))
                if drafted is None:
                    return None
                return dated(drafted, int(reply[0]), int(reply[2]), lost=known.lost[bucket])
            stamp, value = reply if len(reply) == 2 else (reply[0], None)
            if request.lost and drafted is not None and value is not None and value[HEAD:] == drafted.body:
                found = record_of(value, key, key.digest, now=int(stamp), lost=known.lost[bucket])
                return (yield from _confirmed(found, known))
        now = int(stamp)
        known.set_clock(now)
        if value is None:
            return None
        before = record_of(value, key, key.digest, now=now, lost=known.lost[bucket])
        if not isinstance(command, Open) and expired(before, _moment(now)):
            return None
    raise StoreUnavailable(f"{key} changes faster than it can be written")


def _request(
    command: StoreCommand, record_key: bytes, before: Record, after: Record | None, moment: float, known: Knowledge
) -> tuple[Request, Any]:
    bucket = before.key.digest[0]
    drafted = None if after is None else draft(after, before, moment)
    index = _index(before, after, moment)
    arguments = [
        _head(command, before, after, moment) + index + known.channel_suffix,
        b"" if drafted is None else drafted.body,
    ]
    # Name only the keys that are touched: while a slot moves, a cluster refuses commands whose keys are on two servers.
    keys: tuple[bytes, ...] = (record_key,) if index is _UNCHANGED else (record_key, UNSETTLED[bucket])
    if audited(command):
        entry = audit_entry(command, before, after, _moment(moment * 1e6))
        if entry is not None:
            arguments.append(audit_body(entry))
            keys = (record_key, UNSETTLED[bucket], AUDITS[bucket])
    return Request(bucket, WRITE, keys, arguments, type(command) is Take and _risky(command.boundary)), drafted


def _head(command: StoreCommand, before: Record, after: Record | None, moment: float) -> bytes:
    """The first argument of the script `write`, in fixed places.

    It has what the script compares, the parts of the new record that the script fills in, whether to publish, and the
    retention.
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
        b"1" if type(command) in WAKING else b"0",
        _retention(after, before, moment),
    )


def _span(record: Record, moment: float) -> tuple[int, int]:
    """The span of time in which `apply` decides as it does at this moment, in microseconds."""
    since = 0
    if not record.ask_until and record.retain_until is None:  # the common case: a held record, with a lease alone
        ends = micros(record.lease_until)
        return (since, ends) if record.lease_until > moment else (ends, _EVER)
    for deadline in sorted(filter(None, (record.lease_until, record.ask_until, record.retain_until))):
        if deadline > moment:
            return since, min(micros(deadline), _EVER)
        since = micros(deadline)
    return since, _EVER


def _retention(after: Record | None, before: Record, moment: float) -> bytes:
    """When Redis may delete the record."""
    if after is None or after.retain_until is None:
        return b"-00000000000000000"
    ends = after.retain_until
    if after.state is State.STARTED:  # of Repeatable
        ends = max(ends, after.lease_until)
    elif ends == before.retain_until:
        return b"@%017d" % micros(ends)
    return b"+%017d" % max(0, micros(ends - moment))


def _index(before: Record, after: Record | None, moment: float) -> bytes:
    """The change to the set of unsettled keys."""
    was = _to_be_found(before)
    if after is None or not _to_be_found(after):
        return _REMOVED if was else _UNCHANGED
    if was:
        return _UNCHANGED
    return b"+%016d" % (0 if after.created_at == moment else micros(after.created_at))


def _to_be_found(record: Record) -> bool:
    """Whether it is in the set of unsettled keys: held, in doubt, or with a late truth that is not delivered yet."""
    return record.state in _UNSETTLED or (record.inquiry is not None and record.inquiry.late == DUE)


_REMOVED = b"-0000000000000000"
_UNCHANGED = b"=0000000000000000"
_UNSETTLED = (State.STARTED, State.IN_DOUBT)


@lru_cache(maxsize=1024)
def _risky(boundary: str) -> bool:
    """Whether an effect under these terms may happen twice if its claim is lost."""
    try:
        return parse_terms(boundary).kind not in (Kind.KEYED, Kind.REPEATABLE, Kind.ATOMIC)
    except SamekeyError:
        return True


def key_of(key: Key) -> bytes:
    digest = key.digest
    return b"%b%b" % (TAGS[digest[0]], hexlify(digest))


def _moment(now: float) -> Moment:
    return Moment(now / 1e6, now / 1e6, "", 0)
