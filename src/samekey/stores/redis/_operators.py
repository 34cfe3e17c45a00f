"""Operator queries: pages of records, and the audit log.

Sans-IO: the generators yield several requests at a time. Redis has no index of values. Unsettled keys, the ones that
operators command for most, are in a sorted set of their own: one round trip finds them. A list that includes settled
records scans all keys of the database, up to a bound; if it is reached, the page says that it was cut. That is fit for
a person at a terminal, not for a dashboard.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from samekey.core.errors import RecordUnreadable, SamekeyError
from samekey.core.key import make_key
from samekey.core.ports import LIST_MAX, Audits, Due, Query, Records, place_of
from samekey.core.record import Audit, Record
from samekey.core.register import Moment, expired
from samekey.core.states import State
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._records import PEEK, micros, peeked, record_of, written_at
from samekey.stores.redis._requests import AUDITS, BUCKETS, PRUNE, READ, TAGS, UNSETTLED, Request
from samekey.stores.redis._servers import Servers

Several = Generator[list[Request], list[Any], Any]
Found = list[Record | RecordUnreadable]
Place = tuple[float, bytes]  # created_at and digest: the order of a page

SCAN_COUNT = 1000  # keys per SCAN: a millisecond of the server's time
READ_TOGETHER = 100  # whole records per round trip: each may carry a mebibyte
STEP = 64  # unsettled keys read from each bucket at a time
WALKED_MAX = 1_000_000  # keys whose beginning one list looks at: some seconds of the server's time
SEARCHED_MAX = 100_000  # records that one search reads whole, because it asks for what their beginning does not tell
_OLDEST = (0.0, b"")  # a record whose creation time cannot be read comes last
_INDEXED = frozenset({State.STARTED, State.IN_DOUBT})


def listing(query: Query, known: Knowledge, servers: Servers) -> Generator[list[Request], list[Any], Records]:
    """One page of records; in the place of one that cannot be read, an error with its position."""
    only = _only(query)
    walk = _Walk(query, known)
    if only is not None:
        found = yield from _reading({only: 0.0}, query, known)
    elif query.waiting or (query.states and _INDEXED.issuperset(query.states)):
        found = yield from _by_index(query, known)
    else:
        found = yield from _by_walk(walk, servers)
    return query.page(found, cut=walk.cut)


def _only(query: Query) -> bytes | None:
    """The digest of the only record that can match."""
    if len(query.digest) == 16:
        return query.digest
    if query.operation is not None and query.tenant is not None and query.text is not None:
        return make_key(query.operation, query.text, query.tenant).digest
    return None


def _by_index(query: Query, known: Knowledge) -> Generator[list[Request], list[Any], Found]:
    found: Found = []
    seen: set[bytes] = set()
    first, last = (b"-inf" if query.since is None else b"%d" % micros(query.since)), b"+inf"
    if query.until is not None:
        last = b"%d" % micros(query.until)
    range_by, step, edge = b"ZREVRANGEBYSCORE", STEP, max
    if query.oldest_first:
        range_by, edge = b"ZRANGEBYSCORE", min
    else:
        first, last = last, first
    if query.before is not None:
        first = b"%d" % micros(query.before[0])
    while True:
        commands = [
            (range_by, UNSETTLED[bucket], first, last, b"WITHSCORES", b"LIMIT", b"0", b"%d" % step)
            for bucket in range(BUCKETS)
        ]
        replies = yield [Request(bucket, None, (), command) for bucket, command in enumerate(commands)]
        # A bucket with more entries than were read may have more beyond its last one: end the page there.
        full = [int(float(reply[-1])) for reply in replies if len(reply) == 2 * step]
        end = edge(full) if full else None
        fresh = {
            bytes.fromhex(member.decode()): score / 1e6
            for reply in replies
            for member, score in zip(reply[::2], map(float, reply[1::2]), strict=True)
            if member not in seen and (end is None or (score <= end if query.oldest_first else score >= end))
        }
        seen.update(digest.hex().encode() for digest in fresh)
        found += yield from _reading(fresh, query, known)
        if end is None or len(found) >= query.size:
            return found
        if first == b"%d" % end:
            step *= 2  # more than `step` keys of one microsecond
        first = b"%d" % end


def dueing(due: Due, known: Knowledge) -> Generator[list[Request], list[Any], Records]:
    """What a worker should look at now: the unsettled keys of its shard are read, until enough of them are due."""
    buckets = [bucket for bucket in range(BUCKETS) if bucket % due.shard[1] == due.shard[0]]
    query = Query(operation=due.operation, oldest_first=True)
    starts = dict.fromkeys(buckets, 0)
    found: list[Record] = []
    while starts and len(found) < due.size:
        commands = {
            bucket: (b"ZRANGE", UNSETTLED[bucket], b"%d" % start, b"%d" % (start + STEP - 1))
            for bucket, start in starts.items()
        }
        replies = yield [Request(bucket, None, (), command) for bucket, command in commands.items()]
        members = dict(zip(commands, replies, strict=True))
        digests = {bytes.fromhex(one.decode()): 0.0 for some in members.values() for one in some}
        read = yield from _reading(digests, query, known)
        found += [one for one in read if isinstance(one, Record) and due.picks(one)]
        starts = {bucket: starts[bucket] + STEP for bucket, some in members.items() if len(some) == STEP}
    return due.page(found)


def doubtful() -> Generator[list[Request], list[Any], list[str]]:
    """The operations of unsettled keys, from the beginnings of their records."""
    operations: set[str] = set()
    starts = dict.fromkeys(range(BUCKETS), 0)
    while starts:
        replies = yield [
            Request(bucket, None, (), (b"ZRANGE", UNSETTLED[bucket], b"%d" % start, b"%d" % (start + SCAN_COUNT - 1)))
            for bucket, start in starts.items()
        ]
        members = dict(zip(starts, replies, strict=True))
        for bucket, some in members.items():
            for at in range(0, len(some), SCAN_COUNT):
                keys = [TAGS[bucket] + one for one in some[at : at + SCAN_COUNT]]
                peeks = yield [Request(bucket, None, (), (b"GETRANGE", key, b"0", b"%d" % PEEK)) for key in keys]
                for peek in filter(None, peeks):
                    try:
                        operations.add(peeked(peek)[2][0])
                    except RecordUnreadable:
                        continue
        starts = {bucket: starts[bucket] + SCAN_COUNT for bucket, some in members.items() if len(some) == SCAN_COUNT}
    return sorted(operations)


class _Walk:
    """A look at the keys of all servers, and what it found so far."""

    def __init__(self, query: Query, known: Knowledge) -> None:
        self.query, self.known = query, known
        self.reach = 2 * query.size
        self.more = False  # some that match were left out
        self.looked = 0
        self.best: dict[bytes, float] = {}  # when they were created
        # What the beginning of a value does not tell: then each one is read whole.
        self.deep = query.term is not None or query.error is not None or query.content is not None
        self.deep = self.deep or bool(query.attributes)
        self.found: Found = []

    @property
    def cut(self) -> bool:
        return self.looked >= (SEARCHED_MAX if self.deep else WALKED_MAX)

    def first(self) -> list[Place]:
        """The keys that come first in the order of the query."""
        places = [(created, digest) for digest, created in self.best.items()]
        return sorted(places, reverse=not self.query.oldest_first)[: self.reach]

    def trim(self) -> None:
        """Keep what may still be shown."""
        if len(self.best) > 2 * self.reach:
            self.more, self.best = True, {digest: created for created, digest in self.first()}
        if len(self.found) > 2 * self.reach:
            self.found = list(self.query.page(self.found))


def _by_walk(walk: _Walk, servers: Servers) -> Generator[list[Request], list[Any], Found]:
    query, wanted = walk.query, walk.query.size
    found: Found = []
    while True:
        places = yield from _walked(walk, servers)
        if walk.deep:
            return walk.found
        # Some records may be gone since the scan, or no longer match. The next ones take their places, because a page
        # that is not full counts as the last page.
        while places and len(found) < wanted:
            some, places = places[: wanted - len(found)], places[wanted - len(found) :]
            found += yield from _reading({digest: created for created, digest in some}, query, walk.known)
            walk.query = replace(query, before=some[-1])
        if len(found) >= wanted or not walk.more or walk.cut:
            return found
        walk.more, walk.best, walk.looked = False, {}, 0


def _walked(walk: _Walk, servers: Servers) -> Generator[list[Request], list[Any], list[Place]]:
    """The first keys that match, judged by the beginning of each value."""
    owners, guests = yield from _surveying(servers)
    visited = list(dict.fromkeys((*owners, *guests))) or [""]
    for server in visited:
        yield from _visiting(server, walk)
    if owners:
        now_owners, now_guests = yield from _surveying(servers)
        if now_owners != owners or guests or now_guests:
            # A key was missed if it moved from a server not yet scanned to one already scanned. Scan once more in
            # reverse order: one of the two scans sees the key, before it left or after it arrived.
            there = dict.fromkeys((*now_owners, *now_guests))
            for server in reversed([one for one in dict.fromkeys((*visited, *there)) if one in there]):
                yield from _visiting(server, walk)
    walk.more = walk.more or len(walk.best) > walk.reach
    return walk.first()


def _surveying(servers: Servers) -> Generator[list[Request], list[Any], tuple[tuple[str, ...], list[str]]]:
    """The server of each bucket, and the servers that a bucket is moving to; both empty without a cluster."""
    yield [Request(0, None, (), (b"PING",))]
    if not servers.owners:
        return (), []
    # A server whose bucket is moving redirects a read of a key that it does not have. Reading needs no extra right.
    probes = [Request(bucket, None, (), (b"GETRANGE", tag + b"nothing", b"0", b"0")) for bucket, tag in enumerate(TAGS)]
    yield probes
    return servers.owners, [probe.guest for probe in probes if probe.guest]


def _visiting(server: str, walk: _Walk) -> Generator[list[Request], list[Any], None]:
    """Add the keys of this server that match."""
    prefix = walk.query.digest.hex().encode()
    pattern = b"samekey:{%b}:" % (prefix[:2] or b"??") + prefix + b"?" * (32 - len(prefix))
    cursor = b"0"
    while not walk.cut:
        command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % SCAN_COUNT)
        ((cursor, keys),) = yield [Request(0, None, (), command, server=server)]
        walk.looked += len(keys)
        if keys:
            peeks = yield [
                Request(int(key[9:11], 16), None, (), (b"GETRANGE", key, b"0", b"%d" % PEEK)) for key in keys
            ]
            digests = [bytes.fromhex(key[13:].decode()) for key in keys]
            picked = {
                digest: created
                for digest, peek in zip(digests, peeks, strict=True)
                if peek and (created := _picked(walk.query, peek, digest)) is not None
            }
            if walk.deep:
                there = {place_of(one) for one in walk.found}  # a second scan may find them again
                found = yield from _reading(picked, walk.query, walk.known)
                walk.found += [one for one in found if place_of(one) not in there]
            else:
                walk.best.update(picked)
            walk.trim()
        if cursor == b"0":
            return


def _picked(query: Query, peek: bytes, digest: bytes) -> float | None:
    """created_at, if the record may match the query, judged by the beginning of its value."""
    try:
        state, created, (operation, tenant, text) = peeked(peek)
    except RecordUnreadable:  # it may match
        return _OLDEST[0] if query.before is None or query.comes_after((_OLDEST[0], digest), query.before) else None
    created_at = created / 1e6
    matches = (
        (not query.states or state in query.states)
        and query.operation in (None, operation)
        and (query.tenant is None or query.tenant == tenant)
        and query.text in (None, text)
        and (query.since is None or created_at >= query.since)
        and (query.until is None or created_at < query.until)
        and (query.changed_before is None or written_at(peek) / 1e6 < query.changed_before)
        and (query.before is None or query.comes_after((created_at, digest), query.before))
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
                if query.before is None or query.comes_after(place, query.before):
                    found.append(RecordUnreadable(f"{_named(value, key)}: {damaged}", cursor=place))
                continue
            if query.picks(record) and not expired(record, Moment(record.now, record.now, "", 0)):
                found.append(record)
    return found


def _named(value: bytes, key: bytes) -> str:
    """The key of a record, if that part can be read, and its name in Redis."""
    try:
        _, _, (operation, tenant, text) = peeked(value)
        return f"{make_key(operation, text, tenant)} ({key.decode()})"
    except SamekeyError:
        return key.decode()


# -- the sweep ---------------------------------------------------------------------------------------------


def pruning(limit: int) -> Generator[list[Request], list[Any], None]:
    """Redis deletes what is past retention. Of a hold that ended so, the entry among the unsettled keys is left."""
    left, starts = max(0, min(limit, LIST_MAX)), dict.fromkeys(range(BUCKETS), 0)
    while starts and left > 0:
        commands = {
            bucket: (b"ZRANGEBYSCORE", UNSETTLED[bucket], b"-inf", b"+inf", b"LIMIT", b"%d" % start, b"%d" % STEP)
            for bucket, start in starts.items()
        }
        replies = yield [Request(bucket, None, (), command) for bucket, command in commands.items()]
        members = {bucket: reply for bucket, reply in zip(commands, replies, strict=True) if reply}
        removed = yield [
            Request(bucket, PRUNE, (UNSETTLED[bucket], *[TAGS[bucket] + one for one in some]), ())
            for bucket, some in members.items()
        ]
        counts = dict(zip(members, map(int, removed), strict=True))
        left -= sum(counts.values())
        starts = {
            bucket: starts[bucket] + STEP - counts[bucket] for bucket, some in members.items() if len(some) == STEP
        }


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
