"""Interrupts: Ctrl-C, or a signal handler that raises when a time limit is over, at every place where they may strike.

Whoever is interrupted takes nobody with it: no reply of its is left for the next caller, and its turn is passed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

import samekey
from samekey import Guard
from samekey.core.commands import Open
from samekey.core.fingerprint import Fingerprint
from samekey.core.key import make_key
from samekey.drivers.redis import Wire
from samekey.stores.redis import RedisStore
from samekey.testing.redis_servers import RedisServer, redis_server

A, B = "a" * 32, "b" * 32
ROOM = str(Path(samekey.__file__).parent)
ANSWER_SECONDS = 20.0  # nobody waits so long for an answer, unless there will be none


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    ours = RedisStore(server.url())
    yield ours
    ours.close()


def opening(text: str | None = None, *, by: str = A) -> Open:
    return Open(make_key("own", text or uuid4().hex), by, Fingerprint(b"\x01" * 32, "1", ()), "opaque", 30.0, False)


# -- replies -------------------------------------------------------------------------------------------------


class TimeLimit(Exception):
    """What a signal handler raises, as those of task queues do."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeLimit])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_reply_to_who_was_interrupted_is_nobody_else_s(server, monkeypatch, kind, nth):
    """After the bytes of a claim, or of a settle, have left: the next caller's key was completed, and is replayed."""
    effects: list[str] = []

    def twice() -> str:
        effects.append("twice")
        return "paid again"

    keys = [uuid4().hex for _ in range(3)]
    with Guard(server.url()) as guard:
        for key in keys:
            guard.run("charge", lambda: "paid", key=key, payload=1)
        send, sent = Wire.send, count(1)

        def striking(self: Wire, data: bytes, replies: int) -> int:
            owed = send(self, data, replies)
            if next(sent) == nth:
                raise kind
            return owed

        with monkeypatch.context() as patched:
            patched.setattr(Wire, "send", striking)
            with pytest.raises(kind):
                guard.run("charge", lambda: "other", key=uuid4().hex, payload=1)
        again = [guard.run("charge", twice, key=key, payload=1) for key in keys]

    assert [(one.result, one.replayed) for one in again] == [("paid", True)] * 3
    assert effects == []
