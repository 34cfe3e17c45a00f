"""Record: what happened to this key? And the actions on one record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starlette.responses import Response

from samekey.console import shown
from samekey.console.asking import cannot_be_asked, check_asked
from samekey.console.desk import checked_why
from samekey.console.pages.overview import Verdict
from samekey.console.web import Notice, Visit
from samekey.core.errors import CallerError, Misconfigured, SamekeyError
from samekey.core.record import Record
from samekey.core.states import EXPIRES, SETTLED, State
from samekey.ops import CannotResolve, MovedOn, Resolution
from samekey.ops.story import (
    Explanation,
    conflicts,
    explain,
    mark,
    objection,
    overdue,
    resolve_line,
    since,
    span,
    speaker,
    timeline,
    when,
)

DIGEST_BYTES = 16

OUTCOMES = {  # what the button says, and what it does
    Resolution.HAPPENED: ("Happened", "settles it as completed; calls with this key are answered from memory"),
    Resolution.REFUSED: ("Refused", "closes it for good; callers get the refusal"),
    Resolution.NOT_DONE: ("Never happened", "releases it: the next call with this key runs the effect again"),
}
SETTLES = {
    Resolution.HAPPENED: "Settle as happened",
    Resolution.REFUSED: "Settle as refused",
    Resolution.NOT_DONE: "Release it",
}
_ICONS = {
    "started": "started",
    "completed": "completed",
    "closed": "closed",
    "released": "released",
    "in_doubt": "doubt",
    "sent": "send",
    "evidence": "info",
}
_ANSWERED = {  # what the caller of a holder's own move got
    State.COMPLETED.value: "the result",
    State.CLOSED.value: "the refusal",
    State.RELEASED.value: "it did not happen, and may be called again",
    State.IN_DOUBT.value: "it is unknown whether it happened",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of the timeline."""

    at: float
    kind: str
    icon: str
    text: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the outcomes that a person may give."""

    value: str
    outcome: str
    does: str
    objection: str  # "" if it is allowed


async def record(visit: Visit) -> Response:
    found = await find(visit)
    return await shown_record(visit, found) if found is not None else await missing(visit)


async def find(visit: Visit) -> Record | None:
    """The record of the address; None if there is none, or if it is another tenant's."""
    try:
        digest = bytes.fromhex(visit.request.path_params["digest"])
    except ValueError:
        return None
    if len(digest) != DIGEST_BYTES:
        return None
    found = await visit.console.searching.record(digest)
    return found if found is not None and visit.console.covers(found) else None


async def missing(visit: Visit) -> Response:
    return await visit.page("missing.html", status=404, title="No such record")


async def shown_record(visit: Visit, one: Record, *, revealed: str | None = None) -> Response:
    console = visit.console
    notes = shown.noted(one, console.sealer)
    story = explain(one)
    figures = await console.watch.current()
    doubled = figures.doubles(one)
    audits = [
        entry
        for entry in await console.ops.audit(1000)
        if (entry.operation, entry.tenant, entry.text) == (one.key.operation, one.key.tenant, one.key.text)
    ]
    choices = [
        Choice(outcome.value, *OUTCOMES[outcome], objection=_objection(one, outcome) or "") for outcome in Resolution
    ]
    return await visit.page(
        "record.html",
        title=shown.visible(one.key.text),
        record=one,
        digest=one.key.digest.hex(),
        figures=figures,
        findings=figures.about(one.key.digest.hex()),
        doubled=doubled,
        verdict=verdict(one, story, doubled=doubled),
        story=story,
        lines=list(lines(one)),
        notes=notes,
        money=shown.money(notes),
        sealed=one.notes is not None and not notes,
        choices=choices,
        undecided=one.state not in SETTLED and any(not choice.objection for choice in choices),
        settles={outcome.value: text for outcome, text in SETTLES.items()},
        commands=[resolve_line(one, outcome) for outcome in Resolution if _objection(one, outcome) is None],
        mark=mark(one),
        overdue=overdue(one),
        cannot_ask=_cannot_ask(visit, one),
        may_free=one.state in EXPIRES,
        may_redact=one.state in SETTLED and one.result is not None,
        refusal=console.refusal(visit.person),
        revealed=revealed,
        audits=audits[:20],
        speaker=speaker,
        first_kept=not one.moves or not one.moves[0].before,
    )


