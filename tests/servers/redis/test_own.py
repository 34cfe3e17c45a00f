"""What is Redis' own: lost replies, scripts that are gone, servers that forget, restart, fail over or are many."""

from __future__ import annotations

import asyncio
import gc
import inspect
import multiprocessing
import os
import re
import subprocess
import threading
import types
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from socket import SHUT_RDWR
from typing import Any
from uuid import uuid4

import pytest
import redis
import redis.asyncio

from samekey import Absent, Asks, AsyncGuard, Guard, Keyed, Repeatable
from samekey.core.commands import Ask, Begin, Free, Open, Read, Redact, Renew, Settle, StoreCommand, Take, Testify, Wait
from samekey.core.errors import Misconfigured, RecordUnreadable, StoreUnavailable
from samekey.core.fingerprint import Fingerprint
from samekey.core.key import make_key
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.drivers.redis.address import lent_by, parse_url
from samekey.drivers.redis.connect import ANSWER_SECONDS, CONNECT_SECONDS
from samekey.drivers.redis.wire import slot_of
from samekey.ops import Ops
from samekey.stores import _waiting
from samekey.stores.redis import AsyncRedisStore, RedisStore, _discovery, _records, _servers
from samekey.stores.redis._batches import REASK_SECONDS, REDIRECTS_MAX
from samekey.stores.redis._front import RedisFront
from samekey.stores.redis._operators import listing
from samekey.stores.redis._requests import READ, SLOTS
from samekey.stores.redis.store import _Loop
from samekey.testing.servers import NoServer, RedisServer, flavours, redis_cluster, redis_server, until
from tests.servers.proxy import FaultProxy
from tests.stores.files import many_files

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
FINGERPRINT = Fingerprint(b"\x01" * 32, "1", (("amount", b"\x02" * 8),))
A, B = "a" * 32, "b" * 32
LEASE, RETAIN = 30.0, 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:  # from a wheel that the tests depend on: where it is missing, they fail
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    ours = RedisStore(server.url())
    yield ours
    ours.close()


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


# -- a value that is damaged -----------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [(), (State.STARTED,)], ids=["walk", "index"])
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_a_damaged_record_does_not_hide_the_others_from_an_operator(server, store, states, limit):
    """Each is named once, by its key or by where Redis has it, and the rest is listed."""
    server.call("FLUSHALL")
    held = [store.carry_out(opening(f"o-{number}")) for number in range(7)]
    server.call("SETRANGE", raw_key(held[2]), 120, "{" * 40)  # whose it is can be read
    server.call("SET", raw_key(held[4]), "x")
    server.call("SET", raw_key(held[5]), "")
    server.call("SET", raw_key(held[6]), "y" * 300)
    named: list[str] = []
    listed: list[Record] = []
    before = None
    for _ in range(20):
        page = Ops(store).list_records(Query(states=states, limit=limit, before=before))
        listed += page.records
        named += map(str, page.unreadable)
        before = page.before
        if before is None:
            break

    assert [record.key for record in listed] == [held[number].key for number in (3, 1, 0)]
    damaged = [2, 4, 6] if not states else [2, 4, 5, 6]
    assert sorted(at for at, one in enumerate(held) if any(raw_key(one) in text for text in named)) == damaged
    assert len(named) == len(damaged)


# -- a list while its records change ---------------------------------------------------------------------------


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


@pytest.mark.parametrize("gone", [1, 5, 12])
def test_what_goes_while_a_list_is_made_does_not_end_it(server, store, monkeypatch, gone):
    """Freed, or past its retention, between the look at all keys and the read of some: the next ones come instead."""
    server.call("FLUSHALL")
    ended = [there(store.carry_out(settling(store.carry_out(opening(f"o-{number}"))))) for number in range(20)]
    leaving = [raw_key(one) for one in reversed(ended[-gone:])]

    def before_a_read(asked: Any) -> None:
        if asked.script is READ and leaving:
            server.call("DEL", *leaving)
            leaving.clear()

    monkeypatch.setattr("samekey.stores.redis.store.listing", listing_with(before_a_read))
    listed: list[Record] = []
    before = None
    for _ in range(20):
        page = Ops(store).list_records(Query(limit=5, before=before))
        listed += page.records
        before = page.before
        if before is None:
            break

    assert [record.key for record in listed] == [one.key for one in reversed(ended[:-gone])]


# -- a reply that is lost --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("cuts", [1, 3])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_command_whose_reply_was_lost_recognises_itself(server, store, colour, cuts):
    """The server did it and nobody heard: asked again it is not done twice, and says that it was us."""

    async def repeated(command: StoreCommand) -> Record | None:
        ours = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
        try:
            await ours.carry_out(Read(make_key("own", "warm")))
            proxy.lose_replies(cuts)
            return await ours.carry_out(command)  # type: ignore[no-any-return]
        finally:
            await ours.close()

    with FaultProxy(server.port) as proxy:
        through = RedisStore(f"redis://127.0.0.1:{proxy.port}")
        for command, before in every_command(store):
            audits = len(store.audit(1000))
            if colour == "sync":
                through.carry_out(Read(make_key("own", "warm")))
                proxy.lose_replies(cuts)
                after = through.carry_out(command)
            else:
                after = asyncio.run(repeated(command))

            assert proxy.to_lose == 0
            if isinstance(command, Free):
                assert after is None
            elif before is None:
                assert (after.version, after.attempt) == (1, A) if isinstance(command, Open) else after is not None
            else:
                once = 2 if isinstance(command, (Renew, Ask)) else 1  # these say the same again
                assert before.version < after.version <= before.version + once + (cuts - 1) * (once - 1)
                assert len(after.moves) <= len(before.moves) + 1
            if isinstance(command, (Redact, Free)) or (isinstance(command, Settle) and command.role is Role.OPERATOR):
                assert len(store.audit(1000)) == audits + 1
        through.close()


def test_a_lost_claim_runs_its_effect_once(server):
    """Through the guard, with every second reply lost: one effect for each key, and one answer."""
    effects: list[int] = []
    with FaultProxy(server.port) as proxy, Guard(f"redis://127.0.0.1:{proxy.port}") as guard:
        guard.run("own", lambda: None, key=uuid4().hex, payload=1)
        for number in range(10):
            key = uuid4().hex
            proxy.lose_replies(1)
            first = guard.run("own", lambda: counted(effects), key=key, payload=1)
            again = guard.run("own", lambda: counted(effects), key=key, payload=1)

            assert (first.result, first.replayed) == (number + 1, False)
            assert (again.result, again.replayed) == (number + 1, True)


def test_scripts_that_are_gone_are_sent_again(server, store):
    """SCRIPT FLUSH between any two commands costs one more round trip."""
    for command, _ in every_command(store):
        server.call("SCRIPT", "FLUSH")
        store.carry_out(command)

    assert server.call("SCRIPT", "EXISTS", "0" * 40) == [0]


# -- what is written -----------------------------------------------------------------------------------------------


def test_only_a_settle_lets_redis_forget(server, store):
    """A held or doubted record has no TTL; a settled one has its retention, and a retaken one has none again."""
    held = store.carry_out(opening())
    assert server.call("PTTL", raw_key(held)) == -1
    released = there(store.carry_out(settling(held, State.RELEASED)))
    assert 0 < server.call("PTTL", raw_key(held)) <= RETAIN * 1000
    taken = there(store.carry_out(Take(released, B, "opaque", LEASE, False)))
    assert server.call("PTTL", raw_key(held)) == -1
    doubt = there(store.carry_out(settling(taken, State.IN_DOUBT, by=B)))
    assert server.call("PTTL", raw_key(held)) == -1
    store.carry_out(settling(doubt, State.COMPLETED, Role.LOOKUP))
    assert 0 < server.call("PTTL", raw_key(held)) <= RETAIN * 1000


def test_names_that_a_client_made_long_are_not_remembered(server):
    """64 of them in each request: thousands of such requests would stay in the memory of this process."""
    remembered = _records._intent_line, _records._intent_of
    for one in remembered:
        one.cache_clear()
    with Guard(server.url()) as guard:
        for key in (uuid4().hex, uuid4().hex):
            payload = {f"{key}{number}" + "\N{GRINNING FACE}" * 80: number for number in range(64)}
            answers = [guard.run("own", lambda: "done", key=key, payload=payload) for _ in range(2)]
            assert [answer.replayed for answer in answers] == [False, True]
            record = guard.peek("own", key)
            assert record is not None
            assert dict(record.fields).keys() == payload.keys()

    assert [one.cache_info().currsize for one in remembered] == [0, 0]


