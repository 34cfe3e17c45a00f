"""The windows that the guarantees leave open, each one shown: a promise with conditions is honest only with them.

Every test first tells the schedule, choice by choice, and then lets the search find it by itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from samekey import Fenced, Guard, Held, NotDone, current
from samekey.core.boundary import Absent, Asks, Declined, Keyed, Opaque, Repeatable
from samekey.core.states import State
from samekey.ops import Ops
from samekey.stores.memory import MemoryStore
from samekey.testing import ManualClock
from tests.proofs.schedules.scene import Scene
from tests.proofs.schedules.search import PROMISES, Provider, explore, one_effect, replay
from tests.proofs.schedules.world import World, look_in_the_books

BELIEF = 60.0
DEDUPS = Provider(dedups=True)


def told(world: World, *choices: str) -> Scene:
    """The scene at the end of this story."""
    return replay(world, choices)[-1].scene


def found(*args: Any, **options: Any) -> str:
    """The promise that the search finds broken."""
    (violation,) = explore(*args, **options).violations
    return violation.promise


# -- time ------------------------------------------------------------------------------------------------------


def test_a_holder_that_sleeps_longer_than_lease_and_belief_charges_twice():
    """Asks(believe_absent_after), unmarked: nothing stops a sleeper that has its hold and has not sent yet."""
    boundary = Asks(look_in_the_books, believe_absent_after=BELIEF)
    scene = told(
        World(boundary, punctual=False),
        "A opens",
        "the lease ends",
        "the belief is of age",
        "B opens",
        "B settles in_doubt as passer-by",
        "B wants to ask",
        "B asks the provider",
        "B is answered",
        "B takes",
        "B sends",
        "B's request lands",
        "A sends",
        "A's request lands",
    )

    assert [charge.by for charge in scene.books.charges] == ["B", "A"]
    assert found(boundary, punctual=False) == "one_effect"


def test_the_mark_closes_that_window_up_to_the_send():
    """Asks(believe_absent_after, marked): the sleeper is stopped at its mark; only one that sleeps after it is not."""
    boundary = Asks(look_in_the_books, believe_absent_after=BELIEF, marked=True)
    before_the_mark = ["A opens", "the lease ends", "the belief is of age", "B opens", "B takes", "B marks", "A marks"]
    stopped = replay(World(boundary, punctual=False), [*before_the_mark, "A settles released as holder"])[-1]
    scene = told(
        World(boundary, punctual=False),
        "A opens",
        "A marks",
        "the lease ends",
        "the belief is of age",
        "B opens",
        "B settles in_doubt as passer-by",
        "B wants to ask",
        "B asks the provider",
        "B is answered",
        "B takes",
        "B marks",
        "B sends",
        "B's request lands",
        "A sends",
        "A's request lands",
    )

    assert stopped.end is not None
    assert stopped.end.what == "Fenced"
    assert [charge.by for charge in scene.books.charges] == ["B", "A"]
    assert found(boundary, punctual=False) == "one_effect"


def test_a_provider_that_forgets_sooner_than_declared_charges_twice():
    """Keyed(window=24h) in front of a provider that keeps keys for an hour."""
    provider = Provider(dedups=True, retention=3600.0)
    moves = replay(
        World(Keyed(), provider),
        ["A opens", "A sends", "A times out", "A settles in_doubt as holder", "A's request lands", "B opens"],
    )
    known = moves[-1].scene.books.known[0].key[:4]
    scene = told(
        World(Keyed(), provider),
        *(move.label for move in moves),
        f"the provider forgets {known}",
        "B takes",
        "B sends",
        "B's request lands",
    )

    assert [charge.by for charge in scene.books.charges] == ["A", "B"]
    assert found(Keyed(), provider=provider) == "one_effect"


def test_a_holder_that_sleeps_past_the_window_charges_twice():
    """Keyed: A has its hold, sleeps until the provider has forgotten what B did under the same key, and sends."""
    provider = Provider(dedups=True, retention=3600.0)
    choices = ["A opens", "the lease ends", "B opens", "B settles in_doubt as passer-by", "B takes", "B sends"]
    moves = replay(World(Keyed(window=3600.0), provider, punctual=False), [*choices, "B's request lands"])
    known = moves[-1].scene.books.known[0].key[:4]
    scene = told(
        World(Keyed(window=3600.0), provider, punctual=False),
        *(move.label for move in moves),
        f"the provider forgets {known}",
        "A sends",
        "A's request lands",
    )

    assert [charge.by for charge in scene.books.charges] == ["B", "A"]
    assert found(Keyed(window=3600.0), provider=provider, punctual=False) == "one_effect"


# -- what stands between us and the provider -------------------------------------------------------------------


def test_a_retrying_proxy_charges_twice():
    """No boundary helps against a request that is copied on its way - except a provider that dedups."""
    scene = told(
        World(Opaque(), Provider(copies=1)),
        "A opens",
        "A sends",
        "A's request is copied",
        "A's request lands",
        "a copy lands",
    )

    assert len(scene.books.charges) == 2
    for boundary in (Opaque(), Opaque(marked=True), Asks(look_in_the_books, marked=True)):
        assert found(boundary, provider=Provider(copies=1)) == "one_effect"
    explore(Keyed(), provider=Provider(dedups=True, copies=1), crashes=1).check()


def test_a_double_effect_is_told_by_the_lookup():
    """Once it is on the books twice, nobody runs it again, and whoever asks is told InDoubt."""
    world = World(Asks(look_in_the_books), Provider(copies=1), callers=1)
    moves = replay(
        world,
        [
            "A opens",
            "A sends",
            "A's request is copied",
            "A's request lands",
            "A crashes",
            "a copy lands",
            "faults stop, Z comes",
            "Z opens",
            "Z settles in_doubt as passer-by",
            "Z wants to ask",
            "Z asks the provider",
            "Z is answered",
            "Z testifies",
            "Z ends its asking",
        ],
    )

    assert moves[-1].end is not None
    assert moves[-1].end.what == "InDoubt"
    assert "conflicting" in moves[-2].events


# -- effects that do not keep their word -----------------------------------------------------------------------


def test_a_timeout_called_not_done_charges_twice():
    """An effect that says NotDone when it does not know releases the key with its request on the way."""
    scene = told(
        World(Opaque(), effect="presume"),
        "A opens",
        "A sends",
        "A times out",
        "A settles released as holder",
        "B opens",
        "B takes",
        "B sends",
        "B's request lands",
        "A's request lands",
    )

    assert [charge.by for charge in scene.books.charges] == ["B", "A"]
    assert found(Opaque(), effect="presume") == "released_is_true"
    assert found(Asks(look_in_the_books), effect="presume") == "released_is_true"


def test_a_mark_that_is_declared_and_never_written_charges_twice():
    """marked=True says: before held.sending() nothing was sent. An effect that never calls it sends all the same."""
    scene = told(
        World(Opaque(marked=True), effect="forget"),
        "A opens",
        "A sends",
        "A times out",
        "A settles released as holder",
        "B opens",
        "B takes",
        "B sends",
        "B's request lands",
        "A's request lands",
    )

    assert [charge.by for charge in scene.books.charges] == ["B", "A"]
    assert found(Opaque(marked=True), effect="forget") == "released_is_true"


def test_repeatable_may_repeat_and_still_answers_once():
    """Two effects, as declared; one answer."""
    scene = told(
        World(Repeatable()),
        "A opens",
        "A sends",
        "A's request lands",
        "the lease ends",
        "B opens",
        "B settles in_doubt as passer-by",
        "B takes",
        "B sends",
        "B's request lands",
        "B settles completed as holder",
        "A settles completed as holder",
        "A testifies",
    )

    assert len(scene.books.charges) == 2
    assert len(scene.answers) == 1


def test_what_failed_under_repeatable_runs_again_under_a_stricter_boundary():
    """A failure under Repeatable is released, not in doubt: a deploy that declares Opaque runs the key once more."""
    scene = told(
        World((Repeatable(), Opaque())),
        "A opens",
        "A sends",
        "A times out",
        "A settles released as holder",
        "A's request lands",
        "B opens",
        "B takes",
        "B sends",
        "B's request lands",
        "B settles completed as holder",
    )

    assert [charge.by for charge in scene.books.charges] == ["A", "B"]
    assert found((Repeatable(), Opaque())) == "one_effect"


def test_a_refusal_under_repeatable_closes_a_key_whose_failed_attempt_lands_later():
    """Nothing of Repeatable is ever a doubt, so B's refusal speaks for the key, although A's request lands."""
    scene = told(
        World(Repeatable(), effect=("charge", "refuse")),
        "A opens",
        "A sends",
        "A times out",
        "A settles released as holder",
        "B opens",
        "B takes",
        "B refuses",
        "B settles closed as holder",
        "A's request lands",
    )

    assert scene.record is not None
    assert (scene.record.state, len(scene.books.charges)) == (State.CLOSED, 1)


# -- a store that loses what it acknowledged -------------------------------------------------------------------


def test_a_lost_claim_is_a_second_effect():
    """A failover that loses the claim: Opaque runs again; the fence still stops the first holder's write."""
    scene = told(
        World(Opaque(), losses=1),
        "A opens",
        "A sends",
        "the store loses its memory",
        "B opens",
        "B sends",
        "A's request lands",
        "A settles completed as holder",
        "B's request lands",
    )

    assert len(scene.books.charges) == 2
    assert scene.record is not None
    assert (scene.record.state, scene.record.attempt) == (State.STARTED, "B")
    assert found(Opaque(), losses=1) == "one_effect"


