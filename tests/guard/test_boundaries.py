"""What stands behind the key decides what may happen after a crash, a timeout or an error nobody understands."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from samekey import (
    Absent,
    Asks,
    Conflicting,
    Declined,
    Fenced,
    Guard,
    Happened,
    InDoubt,
    Keyed,
    Misconfigured,
    NotDone,
    Opaque,
    Policy,
    Refused,
    Repeatable,
    ResultNotKept,
    State,
    StillUnknown,
    current,
)
from samekey.core.commands import Testify
from samekey.core.envelope import encode
from samekey.core.record import Record
from samekey.ops import Ops, Resolution
from tests.guard.helpers import Ledger, Place, Seen, Side, Thread, raising, spied_side, together

DAY = 24 * 3600


def throwing(error: BaseException) -> Callable[[], Any]:
    def effect():
        raise error

    return effect


def in_doubt(side: Side, key: str = "o-1", **kwargs: Any) -> None:
    with pytest.raises(TimeoutError):
        side.run("charge", throwing(TimeoutError()), key=key, payload={}, **kwargs)


def provider_key() -> str:
    return str(current().provider_key())


# -- Keyed -----------------------------------------------------------------------------------------------------


def test_keyed_runs_again_with_the_same_provider_key_after_a_doubt(place: Place, side: Side):
    sent: list[str] = []

    def effect():
        sent.append(provider_key())
        if len(sent) < 3:
            raise TimeoutError
        return "receipt"

    for _ in range(2):
        with pytest.raises(TimeoutError):
            side.run("charge", effect, key="o-1", payload={}, boundary=Keyed())
    answer = side.run("charge", effect, key="o-1", payload={}, boundary=Keyed())

    assert len(set(sent)) == 1
    assert (answer.result, answer.attempts) == ("receipt", 3)
    assert place.peek("charge", "o-1").round == 0


def test_keyed_rounds_rise_only_after_the_holders_own_not_done_and_only_if_declines_are_kept(side: Side):
    keys: dict[bool, list[str]] = {True: [], False: []}

    for kept, sent in keys.items():
        boundary, name = Keyed(keeps_declines=kept), f"charge {kept}"

        def effect(sent=sent) -> None:
            sent.append(provider_key())
            raise NotDone("declined")

        for _ in range(3):
            with pytest.raises(NotDone):
                side.run(name, effect, key="o-1", payload={}, boundary=boundary)

    assert len(set(keys[True])) == 3  # a provider that replays an old decline needs a new key
    assert len(set(keys[False])) == 1


def test_keyed_with_declines_kept_never_rotates_on_a_takeover_or_with_a_doubt_behind_it(still: Place, colour: str):
    assert still.clock is not None
    side, boundary, sent = still.side(colour), Keyed(keeps_declines=True), list[str]()

    def effect(error: BaseException | None = None):
        sent.append(provider_key())
        if error is not None:
            raise error

    with pytest.raises(TimeoutError):
        side.run("charge", lambda: effect(TimeoutError()), key="o-1", payload={}, boundary=boundary)
    with pytest.raises(NotDone):
        side.run("charge", lambda: effect(NotDone()), key="o-1", payload={}, boundary=boundary)
    side.run("charge", effect, key="o-1", payload={}, boundary=boundary)

    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert still.peek("charge", "o-1").round == 0


def test_keyed_labels_give_one_provider_key_per_step(side: Side):
    def effect():
        held = current()
        return [held.provider_key(), held.provider_key("capture"), held.provider_key("capture")]

    whole, capture, again = side.run("charge", effect, key="o-1", payload={}, boundary=Keyed()).result
    assert capture == again != whole


def test_keyed_past_the_providers_window_is_a_doubt_for_a_person(still: Place, colour: str, ledger: Ledger):
    """The provider has forgotten the key: sent again it would be a new charge."""
    assert still.clock is not None
    side, boundary = still.side(colour), Keyed(window=3600)
    in_doubt(side, boundary=boundary)
    still.clock.advance(3600 - 31)
    in_doubt(side, boundary=boundary)  # within it, with room for one lease: it ran again
    still.clock.advance(2)

    with pytest.raises(InDoubt, match="window is over"):
        side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)
    assert len(ledger) == 0


def test_keyed_counts_the_window_from_the_first_send_not_the_last(still: Place, colour: str):
    assert still.clock is not None
    side, boundary = still.side(colour), Keyed(window=3600)
    in_doubt(side, boundary=boundary)
    first = still.peek("charge", "o-1").first_sent_at
    still.clock.advance(1800)
    in_doubt(side, boundary=boundary)

    assert still.peek("charge", "o-1").first_sent_at == first == 1_700_000_000


def test_keyed_past_the_window_asks_if_it_has_a_lookup(still: Place, colour: str, ledger: Ledger):
    assert still.clock is not None
    side, boundary = still.side(colour), Keyed(window=3600, lookup=lambda record: Happened("found"))
    in_doubt(side, boundary=boundary)
    still.clock.advance(3601)

    assert side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary).result == "found"
    assert len(ledger) == 0


def test_keyed_after_not_done_starts_a_new_window(still: Place, colour: str):
    assert still.clock is not None
    side, boundary = still.side(colour), Keyed(window=3600)
    with pytest.raises(NotDone):
        side.run("charge", throwing(NotDone()), key="o-1", payload={}, boundary=boundary)
    still.clock.advance(3000)
    in_doubt(side, boundary=boundary)
    still.clock.advance(3000)

    assert side.run("charge", lambda: 1, key="o-1", payload={}, boundary=boundary).result == 1


# -- Asks ------------------------------------------------------------------------------------------------------


def test_asks_happened_is_adopted_and_replayed(place: Place, side: Side, ledger: Ledger):
    boundary = Asks(lambda record: Happened({"id": record.provider_key()}))
    in_doubt(side, boundary=boundary)
    expected = {"id": place.peek("charge", "o-1").provider_key()}

    first = side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)
    again = side.run("charge", ledger.add, key="o-1", payload={})
    assert first.result == again.result == expected
    assert first.replayed
    assert len(ledger) == 0


def test_asks_declined_for_good_closes_and_declined_for_now_frees(place: Place, side: Side, ledger: Ledger):
    in_doubt(side, "final", boundary=Asks(lambda record: Declined(final=True, reason="stolen")))
    in_doubt(side, "free", boundary=Asks(lambda record: Declined()))

    for said in (True, 1):  # 1: what a database without booleans says
        boundary = Asks(lambda record, said=said: Declined(final=said, reason="stolen"))  # type: ignore[misc]
        with pytest.raises(Refused, match="stolen"):
            side.run("charge", ledger.add, key="final", payload={}, boundary=boundary)
    answer = side.run("charge", ledger.add, key="free", payload={}, boundary=Asks(lambda record: Declined()))
    assert (answer.result, answer.attempts, answer.replayed) == (1, 2, False)
    assert place.peek("charge", "final").state is State.CLOSED


@pytest.mark.parametrize(
    ("lookup", "why"),
    [
        (lambda record: Absent(), "may still arrive"),
        (lambda record: StillUnknown("maintenance"), "maintenance"),
        (lambda record: Conflicting(("a", "b")), "2 times"),
        (lambda record: 1 // 0, "ZeroDivisionError"),
        (lambda record: {"found": True}, "dict"),
        (lambda record: None, "NoneType"),
        (lambda record: Happened, "type"),
        (lambda record: Conflicting(2), "Misconfigured"),  # type: ignore[arg-type]
        (lambda record: Declined("stolen card"), "Misconfigured"),  # type: ignore[arg-type]
    ],
    ids=["absent", "unknown", "conflicting", "raises", "rubbish", "none", "class", "number", "reason"],
)
def test_asks_anything_else_stays_in_doubt_and_nobody_is_left_asking(place: Place, side: Side, ledger, lookup, why):
    boundary = Asks(lookup)
    in_doubt(side, boundary=boundary)

    for _ in range(2):
        with pytest.raises(InDoubt, match=why):
            side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)
    record = place.peek("charge", "o-1")
    assert (len(ledger), record.state, record.asker) == (0, State.IN_DOUBT, None)


@pytest.mark.parametrize("verdict", [Absent(), StillUnknown()])
def test_asks_what_was_said_while_the_provider_was_asked_is_the_answer(place: Place, side: Side, ledger, verdict):
    """By an operator, or by the attempt itself, come back late: then nobody is told that nobody knows."""
    store = place.store()

    def resolved(record: Record) -> Any:
        Ops(store).resolve(record, Resolution.HAPPENED, who="ann", why="on the statement", result="paid")
        return verdict

    def testified(record: Record) -> Any:
        store.carry_out(
            Testify(record.key, record.attempt, record.token, State.COMPLETED, encode(None, max_bytes=9), "late")
        )
        return verdict

    def freed(record: Record) -> Any:
        Ops(store).resolve(record, Resolution.NOT_DONE, who="ann", why="not on the statement")
        return verdict

    answers = []
    for key, lookup in (("o-1", resolved), ("o-2", testified), ("o-3", freed)):
        in_doubt(side, key, boundary=Asks(lookup))
        answer = side.run("charge", ledger.add, key=key, payload={}, boundary=Asks(lookup))
        answers.append((answer.result, answer.replayed, place.peek("charge", key).state))

    assert answers == [
        ("paid", True, State.COMPLETED),
        (None, True, State.COMPLETED),
        (1, False, State.COMPLETED),
    ]


def test_asks_conflicting_is_kept_as_evidence_and_told(place: Place, colour: str):
    seen = Seen()
    side = place.side(colour, hooks=[seen])
    boundary = Asks(lambda record: Conflicting(("a", "b", "c")))
    in_doubt(side, boundary=boundary)
    with pytest.raises(InDoubt, match="refund"):
        side.run("charge", int, key="o-1", payload={}, boundary=boundary)

    (evidence,) = place.peek("charge", "o-1").evidence
    assert (evidence.state, evidence.result) == (State.IN_DOUBT, None)
    assert "3 times" in evidence.why
    assert "conflicting" in seen.names


def test_asks_absent_is_believed_only_so_long_after_the_lease_ended(still: Place, colour: str, ledger: Ledger):
    assert still.clock is not None
    side, boundary = still.side(colour), Asks(lambda record: Absent(), believe_absent_after=60)
    in_doubt(side, boundary=boundary)

    for seconds in (0, 30, 59):
        still.clock.advance(seconds if seconds else 0)
        with pytest.raises(InDoubt):
            side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)
    assert len(ledger) == 0
    still.clock.advance(1)  # 90 s: the lease of 30 s ended 60 s ago

    answer = side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)
    assert (answer.result, answer.attempts) == (1, 2)


def test_asks_belief_is_measured_when_the_question_starts(still: Place, colour: str, ledger: Ledger):
    """A lookup that takes a minute answers about a minute ago: its absence must not be believed as of now."""
    assert still.clock is not None
    clock, side = still.clock, still.side(colour)

    def slow(record: Record):
        clock.advance(20)
        return Absent()

    boundary = Asks(slow, believe_absent_after=60)
    in_doubt(side, boundary=boundary)
    clock.advance(85)

    with pytest.raises(InDoubt):
        side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)
    assert side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary).result == 1


def test_asks_a_holder_that_speaks_during_the_lookup_wins(still: Place, colour: str, ledger: Ledger):
    """Believed absent, and at that moment the slow holder completes: nothing runs again."""
    assert still.clock is not None
    held = still.guard().hold("charge", key="o-1", payload={}, boundary=Asks(lambda r: Absent(), 60))

    def lookup(record: Record):
        with held:
            held.complete("late")
        return Absent()

    still.clock.advance(1000)
    answer = still.side(colour).run(
        "charge", ledger.add, key="o-1", payload={}, boundary=Asks(lookup, believe_absent_after=60)
    )
    assert (answer.result, answer.replayed, len(ledger)) == ("late", True, 0)


def test_asks_one_at_a_time(place: Place, colour: str, ledger: Ledger):
    """Of many callers of a doubt one asks the provider; the others wait for what it hears."""
    asked = Ledger()
    go = threading.Event()

    def lookup(record: Record):
        asked.add()
        assert go.wait(5)
        return Happened("found")

    sides = [place.side(colour) for _ in range(4)]
    in_doubt(sides[0], boundary=Asks(lookup))
    threads = [
        Thread(lambda s=s: s.run("charge", ledger.add, key="o-1", payload={}, boundary=Asks(lookup)))  # type: ignore[misc]
        for s in sides
    ]
    go.set()

    assert [thread.result().result for thread in threads] == ["found"] * 4
    assert (len(asked), len(ledger)) == (1, 0)


def test_asks_a_result_that_cannot_be_kept_is_still_happened(place: Place, side: Side, ledger: Ledger):
    boundary = Asks(lambda record: Happened(object()))
    in_doubt(side, boundary=boundary)

    for _ in range(2):
        with pytest.raises(ResultNotKept):
            side.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)
    assert len(ledger) == 0


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_asks_with_an_async_lookup(place: Place, ledger: Ledger, loop: str):
    async def lookup(record: Record):
        await (asyncio.sleep(0) if loop == "asyncio" else trio.sleep(0))
        return Happened("found")

    side = place.side(loop)
    in_doubt(side, boundary=Asks(lookup))
    assert side.run("charge", ledger.add, key="o-1", payload={}, boundary=Asks(lookup)).result == "found"


def test_asks_a_dead_holder_is_asked_about_too(still: Place, colour: str, ledger: Ledger):
    assert still.clock is not None
    boundary = Asks(lambda record: Happened("found"))
    dead = still.guard().hold("charge", key="o-1", payload={}, boundary=boundary)
    still.clock.advance(31)

    assert still.side(colour).run("charge", ledger.add, key="o-1", payload={}, boundary=boundary).result == "found"
    assert dead is not None  # kept until here: a hold that is dropped unentered is let go


async def test_asks_an_asker_that_is_cancelled_does_not_keep_the_next_one_from_asking(place: Place):
    """Otherwise a hung lookup that is cut off blocks the doubt for half a minute."""
    guard, asking = place.async_guard(policy=Policy(patience=0.2)), asyncio.Event()

    async def hangs(record: Record):
        asking.set()
        await asyncio.sleep(60)

    async def effect():
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await guard.run("charge", effect, key="o-1", payload={}, boundary=Asks(hangs))
    task = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}, boundary=Asks(hangs)))
    await asking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    answer = await guard.run("charge", effect, key="o-1", payload={}, boundary=Asks(lambda record: Happened("found")))
    assert answer.result == "found"


# -- marked ----------------------------------------------------------------------------------------------------

MARKED = [
    Opaque(marked=True),
    Asks(lambda record: StillUnknown(), marked=True),
    Keyed(marked=True),
]
KINDS = ["opaque", "asks", "keyed"]


def sends() -> None:
    """held.sending() of either colour, from plain code."""
    held = current()
    sent = held.sending()
    if sent is not None:  # a coroutine: the effect of an async guard
        try:
            sent.send(None)
        except StopIteration:
            pass


@pytest.mark.parametrize("boundary", MARKED, ids=KINDS)
def test_marked_what_fails_before_sending_is_known_not_to_have_happened(place: Place, ledger: Ledger, boundary):
    guard = place.guard()
    with pytest.raises(ValueError):
        guard.run("charge", throwing(ValueError("before")), key="o-1", payload={}, boundary=boundary)

    assert place.peek("charge", "o-1").state is State.RELEASED
    assert guard.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary).attempts == 2


@pytest.mark.parametrize("boundary", MARKED, ids=KINDS)
def test_marked_what_fails_after_sending_is_in_doubt(place: Place, boundary):
    guard = place.guard()

    def effect():
        current().sending()
        raise ValueError("after")

    with pytest.raises(ValueError):
        guard.run("charge", effect, key="o-1", payload={}, boundary=boundary)
    record = place.peek("charge", "o-1")
    assert record.state is State.IN_DOUBT
    assert record.begun_at is not None


async def test_marked_the_same_awaited(place: Place):
    guard, boundary = place.async_guard(), Opaque(marked=True)

    async def effect(send: bool):
        if send:
            await current().sending()
        raise ValueError

    for key, send, state in (("before", False, State.RELEASED), ("after", True, State.IN_DOUBT)):
        with pytest.raises(ValueError):
            await guard.run("charge", lambda send=send: effect(send), key=key, payload={}, boundary=boundary)
        assert place.peek("charge", key).state is state


async def test_marked_sending_in_a_thread_of_an_async_effect_is_written(place: Place, ledger: Ledger):
    """Nobody can await there, so it blocks until the mark stands; a mark that is refused stops the thread."""
    guard, boundary = place.async_guard(), Opaque(marked=True)

    def charge():
        current().sending()
        ledger.add()
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await guard.run("charge", lambda: asyncio.to_thread(charge), key="o-1", payload={}, boundary=boundary)
    record = place.peek("charge", "o-1")

    assert (record.state, len(ledger)) == (State.IN_DOUBT, 1)
    assert record.begun_at is not None


async def test_marked_a_refused_mark_in_a_thread_stops_it(still: Place, ledger: Ledger):
    assert still.clock is not None
    clock, guard, boundary = still.clock, still.async_guard(), Opaque(marked=True)

    def charge():
        clock.advance(31)
        current().sending()
        ledger.add()

    with pytest.raises(Fenced):
        await guard.run("charge", lambda: asyncio.to_thread(charge), key="o-1", payload={}, boundary=boundary)

    assert len(ledger) == 0
    assert still.peek("charge", "o-1").state is State.RELEASED


async def test_marked_a_forgotten_await_is_never_called_not_begun(place: Place, caplog: pytest.LogCaptureFixture):
    """The mark was not written, and the money may have left all the same: unknown, and somebody must hear of it."""
    guard, boundary = place.async_guard(), Opaque(marked=True)

    async def charge():
        forgotten = current().sending()
        forgotten.close()  # or Python would warn as well
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await guard.run("charge", charge, key="o-1", payload={}, boundary=boundary)

    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    assert "never awaited" in caplog.text


@pytest.mark.parametrize("boundary", MARKED, ids=KINDS)
def test_marked_a_lease_lost_before_sending_is_fenced_and_somebody_else_runs(still: Place, ledger: Ledger, boundary):
    """Not begun: anyone may take it, and the old holder's sending() fails from then on."""
    assert still.clock is not None
    slow, quick = still.guard(), still.guard()
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)
        current().sending()
        return ledger.add("slow")

    first = Thread(lambda: slow.run("charge", effect, key="o-1", payload={}, boundary=boundary))
    assert inside.wait(5)
    still.clock.advance(31)
    answer = quick.run("charge", lambda: ledger.add("quick"), key="o-1", payload={}, boundary=boundary)
    go.set()

    assert isinstance(first.outcome(), Fenced)
    assert ledger.entries == ["quick"]
    assert answer.attempts == 2
    assert still.peek("charge", "o-1").state is State.COMPLETED