def test_one_string_per_key_and_nothing_left_behind(server, store):
    """A settled key is one string; the set of unsettled keys no longer knows it."""
    held = store.carry_out(opening())
    index = raw_key(held).rpartition(":")[0] + ":unsettled"
    assert held.key.digest.hex() in server.call("ZRANGE", index, 0, -1)

    store.carry_out(settling(held))

    assert server.call("TYPE", raw_key(held)) == "string"
    assert held.key.digest.hex() not in server.call("ZRANGE", index, 0, -1)


@pytest.mark.parametrize("value", ["", "hello", "k2" + "0" * 200, "k1" + "x" * 300])
def test_a_foreign_value_is_refused_loudly(server, store, value):
    """Whatever somebody else wrote at our key is no record, and is never overwritten."""
    command = opening()
    server.call("SET", raw_key(command), value)

    with pytest.raises(RecordUnreadable):
        store.carry_out(command)

    assert server.call("GET", raw_key(command)) == value
    server.call("DEL", raw_key(command))


def test_a_token_grows_although_the_clock_was_set_back(server, store):
    """A token from the future, as after a clock that ran ahead: the next holder's is higher all the same."""
    held = store.carry_out(opening())
    ahead = held.token + 10**12
    value = server.call("GET", raw_key(held))
    server.call("SET", raw_key(held), f"{value[:12]}{ahead:016d}{value[28:]}")
    seen = there(store.carry_out(Read(held.key)))
    released = there(store.carry_out(settling(seen, State.RELEASED)))

    taken = there(store.carry_out(Take(released, B, "opaque", LEASE, False)))

    assert taken.token == ahead + 1
    assert taken.moves[-1].token == ahead + 1


def test_a_lease_that_ended_on_the_way_is_judged_by_the_server(server, store):
    """The client's guess of the time decides nothing: the server says whether the lease lives."""
    held = store.carry_out(opening(lease=0.05))
    known = store._process.known
    known._clock_offset -= 3600.0  # an hour behind: by this guess the lease lives
    until(lambda: not there(store.carry_out(Read(held.key))).lease_live)
    known._clock_offset -= 3600.0

    renewed = there(store.carry_out(Renew(held, LEASE)))

    assert (renewed.version, renewed.lease_live) == (held.version, False)
    known._clock_offset += 7200.0 * 2  # far ahead: by this guess a live one is dead
    live = store.carry_out(opening())
    known._clock_offset += 7200.0 * 2
    doubted = there(store.carry_out(settling(live, State.IN_DOUBT, Role.PASSER_BY, B)))
    assert doubted.state is State.STARTED


# -- together --------------------------------------------------------------------------------------------------


async def test_concurrent_commands_travel_together(server):
    """Thirty at once are three pipelines, not thirty: the first goes alone, the server need not wait for the last."""
    with FaultProxy(server.port) as proxy:
        store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
        await store.carry_out(opening())  # connected, and the server knows the script
        proxy.sent.clear()

        await asyncio.gather(*(store.carry_out(opening()) for _ in range(30)))

        assert len(proxy.sent) <= 3
        await store.close()


async def test_an_answer_on_its_way_is_not_shared_with_who_asks_after_it_was_asked_for(server):
    """It may be older than the question: a waiter that was rung in between would sleep on."""
    with FaultProxy(server.port) as proxy:
        store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
        held = await store.carry_out(opening())
        await store.carry_out(Read(held.key))  # the server knows the script
        proxy.sent.clear()
        proxy.hold()
        first = asyncio.create_task(store.carry_out(Read(held.key)))
        await asyncio.sleep(0)
        later = [asyncio.create_task(store.carry_out(Read(held.key))) for _ in range(20)]
        await asyncio.sleep(0)
        proxy.release()

        assert [there(one).fence for one in await asyncio.gather(first, *later)] == [held.fence] * 21
        assert len(proxy.sent) == 2  # the first, and one for all who came after it
        await store.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # asyncio's own: loops were closed over open connections
def test_a_store_outlives_the_loop_that_used_it(server):
    """A second asyncio.run finds new connections, whatever became of those of the first."""
    store = AsyncRedisStore(server.url())
    commands = [opening(), opening()]

    held = [asyncio.run(store.carry_out(command)) for command in commands]

    assert [one.key for one in held] == [command.key for command in commands]
    asyncio.run(store.close())
    del store
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("socket", [None, "refuses"])
def test_a_connection_of_a_loop_that_is_gone_may_have_no_socket_left(server, monkeypatch, socket):
    """TLS, when the server has hung up; and uvloop, which closes its own and lets nobody else do it."""

    class Refusing:
        def shutdown(self, how: int) -> None:
            raise TypeError("transport sockets do not support shutdown() method")

    store = AsyncRedisStore(server.url())
    asyncio.run(store.carry_out(opening()))
    (before,) = store._loops.values()
    (link,) = before.queue.servers.connections.values()
    transport = link.wire._transport
    mine = transport.get_extra_info("socket")
    with monkeypatch.context() as patched:
        patched.setitem(transport._extra, "socket", None if socket is None else Refusing())
        command = opening()
        assert asyncio.run(store.carry_out(command)).key == command.key
    mine.shutdown(SHUT_RDWR)
    asyncio.run(store.close())
    del before, link, transport, store
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_loops_of_several_threads_may_end_at_once(server, monkeypatch):
    """Two threads begin a loop each, and both find the same ones gone."""
    store = AsyncRedisStore(server.url())
    gone = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    for loop in gone:
        loop.run_until_complete(store.carry_out(opening()))
    for loop in gone:
        loop.close()
    abandon = _Loop.abandon

    def meanwhile(links: _Loop) -> None:
        monkeypatch.setattr(_Loop, "abandon", abandon)
        abandon(links)
        thread = threading.Thread(target=asyncio.run, args=(store.carry_out(opening()),))
        thread.start()
        thread.join()

    monkeypatch.setattr(_Loop, "abandon", meanwhile)
    command = opening()

    assert asyncio.run(store.carry_out(command)).key == command.key
    assert not set(gone) & set(store._loops)
    asyncio.run(store.close())
    del gone, loop
    gc.collect()


@types.coroutine
def _rest(begun: Any, waits_for: Any) -> Generator[Any, Any, None]:
    with suppress(StopIteration):
        while True:
            try:
                said = yield waits_for
            except BaseException as error:
                waits_for = begun.throw(error)
            else:
                waits_for = begun.send(said)


def _at_once(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """As asyncio.eager_task_factory of Python 3.12: a watch has run as far as it can when its task is there."""
    if coroutine.__name__ != "_keep_watch":
        return asyncio.Task(coroutine, loop=loop, **options)
    return asyncio.Task(_rest(coroutine, coroutine.send(None)), loop=loop, **options)


async def test_a_loop_that_begins_its_tasks_at_once_leaves_nobody_waiting(server):
    """asyncio.eager_task_factory: what looks for all who wait must not go home before the first of them is there."""
    store = AsyncRedisStore(server.url())
    held = there(await store.carry_out(opening()))
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", _at_once))

    async with asyncio.timeout(20):
        assert there(await store.wait(Wait(held), 0.01)).state is State.STARTED
        waiting = [asyncio.create_task(store.wait(Wait(held), 15.0)) for _ in range(3)]
        await store.carry_out(Settle(held, Role.HOLDER, State.COMPLETED, A, b"done", None, "", RETAIN))
        assert [there(await one).result for one in waiting] == [b"done"] * 3
    await store.close()


async def test_whoever_stops_waiting_stops_no_command_and_gets_no_one_else_s_answer(server):
    with FaultProxy(server.port) as proxy:
        store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
        await store.carry_out(Read(make_key("own", "warm")))
        commands = [opening() for _ in range(10)]
        proxy.hold()
        tasks = [asyncio.create_task(store.carry_out(command)) for command in commands]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0)
        proxy.release()

        assert [there(await task).key for task in tasks[1::2]] == [one.key for one in commands[1::2]]
        assert all([there(await store.carry_out(Read(one.key))).attempt == A for one in commands])
        await store.close()


