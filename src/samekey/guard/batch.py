"""run_many: claims made together in one round trip, effects one after the other.

The steps are written once for both colours: each `yield` hands out a function to call, and `to_the_end` or
`ato_the_end` calls it. A performer of a batch uses no single flight.

A batch holds keys whose effects have not begun; they are in `Unbegun`. An effect of the batch may need one of these
keys. To wait for that claim would be to wait for itself, so the batch gives the claim up: the effect that needs the key
runs it, and the batch asks again when the turn of that payload comes. Removing a claim from the dict is one step, so
either the batch or the effect has it, never both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeVar

from samekey.core.attempt import attempt
from samekey.core.attributes import fitted_to
from samekey.core.call import Call
from samekey.core.drive import Steps, adrive, do, drive
from samekey.core.errors import KeyMissing, Misconfigured, SamekeyError
from samekey.core.key import part_text
from samekey.guard.binding import Content
from samekey.guard.deadline import store_of
from samekey.guard.operations import Operation, as_key
from samekey.loops import running

S = TypeVar("S")

MANY_MAX = 64  # claims made in one go: what a crash can leave behind at most

Unbegun = dict[str, "Begun"]  # by attempt id: the claims whose effects have not begun

# Of the batches that this code runs inside of, the innermost first.
_batches: ContextVar[tuple[Unbegun, ...]] = ContextVar("samekey_batches", default=())


def given_up(attempt: str) -> Any:
    """The claim of this attempt, if a batch around us made it for later. It is removed: the caller lets it go."""
    for unbegun in _batches.get():
        claim = unbegun.pop(attempt, None)
        if claim is not None:
            return claim
    return None


class Rules(NamedTuple):
    """How each payload of a batch becomes a call."""

    key: Any
    tenant: str | None
    attributes: Any

    def call(self, guard: Any, operation: Operation, payload: Any) -> Call:
        key, attributes = key_of(payload, self.key, operation), self.attributes
        if callable(attributes):
            attributes = fitted_to(attributes(payload))
        call: Call = guard.new_call(operation, key, payload, self.tenant, attributes)
        return call


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


class Begun(NamedTuple):
    """One call of a batch, as far as its claim."""

    number: int
    steps: Any
    performer: Any

    @classmethod
    def of(cls, number: int, performer: Any) -> Begun:
        """Its claim is the first thing that an attempt asks, unless the operation had an earlier name."""
        steps = attempt(performer.call)
        performer.unanswered = next(steps)
        return cls(number, steps, performer)


class Many:
    """Some payloads of a run_many, as many as are claimed in one go."""

    def __init__(self, guard: Any, operation: Operation, effect: Any, rules: Rules) -> None:
        self._guard, self._operation, self._effect, self._rules = guard, operation, effect, rules
        self._begun: list[Begun] = []
        self._answers: list[Any] = []

    def run(self, some: list[Any]) -> Steps:
        """Answers and errors, in the order of the payloads."""
        answers = self._answers = [None] * len(some)
        for number, payload in enumerate(some):
            try:
                performer = self._performer(payload)
            except Exception as error:
                answers[number] = error
                continue
            if performer.call.unguarded:
                answers[number] = yield from _ending(performer)
            else:
                self._begun.append(Begun.of(number, performer))
        unbegun: Unbegun = {one.performer.call.attempt: one for one in self._begun}
        inside = _batches.set((unbegun, *_batches.get()))
        try:
            for one, reply in zip(self._begun, (yield from self._claimed()), strict=True):
                ours = unbegun.pop(one.performer.call.attempt, None) is not None  # not given up
                if ours and not one.performer.overdue():
                    answers[one.number] = yield from _ending(one.performer, one.steps, reply)
                    continue
                one.steps.close()
                yield one.performer.ask_again
                try:  # anew: another caller may have run it
                    performer = self._performer(some[one.number])
                except Exception as error:
                    answers[one.number] = error
                else:
                    answers[one.number] = yield from _ending(performer)
        finally:
            for one in self._begun:
                one.performer.finish()  # also where an interrupt came before its own try
            try:
                _batches.reset(inside)
            except ValueError:
                pass  # dropped with its loop: this is another context than the one in which it began
        return answers

    def let_go(self) -> Steps:
        """Interrupted: the claims whose effects never ran are free, not in doubt."""
        for one in self._begun:
            if self._answers[one.number] is None:
                one.steps.close()
                yield one.performer.ask_again

    def _performer(self, payload: Any) -> Any:
        call = self._rules.call(self._guard, self._operation, payload)
        return self._guard._performer(call, partial(self._effect, payload)).alone()

    def _claimed(self) -> Steps:
        if not self._begun:
            return []
        try:
            claims = [one.performer.unanswered for one in self._begun]
            store = store_of(self._guard, [one.performer.call for one in self._begun])
            replies = yield partial(store.batch, claims)
        except SamekeyError as error:
            replies = [error] * len(self._begun)  # one error for all: each call judges it by its own policy
        for one, reply in zip(self._begun, replies, strict=True):
            one.performer.keep_alive(reply)
        return replies


def _ending(performer: Any, steps: Any = None, reply: Any = None) -> Steps:
    try:
        return performer.conclude((yield partial(performer.go_on, steps, reply)))
    except Exception as error:
        return error


def to_the_end(guard: Any, steps: Steps, let_go: Callable[[], Steps]) -> Any:
    """Take the steps of a batch; if they are interrupted, the steps of `let_go`."""
    under_way = guard._flights.batch()  # close() waits for it
    try:
        return drive(steps, do)
    except BaseException:
        drive(let_go(), do)
        raise
    finally:
        del under_way
        if guard._closed:
            guard._shut_if_idle()


async def ato_the_end(guard: Any, steps: Steps, let_go: Callable[[], Steps]) -> Any:
    """The same, awaited."""
    under_way = guard._flights.batch()
    try:
        return await adrive(steps, do)
    except GeneratorExit:  # abandoned: nothing can be awaited any more, and the claims end with their leases
        raise
    except BaseException:
        await running().shielded(lambda: adrive(let_go(), do))
        raise
    finally:
        del under_way
        if guard._closed:
            await guard._shut_if_idle()
