"""Many commands in few statements: how a batch is put together, sent, and asked about again.

Sans-IO: `carrying` yields what is to be sent and is sent the rows, so that it exists once for threads and for tasks.

Theory. Commands about different keys do not touch each other, so a batch is carried out in waves: the first
command of every key, then the second ones, and so on; within a wave all commands of one kind are one statement.
A statement is one transaction, its keys are sorted (two batches in opposite order would deadlock), and one
that fails is sent again row by row, so that one's failure is its own.

A lost reply says nothing about the statement. Every command carries its attempt's id and recognises itself,
so it is asked again over a new connection, for as long as a server takes to restart. A claim that finds itself
there is confirmed by a write: it may have been committed by a primary whose standby never heard of it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from samekey.core.commands import Open, Read, Redact, Renew, Settle, StoreCommand, Take, Testify, Wait
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.errors import DriverError, is_conflict, is_lost, store_error
from samekey.drivers.postgres.exchange import Query
from samekey.stores._failures import own_copy
from samekey.stores.postgres._rows import told
from samekey.stores.postgres._wire import answers_in, many, record_in, single

BATCH_MAX = 256  # commands in one go: bounds how long the first of them waits for the last
BATCH_BYTES_MAX = 8 << 20  # results in one statement: bounds the memory on both sides
REASK_SECONDS = 5.0  # how long a lost reply is asked after: what a server takes to restart or to fail over
REASK_PAUSE_SECONDS = 0.05
CONFLICTS_MAX = 3  # deadlocks of one statement; each one means that somebody else went on


class Run(NamedTuple):
    """Send this query; its rows come back, or the driver's error, or StoreUnavailable: nothing was sent."""

    query: Query


class Pause(NamedTuple):
    seconds: float


Steps = Generator[Run | Pause, Any, None]


class Closed(StoreUnavailable):
    """The store was closed: nothing to wait for."""


class Job:
    """One command, and what became of it."""

    __slots__ = ("command", "digest", "done", "error", "reply")

    def __init__(self, command: StoreCommand) -> None:
        self.command = command
        self.digest = command.key.digest
        self.reply: Record | None = None
        self.error: Exception | None = None
        self.done = False

    def read(self, answer: Any, lost_at: float | None, row: int = 0) -> None:
        """Take the record out of this row of the server's answer."""
        try:
            self.reply = record_in(answer, self.command, lost_at, row)
        except SamekeyError as error:
            self.error = own_copy(error)
        self.done = True

    def fail(self, error: Exception) -> None:
        self.error, self.done = own_copy(error), True

    def outcome(self) -> Record | None:
        if self.error is not None:
            raise self.error
        return self.reply


def plan(jobs: Sequence[Job]) -> tuple[list[list[Job]], list[tuple[Job, Job]]]:
    """The jobs in groups, each of one kind and with each key once, in an order that keeps that of every key.

    And whoever asks what another one asked right before it: these two share an answer.
    """
    if len(jobs) == 1:
        return [list(jobs)], []
    if len(set(map(_digest, jobs))) == len(jobs):  # nobody stands behind anybody: the common case
        return [part for group in _kinds(jobs) for part in _parts(group)], []
    waves: list[dict[Any, list[Job]]] = []
    last: dict[bytes, tuple[int, Job]] = {}
    followers: list[tuple[Job, Job]] = []
    for job in jobs:
        wave, before = last.get(job.digest, (-1, None))
        if before is not None and _same(before.command, job.command):
            followers.append((job, before))
            continue
        wave += 1
        if wave == len(waves):
            waves.append({})
        waves[wave].setdefault(_kind(job.command), []).append(job)
        last[job.digest] = (wave, job)
    return [part for wave in waves for group in wave.values() for part in _parts(group)], followers


def _kinds(jobs: Sequence[Job]) -> Iterable[list[Job]]:
    (kind, *others) = set(map(type, map(_command, jobs)))
    if not others and kind is not Settle:
        return (list(jobs),)
    if not others and Role.OPERATOR not in map(_role, jobs):
        return (list(jobs),)
    kinds: dict[Any, list[Job]] = {}
    for job in jobs:
        kinds.setdefault(_kind(job.command), []).append(job)
    return kinds.values()


def _kind(command: StoreCommand) -> Any:
    """What may travel in one statement; people's settles are audited, so each of them is one of its own."""
    kind = type(command)
    return command.key.digest if kind is Settle and command.role is Role.OPERATOR else kind  # type: ignore[attr-defined]


def _same(one: StoreCommand, other: StoreCommand) -> bool:
    """Whether the answer to the one is the answer to the other that comes right after it."""
    if type(one) is not type(other) or one.key != other.key:
        return False
    if isinstance(one, Wait) and isinstance(other, Wait):
        return one.seen.token == other.seen.token
    return isinstance(one, (Open, Read))  # an open that finds a record shows it, whoever asks


