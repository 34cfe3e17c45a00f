"""One small shop, guarded by each library in turn. Runs where those are installed:

    python tools/peers/shop.py NAME FD      serves on the listening socket FD

    POST, PUT /charges          charges; fails as it was told
    POST /streamed              the same in a stream
    GET  /count                 how many charges there were
    GET  /fail/WHEN             from now on a charge fails "before" or "after" it is made, or "never"

Each library is set up as its documentation says, with its in-memory store: one process, so nothing is lost on the way
to a server. A charge takes 20 ms, as a provider's answer would. The benchmark calls the same shops in its own process
(`laps.py`), also with a Redis server behind those that know one.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import Any

charges: list[Any] = []
CHARGE_SECONDS = 0.02
failing = {"when": "never"}


def outcome(payload: Any) -> tuple[int, dict[str, Any]]:
    """After the provider was spoken to: status and body."""
    if failing["when"] == "before":
        return 402, {"declined": True}
    charges.append(payload)
    if failing["when"] == "after":
        return 500, {"error": "the line went dead"}
    return 201, {"charge": len(charges), "amount": payload.get("amount")}


def fastapi_app(guarded: Any = lambda handler: handler) -> Any:
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

    app = FastAPI()

    async def charge(request: Request) -> Any:
        payload = await request.json()
        await asyncio.sleep(CHARGE_SECONDS)
        status, body = outcome(payload)
        return JSONResponse(body, status)

    async def streamed(request: Request) -> Any:
        status, body = outcome(await request.json())
        text = json.dumps(body)
        return StreamingResponse(iter([text[:5], text[5:]]), status, media_type="application/json")

    async def count() -> Any:
        return PlainTextResponse(str(len(charges)))

    async def fail(when: str) -> Any:
        failing["when"] = when
        return PlainTextResponse(when)

    # `from __future__ import annotations` hides names of this function from FastAPI.
    charge.__annotations__["request"] = streamed.__annotations__["request"] = Request
    app.api_route("/charges", methods=["POST", "PUT"])(guarded(charge))
    app.post("/streamed")(guarded(streamed))
    app.get("/count")(count)
    app.get("/fail/{when}")(fail)
    return app


def with_samekey(redis: str = "") -> Any:
    from samekey import AsyncGuard, Opaque
    from samekey.http import Endpoint
    from samekey.http.asgi import SamekeyMiddleware

    endpoint = Endpoint(boundary=Opaque(), principal=lambda request: request.header("authorization"))
    return SamekeyMiddleware(fastapi_app(), guard=AsyncGuard(redis or "memory://"), endpoint=endpoint)


def with_asgi_idempotency_header(redis: str = "") -> Any:
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import MemoryBackend, RedisBackend

    app = fastapi_app()
    backend = RedisBackend(redis=redis_client(redis)) if redis else MemoryBackend()
    app.add_middleware(IdempotencyHeaderMiddleware, backend=backend)
    return app


def with_idemptx(redis: str = "") -> Any:
    from fastapi.responses import JSONResponse
    from idemptx import idempotent
    from idemptx.backend import AsyncRedisBackend, InMemoryBackend
    from idemptx.exceptions import ConflictRequestException, MissingKeyException, RequestInProgressException

    backend = AsyncRedisBackend(redis_client(redis)) if redis else InMemoryBackend()
    app = fastapi_app(idempotent(storage_backend=backend, wait_timeout=3.0))
    for kind, status in (
        (ConflictRequestException, 422),
        (MissingKeyException, 400),
        (RequestInProgressException, 409),
    ):
        app.add_exception_handler(kind, lambda request, error, status=status: JSONResponse({}, status))
    return app


def with_fastapi_idempotency(redis: str = "") -> Any:  # no store of its own for Redis
    from fastapi_idempotency import IdempotencyMiddleware

    app = fastapi_app()
    app.add_middleware(IdempotencyMiddleware, scope=lambda request: request.headers.get("authorization", ""))
    return app


def with_idempot(redis: str = "") -> Any:
    from idempot import configure
    from idempot.contrib.fastapi import idempotent

    if redis:
        configure(backend="redis", redis_url=redis)
    return fastapi_app(idempotent(cache_on_status=[200, 201]))


def with_nothing_but_two_commands(redis: str = "") -> Any:
    from by_hand import ByHand, Dictionary

    return ByHand(fastapi_app(), redis_client(redis) if redis else Dictionary())


def with_nothing_but_two_commands_django(redis: str = "") -> Any:
    client: Any = {}
    if redis:
        from redis import Redis

        client = Redis.from_url(redis)
    return django_app(["by_hand.by_hand"], redis, BY_HAND=client)


def redis_client(url: str) -> Any:
    from redis.asyncio import Redis

    return Redis.from_url(url)


def with_django_idempotency_key(redis: str = "") -> Any:
    kept: dict[str, Any] = {"CONFLICT_STATUS_CODE": None}  # replay with the status of the first answer
    if redis:
        kept["STORAGE"] = {"CLASS": "idempotency_key.storage.CacheKeyStorage"}
        kept["LOCK"] = {"CLASS": "idempotency_key.locks.redis.MultiProcessRedisLock", "LOCATION": redis}
    return django_app(["idempotency_key.middleware.IdempotencyKeyMiddleware"], redis, IDEMPOTENCY_KEY=kept)


def with_samekey_django(redis: str = "") -> Any:
    from samekey import Guard, Opaque
    from samekey.http import Endpoint

    endpoint = Endpoint(boundary=Opaque(), principal=lambda request: request.header("authorization"))
    rules = {"guard": Guard(redis or "memory://"), "endpoint": endpoint}
    return django_app(["samekey.http.django.SamekeyMiddleware"], redis, SAMEKEY=rules)


def django_app(middleware: list[str], redis: str = "", **own: Any) -> Any:
    from django.conf import settings

    if not settings.configured:  # a bare one beside a guarded one: what was read at the start stays
        settings.configure(
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF=__name__,
            SECRET_KEY="made up",  # noqa: S106
            DATA_UPLOAD_MAX_MEMORY_SIZE=64 << 20,
            **(
                {"CACHES": {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis}}}
                if redis
                else {}
            ),
        )
    for name, value in {"MIDDLEWARE": middleware, **own}.items():
        setattr(settings, name, value)
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
    from django.urls import path

    def charge(request: Any) -> Any:
        payload = json.loads(request.body)
        time.sleep(CHARGE_SECONDS)
        status, body = outcome(payload)
        if request.path == "/streamed":
            text = json.dumps(body)
            return StreamingHttpResponse(iter([text[:5], text[5:]]), status=status, content_type="application/json")
        return JsonResponse(body, status=status)

    def count(request: Any) -> Any:
        return HttpResponse(str(len(charges)))

    def fail(request: Any, when: str) -> Any:
        failing["when"] = when
        return HttpResponse(when)

    views = {"charges": charge, "streamed": charge, "count": count, "fail/<str:when>": fail}
    globals()["urlpatterns"] = [path(route, view) for route, view in views.items()]
    return get_wsgi_application()


def serve_asgi(app: Any, listening: socket.socket) -> None:
    import uvicorn

    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])


def serve_wsgi(app: Any, listening: socket.socket) -> None:
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    class Handler(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server(listening.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.server_name, server.server_port = "127.0.0.1", listening.getsockname()[1]
    server.setup_environ()
    server.set_app(app)
    server.serve_forever()


SHOPS = {
    "samekey": (with_samekey, serve_asgi),
    "samekey-django": (with_samekey_django, serve_wsgi),
    "by-hand": (with_nothing_but_two_commands, serve_asgi),
    "by-hand-django": (with_nothing_but_two_commands_django, serve_wsgi),
    "asgi-idempotency-header": (with_asgi_idempotency_header, serve_asgi),
    "django-idempotency-key": (with_django_idempotency_key, serve_wsgi),
    "fastapi-idempotency": (with_fastapi_idempotency, serve_asgi),
    "idempot": (with_idempot, serve_asgi),
    "idemptx": (with_idemptx, serve_asgi),
}

if __name__ == "__main__":
    make, serve = SHOPS[sys.argv[1]]
    serve(make(), socket.socket(fileno=int(sys.argv[2])))
