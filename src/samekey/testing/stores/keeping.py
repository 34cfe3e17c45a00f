"""Keeping: every value survives, scopes stay apart, and a record lists its moves."""

from __future__ import annotations

from dataclasses import replace

from samekey.core.commands import Ask, Begin, Read, Renew, StoreCommand, Take, Testify
from samekey.core.errors import RecordUnreadable
from samekey.core.fingerprint import Fingerprint
from samekey.core.key import KEY_MAX_BYTES, NAME_MAX_BYTES, make_key
from samekey.core.record import ATTRIBUTE_MAX_CHARS, ATTRIBUTES_MAX, MOVES_MAX
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
    redacting,
    scenario,
    settling,
    there,
)
from samekey.testing.stores.steps import Invoke, over

ALL_BYTES = bytes(range(256))
ODD_TEXT = "naïve \N{SNOWMAN} \N{PILE OF POO} 'quote' \"double\" `tick` %s {x} \\n \n\t a:b|c;d -- \u4e2d \u200d\u202e"
RESULT_BYTES = 1 << 20  # the policy's default limit

# -- values --------------------------------------------------------------------------------------------


@scenario
def every_key_survives(scene: Scene) -> Steps[None]:
    """Any text is a key of its own, up to the longest one: no folding, no trimming, no cutting short."""
    texts = [
        *("o-1", "O-1", "o-1 ", " o-1", "o_1", "o%1", "ö-1", "o\u0308-1", "0", "00", "null", "a/b", "a\\/b", "{a}:b"),
        *("'; DROP TABLE records; --", "\N{SNOWMAN}" * 300, "x" * KEY_MAX_BYTES, "x" * (KEY_MAX_BYTES - 1) + "y"),
    ]
    for number, text in enumerate(texts):
        yield from scene.held(text, by=f"{number:032x}")

    for number, text in enumerate(texts):
        found = there((yield from over(1, Read(scene.key(text)))))
        assert (found.key, found.attempt) == (scene.key(text), f"{number:032x}")


