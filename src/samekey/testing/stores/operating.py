"""Operating: redact, free, sweep, list, audit - compare-and-set too, and never a second charge."""

from __future__ import annotations

from samekey.core.commands import Read, Take, Testify
from samekey.core.key import make_key
from samekey.core.ports import Health
from samekey.core.record import Audit, Record
from samekey.core.states import Role, State
from samekey.testing.stores.scene import (
    ENDED,
    LEASE,
    OPAQUE,
    RENEWALS,
    A,
    B,
    C,
    Scene,
    Steps,
    freeing,
    redacting,
    scenario,
    settling,
)
from samekey.testing.stores.steps import Invoke, Show, over

SWEEP_MAX = 1_000  # more than a scenario leaves

# -- redact, free --------------------------------------------------------------------------------------


@scenario
def redact_drops_results_and_keeps_the_record(scene: Scene) -> Steps[None]:
    """The answer and every testimony's result are gone; that it happened, and all else, stays."""
    for state in (State.COMPLETED, State.CLOSED):
        held = yield from scene.held(state)
        yield from scene.say_late(held, C, result=b"secret too")
        ended = yield from scene.settle(held, state, result=b"secret")

        redacted = yield from scene.written(redacting(ended, why="privacy request 7"))

        assert redacted.result is None
        assert redacted.error
        assert [one.result for one in redacted.evidence] == [None]
        assert (redacted.state, redacted.fence, redacted.settled_by) == (state, ended.fence, A)
        assert (redacted.retain_until, redacted.fingerprint) == (ended.retain_until, ended.fingerprint)
        assert (redacted.moves[-1].who, "privacy request 7" in redacted.moves[-1].why) == ("ada", True)


@scenario
def redact_needs_a_settled_record_and_its_fence(scene: Scene) -> Steps[None]:
    """What is not settled has no answer to drop; what changed hands is not the record that was looked at."""
    for state in (State.STARTED, State.RELEASED, State.IN_DOUBT):
        seen = yield from scene.settled(state, state)
        yield from scene.refused(redacting(seen))

    seen = yield from scene.settled(State.COMPLETED, "fence")
    for stranger in (seen._replace(attempt=C), seen._replace(token=seen.token + 1)):
        yield from scene.refused(redacting(stranger))


@scenario
def free_removes_what_has_ended(scene: Scene) -> Steps[None]:
    """A settled or released record goes, and the key may run again - with a higher token."""
    for state in ENDED:
        seen = yield from scene.settled(state, state)

        gone = yield from freeing(seen)

        assert gone is None
        assert (yield from over(1, Read(seen.key))) is None
        anew = yield from scene.written(scene.opening(state, by=B))
        assert (anew.attempt, anew.attempts, anew.result) == (B, 1, None)
        assert anew.token > seen.token


@scenario
def free_refuses_what_is_held_or_in_doubt(scene: Scene) -> Steps[None]:
    """Unknown is never forgotten: resolve it first."""
    yield from scene.refused(freeing((yield from scene.held("held"))))
    yield from scene.refused(freeing((yield from scene.dead("dead"))))
    yield from scene.refused(freeing((yield from scene.doubted("doubt"))))


@scenario
def free_needs_the_fence_and_the_version_it_saw(scene: Scene) -> Steps[None]:
    """A record that moved on since the operator looked is not the one that was to go."""
    seen = yield from scene.settled(State.RELEASED)
    for stranger in (seen._replace(attempt=C), seen._replace(token=seen.token + 1)):
        yield from scene.refused(freeing(stranger))
    yield from scene.settle(seen, State.COMPLETED)
    yield from scene.refused(freeing(seen))

    seen = yield from scene.settled(State.RELEASED, "taken")
    yield from scene.take(seen, B)
    yield from scene.refused(freeing(seen))

    for state in ENDED:
        seen = yield from scene.settled(state, f"{state} and late evidence")
        yield from Testify(seen.key, B, seen.token, State.COMPLETED, b"it happened", "late")
        yield from scene.refused(freeing(seen))


# -- retention -----------------------------------------------------------------------------------------


def _sweep(limit: int = SWEEP_MAX) -> Steps[int]:
    count: int = yield from Invoke("sweep", (limit,))
    return count


def _swept_clean(scene: Scene) -> Steps[None]:
    """Sweep what earlier scenarios left in a shared database, also what they kept for a short time just now."""
    yield from scene.outlive()
    for _ in range(100):
        if not (yield from _sweep()):
            return


