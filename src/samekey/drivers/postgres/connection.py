"""Connections whose statements have a deadline on both sides, and are never cancelled.

The server's deadline is its `statement_timeout`, which never ends a commit. The client's deadline is a little later,
for a server that does not answer at all. It closes the connection and never sends a cancel, because the primary keeps a
cancelled commit that may be missing on its standby. The caller then sends the command again, by attempt id.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg
from psycopg import errors, waiting

from samekey.drivers.postgres.errors import Silent
from samekey.drivers.postgres.exchange import ROWS, Query, exchange

SILENCE_SECONDS = 6.0  # after that the connection is given up, whatever the network reports
_WAIT_INTERVAL = 0.1  # how often a waiting thread checks for Ctrl-C and for its deadline

Landed = Callable[[Any, psycopg.Error | None], None]


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements have a deadline, and are never cancelled."""

    silence_seconds: float | None = None
    not_replicated = False
    prepared: set[bytes] | None = None  # what `ask` has prepared in this session; None with PgBouncer
    _poll: Any = None

    def ask(self, query: Query) -> Any:
        """The rows of this query, as libpq has them: there is no cursor, which would cost more than the rest."""
        if self._poll is None:
            self._poll = select.poll()
        socket, registered = self.pgconn.socket, 0
        milliseconds = (self.silence_seconds or SILENCE_SECONDS) * 1000
        try:
            steps = exchange(self.pgconn, query, self.prepared)
            writes = next(steps)
            while True:
                wanted = select.POLLIN | select.POLLOUT if writes else select.POLLIN
                if wanted != registered:
                    self._poll.register(socket, wanted)
                    registered = wanted
                if not self._poll.poll(milliseconds):
                    raise Silent(f"no answer within {milliseconds / 1000:.0f} s")
                writes = steps.send(None)
        except StopIteration as stop:
            answer = stop.value
        except BaseException as error:
            if not isinstance(error, psycopg.Error) or isinstance(error, Silent):
                self.pgconn.finish()  # in the middle of a statement: the caller sends it again over another connection
            raise
        return answer if answer.status == ROWS and not self.not_replicated else _checked(self, answer)

    def wait(self, gen: Any, interval: float = _WAIT_INTERVAL, timeout: float | None = None) -> Any:
        try:
            return waiting.wait(_bounded(gen, self.silence_seconds or SILENCE_SECONDS), self.pgconn.socket, interval)
        except BaseException as error:
            if not isinstance(error, psycopg.Error) or isinstance(error, Silent):
                self.pgconn.finish()  # in the middle of a statement: the caller sends it again over another connection
            raise


class AsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """The same, awaited.

    While `ask` is used the event loop watches the socket all the time: adding and removing a reader costs as much as a
    statement. The driver's own cursors add a reader too, so call `rest` first.
    """

    silence_seconds: float | None = None
    not_replicated = False
    prepared: set[bytes] | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # that watches the socket
    _steps: Generator[bool, None, Any] | None = None
    _landed: Landed | None = None
    _deadline = 0.0
    _alarm: asyncio.TimerHandle | None = (
        None  # one for many statements: setting and cancelling a timer costs as much as a statement
    )
    _watched = -1  # the socket; libpq forgets it when the server closes the connection
    _writes = False

    async def ask(self, query: Query) -> Any:
        """The rows of this query, as libpq has them."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def landed(answer: Any, error: psycopg.Error | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(answer)
            else:
                answered.set_exception(error)

        try:
            self.start(query, landed)
            return await answered
        except BaseException as error:
            if not isinstance(error, psycopg.Error):
                self.drop()  # in the middle of a statement: the caller sends it again over another connection
            raise

    def start(self, query: Query, landed: Landed) -> None:
        """Send it. `landed` is called with its rows or its error: by the event loop, or here if it cannot be sent."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
            self._watched = self.pgconn.socket
            loop.add_reader(self._watched, self._called)
        self._landed = landed
        try:
            self._steps = exchange(self.pgconn, query, self.prepared)
        except psycopg.Error as error:
            self.rest()  # a socket that ended is readable for ever
            return self._land(None, error)
        self._deadline = loop.time() + (self.silence_seconds or SILENCE_SECONDS)
        if self._alarm is None:
            self._alarm = loop.call_at(self._deadline, self._struck, loop)
        self._step()

    def _struck(self, loop: asyncio.AbstractEventLoop) -> None:
        """The timer of a statement ended, perhaps of one that was answered long ago."""
        self._alarm = None
        if self._steps is None:
            return
        if loop.time() < self._deadline:
            self._alarm = loop.call_at(self._deadline, self._struck, loop)
        else:
            self._land(None, Silent(f"no answer within {self.silence_seconds or SILENCE_SECONDS:.0f} s"))

    def _called(self) -> None:
        """The event loop's callback. If a signal handler raises in it, the answer is lost: its caller gets an error."""
        landed = None
        try:
            landed = self._landed
            self._step()
        except BaseException:
            landed = landed or self._landed
            self.drop()
            if landed is not None:
                landed(None, Silent("interrupted"))
            raise

    def _step(self) -> None:
        """Bytes arrived, or the socket takes more."""
        try:
            if self._steps is None:
                self.pgconn.consume_input()  # no statement is under way: a notice, or the server closes the connection
                return
            writes = self._steps.send(None)
        except StopIteration as stop:
            try:
                answer = _checked(self, stop.value)
            except psycopg.Error as error:
                self._land(None, error)
            else:
                self._land(answer, None)
        except psycopg.Error as error:
            self.rest()  # a socket that ended is readable for ever
            self._land(None, error)
        else:
            if writes != self._writes and self._loop is not None:
                if writes:
                    self._loop.add_writer(self._watched, self._called)
                else:
                    self._loop.remove_writer(self._watched)
                self._writes = writes

    def _land(self, answer: Any, error: psycopg.Error | None) -> None:
        landed, self._landed, self._steps = self._landed, None, None
        if isinstance(error, Silent):
            self.drop()
        if landed is not None:
            landed(answer, error)

    def rest(self) -> None:
        """Stop watching the socket."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._watched)
            loop.remove_writer(self._watched)
        self._writes = False

    def drop(self) -> None:
        """Close the socket at once, without a message to the server and without calling `landed`."""
        self._landed = self._steps = None
        self._silence_alarm()
        self.rest()
        self.pgconn.finish()

    async def close(self) -> None:
        self._silence_alarm()
        self.rest()
        await super().close()

    def _silence_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def wait(self, gen: Any, interval: float = _WAIT_INTERVAL, timeout: float | None = None) -> Any:
        try:
            return await waiting.wait_async(
                _bounded(gen, self.silence_seconds or SILENCE_SECONDS), self.pgconn.socket, interval
            )
        except BaseException as error:
            if not isinstance(error, psycopg.Error) or isinstance(error, Silent):
                self.pgconn.finish()
            raise


def _checked(connection: Connection | AsyncConnection, answer: Any) -> Any:
    if answer.status != ROWS:
        error = errors.error_from_result(answer)
        if (
            error.sqlstate is None
        ):  # libpq's own error and not the server's: the connection ended, and what it did is not known
            raise psycopg.OperationalError(str(error)) from error
        raise error
    check_replicated(connection)
    return answer


def _bounded(gen: Any, seconds: float) -> Generator[Any, Any, Any]:
    """The driver's own steps, with an error when nothing arrives for too long."""
    deadline = time.monotonic() + seconds
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > deadline:
                raise Silent(f"no answer within {seconds:.0f} s")
            state = gen.send(ready)
    except StopIteration as stop:
        return stop.value


def check_replicated(connection: Connection | AsyncConnection) -> None:
    """Raise after a commit that its standby may not have: it counts as a lost reply, which a write confirms."""
    if connection.not_replicated:
        connection.not_replicated = False
        raise Silent("the commit was cancelled while it waited for a synchronous standby")
