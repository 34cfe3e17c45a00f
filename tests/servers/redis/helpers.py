"""What the tests of the Redis store share: commands, names of keys, and effects that count."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from samekey import AsyncGuard, Guard
from samekey.core.commands import Ask, Begin, Free, Open, Read, Redact, Renew, Settle, StoreCommand, Take, Testify
from samekey.core.fingerprint import Fingerprint
from samekey.core.key import make_key
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.stores.redis._operators import listing
from samekey.testing.servers import RedisServer

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"


FINGERPRINT = Fingerprint(b"\x01" * 32, "1", (("amount", b"\x02" * 8),))


A, B = "a" * 32, "b" * 32


LEASE, RETAIN = 30.0, 3600.0


def opening(text: str | None = None, *, by: str = A, boundary: str = "opaque", lease: float = LEASE) -> Open:
    return Open(make_key("own", text or uuid4().hex), by, FINGERPRINT, boundary, lease, False)


def settling(seen: Record, state: State = State.COMPLETED, role: Role = Role.HOLDER, by: str = A) -> Settle:
    return Settle(seen, role, state, by, b"done", None, "because", RETAIN)


def raw_key(record: Record | Open) -> str:
    digest = record.key.digest.hex()
    return f"samekey:{{{digest[:2]}}}:{digest}"


def channel(record: Record, database: int = 0) -> str:
    return f"{raw_key(record)}@{database}"


def counted(effects: list[int]) -> int:
    """An effect: which one it was."""
    effects.append(1)
    return len(effects)


def there(record: Record | None) -> Record:
    assert record is not None
    return record


def listing_with(before: Callable[[Any], None]) -> Callable[..., Generator[Any, Any, Any]]:
    """A list as it is made, with something that happens before what it asks next."""

    def played(*arguments: Any) -> Generator[Any, Any, Any]:
        steps: Generator[Any, Any, Any] = listing(*arguments)
        reply = None
        while True:
            try:
                asked = steps.send(reply)
            except StopIteration as over:
                return over.value
            before(asked[0])
            reply = yield asked

    return played


def every_command(store: RedisStore) -> Iterator[tuple[StoreCommand, Record | None]]:
    """One of each kind that will be written, and the record before it."""
    yield opening(), None
    held = store.carry_out(opening())
    yield Begin(held), held
    yield Renew(held, LEASE), held
    for state in (State.COMPLETED, State.CLOSED, State.RELEASED, State.IN_DOUBT):
        held = store.carry_out(opening())
        yield settling(held, state), held
    released = there(store.carry_out(settling(store.carry_out(opening()), State.RELEASED)))
    yield Take(released, B, "opaque", LEASE, False), released
    doubt = there(store.carry_out(settling(store.carry_out(opening()), State.IN_DOUBT)))
    yield Ask(doubt, B, LEASE), doubt
    yield Testify(doubt.key, B, doubt.token, State.COMPLETED, b"late", "late"), there(store.carry_out(Read(doubt.key)))
    doubt = there(store.carry_out(settling(store.carry_out(opening()), State.IN_DOUBT)))
    yield settling(doubt, State.CLOSED, Role.OPERATOR, "ada"), doubt
    ended = there(store.carry_out(settling(store.carry_out(opening()))))
    yield Redact(ended, "ada", "privacy"), ended
    yield Read(ended.key), None
    ended = there(store.carry_out(settling(store.carry_out(opening()))))
    yield Free(ended, "ada", "again"), ended


async def subscribed(server: RedisServer, held: Record, database: int = 0) -> None:
    async with asyncio.timeout(20):
        while not server.call("PUBSUB", "NUMSUB", channel(held, database))[1]:
            await asyncio.sleep(0.01)


def run_once(store: RedisStore) -> None:
    key, effects = uuid4().hex, list[int]()
    with Guard(store) as guard:
        for _ in range(2):
            assert guard.run("own", lambda: counted(effects), key=key, payload=1).result == 1


async def run_once_async(store: AsyncRedisStore) -> None:
    key, effects = uuid4().hex, []

    async def effect() -> int:
        effects.append(1)
        return len(effects)

    async with AsyncGuard(store) as guard:
        for _ in range(2):
            assert (await guard.run("own", effect, key=key, payload=1)).result == 1


PAGE = Path(__file__).parents[3] / "docs" / "redis.md"


(RIGHTS,) = re.findall(r"```text\nACL SETUSER shop on >secret (.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
