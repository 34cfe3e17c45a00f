"""Every schedule of two callers, two crashes and two expiries, on every boundary.

The bounds are stated with each test, and `-s` prints what they cover. With SAMEKEY_PROOF=1 (or SAMEKEY_BUDGET=full,
as `make proof` sets it) three callers are played as well, and deploys with two old callers.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest

from samekey.core.boundary import Asks, Boundary, Keyed, Opaque, Repeatable
from tests.figures import count
from tests.proofs.schedules.search import (
    PROMISES,
    Promise,
    Provider,
    Report,
    closed_is_true,
    ends_well,
    evidence_heard,
    explore,
    fenced,
    heals,
    one_answer,
    one_effect,
    released_is_true,
    replay,
    settled_is_final,
)
from tests.proofs.schedules.world import World, look_in_the_books

PROOF = os.environ.get("SAMEKEY_PROOF") == "1" or os.environ.get("SAMEKEY_BUDGET") == "full"

DAY = 24 * 3600.0
BELIEF = 60.0
DEDUPS = Provider(dedups=True)
ANY = frozenset[str]()


class Case(NamedTuple):
    boundary: Boundary
    provider: Provider = Provider()
    effect: str | tuple[str, ...] = "charge"
    reached: frozenset[str] = ANY  # must be seen at least once, or the search has lost its power
    never: frozenset[str] = ANY


CASES = {
    "opaque": Case(Opaque(), reached=frozenset({"Z: InDoubt", "Z: completed", "a caller: InProgress"})),
    "opaque, declined": Case(Opaque(), Provider(broke=True), reached=frozenset({"released", "Z: completed"})),
    "opaque, refused": Case(Opaque(), Provider(refuses=True), reached=frozenset({"Z: Refused"})),
    "opaque marked": Case(Opaque(marked=True), reached=frozenset({"a caller: Fenced", "released", "Z: InDoubt"})),
    "keyed": Case(
        Keyed(window=DAY),
        DEDUPS,
        reached=frozenset({"taken_over", "late", "a caller: Fenced", "Z: InDoubt"}),
    ),
    "keyed, declined": Case(
        Keyed(), Provider(dedups=True, broke=True), reached=frozenset({"Z: NotDone", "Z: completed"})
    ),
    "keyed, refused": Case(Keyed(), Provider(dedups=True, refuses=True), reached=frozenset({"Z: Refused"})),
    "keyed with lookup": Case(
        Keyed(window=DAY, lookup=look_in_the_books),
        DEDUPS,
        reached=frozenset({"provider: Happened", "provider: Absent", "taken_over"}),
    ),
    "keyed, kept declines": Case(
        Keyed(keeps_declines=True),
        Provider(dedups=True, broke=True, keeps_declines=True),
        reached=frozenset({"released", "Z: completed", "Z: NotDone"}),
    ),
    "keyed, forgotten": Case(
        Keyed(window=DAY), Provider(dedups=True, retention=DAY), reached=frozenset({"taken_over", "Z: InDoubt"})
    ),
    "keyed with lookup, forgotten": Case(
        Keyed(window=DAY, lookup=look_in_the_books),
        Provider(dedups=True, retention=DAY),
        reached=frozenset({"taken_over", "provider: Happened", "provider: Absent"}),
    ),
    "keyed marked": Case(Keyed(marked=True), DEDUPS, reached=frozenset({"taken_over", "a caller: Fenced", "released"})),
    "asks": Case(Asks(look_in_the_books), reached=frozenset({"provider: Happened", "provider: Absent", "Z: InDoubt"})),
    "asks, declined": Case(
        Asks(look_in_the_books), Provider(broke=True), reached=frozenset({"provider: Declined", "released"})
    ),
    "asks, refused": Case(
        Asks(look_in_the_books), Provider(refuses=True), reached=frozenset({"provider: Declined", "Z: Refused"})
    ),
    "asks marked": Case(Asks(look_in_the_books, marked=True), reached=frozenset({"released", "provider: Absent"})),
    "asks, believes": Case(
        Asks(look_in_the_books, believe_absent_after=BELIEF), reached=frozenset({"taken_over", "provider: Happened"})
    ),
    "asks, believes, declined": Case(
        Asks(look_in_the_books, believe_absent_after=BELIEF),
        Provider(broke=True),
        reached=frozenset({"taken_over", "provider: Declined", "released"}),
    ),
    "asks, believes, refused": Case(
        Asks(look_in_the_books, believe_absent_after=BELIEF),
        Provider(refuses=True),
        reached=frozenset({"taken_over", "provider: Declined"}),
    ),
    "asks, believes, marked": Case(
        Asks(look_in_the_books, believe_absent_after=BELIEF, marked=True),
        reached=frozenset({"taken_over", "a caller: Fenced", "released"}),
    ),
    "repeatable": Case(
        Repeatable(), reached=frozenset({"taken_over", "late", "released"}), never=frozenset({"Z: InDoubt"})
    ),
    "repeatable, declined": Case(Repeatable(), Provider(broke=True), never=frozenset({"Z: InDoubt"})),
}


def played(worlds: str, name: str, report: Report) -> Report:
    """Counted for each kind of boundary, which is the first word of every name here."""
    kind = name.replace(",", " ").split()[0]
    count(f"search: {worlds}: {kind}", worlds=1, scenes=report.scenes, schedules=report.schedules)
    return report.check()


@pytest.mark.proof
@pytest.mark.parametrize("name", CASES)
def test_every_promise_holds_in_every_schedule(name):
    """Two callers and a third that comes when faults have stopped; two crashes, two expiries, a timeout, an age."""
    case = CASES[name]
    report = explore(case.boundary, provider=case.provider, effect=case.effect, callers=2, crashes=2, expiries=2)

    played("two callers", name, report)
    assert case.reached <= report.reached
    assert not case.never & report.reached


# -- effects that end before anything is sent ------------------------------------------------------------------

KINDS: dict[str, Boundary] = {
    "opaque": Opaque(),
    "opaque marked": Opaque(marked=True),
    "keyed": Keyed(),
    "keyed marked": Keyed(marked=True),
    "keyed with lookup": Keyed(lookup=look_in_the_books),
    "asks": Asks(look_in_the_books),
    "asks marked": Asks(look_in_the_books, marked=True),
    "asks, believes": Asks(look_in_the_books, believe_absent_after=BELIEF),
    "asks, believes, marked": Asks(look_in_the_books, believe_absent_after=BELIEF, marked=True),
    "repeatable": Repeatable(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("word", ["give up", "refuse", "break"])
def test_what_an_effect_says_before_it_sends(name, word):
    """NotDone, Refused and a bug, from the first caller or from the second, around one that charges."""
    for effect in ((word, "charge"), ("charge", word, "charge")):
        played(
            "what an effect says before it sends",
            name,
            explore(KINDS[name], provider=Provider(dedups="keyed" in name), effect=effect),
        )


# -- liveness where no person should be needed -------------------------------------------------------------------


def test_within_its_window_keyed_needs_no_person():
    """Whatever crashed, whoever comes next gets the answer."""
    report = played("two callers, no age", "keyed", explore(Keyed(), provider=DEDUPS, ages=0))

    assert "Z: completed" in report.reached
    assert "Z: InDoubt" not in report.reached


def test_a_crash_before_the_mark_needs_no_person():
    """Marked, and no request ever leaves: the next caller always runs."""
    report = played(
        "what an effect says before it sends",
        "opaque",
        explore(Opaque(marked=True), effect=("break", "break", "charge")),
    )

    assert "Z: completed" in report.reached
    assert "Z: InDoubt" not in report.reached


# -- a store that does not answer, and one that forgets ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_store_that_does_not_answer(name):
    """One command is carried out at any later time, or never; with the proof, a claim is cancelled as well."""
    provider, cancels = Provider(dedups="keyed" in name), 1 if PROOF else 0
    report = explore(KINDS[name], provider=provider, crashes=1, expiries=1, outages=1, cancels=cancels)

    played("a store that does not answer", name, report)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_caller_cancelled_in_the_middle_of_a_claim(name):
    """It withdraws; its own claim may reach the store before, in between, or long after."""
    report = explore(KINDS[name], provider=Provider(dedups="keyed" in name), crashes=1, expiries=1, cancels=1)

    played("cancelled claims", name, report)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_no_stale_write_after_the_same_tokens_came_again(name):
    """The store forgets everything and counts its tokens anew: the attempt id still tells a zombie from the holder.

    A lost claim is a lost claim, so one effect is not promised here; a fence is.
    """
    kept: set[Promise] = {fenced, ends_well, heals, settled_is_final, evidence_heard}
    unless = [one for one in PROMISES if one not in kept]

    report = explore(KINDS[name], provider=Provider(dedups="keyed" in name), losses=1, unless=unless)

    played("a store that forgets", name, report)


# -- a deploy that changes the boundary ------------------------------------------------------------------------------

# What failed under Repeatable is released, and may have happened: a window of a deploy that takes Repeatable back.
AFTER_REPEATABLE = (one_effect, released_is_true, closed_is_true)


@pytest.mark.slow
@pytest.mark.parametrize("old", KINDS)
def test_a_deploy_that_changes_the_boundary(old):
    """One old caller, any crash; then new ones, whose code sends the provider key only if they declare Keyed."""
    for new in KINDS:
        if new != old:
            unless = AFTER_REPEATABLE if old == "repeatable" else ()
            report = explore((KINDS[old], KINDS[new]), provider=DEDUPS, unless=unless)
            played("a deploy that changes the boundary", old, report)


# -- a holder that sleeps for as long as it likes ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if "believes" not in name])
def test_a_paused_holder_where_no_promise_rests_on_time(name):
    """Nobody has to be punctual: only a belief, and a provider that forgets, ask for it (see test_windows.py)."""
    provider = Provider(dedups="keyed" in name)

    played("holders that sleep for as long as they like", name, explore(KINDS[name], provider=provider, punctual=False))


# -- found here first: each of these broke a promise before core was mended -------------------------------------------


def test_a_refusal_does_not_speak_for_an_attempt_in_doubt():
    """A timed out; B took over and refused, and the key was closed for good; then A's request landed."""
    explore(Keyed(), provider=DEDUPS, effect=("charge", "refuse")).check()


