"""Which of the four assumptions that a key rests on hold for this handler?

    report = four_assumptions(charge, payload={"order_id": "o-1", "amount": 200},
                              other_payload={"order_id": "o-1", "amount": 500}, provider=provider, clock=clock)
    print(report)           # which hold, and the story of the schedule that breaks one
    report.check()          # AssertionError if one of them does not hold

The handler may be guarded by samekey, by hand, or not at all. Each assumption has its own schedules, below. The first
schedule that breaks an assumption ends the trial of that assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from samekey.core.errors import Uncertain
from samekey.testing.handlers.comparing import incomparable, same
from samekey.testing.handlers.crashes import cancellations, crashes, meetings, unstopped
from samekey.testing.handlers.probes import Probe
from samekey.testing.handlers.repeats import CALLERS
from samekey.testing.handlers.stops import Handler, Outcome, named
from samekey.testing.handlers.trials import LATER_SECONDS, Clock, Finding, Schedule, Trial
from samekey.testing.provider import LedgerProvider

DAY_SECONDS = 23 * 3600.0  # within the retention that is usual, 24 hours


@dataclass(frozen=True, slots=True)
class Report:
    """What was found about a handler; print it, `check()` it, or take `to_dict()`."""

    handler: str
    claim: Finding
    intent: Finding
    memory: Finding
    boundary: Finding

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (self.claim, self.intent, self.memory, self.boundary)

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the assumptions that do not hold."""
        return tuple(finding.name for finding in self.findings if finding.holds is False)

    @property
    def holds(self) -> bool:
        """Whether all four do; one that could not be tried or seen does not."""
        return all(finding.holds for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join([f"the four assumptions, for {self.handler}", *map(str, self.findings)])

    def check(self) -> Report:
        """Itself, or an AssertionError with the stories of what is broken, and the reasons of what is unknown."""
        if not self.holds:
            raise AssertionError(str(self))
        return self

    def to_dict(self) -> dict[str, Any]:
        return {
            "handler": self.handler,
            "holds": self.holds,
            "assumptions": {finding.name: finding.to_dict() for finding in self.findings},
        }


def four_assumptions(
    handler: Handler,
    *,
    payload: Mapping[str, Any],
    key: str | None = None,
    other_payload: Mapping[str, Any] | None = None,
    ignore: Collection[str] = (),
    provider: LedgerProvider | None = None,
    probes: Mapping[str, Probe] | None = None,
    clock: Clock | None = None,
    elsewhere: Callable[[], Handler] | None = None,
    guard: Any = None,
    retried_for: float | timedelta | None = None,
) -> Report:
    """Try the handler against Claim, Intent, Memory and Boundary.

    `payload`        what it is called with: `handler(**payload)`
    `key`            the field that makes two operations different, whatever the handler uses as its key; without it
                     a decorated handler is asked, and else it is the only field that it can be, or that is named
                     like one (order_id) - a note says which
    `other_payload`  the same operation asked for with another intent: another amount
    `ignore`         fields that differ from retry to retry and mean nothing: a timestamp of the client
    `provider`       the LedgerProvider that takes the place of yours: its books decide how often the effect happened,
                     and it is made to decline, to lose an answer, and to be late
    `probes`         what else must not change twice: rows, messages, files (see `samekey.testing.handlers.probes`)
    `clock`          the clock of its store; without one no lease ends, and no long retention is tried
    `elsewhere`      a function that makes the handler as another process has it; without it the second caller shares
                     this process
    `guard`          the guard whose store commands are points too; the guard of a decorated handler is found
    `retried_for`    seconds (or a timedelta) for which a caller may repeat the operation: it must be remembered for
                     so long. Without it an hour is required, and an operation that is forgotten within a day is
                     unknown
    """
    moments = _moments(retried_for)
    payload, intent = named(payload), named(other_payload or {})
    never_key = {*ignore, *(name for name in intent if intent[name] != payload.get(name))}
    around: Any = {"clock": clock, "elsewhere": elsewhere, "guard": guard, "never_key": never_key}
    trial = Trial(handler, payload, key, probes, provider, **around)
    unknown = [name for name in ignore if name not in payload]
    if unknown:
        raise ValueError(f"the payload has no {unknown[0]!r}, which ignore= names: nothing of it would be tried")
    other = None if other_payload is None else {name: intent[name] for name in intent if name != trial.key}
    if other is not None and all(name in payload and payload[name] == value for name, value in other.items()):
        raise ValueError(
            f"other_payload= asks for the same as payload= (its {trial.key} is the key): give another intent, "
            "another amount"
        )
    timeless = [] if clock is not None else ["no lease ended and no time passed: give clock="]
    compared = [] if other is not None else ["another payload under the same key was not tried: give other_payload="]
    judged = [] if provider is not None else ["declines and lost answers were not tried: give provider="]
    name = str(getattr(handler, "__qualname__", handler))
    with trial.prepared():
        apart = trial.play("Intent", _apart(trial))
        if not apart.holds:  # operations swallow each other: every schedule would meet those before it
            rest = ("the handler takes two operations for one, see Intent",)
            claim, memory, boundary = (Finding(one, None, 0, notes=rest) for one in ("Claim", "Memory", "Boundary"))
            return Report(name, claim, apart, memory, boundary)
        replays = trial.play("Memory", _replays(trial, moments[:2]))
        trial.comparable = bool(replays.holds)
        answers = [] if replays.holds else ["answers were not compared: those of a plain replay differ, see Memory"]
        return Report(
            name,
            trial.play("Claim", _claim(trial), [*timeless, *answers, *unstopped(trial)], at_points=True),
            trial.play("Intent", _intent(trial, other, ignore), [*answers, *compared]),
            trial.play("Memory", _memory(trial, moments), [*timeless, *judged, *trial.only_here])
            if replays.holds is not False
            else replays,
            trial.play("Boundary", _boundary(trial), [*timeless, *answers, *judged, *unstopped(trial)], at_points=True),
        )


def _apart(trial: Trial) -> Iterator[Schedule]:
    """Two operations are two: another key, all else equal, is done as well."""
    schedule = Schedule(trial)
    schedule.call(ours=True)
    schedule.begin_again()
    schedule.story.append(f"another {trial.key}, all else equal")
    honest = schedule.call(payload=trial.operation())
    if trial.measure.moves and schedule.moved() is None:
        schedule.problem = f"another operation {honest}, and was not done: its {trial.key} is not part of the key"
    yield schedule


def _claim(trial: Trial) -> Iterator[Schedule]:
    """Claiming a key is checking that it is free: in a row, at every point, after a lease is lost, and at once."""
    in_a_row = Schedule(trial)
    in_a_row.call(ours=True)
    in_a_row.call()
    yield in_a_row.judge()
    yield from meetings(trial, later=False)
    if trial.clock is not None:
        yield from meetings(trial, later=True)
    at_once = Schedule(trial)  # last: its story is a different one every time
    at_once.burst(CALLERS)
    yield at_once.judge()


def _intent(trial: Trial, other: Mapping[str, Any] | None, ignore: Collection[str]) -> Iterator[Schedule]:
    """The same key carries the same intent: a retry is one operation, and another intent is not the same one."""
    yield from _apart(trial)
    if ignore:
        retry = Schedule(trial)
        first = retry.call(ours=True)
        later = {name: _later(trial.payload[name]) for name in ignore}
        retry.story.append(f"retried with another {' and '.join(ignore)}")
        again = retry.call(payload={**retry.payload, **later})
        if first.answered and not again.answered:
            retry.problem = f"an honest retry was not answered: only {' and '.join(ignore)} differed"
        yield retry.judge()
    if other is not None:
        reused = Schedule(trial)
        first = reused.call(ours=True)
        reused.begin_again()
        changed = {**reused.payload, **other}
        differing = " and ".join(name for name in changed if changed[name] != reused.payload.get(name))
        reused.story.append(f"the same {trial.key} with another {differing}")
        second = reused.call(payload=changed)
        moved = reused.moved()
        if moved is not None:
            reused.problem = f"the same key was run for another intent: {moved}"
        elif second.answered:
            equal = same(first.value, second.value)
            if equal is None:
                reused.unknown.append(incomparable(second.value))
            elif equal:
                reused.problem = f"the answer to the first request was given to another one, with another {differing}"
        yield reused


class _Moment(NamedTuple):
    """When a caller repeats the operation, and whether it must be remembered then."""

    after: float
    step: str  # of the story
    must: bool = True


def _moments(retried_for: Any) -> tuple[_Moment, ...]:
    if isinstance(retried_for, timedelta):
        retried_for = retried_for.total_seconds()
    if retried_for is None:
        late = _Moment(DAY_SECONDS - LATER_SECONDS, "the day is nearly over", must=False)
        return _Moment(0, ""), _Moment(LATER_SECONDS, "an hour passes"), late
    if not isinstance(retried_for, int | float) or not retried_for >= 0:
        raise ValueError(f"retried_for= is a number of seconds, or a timedelta, not {retried_for!r}")
    soon = min(LATER_SECONDS, retried_for)
    rest = _Moment(retried_for - soon, f"{retried_for:g} s have passed")
    return _Moment(0, ""), _Moment(soon, f"{soon:g} s pass"), rest


def _replays(trial: Trial, moments: Collection[_Moment]) -> Iterator[Schedule]:
    """A replay is the first answer, unchanged, now and later."""
    replays = Schedule(trial)
    first = replays.call(ours=True)
    replays.begin_again()
    for after, step, must in moments:
        if after:
            if trial.clock is None:
                break
            replays.time_passes(after, step)
        again = replays.call()
        moved = replays.moved()
        if not must and (moved is not None or not again.answered):
            replays.unknown.append(
                "within a day it is forgotten: give retried_for=, the seconds for which a caller may come again"
            )
        elif moved is not None:
            if after:  # a second call at once is tried by Claim
                replays.problem = f"it was forgotten, and done again: {moved}"
        elif not again.answered:
            replays.problem = f"the answer was lost: a replay {again}"
        elif (equal := same(first.value, again.value)) is None:
            replays.unknown.append(incomparable(first.value))
        elif not equal:
            replays.problem = f"the answer was {first.value!r}, its replay {again.value!r}"
        if replays.problem is not None:
            break
    yield replays


def _memory(trial: Trial, moments: Collection[_Moment]) -> Iterator[Schedule]:
    """A replay is also safe: no decline is remembered for longer than it is true."""
    yield from _replays(trial, moments)
    if trial.provider is not None:
        declined = Schedule(trial)
        trial.provider.decline_next()
        declined.story.append("the provider declines the next request: no funds")
        declined.forget_answer(declined.call(ours=True))
        trial.provider.heal()
        declined.story.append("the customer tops up")
        retry = declined.call()
        if isinstance(retry.error, Uncertain):
            declined.notes.append("a decline is left in doubt: raise NotDone for it, or name it in Policy(releases=)")
        elif declined.moved() is None:
            declined.problem = f"the decline is remembered: after the top-up a retry {retry}, and nothing was done"
            yield declined
            return
        declined.call()
        yield declined.judge()


def _boundary(trial: Trial) -> Iterator[Schedule]:
    """The effect happens once in spite of lost answers, late requests, a caller that goes away, and crashes."""
    if trial.provider is not None:
        yield from _troubles(trial, trial.provider)
    yield from cancellations(trial)
    yield from crashes(trial)


def _troubles(trial: Trial, provider: LedgerProvider) -> Iterator[Schedule]:
    """What the provider, or the line to it, does to a request; each is followed by retries."""
    late = provider.late_seconds
    guess = None  # what the handler answered when it could not know the outcome
    troubles: tuple[tuple[Callable[[], None], str], ...] = (
        (lambda: provider.lose_next_answer(TimeoutError), "the provider does it, and its answer is lost (a timeout)"),
        (lambda: provider.lose_next_answer(ConnectionResetError), "the provider does it, and the connection is reset"),
        (provider.drop_next, "the request is lost on its way (a timeout)"),
        (provider.delay_next, f"the provider accepts the next request, times out, and does it {late:g} s later"),
    )
    for trouble, step in troubles:
        schedule = Schedule(trial)
        trouble()
        schedule.story.append(step)
        first = schedule.call(ours=True)
        provider.heal()
        if not first.answered:
            schedule.notes.append(f"after a timeout, the first caller gets {type(first.error).__name__}")
        guess = guess or _wording(first, schedule)
        answers = [first, schedule.call()]
        if trouble == provider.delay_next:
            schedule.time_passes(max(0.0, late - 1), "a second is left until it is done")
            answers.append(schedule.call())
        schedule.time_passes()
        answers.append(schedule.call())
        if trouble == provider.drop_next and guess is not None:
            for one in answers:
                if _wording(one, schedule) == guess:
                    schedule.forget_answer(one)
                    schedule.unknown.append(
                        f"after a timeout it answers {one.value!r}, whether the effect happened or not: unless that "
                        "answer means that the outcome is unknown, it is wrong in one of the two cases; raise an error "
                        "instead"
                    )
        yield schedule.judge()


def _wording(outcome: Outcome, schedule: Schedule) -> str | None:
    """The answer as text, with the operation's key replaced: the same text for every operation."""
    key = str(schedule.payload[schedule.trial.key])
    return repr(outcome.value).replace(key, "...") if outcome.answered else None


def _later(value: Any) -> Any:
    """The same kind of value, as a retry would carry it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, datetime):
        return value + timedelta(seconds=1)
    if isinstance(value, str):
        return f"{value}+"
    raise ValueError(f"give ignore= fields that are numbers, times or text; {type(value).__name__} cannot be varied")