def test_a_provider_that_dedups_survives_a_lost_claim():
    """The provider key comes from the key alone, so a second claim sends the same one."""
    others = [promise for promise in PROMISES if promise is not one_effect]

    explore(Keyed(), provider=DEDUPS, crashes=1, expiries=1, losses=1, unless=others).check()


@pytest.mark.parametrize("keyed", [Keyed(keeps_declines=True), Keyed(lookup=look_in_the_books)])
def test_a_lost_claim_keeps_its_provider_key(keyed):
    """A charged, the store forgot it, B gave up: the next one must not go by another provider key than A did."""
    others = [promise for promise in PROMISES if promise is not one_effect]
    provider = Provider(dedups=True, keeps_declines=True)

    explore(
        keyed, provider=provider, effect=("charge", "give up", "charge"), crashes=1, expiries=1, losses=1, unless=others
    ).check()


def test_asking_first_after_a_loss_finds_what_landed():
    """Asks: what looks new is looked up before its first run. What is still on its way is found by nobody."""
    asks = World(Asks(look_in_the_books), losses=1)
    start = ["A opens", "A sends"]
    lost = ["the store loses its memory", "B opens", "B asks the provider", "B is answered"]
    found_it = replay(asks, [*start, "A's request lands", *lost, "B settles completed as holder"])[-1]
    scene = told(asks, *start, *lost, "B sends", "B's request lands", "A's request lands")

    assert found_it.end is not None
    assert (found_it.end.what, len(found_it.scene.books.charges)) == ("completed", 1)
    assert len(scene.books.charges) == 2


