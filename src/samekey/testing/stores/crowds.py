"""Many at once: batches, waiting, and crowds that want the same key."""

from __future__ import annotations

import time

from samekey.core.commands import Ask, Command, Read, Renew, Take, Testify, Wait
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.testing.stores.scene import (
    LEASE,
    MARKED,
    OPAQUE,
    A,
    B,
    C,
    Scene,
    Steps,
    assert_same,
    freeing,
    scenario,
    settling,
    there,
)
from samekey.testing.stores.steps import Invoke, Pass, Pause, Together, lanes, over

CROWD = 16
PATIENCE = 20.0  # longer than any scenario waits: coming back sooner is what is shown
AT_ONCE = 8.0  # less than PATIENCE by far, more than the hiccups of a busy machine
SWEEPS = 4  # under a crowd: a sweep that looks first and deletes then is seen by one or two
UNMOVED = 0.5  # seconds that a waiter must stay when its key does not move; a store that returns early is sooner
HEAD_START = 0.03  # for a waiter to be waiting; if it is not yet, the answer is the same

# -- batch ---------------------------------------------------------------------------------------------


@scenario
def batch_answers_in_order(scene: Scene) -> Steps[None]:
    """Many commands in one call, each answered in its place, as if one had come after the other."""
    held = yield from scene.held("held")
    commands = (
        Read(scene.key("new")),
        Read(held.key),
        scene.opening("new", by=B),
        settling(held, State.COMPLETED, result=b"done"),
        Read(scene.key("absent")),
        scene.opening("new", by=C),
        Read(held.key),
    )

    unborn, unmoved, new, ended, absent, again, found = yield from Invoke("batch", (commands,))

    assert unborn is None
    assert_same(held, unmoved)
    assert (new.attempt, ended.state, absent) == (B, State.COMPLETED, None)
    assert_same(new, again)
    assert_same(ended, found)
    assert_same(ended, there((yield from over(1, Read(held.key)))))


@scenario
def batch_of_none_and_of_many(scene: Scene) -> Steps[None]:
    """Nothing asked, nothing answered; a hundred asked, a hundred answered."""
    assert (yield from Invoke("batch", ((),))) == []

    texts = [str(number) for number in range(100)]
    replies = yield from Invoke("batch", ([scene.opening(text) for text in texts],))

    assert [(reply.key.text, reply.attempt) for reply in replies] == [(text, A) for text in texts]


@scenario
def batch_keeps_a_failure_to_itself(scene: Scene) -> Steps[None]:
    """A command that this store cannot carry out is answered with its error; its neighbours are carried out."""
    odd = yield from scene.opening("odd", boundary="a boundary of another version")
    yield from scene.lose_lease(odd)
    commands = (
        scene.opening("before"),
        Take(odd, B, OPAQUE, LEASE, False),
        scene.opening("surrogate", attributes=(("name", "lone \ud800 surrogate"),)),
        scene.opening("after"),
    )

    before, taken, surrogate, after = yield from Invoke("batch", (commands,))

    for neighbour in (before, after):
        assert isinstance(neighbour, Record), f"answered with {neighbour!r}"
    for reply in (taken, surrogate):
        assert isinstance(reply, Exception | Record), f"answered with {reply!r}"
    assert there((yield from over(1, Read(scene.key("after"))))).attempt == A
    assert there((yield from over(1, Read(odd.key)))).attempt == A


@scenario
def a_command_that_fails_leaves_no_transaction_open(scene: Scene) -> Steps[None]:
    """After a command that failed, the next writes are committed, and seen over every other connection."""
    odd = yield from scene.opening("odd", boundary="a boundary of another version")
    yield from scene.lose_lease(odd)
    commands = (
        Take(odd, B, OPAQUE, LEASE, False),
        scene.opening("surrogate", attributes=(("name", "lone \ud800 surrogate"),)),
        Testify(odd.key, B, 1 << 70, State.CLOSED, None, "a token no database can count to"),
        Invoke("batch", ([Read(odd.key), Renew(odd, LEASE)],)),
    )
    for number, command in enumerate(commands):
        try:
            yield command
        except Exception:  # noqa: S110 - it may fail, with an error of the store's own
            pass

        held = yield from scene.written(scene.opening(f"next {number}"))
        yield from scene.written(settling(held, State.COMPLETED, result=b"done"))


