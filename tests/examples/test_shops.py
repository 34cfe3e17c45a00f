"""The example shops, driven over sockets: four workers each, one killed in the middle of a charge. The provider's
ledger is the judge."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from samekey.clients import Retry, same_key
from samekey.clients.httpx import KeyTransport
from samekey.testing.servers import NoServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # eight workers are started, and two leases waited for

FOLDER = Path(__file__).parents[2] / "examples" / "shops"
LEASE_SECONDS = 6  # what a retry after a kill waits for
LINES_MAX = 120  # of a file: an example is read, not studied


class Street:
    """A shop, its provider, and whoever buys there."""

    def __init__(self, shop: Any) -> None:
        self.shop = shop

    def customer(self, name: str = "ann") -> httpx.Client:
        """A client as docs/clients.md has it: one key for an operation, kept across its retries."""
        return httpx.Client(
            base_url=self.shop.url,
            headers={"Authorization": f"Bearer {name}-token"},
            timeout=60,
            transport=KeyTransport(hosts={"127.0.0.1"}, retry=Retry(first_wait_seconds=0.1, longest_wait_seconds=10)),
        )

    def buy(self, path: str, what: Any, key: str, name: str = "ann") -> httpx.Response:
        with self.customer(name) as client, same_key(key):
            return client.post(path, json=what)

    def buy_while(self, path: str, what: Any, key: str, happening: Callable[[Any], None]) -> httpx.Response:
        """Buy; when the provider has written its line and withholds the answer, let this happen."""
        httpx.post(f"{self.shop.provider}/hold", json={}).raise_for_status()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.buy, path, what, key)
            happening(httpx.get(f"{self.shop.provider}/held", timeout=60).json())
            return answer.result(90)

    def ledger(self, order: str) -> list[Any]:
        return [line for line in httpx.get(f"{self.shop.provider}/ledger").json() if line["order"] == order]

    def samekey(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "samekey", *words, "--store", self.shop.store]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module", params=["fastapi", "django"])
def street(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    sys.path.insert(0, str(FOLDER))
    try:
        running = importlib.import_module("running").running
        with running(request.param, tmp_path_factory.mktemp("shop"), lease_seconds=LEASE_SECONDS) as shop:
            yield Street(shop)
    except NoServer as missing:
        pytest.skip(str(missing))
    finally:
        sys.path.remove(str(FOLDER))


def kill(held: Any) -> None:
    os.kill(held["worker"], signal.SIGKILL)


def problem(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return str(answer.json()["type"]).rpartition(":")[2]


def test_every_file_is_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in FOLDER.rglob("*.py")}

    assert {name: length for name, length in lengths.items() if length > LINES_MAX} == {}


def test_a_worker_killed_in_the_middle_of_a_charge_charges_once(street: Street):
    """The provider charged, the worker died, the client tried again with its key: one line, one answer."""
    bill = {"order": "crash-1", "amount": 200}
    answer = street.buy_while("/charges", bill, "key-crash-1", kill)
    refresh = street.buy("/charges", bill, "key-crash-1")

    [line] = street.ledger("crash-1")
    assert (answer.status_code, answer.json()) == (201, {"charge": line["id"], "amount": 200})
    assert (refresh.status_code, refresh.content) == (201, answer.content)
    assert refresh.headers["idempotent-replayed"] == "true"


def test_where_nobody_can_tell_it_says_so_until_a_person_does(street: Street):
    """The voucher's issuer knows no keys: after the crash 409 and not a second redemption; then `samekey resolve`."""
    bill = {"order": "crash-2", "amount": 300}
    doubt = street.buy_while("/vouchers", bill, "key-crash-2", kill)
    waiting = street.samekey("ls", "--state", "in_doubt")
    [line] = street.ledger("crash-2")
    found = json.dumps({"id": line["id"], "amount": line["amount"]})
    said = ("--happened", "--result", found, "--why", "on the issuer's ledger", "--who", "pat", "--yes")
    resolved = street.samekey("resolve", "POST /vouchers", "key-crash-2", "--tenant", "ann", *said)
    answer = street.buy("/vouchers", bill, "key-crash-2")

    assert (doubt.status_code, problem(doubt)) == (409, "in-doubt")
    assert "key-crash-2" in waiting.stdout
    assert resolved.returncode == 0, resolved.stderr
    assert (answer.status_code, answer.json()) == (200, json.loads(found))
    assert len(street.ledger("crash-2")) == 1


