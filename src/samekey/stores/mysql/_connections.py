"""One process's connections to MySQL: a few for commands, one for operators, one for the watcher.

A command borrows a connection, looks, writes, and gives it back; the server commits what several connections write at
once with one fsync. While all are lent, callers wait until one comes back: more connections would only queue up inside
the server. Claims may use six of the eight connections, so that renewals and settles never wait for claims.

After a lost reply we do not know whether the statement was carried out. Every command carries its attempt's id and
recognises itself, so it is sent again over a new connection, for as long as a server takes to restart. A claim that
finds itself there is confirmed by a write: a primary may have committed it without its replica.

A claim waits for a row that another transaction holds only once. After that the key is known to be held, and its next
claim looks with NOWAIT: the guard tries again while its caller has patience, and no connection is kept meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from samekey.core.commands import Begin, Open, Read, Redact, Renew, Settle, StoreCommand, Take, Testify
from samekey.core.errors import Misconfigured, SamekeyError, StoreBusy, StoreUnavailable
from samekey.core.record import Record
from samekey.core.register import Moment, after_loss, apply, audited, expired, seen_at
from samekey.core.states import State
from samekey.drivers.mysql import connect as driver
from samekey.drivers.mysql import errors
from samekey.drivers.mysql.address import Address
from samekey.drivers.mysql.errors import DriverError
from samekey.drivers.mysql.self_check import IDLE_SECONDS, Facts
from samekey.loops import Bells
from samekey.stores._watching import Versions, Watch
from samekey.stores.mysql import _rows as rows
from samekey.stores.mysql._rows import Done, Run

T = TypeVar("T")

LINKS_MAX = 8  # connections for commands per process; the server shares one fsync among what they commit at once
CLAIMS_MAX = 6  # of them for claims: the others are left for renewals and settles
CLAIMS = (Open, Take, Read)  # commands that may wait for others; a renewal or a settle must not
HELD_MAX = 10_000  # digests of held rows that are remembered
LIMIT_PAUSE_SECONDS = 0.01
TURN_SECONDS = 30.0  # many times what the commands before us may take; only for links that never come back
REASK_SECONDS = 5.0  # how long a lost reply is asked after: what a server takes to restart or to fail over
REASK_PAUSE_SECONDS = 0.05
REASK_PAUSE_MAX_SECONDS = 0.5
CONFLICTS_MAX = 5  # deadlocks and held rows of one command; in each one another transaction went on
WATCH_SECONDS = 0.015  # how often the watcher looks, while a caller waits
PACKET_SPARE_BYTES = 1024  # for the packet's own head


class TooLarge(Misconfigured):
    """The statement is larger than the server takes."""


class Unreachable(StoreUnavailable):
    """The server cannot be reached by any command."""


class Closed(Unreachable):
    """The store was closed: nothing to wait for."""


class Turn:
    """The right to use a connection."""

    __slots__ = ("__weakref__",)


class Turns:
    """A number of turns. One that is lost with an interrupted thread is made again."""

    def __init__(self, number: int, name: str) -> None:
        self._free: SimpleQueue[Turn] = SimpleQueue()
        self._made: WeakSet[Turn] = WeakSet()
        self._mutex = threading.Lock()
        self._number, self._name = number, name

    def take(self) -> Turn:
        with suppress(Empty):
            return self._free.get_nowait()
        with self._mutex:
            self._make()
        try:
            return self._free.get(timeout=TURN_SECONDS)
        except Empty:
            raise StoreUnavailable(f"no connection to {self._name} was free within {TURN_SECONDS:.0f} s") from None

    def _make(self) -> None:
        """Not in `take`: Python 3.13 could leave the mutex locked there if this loop were interrupted (`_turns.py`)."""
        while len(self._made) < self._number:  # not made yet, or lost with a thread that was interrupted
            turn = Turn()
            self._made.add(turn)
            self._free.put(turn)

    def give_back(self, turn: Turn) -> None:
        self._free.put(turn)


class Links:
    """Everything that belongs to one process, and is made anew after a fork; connections are made when needed."""

    def __init__(self, address: Address) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.facts: Facts | None = None
        self.bells = Bells()
        self.watch = Watch(self.bells, self._versions, WATCH_SECONDS, REASK_PAUSE_MAX_SECONDS)
        self._address = address
        self._turns = Turns(LINKS_MAX, address.name)
        self._claim_turns = Turns(CLAIMS_MAX, address.name)
        self._held: dict[bytes, None] = {}  # digests whose rows another transaction held when last tried
        self._mutex = threading.Lock()
        self._free: list[tuple[driver.Connection, float]] = []  # and since when
        self._lost_at: float | None = None
        self._workers: dict[int, ThreadPoolExecutor] = {}

    # -- connections ---------------------------------------------------------------------------------------

    @contextmanager
    def borrowed(self, *, claim: bool = False) -> Iterator[Run]:
        """A connection for one command, as a function that runs statements on it.

        Claims use some of the connections only, so that a renewal or a settle never waits for a claim to end.
        """
        place = self._claim_turns.take() if claim else None
        try:
            turn = self._turns.take()
            try:
                self._require_open()
                link = self._idle() or self._connect_or_wait()
                try:
                    yield self.runner(link)
                except BaseException as error:
                    # Also Ctrl-C in the middle of a statement, and whatever is left of a transaction.
                    usable = isinstance(error, DriverError | SamekeyError) and not errors.is_spent(error)
                    self._give_back(link, usable and not driver.in_transaction(link))
                    raise
                self._give_back(link, usable=True)
            finally:
                self._turns.give_back(turn)
        finally:
            if place is not None:
                self._claim_turns.give_back(place)

    def _connect_or_wait(self) -> driver.Connection:
        """A new connection; or, at the server's limit of connections, one that another command of ours gives back."""
        deadline = time.monotonic() + REASK_SECONDS
        while True:
            try:
                return self.connect()
            except Unreachable as error:
                if not errors.is_at_its_limit(error.__cause__) or time.monotonic() >= deadline:
                    raise
            time.sleep(LIMIT_PAUSE_SECONDS)
            link = self._idle()
            if link is not None:
                return link

    @contextmanager
    def own(self, *, desk: bool = False) -> Iterator[Run]:
        """A connection of its own for the watcher, or with `desk` for operators, whose statements may take long."""
        self._require_open()
        link = self.connect(desk=desk)
        try:
            yield self.runner(link)
        finally:
            driver.close(link)

    @contextmanager
    def _versions(self) -> Iterator[Versions]:
        """For the watcher: all rows that callers wait for in one query."""
        with errors.translated(self._address), self.own() as run:
            yield lambda digests: rows.versions(run, digests)

    def connect(self, *, desk: bool = False) -> driver.Connection:
        try:
            link, facts = driver.connect(self._address, desk=desk)
        except StoreUnavailable as error:
            raise Unreachable(str(error)) from error.__cause__
        with self._mutex:
            if self.facts is not None and self.facts.epoch != facts.epoch:
                # The tables were made anew: claims made since then ask first, where the boundary can ask.
                self._lost_at = facts.born
            self.facts = facts
            if facts.lost_at is not None:
                self._lost_at = max(facts.lost_at, self._lost_at or 0.0)
        return link

    def runner(self, link: driver.Connection) -> Run:
        limit = None if self.facts is None else self.facts.max_packet  # None: only a caller's connection is open yet

        def run(statement: str) -> tuple[Sequence[Any], int]:
            if limit is not None and len(statement) + PACKET_SPARE_BYTES > limit:
                raise TooLarge(
                    f"the record needs {len(statement)} bytes on its way to {self._address.name}, whose "
                    f"max_allowed_packet is {limit}: raise it there"
                )
            return driver.run(link, statement)

        return run

    def close(self) -> None:
        self.closed = True
        if self.pid != os.getpid():
            return
        self.watch.close(driver.CONNECT_SECONDS)
        with self._mutex:
            links, self._free = self._free, []
        for link, _ in links:
            driver.close(link)
        for workers in self._workers.values():
            workers.shutdown(wait=False)

    def _idle(self) -> driver.Connection | None:
        """The connection that was used last, unless the server is about to hang up on it."""
        with self._mutex:
            link, since = self._free.pop() if self._free else (None, 0.0)
            if link is None or time.monotonic() - since < IDLE_SECONDS * 0.8:
                return link
            older, self._free = [one for one, _ in self._free], []
        for one in (link, *older):
            driver.close(one)
        return None

    def _give_back(self, link: driver.Connection, usable: bool) -> None:
        if not usable:
            driver.abandon(link)
            return
        with self._mutex:
            if not self.closed:
                self._free.append((link, time.monotonic()))
                return
        driver.close(link)

    def _require_open(self) -> None:
        if self.closed:
            raise Closed(f"{self._address.name} was closed")

    def workers(self, *, claim: bool = False) -> ThreadPoolExecutor:
        """Threads for callers that may not block: as many as there are connections to wait for."""
        self._require_open()
        number = CLAIMS_MAX if claim else LINKS_MAX
        with self._mutex:
            if number not in self._workers:
                self._workers[number] = ThreadPoolExecutor(number, thread_name_prefix="samekey-mysql")
            return self._workers[number]

    # -- commands ------------------------------------------------------------------------------------------

    def perform(self, command: StoreCommand, *, asked_before: bool = False) -> Record | None:
        """Carry it out; a lost reply is asked again, and a lost race is run again."""
        digest, claim = command.key.digest, isinstance(command, CLAIMS)

        def work(run: Run) -> Done:
            if claim and digest in self._held:
                rows.probe(run, command.key)
                self._held.pop(digest, None)
            return rows.execute(run, command)

        try:
            # A second redaction would be audited twice.
            done, asked_again = self.insist(work, again=not isinstance(command, Redact), claim=claim)
        except TooLarge as error:
            return self.perform(without_result(command, error))
        except StoreBusy:
            if claim:
                self._remember_as_held(digest)
            raise
        shown = self._reply(done)
        if (asked_again or asked_before) and isinstance(command, Open | Take):
            if shown is not None and shown.attempt == command.attempt and shown.state is State.STARTED:
                return self.perform(Renew(shown, command.lease_seconds, command.retain_seconds))
        return shown

    def _remember_as_held(self, digest: bytes) -> None:
        """The next claim of this key looks first, and does not keep a connection waiting for the row."""
        while len(self._held) >= HELD_MAX:
            with suppress(KeyError, StopIteration, RuntimeError):  # another thread does the same
                del self._held[next(iter(self._held))]
        self._held[digest] = None

    def perform_all(self, commands: Sequence[StoreCommand]) -> list[Record | None | Exception]:
        """Carry out all in one transaction; if that fails, each by itself, so that only the faulty one fails."""
        asked = False
        if len(commands) > 1 and not any(audited(command) for command in commands):
            try:
                done, asked = self.insist(lambda run: _execute_all(run, commands))
            except Unreachable as error:
                return [error] * len(commands)  # one server, one answer
            except SamekeyError:
                done, asked = None, True
            if done is not None and not asked:
                return [self._reply(one) for one in done]
        return [self._outcome(command, asked) for command in commands]

    def _outcome(self, command: StoreCommand, asked: bool) -> Record | None | Exception:
        try:
            return self.perform(command, asked_before=asked)
        except Exception as error:
            return error

    def insist(
        self, work: Callable[[Run], T], *, again: bool = True, desk: bool = False, claim: bool = False
    ) -> tuple[T, bool]:
        """The result of `work`, and whether a reply was lost before it came."""
        deadline: float | None = None  # for replies that were lost
        conflicts, pause = 0, REASK_PAUSE_SECONDS
        while True:
            try:
                with self.own(desk=True) if desk else self.borrowed(claim=claim) as run:
                    return work(run), deadline is not None
            except UnicodeError as error:
                raise Misconfigured(f"{self._address.name} cannot keep this text: {error}") from error
            except Unreachable as unreachable:
                # No statement of ours was under way, so this is the answer.
                if isinstance(unreachable, Closed) or deadline is None or time.monotonic() >= deadline:
                    raise
                time.sleep(pause)
                pause = min(pause * 2, REASK_PAUSE_MAX_SECONDS)
            except DriverError as error:
                if errors.is_lost(error) and again:
                    deadline = deadline or time.monotonic() + REASK_SECONDS
                    if time.monotonic() < deadline:
                        continue
                    raise Unreachable(str(errors.store_error(self._address, error))) from error
                # A claim of a held row waits outside: the guard tries again while its caller has patience.
                busy = errors.is_busy(error) and not claim
                if (errors.is_conflict(error) or busy) and conflicts < CONFLICTS_MAX:
                    conflicts += 1
                    continue
                raise errors.store_error(self._address, error) from error

    def _reply(self, done: Done) -> Record | None:
        """After the commit: wake the waiters of the key, and show the record on the server's clock."""
        before, after, moment = done
        record = after or before
        if after is not before and record is not None:
            self.bells.ring(record.key.digest)
        return None if after is None else self.shown(after, moment)

    def shown(self, record: Record, moment: Moment) -> Record:
        shown = seen_at(record, moment)
        return shown._replace(after_loss=True) if after_loss(record.created_at, self._lost_at) else shown


