"""`begin_many` and `settle_many`: many calls of an adapter in few round trips.

Claims of up to MANY_MAX keys go to the store in one `batch`, and so do the settles. All other steps (waiting, asking,
a settle that must be tried again) are taken one call at a time, as for a single call.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from samekey.core.attempt import attempt
from samekey.core.call import Answer, Call, open_command
from samekey.core.commands import Open, Settle
from samekey.core.drive import adrive, drive
from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.guard.adapters import AsyncRunning, Ended, Running, pairs, patience, too_late, unopened
from samekey.guard.batch import chunks
from samekey.guard.operations import no_effect
from samekey.guard.performer import AsyncPerformer, Performer
from samekey.loops import running as running_loop


class _Claim(NamedTuple):
    """One call as far as its claim."""

    number: int
    performer: Any
    steps: Any
    command: Open


class _Write(NamedTuple):
    """One run as far as its settle."""

    number: int
    running: Any
    given: BaseException | None
    steps: Any
    command: Settle


def begin_many(guard: Any, calls: Iterable[Call], wait: float) -> list[Any]:
    seconds = patience(wait)
    opened: list[Any] = []
    for some in chunks(calls):
        under_way = guard._flights.batch()  # close() waits for it
        try:
            opened += _begin_some(guard, some, seconds)
        finally:
            del under_way
            if guard._closed:
                guard.close()
    return opened


def _begin_some(guard: Any, some: list[Call], seconds: float) -> list[Any]:
    opened: list[Any] = [None] * len(some)
    claims: list[_Claim] = []
    try:
        for number, call in enumerate(some):
            performer = _performer(guard, call, Performer)
            performer.wait_at_most(seconds)
            # A call with an earlier name first reads that one; in a transaction claims cannot be batched.
            if call.unguarded or call.aliases or performer.leases is None:
                opened[number] = _open(performer, None, None)
            else:
                steps = attempt(call)
                command = cast(Open, drive(steps, performer.perform, until=Open))
                claims.append(_Claim(number, performer, steps, command))
        for claim, reply in zip(claims, _carried_out(guard, [one.command for one in claims]), strict=True):
            opened[claim.number] = _open(claim.performer, claim.steps, reply)
    except BaseException:  # interrupted: nothing has run, so every key is let go
        for one in opened:
            if isinstance(one, Running):
                one.release("interrupted")
        for claim in claims:
            if opened[claim.number] is None:
                claim.steps.close()
                claim.performer.withdraw(claim.command)
        raise
    return opened


def _open(performer: Any, steps: Any, reply: Any) -> Any:
    call: Call = performer.call
    try:
        held = performer.hold() if steps is None else performer.hold_rest(steps, reply)
        if isinstance(held, Answer):
            return held
        late = too_late(held)
        if late is not None:
            performer.withdraw(open_command(call))
            raise late
    except Exception as error:
        return unopened(error, call)
    return Running(held, here=False)


def _carried_out(guard: Any, commands: list[Any]) -> list[Any]:
    if not commands:
        return []
    try:
        if isinstance(commands[0], Open):
            guard._require_open()  # a closed guard takes no claims; what runs is still settled
        replies: list[Any] = guard.store.batch(commands)
    except SamekeyError as error:
        return [copy.copy(error) for _ in commands]  # one error object for each call
    return replies


def settle_many(ends: Iterable[tuple[Running, Any]]) -> list[Ended]:
    ended: list[Ended] = []
    for some in chunks(pairs(ends)):
        ended += _settle_some(some)
    return ended


def _settle_some(some: list[Any]) -> list[Ended]:
    ended: list[Any] = [None] * len(some)
    writes: list[_Write] = []
    for number, (running, outcome, given) in enumerate(some):
        performer = running._performer
        if performer.leases is None or running.held.record is None:
            ended[number] = running._end(outcome, given)
            continue
        steps = running._begin_end()
        reached = drive(steps, performer.perform, outcome, until=Settle)
        if type(reached) is Settle:
            writes.append(_Write(number, running, given, steps, reached))
        else:
            performer.finish()
            ended[number] = running._ended(given, reached)
    if not writes:
        return ended
    start = time.monotonic()
    try:
        replies = _carried_out(writes[0].running._performer._guard, [one.command for one in writes])
    except BaseException:  # interrupted in the middle of the batch: written again, each recognises itself
        for one in writes:
            one.running._performer._unwritten = one.command
            one.running._performer._write_once_more()
            one.running._performer.finish()
        raise
    for one, reply in zip(writes, replies, strict=True):
        performer = one.running._performer
        _note(performer, one.command, reply, time.monotonic() - start)
        try:
            reached = performer.end(one.steps, reply)
        except SamekeyError as error:
            reached = error
        ended[one.number] = one.running._ended(one.given, reached)
    return ended


def _note(performer: Any, command: Settle, reply: Any, seconds: float) -> None:
    """What a performer notes of a write of its own."""
    if isinstance(reply, Exception):
        performer._unwritten = command
        if isinstance(reply, StoreUnavailable):
            reply.tried_seconds = math.inf if performer._guard._shut else seconds
    else:
        performer._unwritten = None
        performer._note(reply)


def _performer(guard: Any, call: Call, kind: Any) -> Any:
    """Without single flight: two deliveries of one key in a batch must not wait for each other."""
    performer = guard._performer(call, no_effect)
    if performer.leases is None:
        return performer
    return kind(call, no_effect, guard, None, guard._leases, guard._hooks)


# -- the same, awaited ---------------------------------------------------------------------------------------------


async def abegin_many(guard: Any, calls: Iterable[Call], wait: float) -> list[Any]:
    seconds = patience(wait)
    opened: list[Any] = []
    for some in chunks(calls):
        under_way = guard._flights.batch()
        try:
            opened += await _abegin_some(guard, some, seconds)
        finally:
            del under_way
            if guard._closed:
                await guard.close()
    return opened


async def _abegin_some(guard: Any, some: list[Call], seconds: float) -> list[Any]:
    opened: list[Any] = [None] * len(some)
    claims: list[_Claim] = []
    try:
        for number, call in enumerate(some):
            performer = _performer(guard, call, AsyncPerformer)
            performer.wait_at_most(seconds)
            if call.unguarded or call.aliases or performer.leases is None:
                opened[number] = await _aopen(performer, None, None)
            else:
                steps = attempt(call)
                command = cast(Open, await adrive(steps, performer.perform, until=Open))
                claims.append(_Claim(number, performer, steps, command))
        replies = await _acarried_out(guard, [one.command for one in claims])
        for claim, reply in zip(claims, replies, strict=True):
            opened[claim.number] = await _aopen(claim.performer, claim.steps, reply)
    except GeneratorExit:  # the coroutine was closed and cannot await any more: the leases end
        raise
    except BaseException:
        await running_loop().shielded(lambda: _alet_go(opened, claims))
        raise
    return opened


async def _alet_go(opened: list[Any], claims: list[_Claim]) -> None:
    for one in opened:
        if isinstance(one, AsyncRunning):
            await one.release("interrupted")
    for claim in claims:
        if opened[claim.number] is None:
            claim.steps.close()
            await claim.performer.withdraw(claim.command)


async def _aopen(performer: Any, steps: Any, reply: Any) -> Any:
    call: Call = performer.call
    try:
        held = await (performer.hold() if steps is None else performer.hold_rest(steps, reply))
        if isinstance(held, Answer):
            return held
        late = too_late(held)
        if late is not None:
            await performer.withdraw(open_command(call))
            raise late
    except Exception as error:
        return unopened(error, call)
    return AsyncRunning(held, here=False)


async def _acarried_out(guard: Any, commands: list[Any]) -> list[Any]:
    if not commands:
        return []
    try:
        if isinstance(commands[0], Open):
            guard._require_open()
        replies: list[Any] = await guard.store.batch(commands)
    except SamekeyError as error:
        return [copy.copy(error) for _ in commands]
    return replies


async def asettle_many(ends: Iterable[tuple[AsyncRunning, Any]]) -> list[Ended]:
    ended: list[Ended] = []
    for some in chunks(pairs(ends)):
        ended += await _asettle_some(some)
    return ended


async def _asettle_some(some: list[Any]) -> list[Ended]:
    ended: list[Any] = [None] * len(some)
    writes: list[_Write] = []
    for number, (running, outcome, given) in enumerate(some):
        performer = running._performer
        if performer.leases is None or running.held.record is None:
            ended[number] = await running._end(outcome, given)
            continue
        steps = running._begin_end()
        reached = await adrive(steps, performer.perform, outcome, until=Settle)
        if type(reached) is Settle:
            writes.append(_Write(number, running, given, steps, reached))
        else:
            performer.finish()
            ended[number] = running._ended(given, reached)
    if not writes:
        return ended
    start = time.monotonic()
    try:
        replies = await _acarried_out(writes[0].running._performer._guard, [one.command for one in writes])
    except GeneratorExit:
        raise
    except BaseException:
        for one in writes:
            one.running._performer._unwritten = one.command
            await one.running._performer._write_once_more()
            one.running._performer.finish()
        raise
    for one, reply in zip(writes, replies, strict=True):
        performer = one.running._performer
        _note(performer, one.command, reply, time.monotonic() - start)
        try:
            reached = await performer.end(one.steps, reply)
        except SamekeyError as error:
            reached = error
        ended[one.number] = one.running._ended(one.given, reached)
    return ended