def test_marked_a_lease_lost_before_sending_with_nobody_waiting_releases(still: Place):
    assert still.clock is not None
    clock, guard = still.clock, still.guard()

    def effect():
        clock.advance(31)
        current().sending()

    with pytest.raises(Fenced):
        guard.run("charge", effect, key="o-1", payload={}, boundary=Opaque(marked=True))
    assert still.peek("charge", "o-1").state is State.RELEASED


def test_marked_a_dead_holder_that_had_begun_is_in_doubt(still: Place, ledger: Ledger):
    assert still.clock is not None
    guard = still.guard()
    held = guard.hold("charge", key="o-1", payload={}, boundary=Opaque(marked=True))
    held.sending()
    still.clock.advance(31)

    with pytest.raises(InDoubt):
        still.guard().run("charge", ledger.add, key="o-1", payload={}, boundary=Opaque(marked=True))
    assert len(ledger) == 0


def test_marked_the_window_counts_from_the_mark(still: Place):
    assert still.clock is not None
    clock, guard, boundary = still.clock, still.guard(), Keyed(window=3600, marked=True)

    def effect():
        clock.advance(10)
        current().sending()
        raise TimeoutError

    with pytest.raises(TimeoutError):
        guard.run("charge", effect, key="o-1", payload={}, boundary=boundary)
    assert still.peek("charge", "o-1").first_sent_at == 1_700_000_010


