"""Duplicates: where do they come from, and how do they stop? Findings with evidence, and repeats by source."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from samekey.console import shown
from samekey.console.comparing import SPLITS, Compared
from samekey.console.desk import checked_why
from samekey.console.figures import DOUBLED_KINDS
from samekey.console.pages.overview import Verdict
from samekey.console.web import Notice, Visit
from samekey.core.books import Finding
from samekey.core.errors import CallerError, Misconfigured

PAGE = 20
ACCEPT_DAYS = {"7": 7, "30": 30, "90": 90}
SOURCES = {"open": "open", "accepted": "accepted", "all": "all"}


async def duplicates(visit: Visit) -> Response:
    return await _shown(visit)


async def _shown(visit: Visit, opened: str = "") -> Response:
    console = visit.console
    split = visit.asked("by") if visit.asked("by") in SPLITS else "client_version"
    which = visit.asked("which") if visit.asked("which") in SOURCES else "open"
    compared = await console.comparing.compared(split)
    before = _place(visit.asked("before"))
    found = await console.ops.findings.list(
        accepted={"all": None, "open": False, "accepted": True}[which], limit=PAGE + 1, before=before
    )
    page = [one for one in found[:PAGE] if console.tenant in (None, one.tenant)]
    wanted = opened or visit.asked("finding")
    one = next((one for one in page if one.id == wanted), None)
    if one is None and wanted:
        everything = await console.ops.findings.list(limit=1000)
        one = next((one for one in everything if one.id == wanted and console.tenant in (None, one.tenant)), None)
    figures = await console.watch.current()
    return await visit.page(
        "duplicates.html",
        title="Duplicates",
        figures=figures,
        findings=sorted(page, key=lambda one: (one.kind not in DOUBLED_KINDS, -one.at)),
        next=_text(page[-1].place) if len(found) > PAGE and page else "",
        which=which,
        whiches=SOURCES,
        split=split,
        splits=SPLITS,
        compared=compared,
        top=max((share.repeats for share in compared.shares), default=1),
        top_day=max((number for _, number in compared.days), default=0),
        verdict=verdict(compared, split, figures.doubled),
        doubled_kinds=DOUBLED_KINDS,
        opened=one,
        fix=fix_of(one),
        days=ACCEPT_DAYS,
        refusal=console.refusal(visit.person),
        chart={"times": [day * 86400 for day, _ in compared.days], "values": [number for _, number in compared.days]},
    )


def verdict(compared: Compared, split: str, doubled: list[Finding]) -> Verdict:
    confirmed = f"{len(doubled)} confirmed by findings. " if doubled else ""
    far = (
        ""
        if compared.since is None
        else f"{compared.records:,} records since {shown.iso(compared.since)} were compared. "
    )
    if compared.repeats:
        most = compared.shares[0]
        name = shown.visible(most.value) or f"calls without {SPLITS[split][0].lower()}"
        repeats = "repeat is" if compared.repeats == 1 else "repeats are"
        says = f"{most.repeats} of {compared.repeats} {repeats} from {name}."
        return Verdict(
            "doubled" if doubled else "doubt",
            "double",
            says,
            f"{confirmed}{far}A repeat is one content under a second key.",
        )
    if doubled:
        return Verdict("doubled", "double", f"{confirmed.strip()[:-1]}.", f"{far}No content came under two keys.")
    return Verdict(
        "completed",
        "completed",
        "No duplicates are known.",
        f"{far}No content came under two keys, and no finding is open.",
    )


def fix_of(finding: Finding | None) -> str:
    """The SQL or the commands that a finding proposes, where its evidence has some; text to copy, never run here."""
    if finding is None:
        return ""
    try:
        evidence = json.loads(finding.evidence)
    except (ValueError, RecursionError):
        return ""
    fix = evidence.get("fix", "") if isinstance(evidence, dict) else ""
    return fix if isinstance(fix, str) else ""


async def accept(visit: Visit) -> Response:
    """Accept a finding, with a reason and an end."""
    id, days = visit.given("finding"), ACCEPT_DAYS.get(visit.given("days"), 0)
    console = visit.console
    try:
        why = checked_why(visit.given("why"))
        if not days:
            raise Misconfigured("choose how long the finding is accepted")
        known = await console.ops.findings.list(limit=1000)
        if not any(one.id == id and console.tenant in (None, one.tenant) for one in known):
            raise Misconfigured("there is no such finding")
        until = datetime.now(UTC) + timedelta(days=days)
        await console.ops.findings.accept(id, who=visit.person.signature, why=why, until=until)
    except CallerError as error:
        entry = f"{visit.given('why')} | {error.message}"
        await console.note(visit.person, "accept", "refused", entry)
        visit.notices.append(
            Notice("The finding was not accepted.", f"{shown.visible(error.message)}.", "doubt", "alarm")
        )
        return await _shown(visit, id)
    visit.notices.append(
        Notice(f"The finding is accepted for {days} days.", "Then it is open again.", "completed", "completed")
    )
    await console.watch.current(fresh=True)
    return await _shown(visit, id)


def _place(text: str) -> tuple[float, str] | None:
    at, _, id = text.partition("_")
    try:
        return float(at), id
    except ValueError:
        return None


def _text(place: tuple[float, str]) -> str:
    return f"{place[0]!r}_{place[1]}"