# -- wait ----------------------------------------------------------------------------------------------


def _wait(seen: Record, timeout: float = PATIENCE) -> Invoke:
    return Invoke("wait", (Wait(seen), timeout))


def _timed(seen: Record, timeout: float = PATIENCE) -> Steps[tuple[Record | None, float]]:
    start = time.monotonic()
    reply: Record | None = yield from _wait(seen, timeout)
    return reply, time.monotonic() - start


@scenario
def wait_returns_at_once_when_it_already_moved(scene: Scene) -> Steps[None]:
    """Another state, other hands, another asker, a dead lease or no record at all: there is nothing to wait for."""
    settled = yield from scene.held("settled")
    yield from scene.settle(settled, State.COMPLETED, result=b"done")
    released = yield from scene.settled(State.RELEASED, "taken")
    yield from scene.take(released, B)
    dead = yield from scene.dead("dead")
    overtaken = yield from scene.dead("overtaken", boundary=MARKED)
    yield from scene.take(overtaken, B)
    quiet = yield from scene.doubted("no asker")
    doubt = yield from scene.doubted("another asks")
    asked = yield from scene.ask(doubt, B)
    yield from scene.ask(asked, B, seconds=0.0)
    yield from scene.ask(asked, C)
    freed = yield from scene.settled(State.RELEASED, "freed")
    yield from freeing(freed)

    for seen in (settled, released, dead, overtaken, quiet, asked):
        reply, seconds = yield from _timed(seen)
        assert_same(there(reply), (yield from scene.read(seen)))
        assert seconds < AT_ONCE
    reply, seconds = yield from _timed(freed)
    assert reply is None
    assert seconds < AT_ONCE


@scenario
def wait_is_woken_when_the_holder_settles(scene: Scene) -> Steps[None]:
    """The settle comes from another thread or task, over the same connection and over another one."""
    for connection in (0, 1):
        held = yield from scene.held(str(connection))
        settle_there = over(connection, settling(held, State.COMPLETED, result=b"done"))
        start = time.monotonic()

        (woken, *others), _ = yield from Together(((_wait(held),), (Pause(HEAD_START), settle_there)))

        assert not others
        assert (woken.state, woken.result) == (State.COMPLETED, b"done")
        assert time.monotonic() - start < AT_ONCE


@scenario
def wait_is_woken_when_the_lease_ends(scene: Scene) -> Steps[None]:
    """No notification is sent when a holder dies: the waiter returns when the lease ends on the store's clock."""
    held = yield from scene.held()
    seen = yield from scene.renew(held, seconds=scene.short * 3)
    start = time.monotonic()

    (woken,), _ = yield from Together(((_wait(seen),), (Pass(scene.short * 4),)))

    assert (woken.state, woken.fence, woken.lease_live) == (State.STARTED, held.fence, False)
    assert time.monotonic() - start < AT_ONCE


@scenario
def wait_gives_up_after_its_timeout(scene: Scene) -> Steps[None]:
    """Patience over, the record is shown as it is."""
    held = yield from scene.held()

    reply, seconds = yield from _timed(held, 0.05)

    assert_same(held, there(reply))
    assert there(reply).lease_live
    assert 0.04 <= seconds < AT_ONCE


@scenario
def wait_is_not_ended_by_a_renewal(scene: Scene) -> Steps[None]:
    """A holder that renews is still the holder: the wait lasts until its own deadline."""
    held = yield from scene.held()
    start = time.monotonic()

    (reply,), _ = yield from Together(((_wait(held, 0.1),), (Pause(HEAD_START), over(1, Renew(held, LEASE * 2)))))

    assert (reply.fence, reply.lease_live) == (held.fence, True)
    assert time.monotonic() - start >= 0.09


