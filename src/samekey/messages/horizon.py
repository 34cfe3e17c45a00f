"""How long a broker may deliver a message again after it was first sent: the horizon of a handler. Pure.

    Handler(..., horizon=horizon.sqs(retention=4 * DAY, dead_letters=14 * DAY))

`samekey doctor --app` compares it with how long a key is remembered. `float("inf")` means that there is no end.
"""

from __future__ import annotations

UNBOUNDED = float("inf")


def rabbitmq(*, ttl: float | None, hold_ttl: float = 0.0, retries: int = 0, dead_letter_ttl: float = 0.0) -> float:
    """Of a queue with this message TTL, in seconds; without a TTL there is no end."""
    return UNBOUNDED if ttl is None else 2 * ttl + hold_ttl * retries + dead_letter_ttl


def sqs(*, retention: float, dead_letters: float = 0.0) -> float:
    """Of a queue with this retention, and of its dead-letter queue: a redrive starts the retention anew."""
    return 2 * retention + dead_letters


def jetstream(*, max_age: float | None, parked_max_age: float = 0.0) -> float:
    """Of a stream with this max_age; a consumer that is made again reads all of it."""
    return UNBOUNDED if not max_age else max_age + parked_max_age


def redis_streams(*, trimmed_after: float | None = None) -> float:
    """Of a stream that is trimmed by time (MINID); otherwise there is no end."""
    return UNBOUNDED if trimmed_after is None else trimmed_after


def celery(broker: float, *, longest_eta: float = 0.0, countdowns: float = 0.0, visibility: float = 0.0) -> float:
    """Of a Celery application: the broker's own, and what Celery adds. `countdowns` is the sum of all retries."""
    return broker + longest_eta + countdowns + visibility
