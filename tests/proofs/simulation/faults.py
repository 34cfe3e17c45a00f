"""Which faults there are, how likely each is at each chance it has, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from samekey.core.layers import FRONT_TTL_SECONDS

LEASE_SECONDS = 30.0
PAUSE_MAX_SECONDS = 100.0  # of a client, at any step: three leases
FLIGHT_MAX_SECONDS = 60.0  # of a request to the provider, and of a command that its sender gave up on
BELIEF_SECONDS = 5 * PAUSE_MAX_SECONDS + FLIGHT_MAX_SECONDS  # what `believe_absent_after` asks of the user
STORE_TIMEOUT_SECONDS = 2.0
FRONT_TIMEOUT_SECONDS = 0.5
AWAY_MAX_SECONDS = 1.5 * FRONT_TTL_SECONDS  # of a front: longer than any of its words lives
RATE_MIN, RATE_MAX = 0.5, 2.0  # of a client's clock, against the store's
EVENTS_MAX = 3000  # of one run; the longest honest ones need a few hundred


@dataclass(slots=True)
class Faults:
    """How likely each kind is; zero in most runs for most kinds."""

    crash: float = 0.0
    pause: float = 0.0
    unanswered: float = 0.0  # a store command: lost, or carried out and the reply lost, or carried out much later
    repeated: float = 0.0  # a store command that a driver sends again
    cancel: float = 0.0
    slow: float = 0.0  # the provider, or the way to it
    unheard: float = 0.0  # a provider's answer that never comes
    copied: float = 0.0  # a request, by a proxy; only in front of a provider that dedups
    failover: float = 0.0
    front_forgets: float = 0.0
    front_returns: float = 0.0  # to an older word it once had
    front_unanswered: float = 0.0  # as for the store
    front_away: float = 0.0  # for a while, and everybody is told at once
    front_mute: float = 0.0  # wakes nobody


RATES = {
    "crash": 0.08,
    "pause": 0.08,
    "unanswered": 0.12,
    "repeated": 0.15,
    "cancel": 0.05,
    "slow": 0.5,
    "unheard": 0.3,
    "copied": 0.3,
}
FRONT_RATES = {
    "front_forgets": 0.1,
    "front_returns": 0.1,
    "front_unanswered": 0.15,
    "front_away": 0.05,
    "front_mute": 0.5,
}
FAILOVER_RATE = 0.1  # at each write; in one run of eight