def _objection(one: Record, outcome: Resolution) -> str | None:
    if outcome is Resolution.NOT_DONE and conflicts(one):
        return "the provider has it on its books"
    return objection(one, outcome)


def _cannot_ask(visit: Visit, one: Record) -> str:
    reason = cannot_be_asked(one)
    if reason is not None:
        return reason
    if visit.console.ask is None:
        return "this console has no lookups: start it with --app module:guard"
    return ""


def verdict(one: Record, story: Explanation, *, doubled: bool) -> Verdict:
    turn = f"Whose turn: {story.turn.whose}: {story.turn.says}. Whose books win: {story.truth}."
    if doubled:
        return Verdict("doubled", "double", "The effect is there more than once.", turn)
    match one.state:
        case State.COMPLETED:
            by = f"It happened at {when(one.settled_at or one.changed_at)}"
            kept = "its result is kept" if one.result is not None else "its result was not kept"
            says = "It happened once. Later calls with this key are answered from memory."
            return Verdict("completed", "completed", says, f"{by}, and {kept}. {turn}")
        case State.CLOSED:
            return Verdict("", "closed", "It was refused for good. Later calls get the same refusal.", turn)
        case State.RELEASED:
            return Verdict("", "released", "It did not happen. The next call with this key runs it.", turn)
        case State.IN_DOUBT:
            why = f"{one.error}. " if one.error else ""
            return Verdict(
                "doubt",
                "doubt",
                "It is unknown whether it happened.",
                f"{why}In doubt for {span(one.now - one.doubt_since)}. {turn}",
            )
        case _ if overdue(one):
            return Verdict(
                "doubt", "claims", "Its holder is gone, or too slow.", f"Held for {span(one.now - since(one))}. {turn}"
            )
        case _:
            return Verdict("", "started", "An attempt holds the key right now.", turn)


def lines(one: Record) -> Iterator[Line]:
    """The timeline, with what the caller of each attempt was answer; calls that were answered from memory are counted
    by operation, and not kept by key."""
    moves = {(move.at, move.after): move for move in one.moves}
    for entry in timeline(one):
        move = moves.get((entry.at, entry.kind))
        own = move is not None and ":" not in move.who
        kind = "doubt" if entry.kind == "in_doubt" else entry.kind
        if entry.kind == "evidence" and conflicts(one):
            kind = "doubled"
        icon = "double" if kind == "doubled" else _ICONS.get(entry.kind, "info")
        text = entry.text[:1].upper() + entry.text[1:]
        yield Line(entry.at, kind, icon, text, _ANSWERED.get(entry.kind, "") if own else "")


# -- actions ----------------------------------------------------------------------------------------------------


async def resolve(visit: Visit) -> Response:
    """Settle one doubt, if it is still as the person saw it."""
    one = await find(visit)
    if one is None:
        return await missing(visit)
    try:
        outcome = Resolution(visit.given("outcome"))
    except ValueError:
        raise Misconfigured("choose what you found: happened, refused or never happened") from None
    why = ""
    try:
        why = checked_why(visit.given("why"))
        _check_seen(one, visit.given("seen"))
        reason = _objection(one, outcome)
        if reason is not None:
            raise CannotResolve(f"it cannot be settled as {OUTCOMES[outcome][0].lower()}: {reason}", record=one)
        after = await visit.console.ops.resolve(one, outcome, who=visit.person.signature, why=why)
    except (MovedOn, CannotResolve, Misconfigured) as error:
        return await not_changed(visit, "resolve", one, why or visit.given("why"), error, OUTCOMES[outcome][0].lower())
    visit.notices.append(
        Notice(
            f"Settled: {SETTLES[outcome].lower()}.",
            f"Kept with your name and reason: “{shown.visible(why)}”",
            "completed",
            "completed",
        )
    )
    await visit.console.watch.current(fresh=True)
    return await shown_record(visit, after)


