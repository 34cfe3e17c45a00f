"""The request's own transaction on PostgreSQL: record and rows commit together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory
from fastapi import APIRouter, FastAPI, Request
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Atomic, Guard, State
from samekey.drivers.postgres.migrate import migrate
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware
from samekey.http.django import guarded
from samekey.http.fastapi import samekey_route
from samekey.testing.http.drivers import Got, Sent, asgi_send
from samekey.testing.servers import postgres


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres() as server:
        made = server.create_database()
        migrate(made)
        with psycopg.connect(made) as connection:
            connection.execute("CREATE TABLE charges (who text)")
        yield made


def rows(url: str, who: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM charges WHERE who = %s", (who,)).fetchone()
    return 0 if found is None else int(found[0])


def test_django(url: str):
    parts = urlsplit(url)
    connections.databases["shop"] = {
        **connections.configure_settings({"default": {}})["default"],
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": str(parts.port),
    }
    guard = Guard(url)
    endpoint = Endpoint(boundary=Atomic("shop"), connection=lambda request: connections["shop"], single_tenant=True)

    @guarded(guard, endpoint)
    def view(request: Any) -> Any:
        with connections["shop"].cursor() as cursor:
            cursor.execute("INSERT INTO charges VALUES ('django')")
        return HttpResponse("charged", status=int(request.headers["X-Status"]))

    def post(key: str, status: int = 200, *, roll_back: bool = False) -> Any:
        asked = RequestFactory().post(
            "/charges", b"{}", "application/json", HTTP_IDEMPOTENCY_KEY=key, HTTP_X_STATUS=str(status)
        )
        with transaction.atomic(using="shop"):
            response = view(asked)
            transaction.set_rollback(roll_back, using="shop")
        return response

    try:
        assert (post("a", 400).status_code, rows(url, "django")) == (400, 0)  # undone with the refusal
        assert (post("a").status_code, post("a").headers["Idempotent-Replayed"], rows(url, "django")) == (
            200,
            "true",
            1,
        )
        post("b", roll_back=True)
        assert (guard.peek("POST /charges", "b"), rows(url, "django")) == (None, 1)
    finally:
        connections["shop"].close()
        del connections["shop"], connections.databases["shop"]
        guard.close()


def test_sqlalchemy_under_asgi(url: str):
    """A middleware begins the session; the guard stands inside it, the handler inside the guard."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        session: AsyncSession = scope["session"]
        await session.execute(text("INSERT INTO charges VALUES ('sqlalchemy')"))
        status = int(dict(scope["headers"])[b"x-status"])
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"charged"})

    async def main() -> list[Any]:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
        guard = AsyncGuard(url)
        endpoint = Endpoint(
            boundary=Atomic("session"), connection=lambda request: request.native["session"], single_tenant=True
        )
        inner = SamekeyMiddleware(handler, guard=guard, endpoint=endpoint)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async with AsyncSession(engine) as session, session.begin():
                await inner({**scope, "session": session}, receive, send)

        async def post(key: str, status: int = 200) -> Got:
            headers = (("Idempotency-Key", key), ("X-Status", str(status)), ("Content-Type", "application/json"))
            return await asgi_send(app, Sent("POST", "/charges", "", headers, b"{}"))

        refused, after_refusal = await post("s", 400), rows(url, "sqlalchemy")
        crowd = await asyncio.gather(*(post("s") for _ in range(4)))
        record = await guard.peek("POST /charges", "s")
        await guard.close()
        await engine.dispose()
        return [refused.status, after_refusal, {one.status for one in crowd}, getattr(record, "state", None)]

    assert asyncio.run(main()) == [400, 0, {200}, State.COMPLETED]
    assert rows(url, "sqlalchemy") == 1


def test_an_answer_waits_for_the_commit(url: str):
    """As docs/http.md has it: a commit that fails takes record and row back, and nobody was told of a success."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE seats (number int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO seats VALUES (1)")

    async def main() -> list[Any]:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
        guard = AsyncGuard(url)
        endpoint = Endpoint(
            boundary=Atomic("session"), connection=lambda request: request.native["session"], single_tenant=True
        )
        route: Any = samekey_route(guard=guard, endpoint=endpoint)

        class OneTransaction(route):  # type: ignore[misc]
            async def handle(self, scope: Any, receive: Any, send: Any) -> None:
                answer: list[Any] = []

                async def keep(message: Any) -> None:
                    answer.append(message)

                async with AsyncSession(engine) as session, session.begin():
                    scope["session"] = session
                    await super().handle(scope, receive, keep)
                for message in answer:
                    await send(message)

        router = APIRouter(route_class=OneTransaction)

        @router.post("/seats/{number}", status_code=201)
        async def take(number: int, request: Request) -> int:
            await request.scope["session"].execute(text("INSERT INTO seats VALUES (:number)"), {"number": number})
            return number

        app = FastAPI()
        app.include_router(router)

        async def post(path: str, key: str) -> Got:
            return await asgi_send(app, Sent("POST", path, "", (("Idempotency-Key", key),)))

        taken = await post("/seats/1", "taken")
        first, second = await post("/seats/2", "free"), await post("/seats/2", "free")
        record = await guard.peek("POST /seats/{}", "taken")
        await guard.close()
        await engine.dispose()
        return [taken.status, record, first.status, second.status, second.header("idempotent-replayed")]

    assert asyncio.run(main()) == [500, None, 201, 201, "true"]
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT number FROM seats ORDER BY 1").fetchall() == [(1,), (2,)]
