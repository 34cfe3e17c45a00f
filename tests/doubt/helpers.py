"""A provider in this process, and guards whose clock a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from samekey import Absent, Guard, Happened, Policy
from samekey.guard.keyring import Keyring
from samekey.stores.memory import MemoryStore

POLICY = Policy(lease=10, keep_payload=True)
KEYS = Keyring(("2026", bytes(range(32))))


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Provider:
    """Its books, and how it behaves; `requests` and `lookups` are counted."""

    charges: dict[str, list[int]] = field(default_factory=dict)
    requests: int = 0
    lookups: int = 0
    declines: bool = False
    drops: bool = False
    blind: bool = False  # a lookup finds nothing

    def charge(self, reference: str, amount: int, *, dedups: bool = False) -> str:
        self.requests += 1
        known = self.charges.setdefault(reference, [])
        if not (dedups and known):
            if self.declines:
                raise DeclinedCard
            known.append(amount)
        if self.drops:
            raise TimeoutError("no answer")
        return f"receipt {reference}"

    def find(self, record: Any) -> Any:
        self.lookups += 1
        found = [] if self.blind else self.charges.get(record.provider_key(), [])
        return Happened(f"receipt {record.provider_key()}") if found else Absent()


class DeclinedCard(Exception):
    pass


class Crash(BaseException):
    """The process dies here."""


def guard_at(clock: Clock, **options: Any) -> Guard:
    return Guard(MemoryStore(clock), policy=POLICY, keys=KEYS, **options)
