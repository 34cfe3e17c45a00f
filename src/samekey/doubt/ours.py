"""Our side of a reconciliation: the records of a store, with what their effects noted about themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from samekey.core.errors import RecordUnreadable
from samekey.core.notes import Note, notes_of
from samekey.core.ports import Query, Store
from samekey.core.record import Record
from samekey.core.sealing import Sealer
from samekey.doubt.duckdb import Ours
from samekey.ops.story import mark

PAGE = 1000


def ours_of(record: Record, keys: Sealer | None = None) -> Ours:
    """`held.note(provider_ref=..., amount_minor=..., currency=..., party=...)` is what is compared."""
    notes: dict[str, Note] = notes_of(record, keys)
    minor: Any = notes.get("amount_minor")
    return Ours(
        operation=record.key.operation,
        key=record.key.text,
        tenant=record.key.tenant,
        state=str(record.state),
        ref=_text(notes.get("provider_ref")),
        our_key=record.provider_key(),
        party=_text(notes.get("party")),
        minor=minor if isinstance(minor, int) and not isinstance(minor, bool) else None,
        currency=_text(notes.get("currency")),
        at=record.created_at,
        mark=mark(record),
    )


def records_of(
    store: Store, *, operation: str, since: float | None = None, until: float | None = None, keys: Sealer | None = None
) -> Iterator[Ours]:
    """Every record of one operation in this span; RecordUnreadable stops it, so that nothing is missed silently."""
    query = Query(operation=operation, since=since, until=until, oldest_first=True, limit=PAGE)
    while True:
        page = store.list(query)
        for one in page:
            if isinstance(one, RecordUnreadable):
                raise one
            yield ours_of(one, keys)
        if page.cut:
            raise RecordUnreadable("the store did not look at all records: give a shorter span")
        if len(page) < query.size:
            return
        last = page.records[-1]
        before = (last.created_at, last.key.digest)
        query = Query(operation=operation, since=since, until=until, oldest_first=True, limit=PAGE, before=before)


def _text(value: Note | None) -> str | None:
    return None if value is None else str(value)
