"""Settling: who may end a hold and how, who may ask, and what a late attempt may still write."""

from __future__ import annotations

from samekey.core.commands import Ask, Read, Testify
from samekey.core.record import EVIDENCE_MAX
from samekey.core.states import Role, State, may
from samekey.testing.stores.scene import ENDED, LEASE, RETAIN, A, B, C, Scene, Steps, freeing, scenario, settling
from samekey.testing.stores.steps import Invoke

# -- NEXT, whole ---------------------------------------------------------------------------------------


def _every_move(scene: Scene, role: Role) -> Steps[None]:
    """All 25 moves a role could wish for: those in NEXT are written, the others change nothing.

    A move to started is never a settle: a start draws a new token, and that is what take is for.
    """
    moves = [(before, after) for before in State for after in State]
    found = []
    for before, after in moves:
        record = yield from scene.held(f"{before} to {after}")
        if before is not State.STARTED:
            record = yield from scene.settle(record, before, result=b"before", error="Before")
        elif role is not Role.HOLDER:
            record = yield from scene.renew(record, seconds=scene.short)
        found.append(record)
    yield from scene.outlive()

    by = A if role is Role.HOLDER else B
    for (before, after), seen in zip(moves, found, strict=True):
        command = settling(seen, after, role=role, by=by, result=b"after", error="After", why="because")
        if not may(role, before, after) or after is State.STARTED:
            yield from scene.refused(command)
            continue

        moved = yield from scene.written(command)

        assert (moved.state, moved.fence) == (after, seen.fence)
        assert (moved.result, moved.error) == (b"after", "After")
        assert moved.settled_by == (seen.settled_by if after is State.IN_DOUBT else by)
        assert moved.moves[:-1] == seen.moves
        assert (moved.moves[-1].before, moved.moves[-1].after, moved.moves[-1].why) == (before, after, "because")


@scenario
def settle_by_the_holder_follows_next(scene: Scene) -> Steps[None]:
    """The holder makes the moves that NEXT gives to a holder, and no other."""
    yield from _every_move(scene, Role.HOLDER)


@scenario
def settle_by_a_passer_by_follows_next(scene: Scene) -> Steps[None]:
    """A passer-by marks a dead lease as doubt, and settles nothing else."""
    yield from _every_move(scene, Role.PASSER_BY)


@scenario
def settle_by_a_lookup_follows_next(scene: Scene) -> Steps[None]:
    """An attempt that asked the provider makes the moves that NEXT gives to a lookup, and no other."""
    yield from _every_move(scene, Role.LOOKUP)


@scenario
def settle_by_an_operator_follows_next(scene: Scene) -> Steps[None]:
    """A person makes the moves that NEXT gives to an operator, and no other."""
    yield from _every_move(scene, Role.OPERATOR)


# -- settle --------------------------------------------------------------------------------------------


@scenario
def settle_by_a_stale_token_is_refused(scene: Scene) -> Steps[None]:
    """After the key changed hands, the old holder writes nothing - whatever became of the key since."""
    old = yield from scene.held()
    released = yield from scene.settle(old, State.RELEASED)
    held = yield from scene.take(released, B)
    for state in (*ENDED, State.IN_DOUBT):
        yield from scene.refused(settling(old, state, result=b"late"))

    for moved in (State.IN_DOUBT, State.COMPLETED):
        held = yield from scene.settle(held, moved, result=b"winner")
        for role in Role:
            yield from scene.refused(settling(old, State.CLOSED, role=role, result=b"late"))


@scenario
def settle_by_another_attempt_is_refused(scene: Scene) -> Steps[None]:
    """The right number under another attempt is a zombie of another time."""
    held = yield from scene.held()
    for state in (*ENDED, State.IN_DOUBT):
        yield from scene.refused(settling(held._replace(attempt=C), state))

    doubt = yield from scene.settle(held, State.IN_DOUBT)
    for role in (Role.HOLDER, Role.LOOKUP, Role.OPERATOR):
        yield from scene.refused(settling(doubt._replace(attempt=C), State.COMPLETED, role=role))


@scenario
def settle_by_a_passer_by_spares_a_live_lease(scene: Scene) -> Steps[None]:
    """A passer-by may not doubt a holder whose lease lives, even if the lease it saw would be over by now."""
    held = yield from scene.held("held")
    yield from scene.refused(settling(held, State.IN_DOUBT, role=Role.PASSER_BY, by=B))

    seen = yield from scene.renewed_since("renewed")
    yield from scene.refused(settling(seen, State.IN_DOUBT, role=Role.PASSER_BY, by=B))


@scenario
def settle_by_an_operator_needs_the_state_that_was_shown(scene: Scene) -> Steps[None]:
    """A person settles the state that was on the screen; a provider's verdict counts whatever became of the doubt."""
    doubt = yield from scene.doubted()
    yield from scene.settle(doubt, State.RELEASED)

    yield from scene.refused(settling(doubt, State.COMPLETED, role=Role.OPERATOR, by="ada"))
    after = yield from scene.written(settling(doubt, State.COMPLETED, role=Role.LOOKUP, by=B, result=b"it did"))

    assert (after.state, after.result) == (State.COMPLETED, b"it did")


