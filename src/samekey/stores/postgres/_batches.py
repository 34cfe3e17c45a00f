"""Many commands in few statements: how a batch is put together, sent, and asked about again.

Sans-IO: `carrying` yields what is to be sent and is sent the rows, so that it exists once for threads and for tasks.

Theory. Commands about different keys do not touch each other, so a batch is carried out in waves: the first
command of every key, then the second ones, and so on; within a wave all commands of one kind are one statement.
A statement is one transaction. Its keys are sorted, because two batches in opposite order would deadlock. A statement
that fails is sent again row by row, so that the failure of one command is not the failure of the others.

A lost reply does not show whether the statement was carried out. Every command carries the id of its attempt and
recognises its own earlier write, so it is sent again over a new connection, for as long as a server takes to restart. A
claim that finds its own record is then confirmed by a write: a primary may have committed it without its standby.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from samekey.core.commands import Open, Read, Redact, Renew, Settle, StoreCommand, Take, Testify, Wait
from samekey.core.errors import Misconfigured, SamekeyError, StoreBusy, StoreUnavailable
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.errors import DriverError, is_conflict, is_lost, store_error
from samekey.drivers.postgres.exchange import Query
from samekey.stores._failures import own_copy
from samekey.stores.postgres._rows import from_short
from samekey.stores.postgres._wire import answers_in, many, record_in, single

BATCH_MAX = 256  # commands in one batch: bounds how long the first of them waits for the last
BATCH_BYTES_MAX = 8 << 20  # results in one statement: bounds the memory on both sides
REASK_SECONDS = 5.0  # how long a lost reply is asked for again: a server restarts or fails over in that time
REASK_PAUSE_SECONDS = 0.05
CONFLICTS_MAX = 3  # deadlocks of one statement; at each one another transaction was carried out


class Pause(NamedTuple):
    seconds: float


# The reply to a query is its rows, or the driver's error, or StoreUnavailable if nothing was sent.
Step = Query | Pause
Steps = Generator[Step, Any, None]


class Server(Protocol):
    """Where the commands go: the connection knows when the server lost its memory, from its self-check."""

    address: Address
    lost_at: float | None


class Closed(StoreUnavailable):
    """The store was closed: trying again does not help."""


class Item:
    """One command, and its reply or error."""

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


def plan(items: Sequence[Item]) -> tuple[list[list[Item]], list[tuple[Item, Item]]]:
    """The items in groups, each of one kind and with each key once, in an order that keeps that of every key.

    And pairs of an item and the one right before it that asks the same: the two share a reply.
    """
    if len(items) == 1:
        return [list(items)], []
    if len(set(map(_digest, items))) == len(items):  # all keys are distinct, so one wave is enough (the common case)
        return [part for group in _kinds(items) for part in _parts(group)], []
    waves: list[dict[Any, list[Item]]] = []
    last: dict[bytes, tuple[int, Item]] = {}
    followers: list[tuple[Item, Item]] = []
    for item in items:
        wave, before = last.get(item.digest, (-1, None))
        if before is not None and _same(before.command, item.command):
            followers.append((item, before))
            continue
        wave += 1
        if wave == len(waves):
            waves.append({})
        waves[wave].setdefault(_kind(item.command), []).append(item)
        last[item.digest] = (wave, item)
    return [part for wave in waves for group in wave.values() for part in _parts(group)], followers


def _kinds(items: Sequence[Item]) -> Iterable[list[Item]]:
    (kind, *others) = set(map(type, map(_command, items)))
    if not others and (kind is not Settle or Role.OPERATOR not in map(_role, items)):
        return (list(items),)
    kinds: dict[Any, list[Item]] = {}
    for item in items:
        kinds.setdefault(_kind(item.command), []).append(item)
    return kinds.values()


def _kind(command: StoreCommand) -> Any:
    """Items of equal kind travel in one statement; settles of operators are audited, so each has its own."""
    kind = type(command)
    return command.key.digest if kind is Settle and command.role is Role.OPERATOR else kind  # type: ignore[attr-defined]


def _same(one: StoreCommand, other: StoreCommand) -> bool:
    """Whether the reply to the one is also the reply to the other, which comes right after it."""
    if type(one) is not type(other) or one.key != other.key:
        return False
    if isinstance(one, Wait) and isinstance(other, Wait):
        return one.seen.token == other.seen.token
    return isinstance(one, (Open, Read))  # an open that finds a record returns it, whichever attempt sent it


def _parts(group: list[Item]) -> list[list[Item]]:
    group.sort(key=_digest)
    carried = _CARRIED.get(type(group[0].command))
    if len(group) <= BATCH_MAX:
        if carried is None or sum(map(len, filter(None, map(carried, group)))) <= BATCH_BYTES_MAX:
            return [group]
    parts: list[list[Item]] = [[]]
    size = 0
    for item in group:
        bytes_ = item.command.bulk
        if parts[-1] and (len(parts[-1]) >= BATCH_MAX or size + bytes_ > BATCH_BYTES_MAX):
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += bytes_
    return parts


# For map(): a Python loop over the items would be the largest cost of a batch.
_command, _digest, _role = attrgetter("command"), attrgetter("digest"), attrgetter("command.role")
_result, _payload = attrgetter("command.result"), attrgetter("command.payload")
_CARRIED: dict[type[StoreCommand], Callable[[Item], bytes | None]] = {
    Settle: _result,
    Testify: _result,
    Open: _payload,
}


def carrying_all(items: Sequence[Item], server: Server) -> Steps:
    """Carry out every item; an item that asks the same as the one before it shares its reply."""
    groups, followers = plan(items)
    for group in groups:
        yield from carrying(group, server)
    for item, before in followers:
        if before.error is None:
            item.reply, item.done = before.reply, True
        else:
            yield from carrying([item], server)  # the failure belongs to the other one


def carrying(items: list[Item], server: Server, deadline: float | None = None) -> Steps:
    """Send one group together; after an error that is not the connection's, one by one.

    `deadline`: an earlier reply was lost, and until then the commands are sent again.
    """
    query, items = _query(items, server.address)
    if query is None:
        return
    conflicts = 0
    pause = REASK_PAUSE_SECONDS
    while True:
        try:
            answer = yield query
            break
        except (StoreUnavailable, Misconfigured) as unreachable:
            # There is no connection. If no earlier try was under way, the command failed.
            hopeless = isinstance(unreachable, (Misconfigured, Closed))
            if hopeless or deadline is None or time.monotonic() >= deadline:
                _fail(items, unreachable)
                return
            yield Pause(pause)
            pause = min(pause * 2, 0.5)
        except DriverError as error:
            if is_lost(error) and not isinstance(items[0].command, Redact):  # sent twice, it would be audited twice
                deadline = deadline or time.monotonic() + REASK_SECONDS
                if time.monotonic() < deadline:
                    continue
            elif is_conflict(error) and conflicts < CONFLICTS_MAX:
                conflicts += 1
                continue
            elif len(items) > 1:
                for item in items:
                    yield from carrying([item], server, deadline)
                return
            _fail(items, _translated(server.address, error, lost=deadline is not None))
            return
    _answer(items, answer, server.lost_at)
    if deadline is not None:
        yield from _confirming(items, server)


def _query(items: list[Item], address: Address) -> tuple[Query | None, list[Item]]:
    """The query, and the items in it; an item whose command cannot be written as a query fails alone."""
    try:
        return _written(items), items
    except (SamekeyError, UnicodeError):
        for item in items:
            try:
                single(item.command)
            except SamekeyError as error:
                item.fail(error)
            except UnicodeError as error:
                item.fail(Misconfigured(f"{address.name} cannot keep this text: {error}"))
    left = [item for item in items if not item.done]
    return (_written(left) if left else None), left


def _written(items: list[Item]) -> Query:
    return single(items[0].command) if len(items) == 1 else many(list(map(_command, items)))


def _answer(items: list[Item], answer: Any, lost_at: float | None) -> None:
    if len(items) == 1:
        return items[0].read(answer, lost_at)
    tokens, written_at, rows = answers_in(answer)
    for item in items:
        if (token := tokens.get(item.digest)) is not None:
            try:
                item.reply = from_short(item.command, token, written_at, lost_at)
            except SamekeyError as error:
                item.fail(error)
        elif (row := rows.get(item.digest)) is not None:
            item.read(answer, lost_at, row)
        item.done = True


def _confirming(items: list[Item], server: Server) -> Steps:
    for item in items:
        command, record = item.command, item.reply
        if (
            isinstance(command, (Open, Take))
            and record is not None
            and record.attempt == command.attempt
            and record.state is State.STARTED
        ):
            touch = Item(Renew(record, command.lease_seconds, command.retain_seconds))
            yield from carrying([touch], server, time.monotonic() + REASK_SECONDS)
            item.reply, item.error = touch.reply, touch.error


def _fail(items: list[Item], error: Exception) -> None:
    for item in items:
        item.fail(error)


def _translated(address: Address, error: BaseException, lost: bool) -> Exception:
    translated = store_error(address, error)
    if lost and isinstance(translated, StoreBusy):
        # A caller may send a busy command again as if it were new. Then a claim would find its own record, which may be
        # missing on the standby, and no write would confirm it.
        translated = StoreUnavailable(f"{translated.message}; an earlier reply was lost")
    translated.__cause__ = error
    return translated
