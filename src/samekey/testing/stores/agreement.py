"""Agreement: for any command in any order, a store does what `register.apply` does.

The other scenarios show one sentence each. This one shows that a store which has these rules in SQL or Lua has no
others: random commands, sensible and senseless, are carried out by the store and, step by step, by the pure function.
The records must be equal but for the readings of the clock. Of 67 ways to break a
rule of the register, 300 such steps notice 48 and 5,000 notice 60; the rest (retention, audit, bounds) are
what the other scenarios are for.
"""

from __future__ import annotations

from random import Random
from typing import Any

from samekey.core.commands import Ask, Begin, Deliver, Free, Read, Redact, Renew, Settle, StoreCommand, Take, Testify
from samekey.core.record import Record
from samekey.core.register import Moment, apply
from samekey.core.states import Role, State
from samekey.testing.stores.scene import (
    LEASE,
    MARKED,
    OPAQUE,
    REPEATABLE,
    RETAIN,
    A,
    B,
    C,
    Scene,
    Steps,
    scenario,
    stored,
)
from samekey.testing.stores.steps import over

KEYS = 3
REMEMBERED = 4  # how far back a stale view of a record may be
TICK = 5.0  # seconds by which two readings of one clock may differ on a busy machine
TIMES = frozenset(
    {
        *("created_at", "changed_at", "lease_until", "begun_at", "first_sent_at"),
        *("settled_at", "retain_until", "ask_until", "at", "look_at", "reported_at"),
    }
)


@scenario
def random_commands_agree_with_the_register(scene: Scene) -> Steps[None]:
    """Each reply is what the pure register makes of the same record and the same command."""
    random = Random(20260101)  # noqa: S311 - repeatable on purpose
    views: dict[str, list[Record]] = {str(number): [] for number in range(KEYS)}
    for step in range(scene.random_steps):
        text = random.choice(list(views))
        command = _any_command(scene, random, text, views[text])
        before: Record | None = yield from Read(command.key)
        after: Record | None = yield from over(step % 2, command)

        _compare(apply(before, command, _moment(before, after)), after, before, f"step {step}: {command}")

        if after is None:
            views[text].clear()
        else:
            views[text] = [*views[text][1 - REMEMBERED :], after]
        if getattr(command, "lease_seconds", LEASE) == scene.short:
            yield from scene.outlive()  # so that both sides agree that it is over


def _any_command(scene: Scene, random: Random, text: str, views: list[Record]) -> StoreCommand:
    """Mostly a sensible command for a record in this state, sometimes any command."""
    who = random.choice((A, B, C))
    boundary = random.choice((OPAQUE, MARKED, MARKED, REPEATABLE))
    seconds = scene.short if random.random() < 0.1 else LEASE
    sends = random.random() < 0.3
    if not views or random.random() < 0.04:
        payload = random.choice((None, b"sealed"))
        return scene.opening(
            text, by=who, boundary=boundary, lease=seconds, sends=sends, payload=payload, retain=2 * LEASE
        )
    # Mostly as it is, often as it was a while ago, sometimes as it never was.
    seen = views[-1] if random.random() < 0.75 else random.choice(views)
    if random.random() < 0.1:
        seen = seen._replace(attempt=random.choice((A, B, C)))
    if random.random() < 0.05:
        seen = seen._replace(token=seen.token + 1)
    wish = random.choice(_WISHES[views[-1].state] if random.random() < 0.75 else _ANYTHING)
    match wish:
        case "take":
            return Take(seen, who, boundary, seconds, sends, _terms(random), random.choice((0.0, 2 * LEASE)))
        case "begin":
            return Begin(seen)
        case "renew":
            return Renew(seen, seconds, random.choice((0.0, 3 * LEASE)))
        case "ask":
            look_after = random.choice((None, 60.0))
            parked = random.choice(("", "why"))
            return Ask(seen, who, random.choice((seconds, seconds, 0.0)), look_after, "absent", parked)
        case "deliver":
            return Deliver(seen)
        case "testify":
            state = random.choice((State.CLOSED, State.IN_DOUBT, State.CLOSED, State.COMPLETED))
            return Testify(seen.key, random.choice((A, B, C, "d" * 32)), seen.token, state, b"late result", "late")
        case "redact":
            return Redact(seen, "ada", "asked to")
        case "free":
            return Free(seen, "ada", "may run again")
        case _:
            role = random.choice((Role.HOLDER, Role.HOLDER, *Role))
            # Seldom to an end: what has ended teaches little more.
            state = random.choice((State.RELEASED, State.IN_DOUBT) * 4 + tuple(State))
            result = random.choice((None, b"r"))
            again, notes = random.random() < 0.2, random.choice((None, b"{}", b'{"a":1}'))
            answered, to_caller, error = random.random() < 0.2, random.random() < 0.8, random.choice(("E", None))
            return Settle(
                seen, role, state, who, result, error, "why", RETAIN, again, notes, _terms(random), answered, to_caller
            )


def _terms(random: Random) -> tuple[bytes, ...]:
    """Mostly none; else some of few, so that the same one comes again."""
    return tuple(random.choices([bytes([number]) * 16 for number in range(5)], k=random.choice((0, 0, 1, 2))))


_ANYTHING = ("take", "begin", "renew", "settle", "ask", "testify", "redact", "free", "deliver")
_WISHES = {
    State.STARTED: ("take", "begin", "renew", "settle", "settle"),
    State.RELEASED: ("take", "take", "take", "settle", "testify"),
    State.IN_DOUBT: ("take", "take", "ask", "ask", "settle", "testify"),
    State.COMPLETED: ("free", "free", "redact", "testify", "deliver"),
    State.CLOSED: ("free", "free", "redact", "testify", "deliver"),
}


def _moment(before: Record | None, after: Record | None) -> Moment:
    """The store's clock and token, as far as its answers tell."""
    token = 0 if after is None else after.token
    if before is not None:
        wall = before.now if after is None else after.now
        return Moment(wall, before.lease_until - before.lease_left, before.lease_clock, token)
    if after is not None:
        return Moment(after.now, after.lease_until - after.lease_left, after.lease_clock, token)
    return Moment(0.0, 0.0, "", token)


def _compare(expected: Record | None, found: Record | None, before: Record | None, where: str) -> None:
    assert (expected is None) is (found is None), f"{where} should leave {expected}, not {found}"
    if expected is None or found is None:
        return
    if before is None:  # a store may count on where a record it once had left off
        expected = expected._replace(version=found.version)
    expected, found = stored(expected), stored(found)._replace(after_loss=expected.after_loss)
    differ = [
        f"{name}: {here!r}, not {there!r}"
        for name, here, there in zip(Record._fields, expected, found, strict=True)
        if not _alike(name, here, there)
    ]
    assert not differ, f"{where} on {before} should give {'; '.join(differ)}"


def _alike(name: str, one: Any, other: Any) -> bool:
    if name in TIMES and one is not None and other is not None:
        return bool(abs(one - other) <= TICK)
    if name == "inquiry" and one is not None and other is not None:
        pairs = zip(one._fields, one, other, strict=True)
        return all(_alike(field, mine, theirs) for field, mine, theirs in pairs)
    if name in ("moves", "evidence"):
        return len(one) == len(other) and all(
            _alike(field, mine, theirs)
            for left, right in zip(one, other, strict=True)
            for field, mine, theirs in zip(left._fields, left, right, strict=True)
        )
    return bool(one == other)
