"""Claiming: open, and take."""

from __future__ import annotations

from samekey.core.commands import Take
from samekey.core.states import State
from samekey.testing.stores.scene import (
    ENDED,
    FINGERPRINT,
    LEASE,
    MARKED,
    OPAQUE,
    REPEATABLE,
    A,
    B,
    C,
    Scene,
    Steps,
    scenario,
)

TOKEN_ROUNDS = 200  # enough to pass every small range of numbers

# -- open ----------------------------------------------------------------------------------------------


@scenario
def open_inserts_and_holds(scene: Scene) -> Steps[None]:
    """Open of an absent key inserts a record, started and held by the attempt that asked."""
    held = yield from scene.written(scene.opening())

    assert (held.state, held.attempt, held.attempts) == (State.STARTED, A, 1)
    assert held.lease_live
    assert 0 < held.lease_left <= LEASE + 0.001
    assert held.token > 0
    assert held.version > 0
    assert (held.begun_at, held.settled_by, held.result, held.retain_until) == (None, None, None, None)
    assert not held.unsure
    assert held.evidence == ()


@scenario
def open_keeps_all_that_the_claim_says(scene: Scene) -> Steps[None]:
    """Key, fingerprint, form, fields, boundary and attributes are written by the claim itself."""
    attributes = (("region", "eu-1"), ("client", "7.2"))
    command = scene.opening(boundary="asks believe_absent_after=60.0 asks", attributes=attributes, tenant="acme")

    held = yield from scene.written(command)

    assert held.key == command.key
    assert (held.fingerprint, held.form, held.fields, held.content) == FINGERPRINT
    assert (held.boundary, held.attributes) == (command.boundary, attributes)
    assert held.first_sent_at is None


@scenario
def open_that_sends_starts_the_provider_window(scene: Scene) -> Steps[None]:
    """A claim that sends says from when the provider's window counts."""
    held = yield from scene.written(scene.opening(sends=True))

    assert held.first_sent_at == held.created_at


@scenario
def open_of_a_held_key_changes_nothing(scene: Scene) -> Steps[None]:
    """Open of a key that is held shows the holder, and changes nothing."""
    yield from scene.held()

    seen = yield from scene.refused(scene.opening(by=B, boundary=REPEATABLE, lease=1.0, attributes=(("x", "y"),)))

    assert seen.attempt == A


@scenario
def open_of_an_ended_key_changes_nothing(scene: Scene) -> Steps[None]:
    """Open of a key that was settled, released or is in doubt shows it, and changes nothing."""
    for state in (*ENDED, State.IN_DOUBT):
        yield from scene.settled(state, state)
        seen = yield from scene.refused(scene.opening(state, by=B))
        assert seen.state is state


@scenario
def open_of_a_dead_holder_changes_nothing(scene: Scene) -> Steps[None]:
    """A lease that ended is not an invitation: open shows the record as it is."""
    yield from scene.dead()

    seen = yield from scene.refused(scene.opening(by=B))

    assert (seen.state, seen.attempt, seen.lease_live) == (State.STARTED, A, False)


@scenario
def open_after_retention_makes_it_anew(scene: Scene) -> Steps[None]:
    """Past retention the key is new, with a higher token and nothing of the old record."""
    for state in ENDED:
        held = yield from scene.held(state)
        yield from scene.say_late(held, state=State.CLOSED)
        old = yield from scene.settle(held, state, result=b"old", error="Old", retain=scene.short, next_round=True)
        yield from scene.outlive()

        new = yield from scene.written(scene.opening(state, by=B))

        assert (new.state, new.attempt, new.attempts) == (State.STARTED, B, 1)
        assert new.token > old.token
        assert new.lease_live
        assert (new.result, new.error, new.settled_by, new.settled_at, new.retain_until) == (None,) * 5
        assert (new.evidence, new.round, len(new.moves)) == ((), 0, 1)


@scenario
def open_never_forgets_what_is_held_or_in_doubt(scene: Scene) -> Steps[None]:
    """Started and in_doubt never expire, however short a retention was asked for."""
    yield from scene.dead("started")
    held = yield from scene.held("doubt")
    yield from scene.settle(held, State.IN_DOUBT, retain=scene.short)
    yield from scene.outlive()

    for text in ("started", "doubt"):
        seen = yield from scene.refused(scene.opening(text, by=B))
        assert seen.attempt == A
        assert seen.retain_until is None


