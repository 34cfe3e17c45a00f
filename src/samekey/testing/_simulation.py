"""One seed, one run: a few client processes, a store, a provider, and whatever goes wrong between them.

Theory. The clients are real guards (`_stepping.py`), the store is the real register, the promises are those of
`schedules.py`, held against every write and every end. Events wait in a heap under the time at which they happen;
each of them decides what follows by drawing numbers. A number near zero always means the harmless thing - no
fault, no delay - so a run whose numbers are replaced by zeros is a shorter story of the same kind.

Swarm: each run first draws which kinds of fault it knows at all; runs with few kinds go deeper into those.
At last the faults stop, what is under way is lost, and a fresh caller comes, which must get through.

A failover puts an asynchronous replica in the store's place: the last writes are gone, and the tokens that went with
them come again. What was promised then is less (`LOST`); an effect behind a provider that dedups is still single.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from samekey.core import register
from samekey.core.boundary import Asks, Boundary, Keyed, Kind, Opaque, Repeatable, Verdict
from samekey.core.call import Answer
from samekey.core.commands import Begin, Open, Read, Renew, Settle, StoreCommand, Take, Testify, Wait
from samekey.core.envelope import encode
from samekey.core.errors import NotDone, Refused, SamekeyError, StoreUnavailable
from samekey.core.policy import Policy
from samekey.core.record import Record
from samekey.core.states import State
from samekey.held import current
from samekey.testing._books import Books, Provider, Request
from samekey.testing._points import RESULT_MAX_BYTES, End
from samekey.testing._stepping import Bell, SteppedGuard, SteppedLeases, Wish, new_guard
from samekey.testing.schedules import (
    PROMISES,
    Promise,
    ends_well,
    evidence_heard,
    fenced,
    heals,
    one_effect,
    settled_is_final,
)
from samekey.testing.world import FRESH, NO_FAULTS, Move, Scene

Draw = Callable[[], float]

LEASE_SECONDS = 30.0
PAUSE_MAX_SECONDS = 100.0  # of a client, at any step: three leases
FLIGHT_MAX_SECONDS = 60.0  # of a request to the provider, and of a command that its sender gave up on
BELIEF_SECONDS = 5 * PAUSE_MAX_SECONDS + FLIGHT_MAX_SECONDS  # what `believe_absent_after` asks of the user
STORE_TIMEOUT_SECONDS = 2.0
EVENTS_MAX = 3000  # of one run; the longest honest ones need a few hundred
LOST: tuple[Promise, ...] = (fenced, ends_well, heals, settled_is_final, evidence_heard)


async def look(record: Any) -> Verdict:
    verdict: Verdict = await Wish("look", record.provider_key())
    return verdict


BOUNDARIES: dict[str, Boundary] = {
    "opaque": Opaque(),
    "opaque marked": Opaque(marked=True),
    "keyed": Keyed(),
    "keyed marked": Keyed(marked=True),
    "keyed with lookup": Keyed(lookup=look),
    "keyed, kept declines": Keyed(keeps_declines=True),
    "asks": Asks(look),
    "asks marked": Asks(look, marked=True),
    "asks, believes": Asks(look, believe_absent_after=BELIEF_SECONDS),
    "asks, believes, marked": Asks(look, believe_absent_after=BELIEF_SECONDS, marked=True),
    "repeatable": Repeatable(),
}
POLICY = Policy(lease=LEASE_SECONDS, patience=5.0)
PAYLOAD = {"amount": 200}


class Broken(BaseException):
    """A promise was broken; the run is over. No `except Exception` of the code under play may swallow it."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise.replace('_', ' ')}: {detail}")
        self.promise = promise


@dataclass(slots=True)
class Faults:
    """How likely each kind is, at each chance it has; zero in most runs for most kinds."""

    crash: float = 0.0
    pause: float = 0.0
    unanswered: float = 0.0  # a store command: lost, or carried out and the reply lost, or carried out much later
    repeated: float = 0.0  # a store command that a driver sends again
    cancel: float = 0.0
    slow: float = 0.0  # the provider, or the way to it
    unheard: float = 0.0  # a provider's answer that never comes
    copied: float = 0.0  # a request, by a proxy; only in front of a provider that dedups
    failover: float = 0.0


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
FAILOVER_RATE = 0.1  # at each write; in one run of eight


