"""What a next call can do about a record: the whole table, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from samekey.core.boundary import Asks, Atomic, Boundary, Keyed, Opaque, Repeatable, StillUnknown
from samekey.core.call import Call, in_doubt, next_of
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.next_step import next_step, seconds_until
from samekey.core.policy import Policy
from samekey.core.record import Evidence, Record
from samekey.core.states import State

LEASE = 30.0
HAPPENED = Evidence(at=0.0, token=1, attempt="late", state=State.COMPLETED, result=None, why="")


def lookup(record: Any) -> StillUnknown:
    return StillUnknown()


ASKS, KEYED, OPAQUE, MARKED = Asks(lookup), Keyed(3600), Opaque(), Opaque(marked=True)
BOTH = Keyed(3600, lookup=lookup)


def record_of(boundary: Boundary, state: State = State.IN_DOUBT, **facts: Any) -> Record:
    known: dict[str, Any] = {
        "key": make_key("charge", "o-1"), "state": state, "token": 1, "attempt": "a", "fingerprint": b"", "form": "",
        "fields": (), "boundary": boundary.terms.text(), "version": 1, "attempts": 1, "created_at": 0.0,
        "changed_at": 0.0, "lease_until": 0.0, "lease_clock": "",
    }  # fmt: skip
    return Record(**(known | facts))


@dataclass(frozen=True)
class Row:
    next: str
    claimed: Boundary
    today: Boundary
    state: State = State.IN_DOUBT
    first_sent_at: float | None = None
    begun_at: float | None = None
    unsure: bool = False
    evidence: tuple[Evidence, ...] = ()


ROWS = [
    Row("answers", OPAQUE, OPAQUE, State.COMPLETED),
    Row("answers", OPAQUE, OPAQUE, State.CLOSED),
    Row("runs", OPAQUE, OPAQUE, State.RELEASED),
    Row("answers", OPAQUE, OPAQUE, State.RELEASED, evidence=(HAPPENED,)),
    Row("answers", OPAQUE, OPAQUE, evidence=(HAPPENED,)),
    Row("person", OPAQUE, OPAQUE),
    Row("person", Atomic("db"), Atomic("db")),
    Row("runs", Repeatable(), Repeatable()),
    Row("person", Repeatable(), OPAQUE),  # today's code narrows
    Row("person", OPAQUE, Repeatable()),  # and never widens
    Row("runs", KEYED, KEYED),
    Row("runs", KEYED, KEYED, first_sent_at=0.0),
    Row("person", KEYED, KEYED, first_sent_at=-3600.0),  # the provider's window is over
    Row("person", KEYED, Keyed(40), first_sent_at=-20.0),  # today's window is shorter
    Row("asks", BOTH, BOTH, first_sent_at=-3600.0),
    Row("person", KEYED, BOTH, first_sent_at=-3600.0),  # the claim was made without a lookup
    Row("person", KEYED, OPAQUE),
    Row("asks", ASKS, ASKS),
    Row("person", ASKS, OPAQUE),
    Row("person", OPAQUE, ASKS),
    Row("asks", ASKS, ASKS, State.STARTED),  # as after its lease has ended
    Row("person", OPAQUE, OPAQUE, State.STARTED),
    Row("runs", MARKED, MARKED, State.STARTED),  # before the mark nothing was sent
    Row("person", MARKED, MARKED, State.STARTED, begun_at=1.0),
    Row("person", MARKED, MARKED, State.STARTED, unsure=True),  # an earlier attempt may have happened
    Row("person", MARKED, MARKED),
]


def found(row: Row, **facts: Any) -> Record:
    return record_of(
        row.claimed, row.state, first_sent_at=row.first_sent_at, begun_at=row.begun_at, unsure=row.unsure,
        evidence=row.evidence, **facts,
    )  # fmt: skip


def test_the_table_of_what_a_next_call_can_do():
    wrong = []
    for row in ROWS:
        can_ask = row.today.asks_with is not None
        got = next_step(found(row), row.today.terms, can_ask=can_ask, lease_seconds=LEASE)
        if got != row.next:
            wrong.append((got, row))

    assert wrong == []


def test_without_a_record_the_next_call_runs():
    assert next_step(None, OPAQUE.terms, can_ask=False, lease_seconds=LEASE) == "runs"


def calling(boundary: Boundary) -> Call:
    return Call(
        make_key("charge", "o-1"),
        Intent({}),
        "b",
        boundary,
        boundary.terms,
        boundary.terms.text(),
        Policy(lease=LEASE),
    )


@pytest.mark.parametrize("row", [row for row in ROWS if row.state is State.IN_DOUBT and not row.evidence])
def test_recovery_does_what_the_table_says(row: Row):
    """One decision: the steps that recovery takes are the ones that were announced."""
    from samekey.core.commands import Ask, Take
    from samekey.core.errors import InDoubt
    from samekey.core.recovery import recover

    try:
        first = next(recover(calling(row.today), found(row)))
    except InDoubt as error:
        taken = error.next
    else:
        taken = {Take: "runs", Ask: "asks"}[type(first)]

    assert taken == row.next


def test_seconds_until_a_next_call_can_do_anything():
    held = record_of(OPAQUE, State.STARTED, lease_left=4.0)
    asked = record_of(ASKS, asker="other", ask_left=7.0)

    assert (seconds_until(None), seconds_until(held), seconds_until(asked)) == (0.0, 4.0, 7.0)
    assert seconds_until(held.changed(lease_left=-1.0)) == seconds_until(asked.changed(asker=None)) == 0.0


def test_an_error_in_doubt_says_what_comes_next():
    error = in_doubt(calling(ASKS), record_of(ASKS, asker="other", ask_left=7.0), "the provider is being asked")

    assert (error.next, error.retry_after) == ("asks", 7.0)
    assert in_doubt(calling(OPAQUE), record_of(OPAQUE), "a crash").next == "person"
    assert next_of(replace(calling(OPAQUE), policy=Policy()), None) == "runs"
