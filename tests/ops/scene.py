"""Records in every state, made by a real guard."""

from __future__ import annotations

import time
from typing import Any

from samekey import Guard, NotDone, Policy, Refused
from samekey.core.ports import Store
from samekey.core.record import Record

LEASE_SECONDS = 30.0


class Clock:
    """Seconds that move only when told to."""

    def __init__(self, now: float | None = None) -> None:
        self.now = time.time() if now is None else now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Scene:
    """Makes records in one store; each returns the record as it then stands."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.store = store
        self.guard = Guard(store, policy=Policy(lease=LEASE_SECONDS), **options)
        self.holds: list[Any] = []

    def in_doubt(self, key: str = "o-1", **options: Any) -> Record:
        return self._ended(key, TimeoutError("no answer in 5 s"), **options)

    def closed(self, key: str = "o-1", **options: Any) -> Record:
        return self._ended(key, Refused("stolen card"), **options)

    def released(self, key: str = "o-1", **options: Any) -> Record:
        return self._ended(key, NotDone("no funds"), **options)

    def completed(self, key: str = "o-1", result: Any = "paid", **options: Any) -> Record:
        return self.run(key, lambda: result, **options)

    def held(self, key: str = "o-1", *, name: str = "charge", tenant: str | None = None, **options: Any) -> Record:
        self.holds.append(self.guard.hold(name, key=key, payload={"amount": 200}, tenant=tenant, **options))
        return self.peek(key, name=name, tenant=tenant)

    def run(self, key: str, effect: Any, *, name: str = "charge", tenant: str | None = None, **options: Any) -> Record:
        self.guard.run(name, effect, key=key, payload={"amount": 200}, tenant=tenant, **options)
        return self.peek(key, name=name, tenant=tenant)

    def peek(self, key: str = "o-1", *, name: str = "charge", tenant: str | None = None) -> Record:
        record = self.guard.peek(name, key, tenant)
        assert record is not None
        return record

    def _ended(self, key: str, error: Exception, **options: Any) -> Record:
        def effect() -> Any:
            raise error

        try:
            self.run(key, effect, **options)
        except type(error):
            pass
        return self.peek(key, name=options.get("name", "charge"), tenant=options.get("tenant"))
