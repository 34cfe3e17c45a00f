"""Steps that a scenario may yield, apart from commands to the store; `suite.py` carries them out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from samekey.core.commands import Command, StoreCommand


class Step(Command):
    """A step of a scenario that is no command of the store."""

    __slots__ = ()

    def __iter__(self) -> Generator[Command, Any, Any]:
        reply = yield self
        return reply


@dataclass(frozen=True, slots=True)
class Invoke(Step):
    """Call a method of the store; `on` says over which connection: 0, or 1 for an independent one."""

    method: str
    arguments: tuple[Any, ...] = ()
    on: int = 0
    named: tuple[tuple[str, Any], ...] = ()  # arguments by keyword


@dataclass(frozen=True, slots=True)
class Show(Step):
    """What an attribute of the store says, over this connection."""

    attribute: str
    on: int = 0


@dataclass(frozen=True, slots=True)
class Pass(Step):
    """Let so many seconds pass on the store's clock."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Pause(Step):
    """Sleep for so many seconds of real time: only to give another lane a head start."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together(Step):
    """Carry out several lanes of steps at once, each in a thread or task of its own; the replies, lane by lane."""

    lanes: tuple[tuple[Command, ...], ...]


def over(connection: int, command: StoreCommand) -> Invoke:
    """The command, carried out over this connection."""
    return Invoke("carry_out", (command,), connection)


def lanes(each: Sequence[Command]) -> Together:
    """One lane for each command, in turns over the two connections."""
    return Together(
        tuple((over(at % 2, one) if isinstance(one, StoreCommand) else one,) for at, one in enumerate(each))
    )
