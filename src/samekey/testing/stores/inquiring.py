"""Doubts that workers look at: when a look is due, what is written about it, and the truth that comes late."""

from __future__ import annotations

from samekey.core.commands import Ask, Deliver
from samekey.core.inquiry import DELIVERED, DUE, FAILED, LATE_SECONDS, UNKNOWN, Inquiry
from samekey.core.ports import Due
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.testing.stores.scene import (
    LEASE,
    REPEATABLE,
    RETAIN,
    B,
    C,
    Scene,
    Steps,
    scenario,
    settling,
    there,
)
from samekey.testing.stores.steps import Invoke


def due(scene: Scene, **asked: object) -> Steps[list[str]]:
    """The keys that are due, in this order."""
    found: list[Record] = yield from Invoke("due", (Due(**{"operation": scene.operation, **asked}),))  # type: ignore[arg-type]
    return [record.key.text for record in found]


def inquiry_of(record: Record) -> Inquiry:
    assert record.inquiry is not None, f"nothing is written about the doubt of {record.key}"
    return record.inquiry


def dead_doubt(scene: Scene, text: str = "order-1") -> Steps[Record]:
    """In doubt, and its lease is over."""
    dead = yield from scene.dead(text)
    return (yield from scene.settle(dead, State.IN_DOUBT, role=Role.PASSER_BY, by=B, error="LeaseEnded"))


@scenario
def a_key_that_is_claimed_and_completed_has_no_inquiry(scene: Scene) -> Steps[None]:
    """Looks and what was reported to callers are written for doubts and failures only."""
    held = yield from scene.held()
    assert held.inquiry is None
    done = yield from scene.written(settling(held, State.COMPLETED, result=b"r"))
    assert done.inquiry is None


@scenario
def a_look_is_due_when_the_lease_is_over(scene: Scene) -> Steps[None]:
    """Dead holds and doubts are due; live holds, free keys and ended ones are not."""
    yield from scene.held("live")
    for state in (State.COMPLETED, State.CLOSED, State.RELEASED):
        yield from scene.settled(state, str(state))
    yield from scene.doubted("in doubt, and its lease lives")
    yield from scene.dead("dead")
    yield from dead_doubt(scene, "in doubt")

    assert sorted((yield from due(scene))) == ["dead", "in doubt"]
    assert (yield from due(scene, quiet=LEASE)) == []


@scenario
def a_dead_hold_of_repeatable_is_due_only_with_its_payload(scene: Scene) -> Steps[None]:
    """Without a payload a worker cannot run it, and it ends by itself."""
    for text, payload in (("without", None), ("with", b"sealed")):
        opening = scene.opening(text, boundary=REPEATABLE, payload=payload, lease=scene.short, retain=RETAIN)
        yield from opening
    yield from scene.outlive()

    assert (yield from due(scene)) == ["with"]


@scenario
def a_look_is_written_with_the_end_of_the_asking(scene: Scene) -> Steps[None]:
    """One write ends the asking and says when the next look is due; until then the doubt is not due."""
    doubt = yield from dead_doubt(scene)
    asked = yield from scene.written(Ask(doubt, C, LEASE))
    assert (yield from due(scene)) == []

    looked = yield from scene.written(Ask(asked, C, 0, look_after=scene.short, verdict="absent", parked="tired"))

    inquiry = inquiry_of(looked)
    assert (looked.asker, inquiry.looks, inquiry.verdict, inquiry.parked) == (None, 1, "absent", "tired")
    assert inquiry.look_at is not None and inquiry.look_at > looked.changed_at
    yield from scene.outlive()
    assert (yield from due(scene)) == [doubt.key.text]

    later = yield from scene.written(Ask(looked, B, 0, look_after=RETAIN))

    inquiry = inquiry_of(later)
    assert (inquiry.looks, inquiry.verdict, inquiry.parked) == (2, "", "")
    assert (yield from due(scene)) == []


@scenario
def a_look_is_not_written_while_another_attempt_asks(scene: Scene) -> Steps[None]:
    """An asker is the only one that writes about the doubt, and the fence must still be the one that was seen."""
    doubt = yield from dead_doubt(scene)
    asked = yield from scene.written(Ask(doubt, C, LEASE))
    yield from scene.refused(Ask(asked, B, 0, look_after=RETAIN))
    taken = yield from scene.take(asked, B)
    yield from scene.refused(Ask(asked, C, 0, look_after=RETAIN))
    assert taken.state is State.STARTED


