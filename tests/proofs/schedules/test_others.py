"""Who else is about while callers come and crash: an operator, a recovery worker, a sweeper - and all of them.

The operator is the real `Ops`, which is plain sync code. It is played step by step all the same: each time it asks
its store for something it is stopped, and run again from its start with one reply more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from samekey.core.boundary import Absent, Asks, Boundary, Declined, Happened, Keyed, Opaque, Repeatable
from samekey.core.call import Call
from samekey.core.commands import Command
from samekey.core.pursuit import pursue
from samekey.core.recovery import Look
from samekey.core.states import State
from samekey.ops import NOT_GIVEN, Ops, Resolution
from tests.figures import count
from tests.proofs.schedules.scene import KEY, FindOut, Sweep
from tests.proofs.schedules.search import Provider, Report, explore, replay
from tests.proofs.schedules.world import World, look_in_the_books

PROOF = os.environ.get("SAMEKEY_PROOF") == "1" or os.environ.get("SAMEKEY_BUDGET") == "full"

DAY = 24 * 3600.0
Steps = Generator[Command, Any, Any]


class Stopped(BaseException):
    """The sync code under play wants this command carried out before it can go on."""

    def __init__(self, command: Command) -> None:
        self.command = command


class Told:
    """A store, and whatever else the sync code asks, that knows only the replies given so far."""

    name = "played"

    def __init__(self, replies: tuple[Any, ...]) -> None:
        self._replies = iter(replies)

    def __call__(self, command: Command) -> Any:
        for reply in self._replies:
            return reply
        raise Stopped(command)

    def __getattr__(self, verb: str) -> Any:
        return self


def stepped(work: Callable[[Any], Any]) -> Steps:
    """Sync code as steps: `work` must do the same for the same replies."""
    replies: tuple[Any, ...] = ()
    while True:
        try:
            return work(Told(replies))
        except Stopped as stopped:
            command = stopped.command
        replies = (*replies, (yield command))


def look_and_speak(world: Any) -> None:
    """What a careful operator does: look at the record, find out how it stands, say so under the real rules."""
    ops = Ops(world)
    seen = ops.show(KEY)
    match world(FindOut(seen)):
        case Happened(result):
            ops.resolve(seen, Resolution.HAPPENED, who="ann", why="it is on the books", result=result)
        case Declined():
            ops.resolve(seen, Resolution.REFUSED, who="ann", why="they refused it")
        case Absent() if seen.state is not State.RELEASED:
            ops.resolve(seen, Resolution.NOT_DONE, who="ann", why="it cannot happen any more", result=NOT_GIVEN)


def operator(call: Call) -> Steps:
    yield from stepped(look_and_speak)


def worker(call: Call) -> Steps:
    """A recovery worker that can run the effect: its payload was kept."""
    yield from pursue(replace(call, to_caller=False), Look(can_run=True))


def asker(call: Call) -> Steps:
    """A recovery worker that cannot: it asks, adopts, lets go and parks."""
    yield from pursue(replace(call, to_caller=False), Look(can_run=False))


def sweeper(call: Call) -> Steps:
    yield Sweep()


OTHERS = {
    "an operator": (("O", operator),),
    "a worker": (("W", worker),),
    "a worker without payload": (("V", asker),),
    "a sweeper": (("S", sweeper),),
}
KINDS: dict[str, Boundary] = {
    "opaque": Opaque(),
    "opaque marked": Opaque(marked=True),
    "keyed": Keyed(window=DAY),
    "keyed marked": Keyed(window=DAY, marked=True),
    "keyed with lookup": Keyed(window=DAY, lookup=look_in_the_books),
    "asks": Asks(look_in_the_books),
    "asks marked": Asks(look_in_the_books, marked=True),
    "asks, believes": Asks(look_in_the_books, believe_absent_after=60.0),
    "asks, believes, marked": Asks(look_in_the_books, believe_absent_after=60.0, marked=True),
    "repeatable": Repeatable(),
}


def provider(name: str) -> Provider:
    return Provider(dedups="keyed" in name, retention=DAY) if "keyed" in name else Provider()


def played(worlds: str, name: str, report: Report) -> Report:
    """Counted for each kind of boundary, which is the first word of every name here."""
    kind = name.replace(",", " ").split()[0]
    count(f"search: {worlds}: {kind}", worlds=1, scenes=report.scenes, schedules=report.schedules)
    return report.check()


def bounds(who: str) -> dict[str, int]:
    """A worker is one caller more: with it, a crash and an expiry are what a search has the memory for."""
    if PROOF:
        return {"callers": 2, "crashes": 1, "expiries": 1} if "worker" in who else {"callers": 2}
    return {"callers": 1 if "worker" in who else 2, "crashes": 1, "expiries": 1, "timeouts": 0}


@pytest.mark.slow
@pytest.mark.parametrize("who", OTHERS)
@pytest.mark.parametrize("name", KINDS)
def test_every_promise_holds_with_others_about(name, who):
    """Two callers and one of the others, a crash, an expiry, an age; with the proof a timeout, and two of each."""
    options: dict[str, Any] = {"others": OTHERS[who], "retention": 2 * DAY, **bounds(who)}

    played(f"callers and {who}", name, explore(KINDS[name], provider=provider(name), **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_promise_holds_with_all_of_them_about(name):
    """One caller among an operator, a worker and a sweeper, with an expiry; with the proof a crash and a timeout."""
    others = tuple(one for who in ("an operator", "a worker", "a sweeper") for one in OTHERS[who])
    options: dict[str, Any] = {"others": others, "retention": 2 * DAY, "callers": 1, "expiries": 1}
    options |= {"crashes": 1, "timeouts": 1} if PROOF else {"crashes": 0, "timeouts": 0}

    played(
        "a caller among operator, worker and sweeper", name, explore(KINDS[name], provider=provider(name), **options)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asks", "asks marked"])
def test_an_old_decline_does_not_speak_for_a_request_after_the_operators_word(name):
    """A was declined and did not hear it; the operator said not done, B sent, and Z was told of A's decline."""
    options: dict[str, Any] = {"others": OTHERS["an operator"], "crashes": 1, "expiries": 0, "ages": 0}

    played("declined, and an operator", name, explore(KINDS[name], provider=Provider(broke=True), **options))


