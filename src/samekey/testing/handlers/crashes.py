"""Kill a handler, or let it sleep past its lease, at every point it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from samekey.testing.handlers.probes import Probe
from samekey.testing.handlers.stops import POINTS_MAX, Handler
from samekey.testing.handlers.trials import Clock, Finding, Schedule, Trial, chosen
from samekey.testing.provider import LedgerProvider


def crash_everywhere(
    handler: Handler,
    payload: Mapping[str, Any],
    *,
    key: str | None = None,
    probes: Mapping[str, Probe] | None = None,
    provider: LedgerProvider | None = None,
    clock: Clock | None = None,
    elsewhere: Callable[[], Handler] | None = None,
    guard: Any = None,
) -> Finding:
    """Kill the handler at each of its points, and call again: the probes judge.

    Points are the lines of your own code, the ends of your functions, and each command to the store before and after
    (of the `guard` that decorates the handler, or the one given). After each crash an hour passes on `clock`, if one
    is given; then the same operation is asked for twice more. It may be answered, or refused with an error - but it
    may not be done twice, answered differently, or answered without having been done.
    """
    trial = Trial(handler, payload, key, probes, provider, clock=clock, elsewhere=elsewhere, guard=guard)
    with trial.prepared():
        return trial.play("crashes", crashes(trial), unstopped(trial), at_points=True).check()


def lose_lease(
    handler: Handler,
    payload: Mapping[str, Any],
    *,
    key: str | None = None,
    clock: Clock,
    probes: Mapping[str, Probe] | None = None,
    provider: LedgerProvider | None = None,
    elsewhere: Callable[[], Handler] | None = None,
    guard: Any = None,
) -> Finding:
    """Let the handler sleep for an hour at each of its points while another worker calls; then it goes on."""
    if clock is None:
        raise ValueError("no lease ends without a clock: give clock=, the clock of the handler's store")
    trial = Trial(handler, payload, key, probes, provider, clock=clock, elsewhere=elsewhere, guard=guard)
    with trial.prepared():
        return trial.play("lease", meetings(trial, later=True), unstopped(trial), at_points=True).check()


def crashes(trial: Trial) -> Iterator[Schedule]:
    """One schedule per point: killed there, and asked for again."""
    for point in chosen(trial.points):
        schedule = Schedule(trial)
        stopped = schedule.stop_at(point)
        if stopped.stopped:
            schedule.kill(stopped)
        schedule.time_passes()
        retry = schedule.call(hasty=True)
        schedule.call(hasty=True)
        if retry.error is not None:
            schedule.notes.append(f"after a crash at some of its points a retry raises {type(retry.error).__name__}")
        yield schedule.judge()


def cancellations(trial: Trial) -> Iterator[Schedule]:
    """One schedule per place where an async handler waits: its caller goes away there, and it is asked for again."""
    for place in range(min(len(trial.waits), POINTS_MAX)):
        schedule = Schedule(trial)
        schedule.cancel_at(place)
        schedule.call(hasty=True)
        schedule.time_passes()
        schedule.call(hasty=True)
        yield schedule.judge()


def meetings(trial: Trial, *, later: bool) -> Iterator[Schedule]:
    """One schedule per point: stopped there while another worker calls; an hour later, if `later`."""
    for point in chosen(trial.points):
        schedule = Schedule(trial)
        stopped = schedule.stop_at(point)
        if later:
            schedule.time_passes()
        if stopped.stopped:
            schedule.meet(stopped)
        schedule.call()
        yield schedule.judge()


def unstopped(trial: Trial) -> list[str]:
    """Notes about places where the handler was not stopped, although a reader might expect it."""
    notes = trial.only_here
    if len(trial.points) > POINTS_MAX:
        notes.append(f"of its {len(trial.points)} points it was stopped at the first and the last of each place")
    if trial.passed_by:
        names = ", ".join(sorted(trial.passed_by))
        notes.append(f"it was not stopped inside {names}: if that is your code, install it from its folder")
    return notes
