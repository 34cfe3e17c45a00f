"""Lists of records, page by page: what a store finds by itself, and what must be filtered after it was read.

The steps are written once for both colours: each `yield` hands out a function to call (see `core.drive.do`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from samekey.core import notes
from samekey.core.drive import Steps
from samekey.core.errors import RecordUnreadable
from samekey.core.inquiry import Inquiry
from samekey.core.ports import LIST_MAX, Query, Records, place_of
from samekey.core.record import Record
from samekey.core.register import Moment, expired
from samekey.core.sealing import NOTES, Sealer, unseal
from samekey.core.search import all_terms
from samekey.core.shapes import Unreadable
from samekey.core.states import State

SCAN_MAX = 100_000  # records that one search reads where the store cannot filter: seconds, never minutes


class Page(NamedTuple):
    """Some entries in the order of the query; `before` is the cursor of the next page, None at the end."""

    entries: list[Record | RecordUnreadable]  # a row that is damaged, or of a newer version, is in its place
    before: tuple[float, bytes] | None
    cut: bool = False  # not everything was looked at: records that match may be missing
    sealed: int = 0  # records whose notes are encrypted, so that a filter by a note could not be applied to them

    @property
    def records(self) -> list[Record]:
        return [one for one in self.entries if isinstance(one, Record)]

    @property
    def unreadable(self) -> list[RecordUnreadable]:
        return [one for one in self.entries if isinstance(one, RecordUnreadable)]


@dataclass(frozen=True, slots=True)
class Search:
    """A query, and filters that no store has: search terms, notes, half a byte of a digest, what came of looks."""

    query: Query
    terms: tuple[bytes, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    digest: str = ""  # hexadecimal, also of odd length
    sealer: Sealer | None = None  # opens notes that are kept encrypted
    parked: bool = False  # only doubts that workers have parked
    verdict: str = ""  # only doubts whose last look had this verdict

    @property
    def filters(self) -> bool:
        return bool(self.terms or self.notes or self.digest or self.parked or self.verdict)

    @property
    def scans(self) -> bool:
        """Whether every record of the span must be read, because no index leads to those that match."""
        query = self.query
        unindexed = query.operation or query.tenant or query.attributes or query.error or self.notes
        # Nearly every record is completed: the index of the states leads to all of them.
        rare = bool(query.states) and State.COMPLETED not in query.states
        return bool(unindexed) and not (query.waiting or query.term or query.digest or query.text or rare)

    def keeps(self, record: Record) -> bool:
        """Whether a record that the query picked is asked for; RecordUnreadable where its notes are sealed."""
        if self.digest and not record.key.digest.hex().startswith(self.digest):
            return False
        if self.terms and not set(self.terms).issubset(all_terms(record)):
            return False
        inquiry = record.inquiry or Inquiry()
        if (self.parked and not inquiry.parked) or self.verdict not in ("", inquiry.verdict):
            return False
        if not self.notes:
            return True
        noted = {} if record.notes is None else notes.decode(self._opened(record, record.notes))
        return all(name in noted and noted_text(noted[name]) == value for name, value in self.notes)

    def _opened(self, record: Record, sealed: bytes) -> bytes:
        try:
            return unseal(self.sealer, sealed, NOTES, record.key)
        except Unreadable as unreadable:
            raise RecordUnreadable(f"the notes of {record.key} cannot be opened: {unreadable}") from unreadable


def noted_text(value: notes.Note) -> str:
    """A note as a person writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def listed(store: Any, query: Query) -> Steps:
    """One page; records past retention count as gone, as they do for callers. `before` only if there is more."""
    page: Page = yield from read_page(store, query)
    if page.before is None:
        return page
    more: Records = yield partial(store.list, replace(query, limit=1, before=page.before))
    return page if more else page._replace(before=None)


def read_page(store: Any, query: Query) -> Steps:
    """One page; `before` is None only if the page is not full, so the next one may be empty."""
    found: Records = yield partial(store.list, query)
    entries = [one for one in found if isinstance(one, RecordUnreadable) or not gone(one)]
    full = 0 < min(query.limit, LIST_MAX) <= len(found)
    return Page(entries, place_of(found[-1]) if full else None, found.cut)


def searched(store: Any, search: Search) -> Steps:
    """One page of a search: at most as many records as the query's limit, from at most SCAN_MAX that were read."""
    if not search.filters:
        return (yield from listed(store, search.query))
    wanted, query = search.query.size, replace(search.query, limit=LIST_MAX)
    entries: list[Record | RecordUnreadable] = []
    cut, sealed, read = False, 0, 0
    while True:
        page: Page = yield from read_page(store, query)
        cut = cut or page.cut
        for entry in page.entries:
            read += 1
            try:
                kept = isinstance(entry, RecordUnreadable) or search.keeps(entry)
            except RecordUnreadable:
                sealed += 1
                continue
            if kept and len(entries) == wanted:  # there is one more
                return Page(entries, place_of(entries[-1]), cut, sealed)
            if kept:
                entries.append(entry)
        if page.before is None:
            return Page(entries, None, cut, sealed)
        if read >= SCAN_MAX:
            return Page(entries, page.before, True, sealed)
        query = replace(query, before=page.before)


def all_of(store: Any, search: Search, most: int) -> Steps:
    """The records of as many pages as it takes, up to `most`, and whether there may be more; damaged ones apart."""
    found: list[Record] = []
    damaged: list[RecordUnreadable] = []
    search = replace(search, query=replace(search.query, limit=LIST_MAX))
    cut = False
    while True:
        page: Page = yield from searched(store, search)
        found += page.records
        damaged += page.unreadable
        cut = cut or page.cut or page.sealed > 0
        if page.before is None or len(found) > most:
            return found[:most], damaged, cut or len(found) > most
        search = replace(search, query=replace(search.query, before=page.before))


def gone(record: Record) -> bool:
    return expired(record, Moment(record.now, record.lease_until - record.lease_left, record.lease_clock, 0))
