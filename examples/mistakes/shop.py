"""What the handlers in this folder share: a table of keys in a real database, a provider with books, a clock.

Each file beside this one has one classic mistake: `broken(shop)` makes it, `repaired(shop)` does not, and `BREAKS`
names the assumptions that give way. `python examples/mistakes check_then_insert` prints the story.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from samekey import AsyncGuard, Guard, KeyReused, Policy
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.stores.sqlite import SqliteStore
from samekey.testing import InsufficientFunds, LedgerProvider, ManualClock, Report, four_assumptions


class Row(NamedTuple):
    intent: str  # what was asked for under this key
    answer: str | None  # None: a caller works on it, or died while it did
    until: float  # a time, for those who use one


class Keys:
    """A key table by hand, one per worker: the statements are right, what is made of them is each handler's own."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("CREATE TABLE IF NOT EXISTS keys (key PRIMARY KEY, intent, answer, until)")

    def find(self, key: str) -> Row | None:
        row = self._db.execute("SELECT intent, answer, until FROM keys WHERE key = ?", (key,)).fetchone()
        return None if row is None else Row(*row)

    def insert(self, key: str, intent: Any, answer: str | None = None, until: float = 0) -> bool:
        """Whether the row is new: one statement, so it is the check as well."""
        row = (key, str(intent), answer, until)
        return self._db.execute("INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?)", row).rowcount == 1

    def answer(self, key: str, answer: str) -> None:
        self._db.execute("UPDATE keys SET answer = ? WHERE key = ?", (answer, key))

    def delete(self, key: str) -> None:
        self._db.execute("DELETE FROM keys WHERE key = ?", (key,))

    def replay(self, key: str, intent: Any) -> str:
        """What a key that is taken says."""
        row = self.check(key, intent)
        if row is None or row.answer is None:
            raise RuntimeError(f"{key} is held by another caller, or in doubt: ask a person, do not charge")
        return row.answer

    def check(self, key: str, intent: Any) -> Row | None:
        """The row of a key, if it was claimed for the same."""
        row = self.find(key)
        if row is not None and row.intent != str(intent):
            raise KeyReused(f"{key} came with {row.intent} before")
        return row


class Shop:
    """One database, one provider, one clock; any number of workers."""

    declined = InsufficientFunds  # what the provider says when it knows that nothing was charged

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock(1_700_000_000)
        self.provider = LedgerProvider(clock=self.clock, sleep=self.clock.advance)
        self._open: list[Any] = []
        self._memory = MemoryStore(self.clock)

    def keys(self) -> Keys:
        keys = Keys(self.folder / "shop.db")
        self._open.append(keys._db)
        return keys

    def guard(self) -> Guard:
        guard = Guard(
            SqliteStore(self.folder / "samekey.db", clock=self.clock), policy=Policy(releases=(InsufficientFunds,))
        )
        self._open.append(guard)
        return guard

    def async_guard(self) -> AsyncGuard:
        return AsyncGuard(AsyncMemoryStore(self._memory), policy=Policy(releases=(InsufficientFunds,)))

    def __enter__(self) -> "Shop":
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._open:
            one.close()


def tried(make: Callable[[Shop], Any], shop: Shop, mistake: Any) -> Report:
    """What the test kit says about this handler; every worker has its own, on the same database."""
    return four_assumptions(
        make(shop),
        payload=getattr(mistake, "PAYLOAD", {"order_id": "o", "amount": 200, "client_ts": 1}),
        other_payload={"amount": 500},
        key="order_id",
        ignore=("client_ts",),
        provider=shop.provider,
        clock=shop.clock,
        elsewhere=lambda: make(shop),
    )