@scenario
def shards_and_operations_part_what_is_due(scene: Scene) -> Steps[None]:
    """Every record is in exactly one shard, of its own operation."""
    texts = [f"order-{number}" for number in range(8)]
    for text in texts:
        yield from scene.opening(text, lease=scene.short)
    yield from scene.outlive()

    parts = []
    for number in range(3):
        parts.append((yield from due(scene, shard=(number, 3))))

    assert sorted(text for part in parts for text in part) == texts
    assert (yield from due(scene, operation="another operation")) == []
    assert len((yield from due(scene, limit=5))) == 5
    operations: list[str] = yield from Invoke("doubtful")
    assert scene.operation in operations


@scenario
def what_was_reported_to_callers_stays_until_they_get_an_answer(scene: Scene) -> Steps[None]:
    """Unknown, then failed, which is the stronger one; an answer ends it."""
    held = yield from scene.held()
    doubt = yield from scene.written(settling(held, State.IN_DOUBT, error="ReadTimeout"))
    assert (inquiry_of(doubt).reported, inquiry_of(doubt).reported_error) == (UNKNOWN, "ReadTimeout")
    again = yield from scene.take(doubt, B)
    released = yield from scene.written(settling(again, State.RELEASED, error="NoFunds"))
    assert (inquiry_of(released).reported, inquiry_of(released).reported_error) == (FAILED, "NoFunds")
    third = yield from scene.take(released, C)
    doubt = yield from scene.written(settling(third, State.IN_DOUBT, error="ReadTimeout"))
    assert (inquiry_of(doubt).reported, inquiry_of(doubt).reported_error) == (FAILED, "NoFunds")
    fourth = yield from scene.take(doubt, B)
    done = yield from scene.written(settling(fourth, State.COMPLETED, result=b"r"))
    assert done.inquiry is None


@scenario
def a_decline_that_answers_for_the_whole_key_ends_the_doubt(scene: Scene) -> Steps[None]:
    """A holder's settle may say that it counts for earlier attempts, too; a doubt keeps that it was answered."""
    doubt = yield from scene.doubted()
    taken = yield from scene.take(doubt, B)
    assert taken.unsure
    answered = yield from scene.written(settling(taken, State.IN_DOUBT, error="NoFunds", answered=True))
    assert answered.unsure and inquiry_of(answered).answered
    again = yield from scene.take(answered, C)
    released = yield from scene.written(settling(again, State.RELEASED, error="NoFunds", answered=True))
    assert not released.unsure


@scenario
def a_truth_that_differs_from_what_callers_got_is_due_once(scene: Scene) -> Steps[None]:
    """The write that first shows it also marks it; it is listed until it is delivered, and kept at least so long."""
    doubt = yield from scene.doubted()
    found = yield from scene.written(settling(doubt, State.COMPLETED, role=Role.LOOKUP, by=B, result=b"r"))
    assert (inquiry_of(found).late, inquiry_of(found).reported) == (DUE, UNKNOWN)
    assert found.retain_until is not None and found.retain_until > found.now + LATE_SECONDS / 2
    assert (yield from due(scene, late=True)) == [doubt.key.text]

    delivered = yield from scene.written(Deliver(found))

    assert inquiry_of(delivered).late == DELIVERED
    yield from scene.refused(Deliver(delivered))
    assert (yield from due(scene, late=True)) == []


@scenario
def a_worker_that_runs_the_effect_leaves_a_late_truth(scene: Scene) -> Steps[None]:
    """No caller waits for its outcome, so the callers must still get it."""
    held = yield from scene.held()
    done = yield from scene.written(settling(held, State.COMPLETED, result=b"r", to_caller=False))
    assert (inquiry_of(done).late, inquiry_of(done).reported) == (DUE, UNKNOWN)


@scenario
def evidence_on_a_closed_record_is_a_late_truth(scene: Scene) -> Steps[None]:
    """A closed record is not rewritten; evidence that the effect happened is due, once."""
    held = yield from scene.held()
    closed = yield from scene.settle(held, State.CLOSED, error="Stolen")
    late = yield from scene.say_late(closed, B)
    assert (late.state, inquiry_of(late).late, inquiry_of(late).reported) == (State.CLOSED, DUE, FAILED)
    delivered = there((yield from Deliver(late)))
    again = yield from scene.say_late(delivered, C)
    assert inquiry_of(again).late == DELIVERED
