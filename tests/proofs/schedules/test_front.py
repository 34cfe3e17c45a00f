"""Every schedule of a few callers on a layered store whose front forgets, is told late, or goes back in time.

The real parts: `core.attempt` decides, `core.layers` goes through both layers, `core.register` is the durable store.
Made up: the front (one word, and the older ones it may come back with), the clock, and who moves next. One move is
one command carried out, or one fault. Whoever is not chosen for a while is slow, or holds a word that is late by now.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import pytest

from samekey.core.attempt import attempt
from samekey.core.boundary import Opaque
from samekey.core.call import Answer, Call, Failed
from samekey.core.commands import Free, Returned, RunEffect, StoreCommand, Tell, Wait
from samekey.core.errors import SamekeyError
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.layers import Front, FrontTime, Linger, Look, Put, Sight, order_of
from samekey.core.policy import Policy
from samekey.core.record import Record
from samekey.core.register import Moment, apply, seen_at
from samekey.core.states import SETTLED, State
from tests.figures import figure

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
KEY = make_key("charge", "o-1")
INTENT = Intent({"amount": 200})
OPAQUE = Opaque()
LEASE = 30.0
FRONT_TTL = 20.0  # less than a lease, so that one step of time outlasts a word
POLICY = Policy(lease=LEASE, patience=1.0)
FRONT = Front("durable", FRONT_TTL)

Steps = Generator[Any, Any, Any]


class Scene(NamedTuple):
    """The whole world at one moment."""

    said: tuple[tuple[Any, ...], ...]  # what each caller was told so far; () has not begun
    gone: tuple[bool, ...]
    record: Record | None
    word: tuple[bytes, float] | None
    olds: tuple[tuple[bytes, float], ...]  # words the front once had
    now: float
    effects: tuple[str, ...]
    answers: tuple[Any, ...]
    forgets: int
    returns: int
    crashes: int
    expiries: int
    tokens: int
    freed: bool = False  # in the durable store
    told: bool = False  # and whoever begins from now on must not hear the old answer
    late: tuple[int, ...] = ()  # those who began after that


def through_layers(call: Call) -> Steps:
    """An attempt whose every store command goes through both layers."""
    steps, reply = attempt(call), None
    try:
        while True:
            command = steps.send(reply)
            if isinstance(command, StoreCommand) and not isinstance(command, Wait):
                reply = yield from FRONT.steps(command)
            else:
                reply = yield command
    except StopIteration as stop:
        return stop.value


def operator(_: Call) -> Steps:
    """Frees what has ended, once it has seen that."""
    seen = yield "find what has ended"
    yield from FRONT.steps(Free(seen, "ada", "refunded"))
    return "freed"


class World:
    def __init__(self, callers: int, *, frees: bool = False) -> None:
        self.names = [*"ABC"[:callers], *(["operator"] if frees else [])]
        self._points: dict[tuple[str, tuple[Any, ...]], Any] = {}

    def call(self, name: str) -> Call:
        return Call(KEY, INTENT, name, OPAQUE, OPAQUE.terms, OPAQUE.terms.text(), POLICY)

    def point(self, name: str, said: tuple[Any, ...]) -> Any:
        """What this caller asks after it was told all that: a command, or ("ended", how)."""
        known = self._points.get((name, said))
        if known is None:
            steps = (operator if name == "operator" else through_layers)(self.call(name))
            try:
                known = steps.send(None)
                for reply in said:
                    known = steps.send(Returned(reply[1]) if type(reply) is tuple else reply)
            except StopIteration as stop:
                known = ("ended", stop.value)
            except SamekeyError as error:
                known = ("ended", error)
            self._points[name, said] = known
        return known

    def moves(self, scene: Scene) -> Iterator[tuple[str, Scene]]:
        for index, name in enumerate(self.names):
            if scene.gone[index]:
                continue
            if scene.told and not scene.said[index] and index not in scene.late:
                scene = scene._replace(late=(*scene.late, index))
            asks = self.point(name, scene.said[index])
            for told, after in self._carried_out(scene, index, name, asks):
                yield f"{name}: {told}", after
            if scene.crashes and name != "operator":
                yield f"{name} crashes", gone(scene, index)._replace(crashes=scene.crashes - 1)
        if scene.word is not None and scene.forgets:
            yield "the front forgets", scene._replace(word=None, forgets=scene.forgets - 1)
        if scene.returns:
            for old in scene.olds:
                if old != scene.word:
                    yield "the front goes back in time", scene._replace(word=old, returns=scene.returns - 1)
        if scene.expiries:
            yield "a lease's time passes", scene._replace(now=scene.now + LEASE + 1, expiries=scene.expiries - 1)

    def _carried_out(self, scene: Scene, index: int, name: str, asks: Any) -> Iterator[tuple[str, Scene]]:
        match asks:
            case ("ended", "freed"):
                yield "is done", gone(scene, index)._replace(told=True)
            case ("ended", how):
                late = "late " if index in scene.late else ""
                yield (
                    "ends",
                    gone(scene, index)._replace(answers=(*scene.answers, *[f"{late}{said}" for said in said_by(how)])),
                )
            case "find what has ended":
                if scene.record is not None and scene.record.state in SETTLED:
                    yield asks, told(scene, index, self._seen(scene))
            case Look():
                word = scene.word if scene.word is not None and scene.word[1] > scene.now else None
                left = scene if word is not None else scene._replace(word=(b"", scene.now + 1))
                yield "looks at the front", told(left, index, Sight(scene.now, None if word is None else word[0]))
            case Put(_, word, until):
                yield "tells the front", told(put(scene, word, until), index, True)
                if scene.forgets:
                    lost = scene._replace(forgets=scene.forgets - 1)
                    yield "tells the front, which is away", told(lost, index, False)
            case FrontTime():
                sights = [said.now for said in scene.said[index] if isinstance(said, Sight)]
                yield "knows the time", told(scene, index, sights[-1] if sights else None)
            case Linger():
                word = None if scene.word is not None and not scene.word[0] else scene.word  # a mark is soon over
                yield "lingers", told(scene._replace(word=word), index, None)
            case Tell():
                yield "tells the hooks", told(scene, index, None)
            case RunEffect(held):
                assert held is not None
                assert scene.record is not None or scene.freed, "the front said go"
                after = scene._replace(effects=(*scene.effects, name))
                yield "does it", told(after, index, ("did it", name))
            case Wait(seen):
                record = self._shown_by_front(scene) or self._seen(scene)
                moved = record is None or record.state is not State.STARTED or record.fence != seen.fence
                if record is None or moved or not record.lease_live:
                    yield "has waited", told(scene, index, record)
                else:
                    yield "is out of patience", told(scene, index, record)
            case StoreCommand():
                moment = Moment(scene.now, scene.now, "", scene.tokens + 1)
                record = apply(scene.record, asks, moment)
                tokens = scene.tokens if record is None else max(scene.tokens, record.token)
                freed = scene.freed or (isinstance(asks, Free) and record is None)
                written = scene._replace(record=record, tokens=tokens, freed=freed)
                yield asks.verb, told(written, index, None if record is None else seen_at(record, moment))
            case _:
                raise AssertionError(f"nobody carries out {asks}")

    def _seen(self, scene: Scene) -> Record | None:
        return None if scene.record is None else seen_at(scene.record, Moment(scene.now, scene.now, "", 0))

    def _shown_by_front(self, scene: Scene) -> Record | None:
        word = scene.word
        if word is None or word[1] <= scene.now:
            return None
        return FRONT.answer(KEY, Sight(scene.now, word[0]))


def told(scene: Scene, index: int, reply: Any) -> Scene:
    said = list(scene.said)
    said[index] = (*said[index], reply)
    return scene._replace(said=tuple(said))


def gone(scene: Scene, index: int) -> Scene:
    flags = list(scene.gone)
    flags[index] = True
    said = list(scene.said)
    said[index] = ()
    return scene._replace(gone=tuple(flags), said=tuple(said))


def put(scene: Scene, word: bytes, until: float) -> Scene:
    there = scene.word if scene.word is not None and scene.word[1] > scene.now else None
    if there is not None and order_of(there[0]) >= order_of(word):
        return scene
    if until <= scene.now:
        return scene._replace(word=None)
    olds = tuple(dict.fromkeys((*scene.olds, (word, until))))
    return scene._replace(word=(word, until), olds=olds)


def said_by(how: Any) -> tuple[Any, ...]:
    if isinstance(how, Answer):
        return (how.result,)
    assert not isinstance(how, Failed), how
    return ()


def play(world: World, start: Scene) -> tuple[int, list[str]]:
    """How many scenes there are, and the first schedule that breaks a promise."""
    seen = {start}
    todo: list[tuple[Scene, tuple[str, ...]]] = [(start, ())]
    while todo:
        scene, path = todo.pop()
        for words, after in world.moves(scene):
            wrong = broken(after)
            if wrong:
                return len(seen), [*path, words, f"=> {wrong}"]
            if after not in seen:
                seen.add(after)
                todo.append((after, (*path, words)))
    return len(seen), []


def broken(scene: Scene) -> str:
    lives = 2 if scene.freed else 1
    if len(scene.effects) > lives:
        return f"{len(scene.effects)} effects in {lives} lives"
    if len({answer.removeprefix("late ") for answer in scene.answers}) > lives:
        return f"different answers: {scene.answers}"
    if scene.effects and f"late {scene.effects[0]}" in scene.answers:
        return "the old answer, after it was freed"
    return ""


def fresh(world: World, **budget: Any) -> Scene:
    count = len(world.names)
    return Scene(((),) * count, (False,) * count, None, None, (), 0.0, (), (), tokens=0, **budget)


@pytest.mark.parametrize(
    "budget",
    [
        {"forgets": 2, "returns": 0, "crashes": 1, "expiries": 1},
        {"forgets": 0, "returns": 1, "crashes": 1, "expiries": 1},
    ],
    ids=["forgets", "goes back"],
)
def test_a_front_that_forgets_or_goes_back_never_doubles_an_effect(budget):
    world = World(2)
    scenes, story = play(world, fresh(world, **budget))

    figure(f"search: layered, a front that {'forgets' if budget['forgets'] else 'goes back'}", f"{scenes:,} scenes")
    assert story == []


FREES = {"forgets": 0, "returns": 0, "crashes": 0, "expiries": 1}  # it outlasts a tombstone


def test_what_was_freed_is_never_replayed_again():
    """Whoever comes after the operator is done hears a new answer, however late the old word is told."""
    world = World(2, frees=True)
    scenes, story = play(world, fresh(world, **FREES))

    figure("search: layered, an answer that is freed", f"{scenes:,} scenes")
    assert story == []


def told_of_mutant(name: str, scenes: int, story: list[str]) -> None:
    figure(f"mutant, by search: {name}", f"{scenes} scenes, {len(story) - 1} moves")


def test_a_front_that_says_go_is_found_out(monkeypatch):
    """The search can fail: a front that answers a claim with its own copy lets an effect run twice."""

    def says_go(self, command):
        sight = yield Look(command.key.digest)
        record = None if sight is None else self.answer(command.key, sight)
        if record is None:
            record = yield from command
            yield from self._write_entry(record, 0.0 if sight is None else sight.now)
        return record.changed(attempt=command.attempt) if record.state is State.STARTED else record

    monkeypatch.setattr(Front, "_open", says_go)
    world = World(2)
    scenes, story = play(world, fresh(world, forgets=0, returns=0, crashes=0, expiries=0))

    told_of_mutant("a fast path that skips the durable store", scenes, story)
    assert "2 effects" in story[-1]


def test_a_free_that_tells_the_front_nothing_is_found_out(monkeypatch):
    def forgets_to_tell(self, command):
        return (yield from command)

    monkeypatch.setattr(Front, "_take_back", forgets_to_tell)
    world = World(2, frees=True)
    scenes, story = play(world, fresh(world, **FREES))

    told_of_mutant("a free that tells the front nothing", scenes, story)
    assert "the old answer" in story[-1]
