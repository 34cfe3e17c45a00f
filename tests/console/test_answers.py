"""Five questions of a person on call, answered in the demo's shop by clicking and reading alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from samekey.cli.demo._shop import (
    ABANDONED_ORDER,
    DOUBLED_CUSTOMER,
    DOUBLED_ORDER,
    DOUBTED_ORDERS,
    REASON,
    REPEATER,
    REPLAYED_ORDER,
    RESOLVED_ORDER,
    RESOLVER,
    Shop,
)
from samekey.console import console_app
from tests.console.conftest import SHOTS, Served
from tests.console.shop import ACCESS


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Shop]]:
    folder: Path = tmp_path_factory.mktemp("demo")
    address = f"sqlite:///{folder / 'keys.db'}"
    shop = Shop(address, seed=7)
    shop.first_night()
    with Served(console_app(address, ACCESS, guard=shop.guard, name="demo shop")) as base:
        yield base, shop
    shop.close()


@pytest.fixture
def page(demo, tabs):
    return tabs(demo[0]).page


def shoot(page, name):
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")


def test_which_orders_are_in_doubt(page):
    page.get_by_role("link", name="Doubts").first.click()
    page.get_by_role("heading", name="in all, oldest first").wait_for()
    listed = page.locator("a.key").all_inner_texts()
    shoot(page, "answer-doubts")

    assert {*DOUBTED_ORDERS, DOUBLED_ORDER, "payout-2231"} == set(listed)


def test_why_an_order_was_answered_from_memory(page):
    page.get_by_role("searchbox").fill(REPLAYED_ORDER)
    page.keyboard.press("Enter")
    page.locator("a.key", has_text=REPLAYED_ORDER).click()
    page.get_by_text("It happened once. Later calls with this key are answered from memory.").wait_for()
    shoot(page, "answer-memory")

    assert page.get_by_text("and its result is kept.").is_visible()


def test_who_resolved_an_order_and_why(page):
    page.get_by_role("link", name="Audit").first.click()
    row = page.get_by_role("row", name=RESOLVED_ORDER)
    row.wait_for()
    shoot(page, "answer-resolved")

    assert RESOLVER in row.inner_text()
    assert REASON in row.inner_text()
    row.get_by_role("link", name=RESOLVED_ORDER).click()
    assert page.get_by_text(f"{RESOLVER} (operator)").first.is_visible()


def test_which_client_version_sends_duplicates(page):
    page.get_by_role("link", name="Duplicates").first.click()
    page.get_by_role("heading", name=f"3 of 3 repeats are from {REPEATER}.").wait_for()
    shoot(page, "answer-duplicates")


def test_was_a_customer_charged_twice(page, demo):
    # The finding is written by the guard a moment after the lookup: wait for it, as a person would look again.
    page.get_by_role("searchbox").fill(DOUBLED_CUSTOMER)
    page.keyboard.press("Enter")
    page.get_by_text(f"{DOUBLED_CUSTOMER}: the effect is there more than once.").wait_for()
    page.get_by_role("link", name="Read its story").click()
    page.get_by_role("heading", name="The effect is there more than once.").wait_for()
    shoot(page, "answer-twice")

    assert page.get_by_role("heading", name=DOUBLED_ORDER).is_visible()
    assert page.get_by_role("radio", name="Never happened").is_disabled()


def test_an_order_whose_worker_died_is_an_old_claim(page):
    page.wait_for_timeout(100)
    for _ in range(100):
        page.get_by_role("link", name="Old claims").first.click()
        if page.locator("a.key", has_text=ABANDONED_ORDER).count():
            break
        page.wait_for_timeout(300)  # its lease of a second is not over yet

    assert page.get_by_text("worker-2").first.is_visible()


def test_orders_with_faults_come_while_a_person_looks(demo, page):
    _, shop = demo
    page.get_by_text("Live,").wait_for()
    before = int(page.locator("#tile-doubts").inner_text())
    for _ in range(400):
        shop.one_more()
        if "slow, unknown" in shop.happened[-1]:
            break
    page.wait_for_function(f"() => Number(document.querySelector('#tile-doubts').textContent) > {before}")
