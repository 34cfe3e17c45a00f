"""Connections to Redis: bytes out, replies in, in the order in which they were asked for.

redis-py makes the connection (TLS, users, sockets, databases) and hands it over. From then on the bytes are ours:
commands are packed here, and hiredis reads the replies. redis-py's own reading costs more than all else that we do
for a command, and it knows only one question at a time.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import hiredis
import redis
import redis.asyncio.connection as async_connections
import redis.connection as sync_connections
from redis.backoff import NoBackoff
from redis.retry import Retry

from samekey.core.errors import Misconfigured

CONNECT_SECONDS = 3.0  # a server on the same network answers in milliseconds
ANSWER_SECONDS = 5.0  # our scripts take microseconds; after that the server is taken for gone
HASTY_SECONDS = 0.25  # both, where a slow answer is no better than none: a front
READ_BYTES = 1 << 16  # taken from a socket at a time

Kind = Literal["tcp", "tls", "unix"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one server is, and how one gets in."""

    kind: Kind
    settings: Mapping[str, Any] = field(repr=False)  # redis-py's words for it; may hold a password
    hasty: bool = False

    @property
    def connect_seconds(self) -> float:
        return HASTY_SECONDS if self.hasty else CONNECT_SECONDS

    @property
    def answer_seconds(self) -> float:
        return HASTY_SECONDS if self.hasty else ANSWER_SECONDS

    @property
    def node(self) -> str:
        if self.kind == "unix":
            return str(self.settings.get("path", ""))
        return f"{self.host}:{self.settings.get('port', 6379)}"

    @property
    def host(self) -> str:
        return str(self.settings.get("host", "localhost"))

    def at(self, host: str, port: int) -> Place:
        """The same way in, at another server."""
        return replace(self, settings={**self.settings, "host": host, "port": port})


class Lost(Exception):
    """The connection broke after something was sent: what it did is not known. `answers` came before that."""

    def __init__(self, cause: BaseException, answers: Sequence[Any] = ()) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.cause, self.answers = cause, answers


def packed(words: Sequence[bytes]) -> bytes:
    """One command as it travels: every word with its length, so that no word can be taken for another."""
    return _shape(len(words)) % tuple([part for word in words for part in (len(word), word)])


@lru_cache(maxsize=1024)
def _shape(count: int) -> bytes:
    return shape((), count)


def shape(first: Sequence[bytes], more: int) -> bytes:
    """A command that begins with these words, to be filled in (`%`) with the length and the text of so many more."""
    begun = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in first]).replace(b"%", b"%%")
    return b"*%d\r\n" % (len(first) + more) + begun + b"$%d\r\n%b\r\n" * more


def _new_reader() -> hiredis.Reader:
    """Replies as bytes, numbers and lists; a reply that is an error comes back as one, in the server's own words."""
    return hiredis.Reader(protocolError=redis.InvalidResponse, replyError=redis.ResponseError)