def test_concurrent_threads_travel_together(server):
    """While one waits for its answer the others gather, and go together when it has come."""
    with FaultProxy(server.port) as proxy, ThreadPoolExecutor(20) as pool:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}")
        store.carry_out(Read(make_key("own", "warm")))
        proxy.sent.clear()
        proxy.hold()
        futures = [pool.submit(store.carry_out, opening()) for _ in range(20)]
        until(lambda: len(store._process.queue._queue) == 19)
        proxy.release()

        assert all(future.result().attempt == A for future in futures)
        assert len(proxy.sent) == 2
        store.close()


def test_five_hundred_waiters_cost_a_few_commands(server, store):
    """One subscription and a handful of reads for a process and a key, however many wait; none when they wake."""

    async def wait_all() -> list[Record | None]:
        ours = AsyncRedisStore(server.url())
        held = await ours.carry_out(opening())
        server.call("CONFIG", "RESETSTAT")
        tasks = [asyncio.create_task(ours.wait(Wait(held), 20.0)) for _ in range(500)]
        while not server.call("PUBSUB", "NUMSUB", channel(held))[1]:
            await asyncio.sleep(0.01)
        store.carry_out(settling(held))
        replies = list(await asyncio.gather(*tasks))
        assert calls(server, "subscribe") == 1
        assert calls(server, "evalsha") + calls(server, "eval") <= 10  # the settle is one of them
        await ours.close()
        return replies

    replies = asyncio.run(wait_all())

    assert {there(reply).result for reply in replies} == {b"done"}


def test_a_process_with_many_open_files_hears_over_one_connection(server, store, monkeypatch):
    """The subscriber knows no limit to the number of a file; it used to connect again and again behind 1,024."""
    monkeypatch.setattr(_waiting, "REREAD_SECONDS", 60.0)
    held = store.carry_out(opening())
    with many_files(), ThreadPoolExecutor(1) as pool:
        other = RedisStore(server.url())
        waiting = pool.submit(other.wait, Wait(held), 5.0)
        until(lambda: server.call("PUBSUB", "NUMSUB", channel(held))[1])
        before = int(server.info("total_connections_received"))
        store.carry_out(settling(held))
        assert there(waiting.result()).result == b"done"

        assert int(server.info("total_connections_received")) - before == 1  # this very look
        other.close()


def test_what_nobody_can_be_told_is_not_kept():
    """A subscriber that cannot connect (no more clients, no right) has nothing to say later: it says it all anew."""
    with redis_server() as crowded:
        ours = RedisStore(crowded.url())
        held = ours.carry_out(opening())
        crowded.call("CONFIG", "SET", "maxclients", "1")
        for _ in range(200):
            assert there(ours.wait(Wait(held), 0.0)).fence == held.fence

        assert len(ours._process.subscriber._to_send) <= 1
        ours.close()


async def test_those_who_wait_together_are_each_told_what_is_news_to_it(server, store):
    """Other sights of the record, other patience, one who leaves: one vigil, and none is told another's news."""
    ours = AsyncRedisStore(server.url())
    first = await ours.carry_out(opening())
    released = there(await ours.carry_out(settling(first, State.RELEASED)))
    taken = there(await ours.carry_out(Take(released, B, "opaque", LEASE, False)))
    many = [asyncio.create_task(ours.wait(Wait(taken), 20.0)) for _ in range(5)]
    leaving = asyncio.create_task(ours.wait(Wait(taken), 20.0))
    late, patient, hasty = (
        asyncio.create_task(ours.wait(Wait(seen), timeout))
        for seen, timeout in ((first, 20.0), (released, 20.0), (taken, 0.0))
    )

    assert there(await late).fence == there(await patient).fence == taken.fence
    assert there(await hasty).state is State.STARTED
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not any(task.done() for task in many)
    assert len(ours._loop().waiters) == 1

    store.carry_out(settling(taken, by=B))
    assert {there(reply).result for reply in await asyncio.gather(*many)} == {b"done"}
    await asyncio.sleep(0)  # a turn of the loop: the vigil is over after its last one
    assert not ours._loop().waiters
    await ours.close()


async def test_tasks_are_told_by_their_own_loop(server, store, monkeypatch):
    """No thread between the server and the loop, no second look; a connection that was lost is made again."""
    monkeypatch.setattr("samekey.stores._waiting.REREAD_SECONDS", 60.0)  # whoever is answered was told
    ours = AsyncRedisStore(server.url())
    subscriber = ours._loop().subscriber
    before = {one.ident for one in threading.enumerate()}
    for lost in (False, True):
        held = await ours.carry_out(opening())
        waiting = asyncio.create_task(ours.wait(Wait(held), 60.0))
        await heard_by(server, held)
        if lost:
            wire = subscriber._wire
            server.call("CLIENT", "KILL", "TYPE", "pubsub")
            async with asyncio.timeout(20):
                while subscriber._wire in (wire, None):
                    await asyncio.sleep(0.01)
            await heard_by(server, held)
        await asyncio.to_thread(store.carry_out, settling(held))
        async with asyncio.timeout(20):
            assert there(await waiting).result == b"done"
    begun = [one.name for one in threading.enumerate() if one.ident not in before]
    assert "samekey-subscriber" not in begun
    await ours.close()
    assert subscriber._wire is None


async def test_a_subscriber_in_a_loop_goes_home_when_nobody_waits(server, store, monkeypatch):
    """And comes again with the next who does."""
    monkeypatch.setattr("samekey.stores.redis._subscriber.IDLE_SECONDS", 0.05)
    ours = AsyncRedisStore(server.url())
    for _ in range(2):
        held = await ours.carry_out(opening())
        waiting = asyncio.create_task(ours.wait(Wait(held), 20.0))
        await heard_by(server, held)
        await asyncio.sleep(0.2)  # somebody waits: it stays
        assert ours._loop().subscriber._wire is not None
        await asyncio.to_thread(store.carry_out, settling(held))
        assert there(await waiting).result == b"done"
        async with asyncio.timeout(20):
            while ours._loop().subscriber._wire is not None:
                await asyncio.sleep(0.01)
    await ours.close()


async def test_a_loop_that_cannot_listen_looks_again(server, store):
    """A user without the right to subscribe, and a server that is away for a while: slower, never wrong."""
    server.call("ACL", "SETUSER", "deaf", "on", ">secret", *RIGHTS.split(), "-subscribe")
    ours = AsyncRedisStore(f"redis://deaf:secret@127.0.0.1:{server.port}/0")
    held = await ours.carry_out(opening())
    waiting = asyncio.create_task(ours.wait(Wait(held), 20.0))
    await ours.carry_out(Read(held.key))
    await asyncio.to_thread(store.carry_out, settling(held))
    assert there(await waiting).result == b"done"
    await ours.close()


async def heard_by(server: RedisServer, held: Record, database: int = 0) -> None:
    async with asyncio.timeout(20):
        while not server.call("PUBSUB", "NUMSUB", channel(held, database))[1]:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_what_is_told_in_one_database_is_not_heard_in_another(server, colour):
    """One server, two applications, the same operation and key: each waiter is told what became of its own."""
    ours, theirs = RedisStore(server.url(4)), RedisStore(server.url(5))
    waiter = AsyncRedisStore(server.url(4))
    command = opening()
    held, other = ours.carry_out(command), theirs.carry_out(command)
    waiting = asyncio.create_task(
        waiter.wait(Wait(held), 20.0) if colour == "async" else asyncio.to_thread(waiter.sync.wait, Wait(held), 20.0)
    )
    await heard_by(server, held, 4)
    theirs.carry_out(Settle(other, Role.HOLDER, State.COMPLETED, A, b"theirs", None, "", RETAIN))
    done, _ = await asyncio.wait([waiting], timeout=0.1)  # a message that were heard would be here by now
    assert not done
    ours.carry_out(Settle(held, Role.HOLDER, State.COMPLETED, A, b"ours", None, "", RETAIN))

    assert there(await waiting).result == b"ours"
    ours.close()
    theirs.close()
    await waiter.close()


def test_a_front_tells_those_of_its_own_database(server):
    digest = uuid4().bytes
    rung = {number: threading.Event() for number in (4, 5)}
    fronts = {number: RedisFront(server.url(number)) for number in rung}
    teller = RedisFront(server.url(5))
    with ExitStack() as ears:
        for number, front in fronts.items():
            front.bells.add(digest, Ringing(rung[number]))
            ears.enter_context(front.watching(digest))
        until(lambda: all(server.call("PUBSUB", "NUMSUB", *channels_of(digest))[1::2]))
        until(lambda: all(one.is_set() for one in rung.values()))  # rung when they began to listen
        for one in rung.values():
            one.clear()
        teller.put(digest, b"\x00" * 64, 2e9)

        assert rung[5].wait(20)
        assert not rung[4].is_set()
    for front in (*fronts.values(), teller):
        front.close()


