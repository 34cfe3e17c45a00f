"""The shop that the console is opened on: customers, a provider with faults, and a guard between them.

The first orders are always the same, so that the tour in the docs finds what it names. Later ones come one after
another, with a fault in every few: a slow answer, a decline, a customer who presses twice, an application that makes a
new key for each retry, an HTTP client that sends a charge twice.
"""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import suppress
from itertools import count
from typing import Any

from samekey import Absent, Asks, Conflicting, Guard, Happened, NotDone, Opaque, Policy, Refused, SamekeyError, current
from samekey.ops import Ops, Resolution

CHARGE, PAYOUT = "order.charge", "payout.create"
VERSIONS = ("web 4.1.7", "ios 8.14", "android 8.13")
REPEATER = "web 4.2.0"  # makes a new key for each retry
RESOLVER, REASON = "operator-b", "ch-0007 is on the provider's books"
DOUBLED_ORDER, DOUBLED_CUSTOMER = "order-1005", "cus_5518"
REPLAYED_ORDER, RESOLVED_ORDER = "order-1000", "order-1003"
DOUBTED_ORDERS = ("order-1004", "order-1006")
ABANDONED_ORDER = "order-1009"
FIRST_ORDERS = 24

# A process that claims a key and is gone: its lease ends, and the claim is old.
DIES = """
import os, sys
from samekey import Guard, Opaque, Policy
guard = Guard(sys.argv[1], policy=Policy(lease=1))
guard.run(sys.argv[2], lambda: os._exit(0), key=sys.argv[3], payload={"amount": 2500}, boundary=Opaque(),
          attributes={"client_version": "worker", "host": "worker-2", "source": "worker"})
"""


class Slow(TimeoutError):
    """The provider did not answer in time; the charge may be on its books."""


