"""Beside others who promise one effect per key on Redis, on the same server and in the same run.

Each contender is a process of its own with 32 callers, and they take turns: new keys, then answers that are replayed,
then all 32 with one key at once, and the effects are counted. Whoever has no threads is held beside our tasks, and
the other way round. What is compared is the client's CPU for one operation: the server's is not the library's.
The others are an extra: pip install -e '.[peers]'.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from importlib.metadata import version
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import redis
import redis.asyncio

from bench.figures import Experiment, Figure, Reading, at_least, exactly
from bench.groups.sqlite import PAYLOAD, RESULT
from bench.measure import Effort
from bench.peers import CALLERS, EFFECT_SECONDS, Effect, Run, obey, require, rush_of_new_keys, samekey, taking_turns
from bench.postgres import new_text
from bench.postgres.pairs import Rush, among_tasks, among_threads
from samekey import AsyncGuard
from samekey.testing.servers import redis_server

REPLAYED_KEYS = 100
AsyncEffect = Callable[[], Awaitable[Any]]
AsyncRun = Callable[[str, AsyncEffect], Awaitable[Any]]


# -- contenders with threads -----------------------------------------------------------------------------------


class _Invocation:
    """As much of a Lambda's context as powertools asks for: without it, it complains at every call."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


@contextmanager
def powertools(url: str) -> Iterator[Run]:
    idempotency = import_module("aws_lambda_powertools.utilities.idempotency")
    persistence = import_module("aws_lambda_powertools.utilities.idempotency.persistence.cache")
    client = redis.Redis.from_url(url, max_connections=CALLERS)
    config = idempotency.IdempotencyConfig(event_key_jmespath="key")
    config.register_lambda_context(_Invocation())
    effects: dict[str, Effect] = {}

    @idempotency.idempotent_function(  # type: ignore[untyped-decorator]
        data_keyword_argument="order",
        config=config,
        persistence_store=persistence.CachePersistenceLayer(client=client),
    )
    def charge(*, order: dict[str, Any]) -> Any:
        return effects[order["key"]]()

    def run(key: str, effect: Effect) -> Any:
        effects[key] = effect
        return charge(order={"key": key, **PAYLOAD})

    yield run
    client.close()


# -- contenders with tasks -------------------------------------------------------------------------------------


@asynccontextmanager
async def samekey_async(url: str) -> AsyncIterator[AsyncRun]:
    async with AsyncGuard(url) as guard:

        async def run(key: str, effect: AsyncEffect) -> Any:
            return (await guard.run("charge", effect, key=key, payload=PAYLOAD)).result

        yield run


@asynccontextmanager
async def idempotency_kit(url: str) -> AsyncIterator[AsyncRun]:
    kit = import_module("idempotency_kit")
    storage = import_module("idempotency_kit.infra.storage.redis.aio")
    client = redis.asyncio.Redis.from_url(url)
    coordinator = kit.AsyncIdempotencyCoordinator(
        storage.RedisAsyncIdempotencyRepository(client), kit.IdempotencyDomainService()
    )
    effects: dict[str, AsyncEffect] = {}

    @kit.async_idempotent(  # type: ignore[untyped-decorator]
        operation="charge",
        adapter=kit.JsonResultAdapter(),
        fingerprint_params=("payload",),
        infra_param="coordinator",
    )
    async def charge(*, idempotency_key: str, payload: dict[str, Any], coordinator: Any) -> Any:
        return await effects[idempotency_key]()

    async def run(key: str, effect: AsyncEffect) -> Any:
        effects[key] = effect
        return await charge(idempotency_key=key, payload=PAYLOAD, coordinator=coordinator)

    yield run
    await client.aclose()


@asynccontextmanager
async def pyidempotent(url: str) -> AsyncIterator[AsyncRun]:
    module = import_module("pyidempotent")
    client = redis.asyncio.Redis.from_url(url)
    backend = import_module("pyidempotent.backends.redis").RedisBackend(client)
    effects: dict[str, AsyncEffect] = {}

    def key_of(key: str, payload: dict[str, Any], _key_header: str) -> str:
        return key

    @module.idempotent(backend=backend, key_extractor=key_of)  # type: ignore[untyped-decorator]
    async def charge(key: str, payload: dict[str, Any]) -> Any:
        return await effects[key]()

    async def run(key: str, effect: AsyncEffect) -> Any:
        effects[key] = effect
        return await charge(key, PAYLOAD)

    yield run
    await client.aclose()


THREADED: dict[str, Callable[[str], Any]] = {"samekey.sync": samekey, "powertools": powertools}
TASKED: dict[str, Callable[[str], Any]] = {
    "samekey.async": samekey_async,
    "idempotency_kit": idempotency_kit,
    "pyidempotent": pyidempotent,
}
PEERS = {  # whom each is held beside, the module, and its distribution
    "powertools": ("samekey.sync", "aws_lambda_powertools", "aws-lambda-powertools"),
    "idempotency_kit": ("samekey.async", "idempotency_kit", "idempotency-kit"),
    "pyidempotent": ("samekey.async", "pyidempotent", "pyidempotent"),
}