class Ringing:
    def __init__(self, rung: threading.Event) -> None:
        self.ring = rung.set


def channels_of(digest: bytes) -> list[str]:
    return [f"samekey:{{{digest.hex()[:2]}}}:{digest.hex()}@{number}" for number in (4, 5)]


async def test_a_vigil_ends_with_the_last_who_leaves(server):
    ours = AsyncRedisStore(server.url())
    held = await ours.carry_out(opening())
    waiting = [asyncio.create_task(ours.wait(Wait(held), 20.0)) for _ in range(3)]
    await ours.carry_out(Read(held.key))  # a trip to the server: they surely wait
    for task in waiting:
        task.cancel()

    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * 3
    async with asyncio.timeout(10):
        while ours._loop().waiters:
            await ours.carry_out(Read(held.key))
    await ours.close()


def calls(server: RedisServer, command: str) -> int:
    told = server.info(f"cmdstat_{command}")
    return int(told.partition("calls=")[2].partition(",")[0] or 0)


# -- servers that forget -------------------------------------------------------------------------------------------


@pytest.fixture
def wiped() -> Iterator[RedisServer]:
    """A server that nobody else needs afterwards."""
    with redis_server() as running:
        yield running


def test_a_wiped_server_is_noticed_at_the_next_claim(wiped):
    """FLUSHALL under our hands: what is claimed since says so, for everybody who still knew the old store."""
    server = wiped
    knew, knew_too = RedisStore(server.url()), RedisStore(server.url())
    assert not knew.carry_out(opening()).after_loss
    assert not knew_too.carry_out(opening()).after_loss

    server.call("FLUSHALL")

    claimed = [knew.carry_out(opening(str(number))) for number in range(50)]
    assert all(one.after_loss for one in claimed)
    assert knew_too.carry_out(opening()).after_loss
    assert any("lost its memory" in warning for warning in knew.health().warnings)
    newcomer = RedisStore(server.url())
    assert there(newcomer.carry_out(Read(claimed[0].key))).after_loss
    for one in (knew, knew_too, newcomer):
        one.close()


def test_after_a_loss_an_effect_that_can_be_asked_about_is_asked_about(wiped):
    """Asks asks before it runs, because the claim that is gone may have been its own."""
    server = wiped
    asked: list[str] = []

    def lookup(record: Record) -> Absent:
        asked.append(record.key.text)
        return Absent()

    guard = Guard(server.url())
    boundary = Asks(lookup, believe_absent_after=0.001)
    guard.run("own", lambda: 1, key="before", payload=1, boundary=boundary)
    assert asked == []

    server.call("FLUSHALL")
    guard.run("own", lambda: 2, key="after", payload=1, boundary=boundary)

    assert asked == ["after"]
    guard.close()


def test_a_restart_may_have_forgotten_something():
    """Killed with everysec it keeps its records, but nobody can tell which of the last are missing."""
    with redis_server() as server:
        store = RedisStore(server.url())
        held = store.carry_out(opening("kept"))
        before = store.health().incarnation
        until(lambda: server.info("aof_buffer_length") == "0")  # while the disk is busy, Redis holds it back
        server.restart(kill=True)

        assert there(store.carry_out(Read(held.key))).fence == held.fence
        assert store.health().incarnation != before
        assert store.carry_out(opening("new")).after_loss
        assert there(store.carry_out(settling(held))).state is State.COMPLETED
        store.close()


def test_a_restart_of_a_server_that_syncs_always_forgets_nothing():
    with redis_server(appendfsync="always") as server:
        store = RedisStore(server.url())
        held = store.carry_out(opening("kept"))
        server.restart(kill=True)

        assert there(store.carry_out(Read(held.key))).fence == held.fence
        assert not store.carry_out(opening("new")).after_loss
        assert "of its machine" in store.health().guarantee
        store.close()


def test_commands_wait_for_a_server_that_restarts():
    """Whoever lost its answer asks again until the server is back."""
    with redis_server() as server:
        store = RedisStore(server.url())
        held = store.carry_out(opening())
        with FaultProxy(server.port) as proxy, ThreadPoolExecutor(1) as pool:
            through = RedisStore(f"redis://127.0.0.1:{proxy.port}")
            through.carry_out(Read(held.key))
            proxy.hold()
            settled = pool.submit(through.carry_out, settling(held))
            until(lambda: through._process.queue._leader is not None)
            until(lambda: server.info("aof_buffer_length") == "0")
            server.stop(kill=True)
            proxy.release()
            server.start()

            assert there(settled.result()).state is State.COMPLETED
            through.close()
        store.close()


def test_a_server_that_is_not_there_is_told_at_once(server):
    with redis_server() as gone:
        url = gone.url()
    with pytest.raises(StoreUnavailable):
        RedisStore(url).carry_out(opening())


@pytest.mark.parametrize(
    "settings",
    [
        {"appendonly": "no"},
        {"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"},
        {"maxmemory": "100mb", "maxmemory_policy": "volatile-ttl"},
    ],
    ids=["no-aof", "allkeys-lru", "volatile-ttl"],
)
def test_a_server_that_forgets_is_refused_for_what_must_not_run_twice(settings):
    """Opaque and Asks are refused, before anything is claimed; what may run again, or who says so, is not."""
    with redis_server(**settings) as server:
        with Guard(server.url()) as guard:
            with pytest.raises(Misconfigured, match="allow_volatile"):
                guard.run("own", lambda: 1, key="opaque", payload=1)
            with pytest.raises(Misconfigured, match="Keyed, Repeatable, Atomic"):
                guard.run("own", lambda: 1, key="asks", payload=1, boundary=Asks(lambda record: Absent()))
            assert server.call("KEYS", "samekey:*:????????????????????????????????") == []
            assert guard.run("own", lambda: 1, key="keyed", payload=1, boundary=Keyed()).result == 1
            assert guard.run("own", lambda: 1, key="repeatable", payload=1, boundary=Repeatable()).result == 1
        with Guard(server.url() + "?allow_volatile=1") as guard:
            assert guard.run("own", lambda: 1, key="allowed", payload=1).result == 1
        with Guard(RedisStore(server.url(), allow_volatile=True)) as guard:
            assert guard.run("own", lambda: 1, key="allowed too", payload=1).result == 1
        store = RedisStore(server.url())
        assert "no claim is safe here" in store.health().guarantee
        store.close()


