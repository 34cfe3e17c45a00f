"""The key table of the textbook column: SET with NX and a TTL, GET, DELETE - what people use Redis for.

A process of its own, as the real one would be: it outlives the workers that are killed.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from samekey.cli.demo._service import Remote, inbox, serve

KEYS_TIMEOUT_SECONDS = 5.0  # a key table answers at once; longer than any hiccup of a busy machine


class Keys:
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


class KeyTable:
    """The key table as the textbook's code sees it."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def set(self, key: str, value: Any, *, nx: bool = False, ttl_seconds: float) -> bool:
        answer = self._remote.call(
            "set", timeout_seconds=KEYS_TIMEOUT_SECONDS, key=key, value=value, nx=nx, ttl_seconds=ttl_seconds
        )
        return bool(answer)

    def get(self, key: str) -> Any:
        return self._remote.call("get", timeout_seconds=KEYS_TIMEOUT_SECONDS, key=key)

    def delete(self, key: str) -> None:
        self._remote.call("delete", timeout_seconds=KEYS_TIMEOUT_SECONDS, key=key)


def main() -> None:
    part, keys = inbox().get(), Keys()
    serve({"set": keys.set, "get": keys.get, "delete": keys.delete}, secret=part["secret"])


if __name__ == "__main__":
    main()