def test_marked_sending_twice_is_sending_once(place: Place):
    guard = place.guard()

    def effect():
        held: Any = current()
        held.sending()
        first = held.record.begun_at
        held.sending()
        return held.record.begun_at == first

    assert guard.run("charge", effect, key="o-1", payload={}, boundary=Opaque(marked=True)).result is True


def test_marked_a_store_that_fails_at_the_mark_releases_because_nothing_was_sent(place: Place, ledger: Ledger):
    from samekey import StoreUnavailable

    side, spy = spied_side(place, "sync")
    spy.after["begin"] = raising(StoreUnavailable("down"), times=1)

    def effect():
        current().sending()
        return ledger.add()

    with pytest.raises(StoreUnavailable):
        side.run("charge", effect, key="o-1", payload={}, boundary=Opaque(marked=True))
    assert place.peek("charge", "o-1").state is State.RELEASED
    assert side.run("charge", effect, key="o-1", payload={}, boundary=Opaque(marked=True)).result == 1


def test_a_mark_is_not_needed_for_success(place: Place, side: Side):
    assert side.run("charge", lambda: 1, key="o-1", payload={}, boundary=Opaque(marked=True)).result == 1


# -- the boundary written by the claim ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "today", [Repeatable(), Keyed(), Asks(lambda record: Happened(1))], ids=["rep", "keyed", "asks"]
)
def test_recovery_obeys_the_boundary_written_by_the_claim(place: Place, colour: str, ledger: Ledger, today):
    """v1 Opaque charged and crashed; v2 is deployed as something that may run again: it does not."""
    in_doubt(place.side(colour), boundary=Opaque())

    with pytest.raises(InDoubt):
        place.side(colour).run("charge", ledger.add, key="o-1", payload={}, boundary=today)
    assert len(ledger) == 0