def test_a_full_server_writes_nothing():
    """Out of memory without eviction: the claim fails as a whole, and what is there stays."""
    with redis_server(maxmemory="100mb", maxmemory_policy="noeviction") as server:
        store = RedisStore(server.url())
        held = store.carry_out(opening("kept"))
        server.call("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(StoreUnavailable, match="memory"):
            store.carry_out(opening("refused"))

        assert store.carry_out(Read(make_key("own", "refused"))) is None
        server.call("CONFIG", "SET", "maxmemory", "100mb")
        assert there(store.carry_out(settling(held))).state is State.COMPLETED
        assert [one.key.text for one in store.list(Query(states=(State.STARTED,)))] == []
        store.close()


def test_an_address_that_looks_like_a_server_s_word_is_no_such_word(tmp_path):
    """A server that is not there is told as that, whatever its path, host or user is called."""
    for word in ("OOM", "NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT", "ACL failure"):
        with pytest.raises(StoreUnavailable, match=r"[Nn]o such file") as told:
            RedisStore(f"unix://{tmp_path}/{word.replace(' ', '%20')}/redis.sock").carry_out(opening())

        assert "memory" not in str(told.value)


@pytest.mark.parametrize("flavour", sorted(flavours()))
def test_what_a_script_may_not_do_is_told_as_that_at_once(flavour):
    """Each server has other words for it; and a user called READONLY is no server that was demoted."""
    with redis_server(flavour) as server:
        server.call("ACL", "SETUSER", "READONLY", "on", ">secret", *RIGHTS.split(), "-zadd")
        store = RedisStore(f"redis://READONLY:secret@127.0.0.1:{server.port}/0")
        with pytest.raises(Misconfigured, match="lacks a right that the store needs"):
            store.carry_out(opening())
        server.call("ACL", "SETUSER", "READONLY", "-evalsha", "-eval")

        with pytest.raises(Misconfigured, match="lacks a right that the store needs"):
            store.carry_out(Read(make_key("own", "any")))
        assert store._process.queue.servers.connections  # nobody hung up to look for another master
        store.close()


@pytest.mark.parametrize("flavour", sorted(flavours()))
def test_a_script_that_finds_no_room_is_told_as_a_full_memory(flavour):
    with redis_server(flavour, maxmemory="100mb", maxmemory_policy="noeviction") as server:
        store = RedisStore(server.url())
        store.carry_out(opening())
        server.call("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(StoreUnavailable, match="memory"):
            store.carry_out(opening())
        store.close()


# -- replicas, sentinels, clusters -----------------------------------------------------------------------------------


def test_a_replica_is_never_asked(server):
    with redis_server() as master, master.replica() as copy, pytest.raises(StoreUnavailable, match="replica"):
        RedisStore(copy.url()).carry_out(opening())


def test_wait_replicas_counts_only_what_is_on_a_replica():
    """With a replica a claim is on it when it counts; without one nothing is claimed."""
    with redis_server() as master:
        store = RedisStore(master.url() + "?wait_replicas=1")
        with master.replica() as copy:
            held = store.carry_out(opening("both"))
            assert copy.call("EXISTS", raw_key(held)) == 1
            assert "replica(s) before it counts" in store.health().guarantee
        with pytest.raises(StoreUnavailable, match="not on 1 replica"):
            store.carry_out(opening("alone"))
        assert there(store.carry_out(Read(held.key))).fence == held.fence
        store.close()


def replicated_commands(store: RedisStore) -> Iterator[StoreCommand]:
    """A writing command of each kind that a lost reply may strike, each on a record of its own."""
    yield Take(there(store.carry_out(settling(store.carry_out(opening()), State.RELEASED))), B, "opaque", LEASE, False)
    yield Begin(store.carry_out(opening()))
    yield settling(store.carry_out(opening()))
    yield Testify((late := store.carry_out(opening())).key, B, late.token, State.COMPLETED, b"late", "too late")


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RedisServer, FaultProxy, Any]]:
    """A master behind a proxy, and a way to have its one replica fall behind."""
    monkeypatch.setattr(_servers, "WAIT_MILLISECONDS", 100)
    with redis_server() as master, master.replica() as copy, FaultProxy(master.port) as proxy:

        def fall_behind() -> None:
            until(lambda: copy.in_step_with(master))
            os.kill(copy.pid, SIGSTOP)

        try:
            yield master, proxy, fall_behind
        finally:
            os.kill(copy.pid, SIGCONT)


def test_what_was_written_by_a_lost_command_waits_for_its_replicas_too(behind):
    """Over the next connection a server has nothing to wait for: it is written once more, or does not count."""
    master, proxy, fall_behind = behind
    through = RedisStore(f"redis://127.0.0.1:{proxy.port}?wait_replicas=1")
    commands = list(replicated_commands(RedisStore(master.url())))
    through.carry_out(Read(make_key("own", "warm")))
    fall_behind()
    for command in commands:
        proxy.lose_replies(1)

        with pytest.raises(StoreUnavailable, match="not on 1 replica"):
            through.carry_out(command)

        assert proxy.to_lose == 0
    through.close()


async def test_what_is_said_again_waits_for_its_replicas_again(behind):
    """A write that did not count, as no replica had it, does not count either because it is found there."""
    master, _, fall_behind = behind
    plain = RedisStore(master.url())
    store = AsyncRedisStore(master.url() + "?wait_replicas=1")
    begun, settled = plain.carry_out(opening()), plain.carry_out(opening())
    await store.carry_out(Read(make_key("own", "warm")))
    fall_behind()
    for command in (Begin(begun), settling(settled)):
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="not on 1 replica"):
                await store.carry_out(command)

    assert there(plain.carry_out(Read(begun.key))).begun_at is not None
    assert there(plain.carry_out(Read(settled.key))).state is State.COMPLETED
    await store.close()


def test_what_is_said_again_counts_when_its_replica_has_it():
    """And says the same: state, lease, answer and moves are as they were."""
    with redis_server() as master, master.replica() as copy:
        store = RedisStore(master.url() + "?wait_replicas=1")
        held = store.carry_out(opening())
        begun = [there(store.carry_out(Begin(held))) for _ in range(2)]
        settled = [there(store.carry_out(settling(held))) for _ in range(2)]

        for first, again in (begun, settled):
            assert again.version == first.version + 1
            assert again.fence == first.fence
            for name in (
                "state",
                "begun_at",
                "lease_until",
                "retain_until",
                "settled_at",
                "settled_by",
                "result",
                "moves",
            ):
                assert getattr(again, name) == getattr(first, name)
        assert there(store.carry_out(Read(held.key))).moves == settled[0].moves
        assert copy.call("GETRANGE", raw_key(held), 2, 11) == f"{settled[1].version:010}"
        assert 0 < master.call("PTTL", raw_key(held)) <= RETAIN * 1000
        store.close()


def test_a_sentinel_that_knows_no_master_is_passed_over():
    """One that came back without its memory: the next one is asked, and only if none knows it, it is unknown."""
    with redis_server() as master, master.sentinel() as forgot, master.sentinel() as knows:
        forgot.call("SENTINEL", "REMOVE", "main")
        sentinels = f"127.0.0.1:{forgot.port},127.0.0.1:{knows.port}"
        store = RedisStore(f"redis://{sentinels}/0?sentinel=main")
        assert store.carry_out(opening()).state is State.STARTED
        store.close()

        with pytest.raises(Misconfigured, match="know no 'other'"):
            RedisStore(f"redis://{sentinels}/0?sentinel=other").carry_out(opening())
        with pytest.raises(StoreUnavailable):  # one of them did not say
            RedisStore(f"redis://127.0.0.1:1,127.0.0.1:{forgot.port}/0?sentinel=main").carry_out(opening())


def test_a_user_that_may_not_wait_for_replicas_is_told_before_anything_is_claimed(server):
    """Or each claim would be written, counted as not replicated, and stuck until its lease ends."""
    server.call("ACL", "SETUSER", "hasty", "reset", "on", ">secret", *RIGHTS.split())
    store = RedisStore(f"redis://hasty:secret@127.0.0.1:{server.port}/0?wait_replicas=1")
    claim = opening()

    with pytest.raises(Misconfigured, match="wait"):
        store.carry_out(claim)

    assert server.call("EXISTS", raw_key(claim)) == 0
    store.close()


def test_a_master_that_was_demoted_is_left():
    """READONLY means that nothing was written: it is asked again where the master is now."""
    with redis_server() as master, master.replica() as copy, FaultProxy(master.port) as proxy:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}")  # an address that follows the master
        held = store.carry_out(opening())
        until(lambda: copy.in_step_with(master))
        copy.promote()
        master.call("REPLICAOF", "127.0.0.1", copy.port)
        proxy.target = ("127.0.0.1", copy.port)

        settled = there(store.carry_out(settling(held)))

        assert settled.state is State.COMPLETED
        assert settled.result == there(RedisStore(copy.url()).carry_out(Read(held.key))).result
        assert store.carry_out(opening()).after_loss
        store.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_failover_under_load_loses_no_claim_that_a_replica_had(colour):
    """The master is killed while eight callers claim and settle: they go on with the replica, no effect runs twice."""
    effects: dict[str, int] = {}
    mutex = threading.Lock()
    keys = [f"{number}" for number in range(400 if FULL else 120)]
    killed = threading.Event()

    def effect(key: str) -> str:
        with mutex:
            effects[key] = effects.get(key, 0) + 1
            if len(effects) == len(keys) // 3 and not killed.is_set():
                killed.set()
                master.call("CLIENT", "PAUSE", "60000", "WRITE")  # or a claim of another caller slips in between
                until(lambda: copy.in_step_with(master))
                master.stop(kill=True)
        return key

    with redis_server() as master, master.replica() as copy, master.sentinel() as watch:
        until(lambda: (row := watch.call("SENTINEL", "MASTER", "main"))[row.index("num-slaves") + 1] == "1")
        if colour == "sync":
            address = f"redis://127.0.0.1:1,127.0.0.1:{watch.port}/0?sentinel=main"  # one sentinel is away
            with Guard(address) as guard, ThreadPoolExecutor(8) as pool:

                def ask(key: str) -> Any:
                    while True:
                        with suppress(StoreUnavailable):  # nothing was run: the copy is not the master yet
                            return guard.run("own", lambda: effect(key), key=key, payload=1)

                answers = list(pool.map(ask, keys))
                again = list(pool.map(ask, keys))
        else:
            client = redis.Sentinel([("127.0.0.1", watch.port)]).master_for("main")

            async def main() -> tuple[list[Any], list[Any]]:
                async with AsyncGuard(AsyncRedisStore(client=client)) as guard:
                    gate = asyncio.Semaphore(8)

                    async def call(key: str) -> Any:
                        async def run() -> str:
                            return await asyncio.to_thread(effect, key)

                        async with gate:
                            while True:
                                with suppress(StoreUnavailable):
                                    return await guard.run("own", run, key=key, payload=1)

                    return (
                        list(await asyncio.gather(*(call(key) for key in keys))),
                        list(await asyncio.gather(*(call(key) for key in keys))),
                    )

            answers, again = asyncio.run(main())

        assert killed.is_set()
        assert copy.info("role") == "master"
    assert [one.result for one in answers] == keys
    assert [one.result for one in again] == keys
    assert set(effects.values()) == {1}


