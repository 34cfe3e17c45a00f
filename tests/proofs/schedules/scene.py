"""One moment of a world, as values: who is where, what the store and the provider's books say, what is on its way.

Nothing here decides anything or changes anything; `world.py` says what can happen next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from samekey.core.boundary import Verdict, parse_terms
from samekey.core.commands import Ask, Command, Settle, StoreCommand
from samekey.core.inquiry import Inquiry
from samekey.core.key import make_key
from samekey.core.record import Record
from tests.proofs.schedules.books import Books, Request
from tests.proofs.schedules.points import End, Point

LEASE_SECONDS = 30.0
FRESH = "Z"  # the caller that comes when the faults have stopped
KEY = make_key("charge", "o-1")
ANSWERED = Inquiry(answered=True)  # of an inquiry, what a worker decides by


@dataclass(frozen=True, slots=True)
class FindOut(Command):
    """A person finds out how it stands: the reply is a `Verdict`, and Absent only if it can no longer happen."""

    record: Record


@dataclass(frozen=True, slots=True)
class Sweep(Command):
    """Delete the record if it is past its retention."""


class Caller(NamedTuple):
    name: str  # also its attempt id
    point: Point | None  # None: gone
    stage: str = ""  # of an effect: "" | "ready" (marked) | "sent"; and "leaving", when cancelled
    due: float = inf  # by when a punctual caller, once it can no longer be stopped, has its answer
    word: bytes | None = None  # what its effect returned: it must never be lost
    verdict: Verdict | None = None  # the provider's answer to its question, on the way back


class Faults(NamedTuple):
    """How many of each there may still be."""

    crashes: int
    expiries: int
    timeouts: int
    ages: int
    outages: int
    cancels: int
    losses: int
    copies: int


class Stray(NamedTuple):
    """A command that its sender has given up on."""

    by: str
    facts: tuple[Any, ...]

    def command(self) -> StoreCommand:
        kind, *values = self.facts
        command: StoreCommand = kind(*values)
        return command


NO_FAULTS = Faults(0, 0, 0, 0, 0, 0, 0, 0)


class Scene(NamedTuple):
    callers: tuple[Caller, ...]
    left: Faults
    books: Books
    record: Record | None = None
    requests: tuple[Request, ...] = ()  # on their way to the provider
    strays: tuple[Stray, ...] = ()  # on their way to the store; nobody waits for them
    now: float = 0.0
    token: int = 0
    answers: tuple[bytes, ...] = ()  # different ones; there should never be two
    lost: bool = False  # the store lost its memory
    forgotten: int = 0  # charges of a key whose retention is over
    healed: bool = False  # faults have stopped


class Move(NamedTuple):
    """Something that can happen: its name, the scene after it, and who did and told what."""

    label: str
    scene: Scene
    actor: str = ""
    command: Command | None = None
    events: tuple[str, ...] = ()
    end: End | None = None
    word: bytes | None = None  # at the end: what the effect of this caller had returned


def wiped(record: Record, *, retained: bool = False, moves: int = 0) -> Record:
    """The record without what is only told to people: core decides nothing by it. People do, by the last move."""
    return record._replace(
        version=0,
        attempts=1,
        created_at=0.0,
        changed_at=0.0,
        begun_at=None if record.begun_at is None else 0.0,
        settled_at=None,
        retain_until=record.retain_until if retained else None,
        error=None,
        inquiry=ANSWERED if record.inquiry is not None and record.inquiry.answered else None,
        evidence=tuple(one._replace(at=0.0, why="") for one in record.evidence),
        moves=tuple(move._replace(at=0.0) for move in record.moves[len(record.moves) - moves :]),
    )


def due_of(held: Record) -> float:
    """By when nothing of this hold may be under way any more: what its boundary asks of the user."""
    terms = parse_terms(held.boundary)
    if terms.believe_absent_after is not None:
        return held.lease_until + terms.believe_absent_after
    if terms.window is not None and held.first_sent_at is not None:
        return max(held.lease_until, held.first_sent_at + terms.window)
    return inf


def watched(record: Record) -> tuple[Any, ...]:
    """What a waiter is woken for when it changes."""
    return (record.fence, record.state, record.asker)


def marked(caller: Caller, script: str) -> bool:
    """Whether this caller's effect writes the mark before it sends."""
    return point_of(caller).call.terms.marked and script != "forget"


def point_of(caller: Caller) -> Point:
    if caller.point is None:
        raise ValueError(f"{caller.name} is gone")
    return caller.point


def spend(scene: Scene, fault: str) -> Scene:
    return scene._replace(left=scene.left._replace(**{fault: getattr(scene.left, fault) - 1}))


def put(scene: Scene, index: int, caller: Caller) -> Scene:
    return scene._replace(callers=(*scene.callers[:index], caller, *scene.callers[index + 1 :]))


def with_request(requests: tuple[Request, ...], request: Request) -> tuple[Request, ...]:
    return tuple(sorted((*requests, request)))  # which one left first makes no difference


def nth(given: Any, index: int) -> Any:
    return given[min(index, len(given) - 1)] if isinstance(given, tuple) else given


def verb_of(command: StoreCommand) -> str:
    match command:
        case Settle(state=state, role=role):
            return f"settles {state} as {role}"
        case Ask(lease_seconds=0):
            return "ends its asking"
        case Ask():
            return "wants to ask"
        case _:
            return {"testify": "testifies"}.get(command.verb, f"{command.verb}s")
