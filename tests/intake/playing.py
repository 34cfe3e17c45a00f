"""Every interleaving of the real steps of the pipeline and the drainer, on a model of the stores.

The model carries out each command in one step, as a script or a transaction does. An actor is a generator of the real
code; its state is the replies it was sent. A node of the search is the model and the replies of each actor, so two
schedules that lead to the same node are followed once. Where the stores may answer in two ways (the gate, a waiter
whose patience ends, a lease that ends), both are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from samekey.core.errors import StoreUnavailable
from samekey.intake import admin
from samekey.intake import commands as c
from samekey.intake.buffer_commands import AckMany
from samekey.intake.runs import Problem, Run, RunState, apply, fold

Key = Any


class Down(StoreUnavailable):
    """Redis does not answer in the model."""


@dataclass(slots=True)
class World:
    """The model of both stores. Values are immutable, so a copy is a copy of the dicts."""

    generations: dict[str, c.Pinned] = field(default_factory=dict)
    rows: dict[str, Run] = field(default_factory=dict)
    handed: tuple[str, ...] = ()  # what the sink was given
    entries: dict[str, tuple[Run, tuple[Any, ...], int, bool]] = field(default_factory=dict)  # run, log, fence, leased
    copy: dict[str, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    ready: bool = True
    claims: dict[str, tuple[str, Any]] = field(default_factory=dict)  # held by an actor, or settled with a run id
    down: bool = False
    timeouts: int = 0  # patiences that ended so far
    lapses: int = 0  # leases that ended under a living drainer or holder

    def clone(self) -> World:
        return World(
            dict(self.generations), dict(self.rows), self.handed, dict(self.entries), dict(self.copy), self.known,
            self.ready, dict(self.claims), self.down, self.timeouts, self.lapses,
        )  # fmt: skip

    def key(self) -> Key:
        return (
            tuple(sorted(self.generations.items())),
            tuple(sorted((one.id, shape(one)) for one in self.rows.values())),
            self.handed,
            tuple(sorted((i, shape(e[0]), tuple(o["id"] for o in e[1]), e[2], e[3]) for i, e in self.entries.items())),
            tuple(sorted(self.copy.items())),
            self.known,
            tuple(sorted(self.claims.items())),
            (self.ready, self.down, self.timeouts, self.lapses),
        )


def shape(run: Run) -> Key:
    return run.id, run.generation, run.state.value, run.tags, run.key_freed, run.buffered, run.maker, run.applied


def reply_key(reply: Any) -> Key:
    if isinstance(reply, Run):
        return shape(reply)
    if isinstance(reply, BaseException):
        return type(reply).__name__
    if isinstance(reply, dict):
        return reply.get("id")
    if isinstance(reply, (list, tuple)):
        return type(reply).__name__, tuple(map(reply_key, reply))
    return reply


Outcome = tuple[Any, World]


class Model:
    """Carries commands out on a world: every reply that the real stores could give."""

    def __init__(self, *, gate: str = "both", patience_ends: bool = False, lapses: int = 0) -> None:
        self.gate, self.patience_ends, self.lapses_max = gate, patience_ends, lapses

    def outcomes(self, world: World, actor: str, command: Any, crashed: Iterable[str]) -> list[Outcome]:
        """[] means: it waits."""
        name = type(command).__name__
        if world.down and name in _REDIS:
            quiet = {"Claim": c.Unclaimed(), "Publish": None, "Release": None}
            return [(quiet[name] if name in quiet else Down("down"), world)]
        method: Callable[..., Any] = getattr(self, name)
        if name == "Claim":
            found: list[Outcome] = method(world, actor, command, set(crashed))
            return found
        if name in ("Offer", "Pop"):
            found = method(world, command)
            return found
        changed = world.clone()
        try:
            return [(method(changed, command), changed)]
        except Problem as problem:
            return [(problem, world)]

    # -- the database

    def Generation(self, world: World, command: c.Generation) -> Any:
        return world.generations.get(command.digest, c.FIRST)

    def Raise(self, world: World, command: c.Raise) -> Any:
        now = world.generations.get(command.digest, c.FIRST)
        if now.generation == command.seen:
            now = world.generations[command.digest] = c.Pinned(command.seen + 1, command.secret)
        for run in list(world.rows.values()):
            if run.digest == command.digest and run.generation == command.seen < now.generation:
                world.rows[run.id] = replace(run, key_freed=True)
        return now

    def Insert(self, world: World, command: c.Insert) -> Any:
        run = command.run
        if run.id in world.rows:
            return c.Existing(world.rows[run.id])
        if world.generations.get(str(run.digest), c.FIRST).generation > run.generation:
            return c.Moved()
        world.rows[run.id] = run
        world.handed = (*world.handed, run.id)
        return c.Inserted(run)

    def Fetch(self, world: World, command: c.Fetch) -> Any:
        return world.rows.get(command.id)

    def Change(self, world: World, command: c.Change) -> Any:
        before = world.rows.get(command.id)
        if before is None:
            return None
        if command.operation["id"] in before.applied:
            return c.Changed(before, before)
        apply(before, command.operation)
        after = world.rows[command.id] = fold(before, (command.operation,))
        return c.Changed(before, after)

    def Absorb(self, world: World, command: c.Absorb) -> Any:
        told = []
        for run, log in command.entries:
            there = world.rows.get(run.id)
            if there is None:
                over = world.generations.get(str(run.digest), c.FIRST).generation > run.generation
                world.rows[run.id] = replace(fold(run, log), key_freed=over or fold(run, log).key_freed)
                world.handed = (*world.handed, run.id)
                told.append("new")
            else:
                world.rows[run.id] = fold(there, log)
                told.append("there" if there.fingerprint == run.fingerprint else "differs")
        return told

    # -- the buffer

    def Look(self, world: World, command: c.Look) -> Any:
        if not world.ready:
            return c.Seen(None)
        fresh = command.digest not in world.known
        world.known |= {command.digest}
        copy = world.copy.get(command.digest)
        if copy is not None and copy.startswith("?"):
            return c.Seen(None, listed=True)
        pinned = c.FIRST if copy is None else c.Pinned(*map(int, copy.split(":")))
        return c.Seen(pinned, fresh, True)

    def MarkUnknown(self, world: World, command: c.MarkUnknown) -> Any:
        now = world.copy.get(command.digest, "")
        other = now.startswith("?") and now != "?" + command.token
        world.copy[command.digest] = "?*" if other else "?" + command.token

    def WriteCopy(self, world: World, command: c.WriteCopy) -> Any:
        now = world.copy.get(command.digest, "")
        if now.startswith("?"):
            if now != "?" + command.token:
                return
        elif now and int(now.split(":")[0]) >= command.pinned.generation:
            return
        world.copy[command.digest] = "%d:%d" % command.pinned

    def Offer(self, world: World, command: c.Offer) -> list[Outcome]:
        run = command.run
        there = world.entries.get(run.id)
        if there is not None:
            return [(c.Existing(there[0]), world)]
        if run.digest is not None:
            copy = world.copy.get(run.digest)
            if copy is not None and copy.startswith("?"):
                return [(c.Passed(), world)]
            if copy is not None and int(copy.split(":")[0]) > run.generation:
                return [(c.Moved(), world)]
        taken = world.clone()
        taken.entries[run.id] = (run, (), 0, False)
        accepted = (c.Accepted(run), taken)
        if self.gate == "divert" or world.entries:
            return [accepted]
        return [accepted, (c.Passed(), world)] if self.gate == "both" else [(c.Passed(), world)]

    def Entry(self, world: World, command: c.Entry) -> Any:
        found = world.entries.get(command.id)
        return None if found is None else c.Buffered(found[0], found[1], found[2])

    def Append(self, world: World, command: c.Append) -> Any:
        found = world.entries.get(command.id)
        if found is None:
            return None
        run, log, fence, leased = found
        if len(log) != command.seen:
            return c.Buffered(run, log, fence)
        world.entries[command.id] = (run, (*log, command.operation), fence, leased)
        return True

    def Pop(self, world: World, command: c.Pop) -> list[Outcome]:
        worlds = [world]
        if world.lapses < self.lapses_max and any(one[3] for one in world.entries.values()):
            lapsed = world.clone()
            lapsed.lapses += 1
            lapsed.entries = {i: (*e[:3], False) for i, e in lapsed.entries.items()}
            worlds.append(lapsed)
        found = []
        for one in worlds:
            changed = one.clone()
            popped = []
            for run_id, (run, log, fence, leased) in sorted(changed.entries.items()):
                if leased or (command.id is not None and command.id != run_id):
                    continue
                changed.entries[run_id] = (run, log, fence + 1, True)
                popped.append(c.Popped(run_id, fence + 1, c.Buffered(run, log, fence + 1)))
            found.append((popped, changed))
        return found

    def Ack(self, world: World, command: c.Ack) -> Any:
        found = world.entries.get(command.id)
        if found is None or found[2] != command.fence:
            return False
        if len(found[1]) != command.seen:
            return c.Buffered(*found[:3])
        del world.entries[command.id]
        return True

    def AckMany(self, world: World, command: AckMany) -> Any:
        return [self.Ack(world, one) for one in command.acks]

    def Bury(self, world: World, command: c.Bury) -> Any:
        raise AssertionError(f"buried: {command.reason}")

    # -- the claim

    def Claim(self, world: World, actor: str, command: c.Claim, crashed: set[str]) -> list[Outcome]:
        key = f"{command.digest}.{command.generation}"
        held = world.claims.get(key)
        if held is not None and held[0] == "settled":
            return [(c.Cached(held[1]), world)]
        taken = world.clone()
        taken.claims[key] = ("held", actor)
        if held is None or held[1] == actor or held[1] in crashed:  # a dead holder's lease ends
            return [(c.Claimed((key, actor)), taken)]
        found: list[Outcome] = []
        if self.patience_ends and world.timeouts == 0:
            late = world.clone()
            late.timeouts += 1
            found.append((c.TimedOut(), late))
        if world.lapses < self.lapses_max:  # the holder is paused for longer than its lease
            taken.lapses += 1
            found.append((c.Claimed((key, actor)), taken))
        return found

    def Publish(self, world: World, command: c.Publish) -> Any:
        key, actor = command.hold
        if world.claims.get(key) == ("held", actor):
            world.claims[key] = ("settled", command.run_id)
            return True
        return False

    def Release(self, world: World, command: c.Release) -> Any:
        key, actor = command.hold
        if world.claims.get(key) == ("held", actor):
            del world.claims[key]


_REDIS = {
    *("Look", "MarkUnknown", "WriteCopy", "Offer", "Entry", "Append", "Pop", "Ack", "AckMany"),
    *("Claim", "Publish", "Release"),
}


@dataclass(frozen=True)
class Ended:
    """How an actor ended: its value, or its Problem."""

    value: Any = None
    problem: int = 0


@dataclass(slots=True)
class Node:
    world: World
    replies: tuple[tuple[Any, ...], ...]
    ended: tuple[Any, ...]  # None, "crashed", or Ended, for each actor
    after: tuple[Any, ...]  # which actors had ended when this one began
    crashes: int = 0
    downs: int = 0

    def key(self) -> Key:
        return (
            self.world.key(),
            tuple(tuple(map(reply_key, one)) for one in self.replies),
            tuple(repr(one) if isinstance(one, Ended) and one.problem else one is not None for one in self.ended),
            self.after,
            self.crashes,
            self.downs,
        )


class Broken(AssertionError):
    """A schedule that breaks an invariant."""


Steps = Generator[Any, Any, Any]


@dataclass
class Play:
    """A search: the actors by name, the model, what may go wrong, and the check of each end."""

    actors: dict[str, Callable[[], Steps]]
    check: Callable[[Node, dict[str, Any]], None]
    model: Model = field(default_factory=Model)
    start: World = field(default_factory=World)
    crashes: int = 0  # actors that may die
    downs: int = 0  # Redis may stop answering
    comes_back: bool = False  # and answer again
    nodes_max: int = 10_000_000
    needs: dict[str, Callable[[Node, list[str]], bool]] = field(default_factory=dict)  # when an actor may begin
    visited: int = 0
    ends: int = 0
    complete: bool = True

    def run(self) -> Play:
        names = list(self.actors)
        nothing = tuple(() for _ in names)
        stack = [Node(self.start, nothing, tuple(None for _ in names), tuple(None for _ in names))]
        seen: set[Key] = set()
        while stack:
            node = stack.pop()
            key = node.key()
            if key in seen:
                continue
            seen.add(key)
            self.visited += 1
            if self.visited > self.nodes_max:
                self.complete = False
                break
            following = list(self._following(node, names))
            if not following:
                self.ends += 1
                waiting = [name for name, end in zip(names, node.ended, strict=True) if end is None]
                if any(name in self.needs for name in waiting):
                    waiting = [name for name in waiting if name not in self.needs]
                if waiting:
                    raise Broken(f"{waiting} wait for ever")
                self.check(node, dict(zip(names, node.ended, strict=True)))
            stack += following
        return self

    def _following(self, node: Node, names: list[str]) -> Iterable[Node]:
        crashed = [name for name, end in zip(names, node.ended, strict=True) if end == "crashed"]
        if self.downs > node.downs and not node.world.down:
            down = node.world.clone()
            down.down = True
            yield replace(node, world=down, downs=node.downs + 1)
        if node.world.down and self.comes_back:
            up = node.world.clone()
            up.down = False
            yield replace(node, world=up)
        for at, name in enumerate(names):
            if node.ended[at] is not None:
                continue
            begun = node.after[at] is not None
            if not begun and name in self.needs and not self.needs[name](node, names):
                continue
            if begun and node.crashes < self.crashes:
                yield replace(node, ended=_set(node.ended, at, "crashed"), crashes=node.crashes + 1)
            after = node.after
            if not begun:
                done = frozenset(one for one, end in zip(names, node.ended, strict=True) if end is not None)
                after = _set(after, at, done)
            steps, command, ended = self._resumed(name, node.replies[at])
            if ended is not None:  # it ends without another command
                yield replace(node, ended=_set(node.ended, at, ended), after=after)
                continue
            steps.close()
            for reply, world in self.model.outcomes(node.world, name, command, crashed):
                replies = (*node.replies[at], reply)
                _, _, over = self._resumed(name, replies)
                yield Node(
                    world,
                    _set(node.replies, at, replies),
                    _set(node.ended, at, over),
                    after,
                    node.crashes,
                    node.downs,
                )

    def _resumed(self, name: str, replies: tuple[Any, ...]) -> tuple[Steps, Any, Ended | None]:
        steps = self.actors[name]()
        try:
            command = next(steps)
            for reply in replies:
                command = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
            return steps, command, None
        except StopIteration as stop:
            return steps, None, Ended(stop.value)
        except Problem as problem:
            return steps, None, Ended(problem=problem.status)
        except Down:
            return steps, None, Ended(problem=503)


def _set(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def to_the_end(world: World, steps: Steps, model: Model | None = None) -> Any:
    """Run steps alone, on this world, which is changed."""
    playing = model or Model(gate="pass")
    reply: Any = None
    try:
        command = next(steps)
        while True:
            (reply, changed), *_ = playing.outcomes(world, "alone", command, ())
            for name in World.__slots__:
                setattr(world, name, getattr(changed, name))
            command = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
    except StopIteration as stop:
        return stop.value


__all__ = ["Broken", "Ended", "Model", "Node", "Play", "RunState", "World", "admin", "to_the_end"]
