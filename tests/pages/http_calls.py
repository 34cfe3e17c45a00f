"""How the HTTP pages are tried: an application gets a request without a key, one with a key, and its repetition."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx

AUTHORIZATION = "t-1"  # the token of the pages' examples


def calls(app: Any, path: str = "/charges", *, sync: bool = False, **given: Any) -> list[str]:
    """The statuses of a request without a key, of one with a key and of its repetition; "replayed" where it was."""
    given = {"json": {"amount": 200}, **given}
    headers = {"Authorization": AUTHORIZATION, **given.pop("headers", {})}
    keyed = {**headers, "Idempotency-Key": str(uuid4())}
    if sync:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as client:
            return [shown(client.post(path, headers=one, **given)) for one in (headers, keyed, keyed)]

    async def main() -> list[str]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return [shown(await client.post(path, headers=one, **given)) for one in (headers, keyed, keyed)]

    return asyncio.run(main())


def shown(answer: Any) -> str:
    return f"{answer.status_code} replayed" if answer.headers.get("Idempotent-Replayed") else str(answer.status_code)
