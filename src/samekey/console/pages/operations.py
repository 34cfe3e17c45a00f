"""Operations: where is the record of what I was given?"""

from __future__ import annotations

import time
from dataclasses import replace

from starlette.responses import Response

from samekey.console import shown
from samekey.console.figures import Figures
from samekey.console.searching import READINGS, Asked, Found, readings_of
from samekey.console.web import Notice, Visit
from samekey.core.states import State

SINCE = {
    "": (None, "any time kept"),
    "1h": (3600.0, "last hour"),
    "24h": (86400.0, "last 24 hours"),
    "7d": (7 * 86400.0, "last 7 days"),
    "30d": (30 * 86400.0, "last 30 days"),
}


async def operations(visit: Visit) -> Response:
    asked = asked_of(visit)
    found = await visit.console.searching.search(asked)
    found = replace(found, records=[one for one in found.records if visit.console.covers(one)])
    text = visit.asked("q")
    figures = await visit.console.watch.current()
    if text and found.records:
        visit.notices += [_answer(visit, found, text, figures)]
    return await visit.page(
        "operations.html",
        title="Operations",
        asked=asked,
        found=found,
        since=visit.asked("since"),
        since_options=[(id, one[1]) for id, one in SINCE.items()],
        state_options=[("", "any"), *((one.value, one.value.replace("_", " ")) for one in State)],
        operation_options=[("", "any"), *((one, one) for one in await visit.console.operations())],
        tenant_options=[("", "all"), *((one, one) for one in sorted(filter(None, visit.console.known.tenants)))],
        readings=READINGS,
        others=[one for one in {**dict.fromkeys(readings_of(text)), **dict.fromkeys(READINGS)} if one != found.reading]
        if text
        else [],
        cursor=cursor_text(found.before),
        figures=figures,
    )


def asked_of(visit: Visit) -> Asked:
    state, since = visit.asked("state"), visit.asked("since")
    long = SINCE.get(since, (None, ""))[0]
    return Asked(
        text=visit.asked("q"),
        reading=visit.asked("as"),
        operation=visit.asked("operation"),
        tenant=visit.tenant,
        state=State(state) if state in {one.value for one in State} else None,
        since=None if long is None else time.time() - long,
        before=cursor_of(visit.asked("before")),
    )


def _answer(visit: Visit, found: Found, text: str, figures: Figures) -> Notice:
    """What the records of a customer or a reference say about it, in one sentence."""
    doubled = [one for one in found.records if figures.doubles(one)]
    doubts = [one for one in found.records if one.state is State.IN_DOUBT]
    number = len(found.records)
    named = f"{number} records" if number > 1 else "1 record"
    where = f"{named} found by {READINGS.get(found.reading, 'position')}."
    name = shown.visible(text)
    if doubled:
        link = ((visit.link(f"/record/{doubled[0].key.digest.hex()}"), "Read its story"),)
        return Notice(
            f"{name}: the effect is there more than once.",
            f"{where} Open {shown.visible(doubled[0].key.text)}.",
            "doubled",
            "double",
            link,
        )
    if doubts:
        link = ((visit.link(f"/record/{doubts[0].key.digest.hex()}"), "Read its story"),)
        unknown = "of one it is" if len(doubts) == 1 else f"of {len(doubts)} it is"
        return Notice(f"{name}: {unknown} unknown whether it happened.", where, "doubt", "doubt", link)
    return Notice(f"{name}: no record shows a double effect.", where, "completed", "completed")


def cursor_of(text: str) -> tuple[float, bytes] | None:
    at, _, digest = text.partition("_")
    try:
        place = float(at), bytes.fromhex(digest)
    except ValueError:
        return None
    return place if len(place[1]) == 16 and abs(place[0]) < 1e12 else None


def cursor_text(place: tuple[float, bytes] | None) -> str:
    return "" if place is None else f"{place[0]!r}_{place[1].hex()}"
