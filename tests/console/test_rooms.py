"""Rooms plug in by sources: without one a page says how to add it, with one it works."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from samekey.console import (
    DeadLetter,
    IntakeGate,
    IntakeStatus,
    MessageSource,
    ParkedMessage,
    ReconciledDay,
    Sources,
    console_app,
)
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.parking import Parked
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests.console.shop import ACCESS, digest, proof_of, visiting

STATUS = IntakeStatus(
    runs_of_one_key=0,
    depth=40,
    cap=1000,
    drained_a_minute=1200.0,
    gates=[IntakeGate("orders", open=False, direct=10, diverted=30, depth=40, cap=1000, says="the burst of 02:41")],
    dead=[DeadLetter("d-1", "order-<b>7", time.time(), "the task is gone", attempts=5)],
)


class Intake:
    name = "intake"

    def __init__(self, status: IntakeStatus | Exception = STATUS) -> None:
        self._status = status
        self.put: list[tuple[str, str, str]] = []

    async def status(self) -> IntakeStatus:
        if isinstance(self._status, Exception):
            raise self._status
        return self._status

    async def put_back(self, id: str, *, who: str, why: str) -> str:
        if id != "d-1":
            raise Misconfigured("there is no such trigger")
        self.put.append((id, who, why))
        return "The trigger is in the buffer again."


class Messages:
    def __init__(self) -> None:
        self.sent: list[str] = []

    async def sources(self) -> Sequence[MessageSource]:
        return [MessageSource("billing", "invoice.send", 200, 10, 3, 1, 86400.0, 14 * 86400.0)]

    async def parked(self, *, limit: int) -> Sequence[ParkedMessage]:
        return [
            ParkedMessage("m-1", "billing", "invoice-7", time.time(), "poison: no amount"),
            ParkedMessage("m-2", "billing", "invoice-8", time.time(), "in doubt", in_doubt=True),
        ]

    async def redeliver(self, id: str, *, who: str, why: str) -> str:
        self.sent.append(id)
        return "The message was sent again."


class Reconcile:
    async def last_days(self, *, limit: int) -> Sequence[ReconciledDay]:
        return [ReconciledDay("2026-11-16", clean=False, says="2 differ"), ReconciledDay("2026-11-15", clean=True)]


@pytest.mark.parametrize(("page", "line"), [("/intake", "samekey[intake]"), ("/messages", "Sources(messages=...)")])
async def test_a_room_that_is_absent_says_how_to_add_it(page, line):
    async with visiting(console_app(AsyncMemoryStore(), ACCESS)) as client:
        answer = await client.get(page)

    assert "is not connected to this console." in answer.text
    assert line in answer.text


async def test_the_intake_page_answers_its_question_and_puts_back():
    intake, store = Intake(), MemoryStore()
    async with visiting(console_app(AsyncMemoryStore(store), ACCESS, sources=Sources(intake=intake))) as client:
        page = (await client.get("/intake")).text
        form = {"proof": proof_of(page), "id": "d-1", "why": "the task is back"}
        done = await client.post("/intake/put-back", data=form)
        wrong = await client.post("/intake/put-back", data={**form, "id": "d-2"})

    assert "Yes: every key has one run id." in page
    assert "order-&lt;b&gt;7" in page
    assert "The trigger is in the buffer again." in done.text
    assert intake.put == [("d-1", "ada (name not proven)", "the task is back")]
    assert "there is no such trigger" in wrong.text
    assert [(one.action, one.after) for one in store.audit(2)] == [("put_back", "refused"), ("put_back", "done")]


@pytest.mark.parametrize(
    ("runs", "says"),
    [(2, "No: 2 keys have more than one run id."), (None, "It is not known whether a key has two run ids.")],
)
async def test_the_intake_page_says_what_is_wrong(runs, says):
    intake = Intake(replace(STATUS, runs_of_one_key=runs))
    async with visiting(console_app(AsyncMemoryStore(), ACCESS, sources=Sources(intake=intake))) as client:
        assert says in (await client.get("/intake")).text


async def test_a_room_that_does_not_answer_is_not_empty():
    intake = Intake(StoreUnavailable("connection refused"))
    async with visiting(console_app(AsyncMemoryStore(), ACCESS, sources=Sources(intake=intake))) as client:
        answer = await client.get("/intake")

    assert answer.status_code == 503
    assert "Intake does not answer." in answer.text


async def test_the_messages_page_compares_memory_and_redelivery_and_sends_again():
    messages = Messages()
    async with visiting(console_app(AsyncMemoryStore(), ACCESS, sources=Sources(messages=messages))) as client:
        page = (await client.get("/messages")).text
        form = {"proof": proof_of(page), "id": "m-1", "why": "the handler is mended"}
        answer = await client.post("/messages/redeliver", data=form)

    assert "Not of billing: its broker redelivers for longer than records are kept." in page
    assert "resolve its doubt first" in page
    assert "The message was sent again." in answer.text
    assert messages.sent == ["m-1"]


async def test_parked_messages_of_the_store_are_shown_without_a_source():
    store = MemoryStore()
    store.park(
        Parked("p-1", time.time(), "invoice.send", None, "invoice-7", "billing", "{}", b"", "poison", "no amount")
    )
    async with visiting(console_app(AsyncMemoryStore(store), ACCESS)) as client:
        page = (await client.get("/messages")).text
        form = {"proof": proof_of(page), "id": "p-1", "why": "again"}
        answer = await client.post("/messages/redeliver", data=form)

    assert "poison: no amount" in page
    assert f"/record/{digest('invoice-7', 'invoice.send')}" in page
    assert "does not reach the broker" in answer.text
    assert store.audit(1)[0].after == "refused"


async def test_the_last_clean_day_is_on_the_overview():
    async with visiting(console_app(AsyncMemoryStore(), ACCESS, sources=Sources(reconcile=Reconcile()))) as client:
        assert "2026-11-15" in (await client.get("/")).text


async def test_a_store_that_does_not_answer_is_not_without_doubts():
    class Down(AsyncMemoryStore):
        async def list(self, query):
            raise StoreUnavailable("connection refused")

    async with visiting(console_app(Down(), ACCESS)) as client:
        for page in ("/", "/doubts", "/operations", "/claims"):
            answer = await client.get(page)
            assert answer.status_code == 503
            assert "The store does not answer." in answer.text
            assert "Nothing is in doubt" not in answer.text
