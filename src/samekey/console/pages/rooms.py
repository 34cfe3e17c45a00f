"""Intake and Messages: pages of rooms that plug in by a source; without one, what the room does and how to add it."""

from __future__ import annotations

from starlette.responses import Response

from samekey.console import shown
from samekey.console.desk import checked_why
from samekey.console.pages.overview import Verdict
from samekey.console.parked import StoreMessages
from samekey.console.sources import INTAKE, MESSAGES, IntakeStatus, MessageSource, MessagesSource
from samekey.console.web import Notice, Visit
from samekey.core.errors import CallerError, Misconfigured, SamekeyError

PARKED_MAX = 100


async def intake(visit: Visit) -> Response:
    source = visit.console.sources.intake
    if source is None:
        return await visit.page("absent.html", title="Intake", room=INTAKE)
    try:
        status = await source.status()
    except SamekeyError as error:
        return await visit.page("room_silent.html", status=503, title="Intake", why=error.message)
    return await visit.page(
        "intake.html",
        title="Intake",
        intake=status,
        verdict=_intake(status),
        refusal=visit.console.refusal(visit.person),
    )


def _intake(status: IntakeStatus) -> Verdict:
    full = f"{status.depth:,} of {status.cap:,} places of the buffer are taken. {status.says}".strip()
    if status.runs_of_one_key is None:
        return Verdict("doubt", "alarm", "It is not known whether a key has two run ids.", full)
    if status.runs_of_one_key:
        return Verdict("doubled", "double", f"No: {status.runs_of_one_key:,} keys have more than one run id.", full)
    return Verdict("completed", "completed", "Yes: every key has one run id.", full)


async def put_back(visit: Visit) -> Response:
    source = visit.console.sources.intake
    if source is None:
        raise Misconfigured("there is no intake here")
    await _done(visit, "put_back", lambda id, why: source.put_back(id, who=visit.person.signature, why=why))
    return await intake(visit)


async def _messages_of(visit: Visit) -> MessagesSource | None:
    """The source that the console was given; else the store, if a handler has parked a message there."""
    console = visit.console
    if console.sources.messages is not None:
        return console.sources.messages
    parked = StoreMessages(console.store, console.tenant)
    return parked if await parked.any() else None


async def messages(visit: Visit) -> Response:
    source = await _messages_of(visit)
    if source is None:
        return await visit.page("absent.html", title="Messages", room=MESSAGES)
    try:
        sources, parked = await source.sources(), await source.parked(limit=PARKED_MAX)
    except SamekeyError as error:
        return await visit.page("room_silent.html", status=503, title="Messages", why=error.message)
    return await visit.page(
        "messages.html",
        title="Messages",
        sources=sources,
        parked=parked,
        verdict=_messages(list(sources), len(parked)),
        refusal=visit.console.refusal(visit.person),
    )


def _messages(sources: list[MessageSource], parked: int) -> Verdict:
    short = [one for one in sources if one.forgets_too_early]
    waits = f"{parked} messages are parked, and wait for a person." if parked else "No message is parked."
    if short:
        name = shown.visible(short[0].name)
        return Verdict(
            "doubt", "alarm", f"Not of {name}: its broker redelivers for longer than records are kept.", waits
        )
    if parked:
        return Verdict(
            "doubt", "messages", "Yes. " + waits, "A parked message has had no effect, or its doubt is resolved first."
        )
    return Verdict("completed", "completed", "Yes: each message takes effect once.", waits)


async def redeliver(visit: Visit) -> Response:
    source = await _messages_of(visit)
    if source is None:
        raise Misconfigured("there is no messages room here")
    await _done(visit, "redeliver", lambda id, why: source.redeliver(id, who=visit.person.signature, why=why))
    return await messages(visit)


async def _done(visit: Visit, action: str, act) -> None:  # type: ignore[no-untyped-def] # (id, why) -> a sentence, awaited
    """Carry out an action of a room, with a reason; the audit log has it in any case."""
    id = visit.given("id")
    try:
        why = checked_why(visit.given("why"))
        sentence = await act(id, why)
    except CallerError as error:
        await visit.console.note(visit.person, action, "refused", f"{id}: {visit.given('why')} | {error.message}")
        visit.notices.append(Notice("Nothing was changed.", f"{shown.visible(error.message)}.", "doubt", "alarm"))
        return
    await visit.console.note(visit.person, action, "done", f"{id}: {why}")
    visit.notices.append(Notice(shown.visible(sentence), "", "completed", "completed"))