async def not_changed(visit: Visit, action: str, seen: Record, why: str, error: SamekeyError, given: str) -> Response:
    """A conflict is a sentence on the same page; the attempt is in the audit log."""
    now = await find(visit)
    await visit.console.note(visit.person, action, "refused", f"{given}: {why} | {error.message}", seen)
    visit.notices.append(_conflict(seen, now, error, given))
    return await shown_record(visit, now) if now is not None else await missing(visit)


def _conflict(seen: Record, now: Record | None, error: SamekeyError, given: str) -> Notice:
    name = shown.visible(seen.key.text)
    if isinstance(error, MovedOn) and now is not None and now.moves:
        last = now.moves[-1]
        who = shown.visible(speaker(last.who))
        state = last.after.replace("_", " ")
        first = f"{name} was not changed: {who} was first."
        reason = f": “{shown.visible(last.why)}”" if last.why else ""
        return Notice(
            first,
            f"It became {state} at {shown.clock(last.at)}{reason}. What you gave, {given}, was not stored.",
            "doubt",
            "alarm",
        )
    return Notice(
        f"{name} was not changed.",
        f"{shown.visible(error.message)}. What you gave, {given}, was not stored.",
        "doubt",
        "alarm",
    )


def _check_seen(one: Record, seen: str) -> None:
    if mark(one) != seen:
        raise MovedOn(f"{one.key} moved on since you looked; nothing was written", record=one)


async def ask(visit: Visit) -> Response:
    one = await find(visit)
    if one is None:
        return await missing(visit)
    asks = visit.console.ask
    why = "asked from the console"
    try:
        if asks is None:
            raise Misconfigured("this console has no lookups: start it with --app module:guard")
        check_asked(one)
        sentence = await asks(one)
    except CallerError as error:
        return await not_changed(visit, "ask", one, why, error, "ask now")
    await visit.console.note(visit.person, "ask", "done", sentence, one)
    visit.notices.append(Notice(sentence, "", "started", "ask"))
    await visit.console.watch.current(fresh=True)
    now = await find(visit)
    return await shown_record(visit, now) if now is not None else await missing(visit)


async def reveal(visit: Visit) -> Response:
    """Show the result: an audited action, because it may hold what a customer sent."""
    one = await find(visit)
    if one is None:
        return await missing(visit)
    try:
        why = checked_why(visit.given("why"))
    except Misconfigured as error:
        return await not_changed(visit, "reveal", one, "", error, "show the result")
    await visit.console.note(visit.person, "reveal", "done", why, one)  # before it is shown, or it is not shown
    return await shown_record(visit, one, revealed=shown.result_text(one, visit.console.sealer))


async def redact(visit: Visit) -> Response:
    one = await find(visit)
    if one is None:
        return await missing(visit)
    why = ""
    try:
        why = checked_why(visit.given("why"))
        _check_seen(one, visit.given("seen"))
        after = await visit.console.ops.redact(one, who=visit.person.signature, why=why)
    except (MovedOn, CannotResolve, Misconfigured) as error:
        return await not_changed(visit, "redact", one, why, error, "drop the result")
    visit.notices.append(
        Notice("The result was dropped. The record stays, so nothing can run twice.", "", "completed", "completed")
    )
    return await shown_record(visit, after)


async def free(visit: Visit) -> Response:
    """Remove a settled record: its key may run again, so the key is typed."""
    one = await find(visit)
    if one is None:
        return await missing(visit)
    why = ""
    try:
        why = checked_why(visit.given("why"))
        if visit.given("typed") != one.key.text.strip():
            raise Misconfigured("the key was not typed as it is shown, so nothing was removed")
        _check_seen(one, visit.given("seen"))
        await visit.console.ops.free(one, who=visit.person.signature, why=why)
    except (MovedOn, CannotResolve, Misconfigured) as error:
        return await not_changed(visit, "free", one, why, error, "free the key")
    visit.notices.append(
        Notice(
            f"{shown.visible(one.key.text)} is free: the next call with this key runs its effect.",
            "",
            "completed",
            "completed",
        )
    )
    return await visit.page("missing.html", title="Freed")
