"""Doubts in bulk: a scope with a name, a preview that counts, a plan that keeps every mark, and a number to type."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from samekey.console import shown
from samekey.console.asking import cannot_be_asked
from samekey.console.desk import checked_why
from samekey.console.pages.doubts import PAGE, Filter, filter_of, page_of, shown_doubts, sums
from samekey.console.pages.operations import cursor_of
from samekey.console.pages.record import OUTCOMES, SETTLES, _objection
from samekey.console.web import Notice, Visit
from samekey.core.errors import CallerError, Misconfigured, SamekeyError
from samekey.core.record import Record
from samekey.core.states import State
from samekey.ops import CannotResolve, MovedOn, Resolution
from samekey.ops.story import conflicts, mark

TYPED_ABOVE = 50  # records: above, the number is typed
BULK_MAX = 10_000  # records of one plan: what a person can answer for at once
ASKED_MAX = 200  # records that one request asks the provider about
NAMED_MAX = 20  # records that a notice names
ASK = "ask"


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be written, and what is left alone."""

    outcome: str
    scope: str
    chosen: Filter
    records: Sequence[Record]
    left: Sequence[tuple[str, int]]  # why, and how many
    body: str  # digests and marks, as the form carries them
    signature: str
    sum: str

    @property
    def number(self) -> int:
        return len(self.records)

    @property
    def typed(self) -> bool:
        return self.number > TYPED_ABOVE

    @property
    def title(self) -> str:
        return "Ask now" if self.outcome == ASK else OUTCOMES[Resolution(self.outcome)][0]

    @property
    def button(self) -> str:
        if self.outcome == ASK:
            return f"Ask about {self.number}"
        verb = {"happened": "Settle", "refused": "Close", "not_done": "Release"}[self.outcome]
        return f"{verb} {self.number}"

    @property
    def runs_again(self) -> bool:
        return self.outcome == Resolution.NOT_DONE.value


async def preview(visit: Visit) -> Response:
    """Count what a bulk action would change; nothing is written."""
    chosen = filter_of(visit, visit.given)
    try:
        plan = await _planned(visit, chosen)
    except Misconfigured as error:
        visit.notices.append(Notice("Nothing was changed.", f"{error.message}.", "doubt", "alarm"))
        return await shown_doubts(visit, chosen, cursor_of(visit.given("after")))
    return await shown_doubts(visit, chosen, cursor_of(visit.given("after")), plan=plan)


async def _planned(visit: Visit, chosen: Filter) -> Plan:
    outcome, scope = visit.given("outcome"), visit.given("scope")
    if outcome != ASK and outcome not in {one.value for one in Resolution}:
        raise Misconfigured("choose an action")
    if outcome == ASK and visit.console.ask is None:
        raise Misconfigured("this console has no lookups: start it with --app module:guard")
    picked = await _scoped(visit, chosen, scope)
    if not picked:
        raise Misconfigured("no doubt was chosen")
    reasons: Counter[str] = Counter()
    records = []
    for one in picked:
        reason = left_alone(one, outcome)
        if reason is None:
            records.append(one)
        else:
            reasons[reason] += 1
    if outcome == ASK and len(records) > ASKED_MAX:
        raise Misconfigured(
            f"one request asks about {ASKED_MAX} doubts at most; narrow the filter, or start samekey worker"
        )
    body = json.dumps([[one.key.digest.hex(), mark(one)] for one in records], separators=(",", ":"))
    signature = visit.console.access.sign(f"{visit.person.session}|{outcome}|{body}")
    return Plan(outcome, scope, chosen, records, reasons.most_common(), body, signature, sums(records, visit))


async def _scoped(visit: Visit, chosen: Filter, scope: str) -> Sequence[Record]:
    if scope == "page":
        return (await page_of(visit, chosen, cursor_of(visit.given("after"))))[0]
    figures = await visit.console.watch.current(fresh=True)
    if scope == "all":
        if not chosen or (visit.console.tenant is not None and chosen == Filter(tenant=visit.console.tenant)):
            raise Misconfigured("“all of this filter” needs a filter: choose an operation, an error type or an age")
        return [one for one in figures.doubts if chosen.picks(one)][:BULK_MAX]
    picked = set(visit.form.get("pick", ())[:PAGE])
    return [one for one in figures.doubts if one.key.digest.hex() in picked]