def test_a_try_that_gives_up_after_a_loss_does_not_hide_the_request_that_was_on_its_way():
    """Asks: B asks too early and gives up. Z asks under the same reference, and so about A's request too."""
    world = World(Asks(look_in_the_books), losses=1, effect=("charge", "give up", "charge"))
    before = ["A opens", "A sends", "the store loses its memory", "B opens", "B asks the provider", "B is answered"]
    after = ["B gives up", "B settles released as holder", "A's request lands", "A crashes", "faults stop, Z comes"]
    last = ["Z opens", "Z takes", "Z asks the provider", "Z is answered", "Z settles completed as holder"]
    end = replay(world, [*before, *after, *last])[-1]

    assert end.end is not None
    assert (end.end.what, [charge.by for charge in end.scene.books.charges]) == ("completed", ["A"])


def test_whoever_takes_over_after_a_loss_asks_first_too():
    """B claimed after the loss and crashed before it asked: Z, which takes over, must not run what A has done.

    So a store says `after_loss` of every record made after the loss, not only of those on their first attempt.
    """
    world = World(Asks(look_in_the_books, marked=True), losses=1)
    before = ["A opens", "A marks", "A sends", "A's request lands", "the store loses its memory"]
    after = ["B opens", "B crashes", "A crashes", "faults stop, Z comes", "Z opens", "Z takes"]
    asked = ["Z asks the provider", "Z is answered"]
    last = replay(world, [*before, *after, *asked, "Z settles completed as holder"])[-1]

    assert last.end is not None
    assert (last.end.what, [charge.by for charge in last.scene.books.charges]) == ("completed", ["A"])


@pytest.mark.parametrize("boundary", [Keyed(window=3600.0), Asks(look_in_the_books, believe_absent_after=BELIEF)])
def test_in_a_punctual_world_those_windows_are_shut(boundary):
    """The same worlds, in which nobody oversleeps and the provider remembers: nothing is found."""
    explore(boundary, provider=Provider(dedups=isinstance(boundary, Keyed))).check()


# -- another life of the key -----------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [False, True])
def test_a_decline_of_an_earlier_life_speaks_for_the_next_one(marked):
    """Asks, freed (or used again after retention): references start anew, and the provider remembers the old ones."""
    clock, declined, charges = ManualClock(), set(), []
    store = MemoryStore(clock)
    asks = Asks(lambda record: Declined() if record.provider_key() in declined else Absent(), marked=marked)

    def give_up():
        declined.add(current().provider_key())
        raise NotDone("declined")

    def call(effect):
        return Guard(store).run("charge", effect, key="o-1", payload={}, boundary=asks)

    def charge(held, name):
        if marked:
            held.sending()
        charges.append(name)

    with pytest.raises(NotDone):
        call(give_up)
    call(lambda: charge(current(), "first life"))
    settled = Guard(store).peek("charge", "o-1")
    assert settled is not None
    Ops(store).free(settled, who="ada", why="refunded")
    hold = Guard(store).hold("charge", key="o-1", payload={}, boundary=asks)
    assert isinstance(hold, Held)
    with hold as sleeper:
        clock.advance(3600)  # it sleeps past its lease; whoever comes asks, and hears the old decline
        call(lambda: charge(current(), "second life"))
        with suppress(Fenced):
            charge(sleeper, "the sleeper")  # and wakes up
        sleeper.complete(None)

    assert charges == ["first life", "second life"] + ["the sleeper"] * (not marked)
