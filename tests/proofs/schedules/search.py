"""Play every schedule of a few callers of one key, and hold each step against what samekey promises.

    report = explore(boundary=Opaque(), callers=2, crashes=2, expiries=2)
    report.check()                      # raises AssertionError with the story of the first broken promise

Theory. `world.py` says what can happen next in a scene; here every choice is followed, breadth first, and a scene
that was met before is not followed again. So the search is exhaustive within the bounds of its world, the first
broken promise it meets has the shortest story there is, and `schedules` - the number of different complete
schedules, counted over the graph of scenes - is far larger than the number of scenes. A circle in that graph
would be an attempt that can go on for ever; it is reported like a broken promise.

A promise looks at one move: the scene before, the move, the scene after. What must hold "always" is therefore
checked after each step, not only at the end.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from samekey.core.boundary import Boundary, Kind, parse_terms
from samekey.core.commands import Begin, Renew, Settle
from samekey.core.record import Record
from samekey.core.states import Role, State
from tests.proofs.schedules.books import Provider
from tests.proofs.schedules.scene import FRESH, Move, Scene
from tests.proofs.schedules.world import World

__all__ = ["PROMISES", "Promise", "Provider", "Report", "Violation", "World", "explore", "replay", "story"]

SCENES_MAX = 3_000_000  # memory, not time, ends a search that is too large


# -- what is promised ----------------------------------------------------------------------------------------


def one_effect(world: World, scene: Scene, move: Move) -> str | None:
    """At most one effect for a key; those of callers who declare Repeatable count as one."""
    charges = move.scene.books.charges[move.scene.forgotten :]
    if len(charges) < 2:
        return None
    repeatable = {
        caller.name
        for index, caller in enumerate(move.scene.callers)
        if world.declared(index).terms.kind is Kind.REPEATABLE
    }
    if len({"" if one.by in repeatable else at for at, one in enumerate(charges)}) > 1:
        return f"{len(charges)} effects, by {' and '.join(one.by for one in charges)}"
    return None


def one_answer(world: World, scene: Scene, move: Move) -> str | None:
    """Every answer for a key is the same, and is what the record says."""
    if len(move.scene.answers) > 1:
        return f"two answers: {' and '.join(map(repr, move.scene.answers))}"
    record = move.scene.record
    if move.end is not None and move.end.how == "answer":
        if record is None or record.state is not State.COMPLETED or record.result != move.end.result:
            return f"{move.actor} answers {move.end.result!r}, which the record does not say"
    return None


def settled_is_final(world: World, scene: Scene, move: Move) -> str | None:
    """Completed and closed never change; only retention ends them."""
    before, after = scene.record, move.scene.record
    if before is not None and before.settled and not move.scene.lost and not _over(before, scene.now):
        if after is None or (after.state, after.result, after.fence) != (before.state, before.result, before.fence):
            return f"{before.state} with {before.result!r} was changed by {move.actor}"
    return None


def fenced(world: World, scene: Scene, move: Move) -> str | None:
    """Tokens only grow, and a holder's write is accepted from nobody but the holder."""
    before, after, command = scene.record, move.scene.record, move.command
    if before is None or after is None or after is before:
        return None
    if after.token < before.token or (after.token == before.token and after.attempt != before.attempt):
        return f"the fence went from {before.fence} to {after.fence}"
    holders_own = isinstance(command, (Begin, Renew)) or (isinstance(command, Settle) and command.role is Role.HOLDER)
    if holders_own and before.attempt != move.actor:
        return f"{move.actor}, whose hold is gone, wrote to the record that {before.attempt} holds"
    return None


def completed_is_true(world: World, scene: Scene, move: Move) -> str | None:
    """A completed key is on the provider's books."""
    record = move.scene.record
    if record is not None and record.state is State.COMPLETED and not move.scene.books.charges:
        return "completed, and the provider has never seen it"
    return None


def released_is_true(world: World, scene: Scene, move: Move) -> str | None:
    """A released key is not on the provider's books, unless the record has evidence of it, or it may be repeated."""
    record = move.scene.record
    charged = move.scene.books.charges[move.scene.forgotten :]
    if record is None or record.state is not State.RELEASED or _repeatable(record):
        return None
    if charged and not _testified(record):
        return "released, and the provider has it"
    return None


def closed_is_true(world: World, scene: Scene, move: Move) -> str | None:
    """A closed key is not on the provider's books, unless the record has evidence of it, or it may be repeated."""
    record = move.scene.record
    charged = move.scene.books.charges[move.scene.forgotten :]
    if record is None or record.state is not State.CLOSED or _repeatable(record):
        return None
    if charged and not _testified(record):
        return "closed for good, and the provider has it"
    return None


