"""The gate in Redis (lua/offer.lua) and the gate in Python (gate.decide) decide alike, step by step."""

from __future__ import annotations

import random
from hashlib import sha1

import pytest

from samekey.drivers.redis.scripts import Script, ScriptClient
from samekey.drivers.redis.wire import packed
from samekey.intake.gate import Gate, Rule, decide
from tests.intake.conftest import _databases

CLOCK = b"local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n"
GIVEN = b"local now = tonumber(redis.call('GET', KEYS[9]))\n"
KEYS = [b"{g}" + name for name in (b"gate", b"all", b"queue", b"copy", b"entry", b"ready", b"lease", b"known", b"now")]
STEPS = 80


def offer_at_a_given_time() -> Script:
    """The script as it is, but for its clock: the test gives the time."""
    script = Script("samekey.intake", "offer")
    assert script.source.count(CLOCK) == 1
    assert script.source.count(b"TIME") == 1
    script.source = script.source.replace(CLOCK, GIVEN)
    script.digest = sha1(script.source).hexdigest().encode()
    return script


class LuaGate:
    """The gate of one environment in Redis."""

    def __init__(self, client: ScriptClient) -> None:
        self._client, self._script = client, offer_at_a_given_time()
        self._command(b"FLUSHDB")

    def _command(self, *parts: bytes) -> object:
        reply = self._client.command(packed(parts))
        assert not isinstance(reply, Exception), reply
        return reply

    def offer(self, rule: Rule, now: int, depth: int) -> tuple[Gate, str]:
        self._command(b"DEL", KEYS[1], KEYS[2], KEYS[4])
        if depth:
            self._command(b"ZADD", KEYS[1], *(part for n in range(depth) for part in (b"%d" % n, b"entry %d" % n)))
        self._command(b"SET", KEYS[8], b"%d" % now)
        numbers = (b"%d" % one for one in (rule.interval, rule.window, rule.hold, rule.depth_max))
        values = (rule.mode.encode(), *numbers, b"run_1", b"", b"0", b"blob", b"incarnation")
        reply = self._client.call(self._script, KEYS, values)
        kept = self._command(b"HMGET", KEYS[0], b"arrival", b"held_until")
        return Gate(*(int(one or 0) for one in kept)), reply[0].decode()  # type: ignore[attr-defined]


@pytest.fixture
def client(shared_redis):
    made = ScriptClient(shared_redis.url(next(_databases)))
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_script_and_the_rule_decide_alike(client, seed):
    """Modes change between steps, as they do on nodes with other settings, and the clock may step back."""
    chance = random.Random(seed)
    lua, gate = LuaGate(client), Gate()
    interval = chance.choice([1, 7, 2000, 50_000])
    limit = chance.choice([1, 2, 5, 100])
    window = interval * limit + chance.choice([0, interval // 2])
    hold = chance.choice([1, window, 10 * window])
    now = chance.choice([1, 1_790_000_000_000_000])
    seen = set()

    for step in range(STEPS):
        mode = chance.choices(["on", "shadow", "off", "divert"], [6, 2, 1, 1])[0]
        rule = Rule(mode, interval, window, hold, depth_max=3)
        # Exactly at the edges of the rule, or around them.
        now += chance.choice([0, 0, 0, 1, interval - 1, interval, interval + 1, window, hold, -interval])
        now = max(now, 1)
        if chance.random() < 0.2 and gate.held_until:
            now = max(1, gate.held_until + chance.choice([-1, 0, 1]))
        depth = chance.choices([0, 1, 2, 3, 4], [12, 1, 1, 1, 1])[0]

        gate, diverted = decide(gate, rule, now, depth)
        expected = "passed" if not diverted else "full" if depth >= rule.depth_max else "accepted"

        assert lua.offer(rule, now, depth) == (gate, expected), f"step {step}: {rule} at {now}, depth {depth}"
        seen.add(expected)
    assert seen == {"passed", "full", "accepted"}


def test_a_gate_that_decides_otherwise_is_found(client):
    """The comparison can fail: one comparison of the script is changed."""
    lua, gate = LuaGate(client), Gate()
    source = lua._script.source
    lua._script.source = source.replace(b"now < held_until", b"now <= held_until")
    lua._script.digest = sha1(lua._script.source).hexdigest().encode()
    assert lua._script.source != source
    rule = Rule("on", 100, 100, 500, depth_max=3)
    answers = []
    for now in (1000, 1000, 1500):
        gate, diverted = decide(gate, rule, now, 0)
        answers.append((lua.offer(rule, now, 0)[1] == "accepted", diverted))

    assert answers == [(False, False), (True, True), (True, False)]