@scenario
def a_repeated_open_recognises_itself(scene: Scene) -> Steps[None]:
    """An open whose reply was lost is sent again: the record says that it is ours."""
    held = yield from scene.held()

    again = yield from scene.refused(scene.opening())

    assert again.fence == held.fence
    assert again.lease_live


# -- take ----------------------------------------------------------------------------------------------


@scenario
def take_of_a_released_record_holds_it(scene: Scene) -> Steps[None]:
    """A released record is free to take: a new, higher token, a new holder, a live lease."""
    seen = yield from scene.settled(State.RELEASED)

    held = yield from scene.written(Take(seen, B, OPAQUE, LEASE, False))

    assert (held.state, held.attempt, held.attempts) == (State.STARTED, B, 2)
    assert held.token > seen.token
    assert held.lease_live
    assert held.lease_left <= LEASE + 0.001
    assert not held.unsure


@scenario
def take_of_a_released_record_is_under_new_terms(scene: Scene) -> Steps[None]:
    """A fresh start has the new claim's boundary and window, and forgets how the last try ended."""
    held = yield from scene.held(sends=True)
    marked = yield from scene.begin(held)
    seen = yield from scene.settle(marked, State.RELEASED, error="Declined")

    quiet = yield from scene.written(Take(seen, B, MARKED, LEASE, False))

    assert (quiet.boundary, quiet.begun_at, quiet.first_sent_at) == (MARKED, None, None)
    assert (quiet.settled_by, quiet.settled_at, quiet.retain_until, quiet.error) == (None,) * 4

    seen = yield from scene.settle(quiet, State.RELEASED)
    sending = yield from scene.take(seen, C, sends=True)
    assert sending.first_sent_at == sending.changed_at


@scenario
def take_keeps_the_intent(scene: Scene) -> Steps[None]:
    """Fingerprint, attributes, creation and round belong to the key, not to one attempt."""
    opened = yield from scene.opening(attributes=(("region", "eu"),))
    seen = yield from scene.settle(opened, State.RELEASED, next_round=True)

    held = yield from scene.take(seen)

    assert (held.fingerprint, held.form, held.fields, held.content) == FINGERPRINT
    assert held.attributes == (("region", "eu"),)
    assert (held.created_at, held.round) == (opened.created_at, 1)


@scenario
def take_out_of_doubt_keeps_the_old_terms(scene: Scene) -> Steps[None]:
    """Out of doubt, boundary and first send stay those of the attempt that may have happened; it is unsure."""
    held = yield from scene.held(boundary="keyed window=60.0", sends=True)
    doubt = yield from scene.settle(held, State.IN_DOUBT, error="TimeoutError")
    asked = yield from scene.ask(doubt)

    taken = yield from scene.written(Take(asked, B, REPEATABLE, LEASE, True))

    assert (taken.boundary, taken.first_sent_at) == ("keyed window=60.0", held.first_sent_at)
    assert taken.unsure
    assert taken.token > held.token
    assert (taken.asker, taken.ask_until, taken.being_asked) == (None, 0.0, False)


@scenario
def take_of_an_unsure_key_stays_unsure(scene: Scene) -> Steps[None]:
    """An earlier attempt that may have happened is not forgotten when the next one is released and taken."""
    doubt = yield from scene.doubted()
    second = yield from scene.take(doubt)
    released = yield from scene.settle(second, State.RELEASED)

    third = yield from scene.take(released, C)

    assert third.unsure


@scenario
def take_needs_an_unmoved_token(scene: Scene) -> Steps[None]:
    """A take is refused if the key changed hands after the attempt looked."""
    seen = yield from scene.settled(State.RELEASED)
    taken = yield from scene.take(seen, B)
    yield from scene.refused(Take(seen, C, OPAQUE, LEASE, False))
    yield from scene.settle(taken, State.RELEASED)

    yield from scene.refused(Take(seen, C, OPAQUE, LEASE, False))


@scenario
def take_needs_an_unmoved_attempt(scene: Scene) -> Steps[None]:
    """The same number under another attempt is another hold: after a failover numbers come again."""
    seen = yield from scene.settled(State.RELEASED)

    yield from scene.refused(Take(seen._replace(attempt=C), B, OPAQUE, LEASE, False))


