"""In a transaction that ends with the view: a long answer is settled in it, not when its last byte is sent."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.test import RequestFactory
from flask import Flask, Response

import tests.django_settings  # noqa: F401
from samekey import Atomic, Guard, Policy, State
from samekey.http import Endpoint
from samekey.http.django import guarded
from samekey.http.flask import Samekey

LONG = [b"a" * 80, b"b" * 80, b"c"]


class Shop:
    """A database with keys and charges, and one transaction for each view."""

    def __init__(self, path: Path) -> None:
        self.guard = Guard(f"sqlite:///{path}", policy=Policy(result_max_bytes=100, patience=0))
        self.guard.run("first", lambda: None, key="k", payload=None)  # makes the tables
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.execute("CREATE TABLE charges (at)")
        self.endpoint = Endpoint(
            boundary=Atomic("connection"), connection=lambda request: self.connection, single_tenant=True
        )

    def charge(self) -> None:
        self.connection.execute("INSERT INTO charges VALUES (1)")

    @property
    def charges(self) -> int:
        return int(self.connection.execute("SELECT count(*) FROM charges").fetchone()[0])


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db")
    yield made
    made.connection.close()
    made.guard.close()


class Django:
    def __init__(self, shop: Shop, parts: Any) -> None:
        @guarded(shop.guard, shop.endpoint)
        def view(request: Any) -> Any:
            shop.charge()
            return StreamingHttpResponse(parts())

        self._shop, self._view = shop, view

    def post(self) -> tuple[int, bytes]:
        asked = RequestFactory().post("/charges", b"{}", "application/json", HTTP_IDEMPOTENCY_KEY="k-1")
        self._shop.connection.execute("BEGIN IMMEDIATE")
        response = self._view(asked)
        self._shop.connection.execute("COMMIT")
        try:
            return response.status_code, b"".join(response)
        finally:
            response.close()


class FlaskShop:
    def __init__(self, shop: Shop, parts: Any) -> None:
        app = Flask("shop")
        Samekey(app, guard=shop.guard, endpoint=shop.endpoint)

        @app.before_request
        def begin() -> None:
            shop.connection.execute("BEGIN IMMEDIATE")

        @app.after_request
        def commit(response: Any) -> Any:
            shop.connection.execute("COMMIT")
            return response

        @app.post("/charges")
        def charge() -> Any:
            shop.charge()
            return Response(parts())

        self._app = app

    def post(self) -> tuple[int, bytes]:
        with self._app.test_client().post("/charges", headers={"Idempotency-Key": "k-1"}) as response:
            return response.status_code, response.data


@pytest.mark.parametrize("framework", [Django, FlaskShop])
def test_a_long_answer_is_done_with_its_transaction(shop: Shop, framework: Any):
    site = framework(shop, lambda: iter(LONG))

    assert site.post() == (200, b"".join(LONG))
    status, problem = site.post()
    assert (status, b"result-not-kept" in problem, shop.charges) == (409, True, 1)


@pytest.mark.parametrize("framework", [Django, FlaskShop])
def test_a_long_answer_that_breaks_has_charged_all_the_same(shop: Shop, framework: Any):
    """The rows are committed by then: whatever happens to the bytes, it is known that it happened."""
    closed = []

    def parts() -> Iterator[bytes]:
        try:
            yield from LONG
            raise ConnectionResetError
        finally:
            closed.append(True)

    site = framework(shop, parts)
    with pytest.raises(ConnectionResetError):
        site.post()

    record = shop.guard.peek("POST /charges", "k-1")
    assert record is not None
    assert (record.state, shop.charges, closed) == (State.COMPLETED, 1, [True])
    assert site.post()[0] == 409
