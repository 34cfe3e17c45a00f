"""The example shops under what nobody sends on purpose: what schemathesis makes of the OpenAPI document, and bytes that
no client library writes. No server error, nothing that the document does not say, and never two effects for one key:
the ledger is the judge."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.examples.raw_requests import RAW, bytes_of
from tests.examples.streets import FOLDER, KINDS, Street, street_with

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
EXAMPLES = 1500 if FULL else 25  # of each operation, in each mode, sent twice each

# 1,500 examples took four to seven minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if FULL else 400)]

# The document is FastAPI's: of Django's shop it says what is served, not how a refusal looks.
CHECKS: dict[str, list[Any]] = {
    "fastapi": [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
    ],
    "django": [not_a_server_error],
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def street(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    with street_with(kind, tmp_path_factory.mktemp("shop"), workers=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def schema() -> Any:
    """The document of the shop, without the shop: whoever reads it is not connected to anything."""
    program = "import json; from fastapi_shop.app import app; print(json.dumps(app.openapi()))"
    named = {"SHOP_DATABASE": "postgresql://nowhere", "SHOP_PROVIDER": "http://127.0.0.1:1", "PYTHONPATH": str(FOLDER)}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **named}, capture_output=True, check=True, timeout=100
    )
    load_all_checks()
    return from_dict(json.loads(done.stdout))


def operations(schema: Any) -> dict[str, Any]:
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", ["POST /orders", "POST /charges", "POST /vouchers"])
def test_whatever_is_sent_twice_happens_once(street: Street, kind: str, schema: Any, label: str, mode: Any):
    """Every request twice: the second is a replay, or the same refusal."""
    wanted = operations(schema)[label].as_strategy(generation_mode=mode)
    signed = {"Authorization": "Bearer ann-token"}

    @given(wanted, st.one_of(st.none(), st.sampled_from(["k", '"k"', "k-2", "k,k", ""])))
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def send(case: Any, key: str | None) -> None:
        headers = {**signed, **({} if key is None else {"Idempotency-Key": key})}  # often one that was used before
        first = case.call(base_url=street.shop.url, headers=headers, timeout=60)
        second = case.call(base_url=street.shop.url, headers=headers, timeout=60)

        # A transfer coding that nobody knows: the server in front says so (RFC 9112, 6.1), the shop never hears of it.
        if not (first.status_code == 501 and "transfer-encoding" in {name.lower() for name in case.headers}):
            case.validate_response(first, checks=CHECKS[kind], headers=headers)
            case.validate_response(second, checks=CHECKS[kind], headers=headers)
        if first.status_code < 300:
            assert (second.status_code, second.content) == (first.status_code, first.content)
            assert second.headers["idempotent-replayed"] == ["true"]
        else:
            assert second.status_code == first.status_code

    send()
    judge(street)


def on_the_wire(address: str, sent: bytes, *, end: bool) -> int:
    """The status of the final answer to these bytes; `end`: we hang up behind them. 0: none came."""
    host, _, port = address.removeprefix("http://").partition(":")
    got = b""
    with socket.create_connection((host, int(port)), 60) as connection:
        try:
            connection.sendall(sent)
            if end:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                got += part
        except (ConnectionResetError, BrokenPipeError):  # it had enough before we were through
            pass
    statuses = [int(line[9:12]) for line in got.split(b"\r\n") if line.startswith(b"HTTP/1.")]
    return next((status for status in statuses if status != 100), 0)


@pytest.mark.parametrize("name", RAW)
def test_what_no_client_would_send(street: Street, kind: str, name: str):
    """Twice, byte for byte: the pinned answer, both times, and one order at most."""
    item = f"raw {name}".replace(",", "")
    answers = [on_the_wire(street.shop.url, bytes_of(name, item), end="cut short" in name) for _ in range(2)]
    with street.customer() as client:
        orders = client.get("/orders").json().count(item)

    status, effects = RAW[name].fastapi if kind == "fastapi" else RAW[name].django
    assert (answers, orders) == ([status] * 2, effects)


def judge(street: Street) -> dict[str, int]:
    """As many effects as records, though the voucher's issuer would write any number; how many there were."""
    lines = street.ledger()
    found = {kind: sum(line["kind"] == kind for line in lines) for kind in ("vouchers", "charges")}
    with street.customer() as client:
        found["orders"] = len(client.get("/orders").json())
    assert found == {kind: len(street.records(f"POST /{kind}")) for kind in found}
    return found


def test_the_judge_counts(street: Street):
    """What is sent in good order is in its books, once."""
    sent = {
        "vouchers": {"order": "good", "amount": 7},
        "charges": {"order": "good", "amount": 7},
        "orders": {"item": "good"},
    }
    before = judge(street)
    answers = [street.buy(f"/{kind}", what, f"good-{kind}") for kind, what in sent.items() for _ in range(2)]

    assert all(answer.is_success for answer in answers), [answer.text for answer in answers]
    assert judge(street) == {kind: count + 1 for kind, count in before.items()}
