"""Alerts to a Redis stream."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl, urlencode, urlsplit

from samekey.core.errors import Misconfigured
from samekey.detect.watching.outputs import Found, OutputFailed
from samekey.drivers.reading import CannotRead
from samekey.drivers.redis.appending import RedisStream

ENTRIES_KEPT = 100_000


class RedisOutput:
    """`redis://host:6379/0?stream=alerts`: an entry has the fields id, key and alert."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        stream = options.pop("stream", "")
        if not stream:
            raise Misconfigured("name the stream: redis://host:6379/0?stream=samekey-alerts")
        plain = parts._replace(query=urlencode(options)).geturl()
        self._stream = RedisStream(plain, stream, ENTRIES_KEPT)
        self.name = f"{self._stream.name} stream {stream}"

    def deliver(self, found: Found) -> None:
        entries = [
            {"id": one["id"].encode(), "key": one["key"].encode(), "alert": json.dumps(one).encode()} for one in found
        ]
        try:
            self._stream.append(entries)
        except CannotRead as error:
            raise OutputFailed(error.message) from error

    def close(self) -> None:
        self._stream.close()
