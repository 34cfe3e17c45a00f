"""Commits of other processes, where the database sends no notification: a thread looks while a caller waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakSet

from samekey.core.errors import SamekeyError
from samekey.loops import Bells, started

Versions = Callable[[Sequence[bytes]], Mapping[bytes, Any]]  # for each digest a value that every write changes


class _Waiter:
    __slots__ = ("__weakref__", "digest")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest


class Watch:
    """Rings the bells of the records that moved. It is a hint only: each waiter re-reads its record by itself."""

    def __init__(
        self, bells: Bells, reading: Callable[[], AbstractContextManager[Versions]], seconds: float, again: float
    ) -> None:
        self._bells, self._reading = bells, reading
        self._seconds, self._again_seconds = seconds, again  # between two looks, and after one that failed
        self._mutex = threading.Lock()
        self._waiting: WeakSet[_Waiter] = WeakSet()  # weak: a caller that was interrupted waits no more
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @contextmanager
    def watching(self, digest: bytes) -> Iterator[None]:
        """A `with` block in which a caller waits for this digest."""
        waiter = _Waiter(digest)
        with self._mutex:
            self._waiting.add(waiter)
            if self._thread is None or not self._thread.is_alive():  # an interrupt may have struck before its start
                self._thread = threading.Thread(target=self._run, name="samekey-watch", daemon=True)
                started(self._thread)
        try:
            yield
        finally:
            with self._mutex:
                self._waiting.discard(waiter)

    def close(self, seconds: float = 0.0) -> None:
        """End the thread; wait for its end no longer than `seconds`."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(seconds)

    def _run(self) -> None:
        seen: dict[bytes, Any] = {}
        while self._awaited():
            try:
                with self._reading() as versions:
                    while digests := self._awaited():
                        rows = versions(digests)
                        now = {digest: rows.get(digest) for digest in digests}
                        # Also at the first look: the record may have moved after the waiter looked and before we did.
                        for digest in [one for one in digests if one not in seen or now[one] != seen[one]]:
                            self._bells.ring(digest)
                        seen = now
                        self._stop.wait(self._seconds)
            except SamekeyError:
                self._stop.wait(self._again_seconds)

    def _awaited(self) -> list[bytes]:
        """The digests that callers wait for; without any, the thread ends."""
        with self._mutex:
            digests = [] if self._stop.is_set() else list({waiter.digest for waiter in self._waiting})
            if not digests:
                self._thread = None
            return digests