@pytest.mark.parametrize("name", ["asks", "asks marked", "asks, believes", "asks, believes, marked"])
def test_an_old_decline_does_not_speak_for_a_later_request(name):
    """A was declined, B timed out; the books showed A's decline under the same reference, and then B's landed."""
    explore(KINDS[name], provider=Provider(broke=True)).check()


@pytest.mark.parametrize("lookup", [None, look_in_the_books], ids=["alone", "with lookup"])
@pytest.mark.parametrize("window", [45.0, DAY], ids=["sends within its lease", "pauses before it takes"])
def test_nobody_runs_again_past_the_window(window, lookup):
    """B looked while the provider still knew the key, and sent when it had just forgotten it."""
    explore(Keyed(window=window, lookup=lookup), provider=Provider(dedups=True, retention=window)).check()


@pytest.mark.slow
def test_evidence_on_a_marked_record_heals():
    """After a lost memory A testified on B's unbegun record: every later caller was told InProgress, for ever."""
    unless = (one_effect, one_answer, released_is_true, closed_is_true)
    explore(Opaque(marked=True), crashes=1, expiries=0, timeouts=0, losses=1, unless=unless).check()


@pytest.mark.parametrize("boundary", [Keyed(), Repeatable()], ids=["keyed", "repeatable"])
def test_evidence_survives_a_store_that_does_not_answer(boundary):
    """A was late with its success, and the one command that would keep it got no answer."""
    explore(boundary, provider=DEDUPS, crashes=0, expiries=1, outages=1).check()


