"""The exchange with one Redis server: bytes out, replies in, in the order of the requests.

redis-py makes the connection (`connect`) and hands it over. From then on samekey packs the commands and hiredis parses
the replies. Parsing by redis-py would cost more than all else that samekey does for a command, and redis-py allows only
one request at a time.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

import hiredis
import redis
from redis.crc import key_slot

from samekey.drivers.redis.connect import Place, connect, connect_async, new_async_connection, new_connection

READ_BYTES = 1 << 16  # read from a socket at a time


class Lost(Exception):
    """The connection broke after a request was sent: its outcome is unknown. `answers` arrived before that."""

    def __init__(self, cause: BaseException, answers: Sequence[Any] = ()) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.cause, self.answers = cause, answers


def packed(parts: Sequence[bytes]) -> bytes:
    """One command in the wire format. Each part carries its length, so its content cannot change the command."""
    return _template(len(parts)) % tuple([value for part in parts for value in (len(part), part)])


@lru_cache(maxsize=1024)
def _template(count: int) -> bytes:
    return template((), count)


def template(first: Sequence[bytes], more: int) -> bytes:
    """A command that begins with these parts; fill in (`%`) the length and the content of `more` others."""
    begun = b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in first]).replace(b"%", b"%%")
    return b"*%d\r\n" % (len(first) + more) + begun + b"$%d\r\n%b\r\n" * more


def slot_of(key: bytes) -> int:
    """The slot of a cluster that holds this key."""
    slot: int = key_slot(key)
    return slot


def _new_reader() -> hiredis.Reader:
    """Parses replies to bytes, numbers and lists; an error reply becomes an exception object with the server's text."""
    return hiredis.Reader(protocolError=redis.InvalidResponse, replyError=redis.ResponseError)


class Wire:
    """One connection, used by one thread at a time."""

    def __init__(self, place: Place) -> None:
        self._connection = new_connection(place)
        self._reader = _new_reader()
        self._sock: Any = None
        self._owed = 0  # replies still to be read; set before the first byte of a request is sent

    def connect(self) -> None:
        connect(self._connection)
        self._sock = self._connection._sock

    def send(self, data: bytes, replies: int) -> int:
        """Send requests. Pass the returned number of replies to `receive`."""
        sock = self._sock
        if sock is None:
            raise Lost(redis.ConnectionError("the connection was closed"))
        if self._owed:
            # The previous caller was interrupted (Ctrl-C, a time limit). This caller would read its replies.
            self.close()
            raise Lost(redis.ConnectionError("the previous caller was interrupted on this connection"))
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

    def next_message(self, wakeup: int, seconds: float) -> list[Any] | None:
        """The next published message; None after `seconds` without one, or when `wakeup` can be read."""
        try:
            while (message := self._reader.gets()) is False:
                sock = self._sock
                if sock is None:
                    raise redis.ConnectionError("disconnected")
                awaited = select.poll()  # `select` fails for file numbers above 1023
                awaited.register(sock, select.POLLIN)
                awaited.register(wakeup, select.POLLIN)
                if sock.fileno() not in dict(awaited.poll(seconds * 1000)):
                    return None
                self._read()
        except (redis.RedisError, OSError, ValueError) as error:
            self.close()
            raise Lost(error) from error
        return message if isinstance(message, list) else None

    def close(self) -> None:
        self._sock = None
        self._connection.disconnect()

    def _read(self) -> None:
        sock = self._sock
        if sock is None:
            raise redis.ConnectionError("the connection was closed")
        # Read a whole TLS record: `poll` does not report the rest of one.
        data = sock.recv(READ_BYTES)
        if not data:
            raise redis.ConnectionError("the server closed the connection")
        self._reader.feed(data)


class Receiver(Protocol):
    """Gets the replies to a request, or the loss of the connection instead. Raises nothing."""

    def receive(self, answers: list[Any]) -> None: ...
    def lose(self, lost: Lost) -> None: ...


