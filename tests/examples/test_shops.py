"""The example shops, driven over sockets: four workers each, one killed in the middle of a charge. The provider's
ledger is the judge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.examples.streets import FOLDER, KINDS, Street, street_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # eight workers are started, and two leases waited for

LINES_MAX = 120  # of a file: an example is read, not studied


@pytest.fixture(scope="module", params=KINDS)
def street(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    with street_with(request.param, tmp_path_factory.mktemp("shop"), workers=4) as opened:
        yield opened


def kill(held: Any) -> None:
    os.kill(held["worker"], signal.SIGKILL)


def problem(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return str(answer.json()["type"]).rpartition("#")[2]


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

    assert [answer.status_code for answer in answers] == [403, 403]
    assert "idempotent-replayed" not in answers[1].headers
    assert street.ledger("rich") == []


def test_without_a_key_nothing_moves(street: Street):
    bill = {"order": "keyless", "amount": 20}
    with httpx.Client(base_url=street.shop.url, headers={"Authorization": "Bearer ann-token"}) as client:
        answers = [client.post(path, json=bill) for path in ("/charges", "/vouchers", "/orders")]

    assert [problem(answer) for answer in answers] == ["key-missing"] * 3
    assert street.ledger("keyless") == []


def test_samekey_prove_finds_nothing(street: Street):
    """Examined from outside, where the provider itself would redeem a voucher as often as it is told to."""
    options = {
        "--body": '{"order": "proved", "amount": 7}',
        "-H": "Authorization: Bearer ann-token",
        "--other-header": "Authorization: Bearer bob-token",
        "--count-url": f"{street.shop.provider}/ledger",
        "--other-url": f"{street.shop.url}/charges",
        "--timeout": "60",
    }
    skipped = ("--skip", "streamed-answer", "--skip", "after-a-failure")  # there is no stream, and no failure on demand
    words = [word for option in options.items() for word in option]
    command = [sys.executable, "-m", "samekey", "prove", f"{street.shop.url}/vouchers", *words, *skipped]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
