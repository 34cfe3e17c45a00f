"""Threads for effects. They are daemons: an effect that a shutdown has cut must not keep its process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Threads:
    """So many threads that carry out what is submitted, in order."""

    def __init__(self, number: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{one}", daemon=True) for one in range(number)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], Any]) -> None:
        """Carry this out as soon as a thread is free; it must not raise."""
        self._work.put(work)

    def close(self) -> None:
        """Let the threads end when they have nothing more to do; does not wait."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