def _execute_all(run: Run, commands: Sequence[StoreCommand]) -> list[Done] | None:
    """Many commands as one look and one transaction; None: another process wrote one of the records meanwhile."""
    found, moment = rows.look_at_all(run, (command.key for command in commands))
    now: dict[bytes, Record | None] = {command.key.digest: found.get(command.key.digest) for command in commands}
    done = []
    for command in commands:
        digest = command.key.digest
        before = now[digest]
        if command.verb == "read":
            shown = None if before is None or expired(before, moment) else before
            done.append(Done(shown, shown, moment))
            continue
        now[digest] = apply(before, command, moment)
        done.append(Done(before, now[digest], moment))
    # In the order of the digests: two batches in opposite order would wait for each other.
    changed = [(digest, now[digest]) for digest in sorted(now) if now[digest] is not found.get(digest)]
    if not changed:
        return done
    run("BEGIN")
    new = [after for digest, after in changed if digest not in found and after is not None]
    wrote = not new or (rows.insert_all(run, new) and run(rows.FLOOR)[0][0][0] < min(record.token for record in new))
    lives = {command.key.digest for command in commands if isinstance(command, Begin | Renew)}
    for digest, after in changed:
        if wrote and digest in found:
            if after is None:
                wrote = rows.delete(run, found[digest])
            else:
                wrote = rows.update(run, found[digest], after, lives=digest in lives)
    run("COMMIT" if wrote else "ROLLBACK")
    return done if wrote else None


def without_result(command: StoreCommand, error: TooLarge) -> StoreCommand:
    """The same command without the result that the server cannot take: the effect must never run again."""
    if isinstance(command, Settle) and command.result is not None:
        return replace(command, result=None, error=f"not kept: {error}")
    if isinstance(command, Testify) and command.result is not None:
        return replace(command, result=None)
    raise error
