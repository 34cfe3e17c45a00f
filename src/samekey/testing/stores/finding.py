"""Finding: what a record carries besides its outcome, what it can be found by, and how lists filter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samekey.core.commands import Ask, Begin, Read, Renew, Take
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.search import TERMS_MAX, provider_term, term
from samekey.core.states import Role, State
from samekey.testing.stores.scene import (
    ENDED,
    FINGERPRINT,
    LEASE,
    OPAQUE,
    REPEATABLE,
    A,
    B,
    Scene,
    Steps,
    freeing,
    redacting,
    scenario,
    settling,
    there,
)
from samekey.testing.stores.steps import Invoke, over

ALL_BYTES = bytes(range(256))
NOTES = b'{"amount_minor":200}'
X, Y, Z = b"x" * 16, b"\x00" * 16, ALL_BYTES[:16]

# -- what a record carries -----------------------------------------------------------------------------


@scenario
def payload_notes_and_terms_survive_every_move(scene: Scene) -> Steps[None]:
    """They stay as they are through every write that does not bring others; a settle adds terms, and replaces notes."""
    held = yield from scene.written(scene.opening(payload=ALL_BYTES))
    assert (held.content, held.payload, held.notes, held.terms) == (FINGERPRINT.content, ALL_BYTES, None, ())

    yield from scene.written(Renew(held, LEASE))
    yield from scene.written(Begin(held))
    doubt = yield from scene.written(settling(held, State.IN_DOUBT, notes=NOTES, terms=(X, Y, X)))
    assert (doubt.payload, doubt.notes, doubt.terms) == (ALL_BYTES, NOTES, (X, Y))

    yield from scene.written(Ask(doubt, B, LEASE))
    yield from scene.say_late(doubt, state=State.CLOSED)
    taken = yield from scene.written(Take(doubt, B, OPAQUE, LEASE, False))
    free = yield from scene.written(settling(taken, State.RELEASED, terms=(Y, Z)))
    assert (free.content, free.payload, free.notes, free.terms) == (FINGERPRINT.content, ALL_BYTES, NOTES, (X, Y, Z))

    again = yield from scene.written(Take(free, A, OPAQUE, LEASE, False, (b"t" * 16,)))
    ended = yield from scene.written(settling(again, State.COMPLETED, result=b"done"))
    assert (ended.payload, ended.notes, ended.terms) == (None, NOTES, (X, Y, Z, b"t" * 16))
    redacted = yield from scene.written(redacting(ended))
    assert (redacted.notes, redacted.terms, redacted.content) == (NOTES, ended.terms, ended.content)


@scenario
def a_payload_is_dropped_when_the_effect_has_ended(scene: Scene) -> Steps[None]:
    """It is kept for a next run; what is completed or closed has none."""
    for state in ENDED:
        held = yield from scene.opening(state, payload=b"sealed")
        for batched in (False, True):
            command = settling(held, state, notes=ALL_BYTES if batched else None)
            (reply,) = (yield from Invoke("batch", ([command],))) if batched else ((yield command),)
            assert reply.payload == (b"sealed" if state is State.RELEASED else None)


@scenario
def terms_are_bounded(scene: Scene) -> Steps[None]:
    """The first ones stay."""
    held = yield from scene.held()
    many = tuple(bytes([number]) * 16 for number in range(TERMS_MAX + 2))

    yield from scene.settle(held, State.IN_DOUBT, terms=many[:3])
    ended = yield from scene.written(settling(held, State.COMPLETED, terms=many))

    assert ended.terms == many[:TERMS_MAX]
    assert len((yield from scene.listing(term=many[-3]))) == 1
    assert (yield from scene.listing(term=many[-1])) == []


# -- terms ---------------------------------------------------------------------------------------------


@scenario
def a_record_is_found_by_its_terms(scene: Scene) -> Steps[None]:
    """By its provider key and request id from the claim on, by the others from the settle that brings them."""
    asked = (("region", "eu"), ("request_id", f"r of {scene.operation}"))
    one, two, three = (
        scene.opening("one", attributes=asked),
        scene.opening("two", attributes=asked, tenant="acme"),
        scene.opening("three", boundary=REPEATABLE),
    )
    yield from Invoke("batch", ([one, two],))
    yield from three
    held = there((yield from Read(one.key)))

    def found(wanted: bytes, **asked: Any) -> Steps[list[str]]:
        records = yield from scene.listing(term=wanted, **asked)
        return sorted(record.key.text for record in records)

    assert (yield from found(provider_term(one.key, 0))) == ["one"]
    assert (yield from found(provider_term(three.key, 0))) == []  # it sends none
    assert (yield from found(term("request_id", asked[1][1]))) == ["one", "two"]
    assert (yield from found(term("request_id", asked[1][1]), tenant="acme")) == ["two"]
    later = provider_term(one.key, 1)
    assert (yield from found(later)) == []

    free = yield from scene.settle(held, State.RELEASED, next_round=True, terms=(later, X))
    yield from scene.take(free, B)

    for wanted in (later, X, provider_term(one.key, 0)):
        assert (yield from found(wanted)) == ["one"]


@scenario
def terms_go_with_the_record(scene: Scene) -> Steps[None]:
    """A key that was freed, swept or claimed anew is no longer found by what an earlier life of it left."""
    for text, retain in (("freed", LEASE), ("anew", scene.short), ("swept", scene.short)):
        held = yield from scene.held(text)
        seen = yield from scene.settle(held, State.COMPLETED, terms=(X,), notes=NOTES, retain=retain)
        if text == "freed":
            yield from freeing(seen)
    yield from scene.outlive()
    anew = yield from scene.opening("anew", by=B)
    yield from Invoke("sweep", (1000,))
    yield from scene.opening("swept", by=B)
    yield from scene.opening("freed", by=B)

    assert (anew.terms, anew.notes) == ((), None)
    assert (yield from scene.listing(term=X)) == []
    for text in ("freed", "anew", "swept"):
        assert len((yield from scene.listing(term=provider_term(scene.key(text), 0)))) == 1


# -- holds that end by themselves -----------------------------------------------------------------------


@scenario
def a_dead_hold_of_repeatable_ends_by_itself(scene: Scene) -> Steps[None]:
    """When its lease is over and its time has passed, its key is new; no other hold ends so, and no doubt."""
    for boundary in (REPEATABLE, OPAQUE):
        yield from scene.opening(boundary, boundary=boundary, lease=scene.short / 2, retain=scene.short)
    forgotten = yield from scene.opening("swept", boundary=REPEATABLE, lease=scene.short / 2, retain=scene.short)
    unending = yield from scene.opening("no end", boundary=REPEATABLE, lease=scene.short / 2)
    doubted = yield from scene.opening("doubt", boundary=REPEATABLE, retain=scene.short)
    doubted = yield from scene.settle(doubted, State.IN_DOUBT)
    held = yield from scene.opening("held", boundary=REPEATABLE, retain=scene.short)  # its lease lives on
    assert (doubted.retain_until, unending.retain_until) == (None, None)
    assert held.retain_until is not None
    yield from scene.outlive()

    assert {one.key.text for one in (yield from scene.listing())} == {OPAQUE, "no end", "doubt", "held"}
    assert (yield from Read(forgotten.key)) is None
    anew = yield from scene.written(scene.opening(REPEATABLE, by=B, boundary=REPEATABLE, retain=LEASE * 2))
    assert (anew.attempt, anew.attempts) == (B, 1)
    other = yield from scene.refused(scene.opening(OPAQUE, by=B))
    assert (other.attempt, other.retain_until) == (A, None)

    yield from Invoke("sweep", (1000,))
    left = {one.key.text for one in (yield from scene.listing())}
    assert left == {REPEATABLE, OPAQUE, "no end", "doubt", "held"}


@scenario
def a_hold_of_repeatable_that_is_renewed_or_taken_lives_on(scene: Scene) -> Steps[None]:
    """Its end is counted from the last renewal, or from the take; a settle sets the retention."""
    held = yield from scene.opening("renewed", boundary=REPEATABLE, retain=LEASE)
    renewed = yield from scene.written(Renew(held, LEASE, LEASE * 3))
    assert held.retain_until is not None
    assert renewed.retain_until is not None
    assert renewed.retain_until > held.retain_until + LEASE
    ended = yield from scene.settle(renewed, State.COMPLETED, retain=LEASE * 9)
    assert ended.retain_until is not None
    assert ended.retain_until > renewed.retain_until + LEASE

    free = yield from scene.settled(State.RELEASED, "taken", boundary=REPEATABLE)
    taken = yield from scene.written(Take(free, B, REPEATABLE, LEASE, False, (), LEASE * 2))
    assert taken.retain_until is not None
    assert taken.retain_until > taken.created_at + LEASE
    free = yield from scene.settled(State.RELEASED, "opaque now", boundary=REPEATABLE)
    taken = yield from scene.written(Take(free, B, OPAQUE, LEASE, False, (), LEASE * 2))
    assert taken.retain_until is None
    taken = yield from scene.written(Renew(taken, LEASE, LEASE * 2))
    assert taken.retain_until is None


# -- filters -------------------------------------------------------------------------------------------


@scenario
def every_filter_agrees_with_picks(scene: Scene) -> Steps[None]:
    """Whatever a query names, a store lists the records that `Query.picks` picks, and no other."""
    for number, state in enumerate(State):
        fingerprint = FINGERPRINT._replace(content=bytes([number % 2]) * 16)
        attributes = (("client", f"v{number % 2}"), ("request_id", str(number)))
        command = scene.opening(state, fingerprint=fingerprint, attributes=attributes, tenant="t" if number else None)
        held = yield from command
        if state is State.STARTED:
            yield from scene.lose_lease(held)
        else:
            error, terms = ("TimeoutError" if number % 2 else None), (X, bytes([number]) * 16)
            yield from scene.settle(held, state, error=error, terms=terms, result=b"r")
        yield from scene.outlive()
    yield from scene.dead("repeatable", boundary=REPEATABLE)
    yield from scene.held("plain")
    whole = yield from scene.listing()
    assert len(whole) == 7
    middle = whole[3]
    for asked in _queries(middle):
        query = Query(operation=scene.operation, **asked)
        wanted = [one.key.text for one in whole if query.picks(one)]
        found = yield from scene.listing(**asked)
        assert [one.key.text for one in found] == wanted, f"{asked} found {found}"
        assert not found.cut  # type: ignore[attr-defined]
        backwards = yield from scene.listing(**asked, oldest_first=True)
        assert [one.key.text for one in backwards] == wanted[::-1], f"{asked}, oldest first"
    (one,) = [one for one in whole if Query(waiting=True).picks(one) and one.state is State.STARTED]
    assert one.boundary == OPAQUE


def _queries(middle: Record) -> list[dict[str, Any]]:
    digest = middle.key.digest
    both: dict[str, Any] = {"attributes": (("client", "v1"),), "since": middle.created_at}
    return [
        {},
        {"waiting": True},
        {"waiting": True, "states": (State.STARTED,)},
        *({"states": states} for states in ((State.STARTED,), (State.IN_DOUBT, State.STARTED), (State.CLOSED,))),
        *({"digest": digest[:size]} for size in (1, 2, 5, 15, 16)),
        {"digest": b"\xff" * 16},
        *({"attributes": pairs} for pairs in ((("client", "v1"),), (("client", "v1"), ("request_id", "1")))),
        {"attributes": (("client", "request_id"),)},
        {"error": "TimeoutError"},
        {"error": "Timeout"},
        {"since": middle.created_at},
        {"until": middle.created_at},
        {"since": middle.created_at, "until": middle.created_at},
        {"changed_before": middle.changed_at},
        *({"content": bytes([number]) * 16} for number in (0, 1, 2)),
        *({"term": wanted} for wanted in (X, Y, term("request_id", "2"), provider_term(middle.key, 0))),
        both,
        {**both, "waiting": True, "tenant": "t"},
        {"term": X, "states": (State.COMPLETED,), "tenant": "t"},
        {"text": middle.key.text, "digest": digest[:3]},
    ]


@scenario
def lists_page_from_the_oldest_too(scene: Scene) -> Steps[None]:
    """All pages together are the whole list in either direction, under any filter, without gaps or repeats."""
    commands = [
        replace(scene.opening(str(number), tenant="t"), attributes=(("half", str(number % 2)),)) for number in range(9)
    ]
    yield from Invoke("batch", (commands,))  # some of them at one time
    half: dict[str, Any] = {"attributes": (("half", "0"),)}
    for asked, count in (({"oldest_first": True}, 9), ({"oldest_first": True, **half}, 5), (half, 5)):
        whole = yield from over_all(scene, 100, asked)
        paged = yield from over_all(scene, 2, asked)
        assert paged == whole, f"{asked}"
        assert len(set(whole)) == len(whole) == count


def over_all(scene: Scene, limit: int, asked: dict[str, Any]) -> Steps[list[str]]:
    """The keys of all pages."""
    keys: list[str] = []
    cursor = None
    for _ in range(10):
        page = yield from scene.listing(limit=limit, before=cursor, **asked)
        keys += [one.key.text for one in page]
        if not page:
            return keys
        cursor = (page[-1].created_at, page[-1].key.digest)
    raise AssertionError("the pages do not end")


@scenario
def a_lookup_of_an_operator_finds_what_another_connection_wrote(scene: Scene) -> Steps[None]:
    """A settle by a lookup or an operator brings its notes and terms too, over every connection."""
    doubt = yield from scene.doubted()
    ended = yield from over(
        1, settling(doubt, State.COMPLETED, role=Role.OPERATOR, by="ada", why="seen", notes=NOTES, terms=(X,))
    )

    assert (ended.notes, ended.terms) == (NOTES, (X,))
    assert [one.key for one in (yield from scene.listing(term=X))] == [doubt.key]