@scenario
def take_needs_an_unmoved_state(scene: Scene) -> Steps[None]:
    """A state that moved under the same fence is no longer the one that was decided on."""
    doubt = yield from scene.doubted()
    yield from scene.settle(doubt, State.RELEASED)
    yield from scene.refused(Take(doubt, B, OPAQUE, LEASE, False))

    released = yield from scene.settled(State.RELEASED, "late")
    yield from scene.settle(released, State.COMPLETED)
    yield from scene.refused(Take(released, B, OPAQUE, LEASE, False))


@scenario
def take_of_a_settled_record_is_refused(scene: Scene) -> Steps[None]:
    """Completed and closed are the end."""
    for state in (State.COMPLETED, State.CLOSED):
        seen = yield from scene.settled(state, state)
        yield from scene.refused(Take(seen, B, REPEATABLE, LEASE, False))


@scenario
def take_of_a_dead_holder_that_marks_and_had_not_begun(scene: Scene) -> Steps[None]:
    """Dead lease, marked boundary, nothing begun: it certainly did not happen, and anyone may take it."""
    seen = yield from scene.dead(boundary=MARKED)

    taken = yield from scene.written(Take(seen, B, OPAQUE, LEASE, False))

    assert taken.attempt == B
    assert taken.token > seen.token
    assert (taken.boundary, taken.unsure) == (OPAQUE, False)


@scenario
def take_of_a_started_record_is_refused_otherwise(scene: Scene) -> Steps[None]:
    """A live lease, an unmarked boundary, a begun effect or an older doubt: each one forbids the take."""
    live = yield from scene.held("live", boundary=MARKED)
    unmarked = yield from scene.dead("unmarked", boundary=OPAQUE)
    begun = yield from scene.dead("begun", boundary=MARKED, begun=True)
    doubt = yield from scene.doubted("unsure", boundary=MARKED)
    retaken = yield from scene.take(doubt, boundary=MARKED)
    unsure = yield from scene.lose_lease(retaken)

    for seen in (live, unmarked, begun, unsure):
        yield from scene.refused(Take(seen, C, MARKED, LEASE, False))


@scenario
def take_looks_at_the_lease_as_it_is_now(scene: Scene) -> Steps[None]:
    """A take is refused if the lease was renewed after the attempt looked, although it would be over otherwise."""
    seen = yield from scene.renewed_since(boundary=MARKED)

    yield from scene.refused(Take(seen, B, MARKED, LEASE, False))


@scenario
def take_is_refused_when_evidence_says_it_happened(scene: Scene) -> Steps[None]:
    """A record with evidence that the effect happened cannot be taken: it must not run again."""
    for state in (State.RELEASED, State.IN_DOUBT, State.STARTED):
        seen = yield from scene.settled(state, state, boundary=MARKED)
        yield from scene.say_late(seen)
        yield from scene.refused(Take(seen, B, MARKED, LEASE, False))


@scenario
def take_is_not_stopped_by_evidence_of_a_refusal(scene: Scene) -> Steps[None]:
    """Evidence of a refusal says that nothing happened: it is kept, and a take is granted."""
    seen = yield from scene.settled(State.RELEASED)
    yield from scene.say_late(seen, state=State.CLOSED)

    taken = yield from scene.written(Take(seen, B, OPAQUE, LEASE, False))

    assert taken.attempt == B
    assert len(taken.evidence) == 1


@scenario
def a_repeated_take_recognises_itself(scene: Scene) -> Steps[None]:
    """A take whose reply was lost is sent again: nothing moves, and the record says that it is ours."""
    seen = yield from scene.settled(State.RELEASED)
    taken = yield from scene.take(seen, B)

    again = yield from scene.refused(Take(seen, B, OPAQUE, LEASE, False))

    assert again.fence == taken.fence
    assert again.attempts == 2


@scenario
def tokens_only_grow(scene: Scene) -> Steps[None]:
    """Over the life of a key, release after release, every hold has a higher token than the one before."""
    held = yield from scene.held()
    for _ in range(TOKEN_ROUNDS):
        seen = yield from scene.settle(held, State.RELEASED)
        held = yield from scene.take(seen, B)
        assert held.token > seen.token