def evidence_kept(world: World, scene: Scene, move: Move) -> str | None:
    """Whoever saw the effect succeed leaves word of it: as the key's result or beside it, for ever."""
    before, after = scene.record, move.scene.record
    if before is not None and not _forgotten(before, scene.now):
        if after is not None and after.evidence[: len(before.evidence)] != before.evidence:
            return "evidence was removed"
    if move.end is None or move.word is None or move.scene.lost:
        return None
    if after is not None:
        if after.state is State.COMPLETED and after.result == move.word:
            return None
        if any(one.attempt == move.actor and one.result == move.word for one in after.evidence):
            return None
    return f"{move.actor} saw {move.word!r}, ended ({move.end.what}), and left no word of it"


def evidence_heard(world: World, scene: Scene, move: Move) -> str | None:
    """Where evidence says it happened, nobody starts it again."""
    before, after = scene.record, move.scene.record
    if before is None or after is None or after.state is not State.STARTED or not _testified(before):
        return None
    if _forgotten(before, scene.now):
        return None
    if after.fence != before.fence:
        return f"{move.actor} started it again, although {_testified(before)} had testified that it happened"
    if after.begun_at is not None and before.begun_at is None:
        return f"{move.actor} marked it begun, although {_testified(before)} had testified that it happened"
    return None


def ends_well(world: World, scene: Scene, move: Move) -> str | None:
    """An attempt ends in an answer, in its effect's own error or in an error of samekey; never in a surprise."""
    return f"{move.actor} broke: {move.end.what}" if move.end is not None and move.end.how == "broke" else None


def heals(world: World, scene: Scene, move: Move) -> str | None:
    """Whoever comes when the faults have stopped gets an answer, the effect's own word, or InDoubt."""
    if move.actor == FRESH and move.end is not None and move.end.how == "raised" and move.end.what != "InDoubt":
        return f"no faults any more, and {FRESH} was told {move.end.what}"
    return None


def _over(record: Record, now: float) -> bool:
    """Past its retention: from here on the key is new."""
    return record.retain_until is not None and record.retain_until <= now


def _forgotten(record: Record, now: float) -> bool:
    """Evidence goes with its settled record, or with a dead hold of Repeatable, when their retention is over."""
    return (record.settled or _repeatable(record)) and _over(record, now)


def _repeatable(record: Record) -> bool:
    """Whether it was claimed as Repeatable: then an attempt that failed is not in doubt, and may have happened."""
    return parse_terms(record.boundary).kind is Kind.REPEATABLE


def _testified(record: Record) -> str:
    """Who testified that it happened: read from the evidence itself, so as not to trust what is being checked."""
    return " and ".join(one.attempt for one in record.evidence if one.state is State.COMPLETED)


Promise = Callable[[World, Scene, Move], str | None]


def invents_nothing(world: World, scene: Scene, move: Move) -> str | None:
    """A worker makes no record, and takes none that is free: only a caller asks for an effect."""
    if move.actor[:1] not in WORKERS or move.scene.record is scene.record or move.scene.record is None:
        return None
    if scene.record is None:
        return f"{move.actor} opened a key that no caller asked for"
    if scene.record.state is State.RELEASED and move.scene.record.state is State.STARTED:
        return f"{move.actor} took a key that is free for callers"
    return None


WORKERS = frozenset("WV")

PROMISES: tuple[Promise, ...] = (
    one_effect,
    one_answer,
    settled_is_final,
    fenced,
    completed_is_true,
    released_is_true,
    closed_is_true,
    evidence_kept,
    evidence_heard,
    ends_well,
    heals,
    invents_nothing,
)


# -- playing all of it -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Violation:
    """A broken promise, and the shortest way to it."""

    promise: str
    detail: str
    choices: tuple[str, ...]
    world: World = field(repr=False)

    def explain(self) -> str:
        """The story, in words: one line for each move, with what it changed."""
        told = "\n".join(f"  {line}" for line in story(self.world, self.choices))
        return f"broken promise: {self.promise.replace('_', ' ')} - {self.detail}\n{told}"


@dataclass(frozen=True)
class Report:
    """What a search saw: how much, what broke, and which things happened at least once."""

    schedules: int
    scenes: int
    moves: int
    violations: tuple[Violation, ...]
    reached: frozenset[str]

    def __str__(self) -> str:
        broken = f", {len(self.violations)} broken promise" if self.violations else ""
        return f"{self.schedules:,} schedules, {self.scenes:,} scenes, {self.moves:,} moves{broken}"

    def check(self) -> Report:
        """This report, if every promise held; otherwise AssertionError with the story of the first that did not."""
        if self.violations:
            raise AssertionError(self.violations[0].explain())
        return self


def explore(
    boundary: Boundary | tuple[Boundary, ...],
    *,
    callers: int = 2,
    crashes: int = 2,
    expiries: int = 2,
    provider: Provider | None = None,
    effect: str | tuple[str, ...] = "charge",
    unless: Iterable[Promise] = (),
    **options: Any,
) -> Report:
    """Play every schedule of this world; stops at the first broken promise. `unless`: promises not asked for.

    `options` are those of `World`: timeouts, ages, outages, cancels, losses, retention, others, punctual, exact.
    """
    world = World(
        boundary=boundary,
        provider=provider or Provider(),
        effect=effect,
        callers=callers,
        crashes=crashes,
        expiries=expiries,
        **options,
    )
    left_out = set(unless)
    collects = gc.isenabled()
    gc.disable()  # nothing in a scene refers back: the collector would walk millions of them, and free none
    try:
        return _explore(world, [one for one in PROMISES if one not in left_out])
    finally:
        if collects:
            gc.enable()