def _parts(group: list[Job]) -> list[list[Job]]:
    group.sort(key=_digest)
    heavy = type(group[0].command) in _HEAVY
    if len(group) <= BATCH_MAX and not (heavy and sum(map(len, filter(None, map(_result, group)))) > BATCH_BYTES_MAX):
        return [group]
    parts: list[list[Job]] = [[]]
    size = 0
    for job in group:
        bytes_ = len(_result(job) or b"") if heavy else 0
        if parts[-1] and (len(parts[-1]) >= BATCH_MAX or size + bytes_ > BATCH_BYTES_MAX):
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += bytes_
    return parts


_HEAVY = (Settle, Testify)  # they bring results
# For map(): a loop of ours over each job of each batch is what a batch costs.
_command, _digest = attrgetter("command"), attrgetter("digest")
_role, _result = attrgetter("command.role"), attrgetter("command.result")


def carrying_all(jobs: Sequence[Job], address: Address, facts: Loss) -> Steps:
    """Every job to its end; whoever stood behind another with the same question shares its answer."""
    groups, followers = plan(jobs)
    for group in groups:
        yield from carrying(group, address, facts)
    for job, before in followers:
        if before.error is None:
            job.reply, job.done = before.reply, True
        else:
            yield from carrying([job], address, facts)  # the failure was its own


class Loss:
    """What a lane knows of its server: set when it connects."""

    __slots__ = ("lost_at",)

    def __init__(self) -> None:
        self.lost_at: float | None = None


def carrying(jobs: list[Job], address: Address, facts: Loss) -> Steps:
    """One group: sent together; on an error that is not the connection's, one by one."""
    query, jobs = _query(jobs, address)
    if query is None:
        return
    deadline: float | None = None  # for answers that were lost
    conflicts = 0
    pause = REASK_PAUSE_SECONDS
    while True:
        try:
            answer = yield Run(query)
            break
        except (StoreUnavailable, Misconfigured) as unreachable:
            # No connection. If nothing of ours was under way, that is the answer.
            hopeless = isinstance(unreachable, (Misconfigured, Closed))
            if hopeless or deadline is None or time.monotonic() >= deadline:
                _fail(jobs, unreachable)
                return
            yield Pause(pause)
            pause = min(pause * 2, 0.5)
        except DriverError as error:
            if is_lost(error) and not isinstance(jobs[0].command, Redact):  # a second one would be audited twice
                deadline = deadline or time.monotonic() + REASK_SECONDS
                if time.monotonic() < deadline:
                    continue
            elif is_conflict(error) and conflicts < CONFLICTS_MAX:
                conflicts += 1
                continue
            elif len(jobs) > 1:
                for job in jobs:
                    yield from carrying([job], address, facts)
                return
            _fail(jobs, _translated(address, error))
            return
    _answer(jobs, answer, facts.lost_at)
    if deadline is not None:
        yield from _confirming(jobs, address, facts)


def _query(jobs: list[Job], address: Address) -> tuple[Query | None, list[Job]]:
    """The query, and whom it is for; one whose command cannot be said at all fails by itself."""
    try:
        return _said(jobs), jobs
    except (SamekeyError, UnicodeError):
        for job in jobs:
            try:
                single(job.command)
            except SamekeyError as error:
                job.fail(error)
            except UnicodeError as error:
                job.fail(Misconfigured(f"{address.name} cannot keep this text: {error}"))
    left = [job for job in jobs if not job.done]
    return (_said(left) if left else None), left


def _said(jobs: list[Job]) -> Query:
    return single(jobs[0].command) if len(jobs) == 1 else many(list(map(_command, jobs)))


def _answer(jobs: list[Job], answer: Any, lost_at: float | None) -> None:
    if len(jobs) == 1:
        return jobs[0].read(answer, lost_at)
    tokens, told_at, rows = answers_in(answer)
    for job in jobs:
        if (token := tokens.get(job.digest)) is not None:
            try:
                job.reply = told(job.command, token, told_at, lost_at)
            except SamekeyError as error:
                job.fail(error)
        elif (row := rows.get(job.digest)) is not None:
            job.read(answer, lost_at, row)
        job.done = True


def _confirming(jobs: list[Job], address: Address, facts: Loss) -> Steps:
    for job in jobs:
        command, record = job.command, job.reply
        if (
            isinstance(command, (Open, Take))
            and record is not None
            and record.attempt == command.attempt
            and record.state is State.STARTED
        ):
            touch = Job(Renew(record, command.lease_seconds))
            yield from carrying([touch], address, facts)
            job.reply, job.error = touch.reply, touch.error


def _fail(jobs: list[Job], error: Exception) -> None:
    for job in jobs:
        job.fail(error)


def _translated(address: Address, error: BaseException) -> Exception:
    mine = store_error(address, error)
    mine.__cause__ = error
    return mine
