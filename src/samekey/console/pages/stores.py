"""Stores: what is promised here?"""

from __future__ import annotations

import time

from starlette.responses import Response

from samekey.console.desk import checked_why
from samekey.console.pages.overview import Verdict
from samekey.console.web import Notice, Visit
from samekey.core.errors import CallerError
from samekey.ops.sweeping import PIECE

SWEEP_PIECES = 20  # of one request: 10,000 records, about a second


async def stores(visit: Visit) -> Response:
    return await _shown(visit)


async def _shown(visit: Visit) -> Response:
    console = visit.console
    began = time.perf_counter()
    health = await console.store.health()
    took = time.perf_counter() - began
    figures = await console.watch.current()
    rates = await console.counting.rates(24 * 3600) if console.tenant is None else None
    return await visit.page(
        "stores.html",
        title="Stores",
        figures=figures,
        health=health,
        took=took * 1000,
        rates=rates,
        verdict=Verdict(
            "doubt" if health.warnings else "completed",
            "alarm" if health.warnings else "completed",
            health.guarantee[:1].upper() + health.guarantee[1:],
            "The store's own check found what weakens it, see below."
            if health.warnings
            else "The store's own check found nothing that weakens it.",
        ),
        operations=sorted(rates.operations.items(), key=lambda one: -one[1]) if rates is not None else [],
        refusal=console.refusal(visit.person),
    )


async def sweep(visit: Visit) -> Response:
    """Delete records past their retention: some pieces; the rest is for `samekey sweep`."""
    console = visit.console
    try:
        why = checked_why(visit.given("why"))
    except CallerError as error:
        await console.note(visit.person, "sweep", "refused", error.message)
        visit.notices.append(Notice("Nothing was swept.", f"{error.message}.", "doubt", "alarm"))
        return await _shown(visit)
    total, left = 0, True
    for _ in range(SWEEP_PIECES):
        gone = await console.store.sweep(PIECE)
        total += gone
        left = gone >= PIECE
        if not left:
            break
    await console.note(visit.person, "sweep", "done", f"{total} records past their retention: {why}")
    more = (
        "There may be more: run samekey sweep, which goes on at a measured pace." if left else "Nothing is left over."
    )
    visit.notices.append(
        Notice(f"{total:,} records past their retention were deleted.", more, "completed", "completed")
    )
    return await _shown(visit)
