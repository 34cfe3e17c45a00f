"""One process that wants guarded charges, with each library in turn; made to be killed and paused. Runs where those
are installed:

    python tools/peers/customer.py DRIVER STORE_URL PROVIDER_PORT

Each line it reads is an order, {"number": 1, "key": "k", "amount": 200}; each line it writes says what came of one.
Orders run side by side, in threads. Each library is set up as its documentation says, at its strictest: the settings
that guard more are on. A lease is one second for everybody.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

LEASE_SECONDS = 1
PATIENCE_SECONDS = 0.3


class SoftDecline(Exception):
    """Too little money; nothing was charged."""


class HardDecline(Exception):
    """A stolen card; nothing was charged, and nothing will be."""


class Provider:
    """Our line to the provider; one for each order."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._line = self._socket.makefile("rw")

    def tell(self, **said: Any) -> Any:
        self._line.write(json.dumps(said) + "\n")
        self._line.flush()
        return json.loads(self._line.readline())

    def close(self) -> None:
        self._line.close()
        self._socket.close()

    def charge(self, key: str, amount: int, reference: str, before: Callable[[], Any] = lambda: None) -> str:
        """The effect: come to the door, and pay. In between a process may stand still."""
        self.tell(enter=key)
        before()
        said = self.tell(charge=key, amount=amount, reference=reference)
        match said:
            case {"charged": receipt}:
                return str(receipt)
            case {"declined": "soft"}:
                raise SoftDecline(key)
            case {"declined": "hard"}:
                raise HardDecline(key)
        raise TimeoutError("the provider did not answer")


Effect = Callable[..., str]  # called with reference= and before= by whoever knows better than the key
Run = Callable[[str, int, Effect], Any]


# -- the drivers: how a guarded call is made, and what the library's own errors mean ---------------------------------


def samekey(url: str, find: Callable[[str], list[str]] | None) -> tuple[Run, Callable[[Exception], str]]:
    from samekey import (
        Absent,
        Asks,
        Conflicting,
        Fenced,
        Guard,
        Happened,
        InDoubt,
        InProgress,
        KeyReused,
        Opaque,
        Policy,
        StoreUnavailable,
        current,
    )  # fmt: skip

    policy = Policy(lease=LEASE_SECONDS, patience=PATIENCE_SECONDS, releases=(SoftDecline,), closes=(HardDecline,))
    guard = Guard(url, policy=policy)

    def lookup(record: Any) -> Any:
        assert find is not None  # noqa: S101 - only asked where there is one
        found = find(record.provider_key())
        return Absent() if not found else Happened(found[0]) if len(found) == 1 else Conflicting(tuple(found))

    boundary = Opaque() if find is None else Asks(lookup, marked=True)

    def run(key: str, amount: int, effect: Effect) -> Any:
        def guarded() -> str:
            held = current()
            if find is None:
                return effect()
            return effect(reference=held.provider_key(), before=held.sending)

        return guard.run("charge", guarded, key=key, payload={"amount": amount}, boundary=boundary).result

    kinds = {InProgress: "busy", InDoubt: "doubt", Fenced: "doubt", KeyReused: "reused", StoreUnavailable: "busy"}
    return run, lambda error: kinds.get(type(error), "")


def once_kernel(url: str) -> tuple[Run, Callable[[Exception], str]]:
    from once import Once
    from once.kernel import IdempotencyConflict, InProgressError, WaitTimeout
    from once.pg import PostgresStore

    once = Once(PostgresStore(url), lease_sec=LEASE_SECONDS)

    def run(key: str, amount: int, effect: Effect) -> Any:
        return once.run(key, {"amount": amount}, effect, wait_timeout_sec=4 * LEASE_SECONDS)

    kinds = {InProgressError: "busy", WaitTimeout: "busy", IdempotencyConflict: "reused"}
    return run, lambda error: kinds.get(type(error), "fenced" if "fenced out" in str(error) else "")


