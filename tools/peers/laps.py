"""CPU of requests to one of the shops, in this process and without sockets. Runs where the libraries are installed:

    python tools/peers/laps.py NAME [REDIS-URL]

Each line on stdin is an errand, each line on stdout what came of it, as JSON:

    bare N, fresh N, replay N   so many requests to the shop without the library, with new keys, with known keys
    storm N                     so many requests with one key at once, while a charge takes 50 ms
"""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import shop

CALLERS = 32
KNOWN = 100
STORM_SECONDS = 0.05

_numbers = itertools.count()
Crowd = Callable[[Any, Sequence[str], int], list[int]]  # the app, a key for each request, so many callers: statuses


def new_keys(count: int) -> list[str]:
    return [
        f"8e03978e-40d5-43dd-{os.getpid() & 0xFFFF:04x}-{number:012d}" for number in itertools.islice(_numbers, count)
    ]


def body_of(key: str) -> bytes:
    """Equal for equal keys, as a client's retry is."""
    return b'{"order_id": "%b", "amount": 1999, "currency": "EUR", "card": {"save": true}}' % key.encode()


def asgi(runner: asyncio.Runner) -> Crowd:
    async def request(app: Any, key: str) -> int:
        body = body_of(key)
        status: list[int] = []
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()  # a client that stays
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        await app(
            {
                **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"},
                **{"method": "POST", "path": "/charges", "raw_path": b"/charges", "query_string": b"", "root_path": ""},
                **{"client": ("127.0.0.1", 50000), "server": ("127.0.0.1", 80), "state": {}},
                "headers": [
                    (b"host", b"shop.example"),
                    (b"user-agent", b"bench/1"),
                    (b"accept", b"application/json"),
                    (b"content-type", b"application/json"),
                    (b"content-length", b"%d" % len(body)),
                    (b"authorization", b"ann"),
                    (b"idempotency-key", key.encode()),
                ],
            },
            receive,
            send,
        )
        return status[0]

    async def caller(app: Any, keys: Sequence[str]) -> list[int]:
        return [await request(app, key) for key in keys]

    async def crowd(app: Any, keys: Sequence[str], callers: int) -> list[int]:
        told = await asyncio.gather(*(caller(app, keys[number::callers]) for number in range(callers)))
        return [status for some in told for status in some]

    return lambda app, keys, callers: runner.run(crowd(app, keys, callers))


def wsgi() -> Crowd:
    def request(app: Any, key: str) -> int:
        body = body_of(key)
        status: list[int] = []
        environ = {
            **{"REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": "/charges", "QUERY_STRING": ""},
            **{"SERVER_NAME": "shop.example", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1"},
            **{"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body)), "HTTP_ACCEPT": "application/json"},
            **{"HTTP_HOST": "shop.example", "HTTP_USER_AGENT": "bench/1", "HTTP_AUTHORIZATION": "ann"},
            **{"HTTP_IDEMPOTENCY_KEY": key, "wsgi.input": io.BytesIO(body), "wsgi.errors": sys.stderr},
            **{"wsgi.url_scheme": "http", "wsgi.version": (1, 0), "wsgi.multithread": True},
            **{"wsgi.multiprocess": False, "wsgi.run_once": False},
        }
        answer = app(environ, lambda line, headers, error=None: status.append(int(line[:3])))
        b"".join(answer)
        if hasattr(answer, "close"):
            answer.close()
        return status[0]

    def crowd(app: Any, keys: Sequence[str], callers: int) -> list[int]:
        if callers == 1:
            return [request(app, key) for key in keys]
        told: list[int] = []
        threads = [
            threading.Thread(
                target=lambda some: told.extend([request(app, key) for key in some]), args=(keys[one::callers],)
            )
            for one in range(callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return told

    return crowd


def lap(crowd: Crowd, app: Any, keys: Sequence[str], callers: int) -> dict[str, Any]:
    """CPU seconds per request, how many effects there were, and how many requests were not answered 201."""
    before = len(shop.charges)
    gc.collect()
    gc.disable()
    begun = time.process_time()
    statuses = crowd(app, keys, callers)
    spent = time.process_time() - begun
    gc.enable()
    refused = sum(status != 201 for status in statuses)
    return {"cpu": spent / len(keys), "effects": len(shop.charges) - before, "refused": refused}


def main(name: str, redis: str = "") -> None:
    make, serve = shop.SHOPS[name]
    threaded = serve is shop.serve_wsgi
    callers = 1 if threaded else CALLERS  # of sync shops one thread: 32 would measure the interpreter's lock
    shop.CHARGE_SECONDS = 0
    bare = shop.django_app([], redis) if threaded else shop.fastapi_app()
    guarded = make(redis)
    with asyncio.Runner() as runner:
        crowd = wsgi() if threaded else asgi(runner)
        known = new_keys(KNOWN)
        crowd(guarded, known, callers)
        print(json.dumps({"python": sys.version.split()[0]}), flush=True)
        for line in sys.stdin:
            errand, count = line.split()
            match errand:
                case "bare":
                    told = lap(crowd, bare, new_keys(int(count)), callers)
                case "fresh":
                    told = lap(crowd, guarded, new_keys(int(count)), callers)
                case "replay":
                    told = lap(crowd, guarded, list(itertools.islice(itertools.cycle(known), int(count))), callers)
                case "storm":
                    shop.CHARGE_SECONDS = STORM_SECONDS
                    told = lap(crowd, guarded, new_keys(1) * int(count), int(count))
                    shop.CHARGE_SECONDS = 0
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
