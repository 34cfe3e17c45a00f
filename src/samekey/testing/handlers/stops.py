"""One call of a handler that can be stopped at any point: what crashes, pauses and races are made of.

Theory. A call runs in a thread of its own. *Points* are where it can be stopped: before each line of your own code
(own_code.py says which that is), inside a line wherever it has called something and goes on to call or store
(between.py), when one of your functions ends, and before and after each command to the store of a guard. A stopped
call waits at its point. If it never goes on, it has crashed as a killed process crashes: no `except` and no `finally`
ran. If it goes on after another call came, that was a race; if time passed meanwhile, it is a holder that slept
past its lease. So one mechanism plays all three, for sync and async handlers, guarded or not, and the same points
come in the same order every time.

What a handler does in other threads is stopped as well, where that can be done: threads.py.

What is ugly: a stopped thread keeps the locks of this process, which a killed process would not. When the next
caller waits for such a lock, the killed call is unwound with `Crashed`; then its `finally` blocks do run.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import linecache
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

from samekey.testing.faulty import Crashed
from samekey.testing.handlers.between import between
from samekey.testing.handlers.own_code import OwnCode, installed, ours
from samekey.testing.handlers.threads import CallThread, Moving, at_work, current_frames, lone, moving, threads_of

POLL_SECONDS = 0.005
STILL_POLLS = 10  # polls without a single step: it waits for another call; counted, so that a busy machine slows both
CALL_SECONDS_MAX = 20.0  # a call that neither ends nor stops nor waits by then counts as a waiting one
UNWIND_SECONDS_MAX = 20.0
LEFT_SECONDS_MAX = 0.25  # for work that goes on after the answer: a mail that is sent in a task or a thread of its own
WAIT_SECONDS_MAX = 0.05  # the patience of a caller whose rival was killed: no notification will come
POINTS_MAX = 200  # that are played of one call; a handler with more is tried at the first and the last of each place
POINTS_MET_MAX = 20_000  # of one call; what comes after them is not seen

Handler = Callable[..., Any]

# The commands after which other callers may see a change, or before which another caller may have come.
STORE_VERBS = frozenset({"open", "take", "begin", "settle", "ask", "testify", "read", "batch"})

WITH = ("with ", "async with ")
# A call that is killed right before one of these, and then unwound, still has to run it: the end of a with-block or of
# a try-block gives a lock or a connection back, and so does a line with `release()` or `putconn()`.
DELICATE = re.compile(r"(async )?with |try:\s*(#|$)|[\w.]+\.(release\(\)|putconn\(\w+\))\s*(#|$)")

_here = threading.local()  # .call: the call that this thread runs


class Point(NamedTuple):
    """Where a call can be stopped: a place, and which time it is there - two threads of one call race each other."""

    place: str
    time: int


class Outcome(NamedTuple):
    """How a call ended: it answered, it raised, or (neither) it never came back."""

    answered: bool = False
    value: Any = None
    error: BaseException | None = None

    def __str__(self) -> str:
        if self.error is not None:
            text = f"{type(self.error).__name__}: {self.error}"
            return f"raises {text if len(text) < 120 else text[:117] + '...'}"
        return f"answers {self.value!r}" if self.answered else "never comes back"


class NeverBack(AssertionError):
    """A call hangs, or takes longer than the kit waits."""


class Caller(Moving):
    """One call; `stop_at` is the point where it stops (None: nowhere).

    `cancel_at` is the number of the wait at which an async one is cancelled.
    """

    def __init__(
        self,
        name: str,
        handler: Handler,
        payload: Mapping[str, Any],
        *,
        stop_at: Point | None = None,
        cancel_at: int | None = None,
        traced: bool = True,
        hasty: bool = False,
    ) -> None:
        self.name = name
        self.hasty = hasty  # its rival was killed, so it waits only as long as it takes to see that
        self.points: list[Point] = []  # met so far
        self._met: Counter[str] = Counter()
        self.passed_by: set[str] = set()  # installed packages that your code called, where it was not stopped
        self.elsewhere: set[str] = set()  # threads that did some of its work, where it could not be stopped
        self.left_running: set[str] = set()  # tasks and threads that it started, and that went on after its answer
        self.places_waited: list[str] = []  # by an async handler
        self.stopped_at: str | None = None
        self.cancelled_at: str | None = None
        self.outcome = Outcome()
        self._handler, self._payload, self._stop_at, self._traced = handler, fresh(payload), stop_at, traced
        self._own, self._cancel_at = OwnCode(handler), cancel_at
        self._rest = threading.Event()  # it ended, or it waits at its point
        self._go = threading.Event()
        self._dead = self._over = False
        self._mutex = threading.Lock()
        self._thread = CallThread(target=self._run, name=f"samekey-{name}", daemon=True)

    def call(self) -> Caller:
        """Start, and return when it ended, stopped, or waits for another call. No other call moves meanwhile."""
        with moving(self):
            self.start()
            self.waits()
        return self

    def start(self) -> None:
        self._thread.start()

    def waits(self) -> bool:
        """Whether it waits for another call; first wait until it ends, stops or makes no step any more."""
        seen, still, ends = None, 0, time.monotonic() + CALL_SECONDS_MAX
        while not self._rest.wait(POLL_SECONDS):
            frames = current_frames()
            threads = [self._thread, *at_work()]
            now = [(id(frame), frame.f_lasti) for one in threads if (frame := frames.get(one.ident or 0)) is not None]
            still = still + 1 if now == seen and all(_asleep(one.native_id) for one in threads) else 0
            seen = now
            if still >= STILL_POLLS or time.monotonic() > ends:
                return True
        return False

    def arrives(self) -> bool:
        """Start, and return whether it stopped at its point: no other call runs, so it stops or it ends."""
        with moving(self):
            self.start()
            self._rest.wait(CALL_SECONDS_MAX)
        return self.stopped

    @property
    def stopped(self) -> bool:
        return self.stopped_at is not None and not self._go.is_set()

    def go_on(self) -> None:
        """Continue from its point."""
        self._rest.clear()
        self._go.set()

    def end(self) -> Outcome:
        """Wait until it is over."""
        self._thread.join(CALL_SECONDS_MAX)
        if self._thread.is_alive():
            raise NeverBack(f"{self.name} did not come back within {CALL_SECONDS_MAX:.0f} s")
        return self.outcome

    def unwind(self) -> None:
        """Raise `Crashed` in a call that waits at its point, and wait until its thread has ended."""
        self._dead = True
        self.go_on()
        self._thread.join(UNWIND_SECONDS_MAX)

    def point(self, where: str, *, delicate: bool = False) -> None:
        """The call has reached a point: go on, stop here, or raise `Crashed` - at a delicate point, at the next one."""
        if self._dead:
            raise Crashed(f"{self.name} is gone")
        if self._over:
            return
        with self._mutex:
            self._met[where] += 1
            here = Point(where, self._met[where])
            if len(self.points) < POINTS_MET_MAX:
                self.points.append(here)
            if here == self._stop_at and self.stopped_at is None:
                self.stopped_at = where
                self._rest.set()
        if self.stopped:  # its other threads wait here, too
            self._go.wait()
            if self._dead and not delicate:
                raise Crashed(f"{self.name} ended {where}")

    def waits_in(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """An async handler has to wait: let it, or cancel it here."""
        place, inner = "where it waits", cast(Any, coroutine)
        while inspect.iscoroutine(inner):
            frame = inner.cr_frame
            if frame is not None and frame.f_code.co_filename in self._own:
                place = f"where it waits, at {_place(frame, _source(frame))}"
            inner = inner.cr_await
        number = len(self.places_waited)
        if number < POINTS_MAX:
            self.places_waited.append(place)
        if number == self._cancel_at and self.cancelled_at is None and (task := asyncio.current_task()) is not None:
            self.cancelled_at = place
            task.cancel()

    def _run(self) -> None:
        _here.call = self
        try:
            if self._traced:
                sys.settrace(self.trace)
            value = self._handler(**self._payload)
            if inspect.isawaitable(value):
                value = asyncio.run(self._awaited(_Watched(value, self) if inspect.iscoroutine(value) else value))
            self.outcome = Outcome(answered=True, value=value)
        except Crashed:
            pass
        except BaseException as error:
            self.outcome = Outcome(error=error)
        finally:
            sys.settrace(None)
            self._over = True
            self._rest.set()

    async def _awaited(self, awaitable: Any) -> Any:
        asyncio.get_running_loop().set_exception_handler(_unless_dead)
        try:
            return await awaitable
        finally:
            if not self._dead:
                await self._wait_for_tasks()

    async def _wait_for_tasks(self) -> None:
        """A server's loop would go on with tasks that the handler started; the end of this loop cancels them."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        tasks = [one for one in others if not one.cancelling() and _started_by_you(one)]
        if tasks:
            _, going_on = await asyncio.wait(tasks, timeout=LEFT_SECONDS_MAX)
            self.left_running |= {f"the task {_coroutine_name(one)}()" for one in going_on}

    def wait_for_threads(self, before: Collection[threading.Thread]) -> None:
        """The same for threads that did not run `before`; they go on whether we wait or not."""
        ends = time.monotonic() + LEFT_SECONDS_MAX
        while (left := threads_of(self._own, but=before)) and time.monotonic() < ends:
            time.sleep(POLL_SECONDS)
        self.left_running |= {f"the thread {name}" for name in left}

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The tracer of the threads in which it runs."""
        filename = frame.f_code.co_filename
        if filename in self._own:
            if self._goes_on_in(frame):
                self.elsewhere.add(threading.current_thread().name)
                return None
            frame.f_trace_opcodes = bool(between(frame.f_code))
            return self._step
        if frame.f_back is not None and frame.f_back.f_code.co_filename in self._own and installed(filename):
            self.passed_by.add(str(frame.f_globals.get("__name__", filename)).partition(".")[0])
        return None

    def _goes_on_in(self, frame: FrameType) -> bool:
        """Whether code of yours that ran before this call called it, so that it is not only this call's work."""
        back = frame.f_back
        while back is not None and back.f_code.co_filename not in self._own:
            back = back.f_back
        return back is not None and getattr(back.f_trace, "__self__", None) is not self

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self._over:  # a thread that it started, and that goes on
            if (other := lone()) is not None and other is not self:
                other.elsewhere.add(threading.current_thread().name)
            return self._step
        if event == "line":
            line = _source(frame)
            # An exception between a with-block and its __exit__ would leave a lock locked for ever.
            self.point(f"before {_place(frame, line)}", delicate=DELICATE.match(line) is not None)
        elif event == "opcode":
            if frame.f_lasti in between(frame.f_code) and not (line := _source(frame)).startswith(WITH):
                self.point(f"inside {_place(frame, line)}, after it called something")
        elif event == "return":
            self.point(f"at the end of {frame.f_code.co_name}()")
        return self._step


