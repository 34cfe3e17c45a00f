"""How long is a call's way through the code? `python -m bench.walks [--json] [--list CALL]`

One call with a fresh key is traced, after three that warm everything up: every Python function of samekey that it
enters is a frame, in the calling thread alone. Frames cost about 50 ns each and show a reader's way; they are counted,
so they are the same on a busy machine. `--list` prints the frames of one call, indented by depth.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import samekey
from samekey import AsyncGuard, Atomic, Guard, Opaque

OURS = str(Path(samekey.__file__).parent) + os.sep


class Walk(NamedTuple):
    frames: int
    files: int
    switches: int
    depth: int


class Tracer:
    """Collects the frames of samekey that are entered while it is on."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, str, str]] = []
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if not name.startswith(OURS):
            return
        if event == "call":
            self._depth += 1
            self.entered.append((self._depth, name.removeprefix(OURS), frame.f_code.co_qualname))
        elif event == "return":
            self._depth -= 1

    @contextmanager
    def on(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)

    def walk(self) -> Walk:
        files = [name for _, name, _ in self.entered]
        switches = sum(one != other for one, other in pairwise(files))
        return Walk(len(files), len(set(files)), switches, max((depth for depth, *_ in self.entered), default=0))


def traced(call: Callable[[str], Any]) -> Tracer:
    for number in range(3):
        call(f"warm-{number}")
    tracer = Tracer()
    with tracer.on():
        call("fresh")
    return tracer


async def async_traced(call: Callable[[str], Awaitable[Any]]) -> Tracer:
    for number in range(3):
        await call(f"warm-{number}")
    tracer = Tracer()
    with tracer.on():
        await call("fresh")
    return tracer


def memory() -> Tracer:
    with Guard("memory://") as guard:
        return traced(_charge(guard))


def postgres() -> Tracer:
    with _database() as url, Guard(url) as guard:
        return traced(_charge(guard))


def redis() -> Tracer:
    async def walked(url: str) -> Tracer:
        async with AsyncGuard(url) as guard:

            @guard.once(name="charge", key="order")
            async def charge(order: str, amount: int) -> dict[str, int]:
                return {"charged": amount}

            return await async_traced(lambda order: charge(order, 200))

    with _redis() as url:
        return asyncio.run(walked(url))


def fastapi() -> Tracer:
    from fastapi import APIRouter, FastAPI

    from samekey.http import Endpoint
    from samekey.http.fastapi import samekey_route

    async def walked() -> Tracer:
        async with AsyncGuard("memory://") as guard:
            endpoint = Endpoint(boundary=Opaque(), single_tenant=True)
            app, router = FastAPI(), APIRouter(route_class=samekey_route(guard=guard, endpoint=endpoint))

            @router.post("/charges")
            async def charge(body: dict[str, int]) -> dict[str, int]:
                return {"charged": body["amount"]}

            app.include_router(router)
            return await async_traced(lambda key: _post(app, key, b'{"amount": 200}'))

    return asyncio.run(walked())


def atomic() -> Tracer:
    import sqlalchemy
    from sqlalchemy.orm import Session

    with _database() as url, Guard(url) as guard:
        engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

        @guard.once(name="charge", key="order", boundary=Atomic("session"))
        def charge(session: Session, order: str, amount: int) -> dict[str, int]:
            session.execute(sqlalchemy.text("SELECT 1"))
            return {"charged": amount}

        def call(order: str) -> None:
            with Session(engine) as session:
                charge(session, order, 200)

        try:
            return traced(call)
        finally:
            engine.dispose()


CALLS: dict[str, Callable[[], Tracer]] = {
    "memory": memory,
    "postgres": postgres,
    "redis": redis,
    "fastapi": fastapi,
    "atomic": atomic,
}


def _charge(guard: Guard) -> Callable[[str], Any]:
    @guard.once(name="charge", key="order")
    def charge(order: str, amount: int) -> dict[str, int]:
        return {"charged": amount}

    return lambda order: charge(order, 200)


@contextmanager
def _database() -> Iterator[str]:
    from samekey.cli.migrate import migrate
    from samekey.testing.servers import postgres

    with postgres() as server:
        url = server.create_database()
        with redirect_stdout(io.StringIO()):
            migrate.main(["--store", url], standalone_mode=False)
        yield url


@contextmanager
def _redis() -> Iterator[str]:
    from samekey.testing.servers import redis_server

    with redis_server(appendonly="yes") as server:
        yield server.url()


async def _post(app: Any, key: str, body: bytes) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/charges",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"idempotency-key", key.encode())],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise RuntimeError(f"the shop answered {message['status']}")

    await app(scope, receive, send)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.walks", description="Count the frames of one guarded call.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--list", choices=CALLS, metavar="CALL", help=f"print every frame of one of {', '.join(CALLS)}")
    given = parser.parse_args()
    if given.list:
        for depth, name, function in CALLS[given.list]().entered:
            print(f"{'  ' * depth}{name} {function}")
        return 0
    walks = {name: call().walk() for name, call in CALLS.items()}
    if given.json:
        print(json.dumps({name: walk._asdict() for name, walk in walks.items()}))
        return 0
    print(f"{'call':10} frames files switches depth")
    for name, walk in walks.items():
        print(f"{name:10} {walk.frames:6} {walk.files:5} {walk.switches:8} {walk.depth:5}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
