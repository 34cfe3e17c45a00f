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

from samekey.drivers.postgres.errors import Silent, is_spent
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
            return answer if answer.status == ROWS and not self.not_replicated else _checked(self, answer)
        except BaseException as error:
            if _hangs_up(error):
                self.pgconn.finish()
            raise

    def wait(self, gen: Any, interval: float = _WAIT_INTERVAL, timeout: float | None = None) -> Any:
        try:
            return waiting.wait(_bounded(gen, self.silence_seconds or SILENCE_SECONDS), self.pgconn.socket, interval)
        except BaseException as error:
            if _hangs_up(error):
                self.pgconn.finish()
            raise


class AsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """The same, awaited.

    The event loop watches the socket from the first `start` on: adding and removing a reader costs as much as a
    statement. The driver's own cursors add a reader too, so call `rest` before you use one.
    """

    silence_seconds: float | None = None
    not_replicated = False
    prepared: set[bytes] | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # that watches the socket
    _steps: Generator[bool, None, Any] | None = None
    _landed: Landed | None = None
    _deadline = 0.0
    # One timer for many statements: setting and cancelling one costs as much as a statement.
    _alarm: asyncio.TimerHandle | None = None
    _watched = -1  # the socket; libpq forgets it when the server closes the connection
    _writes = False

    def start(self, query: Query, landed: Landed) -> None:
        """Send it. `landed` is called with its rows, as libpq has them, or its error.

        The event loop calls it, or this method if the query cannot be sent.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
            self._watched = self.pgconn.socket
            loop.add_reader(self._watched, self._called)
        self._landed = landed
        try:
            self._steps = exchange(self.pgconn, query, self.prepared)
        except psycopg.Error as error:
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
        landed = self._landed
        try:
            self._step()
        except BaseException:
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
        if error is not None and is_spent(error):
            self.drop()  # a socket that ended would be readable for ever
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
            if _hangs_up(error):
                self.pgconn.finish()
            raise


def _hangs_up(error: BaseException) -> bool:
    """Whether the connection must be closed: it is spent, or the caller was interrupted in the middle of a statement.

    The caller then sends the command again over another connection.
    """
    return not isinstance(error, psycopg.Error) or is_spent(error)


def _checked(connection: Connection | AsyncConnection, answer: Any) -> Any:
    if answer.status != ROWS:
        error = errors.error_from_result(answer)
        if error.sqlstate is None:  # libpq's own: the connection ended, and it is not known what the server did
            raise psycopg.OperationalError(str(error)) from error
        raise error
    if connection.not_replicated:  # the standby may not have this commit: a lost reply, which a write confirms
        connection.not_replicated = False
        raise Silent("the commit was cancelled while it waited for a synchronous standby")
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
