"""run_many: claims made together in one round trip, effects one after the other.

`new_call` makes the `Call` of a payload, `new_performer` the performer that carries it out. A performer of a batch uses
no single flight.

A batch holds keys whose effects have not begun; they are in `Unbegun`. An effect of the batch may need one of these
keys. To wait for that claim would be to wait for itself, so the batch gives the claim up: the effect that needs the key
runs it, and the batch asks again when the turn of that payload comes. Removing a claim from the dict is one step, so
either the batch or the effect has it, never both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar, cast

from samekey.core.attempt import attempt
from samekey.core.call import Call
from samekey.core.commands import Open
from samekey.core.drive import adrive, drive
from samekey.core.errors import KeyMissing, Misconfigured, SamekeyError
from samekey.core.key import part_text
from samekey.guard.binding import Content
from samekey.guard.operations import Operation, as_key
from samekey.loops import running

S = TypeVar("S")
Performing = Any  # a Performer, or an AsyncPerformer in the functions below that are awaited

MANY_MAX = 64  # claims made in one go: what a crash can leave behind at most


Unbegun = dict[str, "_Begun"]  # by attempt id: the claims whose effects have not begun

# Of the batches that this code runs inside of, the innermost first.
_batches: ContextVar[tuple[Unbegun, ...]] = ContextVar("samekey_batches", default=())


def given_up(attempt: str) -> Any:
    """The claim of this attempt, if a batch around us made it for later. It is removed: the caller lets it go."""
    for unbegun in _batches.get():
        claim = unbegun.pop(attempt, None)
        if claim is not None:
            return claim
    return None


def key_of(payload: Any, key: Any, operation: Operation) -> str:
    """A payload's own key: by a rule, by a function, or by the name of a field."""
    if isinstance(key, str):
        try:
            return part_text(payload[key] if isinstance(payload, Mapping) else getattr(payload, key))
        except (KeyError, AttributeError):
            raise KeyMissing(f"a payload of run_many has no {key!r} to take its key from") from None
    if isinstance(key, Content):
        return key.key_of(payload, operation.ignore)
    if callable(key):
        return as_key(key(payload), payload, operation)
    raise Misconfigured(
        f"key= of run_many is the name of a field, a function of one payload, or CONTENT, not {type(key).__name__}: "
        "of several fields a function makes one key, lambda payload: (payload.a, payload.b)"
    )


def chunks(items: Iterable[S]) -> Iterable[list[S]]:
    some: list[S] = []
    for item in items:
        some.append(item)
        if len(some) == MANY_MAX:
            yield some
            some = []
    if some:
        yield some


class _Begun(NamedTuple):
    """One of the batch, as far as its claim."""

    number: int
    steps: Any
    performer: Any
    command: Open


def run_some(some: list[S], new_call: Callable[[S], Call], new_performer: Callable[[Call, S], Performing]) -> list[Any]:
    """Answers and errors, in the order of the payloads."""
    answers: list[Any] = [None] * len(some)
    begun: list[_Begun] = []
    for number, payload in enumerate(some):
        try:
            call = new_call(payload)
        except Exception as error:
            answers[number] = error
            continue
        performer = new_performer(call, payload)
        steps = attempt(call)
        if call.unguarded:
            answers[number] = _ending(performer, steps, None)
        else:
            begun.append(_Begun(number, steps, performer, cast(Open, drive(steps, performer.perform, until=Open))))
    unbegun: Unbegun = {one.performer.call.attempt: one for one in begun}
    inside = _batches.set((unbegun, *_batches.get()))
    try:
        for one, reply in zip(begun, _claimed(begun), strict=True):
            ours = unbegun.pop(one.performer.call.attempt, None) is not None  # not given up
            if ours and one.performer.overdue():
                _withdraw(one)
                ours = False
            if ours:
                answers[one.number] = _ending(one.performer, one.steps, reply)
            else:  # another caller may have run it
                answers[one.number] = _by_itself(some[one.number], new_call, new_performer)
    except BaseException:
        _let_go(unbegun)
        raise
    finally:
        for one in begun:
            one.performer.finish()  # also where an interrupt came before its own try
        _batches.reset(inside)
    return answers


