"""For your own tests: suites for stores, a judge for effects, faults on demand, and every schedule of a few callers.

Nothing here needs pytest; the suites are plain classes that pytest, or any runner, can collect.
"""

from samekey.testing.clock import ManualClock
from samekey.testing.faulty import AsyncFaultyStore, Crashed, Fault, FaultyStore, Plan
from samekey.testing.provider import CardStolen, Charge, Decline, InsufficientFunds, LedgerProvider
from samekey.testing.schedules import explore
from samekey.testing.store_suite import AsyncStoreSuite, StoreSuite

__all__ = [
    "AsyncFaultyStore",
    "AsyncStoreSuite",
    "CardStolen",
    "Charge",
    "Crashed",
    "Decline",
    "Fault",
    "FaultyStore",
    "InsufficientFunds",
    "LedgerProvider",
    "ManualClock",
    "Plan",
    "StoreSuite",
    "explore",
]
