"""A front in this process's memory that does what fronts do: forget, go away, go back in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from samekey.core.errors import StoreUnavailable
from samekey.core.layers import Sight, order_of
from samekey.loops import Bells

MARK_SECONDS = 1.0


class MemoryFront:
    """For `LayeredStore`. `away` makes it fail; `words` may be emptied, kept aside and put back."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.name = "memory-front://"
        self.bells = Bells()
        self.words: dict[bytes, tuple[bytes, float]] = {}
        self.away = False
        self.calls: list[str] = []
        self._clock = clock
        self._mutex = threading.Lock()

    def look(self, digest: bytes, *, mark: bool) -> Sight:
        self._here("look")
        with self._mutex:
            now = self._clock()
            word, until = self.words.get(digest, (None, 0.0))
            if word is not None and until > now:
                return Sight(now, word)
            if mark:
                self.words[digest] = (b"", now + MARK_SECONDS)
            return Sight(now, None, marked=mark)

    def put(self, digest: bytes, word: bytes, until: float) -> None:
        self._here("put")
        with self._mutex:
            now = self._clock()
            there, ends = self.words.get(digest, (b"", 0.0))
            if ends > now and order_of(there) >= order_of(word):
                return
            if until > now:
                self.words[digest] = (word, until)
            else:
                self.words.pop(digest, None)  # told too late to be believed; what it replaces is older still
        self.bells.ring(digest)

    @contextmanager
    def watching(self, digest: bytes) -> Iterator[None]:
        yield

    def close(self) -> None:
        """Nothing to close."""

    def _here(self, verb: str) -> None:
        self.calls.append(verb)
        if self.away:
            raise StoreUnavailable("the front is away")


class AsyncMemoryFront:
    """The same, awaited; with its own memory or that of a MemoryFront."""

    def __init__(self, shared: MemoryFront | None = None) -> None:
        self.sync = shared if shared is not None else MemoryFront()
        self.name = self.sync.name
        self.bells = self.sync.bells
        self.watching = self.sync.watching

    async def look(self, digest: bytes, *, mark: bool) -> Sight:
        return self.sync.look(digest, mark=mark)

    async def put(self, digest: bytes, word: bytes, until: float) -> None:
        self.sync.put(digest, word, until)

    async def close(self) -> None:
        self.sync.close()