def test_the_operator_speaks_through_the_real_rules():
    """What it says about a doubt stands; and a holder that is alive is never spoken over."""
    world = World(Opaque(), others=OTHERS["an operator"])
    said = ["O reads", "O finds out", "O reads", "O settles in_doubt as passer-by", "O settles completed as operator"]
    last = replay(world, ["A opens", "A sends", "A's request lands", "the lease ends", *said])[-1]
    alive = replay(world, ["A opens", "A sends", "A's request lands", "O reads", "O finds out"])[-1]

    assert last.scene.record is not None
    assert last.scene.record.state is State.COMPLETED
    assert alive.end is not None
    assert alive.end.what == "CannotResolve"


def test_a_word_about_what_moved_on_is_not_written():
    """The operator was shown A's doubt; W took it and works on it."""
    world = World(Keyed(), Provider(dedups=True), others=(*OTHERS["an operator"], *OTHERS["a worker"]), callers=1)
    shown = ["A opens", "A sends", "A's request lands", "A crashes", "the lease ends", "O reads", "O finds out"]
    moved = ["W reads", "W settles in_doubt as passer-by", "W takes", "O reads"]
    last = replay(world, [*shown, *moved])[-1]

    assert last.end is not None
    assert last.end.what == "MovedOn"


@pytest.mark.parametrize("swept", [[], ["S sweeps"]], ids=["not swept yet", "swept"])
def test_after_retention_the_key_is_new(swept):
    """That is what retention says: from then on nothing is remembered, and the next caller runs."""
    world = World(Opaque(), others=OTHERS["a sweeper"], retention=2 * DAY)
    first = ["A opens", "A sends", "A's request lands", "A settles completed as holder", "the retention ends"]
    last = replay(world, [*first, *swept, "B opens", "B sends", "B's request lands"])[-1]

    assert last.scene.record is not None
    assert (last.scene.record.attempt, last.scene.record.token) == ("B", 2)
