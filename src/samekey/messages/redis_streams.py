"""Redis streams: a consumer of a group that handles each message once.

    consumer = RedisStreamsConsumer(handler, redis.Redis(...), "orders", "billing", consumer="billing-1")
    consumer.run()

| action         | Redis                                                                                        |
|----------------|----------------------------------------------------------------------------------------------|
| ack            | XACK                                                                                         |
| later, free    | if the entry is still ours: XCLAIM to the consumer `samekey-later` so that it is due then, JUSTID |
| later, counted | the same without JUSTID: the delivery count rises                                            |
| park, dead     | written first (to the store, or XADD), then XACK                                             |
| silent         | nothing: the entry is claimed when it was idle for `min_idle`                                 |

An entry whose consumer died is claimed by another one, and that counts as a try. The timer is renewed by a script that
looks at the owner first: a plain XCLAIM would take the entry from its new owner.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import redis

from samekey.messages._ack import Action
from samekey.messages._message import Message
from samekey.messages._polling import PollingConsumer
from samekey.messages.handler import Handler

LATER = "samekey-later"  # the consumer that owns what comes later
BLOCK_MS = 500
IDLE_PART = 4 / 3  # min_idle of a lease

# KEYS stream   ARGV group, owner, id, new owner, idle ms, "JUSTID" or ""
_CLAIM = """
local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)
if #held == 0 or held[1][2] ~= ARGV[2] then return 0 end
if ARGV[6] == 'JUSTID' then
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, ARGV[3], 'IDLE', ARGV[5], 'JUSTID')
else
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[4], 0, ARGV[3], 'IDLE', ARGV[5])
end
return 1
"""


class RedisStreamsConsumer(PollingConsumer):
    """Consumes one stream as a member of a group; the group is made if there is none.

    field     the field of an entry that is the message; the others are its headers
    min_idle  seconds after which an entry without an answer goes to another consumer; 4/3 of the lease if not given
    parked, dead   streams for what is set aside, where the handler has park="broker" or dead="broker"
    """

    def __init__(
        self,
        handler: Handler,
        client: redis.Redis,
        stream: str,
        group: str,
        *,
        consumer: str,
        workers: int = 4,
        field: str = "body",
        min_idle: float | None = None,
        parked: str | None = None,
        dead: str | None = None,
    ) -> None:
        idle = handler.lease_seconds * IDLE_PART if min_idle is None else min_idle
        super().__init__(handler, workers=workers, timer_seconds=idle, source=stream)
        self._redis: Any = client
        self._stream, self._group, self._consumer, self._field = stream, group, consumer, field
        self._idle_ms = int(idle * 1000)
        self._claim = client.register_script(_CLAIM)
        self._places = {"park": parked or f"{stream}.parked", "dead": dead or f"{stream}.dead"}
        self._made = False

    def poll(self, most: int) -> Sequence[Message]:
        if not self._made:
            with contextlib.suppress(redis.ResponseError):  # BUSYGROUP: it is there
                self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True)
            self._made = True
        found = self._due(most)
        if len(found) < most:
            block = None if found else BLOCK_MS
            read = self._redis.xreadgroup(
                self._group, self._consumer, {self._stream: ">"}, count=most - len(found), block=block
            )
            for _, entries in read or ():
                found += [self._message(id, fields, 1) for id, fields in entries]
        return found

    def _due(self, most: int) -> list[Message]:
        """What another consumer left without an answer, and what was to come later."""
        found = []
        for row in self._redis.xpending_range(self._stream, self._group, "-", "+", count=most, idle=self._idle_ms):
            id, owner = row["message_id"], _text(row["consumer"])
            free = owner == LATER
            claimed = self._redis.xclaim(self._stream, self._group, self._consumer, self._idle_ms, [id], justid=free)
            if not claimed:
                continue  # another consumer was first
            entries = self._redis.xrange(self._stream, id, id)
            if entries:
                tries = int(row["times_delivered"]) + (not free)
                found.append(self._message(id, entries[0][1], tries))
            else:  # trimmed while it waited: its body is gone
                self._redis.xack(self._stream, self._group, id)
        return found

    def _message(self, id: Any, fields: dict[Any, Any], tries: int) -> Message:
        texts = {_text(name): value for name, value in fields.items()}
        body = texts.pop(self._field, b"")
        headers = {name: _text(value) for name, value in texts.items()}
        return Message(
            body if isinstance(body, bytes) else str(body).encode(), headers, self._stream, tries, _text(id), id
        )

    def extend(self, message: Message) -> None:
        self._owned(message, self._consumer, 0, free=True)

    def translate(self, message: Message, action: Action) -> None:
        if action.verb == "later":
            idle = max(0, self._idle_ms - int(action.seconds * 1000))
            self._owned(message, LATER, idle, free=not action.counted)
            return
        place = {"park": self._handler.parks_in, "dead": self._handler.dead_in}.get(action.verb)
        with self._redis.pipeline(transaction=True) as pipe:
            if place == "broker":
                aside = {**message.headers, self._field: message.body, "samekey-reason": action.reason}
                pipe.xadd(
                    self._places[action.verb], {**aside, "samekey-origin": json.dumps([self._stream, message.id])}
                )
            pipe.xack(self._stream, self._group, message.raw)
            pipe.execute()

    def _owned(self, message: Message, owner: str, idle: int, *, free: bool) -> None:
        """Claim the entry, if it is still ours."""
        arguments = [self._group, self._consumer, message.raw, owner, idle, "JUSTID" if free else ""]
        self._claim(keys=[self._stream], args=arguments)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