@scenario
def wait_does_not_return_early(scene: Scene) -> Steps[None]:
    """A waiter stays for its whole timeout while its key does not move, whatever happens to other keys meanwhile."""
    held = yield from scene.held()
    others = yield from Invoke("batch", ([scene.opening(f"other {number}") for number in range(4)],))
    start = time.monotonic()
    waiting = _wait(held, UNMOVED)
    meanwhile = (
        Pause(HEAD_START),
        *(over(number % 2, settling(one, State.COMPLETED, result=b"done")) for number, one in enumerate(others)),
        over(1, scene.opening("another", by=B)),
        over(1, Renew(held, LEASE)),
        over(1, scene.opening(by=B)),  # refused: the key is held
    )

    (reply,), _ = yield from Together(((waiting,), meanwhile))

    seconds = time.monotonic() - start
    assert seconds >= UNMOVED * 0.9, f"the key did not move, and the wait ended after {seconds:.2f} of {UNMOVED} s"
    assert (reply.fence, reply.state, reply.lease_live) == (held.fence, State.STARTED, True)


@scenario
def wait_is_woken_when_the_asking_ends(scene: Scene) -> Steps[None]:
    """A waiter for an asker's question returns when it is answered, given up, or its time is over."""
    endings: dict[str, tuple[Command, ...]] = {}
    for text in ("answered", "given up", "forgotten"):
        doubt = yield from scene.doubted(text)
        seen = yield from scene.ask(doubt, B, seconds=scene.short * 3 if text == "forgotten" else LEASE)
        endings = {
            "answered": (Pause(HEAD_START), settling(seen, State.RELEASED, role=Role.LOOKUP, by=B)),
            "given up": (Pause(HEAD_START), over(1, Ask(seen, B, 0.0))),
            "forgotten": (Pass(scene.short * 4),),
        }
        start = time.monotonic()

        (woken,), _ = yield from Together(((_wait(seen),), endings[text]))

        assert not woken.being_asked
        assert time.monotonic() - start < AT_ONCE


# -- crowds --------------------------------------------------------------------------------------------


def _crowd() -> list[str]:
    return [f"{number:032x}" for number in range(1, CROWD + 1)]


@scenario
def a_crowd_that_opens_has_one_holder(scene: Scene) -> Steps[None]:
    """Sixteen at once, over two connections: one holds, and all are shown the same record."""
    replies = yield from lanes([scene.opening(by=one) for one in _crowd()])

    shown = {reply.fence for (reply,) in replies}
    assert len(shown) == 1
    now = there((yield from Read(scene.key())))
    assert {now.fence} == shown
    assert now.version == replies[0][0].version
    assert len(now.moves) == 1


@scenario
def a_crowd_that_opens_an_expired_key_has_one_holder(scene: Scene) -> Steps[None]:
    """At the end of retention the key is made anew once."""
    held = yield from scene.held()
    yield from scene.settle(held, State.COMPLETED, retain=scene.short)
    yield from scene.outlive()

    replies = yield from lanes([scene.opening(by=one) for one in _crowd()])

    assert len({reply.fence for (reply,) in replies}) == 1
    assert all(reply.state is State.STARTED and reply.token > held.token for (reply,) in replies)


@scenario
def a_crowd_that_takes_has_one_holder(scene: Scene) -> Steps[None]:
    """Sixteen who saw the same released record, and the same dead holder that had not begun."""
    released = yield from scene.settled(State.RELEASED, "released")
    dead = yield from scene.dead("dead", boundary=MARKED)
    for seen in (released, dead):
        replies = yield from lanes([Take(seen, one, OPAQUE, LEASE, False) for one in _crowd()])

        assert len({reply.fence for (reply,) in replies}) == 1
        now = yield from scene.read(seen)
        assert (now.attempts, len(now.moves)) == (2, len(seen.moves) + 1)


