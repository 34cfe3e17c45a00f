"""The payment provider: it charges whatever it is asked to, as often as it is asked, and keeps a ledger.

It does not dedup by key - many real ones do not - but it can be asked what is on its books. The ledger
is the judge of the demo: no column is believed about itself.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from samekey.cli.demo._plan import COLUMNS, LATE_CHARGE_SECONDS, SLOW_ANSWER_SECONDS, TIMEOUT_SECONDS, Fault, plan
from samekey.cli.demo._service import Message, Remote, inbox, serve

LEDGER_TIMEOUT_SECONDS = 10.0  # the judge is asked at leisure
KEYS_TIMEOUT_SECONDS = 5.0  # a key table answers at once; longer than any hiccup of a busy machine


class Provider:
    """The provider itself: one thread for each request."""

    def __init__(self, *, ledger: Path, seed: int, orders: int) -> None:
        self._orders = {order.id: order for order in plan(seed=seed, orders=orders)}
        self._file = ledger.open("a", encoding="utf-8")
        self._charges: list[Message] = []
        self._lookups: Counter[str] = Counter()
        self._seen: set[tuple[str, str]] = set()
        self._on_their_way = 0  # asked for, and not yet on the books
        self._mutex = threading.Lock()

    def charge(self, *, column: str, order: str, amount: int, pid: int) -> Message:
        planned, begun = self._orders[order], time.monotonic()
        fault = planned.fault if self._came_first(column, order) else Fault.NONE
        if fault is Fault.LATE:
            time.sleep(LATE_CHARGE_SECONDS)
        charged = self._write(column, order, amount)
        if fault is Fault.KILLED:
            os.kill(pid, signal.SIGKILL)  # one of our own workers, waiting for this very answer
        slow = fault in (Fault.SLOW, Fault.LATE)
        wanted = SLOW_ANSWER_SECONDS if slow else planned.answer_seconds
        time.sleep(max(0.0, begun + wanted - time.monotonic()))
        return charged

    def find(self, *, column: str, order: str) -> list[Message]:
        with self._mutex:
            self._lookups[column] += 1
            return [charge for charge in self._charges if (charge["column"], charge["order"]) == (column, order)]

    def books(self) -> Message:
        """How often each order was charged, and how often we were asked, for each column."""
        with self._mutex:
            charged = {column: Counter[str]() for column in COLUMNS}
            for charge in self._charges:
                charged[charge["column"]][charge["order"]] += 1
            return {"charged": charged, "lookups": self._lookups, "on_their_way": self._on_their_way}

    def _came_first(self, column: str, order: str) -> bool:
        with self._mutex:
            self._on_their_way += 1
            first = (column, order) not in self._seen
            self._seen.add((column, order))
            return first

    def _write(self, column: str, order: str, amount: int) -> Message:
        with self._mutex:
            charge = {"id": f"ch-{len(self._charges) + 1:04d}", "column": column, "order": order, "amount": amount}
            self._charges.append(charge)
            self._file.write(json.dumps(charge) + "\n")
            self._file.flush()
            self._on_their_way -= 1
            return charge


class Till:
    """The provider as one column's workers see it."""

    def __init__(self, remote: Remote, column: str) -> None:
        self._call = partial(remote.call, timeout_seconds=TIMEOUT_SECONDS, column=column)

    def charge(self, order: str, amount: int) -> Any:
        """The charge; TimeoutError after 300 ms, when it is unknown whether the charge arrived."""
        return self._call("charge", order=order, amount=amount, pid=os.getpid())

    def find(self, order: str) -> Any:
        """Every charge of this order on the provider's books."""
        return self._call("find", order=order)


class Keys:
    """The key table of the textbook column: SET with NX and a TTL, GET, DELETE, for which people use Redis.

    It is in this process, which outlives the workers that are killed.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[Any, float]] = {}
        self._mutex = threading.Lock()

    def set(self, *, key: str, value: Any, nx: bool, ttl_seconds: float) -> bool:
        now = time.monotonic()
        with self._mutex:
            if nx and key in self._rows and self._rows[key][1] > now:
                return False
            self._rows[key] = (value, now + ttl_seconds)
            return True

    def get(self, *, key: str) -> Any:
        with self._mutex:
            value, until = self._rows.get(key, (None, 0.0))
        return value if until > time.monotonic() else None

    def delete(self, *, key: str) -> None:
        with self._mutex:
            self._rows.pop(key, None)


def main() -> None:
    part = inbox().get()
    provider, keys = Provider(ledger=Path(part["ledger"]), seed=part["seed"], orders=part["orders"]), Keys()
    handlers = (provider.charge, provider.find, provider.books, keys.set, keys.get, keys.delete)
    serve({handler.__name__: handler for handler in handlers}, secret=part["secret"])


if __name__ == "__main__":
    main()
