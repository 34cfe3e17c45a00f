"""The ASGI adapter, called as a server calls it, without sockets: CPU that a key adds to a request."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from bench.figures import Experiment, Figure, Reading, at_most
from bench.measure import Effort, Work, added_microseconds, interleave
from samekey import AsyncGuard, Keyed
from samekey.http import Endpoint, Request
from samekey.http.asgi import App, Receive, SamekeyMiddleware
from samekey.testing.servers import redis_server

CALLERS = 32
REPLAYED_KEYS = 100
BODY = b'{"order_id": "%b", "amount": 1999, "currency": "EUR", "card": {"token": "tok_1", "save": true}}'
ANSWER = b'{"id": "ch_1", "amount": 1999, "currency": "EUR", "paid": true}'

_numbers = itertools.count()


async def charge(scope: Any, receive: Any, send: Any) -> None:
    """The bare application: it reads its body, lets others run, and answers."""
    await receive()
    await asyncio.sleep(0)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER, "more_body": False})


def whose(request: Request) -> str | None:
    return request.header("x-account")


def on_memory(effort: Effort) -> Sequence[Reading]:
    return added(effort, "memory://")


def on_redis(effort: Effort) -> Sequence[Reading]:
    with redis_server() as server:
        return added(effort, server.url())[:2]


def added(effort: Effort, store: str) -> Sequence[Reading]:
    """What new keys, known keys and no key add to the bare application."""
    guard = AsyncGuard(store)
    guarded = SamekeyMiddleware(charge, guard=guard, endpoint=Endpoint(boundary=Keyed(), principal=whose))
    known = new_keys(REPLAYED_KEYS)
    with asyncio.Runner() as runner:

        def crowd(app: App, keys: Sequence[str], *, keyed: bool = True) -> Work:
            """So many requests, by so many callers at once."""

            async def caller(mine: Sequence[str]) -> None:
                for key in mine:
                    body = BODY % key.encode()
                    await app(scope(key if keyed else "", len(body)), receiving(body), send)

            async def whole() -> None:
                await asyncio.gather(*(caller(keys[number::CALLERS]) for number in range(CALLERS)))

            return lambda: runner.run(whole())

        crowd(guarded, known)()

        def fresh(operations: int) -> Work:
            return crowd(guarded, new_keys(operations))

        def replay(operations: int) -> Work:
            return crowd(guarded, list(itertools.islice(itertools.cycle(known), operations)))

        def unkeyed(operations: int) -> Work:
            return crowd(guarded, new_keys(operations), keyed=False)

        def bare(operations: int) -> Work:
            return crowd(charge, new_keys(operations))

        race = interleave(effort, fresh, replay, unkeyed, bare)
        runner.run(guard.close())
    *ours, plain = race.laps
    more = [added_microseconds(laps, plain) for laps in ours]
    return [Reading(statistics.median(one), one, f"best round {min(one):.1f}; {race.speed}") for one in more]


def scope(key: str, length: int) -> dict[str, Any]:
    headers = [
        (b"host", b"shop.example"),
        (b"user-agent", b"bench/1"),
        (b"accept", b"application/json"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % length),
        (b"x-account", b"acct_1"),
    ]
    if key:
        headers.append((b"idempotency-key", key.encode()))
    return {"type": "http", "method": "POST", "path": "/charges", "query_string": b"", "headers": headers}


def receiving(body: bytes) -> Receive:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def send(message: Any) -> None:
    """To nobody."""


def new_keys(count: int) -> list[str]:
    return [f"8e03978e-40d5-43dd-bc93-{number:012d}" for number in itertools.islice(_numbers, count)]


ADDED = f"the bare application, {CALLERS} callers: CPU added per request"
EXPERIMENTS = (
    Experiment(
        (
            Figure("http.asgi.fresh", "us CPU", ADDED, at_most(60.0)),
            Figure("http.asgi.replay", "us CPU", ADDED, at_most(40.0)),
            Figure("http.asgi.unkeyed", "us CPU", ADDED),
        ),
        on_memory,
    ),
    Experiment(
        (
            Figure("http.asgi.redis.fresh", "us CPU", ADDED, at_most(120.0)),
            Figure("http.asgi.redis.replay", "us CPU", ADDED),
        ),
        on_redis,
    ),
)