@pytest.mark.slow
def test_a_decline_does_not_speak_for_an_older_request_after_a_deploy():
    """A (Keyed) was on its way, B (Keyed) was declined; the new code asked and freed the key, and A's landed."""
    keyed, asks = Keyed(lookup=look_in_the_books), Asks(look_in_the_books)
    explore((keyed, keyed, asks), provider=Provider(dedups=True, broke=True), crashes=0).check()


def test_an_answer_is_as_old_as_its_question():
    """B asked, A's request landed, and only then B heard "absent": no longer so, and it runs nothing."""
    world = World(Asks(look_in_the_books))
    late = ["A opens", "A sends", "the lease ends", "B opens", "B settles in_doubt as passer-by", "B wants to ask"]
    last = replay(world, [*late, "B asks the provider", "A's request lands", "B is answered", "B ends its asking"])[-1]

    assert last.end is not None
    assert (last.end.what, len(last.scene.books.charges)) == ("InDoubt", 1)


# -- the search itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["opaque marked", "keyed", "asks, believes"])
def test_nothing_is_decided_by_what_is_only_told(name):
    """With every field of the record kept apart the same things happen, and as many schedules are counted."""
    case = CASES[name]
    bounds: dict[str, Any] = {"provider": case.provider, "crashes": 1, "expiries": 1}
    wiped, exact = explore(case.boundary, **bounds), explore(case.boundary, exact=True, **bounds)

    assert exact.scenes >= wiped.scenes
    assert (exact.reached, exact.violations) == (wiped.reached, wiped.violations)
    assert exact.schedules == wiped.schedules


def test_a_schedule_can_be_replayed():
    """The choices of a story are plain words, and wrong ones are answered with the possible ones."""
    world = World(Opaque())

    moves = replay(world, ["A opens", "A sends", "A's request lands", "A settles completed as holder", "B opens"])
    assert [move.end.what for move in moves if move.end] == ["completed", "completed"]
    with pytest.raises(ValueError, match="cannot happen, only: A sends, A crashes, B opens"):
        replay(world, ["A opens", "A's request lands"])


# -- three callers ---------------------------------------------------------------------------------------------------

if PROOF:  # minutes of work: SAMEKEY_PROOF=1, or `make proof`

    @pytest.mark.slow
    @pytest.mark.timeout(0)
    @pytest.mark.parametrize("name", CASES)
    def test_three_callers(name):
        case = CASES[name]
        played("three callers", name, explore(case.boundary, provider=case.provider, effect=case.effect, callers=3))

    @pytest.mark.slow
    @pytest.mark.timeout(0)
    @pytest.mark.parametrize("old", KINDS)
    def test_a_deploy_with_two_old_callers(old):
        for new in KINDS:
            if new != old:
                boundaries = (KINDS[old], KINDS[old], KINDS[new])
                unless = AFTER_REPEATABLE if old == "repeatable" else ()
                played(
                    "a deploy, with two old callers",
                    old,
                    explore(boundaries, provider=DEDUPS, callers=3, crashes=1, expiries=1, unless=unless),
                )
