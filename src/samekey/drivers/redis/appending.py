"""Appending entries to a Redis stream: one connection to one server, for alerts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from samekey.core.errors import Misconfigured
from samekey.drivers.reading import CannotRead
from samekey.drivers.redis.address import parse_url
from samekey.drivers.redis.connect import connect, new_connection


class RedisStream:
    def __init__(self, url: str, stream: str, keep: int) -> None:
        """`keep`: about how many entries the stream has at most."""
        address = parse_url(url)
        if address.cluster or address.sentinel:
            raise Misconfigured("alerts go to one Redis server: name it without ?cluster and ?sentinel")
        self.name, self._stream, self._keep = address.name, stream, keep
        self._place = address.places[0]
        self._connection: Any = None

    def append(self, entries: Sequence[Mapping[str, bytes]]) -> None:
        """Append these entries in their order. After a lost reply an entry may be there twice."""
        try:
            if self._connection is None:
                self._connection = new_connection(self._place)
                connect(self._connection)
            for entry in entries:
                fields = [part for name, value in entry.items() for part in (name, value)]
                self._connection.send_command("XADD", self._stream, "MAXLEN", "~", self._keep, "*", *fields)
                self._connection.read_response()
        except (redis.RedisError, OSError) as error:
            self.close()
            raise CannotRead(f"{self.name}: {error}") from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
