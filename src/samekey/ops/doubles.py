"""Doubles: one operation, one tenant, one content, and several keys. Mostly a client that makes a new key per retry.

A record keeps a digest of the payload without the parts that make its key, so contents can be compared across keys.
Only records of the given span of time are read. The steps are written once for both colours (see `core.drive.do`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from samekey.core.drive import Steps
from samekey.core.errors import RecordUnreadable
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Query
from samekey.core.record import Record
from samekey.core.states import State
from samekey.ops.listing import Page, read_page

DOUBLES_MAX = 200_000  # records that one search compares: about 100 MB of what must be remembered of them
KEYS_MAX = 20  # keys named of one content


class Seen(NamedTuple):
    """What is remembered of a record."""

    key: Key
    state: State
    created_at: float


@dataclass(slots=True)
class Double:
    """One content under several keys."""

    operation: str
    tenant: str | None
    content: bytes
    number: int
    first: list[Seen]  # the newest KEYS_MAX of them

    @property
    def ran(self) -> int:
        """How many of the named keys had an effect, or may have had one."""
        return sum(one.state not in (State.RELEASED, State.CLOSED) for one in self.first)


@dataclass(slots=True)
class Doubles:
    """What was found; `complete` is False if the limit was reached, or a store looked at a part only."""

    found: list[Double] = field(default_factory=list)
    read: int = 0
    without_content: int = 0  # records whose content is not known: they cannot be compared
    unreadable: list[RecordUnreadable] = field(default_factory=list)
    complete: bool = True


def doubled(store: Any, query: Query, limit: int) -> Steps:
    """Read the records of the query, newest first, and compare their contents."""
    doubles = Doubles()
    groups: dict[tuple[str, str | None, bytes], list[Any]] = {}
    query = replace(query, limit=LIST_MAX)
    while True:
        page: Page = yield from read_page(store, query)
        doubles.complete = doubles.complete and not page.cut
        doubles.unreadable += page.unreadable
        for record in page.records:
            _add(doubles, groups, record)
        if page.before is None:
            break
        if doubles.read >= limit:
            doubles.complete = False
            break
        query = replace(query, before=page.before)
    several = [(scope, group) for scope, group in groups.items() if group[0] > 1]
    doubles.found = [Double(*scope, group[0], group[1:]) for scope, group in several]
    doubles.found.sort(key=lambda one: (-one.ran, -one.number))
    return doubles


def _add(doubles: Doubles, groups: dict[tuple[str, str | None, bytes], list[Any]], record: Record) -> None:
    doubles.read += 1
    if record.content is None:
        doubles.without_content += 1
        return
    key = record.key
    group = groups.setdefault((key.operation, key.tenant, record.content), [0])
    group[0] += 1
    if len(group) <= KEYS_MAX:
        group.append(Seen(key, record.state, record.created_at))
