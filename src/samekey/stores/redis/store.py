"""Records in Redis or Valkey: fast, shared by every process of every machine, as durable as the server is set up.

Theory. One string per key (`_redis_values`). A claim is one script that writes the record or shows what is there;
every other command is decided in Python by `core.register` and written by one script that compares and sets
(`_redis_steps`, `lua/`). The server's clock is the time, and its microseconds are the token; the fence is (token,
attempt). A claim has no TTL: only a settle says when Redis may forget.

Each process has one connection for each server, on which all callers' commands travel together (`_redis_lanes`,
`_redis_tasks`, `_redis_jobs`).
What a server is, and whether it is still the one we met, is learned when we connect (`_redis_links`).

Waiting: one connection per process (per event loop) hears the messages of those keys that somebody here waits for; a
slow re-read is the truth (`_redis_listen`, `_redis_vigil`, `_waiting`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from samekey.core.commands import (
    Ask,
    Begin,
    Free,
    Open,
    Read,
    Redact,
    Renew,
    Settle,
    StoreCommand,
    Take,
    Testify,
    Wait,
)
from samekey.core.errors import Misconfigured, RecordUnreadable, StoreUnavailable
from samekey.core.ports import Audits, Health, Query, Records, Replies
from samekey.core.record import Record
from samekey.drivers.redis import connect as driver
from samekey.loops import Bells, aside
from samekey.stores._waiting import asyncio_loop, wait
from samekey.stores.redis._batches import Job, job_of, portions
from samekey.stores.redis._operators import auditing, listing
from samekey.stores.redis._servers import Memory
from samekey.stores.redis._subscriber import AsyncSubscriber, Subscriber, older
from samekey.stores.redis._tasks import AsyncLane
from samekey.stores.redis._threads import Lane
from samekey.stores.redis._waiters import Vigil

_INHERITED: list[Any] = []  # what a forked child got from its parent and must not touch

_MOVES = frozenset({Take, Settle, Ask, Free})  # what those who wait, wait for


class RedisStore:
    """A store for `Guard`: `RedisStore("redis://cache:6379/0")`, or on the server of your own client.

    It connects when it is first used, over connections of its own: from `client` (redis-py, of either colour,
    also of a cluster or behind sentinels) it takes only where the server is and how to get in.
    """

    def __init__(
        self,
        url: str | driver.Address | None = None,
        *,
        client: Any = None,
        allow_volatile: bool | None = None,
        wait_replicas: int | None = None,
    ) -> None:
        self._address = _address(url, client, allow_volatile, wait_replicas)
        self.name = self._address.name
        self._here = _Here(self._address)

    @classmethod
    def from_url(cls, url: str) -> RedisStore:
        return cls(url)

    @property
    def incarnation(self) -> str:
        memory = self._here.memory
        return memory.incarnation if memory.facts else ""

    def __repr__(self) -> str:
        return f"<RedisStore {self.name}>"

    # -- the port ------------------------------------------------------------------------------------------

    def open(self, command: Open) -> Record:
        return _there(self._do(command), command)

    def take(self, command: Take) -> Record | None:
        return self._do(command)

    def begin(self, command: Begin) -> Record | None:
        return self._do(command)

    def renew(self, command: Renew) -> Record | None:
        return self._do(command)

    def settle(self, command: Settle) -> Record | None:
        return self._do(command)

    def ask(self, command: Ask) -> Record | None:
        return self._do(command)

    def testify(self, command: Testify) -> Record | None:
        return self._do(command)

    def redact(self, command: Redact) -> Record | None:
        return self._do(command)

    def free(self, command: Free) -> Record | None:
        return self._do(command)

    def read(self, command: Read) -> Record | None:
        return self._do(command)

    def wait(self, command: Wait, timeout: float) -> Record | None:
        here = self._links()
        told = here.told(command)

        def look() -> Record | None:
            return told() or self._do(Read(command.key))

        with here.subscriber.watching(command.key):
            return wait(command.seen, timeout, look, here.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        here = self._links()
        jobs = [job_of(command, here.memory) for command in commands]
        for some in portions(jobs):
            here.lane.perform(some)
            here.ring(some)
        return [job.error or job.reply for job in jobs]

    def list(self, query: Query) -> Records:
        here = self._links()
        found: Records = self._work(listing(query, here.memory, here.lane.links))
        return found

    def sweep(self, limit: int) -> int:
        """Nothing to do: Redis itself forgets what is past retention."""
        self._links()
        return 0

    def audit(self, limit: int) -> Audits:
        entries: Audits = self._work(auditing(limit))
        return entries

    def health(self) -> Health:
        here = self._links()
        here.lane.look()
        return _health(here.memory)

    def close(self) -> None:
        self._here.close()

    # -- connections: one set per process ------------------------------------------------------------------

    def _links(self) -> _Here:
        here = self._here
        if here.pid != os.getpid():
            # Forked: the parent's connections are its own, and what we read from them would be its answers.
            _INHERITED.append(here)
            here = self._here = _Here(self._address, here.memory.born)
        if here.closed:
            raise StoreUnavailable(f"{self.name} was closed")
        return here

    def _do(self, command: StoreCommand) -> Record | None:
        here = self._links()
        job = job_of(command, here.memory)
        here.lane.perform((job,))
        if type(command) in _MOVES:
            here.bells.ring(job.name)
        record: Record | None = job.outcome()
        return record

    def _work(self, working: Any) -> Any:
        job = Job(None, working)
        self._links().lane.perform((job,))
        return job.outcome()


class _Here:
    """Everything that belongs to one process; connections are made when they are first needed."""

    def __init__(self, address: driver.Address, born: Sequence[bytes] = ()) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.memory = Memory(address, born)  # a child knows what its parent knew: a wipe before the fork's first claim
        self.lane = Lane(self.memory)
        self.bells = Bells()
        self.subscriber = Subscriber(self.memory, self.bells)

    def told(self, command: Wait) -> Callable[[], Record | None]:
        """What was told about this key since the last look; the first look is always a read."""
        digest, news = command.key.digest, self.subscriber.news
        last = news.get(digest)

        def look() -> Record | None:
            nonlocal last
            known, last = last, news.get(digest)
            return None if last is known or older(last, command.seen) else last

        return look

    def ring(self, jobs: Sequence[Job]) -> None:
        """Those who wait in this process need no message."""
        for job in jobs:
            if type(job.question) in _MOVES:
                self.bells.ring(job.name)

    def close(self) -> None:
        self.closed = True
        if self.pid == os.getpid():
            self.subscriber.close()
            self.lane.close()


class AsyncRedisStore:
    """A store for `AsyncGuard`, on asyncio: a connection to each server for each event loop that uses it."""

    def __init__(
        self,
        url: str | driver.Address | None = None,
        *,
        client: Any = None,
        allow_volatile: bool | None = None,
        wait_replicas: int | None = None,
    ) -> None:
        # The sync twin renews leases from the timer's thread while a loop is busy; it connects only when it has
        # something to do.
        self.sync = RedisStore(url, client=client, allow_volatile=allow_volatile, wait_replicas=wait_replicas)
        self.name = self.sync.name
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._closed = False

    @classmethod
    def from_url(cls, url: str) -> AsyncRedisStore:
        return cls(url)

    @property
    def incarnation(self) -> str:
        return self.sync.incarnation

    def __repr__(self) -> str:
        return f"<AsyncRedisStore {self.name}>"

    async def open(self, command: Open) -> Record:
        return _there(await self._do(command), command)

    async def take(self, command: Take) -> Record | None:
        return await self._do(command)

    async def begin(self, command: Begin) -> Record | None:
        return await self._do(command)

    async def renew(self, command: Renew) -> Record | None:
        return await self._do(command)

    async def settle(self, command: Settle) -> Record | None:
        return await self._do(command)

    async def ask(self, command: Ask) -> Record | None:
        return await self._do(command)

    async def testify(self, command: Testify) -> Record | None:
        return await self._do(command)

    async def redact(self, command: Redact) -> Record | None:
        return await self._do(command)

    async def free(self, command: Free) -> Record | None:
        return await self._do(command)

    async def read(self, command: Read) -> Record | None:
        return await self._do(command)

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        key, loop = command.key, self._loop()
        vigils = loop.vigils
        vigil = vigils.get(key.digest)
        if vigil is None:
            vigil = vigils[key.digest] = Vigil(
                key, loop.subscriber, lambda: self._do(Read(key)), lambda: vigils.pop(key.digest)
            )
        return await vigil.wait(command.seen, timeout)

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        lane, here = self._lane(), self.sync._links()
        jobs = [job_of(command, here.memory) for command in commands]
        for some in portions(jobs):
            await lane.perform(some)
            here.ring(some)
        return [job.error or job.reply for job in jobs]

    async def list(self, query: Query) -> Records:
        lane = self._lane()
        found: Records = await self._work(listing(query, self.sync._links().memory, lane.links))
        return found

    async def sweep(self, limit: int) -> int:
        """Nothing to do: Redis itself forgets what is past retention."""
        self._lane()
        return 0

    async def audit(self, limit: int) -> Audits:
        entries: Audits = await self._work(auditing(limit))
        return entries

    async def health(self) -> Health:
        await self._lane().look()
        return _health(self.sync._links().memory)

    async def close(self) -> None:
        self._closed = True
        running = asyncio._get_running_loop()  # none under trio, where nothing was opened
        while self._loops:
            loop, links = self._loops.popitem()
            if loop is running and links.pid == os.getpid():
                await links.close()
            else:
                links.abandon()
        await aside(self.sync.close)()

    def _lane(self) -> AsyncLane:
        return self._loop().lane

    def _loop(self) -> _Loop:
        if self._closed:
            raise StoreUnavailable(f"{self.name} was closed")
        loop = asyncio_loop(self.name)
        links = self._loops.get(loop)
        if links is not None and links.pid == os.getpid():
            return links
        for one in list(self._loops):  # other threads begin and end theirs meanwhile
            gone = self._loops.pop(one, None) if one.is_closed() else None
            if gone is not None:
                gone.abandon()
        if links is not None:
            _INHERITED.append(links)
        links = self._loops[loop] = _Loop(self.sync._links())
        return links

    async def _do(self, command: StoreCommand) -> Record | None:
        lane, here = self._loop().lane, self.sync._here
        job = job_of(command, here.memory)
        await lane.perform_one(job)
        if type(command) in _MOVES:
            here.bells.ring(job.name)
        record: Record | None = job.outcome()
        return record

    async def _work(self, working: Any) -> Any:
        job = Job(None, working)
        await self._lane().perform_one(job)
        return job.outcome()


class _Loop:
    """Everything that belongs to one event loop of one process."""

    def __init__(self, here: _Here) -> None:
        self.pid = os.getpid()
        self.lane = AsyncLane(here.memory)
        self.subscriber = AsyncSubscriber(here.memory, here.bells)
        self.vigils: dict[bytes, Vigil] = {}  # who waits, by digest

    async def close(self) -> None:
        await self.subscriber.close()
        await self.lane.close()

    def abandon(self) -> None:
        if self.pid == os.getpid():
            self.subscriber.abandon()
            self.lane.abandon()


def _there(record: Record | None, command: Open) -> Record:
    if record is None:
        raise RecordUnreadable(f"Redis took the claim of {command.key} and shows no record of it")
    return record


def _address(
    url: str | driver.Address | None, client: Any, allow_volatile: bool | None, wait_replicas: int | None
) -> driver.Address:
    if isinstance(url, driver.Address):
        return url
    if (url is None) is (client is None):
        raise Misconfigured("a Redis store takes an address or a client of your own, one of them")
    address = driver.parse_url(url) if url is not None else driver.lent_by(client)
    if address.front_ttl is not None:
        raise Misconfigured(
            "front_ttl is for a Redis before a database: 'redis://cache?front_ttl=5 postgresql://db/app'"
        )
    if allow_volatile is not None:
        address = replace(address, allow_volatile=allow_volatile)
    if wait_replicas is not None:
        address = replace(address, wait_replicas=wait_replicas)
    return address


def _health(memory: Memory) -> Health:
    address, facts = memory.address, list(memory.facts.values())
    weakest = min(facts, key=lambda one: (not one.volatile, one.appendfsync == "always"))
    warnings = dict.fromkeys(text for one in facts for text in one.warnings(address.wait_replicas))
    if any(memory.lost):
        warnings["the store lost its memory, or a part of it: claims since then ask first, where one can"] = None
    return Health(
        store=address.name,
        guarantee=weakest.guarantee(address.wait_replicas),
        incarnation=memory.incarnation,
        warnings=tuple(warnings),
        facts=(*weakest.listed(), ("servers", str(len(facts)))),
    )