class Wire:
    """One connection, used by one thread at a time."""

    def __init__(self, place: Place) -> None:
        classes: dict[Kind, Any] = {
            "tcp": sync_connections.Connection,
            "tls": sync_connections.SSLConnection,
            "unix": sync_connections.UnixDomainSocketConnection,
        }
        deadlines = {"socket_timeout": place.answer_seconds, "socket_connect_timeout": place.connect_seconds}
        self._link = _made(classes[place.kind], **_own(place, **deadlines), retry=Retry(NoBackoff(), 0))
        self._reader = _new_reader()
        self._sock: Any = None
        self._owed = 0  # replies to what was said, from before its first byte until the last of them was read

    def connect(self) -> None:
        try:
            self._link.connect()
        except (redis.RedisError, OSError):
            raise
        except Exception as error:
            self._link.disconnect()
            raise _not_let_in(error) from error
        self._sock = self._link._sock

    def send(self, data: bytes, replies: int) -> int:
        """Say this; the replies to it are then to be received: pass on what this returns."""
        sock = self._sock
        if sock is None:
            raise Lost(redis.ConnectionError("the connection was closed"))
        if self._owed:  # whoever spoke before us was interrupted (Ctrl-C, a time limit): its replies would answer us
            self.close()
            raise Lost(redis.ConnectionError("somebody was interrupted on this connection"))
        self._owed = replies
        try:
            sock.sendall(data)
        except OSError as error:
            self.close()
            raise Lost(error) from error
        return replies

    def receive(self, count: int) -> list[Any]:
        answers: list[Any] = []
        gets = self._reader.gets
        try:
            while len(answers) < count:
                while (answer := gets()) is False:
                    self._read()
                answers.append(answer)
        except (redis.RedisError, OSError) as error:
            self.close()
            raise Lost(error, answers) from error
        self._owed = 0
        return answers

    def hear(self, ears: int, seconds: float) -> list[Any] | None:
        """What comes unasked; None when nothing came, or `ears` can be read."""
        try:
            while (said := self._reader.gets()) is False:
                sock = self._sock
                if sock is None:
                    raise redis.ConnectionError("disconnected")
                awaited = select.poll()  # `select` knows no more than 1024 files
                awaited.register(sock, select.POLLIN)
                awaited.register(ears, select.POLLIN)
                if sock.fileno() not in dict(awaited.poll(seconds * 1000)):
                    return None
                self._read()
        except (redis.RedisError, OSError, ValueError) as error:
            self.close()
            raise Lost(error) from error
        return said if isinstance(said, list) else None

    def close(self) -> None:
        self._sock = None
        self._link.disconnect()

    def _read(self) -> None:
        sock = self._sock
        if sock is None:
            raise redis.ConnectionError("the connection was closed")
        # As much as there is of a TLS record, or a poll would not tell about the rest.
        data = sock.recv(READ_BYTES)
        if not data:
            raise redis.ConnectionError("the server closed the connection")
        self._reader.feed(data)


class Asker(Protocol):
    """Whoever asked something: told the replies, or that there will be none. Raises nothing."""

    def heard(self, answers: list[Any]) -> None: ...
    def lost(self, lost: Lost) -> None: ...