@scenario
def settle_by_a_late_holder_ends_a_doubt(scene: Scene) -> Steps[None]:
    """Marking doubt keeps the fence, so a holder that overslept can still tell the truth."""
    for state in ENDED:
        held = yield from scene.held(state)
        dead = yield from scene.lose_lease(held)
        doubt = yield from scene.settle(dead, State.IN_DOUBT, role=Role.PASSER_BY, by=B)
        assert doubt.fence == held.fence

        after = yield from scene.written(settling(held, state, result=b"truth"))

        assert (after.state, after.result, after.settled_by) == (state, b"truth", A)


@scenario
def settle_by_a_dead_holder_is_written_if_no_other_attempt_looked(scene: Scene) -> Steps[None]:
    """A lease is for liveness, never for safety: while the fence is unmoved the holder may settle."""
    held = yield from scene.held()
    yield from scene.lose_lease(held)

    after = yield from scene.written(settling(held, State.COMPLETED, result=b"truth"))

    assert (after.state, after.result) == (State.COMPLETED, b"truth")


@scenario
def a_repeated_settle_recognises_itself(scene: Scene) -> Steps[None]:
    """A settle whose reply was lost is sent again: nothing moves, and the record says who settled it how."""
    for state in (*ENDED, State.IN_DOUBT):
        held = yield from scene.held(state)
        command = settling(held, state, result=b"mine", next_round=True)
        yield from scene.written(command)

        again = yield from scene.refused(command)

        assert (again.state, again.result, again.round) == (state, b"mine", 1)
        assert again.settled_by == (None if state is State.IN_DOUBT else A)


@scenario
def settle_starts_the_retention(scene: Scene) -> Steps[None]:
    """Retention counts from the settling; a doubt has none."""
    for state in ENDED:
        ended = yield from scene.settled(state, state)
        assert ended.settled_at is not None
        assert ended.settled_at >= ended.created_at
        assert ended.retain_until is not None
        assert abs(ended.retain_until - ended.settled_at - RETAIN) < 0.01
        assert ended.settled_at == ended.changed_at

    doubt = yield from scene.doubted("doubt")
    assert (doubt.settled_at, doubt.retain_until, doubt.settled_by) == (None, None, None)


@scenario
def settle_by_provider_or_person_ends_the_unsureness(scene: Scene) -> Steps[None]:
    """They speak for the whole key; a holder speaks only for its own attempt."""
    for role, unsure in ((Role.HOLDER, True), (Role.LOOKUP, False), (Role.OPERATOR, False)):
        first = yield from scene.doubted(role)
        second = yield from scene.take(first, B)
        assert second.unsure
        doubt = yield from scene.settle(second, State.IN_DOUBT)
        assert doubt.unsure

        released = yield from scene.settle(doubt, State.RELEASED, role=role)

        assert released.unsure is unsure


@scenario
def settle_raises_the_round_on_request(scene: Scene) -> Steps[None]:
    """A new round is a new provider key; it rises only where the settle says so, and a take keeps it."""
    held = yield from scene.held()
    raised = yield from scene.settle(held, State.RELEASED, next_round=True)
    taken = yield from scene.take(raised, B)
    kept = yield from scene.settle(taken, State.RELEASED)

    assert (held.round, raised.round, taken.round, kept.round) == (0, 1, 1, 1)


@scenario
def settle_ends_the_asking(scene: Scene) -> Steps[None]:
    """What is settled is no longer asked about."""
    doubt = yield from scene.doubted()
    asked = yield from scene.ask(doubt)

    ended = yield from scene.settle(asked, State.RELEASED, role=Role.LOOKUP, by=B)

    assert (ended.asker, ended.ask_until, ended.being_asked) == (None, 0.0, False)


# -- ask -----------------------------------------------------------------------------------------------


@scenario
def ask_records_the_asker(scene: Scene) -> Steps[None]:
    """The record names the attempt that asks about a doubt; state and fence stay."""
    doubt = yield from scene.doubted()

    asked = yield from scene.written(Ask(doubt, B, LEASE))

    assert (asked.asker, asked.being_asked) == (B, True)
    assert 0 < asked.ask_left <= LEASE + 0.001
    assert (asked.state, asked.fence, asked.moves) == (State.IN_DOUBT, doubt.fence, doubt.moves)


@scenario
def ask_is_for_one_at_a_time(scene: Scene) -> Steps[None]:
    """While one asks, another is shown who; the asker itself may ask for longer."""
    doubt = yield from scene.doubted()
    yield from scene.ask(doubt, B)

    shown = yield from scene.refused(Ask(doubt, C, LEASE))
    longer = yield from scene.written(Ask(doubt, B, LEASE * 10))

    assert shown.asker == B
    assert longer.ask_left > LEASE


