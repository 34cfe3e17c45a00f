"""Attributes: labels that a call keeps with its record, from its arguments, its payload, or a function."""

from __future__ import annotations

from typing import Any

import pytest

from samekey import Atomic, Guard, Misconfigured
from tests.guard.helpers import Place, Side


def test_a_decorated_function_names_the_arguments_that_are_labels(place: Place, side: Side):
    @side.once(name="charge", key="order_id", attributes=("region", "client.version"))
    def charge(order_id: str, client: dict[str, Any], region: str = "eu") -> int:
        return 1

    charge("o-1", {"version": 3})
    charge("o-2", {}, region=None)

    assert place.peek("charge", "o-1").attributes == (("client.version", "3"), ("region", "eu"))
    assert place.peek("charge", "o-2").attributes == ()  # a label that is not there is no reason to refuse


def test_a_function_of_the_arguments_makes_labels(place: Place, side: Side):
    @side.once(name="charge", key="order_id", attributes=lambda amount, region: {"size": amount // 100, "in": region})
    def charge(order_id: str, amount: int, region: str) -> int:
        return 1

    charge("o-1", 250, region="eu")

    assert place.peek("charge", "o-1").attributes == (("in", "eu"), ("size", "2"))


def test_labels_from_a_caller_are_cut_or_left_out_and_never_refused(memory: Place):
    guard = memory.guard()
    names = {f"n{number:02}": "x" for number in range(20)}
    sent = {"a": "x" * 300, "b": "\n", "c": {"d": 1}, "e": None, "": "f", **names}

    @guard.once(name="charge", key="order_id", attributes=lambda labels: labels)
    def charge(order_id: str, labels: dict[str, Any]) -> int:
        return 1

    charge("o-1", sent)

    kept = dict(memory.peek("charge", "o-1").attributes)
    assert kept["a"] == "x" * 256
    assert len(kept) == 16
    assert kept.keys().isdisjoint({"b", "c", "e", ""})


def test_a_batch_has_labels_of_each_payload_or_of_all(place: Place, side: Side):
    payloads = [{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}]

    side.run_many("each", lambda one: 1, payloads, key="id", attributes=lambda one: {"region": one["region"]})
    side.run_many("all", lambda one: 1, payloads, key="id", attributes={"job": "nightly"})

    assert [place.peek("each", key).attributes for key in "12"] == [(("region", "eu"),), (("region", "us"),)]
    assert [place.peek("all", key).attributes for key in "12"] == [(("job", "nightly"),)] * 2


def test_a_rule_for_labels_that_cannot_work_is_refused_at_decoration(memory: Place):
    guard = memory.guard()

    def charge(order_id: str, region: str) -> None: ...

    for rule, why in (
        ("region", "names in a tuple"),
        (("country",), "no parameter 'country'"),
        (7, "names in a tuple"),
    ):
        with pytest.raises(TypeError, match=why):
            guard.once(name="charge", key="order_id", attributes=rule)(charge)
    returns_no_mapping = guard.once(name="charge", key="order_id", attributes=lambda region: region)(charge)
    with pytest.raises(Misconfigured, match="a str does not"):
        returns_no_mapping("o-1", "eu")
    assert memory.look("charge", "o-1") is None


def test_the_connection_of_a_transaction_is_no_label():
    guard = Guard("memory://")

    def charge(order_id: str, connection: Any) -> None: ...

    with pytest.raises(TypeError, match="no parameter 'connection'"):
        guard.once(name="charge", key="order_id", boundary=Atomic("connection"), attributes=("connection",))(charge)
