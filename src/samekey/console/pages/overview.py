"""Overview: was anyone charged twice?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from samekey.console import shown
from samekey.console.alarms import alarms
from samekey.console.figures import Figures
from samekey.console.sources import ReconciledDay
from samekey.console.web import Visit
from samekey.core.errors import SamekeyError
from samekey.core.ports import Health
from samekey.ops.story import Whose, span, whose_turn

SPANS = {
    "1h": (3600, "1 hour"),
    "24h": (24 * 3600, "24 hours"),
    "7d": (7 * 24 * 3600, "7 days"),
    "14d": (14 * 24 * 3600, "14 days"),
}
ACTIONS_SHOWN = 6
DAYS_SHOWN = 7
OUTCOMES = {  # outcome -> title, icon, colour
    "new": ("New", "started", "started"),
    "replayed": ("Replayed", "replayed", "replayed"),
    "waited": ("Waited", "waited", "started"),
    "reused": ("Reused", "reused", "closed"),
    "refused": ("Refused", "closed", "closed"),
    "in_doubt": ("In doubt", "doubt", "doubt"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first sentence of a page."""

    kind: str
    icon: str
    says: str
    because: str


async def overview(visit: Visit) -> Response:
    console = visit.console
    chosen = visit.asked("span") if visit.asked("span") in SPANS else "24h"
    figures = await console.watch.current()
    # Counts carry no tenant: a console of one tenant shows none, because they would be of all.
    rates = await console.counting.rates(SPANS[chosen][0]) if console.tenant is None else None
    health = await _health(visit)
    actions = [one for one in await console.ops.audit(50) if console.tenant in (None, one.tenant)]
    days, days_error = await _days(visit)
    return await visit.page(
        "overview.html",
        title="Overview",
        figures=figures,
        rates=rates,
        chosen=chosen,
        spans=SPANS,
        outcomes=OUTCOMES,
        verdict=verdict(figures),
        alarms=alarms(figures, rates, health),
        actions=[one for one in actions if one.action != "sign_in"][:ACTIONS_SHOWN],
        turn_of_person=sum(whose_turn(one).whose is Whose.PERSON for one in figures.doubts[:1000]),
        days=days,
        clean_day=next((day for day in days if day.clean), None),
        days_error=days_error,
        charts={} if rates is None else {one.outcome: chart(rates.times, one.values) for one in rates.series},
    )


def verdict(figures: Figures) -> Verdict:
    doubled = {one.digest or one.id for one in figures.doubled}
    doubts = f"more than {len(figures.doubts):,}" if figures.more else f"{len(figures.doubts):,}"
    because = "A doubt is never run again by itself."
    if doubled:
        found = "one effect is there twice" if len(doubled) == 1 else f"{len(doubled)} effects are there twice"
        rest = f" {doubts} in doubt." if figures.doubts else ""
        return Verdict(
            "doubled", "double", f"Yes: {found}.{rest}", "A refund is proposed, and never made, by samekey. " + because
        )
    if figures.doubts:
        oldest = span(figures.store_at - min(one.doubt_since for one in figures.doubts))
        effects = "1 effect is in doubt" if len(figures.doubts) == 1 else f"{doubts} effects are in doubt"
        return Verdict(
            "doubt", "doubt", f"Nothing is known to be doubled. {effects}.", f"The oldest for {oldest}. {because}"
        )
    return Verdict(
        "completed",
        "completed",
        "No. Nothing is doubled, and nothing is in doubt.",
        "As far as guarded calls, lookups and findings show.",
    )


async def _health(visit: Visit) -> Health | None:
    try:
        return await visit.console.store.health()
    except SamekeyError:
        return None


async def _days(visit: Visit) -> tuple[Sequence[ReconciledDay], str]:
    source = visit.console.sources.reconcile
    if source is None:
        return (), ""
    try:
        return await source.last_days(limit=DAYS_SHOWN), ""
    except SamekeyError as error:
        return (), error.message


def chart(times: Sequence[float], values: Sequence[float]) -> dict[str, object]:
    """The data of one chart, for the script."""
    rounded = [round(value, 2) for value in values]
    label = (
        "no calls"
        if not any(values)
        else f"between {shown.number(min(values))} and {shown.number(max(values))} a minute"
    )
    return {"times": [int(at) for at in times], "values": rounded, "label": label}
