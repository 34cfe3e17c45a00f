"""Scripts on one Redis server, for the intake: each call is one command, and the driver retries nothing.

A call answers within the address's deadline or raises StoreUnavailable. `incarnation` names the server process that the
connection was made to: when it changes, the server may have lost its last writes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from hashlib import sha1
from importlib import resources
from typing import Any

from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers.redis.address import Address, parse_url
from samekey.drivers.redis.connect import Place
from samekey.drivers.redis.errors import DriverError, Refusal, is_again, is_unknown_script, store_error
from samekey.drivers.redis.self_check import Facts, facts_of, info_of
from samekey.drivers.redis.wire import AsyncWire, Lost, Wire, packed

IDLE_MAX = 16  # connections that a process keeps for its threads


class Script:
    """A script of a package, called by its digest."""

    def __init__(self, package: str, name: str) -> None:
        self.source = (resources.files(package) / "lua" / f"{name}.lua").read_bytes()
        self.digest = sha1(self.source).hexdigest().encode()  # noqa: S324 - Redis' own name for a script

    def call(self, keys: Sequence[bytes], values: Sequence[bytes], *, whole: bool = False) -> bytes:
        how = (b"EVAL", self.source) if whole else (b"EVALSHA", self.digest)
        return packed((*how, b"%d" % len(keys), *keys, *values))


class _Server:
    """What both colours share: where the server is, and what it reports about itself."""

    def __init__(self, url: str) -> None:
        address: Address = parse_url(url)
        if address.cluster or address.sentinel:
            raise Misconfigured("the intake takes the address of one Redis server, not of a cluster or of sentinels")
        self.name = address.name
        self._place: Place = address.in_haste().places[0]
        self.incarnation = ""
        self.facts: Facts | None = None

    def _learn(self, reply: Any) -> None:
        if isinstance(reply, Refusal):
            raise store_error(self.name, reply)
        self.facts = facts_of(self.name, info_of(reply), {})
        self.incarnation = self.facts.run_id

    def _checked(self, reply: Any) -> Any:
        if isinstance(reply, DriverError):
            raise store_error(self.name, reply)
        return reply


_INFO = packed((b"INFO", b"everything"))


class ScriptClient(_Server):
    """Connections of this process; a thread uses one at a time."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._idle: list[Wire] = []
        self._lock = threading.Lock()

    def call(self, script: Script, keys: Sequence[bytes], values: Sequence[bytes]) -> Any:
        reply = self.command(script.call(keys, values))
        if isinstance(reply, Exception) and is_unknown_script(reply):
            reply = self.command(script.call(keys, values, whole=True))
        return self._checked(reply)

    def command(self, data: bytes) -> Any:
        with self._lock:
            wire = self._idle.pop() if self._idle else None
        kept = wire is not None
        while True:
            if wire is None:
                wire = self._connected()
            try:
                (reply,) = wire.receive(wire.send(data, 1))
            except Lost as lost:
                self._drop_idle()
                if kept and not isinstance(lost.cause, TimeoutError):
                    wire, kept = None, False  # it was closed while it was idle; every call may be sent again
                    continue
                raise StoreUnavailable(f"{self.name}: {lost}") from lost
            break
        if isinstance(reply, DriverError) and is_again(reply):
            wire.close()
        else:
            with self._lock:
                if len(self._idle) < IDLE_MAX:
                    self._idle.append(wire)
                    return reply
            wire.close()
        return reply

    def _connected(self) -> Wire:
        wire = Wire(self._place)
        try:
            wire.connect()
            (reply,) = wire.receive(wire.send(_INFO, 1))
            self._learn(reply)
        except SamekeyError:
            wire.close()
            raise
        except (Lost, DriverError, OSError) as error:
            wire.close()
            raise StoreUnavailable(f"{self.name}: {error}") from error
        return wire

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            one.close()

    def close(self) -> None:
        self._drop_idle()


class AsyncScriptClient(_Server):
    """One connection for all tasks of a loop. Calls of one turn of the loop travel in one packet."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._wire: AsyncWire | None = None
        self._connecting: asyncio.Lock | None = None
        self._unsent: list[tuple[bytes, asyncio.Future[Any]]] = []

    async def call(self, script: Script, keys: Sequence[bytes], values: Sequence[bytes]) -> Any:
        reply = await self.command(script.call(keys, values))
        if isinstance(reply, Exception) and is_unknown_script(reply):
            reply = await self.command(script.call(keys, values, whole=True))
        return self._checked(reply)

    async def command(self, data: bytes) -> Any:
        try:
            async with asyncio.timeout(self._place.answer_seconds * 2):
                if self._wire is None:
                    await self._connect()
                return await self._sent(data)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.name}: no answer in time") from error

    async def _connect(self) -> None:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._wire is not None:
                return
            wire = AsyncWire(self._place)
            try:
                await wire.connect()
                (reply,) = await wire.receive(await wire.send(_INFO, 1))
                self._learn(reply)
            except SamekeyError:
                await wire.close()
                raise
            except (Lost, DriverError, OSError) as error:
                await wire.close()
                raise StoreUnavailable(f"{self.name}: {error}") from error
            self._wire = wire

    async def _sent(self, data: bytes) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.append((data, future))
        outcome = await future
        if isinstance(outcome, Lost):
            raise StoreUnavailable(f"{self.name}: {outcome}") from outcome
        return outcome

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        batch = _Batch(self, [future for _, future in unsent])
        try:
            if self._wire is None:
                raise Lost(ConnectionError("the connection was closed"))
            self._wire.request(b"".join([data for data, _ in unsent]), len(unsent), batch)
        except Lost as lost:
            batch.lose(lost)

    def _lost(self) -> None:
        self._wire = None

    async def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()


class _Batch:
    """The calls of one packet."""

    def __init__(self, client: AsyncScriptClient, futures: list[asyncio.Future[Any]]) -> None:
        self._client, self._futures = client, futures

    def receive(self, answers: list[Any]) -> None:
        for future, answer in zip(self._futures, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    def lose(self, lost: Lost) -> None:
        self._client._lost()
        for future in self._futures:
            if not future.done():
                future.set_result(lost)
