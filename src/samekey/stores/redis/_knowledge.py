"""What this process knows of its store: markers of buckets, facts about servers, and the server's clock.

A claim carries the marker of its bucket as this process knows it. A server that was wiped or replaced since refuses
the claim, and the self-check runs again before the next try. So no key is claimed in a store whose history is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from samekey.drivers.redis.address import Address
from samekey.drivers.redis.connect import Place
from samekey.drivers.redis.self_check import Facts
from samekey.stores.redis._requests import BUCKETS, TAGS


class Knowledge:
    """Shared by all connections of all threads and event loops of a process."""

    def __init__(self, address: Address, born: Sequence[bytes] = ()) -> None:
        self.address = address
        self.born: list[bytes] = [*born] or [b""] * BUCKETS  # when each marker was made, as first seen here
        self.lost: list[int] = [0] * BUCKETS  # when each bucket may have lost something, in microseconds
        self.facts: dict[str, Facts] = {}  # by server
        self.silent: dict[str, float] = {}  # servers that accepted a connection and did not answer: avoided until then
        # Published messages do not belong to a database, so the channel's name contains its number.
        self.channel_suffix = b"@%d" % address.database
        self._clock_offset = time.time() - time.monotonic()

    def channel(self, digest: bytes) -> bytes:
        """The channel of messages about this key."""
        return TAGS[digest[0]] + digest.hex().encode() + self.channel_suffix

    def learn(self, bucket: int, marker: bytes) -> None:
        born, _, lost = marker.split(b" ")
        self.born[bucket], self.lost[bucket] = born, int(lost)

    def set_clock(self, now: int) -> None:
        """Take over the server's time from a reply."""
        self._clock_offset = now / 1e6 - time.monotonic()

    def now(self) -> int:
        """An estimate of the server's time. Every script checks it before it counts."""
        return round((time.monotonic() + self._clock_offset) * 1e6)

    def is_silent(self, place: Place) -> bool:
        return time.monotonic() < self.silent.get(place.node, 0.0)

    @property
    def incarnation(self) -> str:
        runs = "+".join(sorted({one.run_id[:12] for one in self.facts.values()}))
        return f"{runs}/{self.born[0].decode()}"
