"""Holding: begin, renew, and the clock that judges the lease."""

from __future__ import annotations

from samekey.core.commands import Ask, Begin, Read, Renew, Take, Testify, Wait
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.testing.stores.scene import (
    ENDED,
    LEASE,
    MARKED,
    OPAQUE,
    A,
    B,
    C,
    Scene,
    Steps,
    assert_same,
    scenario,
    settling,
    there,
)
from samekey.testing.stores.steps import Invoke

# -- begin ---------------------------------------------------------------------------------------------


@scenario
def begin_marks_the_hold(scene: Scene) -> Steps[None]:
    """The mark right before the provider is called; from here its window counts."""
    held = yield from scene.held(boundary=MARKED)

    begun = yield from scene.written(Begin(held))

    assert begun.begun_at is not None
    assert begun.begun_at >= begun.created_at
    assert begun.first_sent_at == begun.begun_at
    assert begun.fence == held.fence
    assert begun.lease_live


@scenario
def begin_keeps_an_earlier_first_send(scene: Scene) -> Steps[None]:
    """The provider's window counts from the first send of the key, also across a take out of doubt."""
    held = yield from scene.held(boundary=MARKED)
    begun = yield from scene.begin(held)
    doubt = yield from scene.settle(begun, State.IN_DOUBT)
    yield from scene.outlive()
    taken = yield from scene.take(doubt)

    again = yield from scene.written(Begin(taken))

    assert again.first_sent_at == begun.first_sent_at
    assert again.begun_at is not None
    assert again.first_sent_at is not None
    assert again.begun_at > again.first_sent_at


@scenario
def begin_needs_a_live_lease(scene: Scene) -> Steps[None]:
    """A holder whose lease has ended may send nothing any more."""
    dead = yield from scene.dead(boundary=MARKED)

    yield from scene.refused(Begin(dead))


@scenario
def begin_needs_our_own_fence(scene: Scene) -> Steps[None]:
    """After the key changed hands, or under a number that came again, the mark is refused."""
    old = yield from scene.held(boundary=MARKED)
    seen = yield from scene.settle(old, State.RELEASED)
    held = yield from scene.take(seen, B, boundary=MARKED)

    for stranger in (old, held._replace(attempt=C), held._replace(token=held.token + 1)):
        yield from scene.refused(Begin(stranger))


@scenario
def begin_needs_a_started_record(scene: Scene) -> Steps[None]:
    """A hold that was settled has nothing to begin."""
    for state in (*ENDED, State.IN_DOUBT):
        seen = yield from scene.settled(state, state, boundary=MARKED)
        yield from scene.refused(Begin(seen))


@scenario
def begin_is_refused_when_evidence_says_it_happened(scene: Scene) -> Steps[None]:
    """Late evidence that it happened stops the next holder right before it would send."""
    doubt = yield from scene.doubted(boundary=MARKED)
    held = yield from scene.take(doubt, B)
    yield from scene.say_late(held, A)

    yield from scene.refused(Begin(held))


@scenario
def a_repeated_begin_recognises_itself(scene: Scene) -> Steps[None]:
    """A mark whose reply was lost is sent again: it stays as it is, with its first time."""
    held = yield from scene.held(boundary=MARKED)
    begun = yield from scene.begin(held)
    yield from scene.outlive()

    again = yield from scene.refused(Begin(held))

    assert again.begun_at == begun.begun_at


# -- renew, and the clock ------------------------------------------------------------------------------


@scenario
def renew_extends_our_live_lease(scene: Scene) -> Steps[None]:
    """The lease then counts from now; fence and state stay."""
    held = yield from scene.held()

    renewed = yield from scene.written(Renew(held, LEASE * 10))

    assert LEASE < renewed.lease_left <= LEASE * 10 + 0.001  # seconds that were added and taken off again
    assert (renewed.fence, renewed.state) == (held.fence, State.STARTED)


@scenario
def renew_cannot_wake_a_dead_lease(scene: Scene) -> Steps[None]:
    """A lease that ended may already have been judged: it stays dead."""
    dead = yield from scene.dead()

    yield from scene.refused(Renew(dead, LEASE))


