"""Addresses, TLS, rights, credentials, and clients of the user's own."""

from __future__ import annotations

import asyncio
import subprocess
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
import redis.asyncio

from samekey import Guard
from samekey.core.books import Count, FindingQuery, make_finding
from samekey.core.commands import Read, Wait
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.key import make_key
from samekey.core.ports import Query
from samekey.core.states import State
from samekey.drivers.redis.address import lent_by, parse_url
from samekey.drivers.redis.connect import ANSWER_SECONDS, CONNECT_SECONDS
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.stores.redis._batches import REASK_SECONDS
from samekey.stores.redis._front import RedisFront
from samekey.testing.servers import NoServer, flavours, redis_server
from tests.servers.redis.helpers import (
    PAGE,
    RIGHTS,
    counted,
    every_command,
    opening,
    run_once,
    run_once_async,
    settling,
    there,
)
from tests.servers.redis.topologies import until


def test_a_server_that_is_not_there_is_reported_at_once(server):
    with redis_server() as gone:
        url = gone.url()
    with pytest.raises(StoreUnavailable):
        RedisStore(url).carry_out(opening())


def test_an_address_that_contains_an_error_code_is_no_such_error(tmp_path):
    """A server that is not there is reported as such, whatever its path, host or user is called."""
    for code in ("OOM", "NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT", "ACL failure"):
        with pytest.raises(StoreUnavailable, match=r"[Nn]o such file") as raised:
            RedisStore(f"unix://{tmp_path}/{code.replace(' ', '%20')}/redis.sock").carry_out(opening())

        assert "memory" not in str(raised.value)


@pytest.mark.parametrize("flavour", sorted(flavours()))
def test_a_missing_right_of_a_script_is_reported_at_once(flavour):
    """Each server has another text for it, and a user called READONLY is not a demoted server."""
    with redis_server(flavour) as server:
        server.call("ACL", "SETUSER", "READONLY", "on", ">secret", *RIGHTS.split(), "-zadd")
        store = RedisStore(f"redis://READONLY:secret@127.0.0.1:{server.port}/0")
        with pytest.raises(Misconfigured, match="lacks a right that the store needs"):
            store.carry_out(opening())
        server.call("ACL", "SETUSER", "READONLY", "-evalsha", "-eval")

        with pytest.raises(Misconfigured, match="lacks a right that the store needs"):
            store.carry_out(Read(make_key("own", "any")))
        assert store._process.queue.servers.connections  # the store did not hang up to look for another master
        store.close()


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
        tls_port=str(port := free_port()),
        tls_cert_file=str(tmp_path / "server.crt"),
        tls_key_file=str(tmp_path / "server.key"),
        tls_ca_cert_file=str(tmp_path / "ca.crt"),
        tls_auth_clients="no",
    ):
        url = f"rediss://localhost:{port}?ssl_ca_certs={tmp_path / 'ca.crt'}"
        run_once(RedisStore(url))
        await run_once_async(AsyncRedisStore(url))
        other = RedisStore(url)
        held = other.carry_out(opening())
        with ThreadPoolExecutor(1) as pool:
            store = RedisStore(url)
            waiting = pool.submit(store.wait, Wait(held), 20.0)
            until(lambda: store._process.subscriber._waiting)
            other.carry_out(settling(held))
            assert there(waiting.result()).result == b"done"
            store.close()
        held = other.carry_out(opening())
        ours = AsyncRedisStore(url)
        tasks = asyncio.create_task(ours.wait(Wait(held), 20.0))
        while ours._loop().subscriber._wire is None:
            await asyncio.sleep(0.01)
        other.carry_out(settling(held))
        assert there(await tasks).result == b"done"
        await ours.close()
        other.close()
        authority = str(tmp_path / "ca.crt")
        for client in (
            redis.Redis(host="localhost", port=port, ssl=True, ssl_ca_certs=authority),
            redis.asyncio.Redis(host="localhost", port=port, ssl=True, ssl_ca_certs=authority),
        ):
            run_once(RedisStore(client=client))
            await run_once_async(AsyncRedisStore(client=client))
        with pytest.raises(StoreUnavailable, match="certificate"):
            RedisStore(f"rediss://localhost:{port}").carry_out(opening())


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_certificates(folder: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

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


async def test_a_user_with_few_rights_is_enough(server):
    """What docs/redis.md grants is all that the store needs; without it the error says so."""
    server.call("ACL", "SETUSER", "shop", "on", ">secret", *RIGHTS.split())
    server.call("ACL", "SETUSER", "guest", "on", ">secret", "+@connection")
    url = f"redis://shop:secret@127.0.0.1:{server.port}/0"
    run_once(RedisStore(url))
    await run_once_async(AsyncRedisStore(url))
    store = RedisStore(url)
    for command, _ in every_command(store):
        store.carry_out(command)
    assert store.list(Query(operation="own"))
    finding = make_finding("late", at=1.0, severity="low", title="x")
    assert store.keep_finding(finding)
    assert store.accept_finding(finding.id, by="ann", why="known", until=2e9) in store.findings(FindingQuery())
    store.add_counts([Count(int(time.time() // 60), "charge", "", "new", 1)])
    assert store.counts(0, time.time())
    assert store.audit(10)
    assert "secret" not in store.name + repr(store) + repr(store._address)
    assert dict(store.health().facts)["appendfsync"] == "not shown"
    with pytest.raises(Misconfigured):
        RedisStore(url.replace("shop:", "guest:")).carry_out(opening())
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
async def test_a_user_without_the_right_to_publish_settles(server, missing):
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


def test_a_valkey_client_keeps_its_kind_of_connection():
    """valkey-py has the same classes, of its own: TLS is TLS, and a socket a socket."""
    kinds = {
        "tls": types.new_class("SSLConnection"),
        "unix": types.new_class("UnixDomainSocketConnection"),
        "tcp": types.new_class("Connection"),
    }
    for kind, connection_class in kinds.items():
        pool = types.SimpleNamespace(connection_class=connection_class, connection_kwargs={})
        assert lent_by(types.SimpleNamespace(connection_pool=pool)).places[0].kind == kind


async def test_a_setting_that_only_sync_clients_know_is_refused_in_a_loop(server):
    """What redis-py checks only in threads is not left out in silence."""
    client = redis.Redis(ssl=True, ssl_validate_ocsp=True)

    with pytest.raises(Misconfigured, match="ssl_validate_ocsp"):
        await AsyncRedisStore(client=client).carry_out(opening())
    client.close()


async def test_clients_of_the_user(server):
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


def test_a_failing_credential_provider_counts_as_a_store_that_is_down(server):
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


async def test_a_failing_credential_provider_in_a_loop(server):
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