def left_alone(one: Record, outcome: str) -> str | None:
    """Why a bulk action leaves this record alone; None if it is changed."""
    if one.state is not State.IN_DOUBT:
        return f"{'is' if one.settled else 'are'} no longer in doubt"
    if conflicts(one):
        return "on the provider's books more than once: open each"
    if outcome == ASK:
        return cannot_be_asked(one) or ("being asked right now" if one.being_asked else None)
    if one.being_asked:
        return "being asked right now"
    return _objection(one, Resolution(outcome))


async def carry_out(visit: Visit) -> Response:
    """Write the previewed plan; each record only if it is still as previewed."""
    chosen = filter_of(visit, visit.given)
    outcome, body = visit.given("outcome"), visit.given("plan")
    try:
        pairs = _checked(visit, outcome, body)
        why = checked_why(visit.given("why"))
        if len(pairs) > TYPED_ABOVE and visit.given("typed") != str(len(pairs)):
            raise Misconfigured(f"the number {len(pairs)} was not typed")
    except Misconfigured as error:
        await visit.console.note(visit.person, "bulk", "refused", f"{outcome}: {error.message}")
        visit.notices.append(Notice("Nothing was changed.", f"{error.message}.", "doubt", "alarm"))
        return await shown_doubts(visit, chosen)
    done, moved = await _write(visit, outcome, pairs, why)
    verb = "asked about" if outcome == ASK else SETTLES[Resolution(outcome)].lower()
    await visit.console.note(visit.person, "bulk", "done", f"{verb}: {done} of {len(pairs)}: {why}")
    visit.notices.append(_outcome(visit, outcome, done, len(pairs), moved))
    await visit.console.watch.current(fresh=True)
    return await shown_doubts(visit, chosen)


def _checked(visit: Visit, outcome: str, body: str) -> list[tuple[str, str]]:
    """The plan, as this console made it for this sign-in."""
    signature = visit.console.access.sign(f"{visit.person.session}|{outcome}|{body}")
    if not body or visit.given("signature") != signature:
        raise Misconfigured("the plan was not made by this console for your sign-in: preview it again")
    return [(digest, seen) for digest, seen in json.loads(body)]


async def _write(visit: Visit, outcome: str, pairs: Sequence[tuple[str, str]], why: str) -> tuple[int, list[Record]]:
    """How many were written, and the records that had moved on."""
    done, moved = 0, list[Record]()
    console, asks = visit.console, visit.console.ask
    for digest, seen in pairs:
        one = await console.searching.record(bytes.fromhex(digest))
        if one is None or not console.covers(one):
            continue
        try:
            if mark(one) != seen or left_alone(one, outcome) is not None:
                raise MovedOn(f"{one.key} moved on since the preview", record=one)
            if outcome == ASK:
                if asks is None:
                    raise Misconfigured("this console has no lookups")
                await asks(one)
            else:
                await console.ops.resolve(one, Resolution(outcome), who=visit.person.signature, why=why)
        except (MovedOn, CannotResolve, CallerError) as error:
            moved.append(one)
            await _noted(visit, outcome, one, why, error)
        else:
            done += 1
    return done, moved


async def _noted(visit: Visit, outcome: str, one: Record, why: str, error: SamekeyError) -> None:
    await visit.console.note(
        visit.person, ASK if outcome == ASK else "resolve", "refused", f"{outcome}: {why} | {error.message}", one
    )


def _outcome(visit: Visit, outcome: str, done: int, number: int, moved: Sequence[Record]) -> Notice:
    verb = {"ask": "asked about", "happened": "settled as happened", "refused": "closed", "not_done": "released"}[
        outcome
    ]
    says = f"{done} of {number} were {verb}."
    if not moved:
        return Notice(says, "", "completed", "completed")
    links = tuple(
        (visit.link(f"/record/{one.key.digest.hex()}"), shown.visible(one.key.text)) for one in moved[:NAMED_MAX]
    )
    had = (
        "1 had moved on since the preview and was"
        if len(moved) == 1
        else f"{len(moved)} had moved on since the preview and were"
    )
    return Notice(says, f"{had} left alone.", "doubt", "alarm", links)
