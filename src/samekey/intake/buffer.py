"""The buffer in Redis, the gate, and the copy of the generations: each command is one script, two for a pop.

Keys of one environment carry its hash tag, so one script may touch them, and every key is declared. An entry is an
immutable blob and a log of operations: scripts never decode either of them.

The filter of known keys answers "does no run have this key?" without the database. It is a Bloom filter: a wrong
"perhaps" costs one read, and a key is listed before its run is written. Keys that a node writes while it cannot reach
Redis are listed later by the drainer, which renews the filter's lease only after that, and only up to three seconds
after it began to read them. Until then a "no" may be wrong for nodes that reach Redis (docs/intake.md).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from samekey.drivers.redis.scripts import AsyncScriptClient, Script, ScriptClient
from samekey.intake import commands as c
from samekey.intake.buffer_commands import AckMany, Fill, Load
from samekey.intake.gate import rule_of
from samekey.intake.runs import Run
from samekey.intake.settings import Settings
from samekey.intake.tables import within

HASHES = 4
PIECE = 500  # keys or entries that one script touches: Redis serves no other client meanwhile

LOOK, COPY, OFFER, ENTRY, ENTRIES, APPEND, LEASE, FENCE, ACK, BURY, WAITING, DEPTH, LOAD = (
    Script("samekey.intake", name)
    for name in (
        *("look", "copy", "offer", "entry", "entries", "append", "lease", "fence", "ack", "bury"),
        *("waiting", "depth", "load"),
    )
)


class Call(NamedTuple):
    script: Script
    keys: Sequence[bytes]
    values: Sequence[bytes] = ()


RedisSteps = Generator[Call, Any, Any]
# Three times what the drainer takes to come again. A row that was written without Redis longer ago than this is listed,
# or the filter has no lease.
FILTER_LEASE_MILLISECONDS = 3000


class _Names:
    """The keys of one environment."""

    def __init__(self, environment: str) -> None:
        tag = b"samekey:intake:{%b}:" % sha256(environment.encode()).hexdigest()[:16].encode()
        self.gate, self.all, self.queue, self.leased = tag + b"gate", tag + b"all", tag + b"queue", tag + b"leased"
        self.dead, self.copy, self.ready, self.lease = tag + b"dead", tag + b"copy", tag + b"ready", tag + b"lease"
        self._known, self._entry, self._log = tag + b"known:", tag + b"entry:", tag + b"log:"

    def known(self, bits: int) -> bytes:
        return self._known + b"%d" % bits

    def entry(self, run_id: str) -> bytes:
        return self._entry + run_id.encode()

    def both(self, run_id: str) -> tuple[bytes, bytes]:
        return self.entry(run_id), self._log + run_id.encode()


class _Buffer:
    """What both colours share: the commands as calls of scripts."""

    client: Any

    def __init__(self, settings: Settings) -> None:
        self._settings, self._rule = settings, rule_of(settings)
        self._names: dict[str, _Names] = {}
        self.commands = 0  # scripts that were called: for the metrics

    def _of(self, environment: str) -> _Names:
        found = self._names.get(environment)
        if found is None:
            found = self._names[environment] = _Names(environment)
        return found

    def _positions(self, digest: str) -> list[bytes]:
        raw = sha256(digest.encode()).digest()
        bits = self._settings.known_bits
        return [b"%d" % (int.from_bytes(raw[at * 8 : at * 8 + 8]) % bits) for at in range(HASHES)]

    def steps(self, command: Any) -> RedisSteps:
        name = self._of(command.environment if not isinstance(command, c.Offer) else command.run.environment)
        steps: RedisSteps = _STEPS[type(command)](self, name, command)
        return steps

    def _look(self, name: _Names, command: c.Look) -> RedisSteps:
        keys = (name.ready, name.lease, name.copy, name.known(self._settings.known_bits))
        values = (self._incarnation, command.digest.encode(), *self._positions(command.digest))
        copy, fresh, listed = yield Call(LOOK, keys, values)
        if not copy:
            return c.Seen(None, listed=bool(listed))
        generation, _, secret = copy.partition(b":")
        return c.Seen(c.Pinned(int(generation), int(secret)), bool(fresh), bool(listed))

    @property
    def _incarnation(self) -> bytes:
        # Before the first connection it is "": then the script finds no filter of that name, and answers "unknown".
        return f"{self.client.incarnation}".encode()

    def _mark(self, name: _Names, command: c.MarkUnknown) -> RedisSteps:
        yield Call(COPY, (name.copy,), (b"mark", command.digest.encode(), command.token.encode(), b""))

    def _copy(self, name: _Names, command: c.WriteCopy) -> RedisSteps:
        pinned = b"%d:%d" % command.pinned
        yield Call(COPY, (name.copy,), (b"write", command.digest.encode(), command.token.encode(), pinned))

    def _fill(self, name: _Names, command: Fill) -> RedisSteps:
        yield Call(COPY, (name.copy,), (b"fill", command.digest.encode(), b"", b"%d:%d" % command.pinned))

    def _load(self, name: _Names, command: Load) -> RedisSteps:
        keys = (name.ready, name.lease, name.known(self._settings.known_bits))
        more: list[bytes] = []
        if command.step == "add":
            more = [at for digest in command.digests for at in self._positions(digest)]
        elif command.step == "renew":
            more = [b"%d" % (command.began + FILTER_LEASE_MILLISECONDS)]
        reply = yield Call(LOAD, keys, (command.step.encode(), self._incarnation, *more))
        return reply if command.step == "ask" else bool(reply)

    def _offer(self, name: _Names, command: c.Offer) -> RedisSteps:
        run, rule = command.run, self._rule
        if self._settings.volatile_redis == "refuse":
            if self.client.facts is None:
                yield from self._depth(name, c.Depth(run.environment))  # connects
            if self.client.facts.volatile:
                return c.Passed()  # it was restarted with other settings: nothing is accepted that it may forget
        entry, log = name.both(run.id)
        del log
        known = name.known(self._settings.known_bits)
        keys = (name.gate, name.all, name.queue, name.copy, entry, name.ready, name.lease, known)
        blob = run.blob()
        numbers = (b"%d" % rule.interval, b"%d" % rule.window, b"%d" % rule.hold, b"%d" % rule.depth_max)
        values = [rule.mode.encode(), *numbers, run.id.encode(), (run.digest or "").encode(), b"%d" % run.generation]
        values += [blob, self._incarnation]
        if command.unique is not None:
            values += self._positions(command.unique)
        reply = yield Call(OFFER, keys, values)
        match reply[0]:
            case b"passed":
                return c.Passed()
            case b"accepted":
                return c.Accepted(Run.from_blob(blob, created_at=int(reply[1]) / 1_000_000))
            case b"exists":
                return c.Existing(Run.from_blob(reply[1], created_at=int(reply[2]) / 1_000_000))
            case b"moved":
                return c.Moved()
            case b"unsure":
                return c.Unsure()
        return c.Full(rule.hold / 1_000_000)

    def _entry(self, name: _Names, command: c.Entry) -> RedisSteps:
        return _buffered((yield Call(ENTRY, name.both(command.id))))

    def _append(self, name: _Names, command: c.Append) -> RedisSteps:
        written = json.dumps(command.operation).encode()
        reply = yield Call(APPEND, name.both(command.id), (b"%d" % command.seen, written))
        return True if reply == 1 else _buffered(reply)

    def _pop(self, name: _Names, command: c.Pop) -> RedisSteps:
        values = (b"%d" % command.count, b"%d" % int(command.lease * 1_000_000), (command.id or "").encode())
        ids = [one.decode() for one in (yield Call(LEASE, (name.queue, name.leased, name.all), values))]
        popped: list[c.Popped] = []
        for at in range(0, len(ids), PIECE):
            some = ids[at : at + PIECE]
            for run_id, reply in zip(
                some, (yield Call(FENCE, [key for one in some for key in name.both(one)])), strict=True
            ):
                if not reply:
                    continue  # acknowledged by a drainer whose lease had ended
                fence = int(reply[2])
                try:
                    popped.append(c.Popped(run_id, fence, _buffered(reply)))
                except (ValueError, KeyError) as error:
                    popped.append(c.Popped(run_id, fence, None, str(error)[:200]))
        return popped

    def _ack(self, name: _Names, command: c.Ack) -> RedisSteps:
        return (yield from self.acks(name, [command]))[0]

    def acks(self, name: _Names, acks: Sequence[c.Ack]) -> RedisSteps:
        done: list[Any] = []
        for at in range(0, len(acks), PIECE):
            some = acks[at : at + PIECE]
            keys = [name.queue, name.leased, name.all, *(key for one in some for key in name.both(one.id))]
            values = [part for one in some for part in (one.id.encode(), b"%d" % one.fence, b"%d" % one.seen)]
            reply = yield Call(ACK, keys, values)
            done += [bool(one) if isinstance(one, int) else _buffered(one) for one in reply]
        return done

    def _acks(self, name: _Names, command: AckMany) -> RedisSteps:
        return (yield from self.acks(name, command.acks))

    def _bury(self, name: _Names, command: c.Bury) -> RedisSteps:
        keys = (name.queue, name.leased, name.all, name.dead, name.entry(command.id))
        values = (command.id.encode(), b"%d" % command.fence, command.reason.encode())
        return bool((yield Call(BURY, keys, values)))

    def _revive(self, name: _Names, command: c.Revive) -> RedisSteps:
        keys = (name.queue, name.leased, name.all, name.dead, name.entry(command.id))
        return bool((yield Call(BURY, keys, (command.id.encode(), b"", b""))))

    def _waiting(self, name: _Names, command: c.Waiting) -> RedisSteps:
        at = command.before if command.after is None else command.after
        place = b"" if at is None else b"%d" % round(at[0] * 1_000_000)
        side = b"before" if command.after is None else b"after"
        values = (side, place, b"%d" % command.size)
        ids = [one.decode() for one in (yield Call(WAITING, (name.all, name.dead), values))]
        found: list[c.Buffered] = []
        for reply in (yield from self._entries(name, ids)):
            try:
                entry = _buffered([*reply[:3], *reply[4:]])
            except (ValueError, KeyError):
                continue  # a dead letter, or soon one
            if entry is not None:
                found.append(entry)
        return within(command, found)

    def _dead(self, name: _Names, command: c.DeadLetters) -> RedisSteps:
        ids = [one.decode() for one in (yield Call(WAITING, (name.dead,), (b"before", b"", b"%d" % command.size)))]
        replies = yield from self._entries(name, ids)
        return [(run_id, one[3].decode(), one[0]) for run_id, one in zip(ids, replies, strict=True) if one]

    def _entries(self, name: _Names, ids: Sequence[str]) -> RedisSteps:
        found: list[Any] = []
        for at in range(0, len(ids), PIECE):
            found += yield Call(ENTRIES, [key for one in ids[at : at + PIECE] for key in name.both(one)])
        return found

    def _depth(self, name: _Names, command: c.Depth) -> RedisSteps:
        depth, leased, oldest, dead, diverting = yield Call(DEPTH, (name.all, name.leased, name.dead, name.gate))
        return c.Load(depth, leased, int(oldest) / 1_000_000 if oldest else None, dead, bool(diverting))


def _buffered(reply: Any) -> c.Buffered | None:
    if not reply:
        return None
    blob, accepted, fence, *log = reply
    run = Run.from_blob(blob, created_at=int(accepted) / 1_000_000)
    return c.Buffered(run, tuple(json.loads(one) for one in log), int(fence))


_STEPS: dict[type, Any] = {
    c.Look: _Buffer._look,
    c.MarkUnknown: _Buffer._mark,
    c.WriteCopy: _Buffer._copy,
    c.Offer: _Buffer._offer,
    c.Entry: _Buffer._entry,
    c.Append: _Buffer._append,
    c.Pop: _Buffer._pop,
    c.Ack: _Buffer._ack,
    AckMany: _Buffer._acks,
    c.Bury: _Buffer._bury,
    c.Revive: _Buffer._revive,
    c.DeadLetters: _Buffer._dead,
    c.Waiting: _Buffer._waiting,
    c.Depth: _Buffer._depth,
    Load: _Buffer._load,
    Fill: _Buffer._fill,
}


class RedisBuffer(_Buffer):
    """The buffer for threads."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(settings)
        self.client = ScriptClient(url)
        self.name = self.client.name

    def carry_out(self, command: Any) -> Any:
        steps, reply = self.steps(command), None
        try:
            while True:
                call = steps.send(reply)
                self.commands += 1
                reply = self.client.call(*call)
        except StopIteration as stop:
            return stop.value

    def close(self) -> None:
        self.client.close()


class AsyncRedisBuffer(_Buffer):
    """The buffer for tasks."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(settings)
        self.client = AsyncScriptClient(url)
        self.name = self.client.name

    async def carry_out(self, command: Any) -> Any:
        steps, reply = self.steps(command), None
        try:
            while True:
                call = steps.send(reply)
                self.commands += 1
                reply = await self.client.call(*call)
        except StopIteration as stop:
            return stop.value

    async def close(self) -> None:
        await self.client.close()
