"""Operator queries: pages of records, and the audit log.

Sans-IO: the generators yield several requests at a time. Redis has no index of values. Unsettled keys, the ones that
operators command for most, are in a sorted set of their own: one round trip finds them. A list that includes settled
records scans all keys of the database. That is fit for a person at a terminal, not for a dashboard.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from samekey.core.errors import RecordUnreadable, SamekeyError
from samekey.core.key import make_key
from samekey.core.ports import LIST_MAX, Audits, Query
from samekey.core.record import Audit, Record
from samekey.core.register import Moment, expired
from samekey.core.states import State
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._records import PEEK, micros, peeked, record_of
from samekey.stores.redis._requests import AUDITS, BUCKETS, READ, TAGS, UNSETTLED, Request
from samekey.stores.redis._servers import Servers

Several = Generator[list[Request], list[Any], Any]
Found = list[Record | RecordUnreadable]
Place = tuple[float, bytes]  # created_at and digest: the order of a page

SCAN_COUNT = 1000  # keys per SCAN: a millisecond of the server's time
READ_TOGETHER = 100  # whole records per round trip: each may carry a mebibyte
STEP = 64  # unsettled keys read from each bucket at a time
_RECORDS = b"samekey:{??}:" + b"?" * 32
_OLDEST = (0.0, b"")  # a record whose creation time cannot be read comes last
_INDEXED = frozenset({State.STARTED, State.IN_DOUBT})


def listing(query: Query, known: Knowledge, servers: Servers) -> Several:
    """One page of records, newest first; in the place of one that cannot be read, an error with its position."""
    wanted = max(0, min(query.limit, LIST_MAX))
    if query.operation is not None and query.tenant is not None and query.text is not None:
        found = yield from _reading({make_key(query.operation, query.text, query.tenant).digest: 0.0}, query, known)
    elif query.states and _INDEXED.issuperset(query.states):
        found = yield from _by_index(query, wanted, known)
    else:
        found = yield from _by_walk(query, wanted, known, servers)
    found.sort(key=_place, reverse=True)
    return found[:wanted]


def _place(one: Record | RecordUnreadable) -> Place:
    if isinstance(one, RecordUnreadable):
        return one.cursor or _OLDEST
    return one.created_at, one.key.digest


def _by_index(query: Query, wanted: int, known: Knowledge) -> Generator[list[Request], list[Any], Found]:
    found: Found = []
    seen: set[bytes] = set()
    top, step = (b"+inf" if query.before is None else b"%d" % micros(query.before[0])), STEP
    while True:
        commands = [
            (b"ZREVRANGEBYSCORE", UNSETTLED[bucket], top, b"-inf", b"WITHSCORES", b"LIMIT", b"0", b"%d" % step)
            for bucket in range(BUCKETS)
        ]
        replies = yield [Request(bucket, None, (), command) for bucket, command in enumerate(commands)]
        # A bucket with more entries than were read may have more below its last one: cut the page there.
        cut = max((int(float(reply[-1])) for reply in replies if len(reply) == 2 * step), default=-1)
        fresh = {
            bytes.fromhex(reply[at].decode()): float(reply[at + 1]) / 1e6
            for reply in replies
            for at in range(0, len(reply), 2)
            if int(float(reply[at + 1])) >= cut and reply[at] not in seen
        }
        seen.update(digest.hex().encode() for digest in fresh)
        found += yield from _reading(fresh, query, known)
        if cut < 0 or len(found) >= wanted:
            return found
        if top == b"%d" % cut:
            step *= 2  # more than `step` keys of one microsecond
        top = b"%d" % cut


def _by_walk(
    query: Query, wanted: int, known: Knowledge, servers: Servers
) -> Generator[list[Request], list[Any], Found]:
    found: Found = []
    below = query
    while True:
        places, more = yield from _walk(below, 2 * wanted, servers)
        # Some records may be gone since the scan, or no longer match. The next ones take their places, because a page
        # that is not full counts as the last page.
        while places and len(found) < wanted:
            some, places = places[: wanted - len(found)], places[wanted - len(found) :]
            found += yield from _reading({digest: created for created, digest in some}, query, known)
            below = replace(query, before=some[-1])
        if len(found) >= wanted or not more:
            return found


def _walk(query: Query, reach: int, servers: Servers) -> Generator[list[Request], list[Any], tuple[list[Place], bool]]:
    """The newest keys that match, judged by the beginning of each value; and whether there are more."""
    best: dict[bytes, float] = {}
    more = False
    owners, guests = yield from _surveying(servers)
    visited = list(dict.fromkeys((*owners, *guests))) or [""]
    for server in visited:
        more = (yield from _visiting(server, query, reach, best)) or more
    if owners:
        now_owners, now_guests = yield from _surveying(servers)
        if now_owners != owners or guests or now_guests:
            # A key was missed if it moved from a server not yet scanned to one already scanned. Scan once more in
            # reverse order: one of the two scans sees the key, before it left or after it arrived.
            there = dict.fromkeys((*now_owners, *now_guests))
            for server in reversed([one for one in dict.fromkeys((*visited, *there)) if one in there]):
                more = (yield from _visiting(server, query, reach, best)) or more
    return _newest(best, reach), more or len(best) > reach


def _surveying(servers: Servers) -> Generator[list[Request], list[Any], tuple[tuple[str, ...], list[str]]]:
    """The server of each bucket, and the servers that a bucket is moving to; both empty without a cluster."""
    yield [Request(0, None, (), (b"PING",))]
    if not servers.owners:
        return (), []
    # A server whose bucket is moving redirects a read of a key that it does not have. Reading needs no extra right.
    probes = [Request(bucket, None, (), (b"GETRANGE", tag + b"nothing", b"0", b"0")) for bucket, tag in enumerate(TAGS)]
    yield probes
    return servers.owners, [probe.guest for probe in probes if probe.guest]


def _visiting(
    server: str, query: Query, reach: int, best: dict[bytes, float]
) -> Generator[list[Request], list[Any], bool]:
    """Add the keys of this server to `best`; returns whether some were dropped."""
    cursor, more = b"0", False
    while True:
        command = (b"SCAN", cursor, b"MATCH", _RECORDS, b"COUNT", b"%d" % SCAN_COUNT)
        ((cursor, keys),) = yield [Request(0, None, (), command, server=server)]
        if keys:
            peeks = yield [
                Request(int(key[9:11], 16), None, (), (b"GETRANGE", key, b"0", b"%d" % PEEK)) for key in keys
            ]
            for key, peek in zip(keys, peeks, strict=True):
                if peek and (created := _picked(query, peek, bytes.fromhex(key[13:].decode()))) is not None:
                    best[bytes.fromhex(key[13:].decode())] = created
            if len(best) > 2 * reach:
                kept, more = _newest(best, reach), True
                best.clear()
                best.update((digest, created) for created, digest in kept)
        if cursor == b"0":
            return more


def _newest(best: dict[bytes, float], reach: int) -> list[Place]:
    return sorted(((created, digest) for digest, created in best.items()), reverse=True)[:reach]


def _picked(query: Query, peek: bytes, digest: bytes) -> float | None:
    """created_at, if the record matches the query, judged by the beginning of its value."""
    try:
        state, created, (operation, tenant, text) = peeked(peek)
    except RecordUnreadable:  # it may match
        return _OLDEST[0] if query.before is None or (_OLDEST[0], digest) < query.before else None
    created_at = created / 1e6
    matches = (
        (not query.states or state in query.states)
        and query.operation in (None, operation)
        and (query.tenant is None or query.tenant == tenant)
        and query.text in (None, text)
        and (query.before is None or (created_at, digest) < query.before)
    )
    return created_at if matches else None


def _reading(digests: dict[bytes, float], query: Query, known: Knowledge) -> Generator[list[Request], list[Any], Found]:
    """The records of these digests. The given creation times place the records that cannot be read."""
    found: Found = []
    for start in range(0, len(digests), READ_TOGETHER):
        some = list(digests)[start : start + READ_TOGETHER]
        keys = [TAGS[digest[0]] + digest.hex().encode() for digest in some]
        replies = yield [Request(digest[0], READ, (key,), ()) for digest, key in zip(some, keys, strict=True)]
        for digest, key, (now, value) in zip(some, keys, replies, strict=True):
            if value is None:
                continue
            lost = known.lost[digest[0]]
            try:
                record = record_of(value, None, digest, now=int(now), lost=lost)
            except RecordUnreadable as damaged:
                place = digests[digest], digest
                if query.before is None or place < query.before:
                    found.append(RecordUnreadable(f"{_named(value, key)}: {damaged}", cursor=place))
                continue
            if query.picks(record) and not _gone(record):
                found.append(record)
    return found


def _named(value: bytes, key: bytes) -> str:
    """The key of a record, if that part can be read, and its name in Redis."""
    try:
        _, _, (operation, tenant, text) = peeked(value)
        return f"{make_key(operation, text, tenant)} ({key.decode()})"
    except SamekeyError:
        return key.decode()


def _gone(record: Record) -> bool:
    return expired(record, Moment(record.now, record.now, "", 0))


# -- the audit log -----------------------------------------------------------------------------------------


def audit_body(entry: Audit) -> bytes:
    """An entry without its time: the script adds it in front."""
    return json.dumps(entry[1:], ensure_ascii=False).encode()


def auditing(limit: int) -> Generator[list[Request], list[Any], Audits]:
    wanted = max(0, min(limit, LIST_MAX))
    commands = [(b"LRANGE", AUDITS[bucket], b"-%d" % max(1, wanted), b"-1") for bucket in range(BUCKETS)]
    replies = yield [Request(bucket, None, (), command) for bucket, command in enumerate(commands)]
    entries = [(int(line[:16]), line[16:]) for lines in replies for line in lines]
    entries.sort(key=lambda one: one[0], reverse=True)
    return [Audit(at / 1e6, *json.loads(rest)) for at, rest in entries[:wanted]]
