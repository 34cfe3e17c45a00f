"""Recovery workers: every schedule with them, and the naive ones that the search must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from samekey.core import pursuit as core_pursuit
from samekey.core import recovery as core_recovery
from samekey.core.attempt import attempt, run_held
from samekey.core.boundary import Absent, Asks, Boundary, Keyed, Opaque
from samekey.core.call import Call, take
from samekey.core.commands import Ask, CallLookup, Read, RunEffect, Settle
from samekey.core.recovery import Look
from samekey.core.states import Role, State
from tests.figures import count, figure
from tests.proofs.schedules.search import Provider, explore
from tests.proofs.schedules.test_others import DAY, PROOF, Steps, asker, operator, worker
from tests.proofs.schedules.world import look_in_the_books

pursuit: Any = core_pursuit  # whose imported names are patched too
recovery: Any = core_recovery
ASKS = Asks(look_in_the_books)
BELIEVES = Asks(look_in_the_books, believe_absent_after=60.0)
DEDUPS = Provider(dedups=True)

# -- what is promised with workers about -------------------------------------------------------------------------

CASES: dict[str, tuple[Boundary, Provider]] = {
    "keyed, declined": (Keyed(window=DAY), Provider(dedups=True, broke=True)),
    "keyed, kept declines": (
        Keyed(window=DAY, keeps_declines=True),
        Provider(dedups=True, broke=True, keeps_declines=True),
    ),
    "keyed, kept refusals": (
        Keyed(window=DAY, keeps_declines=True),
        Provider(dedups=True, refuses=True, keeps_declines=True),
    ),
    "asks, declined": (ASKS, Provider(broke=True)),
    "asks, believes": (BELIEVES, Provider()),
    "opaque marked": (Opaque(marked=True), Provider()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_promise_holds_with_two_workers(name):
    """A caller, a worker with the payload and one without; a crash, an expiry, a timeout, an age."""
    boundary, provider = CASES[name]
    others = (("W", worker), ("V", asker))
    bounds: dict[str, Any] = {"crashes": 1, "expiries": 1, "timeouts": 1} if PROOF else {"crashes": 1, "expiries": 0}
    report = explore(boundary, provider=provider, callers=1, others=others, **bounds)
    kind = name.partition(",")[0].split()[0]
    count(f"search: a caller and two workers: {kind}", worlds=1, scenes=report.scenes, schedules=report.schedules)

    report.check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keyed, kept declines", "asks, believes"])
def test_every_promise_holds_with_worker_operator_and_a_late_caller(name):
    boundary, provider = CASES[name]
    others = (("O", operator), ("W", worker))
    bounds: dict[str, Any] = {"crashes": 1, "timeouts": 1} if PROOF else {"crashes": 0, "timeouts": 1}
    report = explore(boundary, provider=provider, callers=1, others=others, expiries=1, **bounds)
    kind = name.partition(",")[0].split()[0]
    count(f"search: caller, operator, worker: {kind}", worlds=1, scenes=report.scenes, schedules=report.schedules)

    report.check()


@pytest.mark.slow
def test_a_kept_decline_ends_the_doubt():
    """Of a caller that comes when faults have stopped: with `declined` no doubt is left in the window."""
    boundary, provider = CASES["keyed, kept declines"]
    report = explore(boundary, provider=provider, callers=2, crashes=1, expiries=1, ages=0)

    report.check()
    assert "Z: InDoubt" not in report.reached


@pytest.mark.slow
@pytest.mark.parametrize("effect", [("charge", "give up", "charge"), ("give up", "charge")])
def test_a_not_done_that_was_never_sent_ends_no_doubt(effect):
    """Such a NotDone comes without `declined`: an earlier request may still land."""
    boundary, provider = CASES["keyed, kept declines"]

    explore(boundary, provider=provider, effect=effect, crashes=1, expiries=1).check()


# -- naive workers -----------------------------------------------------------------------------------------------


def opens_like_a_client(call: Call) -> Steps:
    yield from attempt(call)


def takes_what_is_free(call: Call) -> Steps:
    record = yield from Read(call.key)
    if record is not None and record.state is State.RELEASED:
        taken = yield from take(call, record)
        if taken is not None and taken.attempt == call.attempt:
            yield from run_held(call, taken)


def trusts_its_ask(call: Call) -> Steps:
    """It asks, is answered "absent", believes that after the agreed time, and runs without a take."""
    record = yield from Read(call.key)
    if record is None or record.lease_live or record.settled:
        return
    if record.state is State.STARTED:
        record = yield from recovery.put_in_doubt(call, record)
    asked = None if record is None else (yield from Ask(record, call.attempt, 30.0))
    if asked is None or asked.asker != call.attempt or asked.state is not State.IN_DOUBT:
        return
    verdict = yield from CallLookup(asked)
    if isinstance(verdict, Absent) and -asked.lease_left >= 60.0:
        outcome = yield from RunEffect(asked)
        yield from Settle(asked, Role.LOOKUP, State.COMPLETED, call.attempt, repr(outcome).encode())


def closes_after_its_limit(call: Call) -> Steps:
    """It was told "absent" often enough, and calls that a failure."""
    record = yield from Read(call.key)
    if record is None or record.lease_live or record.state is not State.IN_DOUBT:
        return
    asked = yield from Ask(record, call.attempt, 30.0)
    if asked is not None and asked.asker == call.attempt:
        verdict = yield from CallLookup(asked)
        if isinstance(verdict, Absent):
            yield from Settle(asked, Role.LOOKUP, State.CLOSED, call.attempt, error="Absent")


def frees_what_it_cannot_run(call: Call) -> Steps:
    record = yield from Read(call.key)
    if record is None or record.lease_live or record.settled:
        return
    if record.state is State.STARTED:
        record = yield from recovery.put_in_doubt(call, record)
    taken = None if record is None else (yield from take(call, record))
    if taken is not None and taken.attempt == call.attempt:
        yield from Settle(taken, Role.HOLDER, State.RELEASED, call.attempt, error="NoPayload")


def writes_over_what_it_read_again(call: Call) -> Steps:
    """Its verdict is about the record that it asked about, and it writes it over the one that is there by then."""
    record = yield from Read(call.key)
    if record is None or record.lease_live or record.settled:
        return
    if record.state is State.STARTED:
        record = yield from recovery.put_in_doubt(call, record)
    if record is None:
        return
    verdict = yield from CallLookup(record)
    now = yield from Read(call.key)
    if isinstance(verdict, Absent) and now is not None and now.state is State.IN_DOUBT:
        yield from Settle(now, Role.LOOKUP, State.RELEASED, call.attempt, error="Absent")


def runs_opaque_work(patch: pytest.MonkeyPatch) -> Callable[[Call], Steps]:
    real = recovery.way_on
    patch.setattr(
        recovery, "way_on", lambda *given, **how: "runs" if real(*given, **how) == "person" else real(*given, **how)
    )
    return worker


def believes_at_once(patch: pytest.MonkeyPatch) -> Callable[[Call], Steps]:
    patch.setattr(recovery, "believed", lambda terms, *since: terms.believe_absent_after is not None)
    return worker


def obeys_todays_looser_boundary(patch: pytest.MonkeyPatch) -> Callable[[Call], Steps]:
    real = pursuit.recover
    patch.setattr(
        pursuit, "recover", lambda call, record, look: real(call, record._replace(boundary=call.terms_text), look)
    )
    return worker


def ignores_todays_stricter_boundary(patch: pytest.MonkeyPatch) -> Callable[[Call], Steps]:
    real = pursuit.recover

    def recover(call: Call, record: Any, look: Look) -> Steps:
        terms = recovery.parse_terms(record.boundary)
        return (yield from real(replace(call, terms=terms, terms_text=terms.text()), record, look))

    patch.setattr(pursuit, "recover", recover)
    return worker


@dataclass(frozen=True)
class Naive:
    worker: Any  # a script, or a function of the patch that returns one
    boundary: Boundary | tuple[Boundary, ...]
    provider: Provider = field(default_factory=Provider)
    effect: str | tuple[str, ...] = "charge"
    patches: bool = False
    options: dict[str, Any] = field(default_factory=dict)


NAIVE = [
    Naive(opens_like_a_client, Opaque()),
    Naive(takes_what_is_free, Opaque(), effect="give up"),
    Naive(trusts_its_ask, BELIEVES),
    Naive(closes_after_its_limit, ASKS),
    Naive(frees_what_it_cannot_run, Keyed(), DEDUPS),
    Naive(writes_over_what_it_read_again, ASKS),
    Naive(runs_opaque_work, Opaque(), patches=True),
    Naive(believes_at_once, BELIEVES, patches=True, options={"ages": 0}),
    Naive(obeys_todays_looser_boundary, (Opaque(), Keyed()), patches=True),
    Naive(ignores_todays_stricter_boundary, (Keyed(), Asks(look_in_the_books)), DEDUPS, patches=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("naive", NAIVE, ids=lambda naive: naive.worker.__name__)
def test_the_search_catches_every_naive_worker(naive, monkeypatch):
    """The real worker keeps every promise in the same world."""
    options: dict[str, Any] = {"callers": 1, "crashes": 1, "expiries": 1, "timeouts": 1, **naive.options}
    world = {"provider": naive.provider, "effect": naive.effect, **options}
    explore(naive.boundary, others=(("W", worker),), **world).check()
    script = naive.worker(monkeypatch) if naive.patches else naive.worker
    report = explore(naive.boundary, others=(("W", script),), **world)

    assert report.violations, "this worker breaks nothing here: is the rule needed?"
    violation = report.violations[0]
    name = naive.worker.__name__.replace("_", " ")
    figure(f"naive worker: {name}", f"{report.scenes} scenes, {len(violation.choices)} moves, {violation.promise}")