# -- what a contender does -------------------------------------------------------------------------------------


class Lapped(NamedTuple):
    new: Rush
    replay: Rush
    extra: int  # effects beyond one for each new key


def stand_there(peer: str, url: str, parent: Connection) -> None:
    if peer in TASKED:
        asyncio.run(_stand_there(peer, url, parent))
        return
    with THREADED[peer](url) as run:
        obey(run, laps, parent)


def laps(run: Run, seconds: float) -> Lapped:
    new, extra = rush_of_new_keys(run, seconds)
    effects, keys = list[None](), [new_text() for _ in range(REPLAYED_KEYS)]

    def effect() -> dict[str, object]:
        effects.append(None)
        return RESULT

    for key in keys:
        run(key, effect)
    each = itertools.cycle(keys)
    replay = among_threads(CALLERS, seconds, lambda _: lambda: run(next(each), effect))
    return Lapped(new, replay, extra + len(effects) - len(keys))


async def _stand_there(peer: str, url: str, parent: Connection) -> None:
    async with TASKED[peer](url) as run:
        parent.send("ready")
        while (seconds := parent.recv()) is not None:  # nothing else goes on in this loop meanwhile
            parent.send(await _laps(run, seconds) if seconds else await _effects_of_a_storm(run))


async def _laps(run: AsyncRun, seconds: float) -> Lapped:
    effects, calls = list[None](), list[None]()

    async def effect() -> dict[str, object]:
        effects.append(None)
        return RESULT

    async def new() -> None:
        await run(new_text(), effect)
        calls.append(None)

    fresh = await among_tasks(CALLERS, seconds, lambda _: new)
    keys = [new_text() for _ in range(REPLAYED_KEYS)]
    for key in keys:
        await run(key, effect)
    each = itertools.cycle(keys)
    replayed = await among_tasks(CALLERS, seconds, lambda _: lambda: run(next(each), effect))
    return Lapped(fresh, replayed, len(effects) - len(calls) - len(keys))


async def _effects_of_a_storm(run: AsyncRun) -> int:
    effects, key = list[None](), new_text()

    async def effect() -> dict[str, object]:
        effects.append(None)
        await asyncio.sleep(EFFECT_SECONDS)
        return RESULT

    await asyncio.gather(*(run(key, effect) for _ in range(CALLERS)), return_exceptions=True)
    return len(effects)


# -- side by side ----------------------------------------------------------------------------------------------


def side_by_side(effort: Effort) -> Sequence[Reading]:
    require({module: distribution for _, module, distribution in PEERS.values()})
    names = (*THREADED, *TASKED)
    with redis_server() as server:
        lapped, effects = taking_turns(stand_there, dict.fromkeys(names, server.url()), effort)
    readings = []
    for peer, (ours, _module, distribution) in PEERS.items():
        for what in ("new", "replay"):
            mine, theirs = ([getattr(one, what) for one in lapped[name][1:]] for name in (ours, peer))
            readings.append(_compared(mine, theirs, distribution))
    for name in names:
        extra = sum(one.extra for one in lapped[name])
        readings.append(Reading(effects[name], (), f"effects beyond one per key in all the rest: {extra}"))
    return readings


def _compared(ours: Sequence[Rush], theirs: Sequence[Rush], distribution: str) -> Reading:
    ratios = [other.cpu_microseconds / mine.cpu_microseconds for mine, other in zip(ours, theirs, strict=True)]
    cpu, speed = (
        [statistics.median(getattr(one, name) for one in rushes) for rushes in (ours, theirs)]
        for name in ("cpu_microseconds", "per_second")
    )
    note = f"{cpu[0]:.0f} against {cpu[1]:.0f} us CPU, {speed[0]:.0f} against {speed[1]:.0f} operations/s"
    return Reading(statistics.median(ratios), ratios, f"{note}; {distribution} {version(distribution)}")


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        (
            *(
                Figure(f"redis.{peer}.{what}", "x CPU", f"{name}, {words}; ours: guard.run", at_least(1.0))
                for peer, (_ours, _module, name) in PEERS.items()
                for what, words in (("new", "a new key"), ("replay", "an answer replayed"))
            ),
            Figure("redis.effects.samekey.sync", "effects", f"{CALLERS} threads with one key", exactly(1)),
            Figure("redis.effects.powertools", "effects", f"{CALLERS} threads with one key"),
            Figure("redis.effects.samekey.async", "effects", f"{CALLERS} tasks with one key", exactly(1)),
            Figure("redis.effects.idempotency_kit", "effects", f"{CALLERS} tasks with one key"),
            Figure("redis.effects.pyidempotent", "effects", f"{CALLERS} tasks with one key"),
        ),
        side_by_side,
    ),
)
