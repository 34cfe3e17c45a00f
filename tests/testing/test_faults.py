"""What may happen to a request: the kit plays it, and finds who takes it for something else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from samekey import Absent, Asks, AsyncGuard, Guard, Happened, NotDone, Policy, current
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing import InsufficientFunds, LedgerProvider, ManualClock, four_assumptions

ORDER = {"order_id": "o", "amount": 200}
POLICY = Policy(releases=(InsufficientFunds,))


@pytest.fixture
def clock():
    return ManualClock(1_700_000_000)


@pytest.fixture
def provider(clock):
    return LedgerProvider(clock=clock, sleep=clock.advance)


@pytest.fixture
def tried(provider, clock):
    def tried(handler: Any) -> Any:
        other = {"amount": 500}
        return four_assumptions(handler, payload=ORDER, other_payload=other, provider=provider, clock=clock)

    return tried


@pytest.fixture
def once(clock):
    return lambda **options: Guard(MemoryStore(clock), policy=POLICY).once(name="charge", key="order_id", **options)


def test_a_reset_connection_that_is_called_not_done_is_found(once, provider, tried):
    @once()
    def charge(order_id: str, amount: int) -> Any:
        try:
            return provider.charge(amount, order=order_id).id
        except ConnectionError as error:
            raise NotDone("no connection") from error

    report = tried(charge)
    assert report.broken == ("Boundary",)
    assert "the provider does it, and the connection is reset" in report.boundary.story


def test_a_request_that_is_lost_on_its_way_may_be_retried_or_left_in_doubt(once, provider, tried):
    """It was not done; nobody knows. A guard that keeps it in doubt, and one that asks, are both right."""

    def look(record: Any) -> Any:
        found = provider.find(record.provider_key())
        return Happened(found.id) if found else Absent()

    for boundary in ({}, {"boundary": Asks(look, believe_absent_after=60)}):

        @once(**boundary)
        def charge(order_id: str, amount: int) -> Any:
            return provider.charge(amount, order=order_id, reference=current().provider_key()).id

        assert tried(charge).boundary.holds


@pytest.mark.parametrize("answer", ["failed", {"status": "failed"}, None])
def test_an_answer_after_a_timeout_that_is_the_same_either_way_is_unknown(once, provider, tried, answer):
    @once()
    def charge(order_id: str, amount: int) -> Any:
        try:
            return provider.charge(amount, order=order_id).id
        except TimeoutError:
            return answer

    report = tried(charge)
    if answer is None:  # the word for nothing: whoever waits for a receipt has lost it
        assert "where a clean call answers" in report.boundary.problem
    else:
        assert report.boundary.holds is None
        assert any("whether the effect happened or not" in note for note in report.boundary.notes)


def test_a_lookup_that_finds_it_and_not_its_result_is_found(once, provider, tried):
    @once(boundary=Asks(lambda record: Happened() if provider.find(record.provider_key()) else Absent()))
    def charge(order_id: str, amount: int) -> Any:
        return provider.charge(amount, order=order_id, reference=current().provider_key()).id

    report = tried(charge)
    assert report.broken == ("Claim", "Boundary")
    assert "got None, where a clean call answers 'ch_" in report.boundary.problem


def test_a_recovered_answer_of_another_kind_is_unknown(once, provider, tried):
    def look(record: Any) -> Any:
        found = provider.find(record.provider_key())
        return Happened({"id": found.id}) if found else Absent()

    @once(boundary=Asks(look))
    def charge(order_id: str, amount: int) -> Any:
        return provider.charge(amount, order=order_id, reference=current().provider_key()).id

    report = tried(charge)
    assert report.broken == ()
    assert report.boundary.holds is None


@pytest.mark.parametrize(("seconds", "broken"), [(1, True), (60, False)])
def test_an_absence_that_is_believed_before_late_requests_land_is_found(clock, provider, tried, seconds, broken):
    guard = Guard(MemoryStore(clock), policy=Policy(lease=5, releases=(InsufficientFunds,)))
    boundary = Asks(lambda record: provider.verdict(record.provider_key()), believe_absent_after=seconds)

    @guard.once(name="charge", key="order_id", boundary=boundary)
    def charge(order_id: str, amount: int) -> Any:
        return provider.charge(amount, order=order_id, reference=current().provider_key()).id

    assert ("Boundary" in tried(charge).broken) is broken


@pytest.mark.parametrize("careless", [True, False])
def test_a_cancelled_call_that_is_called_not_done_is_found(clock, provider, tried, careless):
    guard = AsyncGuard(AsyncMemoryStore(MemoryStore(clock)), policy=POLICY)

    @guard.once(name="charge", key="order_id")
    async def charge(order_id: str, amount: int) -> Any:
        try:
            receipt = provider.charge(amount, order=order_id).id
            await asyncio.sleep(0)
            return receipt
        except asyncio.CancelledError:
            if careless:
                raise NotDone("the client went away") from None
            raise

    report = tried(charge)
    assert report.broken == (("Boundary",) if careless else ())
    if careless:
        assert "A is called and cancelled where it waits, at line" in report.boundary.story[0]
    else:
        assert report.check().holds


@pytest.mark.parametrize(
    ("retention", "retried_for", "holds"),
    [(7200, None, None), (7200, 3 * 3600, False), (7200, 7000, True), (1800, None, False), (1800, 1700, True)],
)
def test_how_long_it_must_be_remembered_is_said_or_unknown(clock, provider, retention, retried_for, holds):
    guard = Guard(MemoryStore(clock), policy=Policy(releases=(InsufficientFunds,), retention=retention))

    @guard.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int) -> Any:
        return provider.charge(amount, order=order_id).id

    report = four_assumptions(charge, payload=ORDER, provider=provider, clock=clock, retried_for=retried_for)
    assert report.memory.holds is holds
    if holds is None:
        assert any("give retried_for=" in note for note in report.memory.notes)


def test_what_is_kept_in_the_process_is_said_to_be_untried_elsewhere(provider, clock):
    """A dict and a lock: right in one process, gone with it, and not there in the next."""

    def worker() -> Any:
        answers, lock = dict[str, str | None](), threading.Lock()

        def charge(order_id: str, amount: int) -> Any:
            with lock:
                if order_id in answers:
                    if answers[order_id] is None:
                        raise RuntimeError("in doubt")
                    return answers[order_id]
                answers[order_id] = None
            try:
                answers[order_id] = provider.charge(amount, order=order_id).id
            except InsufficientFunds:
                del answers[order_id]
                raise
            return answers[order_id]

        return charge

    around: dict[str, Any] = {"payload": ORDER, "provider": provider, "clock": clock}
    here = four_assumptions(worker(), **around)
    assert here.broken == ()
    for finding in (here.claim, here.memory, here.boundary):
        assert any("give elsewhere=" in note for note in finding.notes)
    assert {"Claim", "Boundary"} <= set(four_assumptions(worker(), elsewhere=worker, **around).broken)
