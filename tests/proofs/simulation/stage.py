"""The stage of one run: the heap of events, the clock, the clients and their tasks, and how these come to harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field, fields
from functools import cache
from heapq import heappop, heappush
from typing import Any

from samekey.core.boundary import Asks, Boundary, Keyed, Kind, Opaque, Repeatable, Verdict
from samekey.core.call import Answer, Call
from samekey.core.commands import Free, Read
from samekey.core.envelope import encode
from samekey.core.errors import NotDone, Refused, SamekeyError, StoreUnavailable
from samekey.core.layers import FRONT_TTL_SECONDS, MayStillReplay
from samekey.core.policy import Policy
from samekey.core.pursuit import pursue
from samekey.core.recovery import Look
from samekey.core.states import State
from samekey.guard.hold import current, leaving
from tests.proofs.schedules.points import RESULT_MAX_BYTES, End
from tests.proofs.schedules.scene import FRESH, KEY, NO_FAULTS, Move, Scene
from tests.proofs.schedules.search import PROMISES, one_answer, one_effect
from tests.proofs.simulation.durable import Durable
from tests.proofs.simulation.faults import (
    BELIEF_SECONDS,
    EVENTS_MAX,
    FAILOVER_RATE,
    FRONT_RATES,
    LEASE_SECONDS,
    PAUSE_MAX_SECONDS,
    RATE_MAX,
    RATE_MIN,
    RATES,
    Faults,
)
from tests.proofs.simulation.front import Front
from tests.proofs.simulation.promises import Broken, Promises
from tests.proofs.simulation.provider import Counter
from tests.proofs.simulation.stepping import Bell, SteppedGuard, SteppedLeases, Wish

Draw = Callable[[], float]
WORKER = "W"  # the client that looks at records and never calls


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
POLICY_LAYERED = Policy(lease=LEASE_SECONDS, patience=1.5)  # there a waiter looks four times a second: few are enough
PAYLOAD = {"amount": 200}


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
    began: float  # it, or a call of the same process that it may have joined
    knew: str  # the incarnation that the process had last heard of by then
    attempt: str = ""
    turn: int = 0  # a reply to an earlier wish comes too late
    shields: int = 0
    word: bytes | None = None
    unheard: bool = False  # the store did not answer it
    heard: str = ""  # the incarnation of the store that answered last


class Simulation:
    """The stage of one run."""

    def __init__(
        self, boundary: Boundary, draw: Draw, *, layered: bool = False, story: list[str] | None = None
    ) -> None:
        self.boundary = boundary
        self.draw = draw
        self.layered = layered
        self.story = story
        self.now = 0.0
        self.events = 0
        self.reached: set[str] = set()
        self.answers: tuple[bytes, ...] = ()
        self.healed = False
        self.failed_over_at = -1.0
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = 0
        self._guards: list[SteppedGuard] = []
        self._client: Client | None = None
        self._task: Task | None = None
        self._bells: dict[Bell, tuple[Task, int]] = {}
        self._attempts = 0
        self._taken_back_at: float | None = None  # since when nobody who comes may hear the answer that was freed
        self._buries_at = 0.0  # since when the front may have been told of that
        self._lives = 1  # of the key
        self._set_up()

    def _set_up(self) -> None:
        draw, keyed = self.draw, self.boundary.terms.kind is Kind.KEYED
        rates = RATES | FRONT_RATES if self.layered else RATES
        self.faults = Faults(**{kind: rate for kind, rate in rates.items() if draw() > 0.5})
        if draw() > 7 / 8:
            self.faults.failover = FAILOVER_RATE
        self._restless = bool(self.faults.crash or self.faults.pause or self.faults.cancel)
        self.counter = Counter(self, self.boundary)
        if not keyed or self.counter.provider.broke:
            self.faults.copied = 0.0  # a copy of what was declined lands after the top-up: a window, not a promise
        self.durable = Durable(self)
        self.front = Front(self) if self.layered else None
        kept = set(PROMISES)
        if self.boundary.terms.kind is Kind.REPEATABLE:
            kept.discard(one_effect)
        if self.layered:
            kept.discard(one_answer)  # it may be one of a life that is over: `_check_answer` knows
        self.promises = Promises(frozenset(kept))
        self._wishes: dict[str, Callable[[Task, Any], None]] = {
            "store": self.durable.ask,
            "wait": self.durable.wait,
            "sleep": self._sleep,
            "bell": self._bell,
            "charge": self.counter.charge,
            "look": self.counter.look,
        }
        if self.front is not None:
            self._wishes["front"] = self.front.ask
        self._prepared = _prepared(self.boundary, self.layered)
        self.looks_now()
        self._drifts = draw() > 0.5
        if draw() > 0.5:
            self._new_client(WORKER, calls=2, drifts=self._drifts, after=30 + draw() * 120)
        for number in range(2 + (draw() > 0.6)):
            self._new_client("ABC"[number], calls=1 + (draw() > 0.65), drifts=self._drifts, after=draw() * 40 - 20)

    # -- playing

    def play(self) -> None:
        """To the end; raises Broken where a promise is."""
        try:
            self._play_on()
            # What the provider remembers of a decline would speak for the next life, too: a window.
            if self.layered and self._settled() and not self.counter.books.declined and self.draw() > 0.5:
                self._take_back()
                self._play_on()
            self._heal()
            self._play_on()
        except Broken as broken:
            self.tell(f"BROKEN: {broken}")
            raise
        for guard in self._guards:
            guard.left()
        _GUARDS[self.layered].extend(self._guards)

    def close(self) -> None:
        """Take it down: parts that know each other would wait for the garbage collector, a quarter of all time."""
        if self.front is not None:
            self.front.close()
        self._heap.clear()
        self._bells.clear()
        del self.durable, self.counter, self.front, self._wishes

    def _play_on(self) -> None:
        """Until nothing is under way."""
        heap = self._heap
        while heap:
            self.now, _, act, given = heappop(heap)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Broken("ends_well", f"more than {EVENTS_MAX} events, and no end")
            act(*given)

    def _heal(self) -> None:
        self.faults, record = Faults(), self.durable.record
        self._restless = False
        self.healed = True
        if self.front is not None:
            self.front.heal()
        self.looks_now()
        if record is not None:
            self.now = max(self.now, record.lease_until, record.ask_until)
        if "the front could not be told" in self.reached:
            self.now += FRONT_TTL_SECONDS  # for so long it may show what was freed, and it was said so
        self.tell("the faults stop")
        self._new_client(FRESH, calls=1, drifts=False, after=1.0)

    def at(self, seconds: float, act: Callable[..., Any], *given: Any) -> None:
        self._number += 1
        heappush(self._heap, (self.now + seconds, self._number, act, given))

    def chance(self, rate: float) -> bool:
        return rate > 0.0 and self.draw() > 1.0 - rate

    def tell(self, text: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.now:9.3f}  {text}")

    def looks_now(self) -> Scene:
        """The scene as promises see it; made anew whenever a fact has changed."""
        durable, counter = self.durable, self.counter
        self.scene = scene = Scene(
            (),
            NO_FAULTS,
            counter.books,
            durable.record,
            (),
            (),
            self.now,
            durable.token,
            self.answers,
            durable.lost,
            counter.forgotten,
            self.healed,
        )
        return scene

    # -- what a guard is given instead of its loop, its clock and its timer (see `stepping.Stage`)

    def monotonic(self) -> float:
        client = self._client
        return self.now if client is None else client.offset + self.now * client.rate

    def uniform(self, least: float, most: float) -> float:
        return least + (most - least) * self.draw()

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
            self.at(0.0, self.resume, *waiting, None)

    @property
    def current_incarnation(self) -> str:
        return self.durable.incarnation

    @property
    def heard_incarnation(self) -> str:
        return self.durable.incarnation if self._task is None else self._task.heard  # no task: the timer

    def front_bells(self) -> Any:
        assert self.front is not None
        return self.front.bells

    def at_once(self, wish: Wish) -> Any:
        if self.chance(self.faults.unanswered):
            raise StoreUnavailable("the store does not answer")
        if wish.kind == "front":
            assert self.front is not None
            return self.front.carry_out(wish.about, "the timer")
        return self.durable.carry_out(wish.about, wish.about.seen.attempt)

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
        rate = RATE_MIN + self.draw() * (RATE_MAX - RATE_MIN) if drifts else 1.0
        offset = self.draw() * 1000 if drifts else 0.0
        client = Client(name, self._started_guard(), offset, rate, calls)
        self.at(max(after, 0.0), self._call, client)

    def _started_guard(self) -> SteppedGuard:
        pool = _GUARDS[self.layered]
        guard = pool.pop() if pool else SteppedGuard(layered=self.layered)  # to make one costs more than to call it
        self._guards.append(guard)
        return guard.started(self)

    def _call(self, client: Client) -> None:
        if not client.alive:
            return
        client.calls -= 1
        self._begin(client, lambda task: self._guarded(client.guard, task))
        if client.calls and self.draw() > 0.8:
            self.at(self.draw(), self._call, client)  # two calls in one process at once

    def _begin(self, client: Client, steps: Callable[[Task], Any]) -> None:
        others = client.tasks
        began, knew = (others[0].began, others[0].knew) if others else (self.now, client.guard.incarnation)
        task = Task(client, None, copy_context(), began, knew)
        task.steps = steps(task)
        client.tasks.append(task)
        self._step(task, None, None)

    async def _guarded(self, guard: SteppedGuard, task: Task) -> Answer[Any] | End:
        key, intent, _, *rules = self._prepared
        call = Call(key, intent, self.new_attempt(), *rules)
        performer = guard._performer(call, lambda: self._effect(task))
        if task.client.name == WORKER:
            call.to_caller = False
            pursued = await performer.alone().go_on(pursue(call, Look(can_run=self.draw() > 0.3)))
            self.reached.add(f"a worker: {pursued.how}")
            return End("cancelled", "looked")
        return performer.conclude(await performer.go_on())

    async def _effect(self, task: Task) -> str:
        held = current()
        mood = self.draw()
        if mood > 0.96:
            raise Refused("stolen card") if mood > 0.98 else NotDone("gave up before anything was sent")
        if self.boundary.terms.marked:
            await Wish("sleep", self.draw())  # it prepares its request; paused here, it may lose its lease
            await held.sending()
        ending = await Wish("charge", held.provider_key())
        match ending.how:
            case "returned":
                if mood > 0.94:
                    raise leaving(NotDone("a guarded call inside this effect says so, of itself"))
                task.word = encode(ending.value, max_bytes=RESULT_MAX_BYTES)
                value: str = ending.value
                return value
            case "NotDone":
                raise NotDone("declined", declined=ending.declined)
            case _:
                raise Refused("stolen card", declined=ending.declined)

    def resume(self, task: Task, turn: int, reply: Any, error: Exception | None = None) -> None:
        """A reply reaches its task - if the process still is, and when it runs again."""
        client = task.client
        if not client.alive or task.turn != turn:
            return
        faults = self.faults
        if client.paused_until > self.now:
            self.at(client.paused_until - self.now, self.resume, task, turn, reply, error)
        elif not self._restless:
            self._step(task, reply, error)
        elif self.chance(faults.crash):
            self._crash(client)
        elif self.chance(faults.pause):
            seconds = self.draw() * PAUSE_MAX_SECONDS
            client.paused_until = self.now + seconds
            self.tell(f"{client.name} is paused for {seconds:.0f} s")
            self.at(seconds, self.resume, task, turn, reply, error)
        elif not task.shields and self.chance(faults.cancel):
            self.tell(f"{task.attempt} is cancelled")
            self.reached.add("a caller is cancelled")
            self._step(task, None, asyncio.CancelledError())
        else:
            self._step(task, reply, error)

    def _crash(self, client: Client) -> None:
        self.tell(f"{client.name} crashes")
        self.reached.add("a client crashes")
        client.alive = False
        self._client = client
        for task in client.tasks:
            task.context.run(task.steps.close)
        client.tasks.clear()
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
        except (Exception, asyncio.CancelledError) as raised:
            raised.__traceback__ = None  # its frames know it: one more circle
            self._ended(task, raised)
        else:
            self._wishes[wish.kind](task, wish.about)
        finally:
            self._task = None

    def _sleep(self, task: Task, seconds: float) -> None:
        self.at(seconds / task.client.rate, self.resume, task, task.turn, None)

    def _bell(self, task: Task, about: tuple[Bell, float | None]) -> None:
        bell, timeout = about
        self._bells[bell] = (task, task.turn)
        if timeout is not None:
            self.at(timeout / task.client.rate, self.resume, task, task.turn, None)

    def _ended(self, task: Task, value: Any) -> None:
        client = task.client
        client.tasks.remove(task)
        end, word = _end(value), task.word
        unrecorded = end.how == "unrecorded" or (task.unheard and end.how != "answer")
        if end.how == "answer" or (end.what == "Refused" and self._closed()):
            answer = b"%b %b" % (end.what.encode(), end.result or b"")
            if answer not in self.answers:
                self.answers = (*self.answers, answer)
                self.looks_now()
        self.reached.add(f"{FRESH if client.name == FRESH else 'a caller'}: {end.what}")
        if self.story is not None:
            self.tell(f"{task.attempt} ends: {end.what}{f' {end.result!r}' if end.result else ''}")
        self.promises.ended(Move("", self.scene, task.attempt, None, (), end, None if unrecorded else word))
        if self.layered and end.how == "answer":
            self._check_answer(task, end)
        if client.calls > 0 and client.name != FRESH:
            self.at(self.draw() * (900 if self.draw() > 0.7 else 60), self._call, client)

    def _closed(self) -> bool:
        record = self.durable.record
        return record is not None and record.state is State.CLOSED

    def _settled(self) -> bool:
        record = self.durable.record
        return record is not None and record.settled

    # -- a person takes a settled answer back, when nothing is under way; and callers come at the same time

    def _take_back(self) -> None:
        self.tell("a person takes the answer back")
        self._begin_operator(Client("O", self._started_guard(), 0.0, 1.0, 0))
        for name in "DE":  # while it is done: whoever has seen the old answer may tell it late
            self._new_client(name, calls=1, drifts=self._drifts, after=self.draw() * 0.1 - 0.02)
        self._new_client("F", calls=2, drifts=self._drifts, after=self.draw() * 150 - 30)

    def _begin_operator(self, client: Client) -> None:
        self._begin(client, lambda task: self._frees(client.guard, task))

    async def _frees(self, guard: SteppedGuard, task: Task) -> Any:
        task.attempt = "a person"
        store, self._buries_at = guard.store, self.now
        try:
            seen = await store.carry_out(Read(KEY))
            if seen is None:
                return End("failed", "nothing to free")
            now = await store.carry_out(Free(seen, "ada", "refunded"))
        except MayStillReplay:
            self.reached.add("the front could not be told")
            return End("failed", "MayStillReplay")
        except StoreUnavailable:
            return End("failed", "StoreUnavailable")
        if now is None:
            self.reached.add("freed, and the front was told")
            self._taken_back_at = self.now
        return End("failed", "freed")

    def a_life_is_over(self) -> None:
        """What was charged and answered before counts no more."""
        self.counter.forgotten, self.answers = len(self.counter.books.charges), ()
        self.looks_now()

    def _check_answer(self, task: Task, end: End) -> None:
        """Every answer is what the durable store says, or said within the last `front_ttl`."""
        assert self.durable.truths is not None
        assert self.front is not None
        said = (end.what, end.result or b"")
        since = task.began - FRONT_TTL_SECONDS
        if self.durable.lost and task.knew == self.durable.incarnation:
            since = max(since, self.failed_over_at)  # whoever knows of the replica believes no word of the old one
        if not self.durable.truths.true_within(said, since):
            raise Broken("true_within_front_ttl", f"{task.attempt} was answered {said[1]!r}: not true any more")
        back = self._taken_back_at
        undisturbed = self.front.disturbed_at < self._buries_at and not self.durable.lost
        if back is not None and back <= task.began and undisturbed:
            if not self.durable.truths.true_within(said, back):
                raise Broken("freed_is_gone", f"{task.attempt} was answered {said[1]!r}: freed before it came")


_GUARDS: dict[bool, list[SteppedGuard]] = {False: [], True: []}  # of processes that are over: their runs ended well


@cache
def _prepared(boundary: Boundary, layered: bool) -> tuple[Any, ...]:
    """The call that everybody makes, but for its attempt id: nothing can go wrong before its first command."""
    guard = SteppedGuard(layered=layered)
    operation = guard.operation("charge", boundary=boundary, policy=POLICY_LAYERED if layered else POLICY)
    call = guard.new_call(operation, KEY.text, PAYLOAD, None)
    return tuple(getattr(call, one.name) for one in fields(call))


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
        case End():
            return value
        case _:
            return End("broke", repr(value))