class AsyncWire(asyncio.Protocol):
    """One connection for all tasks of a loop. A task may send at any time; replies arrive in that order."""

    def __init__(self, place: Place) -> None:
        self._connection = new_async_connection(place)
        self._answer_seconds = place.answer_seconds
        self._reader = _new_reader()
        self._requested: deque[tuple[int, Receiver]] = deque()  # how many replies for whom, in the order of the bytes
        self._answers: list[Any] = []  # for the first receiver, so far
        self._listener: Receiver | None = None  # gets published messages
        self._received_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = True
        self._streams: Any = None
        self._transport: Any = None

    async def connect(self) -> None:
        connection = self._connection
        await connect_async(connection)
        self._loop = asyncio.get_running_loop()
        # Keep the streams alive: they close the connection when they are collected. redis-py must not close them.
        self._streams = connection._reader, connection._writer
        self._transport = connection._writer.transport
        connection._reader = connection._writer = None
        self._transport.set_protocol(self)
        self._closed = False

    # -- sending ---------------------------------------------------------------------------------------------

    def request(self, data: bytes, replies: int, receiver: Receiver) -> None:
        """Send requests. The receiver gets all replies to them in one call."""
        if self._closed:
            raise Lost(redis.ConnectionError("the connection was closed"))
        if not self._requested:
            self._received_at = self._loop.time()
            if self._alarm is None:
                self._alarm = self._loop.call_later(self._answer_seconds, self._check)
        try:
            self._requested.append((replies, receiver))
            self._transport.write(data)
        except BaseException as interrupted:
            self._end(interrupted)
            raise

    async def send(self, data: bytes, replies: int) -> Reception:
        """Send requests. Pass what this returns to `receive`."""
        reception = Reception(self._loop.create_future())
        self.request(data, replies, reception)
        return reception

    async def receive(self, reception: Reception) -> list[Any]:
        outcome = await reception.outcome
        if isinstance(outcome, Lost):
            raise outcome
        return outcome

    def listen(self, listener: Receiver) -> None:
        """From now on the listener gets every message, and the loss of the connection. No more requests are sent."""
        self._listener = listener

    def send_unanswered(self, data: bytes) -> None:
        """Send a subscription command. The server confirms it with a message for the listener."""
        if not self._closed:
            self._transport.write(data)

    # -- receiving -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        requested, gets = self._requested, self._reader.gets
        try:
            self._reader.feed(data)
            while (reply := gets()) is not False:
                if not requested:
                    if self._listener is not None:
                        self._listener.receive([reply])
                        continue
                    raise redis.InvalidResponse("the server sent a reply without a request")
                answers = self._answers
                answers.append(reply)
                if len(answers) == requested[0][0]:
                    self._answers = []
                    requested.popleft()[1].receive(answers)
        except BaseException as error:  # a reply may be missing: later ones would reach the wrong receiver
            self._end(error)
            if not isinstance(error, redis.RedisError):
                raise
        self._received_at = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or redis.ConnectionError("the connection was closed"))

    def _check(self) -> None:
        """End the connection if nothing arrived for too long; one timer serves all requests in flight."""
        self._alarm = None
        if not self._requested:
            return
        left = self._received_at + self._answer_seconds - self._loop.time()
        if left > 0:
            self._alarm = self._loop.call_later(left, self._check)
        else:
            self._end(TimeoutError(f"no answer within {self._answer_seconds:g} s"))

    # -- the end ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._end(redis.ConnectionError("the connection was closed"))

    def abandon(self) -> None:
        """Shut the socket down for the server's sake. The event loop is closed, and its tasks are gone."""
        self._closed = True
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # with TLS there is none after the server hung up
            with suppress(OSError, TypeError):  # closed already; uvloop closes its connections with the loop
                sock.shutdown(socket.SHUT_RDWR)

    def _end(self, cause: BaseException) -> None:
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._transport is not None:
            self._transport.abort()
        waiting, self._requested = self._requested, deque()
        answers, self._answers = self._answers, []
        for _, receiver in waiting:
            receiver.lose(Lost(cause, answers))
            answers = []
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.lose(Lost(cause))


class Reception:
    """The replies that one task waits for, or their loss."""

    __slots__ = ("outcome",)

    def __init__(self, outcome: asyncio.Future[list[Any] | Lost]) -> None:
        self.outcome = outcome

    def receive(self, answers: list[Any] | Lost) -> None:
        if not self.outcome.done():  # else the task was cancelled
            self.outcome.set_result(answers)

    lose = receive