def _claimed(begun: list[_Begun]) -> list[Any]:
    if not begun:
        return []
    try:
        replies: list[Any] = begun[0].performer.store.batch([one.command for one in begun])
    except SamekeyError as error:
        replies = [error] * len(begun)  # one error for all: each call judges it by its own policy
    for one, reply in zip(begun, replies, strict=True):
        one.performer.keep_alive(reply)
    return replies


def _ending(performer: Performing, steps: Any, reply: Any) -> Any:
    try:
        return performer.conclude(performer.go_on(steps, reply))
    except Exception as error:
        return error


def _by_itself(payload: S, new_call: Callable[[S], Call], new_performer: Callable[[Call, S], Performing]) -> Any:
    try:
        call = new_call(payload)
    except Exception as error:
        return error
    return _ending(new_performer(call, payload), attempt(call), None)


def _let_go(unbegun: Unbegun) -> None:
    """Let claims go whose effects never ran: they are free, not in doubt."""
    while unbegun:
        _withdraw(unbegun.popitem()[1])


def _withdraw(one: _Begun) -> None:
    one.steps.close()
    one.performer.withdraw(one.command)


# -- the same, awaited -----------------------------------------------------------------------------------------


async def arun_some(
    some: list[S], new_call: Callable[[S], Call], new_performer: Callable[[Call, S], Performing]
) -> list[Any]:
    """Answers and errors, in the order of the payloads."""
    answers: list[Any] = [None] * len(some)
    begun: list[_Begun] = []
    for number, payload in enumerate(some):
        try:
            call = new_call(payload)
        except Exception as error:
            answers[number] = error
            continue
        performer = new_performer(call, payload)
        steps = attempt(call)
        if call.unguarded:
            answers[number] = await _aending(performer, steps, None)
        else:
            command = await adrive(steps, performer.perform, until=Open)
            begun.append(_Begun(number, steps, performer, cast(Open, command)))
    unbegun: Unbegun = {one.performer.call.attempt: one for one in begun}
    inside = _batches.set((unbegun, *_batches.get()))
    try:
        for one, reply in zip(begun, await _aclaimed(begun), strict=True):
            ours = unbegun.pop(one.performer.call.attempt, None) is not None
            if ours and one.performer.overdue():
                await _awithdraw(one)
                ours = False
            if ours:
                answers[one.number] = await _aending(one.performer, one.steps, reply)
            else:
                answers[one.number] = await _aby_itself(some[one.number], new_call, new_performer)
    except GeneratorExit:  # abandoned: nothing can be awaited any more, and the claims end with their leases
        raise
    except BaseException:
        await running().shielded(lambda: _alet_go(unbegun))
        raise
    finally:
        for one in begun:
            one.performer.finish()
        try:
            _batches.reset(inside)
        except ValueError:
            pass  # dropped with its loop: this is another context than the one in which it began
    return answers


async def _aclaimed(begun: list[_Begun]) -> list[Any]:
    if not begun:
        return []
    try:
        replies: list[Any] = await begun[0].performer.store.batch([one.command for one in begun])
    except SamekeyError as error:
        replies = [error] * len(begun)
    for one, reply in zip(begun, replies, strict=True):
        one.performer.keep_alive(reply)
    return replies


async def _aending(performer: Performing, steps: Any, reply: Any) -> Any:
    try:
        return performer.conclude(await performer.go_on(steps, reply))
    except Exception as error:
        return error


async def _aby_itself(payload: S, new_call: Callable[[S], Call], new_performer: Callable[[Call, S], Performing]) -> Any:
    try:
        call = new_call(payload)
    except Exception as error:
        return error
    return await _aending(new_performer(call, payload), attempt(call), None)


async def _alet_go(unbegun: Unbegun) -> None:
    while unbegun:
        await _awithdraw(unbegun.popitem()[1])


async def _awithdraw(one: _Begun) -> None:
    one.steps.close()
    await one.performer.withdraw(one.command)