@pytest.mark.parametrize("loss", ["failover", "restart", "wipe"])
def test_a_redis_that_lost_a_claim_charges_twice(loss):
    """The window of a Redis that is the only store: whoever knew of the claim is gone, and so is the claim."""
    ran: list[str] = []

    def charge(address: str) -> None:
        with Guard(address) as guard:  # a process that starts now, and has nothing to compare with
            guard.run("window", lambda: ran.append(address), key="o-1", payload={})

    volatile = {"appendonly": "no"} if loss == "restart" else {}
    with redis_server(**volatile) as master, master.replica() as copy:
        address = f"{master.url()}?allow_volatile=1" if volatile else master.url()
        if loss == "failover":
            copy.call("REPLICAOF", "NO", "ONE")  # it hears nothing from here on, and is chosen all the same
        charge(address)
        if loss == "restart":
            master.restart()
        elif loss == "wipe":
            master.call("FLUSHALL")
        charge(copy.url() if loss == "failover" else address)

    assert len(ran) == 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster(3) as nodes:
        yield nodes


def cluster_url(nodes: list[RedisServer]) -> str:
    return "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes[:2]) + "?cluster=1"


def test_a_cluster_keeps_each_key_where_it_belongs(cluster):
    """Records lie on all three masters; they are claimed together, settled, listed, told about and audited."""
    store, other = RedisStore(cluster_url(cluster)), RedisStore(cluster_url(cluster))
    replies = store.batch([opening(f"cluster {number}") for number in range(60)])
    held = [one for one in replies if isinstance(one, Record)]
    assert len(held) == 60
    assert all(int(node.call("DBSIZE")) > 60 for node in cluster)  # markers, sets and records
    assert len(store.list(Query(states=(State.STARTED,), operation="own", limit=1000))) == 60

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, Wait(held[0]), 20.0)
        until(lambda: any(node.call("PUBSUB", "NUMSUB", channel(held[0]))[1] for node in cluster))
        for one in held:
            assert there(store.carry_out(settling(one))).state is State.COMPLETED
        assert there(waiting.result()).result == b"done"

    assert len(store.list(Query(operation="own", limit=1000))) == 60
    for one in held[:5]:
        store.carry_out(Free(there(store.carry_out(Read(one.key))), "ada", "again"))
    assert len([one for one in store.audit(1000) if one.action == "free"]) == 5
    assert "servers" in dict(store.health().facts)
    assert dict(store.health().facts)["servers"] == "3"
    for each in (store, other):
        each.close()


def test_a_cluster_that_is_rearranged_is_followed(cluster):
    """While a slot is on its way, and after it has moved, the key is asked for where it is."""
    store = RedisStore(cluster_url(cluster))
    held = store.carry_out(opening("on the move"))
    tag = raw_key(held).split("}")[0] + "}"
    slot = cluster[0].call("CLUSTER", "KEYSLOT", tag)
    owners = {node.call("CLUSTER", "MYID"): node for node in cluster}
    source = next(node for node in cluster if raw_key(held) in node.call("KEYS", "*"))
    target = next(node for node in cluster if node is not source)
    ids = {id(node): name for name, node in owners.items()}
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[id(source)])
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[id(target)])
    for key in source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)

    renewed = there(store.carry_out(Renew(held, LEASE)))  # ASK
    assert renewed.version == held.version + 1

    for node in (target, source, *cluster):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", ids[id(target)])
    assert there(store.carry_out(settling(held))).state is State.COMPLETED  # MOVED
    store.close()


def give_away(record: Record, source: RedisServer, target: RedisServer) -> int:
    """Move all keys of this record's slot, and leave it open; the slot."""
    slot = slot_of(raw_key(record).encode())
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.call("CLUSTER", "MYID"))
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.call("CLUSTER", "MYID"))
    for key in source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    return slot


@contextmanager
def growing_cluster() -> Iterator[list[RedisServer]]:
    """Two masters, and a third one that has no slots yet."""
    with redis_cluster(2) as nodes, redis_server(cluster_enabled="yes") as new:
        new.call("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0]._settings["cluster-port"])
        until(lambda: all(str(node.call("CLUSTER", "NODES")).count(" connected") == 3 for node in (*nodes, new)))
        until(lambda: "cluster_state:ok" in new.call("CLUSTER", "INFO"))
        yield [*nodes, new]


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_first_slot_that_moves_to_a_new_server_is_followed(colour):
    """A server without slots has nothing to be greeted about: nobody waits for what it will not say."""

    async def called(one: Any) -> Any:
        return await one if inspect.isawaitable(one) else one

    async def moving(nodes: list[RedisServer]) -> None:
        store = (AsyncRedisStore if colour == "async" else RedisStore)(cluster_url(nodes))
        held = await called(store.carry_out(opening()))
        give_away(held, next(node for node in nodes if raw_key(held) in node.call("KEYS", "*")), nodes[2])

        assert (await called(store.carry_out(Renew(held, LEASE)))).version == held.version + 1
        assert (await called(store.carry_out(settling(held)))).state is State.COMPLETED
        assert [one.key for one in await called(store.list(Query(limit=10)))] == [held.key]
        await called(store.close())

    with growing_cluster() as nodes:
        asyncio.run(moving(nodes))


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("over", [True, False], ids=["moved", "moving"])
def test_a_record_that_moves_while_a_list_is_made_is_listed_once(monkeypatch, direction, over):
    """From a server that was not looked at yet to one that was, and the other way round."""
    with redis_cluster(2) as nodes:
        store = RedisStore(cluster_url(nodes))
        source, target = nodes[::direction]
        ended = [there(store.carry_out(settling(store.carry_out(opening())))) for _ in range(40)]
        (moving, *_) = (one for one in ended if raw_key(one) in source.call("KEYS", "*"))
        looks: list[str] = []

        def before_a_scan(asked: Any) -> None:
            if asked.arguments[:1] == (b"SCAN",):
                looks.append(asked.server)
                if len(set(looks)) == 2 and len(looks) == 2:
                    slot = give_away(moving, source, target)
                    for node in (target, source) if over else ():
                        node.call("CLUSTER", "SETSLOT", slot, "NODE", target.call("CLUSTER", "MYID"))

        monkeypatch.setattr("samekey.stores.redis.store.listing", listing_with(before_a_scan))
        listed = store.list(Query(limit=100))

        assert sorted(one.key.text for one in listed) == sorted(one.key.text for one in ended)
        looks.clear()
        store.close()


def test_who_waits_hears_of_it_when_no_server_of_the_address_is_left(monkeypatch):
    """The subscriber goes to the servers that were met since, like everybody else."""
    monkeypatch.setattr(_waiting, "REREAD_SECONDS", 60.0)
    with redis_cluster(3) as (leaves, *stay):
        for node in stay:
            node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        store, other = RedisStore(cluster_url([leaves])), RedisStore(cluster_url(stay))
        records = [store.carry_out(opening()) for _ in range(40)]
        (held, *_) = (one for one in records if raw_key(one) in stay[0].call("KEYS", "*"))
        assert other.carry_out(Read(held.key)) is not None
        leaves.stop(kill=True)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, Wait(held), 20.0)
            until(lambda: any(node.call("PUBSUB", "NUMSUB", channel(held))[1] for node in stay))
            other.carry_out(settling(held))
            assert there(waiting.result()).result == b"done"
        for each in (store, other):
            each.close()