@scenario
def renew_needs_our_own_hold(scene: Scene) -> Steps[None]:
    """Only the holder renews, and only what is started."""
    held = yield from scene.held()
    for stranger in (held._replace(attempt=B), held._replace(token=held.token + 1)):
        yield from scene.refused(Renew(stranger, LEASE * 2))

    for state in (*ENDED, State.IN_DOUBT):
        seen = yield from scene.settled(state, state)
        yield from scene.refused(Renew(seen, LEASE * 2))


@scenario
def the_store_counts_the_lease_down(scene: Scene) -> Steps[None]:
    """`now` and `lease_left` are read on the store's clock: as time passes the one grows, the other shrinks."""
    first = yield from scene.held()
    yield from scene.outlive()

    later = yield from scene.read(first)

    assert later.now >= first.now + scene.short / 2
    assert later.lease_left <= first.lease_left - scene.short / 2
    assert_same(first, later)


@scenario
def a_dead_lease_shows_how_long_ago_it_ended(scene: Scene) -> Steps[None]:
    """Beliefs are measured from the end of the lease, so it goes on counting below zero - in doubt, too."""
    dead = yield from scene.dead()
    doubt = yield from scene.settle(dead, State.IN_DOUBT, role=Role.PASSER_BY, by=B)
    yield from scene.outlive()

    later = yield from scene.read(doubt)

    assert dead.lease_left <= 0
    assert later.lease_left <= dead.lease_left - scene.short / 2


@scenario
def every_reply_is_read_on_the_store_s_clock(scene: Scene) -> Steps[None]:
    """Carried out or refused, alone, in a batch, listed or waited for: what is left of a lease is left by now."""
    held = yield from scene.held(boundary=MARKED)
    yield from scene.outlive()
    others = (scene.opening(by=B), Take(held, B, OPAQUE, LEASE, False), Ask(held, B, LEASE), Begin(held))

    for command in (Read(held.key), *others, Testify(held.key, B, 1, State.CLOSED, None, "late")):
        alone: Record | None = yield command
        batched: list[Record] = yield from Invoke("batch", ([command],))
        for reply in (there(alone), *batched):
            assert reply.now >= held.now + scene.short / 2, f"{command} is answered as of another time"
            assert reply.lease_left <= held.lease_left - scene.short / 2, f"{command} shows what was left before"
    waited = there((yield from Invoke("wait", (Wait(held), 0.01))))
    (listed,) = yield from scene.listing()
    for reply in (waited, listed):
        assert reply.now >= held.now + scene.short / 2
        assert reply.lease_left <= held.lease_left - scene.short / 2


@scenario
def the_store_counts_the_asking_down(scene: Scene) -> Steps[None]:
    """`ask_left` is read on the store's clock as well, in the reply to every command."""
    doubt = yield from scene.doubted()
    asked = yield from scene.ask(doubt, B)
    yield from scene.outlive()

    for command in (Read(doubt.key), Ask(doubt, C, LEASE), Testify(doubt.key, C, 1, State.CLOSED, None, "late")):
        alone: Record | None = yield command
        batched: list[Record] = yield from Invoke("batch", ([command],))
        for reply in (there(alone), *batched):
            assert reply.ask_left <= asked.ask_left - scene.short / 2, f"{command} shows what was left before"
    (listed,) = yield from scene.listing()
    assert listed.ask_left <= asked.ask_left - scene.short / 2


@scenario
def a_settle_is_dated_when_it_is_made(scene: Scene) -> Steps[None]:
    """The reply to a write has the time of the write: the age of a record, for one, is counted from there."""
    held = yield from scene.held()
    yield from scene.outlive()

    doubt = yield from scene.written(settling(held, State.IN_DOUBT))
    yield from scene.outlive()
    taken = yield from scene.written(Take(doubt, B, OPAQUE, LEASE, False))

    assert held.now + scene.short / 2 <= doubt.now <= taken.now - scene.short / 2
    assert doubt.lease_left <= held.lease_left - scene.short / 2
