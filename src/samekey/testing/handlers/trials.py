"""A handler on trial: fresh operations, calls that are stopped and go on, and the judgement over them.

    Trial       the handler, what it is called with, and everything around it that the test may move
    Schedule    one operation: who was called, what stopped, what passed; its story grows while it is played
    Finding     what many schedules say about one assumption

Each schedule is about an operation of its own (the payload's key is numbered), so schedules do not meet, and is
judged by what the probes say since it began: an operation may move them by what one clean call moves them by.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from samekey.testing.handlers.comparing import incomparable, same
from samekey.testing.handlers.counting import Measure
from samekey.testing.handlers.finalizers import collect, collected_between
from samekey.testing.handlers.operations import key_field, likely_field, renewed
from samekey.testing.handlers.probes import Probe, Probes, Snapshot
from samekey.testing.handlers.stops import (
    CALL_SECONDS_MAX,
    POINTS_MAX,
    POINTS_MET_MAX,
    Caller,
    Handler,
    NeverBack,
    Outcome,
    Point,
    Tapped,
    named,
)
from samekey.testing.handlers.threads import Bystanders, helpers_traced
from samekey.testing.off import guards_are_off
from samekey.testing.provider import LedgerProvider

ONLY_HERE = "every caller was in this process, where memory and locks look better than they are: give elsewhere="
SHORTER = "at some calls it did not come to some of its points again, so it was not stopped there"
NEW = (
    "let the pool, loop or client start when the handler is called (a TestClient without with), or try the function "
    "that runs there"
)
WAITED = "let it wait for that before it answers, or try what runs there by itself"
SMALLER = "try it with less to do, or the function inside it that matters"
HUNG = (
    "and these steps came before it (a lock or a connection that a killed call held is given back by a with-block, or "
    "by a try-block right after it; with elsewhere= every worker has its own):"
)
CHANCES = 8  # clean calls, for a thread that wakes up now and then by itself not to do so during one of them
LATER_SECONDS = 3600.0  # past every lease, and within every retention worth its name
LOOK_SECONDS_MAX = 1.0  # for the probes, before killed calls are unwound

NEEDED = {
    "clock": "give a clock that can be moved by advance(seconds), a ManualClock, that the store goes by, too",
    "guard": "give the Guard or AsyncGuard that the handler uses inside",
    "elsewhere": "is a function without arguments that makes and returns a handler",
}
UNSEEN = (
    "one clean call moved none of the probes, so nothing could be seen: probe what the handler does (not its "
    "arguments: each call gets its own)"
)
UNSTOPPED = (
    "it was stopped nowhere, because no line of its code is known for yours: give the handler itself instead of what "
    "calls it, install its package from its folder (pip install -e .), or give guard="
)


def chosen(points: list[Point]) -> list[Point]:
    """Which points are played: all of them, or else the first and the last time at each place, while they are few."""
    if len(points) <= POINTS_MAX:
        return points
    last = {point.place: point for point in points}
    return [point for point in points if point.time == 1 or point == last[point.place]][:POINTS_MAX]


class Clock(Protocol):
    """The time that the handler and its stores go by; a ManualClock is one."""

    def advance(self, seconds: float) -> Any: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """What the schedules that were played say.

    `story` has the steps of the schedule that broke it, and `problem` says what was wrong at its end. `notes` list what
    was not tried, and what is safe and still worth knowing.
    """

    name: str
    holds: bool | None  # None: unknown, because it could not be tried or seen, and `notes` say why
    schedules: int
    problem: str = ""
    story: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = {True: "holds", False: "BROKEN", None: "unknown"}[self.holds]
        lines = [f"{self.name:<9} {verdict}, {self.schedules} schedules played"]
        lines += [f"    {number}. {step}" for number, step in enumerate(self.story, 1)]
        lines += [f"    => {self.problem}"] if self.problem else []
        lines += [f"    note: {note}" for note in self.notes]
        return "\n".join(lines)

    def check(self) -> Finding:
        """Itself, or an AssertionError with the story."""
        if not self.holds:
            raise AssertionError(str(self))
        return self

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "holds": self.holds,
            "schedules": self.schedules,
            "problem": self.problem,
            "story": list(self.story),
            "notes": list(self.notes),
        }


class Trial:
    """What a handler is tried with."""

    def __init__(
        self,
        handler: Handler,
        payload: Mapping[str, Any],
        key: str | None,
        probes: Mapping[str, Probe] | None,
        provider: LedgerProvider | None,
        *,
        clock: Clock | None = None,
        elsewhere: Callable[[], Handler] | None = None,
        guard: Any = None,
        never_key: Collection[str] = (),
    ) -> None:
        for name, given, needs in (("clock", clock, "advance"), ("guard", guard, "through")):
            if given is not None and not hasattr(given, needs):
                raise ValueError(f"{name}={given!r} cannot be used: {NEEDED[name]}")
        if key is not None and not isinstance(key, str):
            raise ValueError(f"key= is the name of one field of the payload, not {key!r}")
        self._notes, payload = guards_are_off(handler, guard), named(payload)
        key = key_field(handler, payload) if key is None else key
        if key is None:
            key = likely_field(payload, never_key)
            self._notes.append(f"{key} was taken for what makes two operations different: give key= if it is not")
        if key not in payload:
            raise ValueError(f"the payload has no {key!r}, so no two operations would be different")
        self.handler, self.payload, self.key = handler, dict(payload), key
        self.probes = Probes(probes, provider)
        self.provider, self.clock = provider, clock
        self.guard = getattr(handler, "guard", None) if guard is None else guard
        self._elsewhere = elsewhere
        self.comparable = True  # False: a plain replay answers differently already, so answers say nothing more
        self.points: list[Point] = []
        self.passed_by: set[str] = set()
        self.elsewhere: set[str] = set()  # threads in which it could not be stopped
        self.left_running: set[str] = set()  # what went on after its answer
        self._worked: list[set[str]] = []  # of each clean call: the older threads that did something meanwhile
        self.waits: list[str] = []  # where an async handler waits, and so can be cancelled
        self.clean: Any = None  # what a clean call answers

    @contextlib.contextmanager
    def prepared(self) -> Iterator[Trial]:
        """With the guard's commands as points, and knowing what one clean call does."""
        self._bystanders = Bystanders()
        with (
            collected_between(),
            helpers_traced(),
            contextlib.nullcontext() if self.guard is None else self.guard.through(Tapped),
        ):
            first = self._alone("called once, and alone")
            if self.clock is not None:
                self.clock.advance(LATER_SECONDS)  # so that a time is not taken for a number that is always the same
            # An error here means that the handler took it for the first operation: its key has too few fields.
            self.measure = Measure(first, self._alone(f"called alone, for another {self.key} than before"))
            while all(self._worked) and len(self._worked) < CHANCES:
                self._alone("called alone, once more")
            if all(self._worked):
                self.elsewhere.update(*self._worked)
            yield self

    def _alone(self, how: str) -> tuple[Snapshot, Snapshot]:
        """What one clean call does."""
        before, threads = self.probes.look_still(), threading.enumerate()
        self._bystanders.watch()
        alone = Caller("A", self.handler, self.operation()).call()
        outcome = alone.end()
        alone.wait_for_threads(threads)
        worked = self._bystanders.worked()
        if not outcome.answered:
            raise ValueError(f"{how}, the handler already {outcome}") from outcome.error
        # The first call may have more points than the second: it sets things up.
        self.points = max(self.points, list(alone.points), key=len)
        self.passed_by |= alone.passed_by
        self.elsewhere |= alone.elsewhere
        self._worked.append(worked)
        self.left_running |= alone.left_running
        self.waits = max(self.waits, alone.places_waited, key=len)
        self.clean = outcome.value
        return before, self.probes.look_still()

    def _unstopped(self) -> list[str]:
        """Why stopping it at its points says nothing about the others."""
        if not self.points:
            return [UNSTOPPED]
        if self.elsewhere:
            return [
                f"part of it ran in threads where it could not be stopped ({', '.join(sorted(self.elsewhere))}): {NEW}"
            ]
        if self.left_running:
            names = ", ".join(sorted(self.left_running))
            return [f"it answered while {names} went on, and what that does was not seen: {WAITED}"]
        if len(self.points) >= POINTS_MET_MAX:
            return [f"it has more than {POINTS_MET_MAX} points, and what comes after them was not tried: {SMALLER}"]
        left = len({point.place for point in self.points} - {point.place for point in chosen(self.points)})
        return [f"it was not stopped at {left} of its places, because there are so many: {SMALLER}"] if left else []

    def operation(self, **changes: Any) -> dict[str, Any]:
        """The payload of a new operation."""
        return {**self.payload, **changes, self.key: renewed(self.payload[self.key])}

    @property
    def only_here(self) -> list[str]:
        """The note that a second caller in this process shows less. A guard is made to forget what the process kept."""
        return [] if self._elsewhere is not None or self.guard is not None else [ONLY_HERE]

    def other_worker(self) -> Handler:
        """The handler as another process has it."""
        if self._elsewhere is None:
            return self.handler
        try:
            other = self._elsewhere()
        except TypeError as error:
            raise ValueError(f"elsewhere= {NEEDED['elsewhere']}; called so, it {Outcome(error=error)}") from error
        if not callable(other):
            raise ValueError(f"elsewhere= {NEEDED['elsewhere']}, not {other!r}")
        return other

    def restart(self) -> None:
        """Make the guard forget what it keeps in this process, as a new process would."""
        if self.guard is not None and self._elsewhere is None:
            self.guard.as_new_process()

    def play(
        self,
        name: str,
        schedules: Iterator[Schedule],
        notes: Collection[str] = (),
        *,
        at_points: bool = False,
        overlapping: bool = False,
    ) -> Finding:
        """Play them until one breaks; if no probe moves or can judge them, or there is no point to stop at, it is
        unknown what would. Calls that are stopped at points overlap.
        """
        played, known = 0, dict.fromkeys([*notes, *self.measure.notes, *self._notes])
        unknown = dict.fromkeys([] if self.measure.moves else [UNSEEN])
        unknown |= dict.fromkeys(self._unstopped() if at_points else [])
        if (at_points or overlapping) and self.measure.moves and not self.measure.counts:
            unknown |= dict.fromkeys(self.measure.notes)
        with warnings.catch_warnings():
            # A call that is killed between `mail(order)` and the `create_task` around it never awaits the coroutine.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            for schedule in schedules:
                played += 1
                if schedule.problem is not None:
                    return Finding(name, False, played, schedule.problem, tuple(schedule.story), tuple(known))
                known.update(dict.fromkeys(schedule.notes))
                unknown.update(dict.fromkeys(schedule.unknown))
                collect()
        return Finding(name, None if unknown else True, played, notes=tuple(unknown | known))


