"""What deserves a look now, from the figures and rates that the console has. Pure: values in, sentences out.

These are for the page. The rules for a pager are in samekey/hooks/alarms: they run while no person looks at a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from samekey.console.figures import Figures
from samekey.console.rates import Rates
from samekey.console.shown import percent
from samekey.core.ports import Health
from samekey.ops.story import span

DOUBTS_GROW_SECONDS = 15 * 60.0
DOUBTS_GROW = 5  # doubts of that time; one or two a day are usual
OLD_DOUBT_SECONDS = 24 * 3600.0
BANDS_MAX = 5  # sources that are named


class Alarm(NamedTuple):
    """One sentence, and the page that shows more."""

    kind: str  # doubled, doubt
    path: str
    lead: str
    says: str
    at: float | None = None


def alarms(figures: Figures, rates: Rates | None, health: Health | None) -> list[Alarm]:
    return [*_found(figures), *_doubts(figures), *_counted(rates), *_store(health)]


def _found(figures: Figures) -> Iterator[Alarm]:
    for finding in figures.doubled[:5]:
        yield Alarm(
            "doubled", "/duplicates", "Doubled", f"{finding.operation or finding.source}: {finding.title}", finding.at
        )
    for finding in figures.findings[:20]:
        if finding not in figures.doubled and finding.severity in ("high", "critical"):
            yield Alarm(
                "doubt", "/duplicates", "Finding", f"{finding.operation or finding.source}: {finding.title}", finding.at
            )


def _doubts(figures: Figures) -> Iterator[Alarm]:
    now = figures.store_at
    young = [one for one in figures.doubts if now - one.doubt_since <= DOUBTS_GROW_SECONDS]
    if len(young) >= DOUBTS_GROW:
        yield Alarm(
            "doubt",
            "/doubts",
            "Doubts grow",
            f"{len(young)} in the last {span(DOUBTS_GROW_SECONDS)}",
            young[-1].doubt_since,
        )
    old = [one for one in figures.doubts if now - one.doubt_since > OLD_DOUBT_SECONDS]
    if old:
        yield Alarm("doubt", "/doubts", "Old doubts", f"{len(old)} wait for longer than a day", old[0].doubt_since)
    if figures.claims:
        number = len(figures.claims)
        held = "1 key is held past its lease" if number == 1 else f"{number} keys are held past their lease"
        yield Alarm("doubt", "/claims", "Old claims", held)


def _counted(rates: Rates | None) -> Iterator[Alarm]:
    if rates is None:
        return
    for band in [one for one in rates.bands if one.above][:BANDS_MAX]:
        source = band.source or "calls without a source"
        yield Alarm(
            "doubt", "/duplicates", "Replays", f"of {source} at {percent(band.rate)}, above {percent(band.high)}"
        )
    if rates.totals["unguarded"]:
        yield Alarm(
            "doubt", "/stores", "Unguarded", f"{rates.totals['unguarded']} effects ran while the store was down"
        )
    if rates.totals["store_down"]:
        yield Alarm("doubt", "/stores", "Store down", f"{rates.totals['store_down']} calls were refused meanwhile")


def _store(health: Health | None) -> Iterator[Alarm]:
    for warning in health.warnings[:5] if health is not None else ():
        yield Alarm("doubt", "/stores", "Store", warning)