def test_servers_that_each_name_the_other_are_asked_until_they_agree(cluster):
    """The one that gave a slot away hears of it first, and for a moment each says that the other has it."""
    store = RedisStore(cluster_url(cluster))
    held = store.carry_out(opening("between two"))
    slot = slot_of(raw_key(held).encode())
    source = next(node for node in cluster if raw_key(held) in node.call("KEYS", "*"))
    target = next(node for node in cluster if node is not source)
    giver, taker = source.call("CLUSTER", "MYID"), target.call("CLUSTER", "MYID")
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", giver)
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", taker)
    for key in source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    source.call("CLUSTER", "SETSLOT", slot, "NODE", taker)

    def sent_away() -> int:
        return int(target.info("cmdstat_evalsha").partition("rejected_calls=")[2].partition(",")[0] or 0)

    before = sent_away()
    with ThreadPoolExecutor(1) as pool:
        settling_it = pool.submit(store.carry_out, settling(held))
        until(lambda: settling_it.done() or sent_away() > before + REDIRECTS_MAX)
        for node in (target, *cluster):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", taker)

        assert there(settling_it.result()).state is State.COMPLETED
    store.close()


def test_a_server_that_knows_no_cluster_is_passed_over(cluster):
    """One that came back without its memory has no slots to tell of: the next one is asked."""
    with redis_server(cluster_enabled="yes") as forgot:
        store = RedisStore(f"redis://127.0.0.1:{forgot.port},127.0.0.1:{cluster[0].port}?cluster=1")

        assert store.carry_out(opening()).state is State.STARTED
        store.close()


def test_a_master_that_is_away_takes_no_other_master_s_keys_with_it(cluster):
    """In one batch: the keys of the one cannot be had, those of the others can, also from servers not met before."""
    for node in cluster:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    claims = sorted((opening() for _ in range(60)), key=lambda one: slot_of(raw_key(one).encode()))
    store = RedisStore(cluster_url(cluster[1:]))
    cluster[0].stop(kill=True)  # it has the lowest slots, and is asked first
    try:
        replies = store.batch(claims)
    finally:
        cluster[0].start()
        until(lambda: all("cluster_state:ok" in node.call("CLUSTER", "INFO") for node in cluster))

    assert {type(one) for one in replies} == {StoreUnavailable, Record}
    store.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_master_that_hangs_is_left_alone_for_a_while(cluster, monkeypatch, colour):
    """Whoever wants its keys is told so at once, and does not keep the others' keys waiting for it."""
    monkeypatch.setattr("samekey.drivers.redis.connect.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("samekey.stores.redis._batches.REASK_SECONDS", 0.0)
    monkeypatch.setattr(_discovery, "SILENT_SECONDS", 600.0)

    for node in cluster:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")

    async def called(one: Any) -> Any:
        return await one if inspect.isawaitable(one) else one

    async def hanging() -> None:
        store = (AsyncRedisStore if colour == "async" else RedisStore)(cluster_url(cluster[1:]))
        held = await called(store.batch([opening() for _ in range(60)]))
        (hers, *_) = (one for one in held if raw_key(one) in cluster[0].call("KEYS", "*"))
        (others, *_) = (one for one in held if raw_key(one) in cluster[1].call("KEYS", "*"))
        os.kill(cluster[0].pid, SIGSTOP)
        try:
            for why in ("no answer|timed out", "Timeout", "did not answer a moment ago"):
                replies = await called(store.batch([Renew(hers, LEASE), Renew(others, LEASE)]))
                assert isinstance(replies[0], StoreUnavailable)
                assert re.search(why, str(replies[0]))
                assert replies[1].lease_live
        finally:
            os.kill(cluster[0].pid, SIGCONT)
        until(lambda: all("cluster_state:ok" in node.call("CLUSTER", "INFO") for node in cluster))
        known = (store.sync if isinstance(store, AsyncRedisStore) else store)._process_now().known
        known.silent.clear()  # the while is over
        assert (await called(store.carry_out(Renew(hers, LEASE)))).lease_live
        await called(store.close())

    asyncio.run(hanging())


def test_a_cluster_whose_servers_do_not_tell_their_host(cluster):
    """Then it is the host where they were asked: a cluster behind one address, or of one server that met nobody."""
    for node in cluster:
        node.call("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
    try:
        store = RedisStore(cluster_url(cluster))
        replies = store.batch([opening() for _ in range(60)])
    finally:
        for node in cluster:
            node.call("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")

    assert {type(one) for one in replies} == {Record}
    store.close()


def test_one_server_of_a_cluster_is_refused_and_the_way_out_named(cluster):
    with pytest.raises(Misconfigured, match=re.escape("?cluster=1")):
        RedisStore(cluster[0].url()).carry_out(opening())


def test_the_health_is_that_of_the_servers_there_are():
    """A master whose slots have moved on, or that another one replaced, says nothing about the store any more."""
    with redis_cluster(2) as (stays, leaves):
        leaves.call("CONFIG", "SET", "appendonly", "no")
        store = RedisStore(cluster_url([stays, leaves]))
        assert "no claim is safe" in store.health().guarantee
        leaves.call("FLUSHALL")
        name = stays.call("CLUSTER", "MYID")
        stays.call("CLUSTER", "BUMPEPOCH")  # or the other one's word about its slots would count for more
        for slot in sorted(set(SLOTS)):
            for node in (stays, leaves):
                node.call("CLUSTER", "SETSLOT", slot, "NODE", name)

        health = store.health()
        assert dict(health.facts)["servers"] == "1"
        assert "no claim is safe" not in health.guarantee
        store.close()


def test_a_cluster_client_of_one_s_own(cluster):
    client = redis.RedisCluster(host="127.0.0.1", port=cluster[0].port)
    with Guard(RedisStore(client=client)) as guard:
        assert guard.run("own", lambda: 1, key=uuid4().hex, payload=1).result == 1
    client.close()


async def test_an_async_cluster_client_of_one_s_own(cluster):
    client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster[0].port)
    async with AsyncGuard(AsyncRedisStore(client=client)) as guard:

        async def effect() -> int:
            return 1

        assert (await guard.run("own", effect, key=uuid4().hex, payload=1)).result == 1
    await client.aclose()


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="seconds of a cluster's own failover: make proof")
def test_a_cluster_fails_over():
    """A master is killed, its replica takes over: the same store goes on, and says that something may be lost."""
    with redis_cluster(3, replicas=1) as nodes:
        store = RedisStore(cluster_url(nodes[1:]))
        held = store.carry_out(opening("kept"))
        source = next(node for node in nodes[:3] if raw_key(held) in node.call("KEYS", "*"))
        until(lambda: any(raw_key(held) in node.call("KEYS", "*") for node in nodes[3:]))
        source.stop(kill=True)
        for _ in range(20):
            try:
                settled = store.carry_out(settling(held))
                break
            except StoreUnavailable:
                continue
        assert there(settled).state is State.COMPLETED
        store.close()


# -- ways in -----------------------------------------------------------------------------------------------------


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


async def test_over_a_unix_socket(server):
    run_once(RedisStore(f"unix://{server.socket}"))
    await run_once_async(AsyncRedisStore(f"unix://{server.socket}"))


async def test_with_tls(tmp_path):
    """rediss:// checks the certificate of the server; one that it does not know is refused."""
    if "redis-7" not in flavours():
        raise NoServer("the servers in wheels speak no TLS: apt-get install redis-tools", "redis")
    make_certificates(tmp_path)
    with redis_server(
        "redis-7",
        tls_port=str(port := driver_free_port()),
        tls_cert_file=str(tmp_path / "server.crt"),
        tls_key_file=str(tmp_path / "server.key"),
        tls_ca_cert_file=str(tmp_path / "ca.crt"),
        tls_auth_clients="no",
    ):
        url = f"rediss://localhost:{port}?ssl_ca_certs={tmp_path / 'ca.crt'}"
        run_once(RedisStore(url))
        await run_once_async(AsyncRedisStore(url))
        held = RedisStore(url).carry_out(opening())
        with ThreadPoolExecutor(1) as pool:
            store = RedisStore(url)
            waiting = pool.submit(store.wait, Wait(held), 20.0)
            until(lambda: store._process.subscriber._waiting)
            RedisStore(url).carry_out(settling(held))
            assert there(waiting.result()).result == b"done"
        held = RedisStore(url).carry_out(opening())
        ours = AsyncRedisStore(url)
        tasks = asyncio.create_task(ours.wait(Wait(held), 20.0))
        while ours._loop().subscriber._wire is None:
            await asyncio.sleep(0.01)
        RedisStore(url).carry_out(settling(held))
        assert there(await tasks).result == b"done"
        await ours.close()
        authority = str(tmp_path / "ca.crt")
        for client in (
            redis.Redis(host="localhost", port=port, ssl=True, ssl_ca_certs=authority),
            redis.asyncio.Redis(host="localhost", port=port, ssl=True, ssl_ca_certs=authority),
        ):
            run_once(RedisStore(client=client))
            await run_once_async(AsyncRedisStore(client=client))
        with pytest.raises(StoreUnavailable, match="certificate"):
            RedisStore(f"rediss://localhost:{port}").carry_out(opening())


