"""Live updates: the figures of the navigation as server-sent events. A page decides by itself what to read again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from samekey.console.desk import Console
from samekey.console.figures import Figures
from samekey.console.shown import clock
from samekey.console.web import person_of
from samekey.core.errors import SamekeyError

STREAMS_MAX = 64  # of one process
LOOK_SECONDS = 2.0
STREAM_SECONDS = 600.0  # then the browser connects again, and its sign-in is checked again


async def live(request: Request) -> Response:
    console: Console = request.app.state.console
    if person_of(console, request) is None:
        return Response(status_code=401)
    if console.live >= STREAMS_MAX:
        return Response("too many open pages", status_code=503, headers={"Retry-After": "10"})
    return StreamingResponse(
        _events(console, request), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


async def _events(console: Console, request: Request) -> AsyncIterator[str]:
    console.live += 1
    ends = time.monotonic() + STREAM_SECONDS
    try:
        yield "retry: 5000\n\n"
        while time.monotonic() < ends and person_of(console, request) is not None:
            try:
                yield _event("figures", facts(await console.watch.current()))
            except SamekeyError:
                yield _event("silent", {"clock": clock(time.time())})
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        console.live -= 1


def facts(figures: Figures) -> dict[str, Any]:
    """What the script shows: numbers and a mark that changes with them. No text of a record."""
    return {
        "doubts": len(figures.doubts),
        "more": figures.more,
        "claims": len(figures.claims),
        "doubled": len(figures.doubled),
        "clock": clock(figures.at),
        "mark": format(hash(figures.signature) & 0xFFFFFFFF, "x"),
    }


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
