"""All interleavings of triggers, drainer, reset, changes, expiry, a crash and a dead Redis, on the real steps.

Each mutant below breaks one decision of the design; a search that does not find it would be worth nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from samekey.core.errors import StoreUnavailable
from samekey.intake import commands as c
from samekey.intake import drainer, pipeline
from samekey.intake.ids import key_digest, keyed_id
from samekey.intake.pipeline import Context, Trigger, Triggered
from samekey.intake.runs import Run
from tests.intake.playing import Broken, Ended, Model, Node, Play, World, to_the_end

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
SECRET = b"a secret of sixteen"
ENV, TASK, KEY = "dev", "hello", "k"
DIGEST = key_digest(ENV, TASK, KEY)
IDS = [keyed_id(SECRET, ENV, DIGEST, generation) for generation in range(5)]
KNOWN = Context({1: SECRET})
LIFE = 1000.0
REMEMBERS = Context({1: SECRET}, remembered=lambda run_id: "" if run_id == IDS[0] else None)  # it saw that run alive
RULES = drainer.Rules(for_good=lambda error: False)


def template(now: float = 1.0, payload: str = "{}") -> Run:
    return Run(
        "", ENV, TASK, payload, fingerprint=payload, created_at=now, key=KEY, digest=DIGEST, key_expires_at=now + LIFE
    )


def trigger(now: float = 1.0, known: Context = KNOWN, **more: Any) -> Callable[[], Any]:
    asked = Trigger(template(now), now, LIFE, "x", **more)
    return lambda: pipeline.resolve_or_create(asked, known)


def drain(times: int = 2) -> Callable[[], Any]:
    def steps() -> Any:
        for _ in range(times):
            yield from drainer.drain(ENV, 10, 30.0, RULES)

    return steps


def reset() -> Any:
    return pipeline.reset_key(ENV, DIGEST, KNOWN, {"id": "reset", "op": "free", "at": 1.0})


def tag() -> Any:
    return pipeline.change(ENV, IDS[0], {"id": "tag", "op": "tags", "tags": ["t"], "at": 1.0}, KNOWN)


def read() -> Any:
    return pipeline.get(ENV, IDS[0], KNOWN)


def answered(run_id: str) -> Callable[[Node, list[str]], bool]:
    """The actor begins when a trigger was answered with this id."""
    return lambda node, names: any(
        isinstance(end, Ended) and isinstance(end.value, Triggered) and end.value.id == run_id for end in node.ended
    )


def check(prior: tuple[str, ...] = (), dead: tuple[str, ...] = ()) -> Callable[[Node, dict[str, Any]], None]:
    """The invariants at the end of a schedule; `prior` ids were there before, `dead` ones must not be answered."""

    def checked(node: Node, ended: dict[str, Any]) -> None:
        world = node.world.clone()
        world.down = False
        world.entries = {run_id: (*entry[:3], False) for run_id, entry in world.entries.items()}
        for _ in range(5):
            if world.entries:
                to_the_end(world, drainer.drain(ENV, 10, 30.0, RULES))
        require(not world.entries, "the buffer is not drained")
        answers = {
            name: end.value
            for name, end in ended.items()
            if isinstance(end, Ended) and isinstance(end.value, Triggered)
        }
        for name, end in ended.items():
            if name.startswith("trigger") and isinstance(end, Ended) and end.problem:
                require(False, f"{name} was refused with {end.problem}")
        for name, answer in answers.items():
            require(answer.id in IDS, f"{name} has a foreign id")
            require(answer.id in world.rows, f"{name} holds an id that no store has")
            require(answer.id not in dead, f"{name} was answered with a run whose key is over")
            at = list(ended).index(name)
            if "reset" in (node.after[at] or ()) and is_done(ended.get("reset")):
                require(answer.id != ended["reset"].value.id, f"{name} came after the reset and has the old id")
        first = Counter(answer.id for answer in answers.values() if not answer.cached)
        # A run that waits in a buffer which no longer answers is told again by the insert that cannot see it.
        most = 2 if node.downs and node.world.entries else 1
        require(all(count <= most for count in first.values()), f"isCached false was told more than once: {first}")
        calm = not (world.timeouts or node.crashes or node.downs or world.lapses)
        for run_id in {answer.id for answer in answers.values()} - set(prior):
            require(not calm or first[run_id] == 1, f"isCached false was told {first[run_id]} times")
        handed = Counter(world.handed)
        for run_id in world.rows:
            require(run_id in prior or handed[run_id] == 1, f"the sink has {run_id} {handed[run_id]} times")
        if is_done(ended.get("tag")):
            require("t" in world.rows[IDS[0]].tags, "an accepted tag is lost")
        if "read" in ended and ended["read"] is not None and ended["read"] != "crashed":
            require(is_done(ended["read"]) or node.downs > 0, "an id that was returned cannot be read")
        now = 1.0 if not dead else LIFE + 2
        live = [run.id for run in world.rows.values() if run.key_live(now)]
        require(len(live) <= 1, f"two runs have the key: {live}")

    return checked


def is_done(end: Any) -> bool:
    return isinstance(end, Ended) and not end.problem


def require(holds: bool, why: str) -> None:
    if not holds:
        raise Broken(why)


def expired() -> World:
    """A run whose key is over: its settled claim has ended with it."""
    run = replace(template(), id=IDS[0])
    return World(rows={run.id: run}, known=frozenset({DIGEST}))


def ghost() -> World:
    """A settled claim that names a run in neither store."""
    return World(claims={f"{DIGEST}.0": ("settled", IDS[0])}, known=frozenset({DIGEST}))


def written() -> World:
    """A run that was answered before, with its settled claim."""
    run = replace(template(), id=IDS[0])
    return World(rows={run.id: run}, known=frozenset({DIGEST}), claims={f"{DIGEST}.0": ("settled", run.id)})


def two(**more: Any) -> dict[str, Callable[[], Any]]:
    return {"trigger 1": trigger(), "trigger 2": trigger(), **more}


def three(**more: Any) -> dict[str, Callable[[], Any]]:
    return {**two(), "trigger 3": trigger(), **more}


PLAYS: dict[str, Callable[[], Play]] = {
    "three triggers and a drainer": lambda: Play(three(drain=drain()), check()),
    "three triggers and a crash": lambda: Play(three(), check(), crashes=1),
    "two triggers, a drainer and a crash": lambda: Play(two(drain=drain()), check(), crashes=1),
    "three triggers and a reset": lambda: Play(three(reset=reset), check()),
    "two triggers, a reset and a drainer": lambda: Play(two(reset=reset, drain=drain()), check()),
    "two triggers, a reset and a crash": lambda: Play(two(reset=reset), check(), crashes=1),
    "two triggers, two drainers and a tag": lambda: Play(
        two(drain=drain(1), drain2=drain(1), tag=tag), check(), Model(gate="divert", lapses=1)
    ),
    "two triggers, a drainer, a tag and a crash": lambda: Play(two(drain=drain(1), tag=tag), check(), crashes=1),
    "a reader of a returned id": lambda: Play(two(drain=drain(), read=read), check(), needs={"read": answered(IDS[0])}),
    "a patience that ends": lambda: Play(two(drain=drain(), tag=tag), check(), Model(patience_ends=True)),
    "a holder that is paused": lambda: Play(two(drain=drain()), check(), Model(lapses=1)),
    "an expired key": lambda: Play(
        {"trigger 1": trigger(LIFE + 2), "trigger 2": trigger(LIFE + 2), "trigger 3": trigger(LIFE + 2)},
        check(prior=(IDS[0],), dead=(IDS[0],)),
        start=expired(),
    ),
    "an expired key and a crash": lambda: Play(
        {"trigger 1": trigger(LIFE + 2), "trigger 2": trigger(LIFE + 2), "drain": drain(1)},
        check(prior=(IDS[0],), dead=(IDS[0],)),
        start=expired(),
        crashes=1,
    ),
    "a claim of a run that does not exist": lambda: Play(two(drain=drain(1)), check(prior=(IDS[0],)), start=ghost()),
    "Redis stops answering": lambda: Play(two(drain=drain(1)), check(), downs=1),
    "Redis is away during a reset": lambda: Play(
        {"reset": reset, "trigger 1": trigger(known=REMEMBERS), "trigger 2": trigger(known=REMEMBERS)},
        check(prior=(IDS[0],)),
        start=written(),
        downs=1,
        comes_back=True,
        needs={"trigger 1": lambda node, names: is_done(node.ended[0])},
    ),
    "and-wait beside a buffered trigger": lambda: Play(
        {"trigger 1": trigger(), "trigger 2": trigger(wait=True), "drain": drain(1), "tag": tag}, check()
    ),
}
LONG: dict[str, Callable[[], Play]] = {
    "three triggers, a drainer, a reset and a crash": lambda: Play(
        three(drain=drain(), reset=reset), check(), crashes=1
    ),
    "three triggers on an expired key, a drainer, a reset and a crash": lambda: Play(
        {**{f"trigger {n}": trigger(LIFE + 2) for n in (1, 2, 3)}, "drain": drain(), "reset": reset},
        check(prior=(IDS[0],), dead=(IDS[0],)),
        start=expired(),
        crashes=1,
    ),
}


@pytest.mark.parametrize("name", PLAYS)
def test_no_interleaving_breaks_an_invariant(name):
    """Whole with the full budget; of the larger searches the first part otherwise."""
    play = PLAYS[name]()
    play.nodes_max = 20_000_000 if FULL else 3_000
    play.run()

    assert play.complete or not FULL
    assert play.ends > 10
    print(f"interleavings of {name}: {play.visited} nodes, {play.ends} ends, 0 broken, whole: {play.complete}")


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_no_interleaving_of_everything_together_breaks_an_invariant(name):
    """Whole with the full budget; the first part of the search otherwise."""
    play = LONG[name]()
    play.nodes_max = 20_000_000 if FULL else 3_000
    play.run()

    assert play.complete or not FULL
    print(f"interleavings of {name}: {play.visited} nodes, {play.ends} ends, 0 broken, whole: {play.complete}")


# -- mutants -------------------------------------------------------------------------------------------------------


def _after(self: Any) -> Any:
    """Claim after the gate: every trigger goes through the gate by itself."""
    run = yield from _unclaimed_run(self)
    return (yield from self._write(run, holder=True, may_be_first=True))


def _unclaimed_run(self: Any) -> Any:
    pinned = yield from self._pinned(ENV, DIGEST)
    run_id = keyed_id(SECRET, ENV, DIGEST, pinned.generation)
    return replace(self.trigger.run, id=run_id, generation=pinned.generation)


def _publish_first(self: Any) -> Any:
    run = yield from _unclaimed_run(self)
    claim = yield c.Claim(ENV, DIGEST, run.generation, run.fingerprint, 5.0, LIFE)
    match claim:
        case c.Cached(kept):
            return (yield from self._cached(run, kept))
        case c.Claimed(hold):
            yield c.Publish(hold, run.id)
            return (yield from self._write(run, holder=True, may_be_first=True))
        case _:
            return (yield from self._write(run, holder=False, may_be_first=False))


def _no_unknown(run: Run, known: Context, *, must_mark: bool) -> Any:
    pinned = yield c.Raise(run.environment, DIGEST, run.generation, 1)
    try:
        yield c.WriteCopy(run.environment, DIGEST, "x", pinned)
    except StoreUnavailable:
        pass


def _ack_first(environment: str, count: int, lease: float, rules: Any) -> Any:
    popped = yield c.Pop(environment, count, lease)
    for one in popped:
        yield c.Ack(environment, one.id, one.fence, len(one.entry.operations))
        yield c.Absorb(((one.entry.run, one.entry.operations),))


def _database_first(environment: str, run_id: str) -> Any:
    found = yield c.Fetch(environment, run_id)
    if found is not None:
        return found
    entry = yield c.Entry(environment, run_id)
    return None if entry is None else pipeline.as_run(entry)


def _believes(self: Any, run: Run, kept: str) -> Any:
    """A settled claim is answered without looking for its run."""
    return Triggered(kept, cached=True)
    yield


def _any_key(self: Any, run: Run, found: Run) -> Any:
    """A run whose key is over is answered as cached."""
    return Triggered(found.id, cached=True, run=found)
    yield


class NoFold(Model):
    def Absorb(self, world, command):
        told = []
        for run, log in command.entries:
            if run.id in world.rows:
                told.append("there")
            else:
                told += super().Absorb(world, c.Absorb(((run, log),)))
        return told


class DeafAck(Model):
    """Deletes an entry although its log is longer than what was written."""

    def Ack(self, world, command):
        entry = world.entries.get(command.id)
        return super().Ack(world, command if entry is None else replace(command, seen=len(entry[1])))


class SureLook(Model):
    """Reads an unknown copy as the first generation."""

    def Look(self, world, command):
        seen = super().Look(world, command)
        return c.Seen(c.FIRST, False, True) if seen.pinned is None else seen


def _first_always(original: Any) -> Any:
    def write(self: Any, run: Run, *, holder: bool, may_be_first: bool) -> Any:
        return (yield from original(self, run, holder=holder, may_be_first=True))

    return write


def _always_fresh(original: Any) -> Any:
    def pinned(self: Any, environment: str, digest: str) -> Any:
        found = yield from original(self, environment, digest)
        self.fresh = True
        return found

    return pinned


@contextmanager
def patched(where: Any, name: str, value: Any) -> Iterator[None]:
    with mock.patch.object(where, name, value):
        yield


KEYED = pipeline._Keyed
MUTANTS: dict[str, tuple[Any, type[Model], tuple[str, ...]]] = {
    "claim after the gate": ((KEYED, "once", _after), Model, ("three triggers and a drainer",)),
    "publish before the write": ((KEYED, "once", _publish_first), Model, ("three triggers and a drainer",)),
    "reset without unknown": ((pipeline, "raise_generation", _no_unknown), Model, ("Redis is away during a reset",)),
    "unknown read as known": (None, SureLook, ("Redis is away during a reset",)),
    "drainer acknowledges before it writes": (
        (drainer, "drain", _ack_first), Model, ("two triggers, a drainer and a crash", "a reader of a returned id")
    ),
    "already there without the fold": (
        None, NoFold, ("and-wait beside a buffered trigger", "a patience that ends",
                       "two triggers, a drainer, a tag and a crash"),
    ),
    "acknowledgement deaf to newer changes": (None, DeafAck, ("two triggers, a drainer, a tag and a crash",)),
    "the database read before the buffer": (
        (pipeline, "find", _database_first), Model, ("a reader of a returned id",)
    ),
    "a settled claim believed": ((KEYED, "_cached", _believes), Model, ("a claim of a run that does not exist",)),
    "a key that is over answered": ((KEYED, "_same", _any_key), Model, ("an expired key",)),
    "a late waiter says it is first": (
        (KEYED, "_write", _first_always(KEYED._write)), Model,
        ("a patience that ends", "a claim of a run that does not exist"),
    ),
    "every key taken for new": (
        (KEYED, "_pinned", _always_fresh(KEYED._pinned)), Model,
        ("an expired key", "two triggers, a drainer and a crash"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name):
    """Each of these changes breaks an invariant in some interleaving."""
    change, model, plays = MUTANTS[name]
    found = []
    for one in plays:
        play = PLAYS[one]()
        play.model = model(gate=play.model.gate, patience_ends=play.model.patience_ends, lapses=play.model.lapses_max)
        with patched(*change) if change else mock.patch.dict({}):
            try:
                play.run()
            except Broken as broken:
                found.append(str(broken))
                break

    assert found, f"{name} was not found"