def driver_free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_certificates(folder: Path) -> None:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    may_sign = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 asks for it
    openssl(*new, "-x509", *may_sign, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test authority")
    openssl(*new[:2], *new[2:7], "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    openssl(
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-days",
        "2",
        "-out",
        "server.crt",
        "-extfile",
        "names",
    )


PAGE = Path(__file__).parents[3] / "docs" / "redis.md"
(RIGHTS,) = re.findall(r"```text\nACL SETUSER shop on >secret (.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


async def test_a_user_with_few_rights_is_enough(server):
    """What docs/redis.md grants is all that the store needs; without it the error says so."""
    server.call("ACL", "SETUSER", "shop", "on", ">secret", *RIGHTS.split())
    server.call("ACL", "SETUSER", "nobody", "on", ">secret", "+@connection")
    url = f"redis://shop:secret@127.0.0.1:{server.port}/0"
    run_once(RedisStore(url))
    await run_once_async(AsyncRedisStore(url))
    store = RedisStore(url)
    for command, _ in every_command(store):
        store.carry_out(command)
    assert store.list(Query(operation="own"))
    assert store.audit(10)
    assert "secret" not in store.name + repr(store) + repr(store._address)
    assert dict(store.health().facts)["appendfsync"] == "not shown"
    with pytest.raises(Misconfigured):
        RedisStore(url.replace("shop:", "nobody:")).carry_out(opening())
    with pytest.raises(Misconfigured):
        RedisStore(url.replace("secret", "wrong")).carry_out(opening())
    store.close()


@pytest.mark.parametrize("flavour", sorted(flavours()))
def test_those_rights_are_enough_in_every_server_and_database(flavour):
    """Redis 6 lets a new user hear everything, and takes a channel only after that was taken back."""
    with redis_server(flavour) as server:
        server.call("ACL", "SETUSER", "shop", "on", ">secret", *RIGHTS.split(), "+select")
        run_once(RedisStore(f"redis://shop:secret@127.0.0.1:{server.port}/1"))


@pytest.mark.parametrize("missing", ["resetchannels", "-publish"])
async def test_a_user_that_may_tell_nobody_settles_all_the_same(server, missing):
    """A message is a hint: what was written counts, and those who wait look again by themselves."""
    server.call("ACL", "SETUSER", "mute", "reset", "on", ">secret", *RIGHTS.split(), missing)
    store = RedisStore(f"redis://mute:secret@127.0.0.1:{server.port}/0")
    held = store.carry_out(opening())
    waiting = asyncio.create_task(asyncio.to_thread(store.wait, Wait(held), 20.0))

    for command, _ in every_command(store):
        store.carry_out(command)
    assert there(await asyncio.to_thread(store.carry_out, settling(held))).state is State.COMPLETED
    assert there(await waiting).result == b"done"
    store.close()
    front = RedisFront(f"redis://mute:secret@127.0.0.1:{server.port}/0")
    front.put(held.key.digest, b"\x00" * 64, 2e9)
    front.close()


def test_a_client_of_another_library_goes_where_it_would_go_itself():
    """valkey-py has the same classes, of its own: TLS is TLS, and a socket a socket."""
    kinds = {
        "tls": types.new_class("SSLConnection"),
        "unix": types.new_class("UnixDomainSocketConnection"),
        "tcp": types.new_class("Connection"),
    }
    for kind, connection_class in kinds.items():
        pool = types.SimpleNamespace(connection_class=connection_class, connection_kwargs={})
        assert lent_by(types.SimpleNamespace(connection_pool=pool)).places[0].kind == kind


async def test_a_setting_that_the_other_colour_does_not_know_is_refused(server):
    """What redis-py checks only in threads is not left out in silence."""
    client = redis.Redis(ssl=True, ssl_validate_ocsp=True)

    with pytest.raises(Misconfigured, match="ssl_validate_ocsp"):
        await AsyncRedisStore(client=client).carry_out(opening())
    client.close()


async def test_clients_of_one_s_own(server):
    """Settings are taken from either colour, whatever the client does with its replies; it stays its owner's."""
    client = redis.Redis(port=server.port, decode_responses=True)
    with_pool = redis.asyncio.Redis(host="127.0.0.1", port=server.port)
    for one in (client, with_pool):
        run_once(RedisStore(client=one))
        await run_once_async(AsyncRedisStore(client=one))
    assert client.ping()
    client.close()
    await with_pool.aclose()
    with pytest.raises(Misconfigured):
        RedisStore(client=object())
    with pytest.raises(Misconfigured):
        RedisStore()


class Wallet(redis.CredentialProvider):
    """Credentials from elsewhere, which may fail to give them."""

    empty = False

    def get_credentials(self) -> tuple[str, str]:
        if self.empty:
            raise LookupError("the token 'hush' has expired")
        return "wallet", "secret"

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


def test_a_provider_of_credentials_that_fails_is_a_store_that_is_down(server):
    """Nothing runs, and what ran keeps its answer: it is written down when there are credentials again."""
    server.call("ACL", "SETUSER", "wallet", "reset", "on", ">secret", "~*", "&*", "+@all")
    wallet, effects = Wallet(), list[int]()
    client = redis.Redis(port=server.port, credential_provider=wallet)

    def effect() -> int:
        wallet.empty = True
        server.call("CLIENT", "KILL", "USER", "wallet")
        return counted(effects)

    with Guard(RedisStore(client=client)) as guard, ThreadPoolExecutor(1) as pool:
        running = pool.submit(guard.run, "own", effect, key="wallet", payload=1)
        until(lambda: effects)
        with Guard(RedisStore(client=client)) as another, pytest.raises(StoreUnavailable) as down:
            another.run("own", effect, key="another", payload=1)
        wallet.empty = False
        answer = running.result()

    assert "hush" not in str(down.value)
    assert (answer.result, answer.recorded, effects) == (1, True, [1])


async def test_and_so_in_a_loop(server):
    server.call("ACL", "SETUSER", "wallet", "reset", "on", ">secret", "~*", "&*", "+@all")
    wallet = Wallet()
    wallet.empty = True
    store = AsyncRedisStore(client=redis.asyncio.Redis(port=server.port, credential_provider=wallet))
    with pytest.raises(StoreUnavailable, match="LookupError"):
        await store.carry_out(opening())
    wallet.empty = False

    assert (await store.carry_out(opening())).state is State.STARTED
    await store.close()


def test_the_page_says_how_long_a_server_that_hangs_is_waited_for():
    """An answer, the time in which it is asked again, and a last try that began within that."""
    longest = ANSWER_SECONDS + REASK_SECONDS + CONNECT_SECONDS + ANSWER_SECONDS

    assert f"after {longest:g} seconds at the latest" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h?allow_volatile=yes", "redis://h?wait_replicas=-1", "redis://a,b", "redis://h/1?cluster=1"),
        *(
            "redis://h?no_such_option=1",
            "http://h",
            "redis://h:port",
            "redis://[",
            "redis://h/abc",
            "redis:h",
            "unix://",
        ),
        *(
            "redis://a:p@h,b:q@i?cluster=1",
            "redis://a,,b?cluster=1",
            "redis://h?sentinel=",
            "redis://h?socket_timeout=5",
        ),
        *("redis://h?sentinel=main&cluster=1", "redis://h?cluster=1&cluster=0", "rediss://h?ssl_cert_reqs=bogus"),
    ],
)
def test_an_address_that_cannot_work_is_refused(url):
    with pytest.raises(Misconfigured):
        parse_url(url)


def in_child(url: str, store: RedisStore, text: str, answer) -> None:
    answer.send(store.carry_out(opening(text, by=B)).attempt)


def test_a_forked_child_has_connections_of_its_own(server, store):
    held = store.carry_out(opening("forked"))
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=("", store, "forked", theirs))
    child.start()
    child.join(20)

    assert ours.recv() == A
    assert there(store.carry_out(settling(held))).state is State.COMPLETED
