"""The numbers of the intake, each with its reason, and the rules of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samekey.core.errors import Misconfigured
from samekey.core.fingerprint import declared_ignore

Mode = Literal["on", "off", "shadow", "divert"]
OPERATIONS_MOST = 1000  # less than the operation ids that a row remembers (APPLIED_MAX): a second fold changes nothing


@dataclass(frozen=True, slots=True)
class Settings:
    """How an intake behaves; every node and every drainer of one database should have the same settings."""

    claim_lease: float = 30.0  # a node writes a run within milliseconds; a dead one blocks its key no longer than this
    patience: float = 5.0  # how long a trigger waits for another one with its key
    on_timeout: Literal["proceed", "refuse"] = "proceed"  # decision 0024: the id is the same, so it is safe to go on
    redis_budget: float = 0.25  # all Redis work of one trigger: then it goes on without Redis
    gate: Mode = "on"  # "shadow" counts and never diverts; "divert" buffers everything
    gate_limit: int = 100  # triggers of one environment per window that go straight to the database
    gate_window: float = 0.2
    gate_hold: float = 0.5  # how long a tripped gate stays tripped
    key_life: float = 30 * 86400.0  # as the public API has it
    depth_max: int = 1_000_000  # buffered runs of one environment; more are refused with 429
    operations_max: int = OPERATIONS_MOST  # changes of one buffered run; more are refused with 429 until it is drained
    payload_max_bytes: int = 3 << 20  # what the public API takes inline or as a packet
    buffer: Literal["redis", "database"] = "redis"  # "database" (strict): nothing accepted depends on Redis' memory
    volatile_redis: Literal["refuse", "warn"] = (
        "refuse"  # for a Redis that may evict entries, or has no append-only file
    )
    known_bits: int = 1 << 23  # size of the filter of known keys, 1 MB per environment: 2 % errors at a million keys
    drain_batch: int = 200  # rows of one insert: more do not make it faster
    drain_lease: float = 30.0  # a killed drainer's entries come back after this
    drain_quantum: int = 100  # entries of one environment before the next one has its turn
    sink_timeout: float = 5.0  # a sink that waits longer for a lock gives up, and its entries come again

    def __post_init__(self) -> None:
        for name in ("claim_lease", "redis_budget", "gate_window", "gate_hold", "key_life", "drain_lease"):
            if not getattr(self, name) > 0:
                raise Misconfigured(f"{name} must be more than zero")
        if self.gate not in ("on", "off", "shadow", "divert"):
            raise Misconfigured(f"gate must be on, off, shadow or divert, not {self.gate!r}")
        if self.on_timeout not in ("proceed", "refuse"):
            raise Misconfigured(f"on_timeout must be proceed or refuse, not {self.on_timeout!r}")
        if self.buffer not in ("redis", "database"):
            raise Misconfigured(f"buffer must be redis or database, not {self.buffer!r}")
        if self.known_bits < 8 or self.known_bits & (self.known_bits - 1):
            raise Misconfigured("known_bits must be a power of two")
        if min(self.gate_limit, self.depth_max, self.drain_batch, self.drain_quantum, self.operations_max) < 1:
            raise Misconfigured("gate_limit, depth_max, operations_max and the drain sizes must be at least 1")
        if self.operations_max > OPERATIONS_MOST:
            raise Misconfigured(f"operations_max must be at most {OPERATIONS_MOST}")
        if self.volatile_redis not in ("refuse", "warn"):
            raise Misconfigured(f"volatile_redis must be refuse or warn, not {self.volatile_redis!r}")


@dataclass(frozen=True, slots=True)
class Task:
    """The rules of one task; a task without rules has the defaults."""

    on_failure: Literal["free", "keep"] = "free"  # whether a failed run frees its key
    until: Literal["ttl", "terminal"] = "ttl"  # "terminal": the key lives until the run is over
    ignore: tuple[str, ...] = ()  # payload fields that may differ between retries

    def __post_init__(self) -> None:
        if self.on_failure not in ("free", "keep"):
            raise Misconfigured(f"on_failure must be free or keep, not {self.on_failure!r}")
        if self.until not in ("ttl", "terminal"):
            raise Misconfigured(f"until must be ttl or terminal, not {self.until!r}")
        object.__setattr__(self, "ignore", declared_ignore(self.ignore))
