"""Guarded calls for `bench.versus`: `python bench/calls.py NAME ADDRESS COUNT` with the tree to measure in PYTHONPATH.

Prints the CPU seconds that this process took for each call, new keys and replays apart. Only public names are used, so
that an older tree can run it too.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from samekey import AsyncGuard, Guard, Opaque

TASKS = 32


def measured(calls: Callable[[list[str]], Any], count: int) -> dict[str, float]:
    calls([f"warm-{number}" for number in range(200)])
    keys = [f"key-{number}" for number in range(count)]
    times = {}
    for name in ("new", "replay"):
        begun = time.process_time()
        calls(keys)
        times[name] = (time.process_time() - begun) / count
    return times


def one_caller(address: str, count: int) -> dict[str, float]:
    with Guard(address) as guard:

        @guard.once(name="charge", key="order")
        def charge(order: str, amount: int) -> dict[str, int]:
            return {"charged": amount}

        def calls(keys: list[str]) -> None:
            for key in keys:
                charge(key, 200)

        return measured(calls, count)


def tasks(address: str, count: int) -> dict[str, float]:
    with asyncio.Runner() as runner:
        guard = AsyncGuard(address)

        @guard.once(name="charge", key="order")
        async def charge(order: str, amount: int) -> dict[str, int]:
            return {"charged": amount}

        found = measured(lambda keys: runner.run(_shared(keys, lambda key: charge(key, 200))), count)
        runner.run(guard.close())
        return found


def http(address: str, count: int) -> dict[str, float]:
    from fastapi import APIRouter, FastAPI

    from samekey.http import Endpoint
    from samekey.http.fastapi import samekey_route

    with asyncio.Runner() as runner:
        guard = AsyncGuard(address)
        endpoint = Endpoint(boundary=Opaque(), single_tenant=True)
        app, router = FastAPI(), APIRouter(route_class=samekey_route(guard=guard, endpoint=endpoint))

        @router.post("/charges")
        async def charge(body: dict[str, int]) -> dict[str, int]:
            return {"charged": body["amount"]}

        app.include_router(router)
        found = measured(lambda keys: runner.run(_shared(keys, lambda key: post(app, key), 1)), count)
        runner.run(guard.close())
        return found


async def _shared(keys: list[str], call: Callable[[str], Awaitable[Any]], callers: int = TASKS) -> None:
    left = iter(keys)

    async def caller() -> None:
        for key in left:
            await call(key)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def post(app: Any, key: str) -> None:
    """One request over ASGI, without a network."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/charges",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"idempotency-key", key.encode())],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"amount": 200}', "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise RuntimeError(f"the shop answered {message['status']}")

    await app(scope, receive, send)


CALLS: dict[str, Callable[[str, int], dict[str, float]]] = {"one": one_caller, "tasks": tasks, "http": http}

if __name__ == "__main__":
    print(json.dumps(CALLS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