class Shop:
    """A shop over one store; `first_night()` makes its first orders, `one_more()` each later one."""

    def __init__(self, store: str, *, seed: int) -> None:
        self._address = store
        self._random = random.Random(seed)  # noqa: S311 - a demo, not a secret
        self._numbers = count(1000 + FIRST_ORDERS)
        self._books: dict[str, list[str]] = {}  # the provider's: order -> charges
        self.guard = Guard(store, policy=Policy(lease=30, retention=30 * 24 * 3600))
        self.guard.run(PAYOUT, int, key="payout-first", payload={}, boundary=Opaque())
        self.happened: list[str] = []  # what the last orders met, for the terminal

    def first_night(self) -> None:
        self._charge(REPLAYED_ORDER, 4900, "cus_1", again=2)
        self._charge("order-1001", 1850, "cus_2")
        self._charge("order-1002", 22000, "cus_3", fails=Refused("card_declined"))
        self._charge(RESOLVED_ORDER, 7500, "cus_4", fails=Slow(), charged=1)
        ops = Ops(self.guard.store)
        page = ops.find(RESOLVED_ORDER, operation=CHARGE)
        ops.resolve(page.records[0], Resolution.HAPPENED, who=RESOLVER, why=REASON)
        self._charge(DOUBTED_ORDERS[0], 31000, "cus_5", fails=Slow())
        self._charge(DOUBLED_ORDER, 4900, DOUBLED_CUSTOMER, fails=Slow(), charged=2, again=1)
        self._charge(DOUBTED_ORDERS[1], 1290, "cus_6", fails=Slow())
        for press in range(4):
            self._charge(f"order-1007-{press}", 2900, "cus_7", version=REPEATER, cart="cart-77")
        self._charge("order-1008", 800, "cus_8", fails=NotDone())
        self._payout("payout-2231", 412000, fails=Slow())
        command = [sys.executable, "-c", DIES, self._address, CHARGE, ABANDONED_ORDER]
        subprocess.run(command, check=True, capture_output=True, timeout=60)  # noqa: S603 - our own program
        for number in range(1010, 1000 + FIRST_ORDERS):
            self._charge(f"order-{number}", 100 * (number % 37) + 90, f"cus_{number % 11}")

    def one_more(self) -> None:
        """One order, as its customer sends it."""
        number = next(self._numbers)
        order, amount = f"order-{number}", 100 * self._random.randrange(5, 300) + 90
        party = f"cus_{self._random.randrange(1, 400)}"
        fault = self._random.choices(list(FAULTS), weights=list(FAULTS.values()))[0]
        self.happened.append(f"{order}: {fault}")
        del self.happened[:-100]
        match fault:
            case "answered":
                self._charge(order, amount, party)
            case "pressed twice":
                self._charge(order, amount, party, again=self._random.randrange(1, 4))
            case "slow, charged":
                self._charge(order, amount, party, fails=Slow(), charged=1, again=1)
            case "slow, unknown":
                self._charge(order, amount, party, fails=Slow())
            case "charged twice by the provider":
                self._charge(order, amount, party, fails=Slow(), charged=2, again=1)
            case "declined":
                self._charge(order, amount, party, fails=Refused("card_declined"))
            case "a new key for each retry":
                for press in range(2):
                    self._charge(f"{order}-{press}", amount, party, version=REPEATER, cart=f"cart-{number}")
            case "the key of another order":
                self._charge(REPLAYED_ORDER, amount, party)
            case _:
                self._payout(f"payout-{number}", amount, fails=Slow())

    def close(self) -> None:
        self.guard.close()

    def _find(self, record: Any) -> Any:
        charges = self._books.get(record.key.text, [])
        if len(charges) > 1:
            return Conflicting(tuple({"id": one} for one in charges))
        return Happened({"id": charges[0]}) if charges else Absent()

    def _charge(
        self,
        order: str,
        amount: int,
        party: str,
        *,
        fails: BaseException | None = None,
        charged: int | None = None,
        again: int = 0,
        version: str = "",
        cart: str = "",
    ) -> None:
        """`charged`: how often the charge is on the provider's books; `again`: calls after the first one."""
        version = version or self._random.choice(VERSIONS)
        attributes = {"client_version": version, "region": "eu-west", "source": version, "endpoint": "POST /v1/orders"}

        def effect() -> dict[str, Any]:
            reference = f"ch-{len(self._books) + 1:04d}"
            current().note(amount_minor=amount, currency="EUR", party=party, provider_ref=reference)
            times = (0 if fails else 1) if charged is None else charged
            if times:
                self._books[order] = [f"{reference}-{number}" if times > 1 else reference for number in range(times)]
            if fails is not None:
                raise fails
            return {"id": reference, "amount": amount, "customer": party}

        payload = {"cart": cart or order, "amount": amount}
        given = {"key": order, "payload": payload, "boundary": Asks(self._find), "attributes": attributes}
        self._call(CHARGE, effect, times=1 + again, **given)

    def _payout(self, key: str, amount: int, *, fails: BaseException) -> None:
        def effect() -> None:
            current().note(amount_minor=amount, currency="EUR", party="seller_9")
            raise fails

        attributes = {"client_version": "payouts 2", "region": "eu-west", "source": "payouts 2"}
        given = {"key": key, "payload": {"amount": amount}, "boundary": Opaque(), "attributes": attributes}
        self._call(PAYOUT, effect, times=1, **given)

    def _call(self, operation: str, effect: Any, *, times: int, **given: Any) -> None:
        """A customer who gets no answer gives up: the record shows what became of the order."""
        for _ in range(times):
            with suppress(TimeoutError, Refused, NotDone, SamekeyError):
                self.guard.run(operation, effect, **given)


FAULTS = {
    "answered": 60,
    "pressed twice": 18,
    "slow, charged": 6,
    "slow, unknown": 3,
    "charged twice by the provider": 1,
    "declined": 4,
    "a new key for each retry": 4,
    "the key of another order": 2,
    "payout, slow": 1,
}