@scenario
def read_of_an_expired_record_finds_none(scene: Scene) -> Steps[None]:
    """Past retention counts as gone, swept or not."""
    for state in ENDED:
        held = yield from scene.held(state)
        kept = yield from scene.settle(held, state, retain=scene.short)
        yield from scene.outlive()
        assert (yield from Read(kept.key)) is None


@scenario
def sweep_removes_only_what_is_past_retention(scene: Scene) -> Steps[None]:
    """Expired records go, whatever their end was, and their keys are new; the others stay as they are."""
    yield from _swept_clean(scene)
    for state in ENDED:
        held = yield from scene.held(f"old {state}")
        yield from scene.settle(held, state, retain=scene.short)
        yield from scene.settled(state, f"young {state}")
    yield from scene.outlive()

    swept = yield from _sweep()

    assert swept == (0 if scene.expires_by_itself else 3)
    assert {one.key.text for one in (yield from scene.listing())} == {f"young {state}" for state in ENDED}
    anew = yield from scene.written(scene.opening(held.key.text, by=B))
    assert anew.token > held.token


@scenario
def sweep_never_removes_what_is_held_in_doubt_or_made_anew(scene: Scene) -> Steps[None]:
    """Started and in doubt never expire, and a key made anew has nothing of its old retention."""
    yield from _swept_clean(scene)
    held = yield from scene.held("anew")
    yield from scene.settle(held, State.COMPLETED, retain=scene.short)
    retaken = yield from _retaken(scene)
    yield from scene.held("held")
    yield from scene.dead("dead")
    held = yield from scene.held("doubt")
    yield from scene.settle(held, State.IN_DOUBT, retain=scene.short)
    yield from scene.outlive()
    yield from scene.opening("anew", by=B)

    swept = yield from _sweep()

    assert swept == 0
    assert {one.key.text for one in (yield from scene.listing())} == {"anew", retaken, "held", "dead", "doubt"}


def _retaken(scene: Scene) -> Steps[str]:
    """A key that was released for a short time and taken again before the store removed it by itself."""
    for number in range(RENEWALS):
        held = yield from scene.held(f"retaken-{number}")
        released = yield from scene.settle(held, State.RELEASED, retain=scene.short)
        taken = yield from Take(released, B, OPAQUE, LEASE, False)
        if taken is not None:
            return held.key.text
    raise AssertionError(f"{RENEWALS} times a key released for {scene.short} s was gone before it could be taken")


@scenario
def sweep_honours_its_limit(scene: Scene) -> Steps[None]:
    """So many at a time, and says how many they were."""
    yield from _swept_clean(scene)
    for number in range(5):
        held = yield from scene.held(str(number))
        yield from scene.settle(held, State.COMPLETED, retain=scene.short)
    yield from scene.outlive()

    counts = []
    for limit in (2, 2, 2, 2):
        counts.append((yield from _sweep(limit)))

    assert counts == ([0, 0, 0, 0] if scene.expires_by_itself else [2, 2, 1, 0])


# -- list ----------------------------------------------------------------------------------------------


@scenario
def list_shows_records_newest_first(scene: Scene) -> Steps[None]:
    """In order of creation, whole, and read on the store's clock; a later change does not move a record."""
    for number in range(4):
        yield from scene.held(str(number))
        yield from scene.outlive()
    (oldest,) = yield from scene.listing(text="0")
    oldest = yield from scene.settle(oldest, State.COMPLETED, result=b"done")

    records = yield from scene.listing()

    assert [one.key.text for one in records] == ["3", "2", "1", "0"]
    assert records[-1].result == oldest.result
    assert records[-1].version == oldest.version
    assert all(one.lease_live and one.now >= one.created_at for one in records[:-1])


@scenario
def list_filters(scene: Scene) -> Steps[None]:
    """By states, operation, tenant and key text, each alone and all together."""
    for state in State:
        yield from scene.settled(state, state)
    for tenant in ("acme", "acme2"):
        yield from scene.opening("started", tenant=tenant)
    other = Scene(scene.short)
    yield from other.held("started")

    def found(**asked: object) -> Steps[list[tuple[str, str | None]]]:
        records = yield from scene.listing(**asked)
        return sorted(((one.key.text, one.key.tenant) for one in records), key=str)

    assert (yield from found(states=(State.COMPLETED,))) == [("completed", None)]
    assert (yield from found(states=(State.CLOSED, State.IN_DOUBT))) == [("closed", None), ("in_doubt", None)]
    assert (yield from found(tenant="acme")) == [("started", "acme")]
    assert len((yield from found(text="started"))) == 3
    assert (yield from found(text="started", tenant="acme2", states=(State.STARTED,))) == [("started", "acme2")]
    assert (yield from found(text="started", states=(State.CLOSED,))) == []
    assert (yield from found(operation=other.operation)) == [("started", None)]