@dataclass
class Schedule:
    """One operation and what is done to it; `problem` is set by the first thing that is wrong."""

    trial: Trial
    payload: dict[str, Any] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # why it says nothing, though nothing is wrong
    problem: str | None = None

    def __post_init__(self) -> None:
        self.payload = self.payload or self.trial.operation()
        self._before = self.trial.probes.look()
        self._callers: list[Caller] = []
        self._answers: list[tuple[str, Any]] = []
        self._names = itertools.cycle("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        self._again: str | None = None  # what a call did although an earlier one was answered

    # -- what can be done

    def call(self, *, payload: Mapping[str, Any] | None = None, ours: bool = False, hasty: bool = False) -> Outcome:
        """Call - as another worker, unless it is `ours` - and wait for the end.

        Every stopped call was killed or has ended by now. If an earlier call was answered, this one may move nothing.
        """
        caller = self._caller(self.trial.handler if ours else self.trial.other_worker(), payload, hasty=hasty)
        answered, before = self._answered, self._look() if self._answers else None
        outcome = self.wait_for(caller.call())
        moved = None if before is None else self._look().moved(before)
        if moved is not None and self._again is None:
            self._again = f"{answered} got an answer, and the call of {caller.name} changed something again: {moved}"
        return outcome

    def stop_at(self, point: Point) -> Caller:
        """Call, and stop at this point."""
        caller = self._caller(self.trial.handler, None, stop_at=point)
        if caller.arrives():
            self.story.append(f"{caller.name} is called and stops {caller.stopped_at}")
        else:
            self.wait_for(caller)  # fewer points than the first time: it was answered in a shorter way
            self.notes.append(SHORTER)
        return caller

    def meet(self, stopped: Caller) -> None:
        """Another worker calls while one is stopped, and waits for it if it must; then both end."""
        self.trial.restart()  # the other is of another process, and does not wait for this one in memory
        other = self._caller(self.trial.other_worker(), None)
        other.call()
        waiting = other.waits()
        if waiting:
            self.story.append(f"{other.name} is called and waits")
        else:
            self.wait_for(other)
        stopped.go_on()
        self.wait_for(stopped, "goes on")
        if waiting:
            self.wait_for(other, "has waited")

    def cancel_at(self, place: int) -> None:
        """Call an async handler, and cancel its task where it waits for this time."""
        caller = self._caller(self.trial.handler, None, cancel_at=place)
        outcome = caller.call().end()
        where = caller.cancelled_at or "nowhere: it did not wait as often as before"
        self.story.append(f"{caller.name} is called and cancelled {where}: {outcome}")
        if outcome.answered:
            self._answers.append((caller.name, outcome.value))

    def kill(self, stopped: Caller) -> None:
        self.trial.restart()
        self.story[-1] = self.story[-1].replace(" stops ", " is killed ")

    def time_passes(self, seconds: float = LATER_SECONDS, step: str = "an hour passes") -> None:
        if self.trial.clock is not None:
            self.trial.clock.advance(seconds)
            self.story.append(step)

    def burst(self, count: int) -> None:
        """So many call at once."""
        start = threading.Barrier(count)
        handlers = [self.trial.handler, *(self.trial.other_worker() for _ in range(count - 1))]

        def together(handler: Handler) -> Handler:
            def called(**payload: Any) -> Any:
                start.wait(CALL_SECONDS_MAX)
                return handler(**payload)

            return called

        callers = [Caller(next(self._names), together(one), self.payload, traced=False) for one in handlers]
        self.story.append(f"{count} callers at once")
        for caller in callers:
            caller.start()
        for caller in callers:
            self.wait_for(caller)

    def wait_for(self, caller: Caller, how: str = "is called") -> Outcome:
        """Wait for its end, and keep its answer."""
        if caller.waits() and self._stopped:
            self.story.append(f"{caller.name} waits for a lock or a connection of the call that was killed")
            self._unwind()
        try:
            outcome = caller.end()
        except NeverBack as hangs:
            steps = [f"    {number}. {step}" for number, step in enumerate(self.story, 1)]
            raise NeverBack("\n".join([f"{hangs}, {HUNG}", *steps])) from None
        self.story.append(f"{caller.name} {how}: {outcome}")
        if outcome.answered:
            self._answers.append((caller.name, outcome.value))
        return outcome

    def forget_answer(self, outcome: Outcome) -> None:
        """Do not count this as an answer to the operation: it is a decline, returned as a value."""
        self._answers = [one for one in self._answers if one[1] is not outcome.value]

    # -- the judgement

    def judge(self) -> Schedule:
        """Compare what the probes and the callers saw with what is promised; then unwind the killed calls."""
        if self.problem is None:
            self.problem = self._wrong()
        self._unwind()
        return self

    def _look(self) -> Snapshot:
        """Look at the probes. One may need a lock that a killed call holds: after a while killed calls are unwound."""
        watchdog = threading.Timer(LOOK_SECONDS_MAX, self._unwind)
        watchdog.daemon = True
        watchdog.start()
        try:
            return self.trial.probes.look()
        finally:
            watchdog.cancel()
            watchdog.join()  # else the next trial finds a thread that still does something

    def _unwind(self) -> None:
        for caller in self._stopped:
            caller.unwind()

    def _wrong(self) -> str | None:
        measure, now = self.trial.measure, self._look()
        wrong = measure.wrong(self._before, now, answered=self._answered) or self._again
        if wrong is not None:
            return wrong
        self.unknown.extend(measure.heavier(self._before, now))
        for (first, answer), (second, other) in itertools.pairwise(self._answers):
            equal = same(answer, other) if self.trial.comparable else True
            if equal is None:
                self.unknown.append(incomparable(answer))
            elif not equal:
                return f"two answers for one operation: {first} got {answer!r}, {second} got {other!r}"
        for name, answer in self._answers if self.trial.comparable else ():
            if type(answer) is type(self.trial.clean):
                continue
            instead = f"{name} got {answer!r}, where a clean call answers {self.trial.clean!r}"
            if answer is None:
                return f"{instead}: the answer is lost"
            self.unknown.append(f"{instead}: it is unknown whether that means the same")
        return None

    def moved(self) -> str | None:
        """What moved since this schedule began."""
        return self.trial.probes.look().moved(self._before)

    def begin_again(self) -> None:
        """From here on nothing more may move."""
        self._before = self.trial.probes.look()

    @property
    def _answered(self) -> str:
        return ", ".join(name for name, _ in self._answers)

    @property
    def _stopped(self) -> list[Caller]:
        return [caller for caller in self._callers if caller.stopped]

    def _caller(self, handler: Handler, payload: Mapping[str, Any] | None, **options: Any) -> Caller:
        caller = Caller(next(self._names), handler, self.payload if payload is None else payload, **options)
        self._callers.append(caller)
        return caller