@dataclass(eq=False, slots=True)
class Client:
    """A process: its guard, and a clock that is neither right nor steady."""

    name: str
    guard: SteppedGuard
    offset: float
    rate: float
    calls: int  # that it still makes
    paused_until: float = 0.0
    alive: bool = True
    tasks: list[Task] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Task:
    """One call under way."""

    client: Client
    steps: Any
    context: Context
    attempt: str = ""
    turn: int = 0  # a reply to an earlier wish comes too late
    shields: int = 0
    word: bytes | None = None
    unheard: bool = False  # the store did not answer it


class Waiter(NamedTuple):
    task: Task
    turn: int
    seen: Record
    until: float


class Simulation:
    """The stage of one run."""

    def __init__(self, boundary: Boundary, draw: Draw, *, story: list[str] | None = None) -> None:
        self.boundary = boundary
        self.draw = draw
        self.story = story
        self.now = 0.0
        self.events = 0
        self.reached: set[str] = set()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._guards: list[SteppedGuard] = []
        self._client: Client | None = None
        self._task: Task | None = None
        self._waiters: list[Waiter] = []
        self._bells: dict[Bell, tuple[Task, int]] = {}
        self._attempts = 0
        self._writes: list[tuple[Record | None, int]] = [(None, 0)]  # what an asynchronous replica may fall back to
        self._replicated = 0
        self.scene = Scene(callers=(), left=NO_FAULTS, books=Books())
        self._set_up()

    def _set_up(self) -> None:
        draw, keyed = self.draw, self.boundary.terms.kind is Kind.KEYED
        kinds = list(RATES) if keyed else [kind for kind in RATES if kind != "copied"]
        self.faults = Faults(**{kind: RATES[kind] for kind in kinds if draw() > 0.5})
        if draw() > 7 / 8:
            self.faults.failover = FAILOVER_RATE
        mood = draw()
        self.provider = Provider(
            dedups=keyed, broke=0.6 < mood <= 0.8, refuses=mood > 0.9, keeps_declines=self.boundary.terms.keeps_declines
        )
        if self.provider.broke:
            self.faults.copied = 0.0  # a copy of what was declined lands after the top-up: a window, not a promise
        self.scene = self.scene._replace(books=Books(broke=self.provider.broke))
        kept = set(PROMISES) - ({one_effect} if self.boundary.terms.kind is Kind.REPEATABLE else set())
        self.promises: tuple[Promise, ...] = tuple(one for one in PROMISES if one in kept)
        drifts = draw() > 0.5
        for number in range(2 + (draw() > 0.6)):
            self._new_client("ABC"[number], calls=1 + (draw() > 0.65), drifts=drifts, after=draw() * 40 - 20)

    # -- playing

    def play(self) -> None:
        """To the end; raises Broken where a promise is."""
        while self._heap:
            self.now, _, act, given = heappop(self._heap)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Broken("ends_well", f"more than {EVENTS_MAX} events, and no end")
            act(*given)
        if not self.scene.healed:
            self._heal()
            self.play()
            _GUARDS.extend(self._guards)

    def _heal(self) -> None:
        self.faults, record = Faults(), self.scene.record
        self.scene = self.scene._replace(healed=True)
        if record is not None:
            self.now = max(self.now, record.lease_until, record.ask_until)
        self._tell("the faults stop")
        self._new_client(FRESH, calls=1, drifts=False, after=1.0)

    def at(self, seconds: float, act: Callable[..., None], *given: Any) -> None:
        self._number += 1
        heappush(self._heap, (self.now + seconds, self._number, act, given))

    def chance(self, rate: float) -> bool:
        return rate > 0.0 and self.draw() > 1.0 - rate

    def _tell(self, text: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.now:9.3f}  {text}")

    # -- what a guard is given instead of its loop, its clock and its timer (see `_stepping.Stage`)

    def monotonic(self) -> float:
        client = self._client
        return self.now if client is None else client.offset + self.now * client.rate

    def new_attempt(self) -> str:
        task = self._task
        assert task is not None  # only a task that was stepped calls
        self._attempts += 1
        task.attempt = FRESH if task.client.name == FRESH else f"{task.client.name}{self._attempts}"
        return task.attempt

    def shield(self, on: bool) -> None:
        if self._task is not None:
            self._task.shields += 1 if on else -1

    def rung(self, bell: Bell) -> None:
        waiting = self._bells.pop(bell, None)
        if waiting is not None:
            self.at(0.0, self._resume, *waiting, None)

    def at_once(self, wish: Wish) -> Any:
        if self.chance(self.faults.unanswered):
            raise StoreUnavailable("the store does not answer")
        command: Renew = wish.about
        return self._carry_out(command, command.seen.attempt)

    def renew_at(self, leases: SteppedLeases, seconds: float) -> None:
        client = self._client
        if client is not None:
            self.at(max(seconds, 0.01) / client.rate, self._renew, client, leases)

    def _renew(self, client: Client, leases: SteppedLeases) -> None:
        if client.paused_until > self.now:
            self.at(client.paused_until - self.now, self._renew, client, leases)
        elif client.alive:
            self._client = client
            leases.renew_due()

    # -- clients

    def _new_client(self, name: str, *, calls: int, drifts: bool, after: float) -> None:
        offset, rate = (self.draw() * 1000, 0.5 + self.draw() * 1.5) if drifts else (0.0, 1.0)
        guard = _GUARDS.pop() if _GUARDS else new_guard()  # to make one costs more than to call it
        self._guards.append(guard)
        client = Client(name, guard.started(self), offset, rate, calls)
        self.at(max(after, 0.0), self._call, client)

    def _call(self, client: Client) -> None:
        if not client.alive:
            return
        client.calls -= 1
        task = Task(client, None, copy_context())
        task.steps = self._guarded(client.guard, task)
        client.tasks.append(task)
        self._step(task, None, None)
        if client.calls and self.draw() > 0.8:
            self.at(self.draw(), self._call, client)  # two calls in one process at once

    async def _guarded(self, guard: SteppedGuard, task: Task) -> Answer[Any]:
        operation = guard.operation("charge", boundary=self.boundary, policy=POLICY)
        return await guard._carry_out(guard._call(operation, "o-1", PAYLOAD, None), lambda: self._effect(task))

    async def _effect(self, task: Task) -> str:
        held = current()
        mood = self.draw()
        if mood > 0.96:
            raise Refused("stolen card") if mood > 0.98 else NotDone("gave up before anything was sent")
        if self.boundary.terms.marked:
            await held.sending()
        ending = await Wish("charge", held.provider_key())
        match ending.how:
            case "returned":
                task.word = encode(ending.value, max_bytes=RESULT_MAX_BYTES)
                value: str = ending.value
                return value
            case "NotDone":
                raise NotDone("declined")
            case _:
                raise Refused("stolen card")

    def _resume(self, task: Task, turn: int, reply: Any, error: Exception | None = None) -> None:
        """A reply reaches its task - if the process still is, and when it runs again."""
        client = task.client
        if not client.alive or task.turn != turn:
            return
        if client.paused_until > self.now:
            self.at(client.paused_until - self.now, self._resume, task, turn, reply, error)
        elif self.chance(self.faults.crash):
            self._crash(client)
        elif self.chance(self.faults.pause):
            seconds = self.draw() * PAUSE_MAX_SECONDS
            client.paused_until = self.now + seconds
            self._tell(f"{client.name} is paused for {seconds:.0f} s")
            self.at(seconds, self._resume, task, turn, reply, error)
        elif not task.shields and self.chance(self.faults.cancel):
            self._tell(f"{task.attempt} is cancelled")
            self.reached.add("a caller is cancelled")
            self._step(task, None, asyncio.CancelledError())
        else:
            self._step(task, reply, error)

    def _crash(self, client: Client) -> None:
        self._tell(f"{client.name} crashes")
        self.reached.add("a client crashes")
        client.alive = False
        self._client = client
        for task in client.tasks:
            task.context.run(task.steps.close)
        if self.draw() <= 0.7:
            self._new_client(client.name, calls=max(client.calls, 1), drifts=True, after=self.draw() * 120)

    def _step(self, task: Task, reply: Any, error: BaseException | None) -> None:
        self._client, self._task = task.client, task
        task.turn += 1
        try:
            if error is not None:
                wish = task.context.run(task.steps.throw, error)
            else:
                wish = task.context.run(task.steps.send, reply)
        except StopIteration as stop:
            self._ended(task, stop.value)
        except Exception as raised:
            self._ended(task, raised)
        except asyncio.CancelledError as cancelled:
            self._ended(task, cancelled)
        else:
            _WISHES[wish.kind](self, task, wish.about)
        finally:
            self._task = None

    def _ended(self, task: Task, value: Any) -> None:
        client = task.client
        client.tasks.remove(task)
        end, word = _end(value), task.word
        unrecorded = end.how == "unrecorded" or (task.unheard and end.how != "answer")
        if end.how == "answer" or (end.what == "Refused" and self._closed()):
            answer = b"%b %b" % (end.what.encode(), end.result or b"")
            if answer not in self.scene.answers:
                self.scene = self.scene._replace(answers=(*self.scene.answers, answer))
        self.reached.add(f"{FRESH if client.name == FRESH else 'a caller'}: {end.what}")
        self._tell(f"{task.attempt} ends: {end.what}{f' {end.result!r}' if end.result else ''}")
        self._check(Move("", self.scene, task.attempt, None, (), end, None if unrecorded else word), self.scene)
        if client.calls > 0 and client.name != FRESH:
            self.at(self.draw() * (900 if self.draw() > 0.7 else 60), self._call, client)

    def _closed(self) -> bool:
        record = self.scene.record
        return record is not None and record.state is State.CLOSED

    # -- the store

    def _store(self, task: Task, command: StoreCommand) -> None:
        delay, turn = 0.001 + self.draw() * 0.02, task.turn
        if self.chance(self.faults.unanswered):
            task.unheard = True
            late = self.draw()
            if late > 0.4:
                self.at(delay if late < 0.7 else self.draw() * FLIGHT_MAX_SECONDS, self._arrives, task, command)
            unavailable = StoreUnavailable("the store does not answer")
            self.at(STORE_TIMEOUT_SECONDS, self._resume, task, turn, None, unavailable)
            return
        if self.chance(self.faults.repeated):
            self.at(delay, self._arrives, task, command)
        self.at(delay, self._answers, task, turn, command)

    def _arrives(self, task: Task, command: StoreCommand) -> None:
        self._carry_out(command, task.attempt)

    def _answers(self, task: Task, turn: int, command: StoreCommand) -> None:
        record = self._carry_out(command, task.attempt)
        self.at(self.draw() * 0.02, self._resume, task, turn, record)

    def _carry_out(self, command: StoreCommand, by: str) -> Record | None:
        before, scene = self.scene.record, self.scene
        if not isinstance(command, Read):
            record = register.apply(before, command, self.moment())
            if record is not before:
                token = scene.token if record is None else max(scene.token, record.token)
                self.scene = scene._replace(record=record, token=token)
                self._writes.append((record, token))
                if self.story is not None:
                    self._tell(f"{by} {command.verb}s: {_shown(record)}")
                self._check(Move("", self.scene, by, command), scene)
                self._wake()
                if self.chance(self.faults.failover):
                    self.at(self.draw(), self._fail_over)  # this write is acknowledged first
            elif self.story is not None and isinstance(command, (Begin, Open, Settle, Take, Testify)):
                self._tell(f"{by} {command.verb}s, in vain: {_shown(record)}")
        return self._seen()

    def moment(self) -> register.Moment:
        """The store's clock, which alone judges a lease."""
        return register.Moment(self.now, self.now, "", self.scene.token + 1)

    def _seen(self) -> Record | None:
        record = self.scene.record
        if record is None:
            return None
        seen = register.seen_at(record, self.moment())
        return seen._replace(after_loss=True) if self.scene.lost else seen

    def _fail_over(self) -> None:
        if self.scene.lost or self.scene.healed:
            return
        behind = 1 + int(self.draw() * 3)
        record, token = self._writes[max(0, len(self._writes) - 1 - behind)]
        self._writes.append((record, token))
        self.scene = self.scene._replace(record=record, token=token, lost=True)
        keyed = self.boundary.terms.kind is Kind.KEYED
        rotated = any(record is not None and record.round for record, _ in self._writes)  # a round may be lost, too
        self.promises = (*LOST, one_effect) if keyed and not rotated else LOST
        self.reached.add("a failover loses writes")
        self._tell(f"a replica takes over, {behind} writes behind: {_shown(record)}")
        self._wake()

    def _wait(self, task: Task, about: tuple[Wait, float]) -> None:
        command, timeout = about
        waiter = Waiter(task, task.turn, command.seen, self.now + timeout / task.client.rate)
        self._waiters.append(waiter)
        self.at(0.001, self._looks, waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            self.at(0.001, self._looks, waiter)

    def _looks(self, waiter: Waiter) -> None:
        if waiter not in self._waiters:
            return
        record, seen = self._seen(), waiter.seen
        moved = record is None or (record.fence, record.state, record.asker) != (seen.fence, seen.state, seen.asker)
        if moved or record is None or not (record.lease_live or record.being_asked) or self.now >= waiter.until:
            self._waiters.remove(waiter)
            self._resume(waiter.task, waiter.turn, record)
            return
        ends = record.lease_left if record.lease_live else record.ask_left
        self.at(max(0.001, min(ends + 0.001, waiter.until - self.now)), self._looks, waiter)

    def _sleep(self, task: Task, seconds: float) -> None:
        self.at(seconds / task.client.rate, self._resume, task, task.turn, None)

    def _bell(self, task: Task, about: tuple[Bell, float | None]) -> None:
        bell, timeout = about
        self._bells[bell] = (task, task.turn)
        if timeout is not None:
            self.at(timeout / task.client.rate, self._resume, task, task.turn, None)

    # -- the provider

    def _charge(self, task: Task, reference: str) -> None:
        keyed = self.boundary.terms.kind is Kind.KEYED
        request = Request(task.attempt, reference, reference if keyed else "")
        self._tell(f"{task.attempt} sends its request")
        turn = task.turn
        self.at(self._on_the_way(), self._lands, task, turn, request)
        if self.chance(self.faults.copied):
            self.at(self._on_the_way(), self._lands, task, -1, request)
        self.at(10.0, self._resume, task, turn, None, TimeoutError("the provider does not answer"))

    def _on_the_way(self) -> float:
        return 0.05 + self.draw() * (FLIGHT_MAX_SECONDS if self.chance(self.faults.slow) else 0.5)

    def _lands(self, task: Task, turn: int, request: Request) -> None:
        if self.scene.healed and task.client.name != FRESH:
            return  # what was under way when the faults stopped is lost
        before = self.scene
        if before.books.broke and self.draw() > 0.5:
            before = before._replace(books=before.books._replace(broke=False))
        books, ending = self.provider.arrive(before.books, request, self.now)
        self.scene = before._replace(books=books)
        charged = len(books.charges) > len(before.books.charges)
        self._tell(f"the request of {request.by} lands: {'CHARGED' if charged else ending.how}")
        self._check(Move("", self.scene, request.by), before)
        if turn >= 0 and not self.chance(self.faults.unheard):
            self.at(self.draw() * 0.1, self._resume, task, turn, ending)

    def _look(self, task: Task, reference: str) -> None:
        self.at(self._on_the_way(), self._reads_books, task, task.turn, reference)
        self.at(20.0, self._resume, task, task.turn, None, TimeoutError("the provider does not answer"))

    def _reads_books(self, task: Task, turn: int, reference: str) -> None:
        verdict = self.provider.look(self.scene.books, reference)
        name = f"provider: {type(verdict).__name__}"
        self.reached.add(name)
        self._tell(f"{task.attempt} asks the {name}")
        if not self.chance(self.faults.unheard):
            self.at(self._on_the_way(), self._resume, task, turn, verdict)

    # -- the promises

    def _check(self, move: Move, before: Scene) -> None:
        for promise in self.promises:
            detail = promise(_NO_WORLD, before, move)
            if detail is not None:
                self._tell(f"BROKEN: {promise.__name__.replace('_', ' ')} - {detail}")
                raise Broken(promise.__name__, detail)


_GUARDS: list[SteppedGuard] = []  # of processes that are over: their runs have ended well
_NO_WORLD: Any = None  # promises ask it only about callers, and a simulation's scene lists none
_WISHES: dict[str, Callable[[Simulation, Task, Any], None]] = {
    "store": Simulation._store,
    "wait": Simulation._wait,
    "sleep": Simulation._sleep,
    "bell": Simulation._bell,
    "charge": Simulation._charge,
    "look": Simulation._look,
}


def _end(value: Any) -> End:
    match value:
        case Answer(recorded=False):
            return End("unrecorded", "not recorded")
        case Answer(result=result, state=state):
            return End("answer", state, encode(result, max_bytes=RESULT_MAX_BYTES))
        case Refused():
            return End("failed", "Refused", value.reason.encode())
        case SamekeyError():
            return End("raised", type(value).__name__)
        case NotDone() | TimeoutError() | asyncio.CancelledError():
            return End("failed", type(value).__name__)
        case _:
            return End("broke", repr(value))


def _shown(record: Record | None) -> str:
    if record is None:
        return "no record"
    marks = [word for word, on in (("unsure", record.unsure), ("begun", record.begun_at is not None)) if on]
    marks += [f"round {record.round}"] if record.round else []
    marks += [f"{one.attempt} testified {one.state}" for one in record.evidence]
    return f"{record.state}, token {record.token} of {record.attempt}{''.join(f', {mark}' for mark in marks)}"
