"""Counts and findings in Redis.

Sans-IO, as the other operator queries. Counts are one hash for each hour: a field for each series of a minute. A
reader of the last hour reads one or two small hashes, and Redis deletes a hash when its time is over. Findings are a
hash by id, and a sorted set with their order. All of it is in one bucket, so that a script may touch it in a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from itertools import groupby
from typing import Any

from samekey.core.books import (
    COUNTS_AHEAD_SECONDS,
    COUNTS_KEPT_SECONDS,
    COUNTS_MAX,
    Count,
    Finding,
    FindingQuery,
    acceptance_entry,
    check_acceptance,
    counts_of,
    finding_of,
    kept_minutes,
    merged,
    minutes_between,
)
from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.core.record import DAMAGED, Audit
from samekey.stores.redis._operators import Several, audit_body
from samekey.stores.redis._requests import AUDITS, TAGS, Request, Script

HOURS_TOGETHER = 24  # hashes of counts in one round trip
READ_TOGETHER = 100  # findings in one round trip
CAS_MAX = 20  # lost races for one finding; people accept findings, so one is rare

_BUCKET = 0
_COUNTS = TAGS[_BUCKET] + b"counts:%d"
_FINDINGS = TAGS[_BUCKET] + b"findings"
_ORDER = TAGS[_BUCKET] + b"findings:order"
_COUNT, _KEEP, _ACCEPT = Script("count"), Script("keep_finding"), Script("accept_finding")
_FIELDS = tuple(Finding.__dataclass_fields__)

One = Generator[Request, Any, Any]


# -- counts ------------------------------------------------------------------------------------------------


def adding(counts: Sequence[Count]) -> Several:
    requests = []
    for hour, some in groupby(merged(counts), key=lambda count: count.minute // 60):
        pairs = [part for count in some for part in (_dump(count.series), b"%d" % count.number)]
        arguments = (b"%d" % (hour * 3600), b"%d" % COUNTS_KEPT_SECONDS, b"%d" % COUNTS_AHEAD_SECONDS, *pairs)
        requests.append(Request(_BUCKET, _COUNT, (_COUNTS % hour,), arguments))
    if requests:
        yield requests


def counting(since: float, until: float) -> Several:
    try:
        return (yield from _counting(since, until))
    except DAMAGED as error:
        raise RecordUnreadable(f"the counts are damaged or were written by a newer version: {error!r}") from error


def _counting(since: float, until: float) -> Several:
    first, last = minutes_between(since, until)
    oldest, newest = kept_minutes((yield from _now()))
    first, last = max(first, oldest), min(last, newest)
    rows: list[Any] = []
    for start in range(first // 60, last // 60 + 1, HOURS_TOGETHER):
        hours = range(start, min(start + HOURS_TOGETHER, last // 60 + 1))
        replies = yield [Request(_BUCKET, None, (), (b"HGETALL", _COUNTS % hour)) for hour in hours]
        for reply in replies:
            found = [(*json.loads(name), int(number)) for name, number in zip(reply[::2], reply[1::2], strict=True)]
            rows += sorted(row for row in found if first <= row[0] <= last)
        if len(rows) > COUNTS_MAX:
            break
    return counts_of(rows[: COUNTS_MAX + 1])


# -- findings ----------------------------------------------------------------------------------------------


def keeping(finding: Finding) -> One:
    id, value = finding.id.encode(), _value(finding)
    request = Request(_BUCKET, _KEEP, (_FINDINGS, _ORDER), (id, repr(float(finding.at)).encode(), value))
    new, found = yield request
    return bool(new) or (request.lost and found == value)  # our own, of a try whose reply was lost


def finding_page(query: FindingQuery) -> Several:
    now = yield from _now()
    top = b"+inf" if query.before is None else repr(float(query.before[0])).encode()
    found: dict[str, Finding] = {}  # by id: a finding that comes in meanwhile shifts the others
    offset = 0
    while len(found) < query.page_size:
        limits = (b"LIMIT", b"%d" % offset, b"%d" % READ_TOGETHER)
        (ids,) = yield [Request(_BUCKET, None, (), (b"ZREVRANGEBYSCORE", _ORDER, top, b"-inf", *limits))]
        if ids:
            (values,) = yield [Request(_BUCKET, None, (), (b"HMGET", _FINDINGS, *ids))]
            findings = [_finding(value) for value in values if value is not None]
            found |= {one.id: one for one in findings if query.picks(one, now)}
        if len(ids) < READ_TOGETHER:
            break
        offset += len(ids)
    return list(found.values())[: query.page_size]


def noting(entry: Audit) -> Several:
    """The time is read first, in a request of its own: two entries of one moment may change places."""
    at = yield from _now()
    line = b"%016d%b" % (int(at * 1e6), audit_body(entry))
    yield [Request(_BUCKET, None, (), (b"RPUSH", AUDITS[_BUCKET], line))]


def accepting(id: str, by: str, why: str, until: float) -> Generator[Any, Any, Finding | None]:
    check_acceptance(by, why, until)
    (value,) = yield [Request(_BUCKET, None, (), (b"HGET", _FINDINGS, id.encode()))]
    for _ in range(CAS_MAX):
        if not value:
            return None
        before = _finding(value)
        after = before.accepted(by, why, until)
        wanted, entry = _value(after), audit_body(acceptance_entry(before, after, 0.0))
        request = Request(_BUCKET, _ACCEPT, (_FINDINGS, AUDITS[_BUCKET]), (id.encode(), value, wanted, entry))
        written, value = yield request
        if written or (request.lost and value == wanted):
            return after
    raise StoreUnavailable(f"the finding {id} changes faster than it can be accepted")


def _now() -> Several:
    ((seconds, micros),) = yield [Request(_BUCKET, None, (), (b"TIME",))]
    return int(seconds) + int(micros) / 1e6


def _value(finding: Finding) -> bytes:
    return _dump([getattr(finding, name) for name in _FIELDS])


def _finding(value: bytes) -> Finding:
    try:
        return finding_of(json.loads(value))
    except DAMAGED as error:
        raise RecordUnreadable(f"a finding is damaged or was written by a newer version: {error!r}") from error


def _dump(values: Sequence[Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


# -- the port ----------------------------------------------------------------------------------------------


class Books:
    """The books of `RedisStore`."""

    def _work(self, query: Any) -> Any:
        raise NotImplementedError

    def note_action(self, entry: Audit) -> None:
        self._work(noting(entry))

    def add_counts(self, counts: Sequence[Count]) -> None:
        self._work(adding(counts))

    def counts(self, since: float, until: float) -> Sequence[Count]:
        found: Sequence[Count] = self._work(counting(since, until))
        return found

    def keep_finding(self, finding: Finding) -> bool:
        return bool(self._work(keeping(finding)))

    def findings(self, query: FindingQuery) -> Sequence[Finding]:
        found: Sequence[Finding] = self._work(finding_page(query))
        return found

    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        found: Finding | None = self._work(accepting(id, by, why, until))
        return found


class AsyncBooks:
    """The books of `AsyncRedisStore`."""

    async def _work(self, query: Any) -> Any:
        raise NotImplementedError

    async def note_action(self, entry: Audit) -> None:
        await self._work(noting(entry))

    async def add_counts(self, counts: Sequence[Count]) -> None:
        await self._work(adding(counts))

    async def counts(self, since: float, until: float) -> Sequence[Count]:
        found: Sequence[Count] = await self._work(counting(since, until))
        return found

    async def keep_finding(self, finding: Finding) -> bool:
        return bool(await self._work(keeping(finding)))

    async def findings(self, query: FindingQuery) -> Sequence[Finding]:
        found: Sequence[Finding] = await self._work(finding_page(query))
        return found

    async def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        found: Finding | None = await self._work(accepting(id, by, why, until))
        return found