@scenario
def list_leaves_out_what_is_past_retention(scene: Scene) -> Steps[None]:
    """Past retention is gone, swept or not; what never expires is shown."""
    for state in (*ENDED, State.IN_DOUBT):
        held = yield from scene.held(state)
        yield from scene.settle(held, state, retain=scene.short)
    yield from scene.outlive()

    records = yield from scene.listing()

    assert [one.key.text for one in records] == ["in_doubt"]


@scenario
def list_pages_without_gaps_or_repeats(scene: Scene) -> Steps[None]:
    """The cursor of the last record leads to the next page; all pages together are the whole list."""
    yield from Invoke("batch", ([scene.opening(str(number)) for number in range(7)],))  # some of them at one time
    whole = yield from scene.listing()

    paged: list[Record] = []
    cursor = None
    for _ in range(4):
        page = yield from scene.listing(limit=2, before=cursor)
        assert len(page) <= 2
        paged += page
        cursor = (page[-1].created_at, page[-1].key.digest)

    assert [one.key for one in paged] == [one.key for one in whole]
    assert len({one.key for one in paged}) == 7
    assert (yield from scene.listing(limit=2, before=cursor)) == []


# -- audit, health -------------------------------------------------------------------------------------


def _audit(scene: Scene, limit: int = 100, *, on: int = 0) -> Steps[list[Audit]]:
    entries: list[Audit] = yield from Invoke("audit", (limit,), on)
    return [one for one in entries if one.operation.startswith(scene.operation)]


@scenario
def audit_keeps_every_action_of_a_person(scene: Scene) -> Steps[None]:
    """An operator's settle, redact and free, newest first, with name and reason; the record may be gone."""
    key = make_key(scene.operation, "order-1", "acme")
    held = yield from scene.opening(tenant="acme")
    doubt = yield from scene.settle(held, State.IN_DOUBT)
    ended = yield from scene.settle(doubt, State.CLOSED, role=Role.OPERATOR, by="ada", why="the bank declined")
    ended = yield from scene.written(redacting(ended, by="grace", why="privacy"))
    yield from freeing(ended, by="edsger", why="wrong order")

    entries = yield from _audit(scene)

    actions = [(one.who, one.action, one.before, one.after, one.why) for one in entries]
    assert actions == [
        ("edsger", "free", "closed", "", "wrong order"),
        ("grace", "redact", "closed", "closed", "privacy"),
        ("ada", "resolve", "in_doubt", "closed", "the bank declined"),
    ]
    assert all((one.operation, one.tenant, one.text) == key[:3] for one in entries)
    assert entries[-1].at >= held.created_at
    assert len((yield from _audit(scene, 1))) == 1
    assert (yield from _audit(scene, on=1)) == entries


@scenario
def audit_keeps_nothing_else(scene: Scene) -> Steps[None]:
    """What was refused did not happen, and what attempts and providers say is in the moves."""
    held = yield from scene.held()
    yield from scene.refused(freeing(held))
    yield from scene.refused(redacting(held))
    yield from scene.refused(settling(held, State.CLOSED, role=Role.OPERATOR, by="ada"))
    doubt = yield from scene.settle(held, State.IN_DOUBT)
    yield from scene.settle(doubt, State.COMPLETED, role=Role.LOOKUP, by=B)

    assert (yield from _audit(scene)) == []


@scenario
def health_says_what_is_guaranteed(scene: Scene) -> Steps[None]:
    """One sentence about the guarantee reached; every connection sees the same incarnation of the data."""
    one: Health = yield from Invoke("health")
    other: Health = yield from Invoke("health", on=1)

    assert one.store
    assert one.guarantee
    assert one.incarnation
    assert one.incarnation == other.incarnation


@scenario
def a_store_has_a_name_and_knows_its_life(scene: Scene) -> Steps[None]:
    """A name for people; and, once it was reached, the incarnation that its health reports, over every connection."""
    for connection in (0, 1):
        health: Health = yield from Invoke("health", on=connection)
        name = yield from Show("name", connection)
        incarnation = yield from Show("incarnation", connection)

        assert isinstance(name, str)
        assert name
        assert incarnation == health.incarnation


@scenario
def closing_one_connection_leaves_the_others(scene: Scene) -> Steps[None]:
    """A store that is closed takes nothing with it."""
    held = yield from over(1, scene.opening())
    yield from Invoke("close", on=1)

    ended = yield from scene.settle(held, State.COMPLETED, result=b"done")

    assert ended.result == b"done"
