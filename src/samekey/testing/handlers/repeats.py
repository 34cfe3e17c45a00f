"""What happens if this runs twice - in a row, at once, or because the broker says so?

Each takes a handler, guarded or not, sync or async, and what to call it with (`handler(**payload)`); each raises an
AssertionError that names what moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from samekey.testing.handlers.comparing import incomparable, same
from samekey.testing.handlers.probes import Probe, Probes
from samekey.testing.handlers.stops import Handler, plain_call
from samekey.testing.handlers.trials import Finding, Schedule, Trial
from samekey.testing.off import guards_are_off
from samekey.testing.provider import LedgerProvider

UNSEEN = (
    "the first {} moved none of the probes, so nothing could be seen: probe what the handler does (not its arguments: "
    "each call gets its own) - or was this done before? Then take a key that was never used"
)
ONE = "{}={!r} repeats nothing, so nothing would be tried: give 2 or more"
CALLERS = 8  # at once: more than a machine of today runs side by side, so some of them wait


def run_twice(
    handler: Handler,
    payload: Mapping[str, Any] | None = None,
    *,
    probes: Mapping[str, Probe] | None = None,
    provider: LedgerProvider | None = None,
) -> Any:
    """Call it, and call it again: the second call must change nothing and answer the same. Returns the answer.

    The first call must move a probe: otherwise no probe could show what the second one does.

    >>> sent = []
    >>> run_twice(lambda to: sent.append(to), {"to": "ann"}, probes={"mails": lambda: sent})
    Traceback (most recent call last):
    ...
    AssertionError: the second run changed something: mails moved: new 'ann'
    """
    looked, given, off = Probes(probes, provider), payload or {}, guards_are_off(handler)
    before = looked.look_still()
    first = plain_call(handler, given)
    if first.error is not None:
        raise first.error
    between = looked.look_still()
    second = plain_call(handler, given)
    moved = looked.look().moved(between)
    if moved is not None:
        raise AssertionError("; ".join([f"the second run changed something: {moved}", *off]))
    if not second.answered:
        raise AssertionError(f"the first run answered {first.value!r}, the second {second}") from second.error
    equal = same(first.value, second.value)
    if equal is None:
        raise AssertionError(incomparable(first.value))
    if not equal:
        raise AssertionError(f"the first run answered {first.value!r}, the second {second.value!r}")
    if between.moved(before) is None:
        raise AssertionError(UNSEEN.format("run"))
    return first.value


def redeliver(
    handler: Handler,
    payload: Mapping[str, Any] | None = None,
    *,
    times: int = 3,
    probes: Mapping[str, Probe] | None = None,
    provider: LedgerProvider | None = None,
) -> None:
    """Deliver a message, and deliver it again although it was handled: the acknowledgement got lost.

    A redelivery must change nothing, and it must not raise: what raises is delivered for ever. What the handler
    returns is not compared. `times` counts the first delivery, too.
    """
    _check_repeats("times", times)
    looked, given, off = Probes(probes, provider), payload or {}, guards_are_off(handler)
    before = looked.look_still()
    first = plain_call(handler, given)
    if first.error is not None:
        raise first.error
    between = looked.look_still()
    for number in range(2, times + 1):
        again = plain_call(handler, given)
        moved = looked.look().moved(between)
        if moved is not None:
            raise AssertionError("; ".join([f"delivery {number} changed something: {moved}", *off]))
        if again.error is not None:
            raise AssertionError(f"delivery {number} {again}: a broker would deliver it for ever") from again.error
    if between.moved(before) is None:
        raise AssertionError(UNSEEN.format("delivery"))


def run_in_parallel(
    handler: Handler,
    payload: Mapping[str, Any],
    n: int = CALLERS,
    *,
    key: str | None = None,
    probes: Mapping[str, Probe] | None = None,
    provider: LedgerProvider | None = None,
    elsewhere: Callable[[], Handler] | None = None,
) -> Finding:
    """`n` callers of one operation at once, in threads; then once more. Together they may do what one does alone.

    `key` names the field of the payload that makes two operations different (a guarded handler is asked, see
    `four_assumptions`); calls with other ones show first what one call does. `elsewhere()` makes the handler as
    another process has it: then each caller gets its own.
    """
    _check_repeats("n", n)
    trial = Trial(handler, payload, key, probes, provider, elsewhere=elsewhere)
    with trial.prepared():
        schedule = Schedule(trial)
        schedule.burst(n)
        schedule.call()
        return trial.play("parallel", iter([schedule.judge()]), trial.only_here, overlapping=True).check()


def _check_repeats(name: str, given: Any) -> None:
    if not isinstance(given, int) or given < 2:
        raise ValueError(ONE.format(name, given))