@pytest.mark.parametrize(
    ("path", "what"),
    [("/charges", {"order": "click", "amount": 5}), ("/vouchers", {"order": "clack", "amount": 5})],
)
def test_a_double_click_and_a_refresh_pay_once(street: Street, path: str, what: Any):
    with ThreadPoolExecutor(6) as pool:
        answers = [*pool.map(lambda _: street.buy(path, what, "key-click"), range(6))]
    answers.append(street.buy(path, what, "key-click"))

    assert {(answer.status_code, answer.content) for answer in answers} == {(201, answers[0].content)}
    assert [answer.headers.get("idempotent-replayed") for answer in answers].count("true") == 6
    assert len(street.ledger(what["order"])) == 1


def test_an_order_and_its_key_are_one_transaction(street: Street):
    """Six at once, one row; a refusal leaves neither row nor answer, and the key is free for the right words."""
    with ThreadPoolExecutor(6) as pool:
        answers = [*pool.map(lambda _: street.buy("/orders", {"item": "book"}, "key-order"), range(6))]
    refused = street.buy("/orders", {"item": ""}, "key-order-2")
    other = street.buy("/orders", {"item": "lamp"}, "key-order")
    with street.customer() as client:
        mine = client.get("/orders").json()

    assert {(answer.status_code, answer.content) for answer in answers} == {(201, answers[0].content)}
    assert refused.status_code in (400, 422)
    assert problem(other) == "key-reused"
    assert mine.count("book") == 1
    assert "lamp" not in mine


def test_another_amount_under_the_same_key_is_refused(street: Street):
    first = street.buy("/charges", {"order": "other-1", "amount": 20}, "key-other")
    other = street.buy("/charges", {"order": "other-1", "amount": 50}, "key-other")

    assert (first.status_code, other.status_code, problem(other)) == (201, 422, "key-reused")
    assert other.json()["fields"] == ["amount"]
    assert [line["amount"] for line in street.ledger("other-1")] == [20]


def test_another_customer_with_the_same_key_is_somebody_else(street: Street):
    bill = {"order": "tenants", "amount": 20}
    ann, bob = street.buy("/charges", bill, "key-tenants"), street.buy("/charges", bill, "key-tenants", "bob")
    eve = street.buy("/charges", bill, "key-tenants", "eve")

    assert (ann.status_code, bob.status_code, eve.status_code) == (201, 201, 401)
    assert ann.json()["charge"] != bob.json()["charge"]
    assert "idempotent-replayed" not in bob.headers
    assert len(street.ledger("tenants")) == 2


def test_a_decline_frees_the_key(street: Street):
    """The provider says that nothing was charged, and so the shop says it too: not a doubt, and not for ever."""
    bill = {"order": "rich", "amount": 20_000}
    answers = [street.buy("/charges", bill, "key-rich") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [402, 402]
    assert "idempotent-replayed" not in answers[1].headers
    assert street.ledger("rich") == []


def test_without_a_key_nothing_moves(street: Street):
    bill = {"order": "keyless", "amount": 20}
    with httpx.Client(base_url=street.shop.url, headers={"Authorization": "Bearer ann-token"}) as client:
        answers = [client.post(path, json=bill) for path in ("/charges", "/vouchers", "/orders")]

    assert [problem(answer) for answer in answers] == ["key-missing"] * 3
    assert street.ledger("keyless") == []