def _asleep(thread: int | None) -> bool:
    """Whether the system reports that it waits, but not for the processor or the disk. True where it cannot report."""
    try:
        return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    except OSError:
        return True


def _started_by_you(task: asyncio.Task[Any]) -> bool:
    """Tasks of installed packages (a pool that looks after its connections) and of samekey are not a handler's."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and not installed(code.co_filename) and not ours(code.co_filename)


def _coroutine_name(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__name__", task.get_name()))


def _unless_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Leave out the error of a call that was unwound."""
    if not isinstance(context.get("exception"), Crashed):
        loop.default_exception_handler(context)


class _Watched:
    """A coroutine, unchanged, that reports to its `Caller` each time it waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], caller: Caller) -> None:
        self._coroutine, self._caller = coroutine, caller

    def __await__(self) -> Generator[Any, Any, Any]:
        reply: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._coroutine.send(reply) if error is None else self._coroutine.throw(error)
            except StopIteration as ended:
                return ended.value
            self._caller.waits_in(self._coroutine)
            try:
                reply, error = (yield waits_for), None
            except BaseException as thrown:  # a cancellation, or what it waited for has failed: the handler gets it
                reply, error = None, thrown


def fresh(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The same payload with values of its own, as each request brings them: a handler may empty the list it is given.

    Data equals its copy. What does not - a session, a client - is a thing and no value, and every call gets that one.
    """
    return {name: _copied(value) for name, value in named(payload).items()}


