"""Attempts as points in a table.

An attempt is a generator, which can be neither copied nor compared, so it cannot be part of a state that a search
visits. Its *point* can: the frames of a suspended generator and their local variables are all that it remembers.
Each (point, reply) is executed once, by running the attempt again from its start, and is then a lookup in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import fields
from typing import Any, NamedTuple

from samekey.core.call import Answer, Call, Failed
from samekey.core.commands import Command, Raised, Returned, Sleep, Tell, Undo
from samekey.core.envelope import encode
from samekey.core.errors import Refused, SamekeyError, StoreUnavailable
from tests.proofs.schedules.books import Ending

REPLIES_MAX = 80  # heard by one attempt; the longest honest one here needs 25
RESULT_MAX_BYTES = 1 << 10
NO_ANSWER = "no answer"  # a reply that never comes: StoreUnavailable is thrown

Script = Callable[[], Generator[Command, Any, Any]]


class End(NamedTuple):
    how: str  # answer | failed (the effect's own error) | raised (an error of samekey) | cancelled | broke
    what: str  # the state, or the name of the error
    result: bytes | None = None


class Point:
    """How far one attempt has come: what it has heard, and what it asks now (a command, or its end)."""

    __slots__ = ("asks", "call", "heard", "paths", "script")

    def __init__(self, call: Call, script: Script, heard: tuple[Any, ...], asks: Command | End) -> None:
        self.call = call
        self.script = script
        self.heard = heard
        self.asks = asks
        self.paths: dict[Any, tuple[Point, tuple[str, ...]]] = {}


class Points:
    """Every point met so far. Equal points are one object, so that they compare by identity."""

    def __init__(self) -> None:
        self._points: dict[Any, Point] = {}

    def start(self, call: Call, script: Script) -> Point:
        return self._run(call, script, ())[0]

    def hear(self, point: Point, reply: Any) -> tuple[Point, tuple[str, ...]]:
        """The point after this reply, and what the attempt told the hooks on the way there."""
        if reply not in point.paths:
            point.paths[reply] = self._run(point.call, point.script, (*point.heard, reply))
        return point.paths[reply]

    def _run(self, call: Call, script: Script, heard: tuple[Any, ...]) -> tuple[Point, tuple[str, ...]]:
        steps, events = script(), list[str]()
        asks: Command | End
        try:
            asks = _next(steps, None, events)
            for reply in heard:
                events.clear()
                asks = _next(steps, reply, events)
            where: Any = _frames(steps)
        except StopIteration as stop:
            where = asks = _end(stop.value)
        except SamekeyError as error:
            where = asks = End("raised", type(error).__name__)
        except Exception as error:
            where = asks = End("broke", repr(error))
        finally:
            steps.close()
        if len(heard) > REPLIES_MAX:
            where = asks = End("broke", f"{REPLIES_MAX} replies, and no end")
        return self._points.setdefault((call.attempt, where), Point(call, script, heard, asks)), tuple(events)


def _next(steps: Generator[Command, Any, Any], reply: Any, events: list[str]) -> Command:
    """The next command that the world must answer; facts for the hooks and pauses need no move of their own."""
    if reply is NO_ANSWER:
        command = steps.throw(StoreUnavailable("the store does not answer"))
    else:
        command = steps.send(reply.outcome() if isinstance(reply, Ending) else reply)
    while isinstance(command, (Tell, Sleep, Undo)):
        if isinstance(command, Tell):
            events.append(command.event)
        command = steps.send(None)
    return command


def _frames(steps: Any) -> tuple[Any, ...]:
    """All that a suspended generator remembers: where each of its frames stands, and the local variables there."""
    frames = []
    while steps is not None:
        frame = steps.gi_frame
        memory = tuple((name, _comparable(value)) for name, value in sorted(frame.f_locals.items()) if name != "call")
        frames.append((frame.f_code, frame.f_lasti, memory))
        steps = steps.gi_yieldfrom
    return tuple(frames)


def _comparable(value: Any) -> Any:
    match value:
        case BaseException():
            return (type(value), str(value))
        case Command() | Returned() | Raised():
            return facts(value)
        case Failed(error=error):
            return (Failed, type(error), str(error))
        case _:
            return value


def facts(value: Any) -> tuple[Any, ...]:
    """A command or an outcome as a tuple: they themselves cannot be hashed."""
    return (type(value), *(_comparable(getattr(value, field.name)) for field in fields(value)))


def _end(value: Any) -> End:
    match value:
        case Answer(result=result, state=state):
            return End("answer", state, encode(result, max_bytes=RESULT_MAX_BYTES))
        case Failed(error=Refused() as error):
            return End("failed", "Refused", error.reason.encode())
        case Failed(error=error):
            return End("failed", type(error).__name__)
        case None:
            return End("cancelled", "cancelled")
        case End():
            return value
        case _:
            return End("broke", repr(value))
