"""For your own tests: what happens if a handler runs twice, at once, or crashes half-way?

Nothing here needs pytest; its plugin is `samekey.testing.pytest`. The suites are plain classes that pytest, or any
runner, can collect.
"""

from samekey.testing.clock import ManualClock
from samekey.testing.faulty import AsyncFaultyStore, Crashed, Fault, FaultyStore, Plan
from samekey.testing.handlers.assumptions import Report, four_assumptions
from samekey.testing.handlers.crashes import crash_everywhere, lose_lease
from samekey.testing.handlers.probes import rows
from samekey.testing.handlers.repeats import redeliver, run_in_parallel, run_twice
from samekey.testing.handlers.trials import Finding
from samekey.testing.off import off
from samekey.testing.provider import CardStolen, Charge, Decline, InsufficientFunds, LedgerProvider
from samekey.testing.stores import AsyncStoreSuite, StoreSuite

__all__ = [
    # your handlers
    "four_assumptions",
    "run_twice",
    "run_in_parallel",
    "redeliver",
    "crash_everywhere",
    "lose_lease",
    "rows",
    "off",
    "Finding",
    "Report",
    # a provider and a clock for them
    "CardStolen",
    "Charge",
    "Decline",
    "InsufficientFunds",
    "LedgerProvider",
    "ManualClock",
    # stores of your own, and faults
    "AsyncFaultyStore",
    "AsyncStoreSuite",
    "Crashed",
    "Fault",
    "FaultyStore",
    "Plan",
    "StoreSuite",
]