def named(payload: Any) -> Mapping[str, Any]:
    """The payload, if it is a dict of arguments; a test that gives a message instead gets a ValueError."""
    if not isinstance(payload, Mapping) or not all(isinstance(name, str) for name in payload):
        raise ValueError(f"handlers are called as handler(**payload): give a dict of arguments, not {payload!r}")
    return payload


def _copied(value: Any) -> Any:
    try:
        copied = copy.deepcopy(value)
        return copied if copied == value else value
    except Exception:  # it cannot be copied, or not be compared
        return value


def _source(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()


def _place(frame: FrameType, line: str) -> str:
    where = f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
    return f"{where}: {line}" if line else where


class Tapped:
    """A store around a guard's own: its commands are points of the call that sends them."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._store, name)
        if name == "wait":
            return _hasty(inner)
        return _tapped(inner) if name in ("carry_out", "batch") else inner


def _tapped(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if inspect.iscoroutinefunction(inner):

        @functools.wraps(inner)
        async def awaited(asked: Any) -> Any:
            _store_point("before", asked)
            reply = await inner(asked)
            _store_point("after", asked)
            return reply

        return awaited

    @functools.wraps(inner)
    def called(asked: Any) -> Any:
        _store_point("before", asked)
        reply = inner(asked)
        _store_point("after", asked)
        return reply

    return called


def _store_point(when: str, asked: Any) -> None:
    """A point at one command, or at the batch, unless nothing that others see can change there."""
    verb = getattr(asked, "verb", "batch")
    if verb in STORE_VERBS and (mine := _mine()) is not None:
        mine.point(f"{when} the store's {verb}")


def _hasty(wait: Callable[..., Any]) -> Callable[..., Any]:
    def hasty(command: Any, timeout: float) -> Any:
        mine = _mine()
        return wait(command, min(timeout, WAIT_SECONDS_MAX) if mine is not None and mine.hasty else timeout)

    return hasty


def _mine() -> Caller | None:
    """The call that this thread works for: its own, that of the code that got us here, or the only one that moves."""
    mine: Caller | None = getattr(_here, "call", None)
    frame: FrameType | None = sys._getframe()
    while mine is None and frame is not None:
        owner = getattr(frame.f_trace, "__self__", None)
        mine, frame = owner if isinstance(owner, Caller) else None, frame.f_back
    if mine is None:
        other = lone()
        mine = other if isinstance(other, Caller) else None
    return mine


def plain_call(handler: Handler, payload: Mapping[str, Any]) -> Outcome:
    """One call in the thread of the test; an awaitable is awaited in a thread and a loop of its own."""
    try:
        value = handler(**fresh(payload))
    except Exception as error:
        return Outcome(error=error)
    if not inspect.isawaitable(value):
        return Outcome(answered=True, value=value)
    caller = Caller("A", lambda: value, {}, traced=False)
    caller.start()
    return caller.end()
