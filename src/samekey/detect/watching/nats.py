"""Alerts to a NATS JetStream subject. The only file of detect that imports nats."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import nats
from nats.errors import Error as NatsError

from samekey.core.errors import Misconfigured
from samekey.detect.watching.outputs import Found, OutputFailed

ANSWER_SECONDS = 5.0


class NatsOutput:
    """Published to a stream that exists. `Nats-Msg-Id` is the alert's id, so the server drops a repeat."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._subject = parts.path.strip("/")
        if not parts.hostname or not self._subject:
            raise Misconfigured("an address of NATS is nats://host:4222/subject")
        self._server = f"nats://{parts.netloc}"
        self.name = f"nats://{parts.netloc.rpartition('@')[2]}/{self._subject}"

    def deliver(self, found: Found) -> None:
        try:
            asyncio.run(asyncio.wait_for(self._publish(found), ANSWER_SECONDS * 3))
        except (NatsError, OSError, TimeoutError) as error:
            raise OutputFailed(f"{type(error).__name__} {error}".strip()) from error

    async def _publish(self, found: Found) -> None:
        link = await nats.connect(
            self._server, connect_timeout=int(ANSWER_SECONDS), allow_reconnect=False, max_reconnect_attempts=0
        )
        try:
            stream = link.jetstream(timeout=ANSWER_SECONDS)
            for one in found:
                headers = {"Nats-Msg-Id": one["id"], "samekey-key": one["key"]}
                await stream.publish(self._subject, json.dumps(one).encode(), headers=headers)
        finally:
            await link.close()

    def close(self) -> None:
        """A connection is made for each delivery: alerts are rare."""