@pytest.mark.parametrize("claimed", [Keyed(), Asks(lambda record: Happened(1))], ids=["keyed", "asks"])
def test_todays_declaration_may_narrow_what_the_claim_allowed(place: Place, colour: str, ledger: Ledger, claimed):
    in_doubt(place.side(colour), boundary=claimed)

    with pytest.raises(InDoubt):
        place.side(colour).run("charge", ledger.add, key="o-1", payload={}, boundary=Opaque())
    assert len(ledger) == 0


def test_a_claim_that_never_agreed_to_believe_absence_is_not_believed(still: Place, colour: str, ledger: Ledger):
    assert still.clock is not None
    side = still.side(colour)
    in_doubt(side, boundary=Asks(lambda record: Absent()))
    still.clock.advance(DAY)

    with pytest.raises(InDoubt):
        side.run("charge", ledger.add, key="o-1", payload={}, boundary=Asks(lambda r: Absent(), believe_absent_after=1))
    assert len(ledger) == 0


@pytest.mark.parametrize(
    "today",
    [
        Asks(lambda record: Absent()),
        Asks(lambda record: Absent(), believe_absent_after=2 * DAY),
        Keyed(lookup=lambda record: Absent()),
    ],
    ids=["taken back", "later", "another boundary"],
)
def test_a_belief_that_today_s_code_has_not_is_not_acted_upon(still: Place, colour: str, ledger: Ledger, today):
    """v1 believed an absence after a second and charged twice; v2 no longer does, also for what v1 left in doubt."""
    assert still.clock is not None
    side = still.side(colour)
    in_doubt(side, boundary=Asks(lambda record: Absent(), believe_absent_after=1))
    still.clock.advance(DAY)

    with pytest.raises(InDoubt):
        side.run("charge", ledger.add, key="o-1", payload={}, boundary=today)
    assert len(ledger) == 0