def _explore(world: World, promises: Sequence[Promise]) -> Report:
    first = world.first()
    numbers: dict[Scene, int] = {first: 0}
    parents, labels = array("q", [-1]), [""]
    after: list[array[int]] = []  # the scenes that follow each scene; a move more than once counts each time
    reached: set[str] = set()
    moves = 0
    level = [first]
    while level:
        next_level = []
        for scene in level:
            number, follows = numbers[scene], array("q")
            for move in world.moves(scene):
                moves += 1
                if move.events or move.end is not None:
                    reached.update(_events(move))
                child = numbers.setdefault(move.scene, len(numbers))
                follows.append(child)
                if child == len(parents):
                    parents.append(number)
                    labels.append(move.label)
                    next_level.append(move.scene)
                if move.end is None and move.scene.record is scene.record and move.scene.books is scene.books:
                    continue  # nothing happened that a promise speaks of
                for promise in promises:
                    detail = promise(world, scene, move)
                    if detail is not None:
                        choices = (*_path(parents, labels, number), move.label)
                        broken = Violation(promise.__name__, detail, choices, world)
                        return Report(0, len(numbers), moves, (broken,), frozenset(reached))
            after.append(follows)
        level = next_level
        if len(numbers) > SCENES_MAX:
            raise MemoryError(f"more than {SCENES_MAX} scenes: give this world tighter bounds")
    schedules, on_a_circle = _count(after)
    circles: tuple[Violation, ...] = ()
    if on_a_circle is not None:
        choices = _path(parents, labels, on_a_circle)
        circles = (Violation("ends_well", "this can go on for ever", choices, world),)
    return Report(schedules, len(numbers), moves, circles, frozenset(reached))


def _events(move: Move) -> Iterator[str]:
    yield from move.events
    if move.end is not None:
        who = FRESH if move.actor == FRESH else "a caller"
        yield f"{who}: {move.end.what}"


def _path(parents: array[int], labels: list[str], number: int) -> tuple[str, ...]:
    path = []
    while number > 0:
        path.append(labels[number])
        number = parents[number]
    return tuple(reversed(path))


def _count(after: list[array[int]]) -> tuple[int, int | None]:
    """How many ways lead from the first scene to an end; and a scene that lies on a circle, if there is one."""
    before = array("q", bytes(8 * len(after)))
    for follows in after:
        for child in follows:
            before[child] += 1
    ways = [0] * len(after)
    ways[0], open_ends, total, seen = 1, [0], 0, 0
    while open_ends:
        number = open_ends.pop()
        seen += 1
        if not after[number]:
            total += ways[number]
        for child in after[number]:
            ways[child] += ways[number]
            before[child] -= 1
            if not before[child]:
                open_ends.append(child)
        ways[number] = 0  # big numbers: let them go as soon as they are passed on
    if seen == len(after):
        return total, None
    return total, next(number for number, count in enumerate(before) if count)


# -- playing one of them -----------------------------------------------------------------------------------------


def replay(world: World, choices: Iterable[str]) -> list[Move]:
    """The moves behind these choices, in order; ValueError where one cannot happen, with what can."""
    scene, played = world.first(), list[Move]()
    for choice in choices:
        possible = {move.label: move for move in world.moves(scene)}
        if choice not in possible:
            raise ValueError(f"after {len(played)} moves {choice!r} cannot happen, only: {', '.join(possible)}")
        played.append(possible[choice])
        scene = possible[choice].scene
    return played


def story(world: World, choices: Iterable[str]) -> list[str]:
    """The same in words: who did what, and what it changed."""
    lines, scene = [], world.first()
    for number, move in enumerate(replay(world, choices), start=1):
        lines.append(f"{number:2}. {move.label:34} {'; '.join(_changes(scene, move))}".rstrip())
        scene = move.scene
    return lines


def _changes(scene: Scene, move: Move) -> Iterator[str]:
    before, after = scene.record, move.scene.record
    if after is None and before is not None:
        yield "no record"
    elif after is not None and after != before:
        marks = [word for word, on in (("unsure", after.unsure), ("begun", after.begun_at is not None)) if on]
        marks += [f"round {after.round}"] if after.round else []
        marks += [f"{one.attempt} testified {one.state}" for one in after.evidence]
        yield f"{after.state}, token {after.token} of {after.attempt}{''.join(f', {mark}' for mark in marks)}"
    elif move.command is not None and move.end is None:
        yield "nothing changed"
    if move.scene.now != scene.now:
        yield f"{move.scene.now:g} s"
    for charge in move.scene.books.charges[len(scene.books.charges) :]:
        yield f"CHARGED by {charge.by}"
    yield from move.events
    if move.end is not None:
        yield f"{move.actor} ends: {move.end.what}{f' {move.end.result!r}' if move.end.result else ''}"
