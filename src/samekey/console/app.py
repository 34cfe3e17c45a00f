"""The console as an ASGI application: mount it into yours, or let `samekey console` serve it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from samekey.console.access import Access
from samekey.console.asking import AnyGuard, asks, operations_of
from samekey.console.desk import Console
from samekey.console.pages import (
    audit,
    bulk,
    doubts,
    duplicates,
    live,
    operations,
    overview,
    record,
    rooms,
    signin,
    stores,
)
from samekey.console.sources import Sources
from samekey.console.web import HERE, acts, looks
from samekey.core.ports import AsyncStore
from samekey.core.sealing import Sealer
from samekey.guard.store_urls import check_store, open_store

CSP = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def console_app(
    store: str | AsyncStore,
    access: Access,
    *,
    name: str = "",
    tenant: str | None = None,
    read_only: bool = False,
    guard: AnyGuard | None = None,
    sources: Sources | None = None,
    keys: Sealer | None = None,
    hosts: Sequence[str] = (),
) -> Starlette:
    """The console of one store.

    `access` has the credentials; without one there is no console. `tenant` shows records of this tenant only;
    `read_only` refuses every action and writes nothing. `guard` is yours: its lookups answer "ask now", and its secret
    finds notes. `keys` open what records keep encrypted. `hosts` are the names by which browsers reach the console;
    without them every name is accepted, which is for an application that checks them itself.
    """
    opened = open_store(store, asynchronous=True) if isinstance(store, str) else check_store(store, asynchronous=True)
    console = Console(
        opened,
        access,
        name=name,
        tenant=tenant,
        read_only=read_only,
        ask=None if guard is None else asks(guard),
        operations=() if guard is None else operations_of(guard),
        sources=sources,
        sealer=keys,
        secret=None if guard is None else next(iter(guard._secrets), None),
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if isinstance(store, str):
                await opened.close()

    middleware = [Middleware(_Headers)]
    if hosts:
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False))
    app = Starlette(routes=_routes(), middleware=middleware, lifespan=lifespan)
    app.state.console = console
    return app


def _routes() -> list[Route | Mount]:
    def act(path: str, handler, action: str) -> Route:  # type: ignore[no-untyped-def] # a handler of web.py
        return Route(path, acts(handler, action=action), methods=["POST"])

    return [
        Route("/", looks(overview.overview)),
        Route("/operations", looks(operations.operations)),
        Route("/record/{digest}", looks(record.record)),
        act("/record/{digest}/resolve", record.resolve, "resolve"),
        act("/record/{digest}/ask", record.ask, "ask"),
        act("/record/{digest}/reveal", record.reveal, "reveal"),
        act("/record/{digest}/redact", record.redact, "redact"),
        act("/record/{digest}/free", record.free, "free"),
        Route("/doubts", looks(doubts.doubts)),
        act("/doubts/preview", bulk.preview, "bulk"),
        act("/doubts/carry-out", bulk.carry_out, "bulk"),
        Route("/claims", looks(doubts.claims)),
        Route("/duplicates", looks(duplicates.duplicates)),
        act("/duplicates/accept", duplicates.accept, "accept"),
        Route("/intake", looks(rooms.intake)),
        act("/intake/put-back", rooms.put_back, "put_back"),
        Route("/messages", looks(rooms.messages)),
        act("/messages/redeliver", rooms.redeliver, "redeliver"),
        Route("/stores", looks(stores.stores)),
        act("/stores/sweep", stores.sweep, "sweep"),
        Route("/audit", looks(audit.audit)),
        Route("/audit.csv", looks(audit.save)),
        Route("/live", live.live),
        Route("/sign-in", signin.show),
        Route("/sign-in", signin.sign_in, methods=["POST"]),
        Route("/sign-out", signin.sign_out, methods=["POST"]),
        Route("/theme", signin.set_theme, methods=["POST"]),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]


class _Headers:
    """Adds the headers that keep a page from being framed, leaked, kept or scripted from elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        static = scope["path"].removeprefix(scope.get("root_path", "")).startswith("/static/")
        kept = "public, max-age=300" if static else "no-store"
        headers = [(name.encode(), value.encode()) for name, value in {**HEADERS, "cache-control": kept}.items()]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await self._app(scope, receive, sending)
