"""Results and functions: what a replay gives back (CHALLENGES 3e)."""

from __future__ import annotations

import enum
import sys
import types
from dataclasses import dataclass, field, make_dataclass
from datetime import date, time, timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from samekey import NotDone, Policy, Refused, ResultNotKept, ResultUnreadable, State
from tests.guard.helpers import Ledger, Place, Seen, Side, Thread


class Colour(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Line:
    sku: str
    count: int = 1


@dataclass
class Receipt:
    lines: list[Line]
    tags: dict[int, str] = field(default_factory=dict)


class Model(BaseModel):
    id: UUID
    inner: dict[str, int]


class Stolen(Refused):
    """A refusal with a class of its own."""


class CardError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code


EMPTY: list[Any] = [0, [], {}, "", False, None, 0.0, b"", ()]


def test_c72_empty_results_replay_equal_and_of_the_same_type(side: Side, ledger: Ledger):
    for key, result in enumerate(EMPTY):

        def effect(result=result):
            ledger.add()
            return result

        first = side.run("charge", effect, key=key, payload={})
        again = side.run("charge", effect, key=key, payload={})

        assert first.result == again.result == result
        assert type(again.result) is type(result)
    assert len(ledger) == len(EMPTY)


RESULTS: list[Any] = [
    (1, (2, [3])),
    {1: "a", "1": "b", None: "c"},
    Colour.RED,
    Level.LOW,
    UUID(int=5),
    date(2024, 2, 29),
    time(1, 2, 3),
    timedelta(days=-1, microseconds=1),
    10**400,
    float("inf"),
    "\ud800 alone",
    Receipt([Line("a"), Line("b", 2)], {1: "x"}),
    Model(id=UUID(int=1), inner={"a": 1}),
    {"tuple": [1, 2]},
]


def test_c73_tuples_int_keys_enums_uuids_and_data_classes_come_back_as_they_were(side: Side):
    for key, result in enumerate(RESULTS):
        side.run("charge", lambda result=result: result, key=key, payload={})  # type: ignore[misc]
        again = side.run("charge", lambda: None, key=key, payload={})

        assert again.result == result
        assert type(again.result) is type(result)
        assert repr(again.result) == repr(result)


def test_c75_a_refusal_replays_the_same_class_and_message(side: Side, ledger: Ledger):
    def effect():
        ledger.add()
        raise Stolen("card reported stolen", detail={"card": "..42"})

    told = []
    for _ in range(3):
        with pytest.raises(Stolen) as raised:
            side.run("charge", effect, key="o-1", payload={})
        told.append(raised.value)

    assert len(ledger) == 1
    assert [str(one) for one in told] == ["card reported stolen"] * 3
    assert [one.detail for one in told] == [{"card": "..42"}] * 3
    assert told[1] is not told[2]


def test_c75_an_exception_the_policy_closes_replays_as_itself(place: Place, side: Side, ledger: Ledger):
    policy = Policy(closes=(CardError,))

    def effect():
        ledger.add()
        raise CardError("stolen", "call the police")

    for _ in range(2):
        with pytest.raises(CardError, match="police") as raised:
            side.run("charge", effect, key="o-1", payload={}, policy=policy)
        assert raised.value.code == "stolen"
    assert (len(ledger), place.peek("charge", "o-1").state) == (1, State.CLOSED)


def test_c75_a_policy_that_no_longer_closes_it_still_hears_a_refusal(side: Side):
    with pytest.raises(CardError):
        side.run(
            "charge",
            lambda: (_ for _ in ()).throw(CardError("stolen", "call")),
            key="o-1",
            payload={},
            policy=Policy(closes=(CardError,)),
        )
    with pytest.raises(Refused, match="CardError"):
        side.run("charge", int, key="o-1", payload={})


def test_c75_a_transient_failure_is_not_replayed_for_ever(side: Side, ledger: Ledger):
    with pytest.raises(NotDone):
        side.run("charge", lambda: (_ for _ in ()).throw(NotDone("503")), key="o-1", payload={})
    assert side.run("charge", ledger.add, key="o-1", payload={}).result == 1


@pytest.mark.parametrize("limit", [1, 40])
def test_a_refusal_that_has_no_room_still_closes_the_key(place: Place, side: Side, ledger: Ledger, limit: int):
    """However small the limit for results: refused is refused, on the first call and after it."""
    policy = Policy(result_max_bytes=limit)

    def effect():
        ledger.add()
        raise Refused("stolen " * 20)

    for _ in range(2):
        with pytest.raises(Refused):
            side.run("charge", effect, key="o-1", payload={}, policy=policy)
    assert (len(ledger), place.peek("charge", "o-1").state) == (1, State.CLOSED)


def test_each_replay_is_a_fresh_object(side: Side):
    """Whoever changes their answer changes nobody else's."""
    original = {"items": [1]}
    first = side.run("charge", lambda: original, key="o-1", payload={}).result
    first["items"].append(2)
    second = side.run("charge", lambda: original, key="o-1", payload={}).result
    second["items"].append(3)

    assert side.run("charge", lambda: original, key="o-1", payload={}).result == {"items": [1]}


def test_a_result_whose_class_changed_with_a_deploy_is_unreadable_and_not_run_again(side: Side, ledger: Ledger):
    module = types.ModuleType("deployed_shop")
    sys.modules["deployed_shop"] = module
    try:
        exec("from dataclasses import dataclass\n@dataclass\nclass Ticket:\n    seat: int\n", module.__dict__)

        def effect():
            ledger.add()
            return module.Ticket(7)

        assert side.run("book", effect, key="o-1", payload={}).result.seat == 7
        assert side.run("book", effect, key="o-1", payload={}).result == module.Ticket(7)
        exec("@dataclass\nclass Ticket:\n    seat: int\n    row: str\n", module.__dict__)

        with pytest.raises(ResultUnreadable, match="row"):
            side.run("book", effect, key="o-1", payload={})
        del module.Ticket
        with pytest.raises(ResultUnreadable, match="Ticket"):
            side.run("book", effect, key="o-1", payload={})
    finally:
        del sys.modules["deployed_shop"]
    assert len(ledger) == 1


def test_a_result_that_is_text_no_database_can_hold_is_kept_or_a_tombstone(place: Place, side: Side, ledger: Ledger):
    """A lone surrogate in the name of the part that cannot be kept: the record must still be settled."""

    def effect():
        ledger.add()
        return {"\ud800": object()}

    Thread(lambda: side.run("charge", effect, key="o-1", payload={})).result()

    assert place.peek("charge", "o-1").state is State.COMPLETED
    with pytest.raises(ResultNotKept):
        side.run("charge", effect, key="o-1", payload={})
    assert len(ledger) == 1


def test_a_result_of_a_class_made_inside_the_effect_is_not_kept_and_says_so(place: Place, colour: str, ledger: Ledger):
    """Told by the first call's event, not only by a replay that cannot read it."""
    seen = Seen()
    side = place.side(colour, hooks=[seen])

    def effect() -> Any:
        ledger.add()
        return make_dataclass("Local", ["n"])(1)

    assert side.run("charge", effect, key="o-1", payload={}).result.n == 1
    assert "not_kept" in seen.names
    with pytest.raises(ResultNotKept, match="a Local cannot be kept: a replay would not find it"):
        side.run("charge", effect, key="o-1", payload={})
    assert len(ledger) == 1
