"""Connections whose statements have a deadline on both sides, and are never cancelled.

The server's deadline is its `statement_timeout` (which never strikes during a commit); ours comes a little later, for a
server that says nothing any more. Ours closes the connection; it never sends a cancel, because a cancelled
commit is kept by the primary and may be missing on its standby. Whoever asked asks again, by attempt id.
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

SILENCE_SECONDS = 6.0  # after that the server is taken for gone, whatever the network says
_WAIT_INTERVAL = 0.1  # how often a waiting thread looks up, for Ctrl-C and for its deadline

Landed = Callable[[Any, psycopg.Error | None], None]


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements have a deadline, and are never cancelled."""

    silence_seconds: float | None = None
    not_replicated = False
    prepared: set[bytes] | None = None  # what `ask` has prepared in this session; None behind PgBouncer
    _poll: Any = None

    def ask(self, query: Query) -> Any:
        """The rows of this query, as libpq has them; whoever sends others' statements too has no use for cursors."""
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
                self.pgconn.finish()  # in the middle of a statement: what it did is asked over another connection
            raise
        return answer if answer.status == ROWS and not self.not_replicated else _checked(self, answer)

    def wait(self, gen: Any, interval: float = _WAIT_INTERVAL, timeout: float | None = None) -> Any:
        try:
            return waiting.wait(_bounded(gen, self.silence_seconds or SILENCE_SECONDS), self.pgconn.socket, interval)
        except BaseException as error:
            if not isinstance(error, psycopg.Error) or isinstance(error, Silent):
                self.pgconn.finish()  # in the middle of a statement: what it did is asked over another connection
            raise


class AsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """The same, awaited.

    While `ask` is used the event loop watches the socket all the time: to begin and to end watching costs as much as a
    statement. The driver's own cursors watch it too, so `rest` first.
    """

    silence_seconds: float | None = None
    not_replicated = False
    prepared: set[bytes] | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # whose eyes are on the socket
    _steps: Generator[bool, None, Any] | None = None
    _landed: Landed | None = None
    _deadline = 0.0
    _alarm: asyncio.TimerHandle | None = None  # one for many statements: to set and to cancel one costs as much as one
    _watched = -1  # libpq forgets its socket when the server hangs up
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
                self.drop()  # in the middle of a statement: what it did is asked over another connection
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
        """The alarm of some statement, perhaps of one that was answered long ago."""
        self._alarm = None
        if self._steps is None:
            return
        if loop.time() < self._deadline:
            self._alarm = loop.call_at(self._deadline, self._struck, loop)
        else:
            self._land(None, Silent(f"no answer within {self.silence_seconds or SILENCE_SECONDS:.0f} s"))

    def _called(self) -> None:
        """By the event loop. Interrupted (a signal handler raised), the answer is lost: nobody waits for it in vain."""
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
        """Something came, or the socket takes more."""
        try:
            if self._steps is None:
                self.pgconn.consume_input()  # nothing was asked: a notice, or the server's goodbye
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
        """Let nobody watch the socket."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._watched)
            loop.remove_writer(self._watched)
        self._writes = False

    def drop(self) -> None:
        """Hang up without a goodbye, and without a word to whoever waits."""
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
        ):  # not the server's word but libpq's: the connection ended, and what it did is not known
            raise psycopg.OperationalError(str(error)) from error
        raise error
    check_replicated(connection)
    return answer


def _bounded(gen: Any, seconds: float) -> Generator[Any, Any, Any]:
    """The driver's own steps; when nothing comes for too long, an error instead of the next one."""
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
    """After each statement: a commit that its standby may not have is a lost reply, to be asked again by a write."""
    if connection.not_replicated:
        connection.not_replicated = False
        raise Silent("the commit was cancelled while it waited for a synchronous standby")
