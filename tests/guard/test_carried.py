"""Guarded functions are carried to other processes, copied and compared like the functions they were."""

from __future__ import annotations

import copy
import functools
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from samekey import AsyncGuard, Guard

guard = Guard("memory://")
aguard = AsyncGuard("memory://")


@guard.once(name="carried", key="order")
def charge(order: str) -> tuple[str, int]:
    return order, os.getpid()


@aguard.once(name="carried", key="order")
async def acharge(order: str) -> str:
    return order


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shop) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]

    @guard.once(name="carried.method", key="order")
    def charge(self, order: str) -> str:
        return f"{self.name} {order}"

    @guard.once(name="carried.other", key="order")
    def refund(self, order: str) -> str:
        return order

    @aguard.once(name="carried.method", key="order")
    async def acharge(self, order: str) -> str:
        return f"{self.name} {order}"


@pytest.mark.parametrize("carry", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("guarded", [charge, acharge, Shop.charge, Shop.acharge])
def test_a_guarded_function_is_carried_by_its_name(guarded: Any, carry: Any):
    assert carry(guarded) is guarded


def test_another_process_runs_it():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        order, pid = pool.submit(charge, "o-1").result(60)

        assert (order, pid != os.getpid()) == ("o-1", True)
        assert pool.submit(Shop("north").charge, "o-1").result(60) == "north o-1"


@pytest.mark.parametrize("name", ["charge", "acharge"])
def test_a_method_is_carried_with_its_instance(name: str):
    shop = Shop("north")
    bound = getattr(shop, name)

    assert copy.copy(bound) == bound
    assert pickle.loads(pickle.dumps(bound))._instance == shop
    assert copy.deepcopy(bound) != bound  # of another shop, as with any method


def test_methods_are_equal_where_plain_ones_are():
    north, south = Shop("north"), Shop("north")

    assert north.charge == north.charge
    assert len({north.charge, north.charge, north.refund, south.charge}) == 3  # an equal instance is another one
    assert north.charge != north.acharge
    assert north.charge != "north"


def test_what_has_no_name_says_so():
    part = guard.once(name="carried.partial", key="order")(functools.partial(lambda shop, order: order, "north"))
    with pytest.raises(TypeError, match=r"functools\.partial.* has no name"):
        pickle.dumps(part)
