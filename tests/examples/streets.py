"""The example shops, started for a test: a street with a shop and a provider in it, and customers."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from samekey import Guard, Record, State
from samekey.clients import Retry, same_key
from samekey.clients.httpx import KeyTransport
from samekey.core.ports import Query
from samekey.ops import Ops

FOLDER = Path(__file__).parents[2] / "examples" / "shops"
KINDS = ("fastapi", "django")
LEASE_SECONDS = 6  # what a retry after a kill waits for


class Street:
    """A shop, its provider, and whoever buys there."""

    def __init__(self, shop: Any) -> None:
        self.shop = shop

    def customer(self, name: str = "ann") -> httpx.Client:
        """A client as docs/clients.md has it: one key for an operation, kept across its retries."""
        return httpx.Client(
            base_url=self.shop.url,
            headers={"Authorization": f"Bearer {name}-token"},
            timeout=60,
            transport=KeyTransport(hosts={"127.0.0.1"}, retry=Retry(first_wait_seconds=0.1, longest_wait_seconds=10)),
        )

    def buy(self, path: str, what: Any, key: str, name: str = "ann") -> httpx.Response:
        with self.customer(name) as client, same_key(key):
            return client.post(path, json=what)

    def buy_while(self, path: str, what: Any, key: str, happening: Callable[[Any], None]) -> httpx.Response:
        """Buy; when the provider has written its line and withholds the answer, let this happen."""
        httpx.post(f"{self.shop.provider}/hold", json={}).raise_for_status()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.buy, path, what, key)
            happening(httpx.get(f"{self.shop.provider}/held", timeout=60).json())
            return answer.result(90)

    def ledger(self, order: str | None = None) -> list[Any]:
        lines = httpx.get(f"{self.shop.provider}/ledger", timeout=60).json()
        return [line for line in lines if order in (None, line["order"])]

    def samekey(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "samekey", *words, "--store", self.shop.store]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def records(self, operation: str) -> list[Record]:
        """Every record of this operation but those of what did not happen."""
        guard, found = Guard(self.shop.store), list[Record]()
        query: Any = Query(operation=operation, limit=1000)
        while query is not None:
            page = Ops(guard.store).list_records(query)
            found += page.records
            query = page.before and Query(operation=operation, limit=1000, before=page.before)
        guard.close()
        return [record for record in found if record.state is not State.RELEASED]


@contextmanager
def street_with(kind: str, folder: Path, *, workers: int) -> Iterator[Street]:
    """A street with this shop in it; NoServer if it lacks its database."""
    sys.path.insert(0, str(FOLDER))
    try:
        running = importlib.import_module("running").running
        with running(kind, folder, workers=workers, lease_seconds=LEASE_SECONDS) as shop:
            yield Street(shop)
    finally:
        sys.path.remove(str(FOLDER))