@scenario
def ask_passes_on_when_the_asker_is_gone(scene: Scene) -> Steps[None]:
    """An asker that never came back blocks others only for the time it asked for."""
    doubt = yield from scene.doubted()
    yield from scene.ask(doubt, B, seconds=scene.short)
    yield from scene.outlive()
    forgotten = yield from scene.read(doubt)
    assert not forgotten.being_asked

    asked = yield from scene.written(Ask(doubt, C, LEASE))

    assert asked.asker == C


@scenario
def ask_ends_with_zero_seconds(scene: Scene) -> Steps[None]:
    """The asker gives its place back, and only its own."""
    doubt = yield from scene.doubted()
    yield from scene.refused(Ask(doubt, B, 0.0))
    yield from scene.ask(doubt, B)
    yield from scene.refused(Ask(doubt, C, 0.0))

    ended = yield from scene.written(Ask(doubt, B, 0.0))

    assert (ended.asker, ended.ask_until, ended.being_asked) == (None, 0.0, False)
    yield from scene.written(Ask(doubt, C, LEASE))


@scenario
def ask_needs_a_doubt_and_its_fence(scene: Scene) -> Steps[None]:
    """Only a doubt is asked about, and only the one that was seen."""
    for state in (State.STARTED, *ENDED):
        seen = yield from scene.settled(state, state)
        yield from scene.refused(Ask(seen, B, LEASE))

    doubt = yield from scene.doubted("doubt")
    for stranger in (doubt._replace(attempt=C), doubt._replace(token=doubt.token + 1)):
        yield from scene.refused(Ask(stranger, B, LEASE))


# -- testify -------------------------------------------------------------------------------------------


@scenario
def testify_keeps_evidence_in_the_record(scene: Scene) -> Steps[None]:
    """Whatever became of the key, the evidence of a late attempt is kept; state and fence do not move for it."""
    for state in State:
        seen = yield from scene.settled(state, state)

        after = yield from scene.written(Testify(seen.key, C, 7, State.COMPLETED, b"late", "came too late"))

        assert (after.state, after.fence, after.result, after.moves) == (
            seen.state,
            seen.fence,
            seen.result,
            seen.moves,
        )
        (one,) = after.evidence
        assert (one.attempt, one.token, one.state) == (C, 7, State.COMPLETED)
        assert (one.result, one.why) == (b"late", "came too late")
        assert one.at >= after.created_at
        assert after.happened == one


@scenario
def testify_counts_once_for_each_attempt(scene: Scene) -> Steps[None]:
    """Repeated evidence is recognised; the evidence of another attempt is added, in order."""
    seen = yield from scene.doubted()
    yield from scene.say_late(seen, B)

    yield from scene.refused(Testify(seen.key, B, seen.token, State.COMPLETED, b"again", ""))
    after = yield from scene.say_late(seen, C)

    assert [one.attempt for one in after.evidence] == [B, C]


@scenario
def testify_of_the_record_s_own_outcome_is_refused(scene: Scene) -> Steps[None]:
    """Who settled the record so has nothing to add; who was overruled has."""
    seen = yield from scene.settled(State.COMPLETED)

    yield from scene.refused(Testify(seen.key, A, seen.token, State.COMPLETED, b"mine", ""))
    yield from scene.written(Testify(seen.key, A, seen.token, State.CLOSED, None, "the provider says otherwise"))


@scenario
def testify_survives_later_moves(scene: Scene) -> Steps[None]:
    """Evidence is never lost by settling, taking, asking or renewing."""
    record = yield from scene.doubted()
    record = yield from scene.say_late(record, C, state=State.CLOSED)
    evidence = record.evidence
    record = yield from scene.ask(record, B)
    record = yield from scene.take(record, B)
    record = yield from scene.renew(record)
    record = yield from scene.settle(record, State.RELEASED)
    record = yield from scene.settle(record, State.COMPLETED, role=Role.OPERATOR)

    assert record.evidence == evidence
    assert len(evidence) == 1


@scenario
def testify_is_bounded(scene: Scene) -> Steps[None]:
    """A record keeps so much evidence and refuses the rest: the first is never pushed out."""
    seen = yield from scene.doubted()
    witnesses = [f"{number:032x}" for number in range(EVIDENCE_MAX)]
    late = [Testify(seen.key, one, seen.token, State.CLOSED, None, "late") for one in witnesses]
    yield from Invoke("batch", (late,))

    full = yield from scene.refused(Testify(seen.key, "f" * 32, seen.token, State.COMPLETED, b"late", ""))

    assert [one.attempt for one in full.evidence] == witnesses


@scenario
def commands_about_a_key_that_is_gone_find_none(scene: Scene) -> Steps[None]:
    """No command but open makes a record: on a freed key each of them is answered with None."""
    seen = yield from scene.settled(State.RELEASED)
    gone = yield from freeing(seen)
    assert gone is None

    assert (yield from Testify(seen.key, C, seen.token, State.COMPLETED, b"late", "")) is None
    assert (yield from settling(seen, State.COMPLETED)) is None
    assert (yield from Ask(seen, B, LEASE)) is None
    assert (yield from Read(seen.key)) is None
    assert (yield from freeing(seen)) is None