@scenario
def a_crowd_that_settles_has_one_outcome(scene: Scene) -> Steps[None]:
    """Sixteen verdicts about one doubt, half of them the opposite: the first is written, all are shown it."""
    doubt = yield from scene.doubted()
    states = [State.COMPLETED if at % 4 < 2 else State.CLOSED for at in range(CROWD)]

    replies = yield from lanes(
        [
            settling(doubt, state, role=Role.LOOKUP, by=one, result=one.encode())
            for one, state in zip(_crowd(), states, strict=True)
        ]
    )

    assert len({(reply.state, reply.settled_by, reply.result) for (reply,) in replies}) == 1
    now = yield from scene.read(doubt)
    assert now.result == str(now.settled_by).encode()
    assert len(now.moves) == len(doubt.moves) + 1


@scenario
def a_crowd_that_asks_has_one_asker(scene: Scene) -> Steps[None]:
    """A doubt is asked about by one at a time."""
    doubt = yield from scene.doubted()

    replies = yield from lanes([Ask(doubt, one, LEASE) for one in _crowd()])

    assert len({reply.asker for (reply,) in replies}) == 1


@scenario
def a_crowd_that_testifies_is_kept(scene: Scene) -> Steps[None]:
    """No evidence is lost to other evidence that came at the same time."""
    doubt = yield from scene.doubted()

    yield from lanes([Testify(doubt.key, one, 1, State.COMPLETED, None, "late") for one in _crowd()])

    now = yield from scene.read(doubt)
    assert sorted(one.attempt for one in now.evidence) == _crowd()
    assert now.version == doubt.version + CROWD


@scenario
def a_crowd_of_keys_does_not_collide(scene: Scene) -> Steps[None]:
    """Sixteen keys opened and settled at once: each has its own holder and its own answer."""
    texts = _crowd()
    replies = yield from lanes([scene.opening(text, by=text) for text in texts])
    held = [reply for (reply,) in replies]
    assert [one.attempt for one in held] == texts

    yield from lanes([settling(one, State.COMPLETED, result=one.attempt.encode()) for one in held])

    for one in held:
        assert (yield from scene.read(one)).result == one.attempt.encode()


@scenario
def a_sweep_spares_what_is_made_anew_beneath_it(scene: Scene) -> Steps[None]:
    """While some sweep, others open the expired keys: an attempt whose open was granted does hold the key."""
    for number in range(SWEEPS):
        texts = [f"{number} {one}" for one in _crowd()]
        held = yield from Invoke("batch", ([scene.opening(text) for text in texts],))
        yield from Invoke("batch", ([settling(one, State.COMPLETED, retain=scene.short) for one in held],))
        yield from scene.outlive()

        sweeps = [Invoke("sweep", (CROWD,), connection) for connection in (0, 1)]
        _, *opened, _ = yield from lanes([sweeps[0], *(scene.opening(text, by=B) for text in texts), sweeps[1]])

        for (reply,) in opened:
            assert_same(reply, (yield from scene.read(reply)))


@scenario
def a_late_holder_and_a_taker_never_both_win(scene: Scene) -> Steps[None]:
    """One takes a released record while its last holder settles that it happened after all: only one is written."""
    for number in range(8):
        released = yield from scene.settled(State.RELEASED, str(number))
        settled = over(0, settling(released, State.COMPLETED, result=b"it did"))
        taken = over(1, Take(released, B, OPAQUE, LEASE, False))

        (first,), (second,) = yield from Together(((settled,), (taken,)))

        now = yield from scene.read(released)
        assert (now.state, now.attempt) in ((State.COMPLETED, A), (State.STARTED, B))
        assert (first.settled_by == A) is (now.state is State.COMPLETED)
        assert (second.attempt == B) is (now.state is State.STARTED)


@scenario
def evidence_and_a_take_meet_in_order(scene: Scene) -> Steps[None]:
    """Evidence that it happened either stops the take, or is found when its holder marks."""
    for number in range(8):
        doubt = yield from scene.doubted(str(number))
        late = over(0, Testify(doubt.key, A, doubt.token, State.COMPLETED, b"it did", "late"))
        taken = over(1, Take(doubt, B, OPAQUE, LEASE, False))

        yield from Together(((late,), (taken,)))

        now = yield from scene.read(doubt)
        assert now.happened is not None
        if now.attempt == B:
            marked = yield from scene.begin(now)
            assert marked.begun_at is None
