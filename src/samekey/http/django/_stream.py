"""An async view's answer that is too long to keep: sent as it is made, and settled at its end.

A stream can end in many ways. It ends, or raises: the iterator sees that. Its client hangs up: Django then cancels the
task that iterates and closes the response, or cancels the view before there is a response to close. Or the response is
dropped without notice, because a middleware returns another one or the server cannot send it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from asgiref.sync import async_to_sync

from samekey.core.errors import Misconfigured
from samekey.http._message import Reply, falls_short
from samekey.http._visit import AsyncVisit
from samekey.loops import running

STREAM = "_samekey_stream"

_ending = set[asyncio.Task[None]]()  # a loop itself does not keep its tasks alive
_rests = set[object]()  # attempts with which dropped streams are settled


class AsyncStream:
    """The content of a response: the parts that were gathered already, and the rest."""

    def __init__(self, gathered: list[bytes], rest: AsyncIterator[bytes], visit: AsyncVisit, reply: Reply) -> None:
        self._gathered, self._rest = gathered, rest
        self._visit, self._reply = visit, reply
        self._loop = asyncio.get_running_loop()
        self._attempt = visit.held.rest
        _rests.add(self._attempt)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            if asyncio.get_running_loop() is not self._loop:  # which has closed its generators: the rest is lost
                raise Misconfigured("a long stream of an async view needs ASGI: under WSGI its loop ends before it")
            for part in self._gathered:
                size += len(part)
                yield part
            async for part in self._rest:
                size += len(part)
                yield part
        except GeneratorExit:  # the client left: Django closes the response
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # not the client: a task that the source awaits was cancelled
                await self._visit.fail(error)
            raise
        except BaseException as error:
            await self._visit.fail(error)
            raise
        if falls_short(self._reply, size):
            await cut(self._visit, self._reply)
        elif not self._visit.over:
            await self._visit.leave(self._reply)

    def close(self) -> None:
        """Django calls this from a thread, after it has sent the response or when it cannot send it any more."""
        if not self._visit.over:
            async_to_sync(cut)(self._visit, self._reply)

    async def abandon(self) -> None:
        await cut(self._visit, self._reply)

    def __del__(self) -> None:
        if not self._visit.over:  # dropped: no other code would settle it
            try:
                self._loop.call_soon_threadsafe(_cut_soon, self._visit, self._reply, self._attempt)
                return
            except RuntimeError:  # the loop is closed: the record cannot be written any more
                self._visit.running.keep()
        _rests.discard(self._attempt)


async def cut(visit: AsyncVisit, reply: Reply) -> None:
    if not visit.over:
        await visit.cut(reply)


def _cut_soon(visit: AsyncVisit, reply: Reply, attempt: object) -> None:
    task = asyncio.ensure_future(cut(visit, reply))
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    task.add_done_callback(lambda _: _rests.discard(attempt))


async def to_its_end(view: Callable[[], Awaitable[Any]]) -> Any:
    """The response of a view that holds a key. Django cancels a view whose client hung up; this view goes on."""
    made: list[Any] = []

    async def kept() -> None:
        made.append(await view())

    try:
        await running().shielded(kept)
    except BaseException:
        for response in made:  # finished, but its client is gone
            stream = getattr(response, STREAM, None)
            if stream is not None:
                await running().shielded(stream.abandon)
        raise
    return made[0]