@scenario
def scopes_stay_apart(scene: Scene) -> Steps[None]:
    """The same key text under another tenant, no tenant or another operation is another record."""
    keys = [
        make_key(scene.operation, "k"),
        make_key(scene.operation, "k", "acme"),
        make_key(scene.operation, "k", "ACME"),
        make_key(scene.operation, "k", "\N{SNOWMAN}" * (NAME_MAX_BYTES // 3)),
        make_key(scene.operation + "-other", "k", "acme"),
        make_key(scene.operation, "k/acme"),
    ]
    for number, key in enumerate(keys):
        held = yield from replace(scene.opening(), key=key, attempt=f"{number:032x}")
        assert held.attempt == f"{number:032x}"
        yield from scene.settle(held, State.COMPLETED, result=b"%d" % number)

    for number, key in enumerate(keys):
        found = there((yield from over(1, Read(key))))
        assert (found.key, found.result) == (key, b"%d" % number)


@scenario
def a_record_of_another_key_is_not_ours(scene: Scene) -> Steps[None]:
    """Two keys with one digest: a caller with the other key does not see the record, and changes nothing."""
    for state in (State.STARTED, State.COMPLETED):
        seen = yield from scene.held(state)
        if state is State.COMPLETED:
            seen = yield from scene.settle(seen, state, result=b"not yours")
        impostor = seen.key._replace(text="another")
        commands: tuple[StoreCommand, ...] = (Read(impostor), replace(scene.opening(by=B), key=impostor))
        for command in commands:  # the others need a fence, which only this record has
            (batched,) = yield from Invoke("batch", ([command],))
            assert isinstance(batched, RecordUnreadable), f"{command} was answered with {batched!r}"
            try:
                alone = yield command
            except RecordUnreadable:
                continue
            raise AssertionError(f"{command} was answered with {alone!r}")

        assert_same(seen, (yield from scene.read(seen)))


@scenario
def every_result_survives(scene: Scene) -> Steps[None]:
    """Bytes come back as they went in: all 256 values, none at all, and a whole mebibyte of them."""
    results = (None, b"", b"\x00", ALL_BYTES, ALL_BYTES * (RESULT_BYTES // 256))
    for number, result in enumerate(results):
        held = yield from scene.held(str(number))
        ended = yield from scene.settle(held, State.COMPLETED, result=result)
        found = there((yield from over(1, Read(held.key))))
        assert ended.result == result
        assert found.result == result


@scenario
def every_claim_survives(scene: Scene) -> Steps[None]:
    """Digests of any byte, many fields, full attributes: what a claim says comes back equal, in order."""
    fields = tuple((f"{ODD_TEXT} {number}", ALL_BYTES[number : number + 8]) for number in range(64))
    attributes = tuple((f"n{number} {ODD_TEXT}"[:64], "ü" * ATTRIBUTE_MAX_CHARS) for number in range(ATTRIBUTES_MAX))
    fingerprint = Fingerprint(ALL_BYTES[:32], "1 ignore=a,b key=" + "k" * 400, fields)

    held = yield from scene.written(scene.opening(fingerprint=fingerprint, attributes=attributes, tenant="käse"))

    assert (held.fingerprint, held.form, held.fields, held.content) == fingerprint
    assert held.attributes == attributes

    held = yield from scene.held("none of it")
    plain = yield from scene.written(Renew(held, LEASE))
    assert (plain.attributes, plain.error, plain.evidence) == ((), None, ())


@scenario
def every_text_survives(scene: Scene) -> Steps[None]:
    """Errors, reasons, names and evidence come back as they were written."""
    held = yield from scene.held()
    late = yield from scene.say_late(held, ODD_TEXT, state=State.CLOSED, result=ALL_BYTES, why=ODD_TEXT)
    doubt = yield from scene.settle(late, State.IN_DOUBT, error=ODD_TEXT * 20)
    asked = yield from scene.written(Ask(doubt, ODD_TEXT, LEASE))

    assert (doubt.error, asked.asker) == (ODD_TEXT * 20, ODD_TEXT)

    ended = yield from scene.written(
        settling(asked, State.RELEASED, role=Role.OPERATOR, by=ODD_TEXT, error="", why=ODD_TEXT)
    )

    assert (ended.settled_by, ended.error, ended.moves[-1].why) == (ODD_TEXT, "", ODD_TEXT)
    (one,) = ended.evidence
    assert (one.attempt, one.state, one.result, one.why) == (ODD_TEXT, State.CLOSED, ALL_BYTES, ODD_TEXT)


@scenario
def no_text_stops_a_settle(scene: Scene) -> Steps[None]:
    """An error's text may hold what a store cannot keep (NUL, a lone surrogate): the settle is written all the same."""
    for number, text in enumerate(("nul \x00 inside", "lone \ud800 surrogate")):
        held = yield from scene.held(str(number))

        ended = yield from scene.settle(held, State.COMPLETED, result=b"done", error=text, why=text)

        assert (ended.state, ended.result) == (State.COMPLETED, b"done")
        assert ended.error


# -- the story of a key --------------------------------------------------------------------------------


@scenario
def moves_tell_who_did_what_and_why(scene: Scene) -> Steps[None]:
    """Every change of state is a move, written with it: when, under which token, from, to, who and why."""
    held = yield from scene.held()
    doubt = yield from scene.settle(held, State.IN_DOUBT, error="TimeoutError")
    taken = yield from scene.take(doubt, B)
    again = yield from scene.settle(taken, State.IN_DOUBT, why="cancelled", error="CancelledError")
    asked = yield from scene.settle(again, State.RELEASED, role=Role.LOOKUP, by=C, why="not on the books")
    ended = yield from scene.settle(asked, State.COMPLETED, role=Role.OPERATOR, by="ada", why="the customer has it")

    moves = [(move.token, move.before, move.after, move.who) for move in ended.moves]
    assert moves == [
        (held.token, "", "started", A),
        (held.token, "started", "in_doubt", A),
        (taken.token, "in_doubt", "started", B),
        (taken.token, "started", "in_doubt", B),
        (taken.token, "in_doubt", "released", f"lookup:{C}"),
        (taken.token, "released", "completed", "operator:ada"),
    ]
    whys = [ended.moves[at].why for at in (0, 1, 3, 4, 5)]
    assert whys == ["", "TimeoutError", "cancelled", "not on the books", "the customer has it"]
    times = [move.at for move in ended.moves]
    assert times == sorted(times)
    assert times[0] == ended.created_at
    assert times[-1] == ended.changed_at


@scenario
def moves_keep_the_last_sixteen(scene: Scene) -> Steps[None]:
    """Older moves make room for new ones, in order."""
    record = yield from scene.held()
    moves = list(record.moves)
    for _ in range(MOVES_MAX):
        record = yield from scene.settle(record, State.RELEASED)
        moves.append(record.moves[-1])
        record = yield from scene.take(record, B)
        moves.append(record.moves[-1])

    assert record.moves == tuple(moves[-MOVES_MAX:])


@scenario
def the_version_rises_with_every_write_and_with_nothing_else(scene: Scene) -> Steps[None]:
    """Readers compare versions to learn whether anything changed, so each write raises it, and no refusal does."""
    held = yield from scene.written(scene.opening(boundary=MARKED))
    yield from scene.refused(scene.opening(by=B))
    yield from scene.written(Renew(held, LEASE))
    yield from scene.written(Begin(held))
    yield from scene.refused(Begin(held))
    doubt = yield from scene.written(settling(held, State.IN_DOUBT))
    yield from scene.refused(settling(held, State.IN_DOUBT))
    yield from scene.written(Ask(doubt, B, LEASE))
    yield from scene.refused(Ask(doubt, C, LEASE))
    taken = yield from scene.written(Take(doubt, C, OPAQUE, LEASE, False))
    yield from scene.refused(Take(doubt, B, OPAQUE, LEASE, False))
    late = Testify(held.key, A, held.token, State.CLOSED, None, "late")
    yield from scene.written(late)
    yield from scene.refused(late)
    ended = yield from scene.written(settling(taken, State.COMPLETED, result=b"done"))
    yield from scene.written(redacting(ended))
    last = yield from scene.refused(Renew(held, LEASE))

    assert last.version == 9 + held.version - 1


@scenario
def the_last_change_is_dated(scene: Scene) -> Steps[None]:
    """`changed_at` is the store's time of the last write, `created_at` that of the first."""
    held = yield from scene.held()
    yield from scene.outlive()
    renewed = yield from scene.written(Renew(held, LEASE))

    assert renewed.created_at == held.created_at == held.changed_at
    assert renewed.changed_at >= held.changed_at + scene.short / 2
