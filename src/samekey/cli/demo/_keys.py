"""The key table of the textbook column: SET with NX and a TTL, GET, DELETE - what people use Redis for.

It is in the process of the provider, which outlives the workers that are killed.
"""

from __future__ import annotations

import threading
import time
from typing import Any

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
