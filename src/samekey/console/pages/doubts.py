"""Doubts: what must a person decide? Oldest first. And Old claims: who holds what past its lease?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import Response

from samekey.console import shown
from samekey.console.figures import WAITING_MAX, Figures
from samekey.console.pages.operations import cursor_of, cursor_text
from samekey.console.web import Visit
from samekey.core.ports import Query, place_of
from samekey.core.record import Record
from samekey.core.states import State
from samekey.ops.listing import gone
from samekey.ops.story import Whose, conflicts, since, whose_turn

PAGE = 25
AGES = {"": (0.0, "any age"), "5m": (300.0, "5 min"), "1h": (3600.0, "1 hour"), "1d": (86400.0, "1 day")}
SCOPES = {"chosen": "those you chose", "page": "this page only", "all": "all of this filter"}
TURNS = {"": "anyone's", "person": "a person's", "caller": "the next caller's"}


@dataclass(frozen=True, slots=True)
class Filter:
    """What the form of the doubts picks. The names are those of the address and of the plan of a bulk action."""

    operation: str = ""
    tenant: str = ""
    error: str = ""
    turn: str = ""
    age: str = ""

    def __bool__(self) -> bool:
        return any((self.operation, self.tenant, self.error, self.turn, self.age))

    def picks(self, record: Record) -> bool:
        return (
            self.operation in ("", record.key.operation)
            and self.tenant in ("", record.key.tenant)
            and self.error in ("", record.error or "")
            and record.now - record.doubt_since >= AGES.get(self.age, (0.0, ""))[0]
            and (not self.turn or (whose_turn(record).whose is Whose.PERSON) == (self.turn == "person"))
        )

    def says(self) -> str:
        """The filter as a sentence."""
        parts = [
            f"{name} is {value}"
            for name, value in (("operation", self.operation), ("tenant", self.tenant), ("error type", self.error))
            if value
        ]
        if self.turn in TURNS and self.turn:
            parts.append(f"it is {TURNS[self.turn]} turn")
        if self.age in AGES and self.age:
            parts.append(f"older than {AGES[self.age][1]}")
        return "; ".join(parts) or "none: every doubt"

    def params(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


def filter_of(visit: Visit, given: Any) -> Filter:
    """From the address or from a form: `given` gives the text of a name."""
    chosen = Filter(*(given(name)[:256] for name in Filter.__slots__))
    if chosen.turn not in TURNS or chosen.age not in AGES:
        chosen = replace(chosen, turn="", age="")
    tenant = visit.console.tenant
    return chosen if tenant is None else replace(chosen, tenant=tenant)


async def doubts(visit: Visit) -> Response:
    return await shown_doubts(visit, filter_of(visit, visit.asked), cursor_of(visit.asked("after")))


async def shown_doubts(visit: Visit, chosen: Filter, after: tuple[float, bytes] | None = None, **more: Any) -> Response:
    figures = await visit.console.watch.current()
    records, cursor = await page_of(visit, chosen, after)
    matching = [one for one in figures.doubts if chosen.picks(one)]
    last = next(
        (one for one in await visit.console.ops.audit(200) if one.action == "resolve" and one.after != "refused"), None
    )
    return await visit.page(
        "doubts.html",
        title="Doubts",
        figures=figures,
        records=records,
        chosen=chosen,
        total=total(len(matching), figures),
        number=len(matching),
        cursor=cursor_text(cursor),
        after=cursor_text(after),
        operations=sorted({one.key.operation for one in figures.doubts}),
        tenants=sorted({one.key.tenant for one in figures.doubts if one.key.tenant}),
        errors=sorted({one.error for one in figures.doubts if one.error}),
        turns=TURNS,
        age_options=[(id, one[1]) for id, one in AGES.items()],
        scopes=SCOPES,
        why=why_in_doubt,
        whose_turn=whose_turn,
        refusal=visit.console.refusal(visit.person),
        last=last,
        scope=visit.asked("scope"),
        **{"plan": None, **more},
    )


async def page_of(
    visit: Visit, chosen: Filter, after: tuple[float, bytes] | None
) -> tuple[Sequence[Record], tuple[float, bytes] | None]:
    """One page from the index on doubts; what no index has is filtered here, over as many as there may be."""
    query = Query(
        states=(State.IN_DOUBT,),
        operation=chosen.operation or None,
        tenant=chosen.tenant or None,
        error=chosen.error or None,
        oldest_first=True,
        limit=PAGE + 1 if not (chosen.turn or chosen.age) else 1000,
        before=after,
    )
    records: list[Record] = []
    for _ in range(WAITING_MAX // 1000):
        page = await visit.console.store.list(query)
        for one in page.records:
            if not gone(one) and chosen.picks(one):
                if len(records) == PAGE:
                    return records, place_of(records[-1])
                records.append(one)
        if len(page) < query.limit:
            break
        query = replace(query, before=place_of(page[-1]))
    return records, None


def total(number: int, figures: Figures) -> str:
    return f"more than {number:,}" if figures.more else f"{number:,}"


def why_in_doubt(record: Record) -> str:
    """Why this record is in doubt, in short."""
    if conflicts(record):
        return "the provider has it more than once"
    if record.happened is not None:
        return "an attempt reported, too late, that it happened"
    error = record.error or "unknown"
    if error == "LeaseEnded":
        error = "its holder was gone when its lease ended"
    if record.being_asked:
        return f"{error}; being asked now"
    return f"{error}, after it had begun to send" if record.begun_at is not None else error


def sums(records: Sequence[Record], visit: Visit) -> str:
    """The money of these records by their notes, one sum for each currency; "" where nothing was noted."""
    found: Counter[str] = Counter()
    for record in records:
        noted = shown.money(shown.noted(record, visit.console.sealer))
        if noted is not None:
            found[noted[1]] += noted[0]
    return ", ".join(shown.amount(minor, currency) for currency, minor in sorted(found.items()))


async def claims(visit: Visit) -> Response:
    figures = await visit.console.watch.current()
    held = sorted(figures.claims, key=since)
    places = Counter(dict(one.attributes).get("host", "") for one in held)
    together = next(((place, number) for place, number in places.most_common(1) if place and number > 1), None)
    return await visit.page(
        "claims.html",
        title="Old claims",
        figures=figures,
        records=held[:200],
        total=total(len(held), figures),
        whose_turn=whose_turn,
        together=together,
    )
