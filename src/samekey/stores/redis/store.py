"""Records in Redis or Valkey: fast, shared by all processes of all machines, and as durable as the server is set up.

Theory. There is one string per key (`_records`). A claim is one script that writes the record or returns the one that
is there. `core.register` decides every other command in Python, and one script compares and sets (`_commands`, `lua/`).
The server's clock is the time, and its microseconds are the token; the fence is (token, attempt). A claim has no TTL:
only a settle sets the time after which Redis may delete the record.

Each process has one connection to each server, and the commands of all callers share it (`_threads`, `_tasks`,
`_batches`). The self-check of a new connection finds out what the server is, and whether it is still the one that this
process used before (`_discovery`, `_knowledge`).

Waiting: one connection per process (per event loop) receives the messages about the keys that are waited for there. A
slow read, repeated by each waiter, finds what a lost message would bring (`_subscriber`, `_waiters`, `_waiting`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from samekey.core.commands import Read, StoreCommand, Wait
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.ports import Audits, Due, Health, Query, Records, Replies, Reply, no_transactions
from samekey.core.record import Record
from samekey.drivers.redis.address import Address, lent_by, parse_url
from samekey.loops import Bells, aside
from samekey.stores._waiting import asyncio_loop, wait
from samekey.stores.redis._batches import Item, portions
from samekey.stores.redis._books import AsyncBooks, Books
from samekey.stores.redis._commands import WAKING, steps
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._operators import auditing, doubtful, dueing, listing, pruning
from samekey.stores.redis._parking import AsyncParking, Parking
from samekey.stores.redis._subscriber import AsyncSubscriber, Subscriber, older
from samekey.stores.redis._tasks import TaskQueue
from samekey.stores.redis._threads import ThreadQueue
from samekey.stores.redis._waiters import Waiters

T = TypeVar("T")

_INHERITED: list[Any] = []  # what a forked child got from its parent and must not touch


class RedisStore(Books, Parking):
    """A store for `Guard`: `RedisStore("redis://cache:6379/0")`, or on the server of your own client.

    It connects when it is first used, over connections of its own. From `client` (redis-py, sync or async, of one
    server, a cluster or sentinels) it takes only the address, the credentials and the TLS settings.
    """

    def __init__(
        self,
        url: str | Address | None = None,
        *,
        client: Any = None,
        allow_volatile: bool | None = None,
        wait_replicas: int | None = None,
    ) -> None:
        self._address = _address(url, client, allow_volatile, wait_replicas)
        self.name = self._address.name
        self._process = _Process(self._address)

    @property
    def incarnation(self) -> str:
        known = self._process.known
        return known.incarnation if known.facts else ""

    def __repr__(self) -> str:
        return f"<RedisStore {self.name}>"

    # -- the port ------------------------------------------------------------------------------------------

    def carry_out(self, command: StoreCommand) -> Reply:
        process = self._process_now()
        item = Item(command, steps(command, process.known))
        process.queue.perform((item,))
        if type(command) in WAKING:
            process.bells.ring(item.digest)
        return item.outcome()

    def wait(self, command: Wait, timeout: float) -> Record | None:
        process = self._process_now()
        digest, latest = command.key.digest, process.subscriber.latest
        last = latest.get(digest)

        def look() -> Record | None:
            nonlocal last
            before, last = last, latest.get(digest)
            new = last is not before and not older(last, command.seen)  # a message that came since the last look
            return (last if new else None) or self.carry_out(Read(command.key))

        with process.subscriber.watching(command.key):
            return wait(command.seen, timeout, look, process.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        process = self._process_now()
        items = [Item(command, steps(command, process.known)) for command in commands]
        for some in portions(items):
            process.queue.perform(some)
            process.ring(some)
        return [item.error or item.reply for item in items]

    def list(self, query: Query) -> Records:
        process = self._process_now()
        return self._work(listing(query, process.known, process.queue.servers))

    def due(self, due: Due) -> Records:
        return self._work(dueing(due, self._process_now().known))

    def doubtful(self) -> Sequence[str]:
        return self._work(doubtful())

    def sweep(self, limit: int) -> int:
        """None: Redis deletes records after their retention. What they leave in our index is removed."""
        self._work(pruning(limit))
        return 0

    def audit(self, limit: int) -> Audits:
        return self._work(auditing(limit))

    def health(self) -> Health:
        process = self._process_now()
        process.queue.check_servers()
        return _health(process.known)

    def join(self, connection: Any) -> Any:
        raise no_transactions(self.name)

    def close(self) -> None:
        self._process.close()

    # -- connections: one set per process ------------------------------------------------------------------

    def _process_now(self) -> _Process:
        process = self._process
        if process.pid != os.getpid():
            # Forked: the connections belong to the parent, and the replies on them are for the parent.
            _INHERITED.append(process)
            process = self._process = _Process(self._address, process.known.born)
        if process.closed:
            raise StoreUnavailable(f"{self.name} was closed")
        return process

    def _work(self, query: Generator[Any, Any, T]) -> T:
        item = Item(None, query)
        self._process_now().queue.perform((item,))
        result: T = item.outcome()
        return result


class _Process:
    """Everything that belongs to one process; connections are made when they are first needed."""

    def __init__(self, address: Address, born: Sequence[bytes] = ()) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.known = Knowledge(address, born)  # `born` from before a fork: the child notices a wipe since then
        self.queue = ThreadQueue(self.known)
        self.bells = Bells()
        self.subscriber = Subscriber(self.known, self.bells)

    def ring(self, items: Sequence[Item]) -> None:
        """Wake the waiters of this process, which then need no message."""
        for item in items:
            if type(item.command) in WAKING:
                self.bells.ring(item.digest)

    def close(self) -> None:
        self.closed = True
        if self.pid == os.getpid():
            self.subscriber.close()
            self.queue.close()


class AsyncRedisStore(AsyncBooks, AsyncParking):
    """A store for `AsyncGuard`, on asyncio: a connection to each server for each event loop that uses it."""

    def __init__(
        self,
        url: str | Address | None = None,
        *,
        client: Any = None,
        allow_volatile: bool | None = None,
        wait_replicas: int | None = None,
    ) -> None:
        # The sync twin renews leases from the timer's thread while the loop is busy. It connects only when it is used.
        self.sync = RedisStore(url, client=client, allow_volatile=allow_volatile, wait_replicas=wait_replicas)
        self.name = self.sync.name
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._closed = False

    @property
    def incarnation(self) -> str:
        return self.sync.incarnation

    def __repr__(self) -> str:
        return f"<AsyncRedisStore {self.name}>"

    async def carry_out(self, command: StoreCommand) -> Reply:
        queue, process = self._loop().queue, self.sync._process
        item = Item(command, steps(command, process.known))
        await queue.perform_one(item)
        if type(command) in WAKING:
            process.bells.ring(item.digest)
        return item.outcome()

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        key, loop = command.key, self._loop()
        waiters = loop.waiters
        shared = waiters.get(key.digest)
        if shared is None:
            shared = waiters[key.digest] = Waiters(
                key, loop.subscriber, lambda: self.carry_out(Read(key)), lambda: waiters.pop(key.digest)
            )
        return await shared.wait(command.seen, timeout)

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        queue, process = self._loop().queue, self.sync._process_now()
        items = [Item(command, steps(command, process.known)) for command in commands]
        for some in portions(items):
            await queue.perform(some)
            process.ring(some)
        return [item.error or item.reply for item in items]

    async def list(self, query: Query) -> Records:
        return await self._work(listing(query, self.sync._process_now().known, self._loop().queue.servers))

    async def due(self, due: Due) -> Records:
        return await self._work(dueing(due, self.sync._process_now().known))

    async def doubtful(self) -> Sequence[str]:
        return await self._work(doubtful())

    async def sweep(self, limit: int) -> int:
        """Nothing to do: Redis deletes records after their retention."""
        self._loop()
        return 0

    async def audit(self, limit: int) -> Audits:
        return await self._work(auditing(limit))

    async def health(self) -> Health:
        await self._loop().queue.check_servers()
        return _health(self.sync._process_now().known)

    def join(self, connection: Any) -> Any:
        raise no_transactions(self.name)

    async def close(self) -> None:
        self._closed = True
        running = asyncio._get_running_loop()  # None under trio, where no connection was opened
        while self._loops:
            loop, mine = self._loops.popitem()
            if loop is running and mine.pid == os.getpid():
                await mine.close()
            else:
                mine.abandon()
        await aside(self.sync.close)()

    def _loop(self) -> _Loop:
        if self._closed:
            raise StoreUnavailable(f"{self.name} was closed")
        loop = asyncio_loop(self.name)
        mine = self._loops.get(loop)
        if mine is not None and mine.pid == os.getpid():
            return mine
        for one in list(self._loops):  # other threads start and close their loops meanwhile
            gone = self._loops.pop(one, None) if one.is_closed() else None
            if gone is not None:
                gone.abandon()
        if mine is not None:
            _INHERITED.append(mine)
        mine = self._loops[loop] = _Loop(self.sync._process_now())
        return mine

    async def _work(self, query: Generator[Any, Any, T]) -> T:
        item = Item(None, query)
        await self._loop().queue.perform_one(item)
        result: T = item.outcome()
        return result


class _Loop:
    """Everything that belongs to one event loop of one process."""

    def __init__(self, process: _Process) -> None:
        self.pid = os.getpid()
        self.queue = TaskQueue(process.known)
        self.subscriber = AsyncSubscriber(process.known, process.bells)
        self.waiters: dict[bytes, Waiters] = {}  # by digest

    async def close(self) -> None:
        await self.subscriber.close()
        await self.queue.close()

    def abandon(self) -> None:
        if self.pid == os.getpid():
            self.subscriber.abandon()
            self.queue.abandon()


def _address(url: str | Address | None, client: Any, allow_volatile: bool | None, wait_replicas: int | None) -> Address:
    if isinstance(url, Address):
        return url
    if (url is None) is (client is None):
        raise Misconfigured("a Redis store takes either an address or client=, not both and not neither")
    address = parse_url(url) if url is not None else lent_by(client)
    if address.front_ttl is not None:
        raise Misconfigured(
            "front_ttl needs a database after the Redis address: 'redis://cache?front_ttl=5 postgresql://db/app'"
        )
    if allow_volatile is not None:
        address = replace(address, allow_volatile=allow_volatile)
    if wait_replicas is not None:
        address = replace(address, wait_replicas=wait_replicas)
    return address


def _health(known: Knowledge) -> Health:
    address, facts = known.address, list(known.facts.values())
    weakest = min(facts, key=lambda one: (not one.volatile, one.appendfsync == "always"))
    warnings = dict.fromkeys(text for one in facts for text in one.warnings(address.wait_replicas))
    if any(known.lost):
        warnings["the store lost its memory, or a part of it: operations with a lookup ask before they run"] = None
    return Health(
        store=address.name,
        guarantee=weakest.guarantee(address.wait_replicas),
        incarnation=known.incarnation,
        warnings=tuple(warnings),
        facts=(*weakest.listed(), ("servers", str(len(facts)))),
    )