class AsyncWire(asyncio.Protocol):
    """One connection for all tasks of a loop: anyone may ask at any time, and is answered in turn."""

    def __init__(self, place: Place) -> None:
        classes: dict[Kind, Any] = {
            "tcp": async_connections.Connection,
            "tls": async_connections.SSLConnection,
            "unix": async_connections.UnixDomainSocketConnection,
        }
        deadlines = {"socket_timeout": None, "socket_connect_timeout": place.connect_seconds}
        self._link = _made(classes[place.kind], **_own(place, **deadlines), retry=_no_async_retry())
        self._answer_seconds = place.answer_seconds
        self._reader = _new_reader()
        self._asked: deque[tuple[int, Asker]] = deque()  # how many replies to whom, in the order of the bytes
        self._answers: list[Any] = []  # to the first of them, so far
        self._listener: Asker | None = None  # of what comes unasked
        self._heard_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = True
        self._streams: Any = None
        self._transport: Any = None

    async def connect(self) -> None:
        try:
            await self._link.connect()
        except (redis.RedisError, OSError):
            raise
        except Exception as error:
            await self._link.disconnect(nowait=True)
            raise _not_let_in(error) from error
        self._loop = asyncio.get_running_loop()
        # The streams are kept as long as we are: they close the connection when they go. redis-py forgets them.
        self._streams = self._link._reader, self._link._writer
        self._transport = self._link._writer.transport
        self._link._reader = self._link._writer = None
        self._transport.set_protocol(self)
        self._closed = False

    # -- asking ----------------------------------------------------------------------------------------------

    def ask(self, data: bytes, replies: int, asker: Asker) -> None:
        """Say this, and have the asker told all replies to it at once."""
        if self._closed:
            raise Lost(redis.ConnectionError("the connection was closed"))
        if not self._asked:
            self._heard_at = self._loop.time()
            if self._alarm is None:
                self._alarm = self._loop.call_later(self._answer_seconds, self._check)
        try:
            self._asked.append((replies, asker))
            self._transport.write(data)
        except BaseException as interrupted:
            self._end(interrupted)
            raise

    async def send(self, data: bytes, replies: int) -> Reception:
        """Say this; the replies to it are then to be received."""
        reception = Reception(self._loop.create_future())
        self.ask(data, replies, reception)
        return reception

    async def receive(self, reception: Reception) -> list[Any]:
        return await reception.answers()

    def listen(self, listener: Asker) -> None:
        """From now on nothing is asked here: whatever comes is for this one, and so is the end of it."""
        self._listener = listener

    def tell(self, data: bytes) -> None:
        """Say this; what is answered comes unasked."""
        if not self._closed:
            self._transport.write(data)

    # -- being answered --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        asked, gets = self._asked, self._reader.gets
        try:
            self._reader.feed(data)
            while (reply := gets()) is not False:
                if not asked:
                    if self._listener is not None:
                        self._listener.heard([reply])
                        continue
                    raise redis.InvalidResponse("the server answers what nobody asked")
                answers = self._answers
                answers.append(reply)
                if len(answers) == asked[0][0]:
                    self._answers = []
                    asked.popleft()[1].heard(answers)
        except redis.RedisError as error:
            self._end(error)
        except BaseException as interrupted:  # a reply may be missing: all that come after it would be another's
            self._end(interrupted)
            raise
        self._heard_at = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or redis.ConnectionError("the connection was closed"))

    def _check(self) -> None:
        """One alarm for whatever is under way: nothing was heard for too long."""
        self._alarm = None
        if not self._asked:
            return
        left = self._heard_at + self._answer_seconds - self._loop.time()
        if left > 0:
            self._alarm = self._loop.call_later(left, self._check)
        else:
            self._end(TimeoutError(f"no answer within {self._answer_seconds:g} s"))

    # -- the end ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._end(redis.ConnectionError("the connection was closed"))

    def abandon(self) -> None:
        """Its loop is gone, and so is whoever asked: only the server is left to be told."""
        self._closed = True
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # TLS forgets its socket when the server hangs up
            with suppress(OSError, TypeError):  # gone already; uvloop ends its connections with the loop, by itself
                sock.shutdown(socket.SHUT_RDWR)

    def _end(self, cause: BaseException) -> None:
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._transport is not None:
            self._transport.abort()
        waiting, self._asked = self._asked, deque()
        answers, self._answers = self._answers, []
        for _, asker in waiting:
            asker.lost(Lost(cause, answers))
            answers = []
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.lost(Lost(cause))


class Reception:
    """The replies that one task waits for."""

    __slots__ = ("_answers", "_complete", "_lost")

    def __init__(self, complete: asyncio.Future[None]) -> None:
        self._complete = complete
        self._answers: list[Any] = []
        self._lost: Lost | None = None

    async def answers(self) -> list[Any]:
        await self._complete
        if self._lost is not None:
            raise self._lost
        return self._answers

    def heard(self, answers: list[Any]) -> None:
        self._answers = answers
        self._over()

    def lost(self, lost: Lost) -> None:
        self._lost = lost
        self._over()

    def _over(self) -> None:
        if not self._complete.done():  # cancelled: nobody waits
            self._complete.set_result(None)


def _made(connection_class: Any, **settings: Any) -> Any:
    try:
        return connection_class(**settings)
    except TypeError as error:  # the colours and versions of redis-py do not know the same ones
        raise Misconfigured(f"redis-py cannot connect with these settings here: {error}") from None


def _not_let_in(error: Exception) -> redis.ConnectionError:
    """The user's own code failed on the way in, say a provider of credentials; its words may hold some."""
    return redis.ConnectionError(f"{type(error).__name__} before a connection was made")


def _own(place: Place, **deadlines: Any) -> dict[str, Any]:
    return {
        **({} if place.kind == "unix" else {"socket_keepalive": True}),
        **place.settings,
        **deadlines,
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,  # what our scripts answer is the same in both, and messages come as plain lists
    }


def _no_async_retry() -> Any:
    from redis.asyncio.retry import Retry as AsyncRetry

    return AsyncRetry(NoBackoff(), 0)
