"""The gate: whether a trigger goes straight to the database or into the buffer (GCRA, per environment, fleet-wide).

`decide` is the whole rule. Tables use it as it is; `lua/offer.lua` has the same lines for Redis, and
tests/intake/test_gate.py plays both side by side. Times are whole microseconds of the store's clock.
"""

from __future__ import annotations

from typing import NamedTuple

from samekey.intake.settings import Settings


class Gate(NamedTuple):
    """What is kept per environment."""

    arrival: int = 0  # when the next trigger would arrive at exactly the allowed rate
    held_until: int = 0  # tripped until then


class Rule(NamedTuple):
    """The settings in microseconds."""

    mode: str
    interval: int  # between two triggers at the allowed rate
    window: int
    hold: int
    depth_max: int


def rule_of(settings: Settings) -> Rule:
    window = int(settings.gate_window * 1_000_000)
    return Rule(
        settings.gate,
        max(1, window // settings.gate_limit),
        window,
        int(settings.gate_hold * 1_000_000),
        settings.depth_max,
    )


def decide(gate: Gate, rule: Rule, now: int, depth: int) -> tuple[Gate, bool]:
    """The gate after one more trigger, and whether this trigger is diverted."""
    if rule.mode == "off":
        return gate, False
    if rule.mode == "divert":
        return gate, True
    arrival = max(gate.arrival, now)
    over = arrival - now > rule.window - rule.interval
    held_until = max(gate.held_until, now + rule.hold) if over else gate.held_until
    # The bucket never fills by more than one window: after a long burst the hold alone decides how long it lasts.
    arrival = min(arrival + rule.interval, now + rule.window)
    # While entries wait, a direct write would overtake them.
    diverted = now < held_until or depth > 0
    return Gate(arrival, held_until), diverted and rule.mode == "on"
