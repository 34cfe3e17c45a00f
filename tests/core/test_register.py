"""What the register does with each command, one sentence per rule; refused, a command changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from samekey.core.commands import Ask, Begin, Free, Open, Redact, Renew, Settle, Take, Testify
from samekey.core.fingerprint import Fingerprint
from samekey.core.key import make_key
from samekey.core.record import EVIDENCE_MAX, MOVES_MAX, Evidence, Move, Record
from samekey.core.register import (
    Moment,
    after_loss,
    apply,
    audit_entry,
    expired,
    lease_live,
    same_fence,
    seen_at,
    storable,
)
from samekey.core.states import EXPIRES, NEXT, SETTLED, Role, State, may

KEY = make_key("charge", "o-1", "acme")
NOW = Moment(wall=1000.0, tick=50.0, clock="boot", token=9)
PRINT = Fingerprint(b"\x01", "1", (("amount", b"\x02"),))
OPEN = Open(KEY, "me", PRINT, "opaque marked", 30.0, False, (("region", "eu"),))
HELD = apply(None, OPEN, NOW)
assert HELD is not None
SAID = Evidence(900.0, 9, "late", State.COMPLETED, b"r", "settled too late")


def held(**changes: Any) -> Record:
    assert HELD is not None
    return HELD._replace(**changes)


def after(**passed: Any) -> Moment:
    return replace(NOW, **passed)


LATER = replace(NOW, wall=1100.0, tick=150.0, token=12)  # every lease is over
SETTLED_ONE = held(state=State.COMPLETED, settled_by="me", settled_at=1000.0, retain_until=2000.0, result=b"r")


# -- open ------------------------------------------------------------------------------------------------------


def test_the_first_claim_writes_all_that_a_record_has():
    assert Record(
        KEY, State.STARTED, 9, "me", b"\x01", "1", (("amount", b"\x02"),), "opaque marked", 1, 1, 1000.0, 1000.0, 80.0,
        "boot", attributes=(("region", "eu"),), moves=(Move(1000.0, 9, "", "started", "me", ""),),
    ) == HELD  # fmt: skip


def test_the_window_of_a_provider_counts_from_a_claim_that_sends():
    sends = apply(None, Open(KEY, "me", PRINT, "keyed window=60.0", 30.0, True), NOW)

    assert sends is not None
    assert sends.first_sent_at == 1000.0
    assert sends.attributes == ()


def test_what_is_there_is_shown_unchanged():
    assert apply(HELD, OPEN, LATER) is HELD
    assert apply(SETTLED_ONE, OPEN, LATER) is SETTLED_ONE


@pytest.mark.parametrize(("mine", "proposed", "drawn"), [(9, 12, 12), (20, 12, 21)])
def test_past_retention_a_claim_is_made_anew_with_a_higher_token(mine, proposed, drawn):
    old = SETTLED_ONE._replace(token=mine, version=5, attempt="old", retain_until=1100.0)
    new = apply(old, OPEN, replace(LATER, token=proposed))

    assert new is not None
    assert (new.token, new.version, new.attempt, new.state, new.attempts) == (drawn, 6, "me", State.STARTED, 1)
    assert (new.result, new.settled_by, new.evidence) == (None, None, ())
    assert apply(old, OPEN, replace(LATER, wall=1099.9)) is old


def test_only_what_ended_expires():
    for state in State:
        assert expired(held(state=state, retain_until=1.0), NOW) == (state in EXPIRES)
    assert not expired(SETTLED_ONE._replace(retain_until=None), NOW)
    assert frozenset({State.COMPLETED, State.CLOSED, State.RELEASED}) == EXPIRES
    assert frozenset({State.COMPLETED, State.CLOSED}) == SETTLED


def test_nothing_but_a_claim_makes_a_record():
    for command in (Begin(held()), Renew(held(), 30.0), Free(held(), "ann", "why")):
        assert apply(None, command, NOW) is None


# -- clocks and fences -----------------------------------------------------------------------------------------


def test_a_lease_lives_until_its_end_on_the_clock_it_was_written_by():
    assert lease_live(held(), NOW)
    assert lease_live(held(), after(tick=79.9))
    assert not lease_live(held(), after(tick=80.0))
    assert not lease_live(held(), replace(NOW, clock="another boot"))


def test_a_record_is_shown_as_the_clock_sees_it():
    seen = seen_at(held(ask_until=55.0, after_loss=True), NOW)

    assert (seen.now, seen.lease_left, seen.ask_left, seen.after_loss) == (1000.0, 30.0, 5.0, False)
    assert seen[:-4] == held(ask_until=55.0)[:-4]
    elsewhere = seen_at(held(ask_until=55.0), replace(NOW, clock="another boot"))
    assert (elsewhere.lease_left, elsewhere.ask_left) == (0.0, 0.0)


def test_the_fence_is_token_and_attempt():
    assert same_fence(held(), held(version=7))
    assert not same_fence(held(), held(token=8))
    assert not same_fence(held(), held(attempt="you"))


# -- take ------------------------------------------------------------------------------------------------------


def take(seen: Record, **how: Any) -> Take:
    return Take(seen, "you", how.get("boundary", "opaque"), 10.0, how.get("sends", False))


def test_a_released_record_starts_anew_under_todays_terms():
    free = held(
        state=State.RELEASED, begun_at=1.0, settled_by="me", settled_at=1.0, retain_until=2000.0, error="NotDone",
        asker="they", ask_until=60.0, first_sent_at=5.0,
    )  # fmt: skip
    taken = apply(free, take(free), LATER)

    assert taken == free._replace(
        state=State.STARTED, token=12, attempt="you", boundary="opaque", version=2, attempts=2, changed_at=1100.0,
        lease_until=160.0, begun_at=None, first_sent_at=None, settled_by=None, settled_at=None, retain_until=None,
        error=None, asker=None, ask_until=0.0,
        moves=(*free.moves, Move(1100.0, 12, "released", "started", "you", "")),
    )  # fmt: skip
    sent = apply(free, take(free, sends=True), LATER)
    assert sent is not None
    assert sent.first_sent_at == 1100.0


def test_out_of_doubt_the_claims_own_terms_and_window_stay_and_it_is_unsure():
    doubt = held(state=State.IN_DOUBT, boundary="keyed window=60.0", first_sent_at=990.0)
    taken = apply(doubt, take(doubt, boundary="repeatable", sends=True), LATER)

    assert taken is not None
    assert (taken.boundary, taken.first_sent_at, taken.unsure) == ("keyed window=60.0", 990.0, True)
    assert taken.moves[-1] == Move(1100.0, 12, "in_doubt", "started", "you", "taken over")


def test_a_token_only_grows():
    free = held(state=State.RELEASED, token=40)
    taken = apply(free, take(free), LATER)

    assert taken is not None
    assert taken.token == 41


def test_a_dead_holder_that_had_not_begun_is_taken():
    taken = apply(held(), take(held()), LATER)

    assert taken is not None
    assert (taken.attempt, taken.unsure, taken.boundary) == ("you", False, "opaque")
    after_a_boot = apply(held(), take(held()), replace(LATER, clock="another boot"))
    assert after_a_boot is not None
    assert (after_a_boot.attempt, after_a_boot.lease_clock) == ("you", "another boot")


@pytest.mark.parametrize(
    ("record", "moment"),
    [
        (held(), NOW),  # the lease lives
        (held(begun_at=1.0), LATER),
        (held(unsure=True), LATER),
        (held(boundary="opaque"), LATER),  # no mark would ever say
        (held(state=State.RELEASED, evidence=(SAID,)), LATER),  # it happened
        (held(state=State.COMPLETED), LATER),
        (held(state=State.CLOSED), LATER),
    ],
)
def test_what_must_not_be_taken_is_not(record, moment):
    assert apply(record, take(record), moment) is record


def test_a_take_is_of_what_was_seen():
    free = held(state=State.RELEASED)
    for seen in (free._replace(token=8), free._replace(attempt="x"), free._replace(state=State.IN_DOUBT)):
        assert apply(free, take(seen), LATER) is free


# -- begin and renew -------------------------------------------------------------------------------------------


def test_a_mark_is_written_once_by_whoever_holds():
    begun = apply(held(), Begin(held()), after(wall=1001.0))

    assert begun == held(begun_at=1001.0, first_sent_at=1001.0, version=2, changed_at=1001.0)
    assert apply(begun, Begin(held()), after(wall=1002.0)) is begun
    again = apply(held(first_sent_at=5.0), Begin(held()), NOW)
    assert again is not None
    assert again.first_sent_at == 5.0


@pytest.mark.parametrize(
    ("record", "moment"),
    [
        (held(), LATER),
        (held(evidence=(SAID,)), NOW),
        (held(state=State.IN_DOUBT), NOW),
        (held(token=10), NOW),
        (held(attempt="you"), NOW),
    ],
)
def test_nothing_is_sent_after_the_hold_is_lost(record, moment):
    assert apply(record, Begin(held()), moment) is record


def test_a_live_lease_is_renewed_by_its_holder():
    renewed = apply(held(), Renew(held(), 20.0), after(wall=1005.0, tick=60.0))

    assert renewed == held(lease_until=80.0, version=2, changed_at=1005.0)
    for record, moment in ((held(), LATER), (held(state=State.IN_DOUBT), NOW), (held(attempt="you"), NOW)):
        assert apply(record, Renew(held(), 20.0), moment) is record


# -- settle ----------------------------------------------------------------------------------------------------


def settle(seen: Record, role: Role, state: State, **how: Any) -> Settle:
    return Settle(seen, role, state, **{"by": "me", **how})


def test_the_holder_says_how_it_ended():
    done = apply(
        held(asker="they", ask_until=60.0),
        settle(held(), Role.HOLDER, State.COMPLETED, result=b"r", retain_seconds=60.0),
        after(wall=1001.0),
    )

    assert done == held(
        state=State.COMPLETED, result=b"r", settled_by="me", settled_at=1001.0, retain_until=1061.0, version=2,
        changed_at=1001.0, moves=(*held().moves, Move(1001.0, 9, "started", "completed", "me", "")),
    )  # fmt: skip


def test_a_doubt_is_no_end():
    doubt = apply(held(), settle(held(), Role.HOLDER, State.IN_DOUBT, error="Timeout\ud800", retain_seconds=60.0), NOW)

    assert doubt is not None
    assert (doubt.settled_by, doubt.settled_at, doubt.retain_until) == (None, None, None)
    late = apply(held(retain_until=2000.0), settle(held(), Role.HOLDER, State.IN_DOUBT), NOW)
    assert late is not None
    assert late.retain_until is None  # unknown is never forgotten
    assert doubt.error == "Timeout\\ud800"
    assert doubt.moves[-1].why == "Timeout\\ud800"  # no other reason was given


def test_a_reason_goes_before_an_error_and_a_round_is_counted():
    released = apply(
        held(round=3), settle(held(), Role.HOLDER, State.RELEASED, error="E", why="never ran", next_round=True), NOW
    )

    assert released is not None
    assert (released.moves[-1].why, released.error, released.round) == ("never ran", "E", 4)
    same = apply(held(round=3), settle(held(), Role.HOLDER, State.RELEASED), NOW)
    assert same is not None
    assert (same.round, same.moves[-1].why, same.error) == (3, "", None)


def test_a_passer_by_may_only_doubt_a_dead_lease():
    doubt = settle(held(), Role.PASSER_BY, State.IN_DOUBT)

    assert apply(HELD, doubt, NOW) is HELD
    moved = apply(held(), doubt, LATER)
    assert moved is not None
    assert (moved.state, moved.token, moved.lease_until, moved.moves[-1].who) == (State.IN_DOUBT, 9, 80.0, "me")
    other_boot = apply(held(), doubt, replace(LATER, clock="another boot"))
    assert other_boot is not None
    assert (other_boot.lease_until, other_boot.lease_clock) == (150.0, "another boot")


def test_the_provider_and_a_person_speak_for_the_whole_key_and_a_holder_for_its_try():
    doubt = held(state=State.IN_DOUBT, unsure=True)
    sure = {
        role: apply(doubt, settle(doubt, role, State.COMPLETED), NOW)
        for role in (Role.HOLDER, Role.LOOKUP, Role.OPERATOR)
    }

    assert {role: one.unsure for role, one in sure.items() if one} == {
        Role.HOLDER: True,
        Role.LOOKUP: False,
        Role.OPERATOR: False,
    }
    assert [one.moves[-1].who for one in sure.values() if one] == ["me", "lookup:me", "operator:me"]
    still = apply(held(unsure=True), settle(held(), Role.HOLDER, State.IN_DOUBT), NOW)
    assert still is not None
    assert still.unsure


def test_a_person_speaks_about_what_was_shown():
    shown, now = held(state=State.IN_DOUBT), held(state=State.RELEASED)

    assert apply(now, settle(shown, Role.OPERATOR, State.COMPLETED), NOW) is now
    assert apply(now, settle(shown, Role.LOOKUP, State.COMPLETED), NOW) is not now


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("end", State)
def test_who_may_move_what_is_next_and_nothing_else(role, before, end):
    record = held(state=before)
    moved = apply(record, settle(record, role, end), LATER)
    allowed = end in NEXT[role].get(before, ()) and end is not State.STARTED

    assert (moved is not record) == allowed
    assert may(role, before, end) == (end in NEXT[role].get(before, ()))


MOVES = {
    ("holder", "started"): "completed closed released in_doubt",
    ("holder", "in_doubt"): "completed closed released",
    ("holder", "released"): "completed closed",
    ("passer-by", "started"): "in_doubt started",
    ("passer-by", "released"): "started",
    ("passer-by", "in_doubt"): "started",
    ("lookup", "in_doubt"): "completed closed released",
    ("lookup", "released"): "completed closed",
    ("operator", "in_doubt"): "completed closed released",
    ("operator", "released"): "completed closed",
}


def test_next_is_what_the_docs_say_word_for_word():
    told = {
        (str(role), str(before)): set(map(str, ends)) for role, moves in NEXT.items() for before, ends in moves.items()
    }

    assert told == {move: set(ends.split()) for move, ends in MOVES.items()}


def test_a_fence_that_moved_settles_nothing():
    for seen in (held(token=8), held(attempt="x")):
        record = held()
        assert apply(record, settle(seen, Role.HOLDER, State.COMPLETED), NOW) is record


def test_only_the_last_moves_are_told():
    moves = tuple(Move(float(n), 1, "", "", "", "") for n in range(MOVES_MAX))
    record = held(moves=moves)
    doubt = apply(record, settle(record, Role.HOLDER, State.IN_DOUBT), NOW)

    assert doubt is not None
    assert len(doubt.moves) == MOVES_MAX
    assert doubt.moves[:-1] == moves[1:]


# -- ask, testify, redact, free ----------------------------------------------------------------------------------

DOUBT = held(state=State.IN_DOUBT)


def test_a_doubt_is_asked_about_by_one_at_a_time():
    asked = apply(DOUBT, Ask(DOUBT, "me", 5.0), after(wall=1001.0))
    assert asked == DOUBT._replace(asker="me", ask_until=55.0, version=2, changed_at=1001.0)
    assert apply(asked, Ask(DOUBT, "you", 5.0), NOW) is asked
    mine = apply(asked, Ask(DOUBT, "me", 9.0), NOW)
    assert mine is not None
    assert mine.ask_until == 59.0
    late = apply(asked, Ask(DOUBT, "you", 5.0), after(tick=55.0))
    assert late is not None
    assert late.asker == "you"
    rebooted = apply(asked, Ask(DOUBT, "you", 5.0), replace(NOW, clock="another boot"))
    assert rebooted is not None
    assert (rebooted.asker, rebooted.lease_until, rebooted.lease_clock) == ("you", 50.0, "another boot")


def test_asking_ends_when_the_asker_says_so_and_nobody_else():
    asked = DOUBT._replace(asker="me", ask_until=55.0)
    ended = apply(asked, Ask(DOUBT, "me", 0), NOW)

    assert ended is not None
    assert (ended.asker, ended.ask_until) == (None, 0.0)
    assert apply(asked, Ask(DOUBT, "you", 0), after(tick=60.0)) is asked
    for record in (held(), DOUBT._replace(token=8), DOUBT._replace(attempt="x")):
        assert apply(record, Ask(DOUBT, "me", 5.0), NOW) is record


def word_of(attempt: str = "late", state: State = State.COMPLETED) -> Testify:
    return Testify(KEY, attempt, 7, state, b"r", "settled too late\ud800")


def test_a_late_word_is_kept_once():
    said = apply(held(), word_of(), after(wall=1001.0))

    assert said == held(
        evidence=(Evidence(1001.0, 7, "late", State.COMPLETED, b"r", "settled too late\\ud800"),),
        version=2,
        changed_at=1001.0,
    )
    assert apply(said, word_of(), NOW) is said
    assert apply(said, word_of("another"), NOW) is not said


def test_the_records_own_word_is_no_evidence():
    assert apply(SETTLED_ONE, word_of("me"), NOW) is SETTLED_ONE
    assert apply(SETTLED_ONE, word_of("me", State.CLOSED), NOW) is not SETTLED_ONE
    assert apply(SETTLED_ONE, word_of("you"), NOW) is not SETTLED_ONE


def test_evidence_has_a_bound():
    almost = held(evidence=tuple(SAID._replace(attempt=str(n)) for n in range(EVIDENCE_MAX - 1)))
    full = apply(almost, word_of(), NOW)

    assert full is not None
    assert len(full.evidence) == EVIDENCE_MAX
    assert apply(full, word_of("one more"), NOW) is full


def test_a_redacted_record_has_no_result_anywhere():
    record = SETTLED_ONE._replace(evidence=(SAID,))
    gone = apply(record, Redact(record, "ann", "gdpr"), after(wall=1001.0))

    assert gone == record._replace(
        result=None, error="the result was redacted", evidence=(SAID._replace(result=None),), version=2,
        changed_at=1001.0, moves=(*record.moves, Move(1001.0, 9, "completed", "completed", "ann", "redacted: gdpr")),
    )  # fmt: skip
    for other in (held(), DOUBT, held(state=State.RELEASED), record._replace(token=8)):
        assert apply(other, Redact(record._replace(state=other.state), "ann", "gdpr"), NOW) is other


def test_what_ended_may_be_freed_and_nothing_else():
    for state in State:
        record = held(state=state)
        assert (apply(record, Free(record, "ann", "why"), NOW) is None) == (state in EXPIRES)
    moved = SETTLED_ONE._replace(version=SETTLED_ONE.version + 1)  # evidence came, or a move
    assert apply(moved, Free(SETTLED_ONE, "ann", "why"), NOW) is moved
    assert apply(SETTLED_ONE, Free(SETTLED_ONE._replace(token=1), "ann", "why"), NOW) is SETTLED_ONE


def test_the_audit_keeps_what_people_did():
    resolve = settle(DOUBT, Role.OPERATOR, State.COMPLETED, by="ann", why="saw it\ud800")
    entry = audit_entry(resolve, DOUBT, SETTLED_ONE, NOW)

    assert entry == (1000.0, "ann", "resolve", "charge", "acme", "o-1", "in_doubt", "completed", "saw it\\ud800")
    freed = audit_entry(Free(SETTLED_ONE, "ann", "why"), SETTLED_ONE, None, NOW)
    assert freed is not None
    assert (freed.action, freed.before, freed.after) == ("free", "completed", "")
    redacted = audit_entry(Redact(SETTLED_ONE, "ann", "why"), None, SETTLED_ONE, NOW)
    assert redacted is not None
    assert (redacted.action, redacted.before) == ("redact", "")
    for command in (settle(DOUBT, Role.LOOKUP, State.COMPLETED), OPEN, Begin(held())):
        assert audit_entry(command, DOUBT, SETTLED_ONE, NOW) is None


def test_foreign_text_is_made_storable():
    assert storable("Größe") == "Größe"
    assert storable("a\ud800") == "a\\ud800"


def test_records_made_within_a_day_after_a_loss_ask_first():
    day = 24 * 3600.0

    assert [after_loss(created, 1000.0) for created in (999.9, 1000.0, 999.9 + day, 1000.0 + day)] == [
        False,
        True,
        True,
        False,
    ]
    assert not after_loss(1000.0, None)