def test_a_window_that_today_s_code_says_is_shorter_is_the_shorter_one(still: Place, colour: str, ledger: Ledger):
    """v1 took the provider's window for a day; v2 knows better: an hour later nobody may rely on it."""
    assert still.clock is not None
    side = still.side(colour)
    in_doubt(side, boundary=Keyed())
    still.clock.advance(3600)

    with pytest.raises(InDoubt, match="window is over"):
        side.run("charge", ledger.add, key="o-1", payload={}, boundary=Keyed(window=3600))
    assert len(ledger) == 0
    assert side.run("charge", ledger.add, key="o-1", payload={}, boundary=Keyed(window=3 * 3600)).result == 1


def test_repeatable_takes_over_a_dead_holder_one_at_a_time(still: Place, colour: str, ledger: Ledger):
    assert still.clock is not None
    still.guard().hold("charge", key="o-1", payload={}, boundary=Repeatable())
    still.clock.advance(31)
    sides = [still.side(colour) for _ in range(6)]

    answers = together(6, lambda n: sides[n].run("charge", ledger.add, key="o-1", payload={}, boundary=Repeatable()))

    assert [answer.result for answer in answers] == [1] * 6
    assert len(ledger) == 1


def test_a_retention_below_the_providers_window_is_refused(place: Place):
    with pytest.raises(Misconfigured, match="window"):
        place.guard(policy=Policy(retention=60)).run("charge", int, key="o-1", payload={}, boundary=Keyed(window=61))


