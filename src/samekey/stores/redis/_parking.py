"""Parked messages in Redis: a hash by id and two sorted sets, in the bucket of the books."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.core.parking import (
    REDELIVERED_FORGOTTEN_MAX,
    REDELIVERED_KEPT_SECONDS,
    Parked,
    ParkedQuery,
    check_redelivery,
    parked_of,
    redelivery_entry,
)
from samekey.core.record import DAMAGED
from samekey.stores.redis._operators import Several, audit_body
from samekey.stores.redis._requests import AUDITS, TAGS, Request, Script

READ_TOGETHER = 20  # messages in one round trip: 5 MB at most
CAS_MAX = 20  # lost races for one message; people redeliver messages, so one is rare

_BUCKET = 0
_PARKED = TAGS[_BUCKET] + b"parked"
_ORDER = TAGS[_BUCKET] + b"parked:order"
_SENT = TAGS[_BUCKET] + b"parked:redelivered"
_PARK, _REDELIVERED = Script("park"), Script("redelivered")
_FIELDS = tuple(Parked.__dataclass_fields__)


def parking(parked: Parked) -> Generator[Request, Any, Any]:
    at = repr(float(parked.at)).encode()
    yield Request(_BUCKET, _PARK, (_PARKED, _ORDER, _SENT), (parked.id.encode(), at, _value(parked)))


def parked_page(query: ParkedQuery) -> Several:
    top = b"+inf" if query.before is None else repr(float(query.before[0])).encode()
    found: dict[str, Parked] = {}  # by id: a message that is parked meanwhile shifts the others
    offset = 0
    while len(found) < query.page_size:
        limits = (b"LIMIT", b"%d" % offset, b"%d" % READ_TOGETHER)
        (ids,) = yield [Request(_BUCKET, None, (), (b"ZREVRANGEBYSCORE", _ORDER, top, b"-inf", *limits))]
        if ids:
            (values,) = yield [Request(_BUCKET, None, (), (b"HMGET", _PARKED, *ids))]
            messages = [_parked(value) for value in values if value is not None]
            found |= {one.id: one for one in messages if query.picks(one)}
        if len(ids) < READ_TOGETHER:
            break
        offset += len(ids)
    return list(found.values())[: query.page_size]


def redelivering(id: str, by: str) -> Generator[Any, Any, Parked | None]:
    check_redelivery(by)
    (value,) = yield [Request(_BUCKET, None, (), (b"HGET", _PARKED, id.encode()))]
    ((seconds, micros),) = yield [Request(_BUCKET, None, (), (b"TIME",))]
    now = int(seconds) + int(micros) / 1e6
    for _ in range(CAS_MAX):
        if not value:
            return None
        before = _parked(value)
        after = replace(before, redelivered_at=now, redelivered_by=by)
        wanted, entry = _value(after), audit_body(redelivery_entry(before, by, 0.0))
        old = repr(now - REDELIVERED_KEPT_SECONDS).encode()
        request = Request(
            _BUCKET,
            _REDELIVERED,
            (_PARKED, _ORDER, _SENT, AUDITS[_BUCKET]),
            (id.encode(), value, wanted, repr(now).encode(), entry, old, b"%d" % REDELIVERED_FORGOTTEN_MAX),
        )
        written, value = yield request
        if written or (request.lost and value == wanted):
            return after
    raise StoreUnavailable(f"the parked message {id} changes faster than it can be marked")


def _value(parked: Parked) -> bytes:
    values = [getattr(parked, name) for name in _FIELDS]
    values[_FIELDS.index("body")] = b64encode(parked.body).decode()
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def _parked(value: bytes) -> Parked:
    try:
        values = json.loads(value)
        values[_FIELDS.index("body")] = b64decode(values[_FIELDS.index("body")])
        return parked_of(values)
    except DAMAGED as error:
        raise RecordUnreadable(f"a parked message is damaged or was written by a newer version: {error!r}") from error


class Parking:
    """The parked messages of `RedisStore`."""

    def _work(self, query: Any) -> Any:
        raise NotImplementedError

    def park(self, parked: Parked) -> None:
        self._work(parking(parked))

    def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        found: Sequence[Parked] = self._work(parked_page(query))
        return found

    def redelivered(self, id: str, *, by: str) -> Parked | None:
        found: Parked | None = self._work(redelivering(id, by))
        return found


class AsyncParking:
    """The parked messages of `AsyncRedisStore`."""

    async def _work(self, query: Any) -> Any:
        raise NotImplementedError

    async def park(self, parked: Parked) -> None:
        await self._work(parking(parked))

    async def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        found: Sequence[Parked] = await self._work(parked_page(query))
        return found

    async def redelivered(self, id: str, *, by: str) -> Parked | None:
        found: Parked | None = await self._work(redelivering(id, by))
        return found