def idempotency_kit(url: str) -> tuple[Run, Callable[[Exception], str]]:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from idempotency_kit import AsyncIdempotencyCoordinator
    from idempotency_kit.core.adapters.basic import JsonResultAdapter
    from idempotency_kit.core.exceptions import (
        IdempotencyInProgressError,
        IdempotencyKeyReuseError,
        IdempotencyStorageError,
    )
    from idempotency_kit.core.fingerprint import fingerprint_of
    from idempotency_kit.core.services.domain import IdempotencyDomainService
    from idempotency_kit.infra.storage.redis.aio.repository import RedisAsyncIdempotencyRepository
    from redis.asyncio import Redis

    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(64))  # every order of a scenario is at the provider at once
    threading.Thread(target=loop.run_forever, daemon=True).start()
    coordinator = AsyncIdempotencyCoordinator(
        RedisAsyncIdempotencyRepository(Redis.from_url(url)),
        IdempotencyDomainService(),
        in_flight_lease_seconds=LEASE_SECONDS,
        on_storage_error="raise",
    )

    def run(key: str, amount: int, effect: Effect) -> Any:
        async def action() -> str:
            return await asyncio.to_thread(effect)

        wanted = coordinator.coordinate(
            "charge", key, None, JsonResultAdapter(), action, idempotency_fingerprint=fingerprint_of(amount=amount)
        )
        return asyncio.run_coroutine_threadsafe(wanted, loop).result()

    kinds = {
        IdempotencyInProgressError: "busy",
        IdempotencyStorageError: "busy",
        IdempotencyKeyReuseError: "reused",
    }
    return run, lambda error: kinds.get(type(error), "")


def powertools(url: str, *, validates: bool) -> tuple[Run, Callable[[Exception], str]]:
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.exceptions import (
        IdempotencyAlreadyInProgressError,
        IdempotencyInconsistentStateError,
        IdempotencyPersistenceLayerError,
        IdempotencyValidationError,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

    class Context:  # what Lambda tells a function: how long it may still run
        def get_remaining_time_in_millis(self) -> int:
            return LEASE_SECONDS * 1000

    config = IdempotencyConfig(
        event_key_jmespath="key",
        payload_validation_jmespath="amount" if validates else "",
        raise_on_no_idempotency_key=True,
        lambda_context=Context(),  # type: ignore[arg-type]
    )
    store = CachePersistenceLayer(url=url)

    @idempotent_function(data_keyword_argument="order", config=config, persistence_store=store)
    def charge(order: dict[str, Any], effect: Effect) -> dict[str, str]:
        return {"receipt": effect()}

    def run(key: str, amount: int, effect: Effect) -> Any:
        return charge(order={"key": key, "amount": amount}, effect=effect)["receipt"]

    kinds = {
        IdempotencyAlreadyInProgressError: "busy",
        IdempotencyInconsistentStateError: "busy",
        IdempotencyPersistenceLayerError: "busy",
        IdempotencyValidationError: "reused",
    }
    return run, lambda error: kinds.get(type(error), "")


def textbook(url: str) -> tuple[Run, Callable[[Exception], str]]:
    """What one writes first: SET NX with a time to live, and the answer over it. So that the judge is seen to judge."""
    import redis

    store = redis.Redis.from_url(url, decode_responses=True)

    class Busy(Exception):
        pass

    def run(key: str, amount: int, effect: Effect) -> Any:
        if not store.set(key, "", nx=True, ex=LEASE_SECONDS):
            if kept := store.get(key):
                return kept
            raise Busy(key)
        try:
            result = effect()
        except BaseException:
            store.delete(key)
            raise
        store.set(key, result)
        return result

    return run, lambda error: "busy" if isinstance(error, Busy | redis.RedisError) else ""


def opened(driver: str, url: str, port: int) -> tuple[Run, Callable[[Exception], str]]:
    def find(reference: str) -> list[str]:
        provider = Provider(port)
        try:
            return list(provider.tell(find=reference))
        finally:
            provider.close()

    match driver:
        case "samekey":
            return samekey(url, None)
        case "samekey-asks":
            return samekey(url, find)
        case "textbook":
            return textbook(url)
        case "once-kernel":
            return once_kernel(url)
        case "idempotency-kit":
            return idempotency_kit(url)
        case "powertools":
            return powertools(url, validates=False)
        case "powertools-validates":
            return powertools(url, validates=True)
    raise ValueError(driver)


# -- what a customer does ------------------------------------------------------------------------------------------


def main(driver: str, url: str, port: int) -> None:
    run, kind_of = opened(driver, url, port)
    saying = threading.Lock()

    def say(**what: Any) -> None:
        with saying:
            print(json.dumps(what), flush=True)

    def serve(number: int, key: str, amount: int) -> None:
        provider = Provider(port)

        def effect(reference: str = key, before: Callable[[], Any] = lambda: None) -> str:
            return provider.charge(key, amount, reference, before)

        try:
            say(number=number, kind="answer", result=run(key, amount, effect))
        except (SoftDecline, HardDecline):
            say(number=number, kind="declined")
        except Exception as error:  # the library's own, or the effect's
            kind = kind_of(error) or "error"
            say(number=number, kind=kind, text="".join(traceback.format_exception_only(error)).strip()[:300])
        finally:
            provider.close()

    say(number=0, kind="ready")
    for line in sys.stdin:
        threading.Thread(target=serve, kwargs=json.loads(line), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
