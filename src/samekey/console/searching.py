"""The search box: one text, read as a key, a digest, a provider's reference, a customer, a request, name=value.

Readings that an index answers are tried in turn until one finds something. No store has an index over the key alone:
a key is looked for in the operations and tenants that this console has seen, by the digest that each would give. What
no index answers is read from the newest record backwards for a bounded time, and the page says how far it came.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

from samekey.core.commands import Read
from samekey.core.errors import SamekeyError
from samekey.core.key import make_key
from samekey.core.notes import notes_of
from samekey.core.ports import AsyncStore, Query, place_of
from samekey.core.record import Record
from samekey.core.sealing import Sealer
from samekey.core.search import NOTED, PROVIDER_KEY, REQUEST_ID, term
from samekey.core.states import State
from samekey.ops.listing import gone, noted_text

PAGE = 25
SCAN_SECONDS = 0.15  # of reading without an index, in one request
SCAN_PAGE = 500
KEYS_MAX = 500  # operations times tenants that one key is looked for in
KNOWN_MAX = 1000  # names that are remembered
TEXT_MAX_CHARS = 1024
INDEXED_STATES = frozenset({State.STARTED, State.IN_DOUBT, State.CLOSED, State.RELEASED})

_HEX = re.compile(r"[0-9a-fA-F]{4,32}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PAIR = re.compile(r"([^=\s]{1,64})\s*=\s*(.+)", re.DOTALL)

# How a text may be read -> what the chip says.
READINGS = {
    "key": "key",
    "provider_ref": "provider reference",
    "party": "customer",
    "request_id": "request id",
    "provider_key": "key sent to the provider",
    "digest": "digest",
    "attribute": "attribute",
    "note": "note",
    "starts": "key starts with",
}
INDEXED = ("key", "provider_ref", "party", "request_id", "provider_key", "digest")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the form holds."""

    text: str = ""
    reading: str = ""  # "" for the first one that finds something
    operation: str = ""
    tenant: str | None = None
    state: State | None = None
    since: float | None = None
    before: tuple[float, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One page, and how it came about."""

    records: Sequence[Record] = ()
    reading: str = ""
    tried: Sequence[str] = ()  # readings that found nothing
    before: tuple[float, bytes] | None = None  # the cursor of the next page
    stopped_at: float | None = None  # reading ended early: records created before this were not looked at
    unreadable: int = 0
    partly: str = ""  # what was not looked at, as a sentence


@dataclass(slots=True)
class Known:
    """The names that this console has seen: an index over keys that no store has."""

    operations: dict[str, None] = field(default_factory=dict)
    tenants: dict[str | None, None] = field(default_factory=lambda: {None: None})

    def see(self, records: Sequence[Record]) -> None:
        for record in records:
            self.add(record.key.operation, record.key.tenant)

    def add(self, operation: str, tenant: str | None = None) -> None:
        for names, name in ((self.operations, operation), (self.tenants, tenant)):
            if len(names) < KNOWN_MAX:
                names.setdefault(name)  # type: ignore[arg-type] # each name goes with its own dict


class Searching:
    """Finds records in one store."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        known: Known,
        secret: bytes | None = None,
        sealer: Sealer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._known, self._secret, self._sealer, self._clock = store, known, secret, sealer, clock
        # A small store in this process or file has no index, and filters every record faster than Python can.
        self._small = store.name.startswith(("sqlite:", "memory:"))

    async def search(self, asked: Asked) -> Found:
        text = asked.text.strip()[:TEXT_MAX_CHARS]
        if not text:
            return await self._scan(asked, lambda record: True, "")
        tried: list[str] = []
        for reading in [asked.reading] if asked.reading in READINGS else readings_of(text):
            found = await self._read_as(reading, text, asked)
            if found.records or found.stopped_at is not None or found.before is not None:
                return replace(found, tried=tried)
            tried.append(reading)
            last = found
        return replace(last, reading=tried[0], tried=tried)

    async def record(self, digest: bytes) -> Record | None:
        """The record of this digest."""
        page = await self._store.list(Query(digest=digest, limit=2))
        for record in page.records:
            if record.key.digest == digest and not gone(record):
                self._known.see([record])
                return record
        return None

    async def _read_as(self, reading: str, text: str, asked: Asked) -> Found:
        if reading == "key":
            return await self._by_key(text, asked)
        if reading == "digest":
            if not _HEX.fullmatch(text):
                return Found(reading=reading)
            even = bytes.fromhex(text[: len(text) // 2 * 2])
            keeps = _starts(text.lower())
            return await self._listed(Query(digest=even), asked, reading, keeps)
        if reading in ("provider_ref", "party"):
            return await self._listed(
                Query(term=term(f"note.{reading}", text, self._secret), noted=True), asked, reading
            )
        if reading == REQUEST_ID and self._small:  # it is an attribute: no term need be computed
            return await self._listed(Query(attributes=((REQUEST_ID, text),)), asked, reading)
        if reading in (PROVIDER_KEY, REQUEST_ID):
            return await self._listed(Query(term=term(reading, text)), asked, reading)
        if reading == "starts":
            return await self._scan(asked, lambda record: record.key.text.startswith(text), reading)
        pair = _PAIR.fullmatch(text)
        if pair is None:
            return Found(reading=reading)
        name, value = pair[1], pair[2].strip()
        if reading == "note":
            if name in NOTED:
                return await self._listed(
                    Query(term=term(f"note.{name}", value, self._secret), noted=True), asked, reading
                )
            return await self._scan(asked, lambda record: self._noted(record, name) == value, reading)
        return await self._scan(asked, lambda record: (name, value) in record.attributes, reading)

    def _noted(self, record: Record, name: str) -> str | None:
        try:
            noted = notes_of(record, self._sealer)
        except SamekeyError:
            return None
        return noted_text(noted[name]) if name in noted else None

    async def _by_key(self, text: str, asked: Asked) -> Found:
        """The records of this key in every operation and tenant that is known; in one round trip."""
        operations = [asked.operation] if asked.operation else list(self._known.operations)
        tenants = list(self._known.tenants) if asked.tenant is None else [asked.tenant]
        pairs = list(islice(product(operations, tenants), KEYS_MAX))
        partly = ""
        if len(operations) * len(tenants) > KEYS_MAX or len(tenants) == KNOWN_MAX:
            partly = (
                f"The key was looked for in {len(pairs)} pairs of operation and tenant. Name them to look elsewhere."
            )
        try:
            keys = [make_key(operation, text, tenant) for operation, tenant in pairs]
        except SamekeyError:  # no record can have such a key
            return Found(reading="key")
        replies = await self._store.batch([Read(key) for key in keys]) if keys else []
        records = [one for one in replies if isinstance(one, Record) and not gone(one) and _picks(asked, one)]
        records.sort(key=place_of, reverse=True)
        return Found(records[:PAGE], "key", partly=partly)

    async def _listed(
        self, query: Query, asked: Asked, reading: str, keeps: Callable[[Record], bool] = lambda record: True
    ) -> Found:
        """A page of what an index finds; a filter of the form is applied to what it found."""
        query = replace(query, limit=PAGE + 1, before=asked.before, tenant=asked.tenant, since=asked.since)
        if asked.operation:
            query = replace(query, operation=asked.operation)
        if asked.state is not None:
            query = replace(query, states=(asked.state,))
        page = await self._store.list(query)
        self._known.see(page.records)
        more = place_of(page[PAGE - 1]) if len(page) > PAGE else None
        records = [one for one in page.records[:PAGE] if not gone(one) and keeps(one)]
        partly = "The store did not look at every record." if page.cut else ""
        return Found(records, reading, before=more, unreadable=len(page) - len(page.records), partly=partly)

    async def _scan(self, asked: Asked, keeps: Callable[[Record], bool], reading: str) -> Found:
        """From the newest record backwards, as long as SCAN_SECONDS allow; the next page goes on from there."""
        query = Query(limit=SCAN_PAGE, before=asked.before, since=asked.since)
        if asked.state in INDEXED_STATES or self._small:
            query = replace(query, states=() if asked.state is None else (asked.state,))
        if self._small:
            query = replace(query, tenant=asked.tenant, operation=asked.operation or None)
        if not (reading or asked.operation or asked.tenant or asked.state):
            query = replace(query, limit=PAGE + 1)
        records: list[Record] = []
        unreadable, ends = 0, self._clock() + SCAN_SECONDS
        while True:
            page = await self._store.list(query)
            self._known.see(page.records)
            for entry in page:
                if not isinstance(entry, Record):
                    unreadable += 1
                elif not gone(entry) and _picks(asked, entry) and keeps(entry):
                    if len(records) == PAGE:
                        return Found(records, reading, before=place_of(records[-1]), unreadable=unreadable)
                    records.append(entry)
            if len(page) < query.limit:
                return Found(records, reading, unreadable=unreadable)
            place = place_of(page[-1])
            if self._clock() > ends:
                return Found(records, reading, before=place, stopped_at=place[0], unreadable=unreadable)
            query = replace(query, before=place)


def readings_of(text: str) -> list[str]:
    """How a text may be read, the likeliest first; only what an index answers, unless it is name=value.

    >>> readings_of("order-17")
    ['key', 'provider_ref', 'party', 'request_id']
    >>> readings_of("region=eu")
    ['key', 'note', 'attribute']
    """
    if _PAIR.fullmatch(text):
        return ["key", "note", "attribute"]
    if _UUID.fullmatch(text):
        return ["key", "provider_key", "request_id", "provider_ref", "party"]
    readings = ["key", "provider_ref", "party", "request_id"]
    return [*readings, "digest"] if _HEX.fullmatch(text) else readings


def _starts(digits: str) -> Callable[[Record], bool]:
    return lambda record: record.key.digest.hex().startswith(digits)


def _picks(asked: Asked, record: Record) -> bool:
    return (
        (not asked.operation or record.key.operation == asked.operation)
        and (asked.tenant is None or record.key.tenant == asked.tenant)
        and (asked.state is None or record.state is asked.state)
        and (asked.since is None or record.created_at >= asked.since)
    )