@pytest.mark.parametrize("window", [20, 30])
def test_a_window_that_no_lease_fits_in_is_refused(place: Place, window: int):
    """A re-run must end before the provider forgets: then not even a retry at once could be one."""
    with pytest.raises(Misconfigured, match=r"charge: the lease \(30 s\).*window"):
        place.guard().run("charge", int, key="o-1", payload={}, boundary=Keyed(window=window))
    short = Policy(lease=window - 1)
    assert (
        place.guard(policy=short).run("charge", int, key="o-1", payload={}, boundary=Keyed(window=window)).result == 0
    )


@pytest.mark.usefixtures("looks_each_time")
def test_whoever_takes_over_a_claim_made_after_a_loss_asks_first_too(sqlite: Place, ledger: Ledger):
    """The file was replaced; the first to claim anew crashed before it asked. The next must not run blindly."""
    asked = []

    def lookup(record: Record):
        asked.append(record.attempts)
        return Happened("found on the books")

    boundary = Asks(lookup, marked=True)
    guard = sqlite.guard(policy=Policy(lease=0.05, patience=0.5))
    guard.run("other", lambda: 1, key="warm", payload={}, policy=Policy())
    for path in sqlite.folder.glob("keys.db*"):
        path.unlink()
    with Guard(sqlite.url, policy=Policy(lease=0.05)) as crashed:
        held = crashed.hold("charge", key="o-1", payload={}, boundary=boundary)
        held.provider_key()  # type: ignore[union-attr]  # or it would be let go as it is dropped
        assert not asked  # a process that never saw the loss does not know of it
    del held
    gc.collect()
    crashed.close()  # which left its store to the hold

    answer = guard.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)

    assert (answer.result, len(ledger), len(asked)) == ("found on the books", 0, 1)


def test_an_effect_that_never_marks_although_it_should_is_told(memory: Place, caplog: pytest.LogCaptureFixture):
    """marked=True and a success without sending(): the promise of the mark is void, and somebody must hear of it."""
    memory.guard().run("charge", lambda: "done", key="o-1", payload={}, boundary=Opaque(marked=True))

    assert "did not call `sending()`" in caplog.text
