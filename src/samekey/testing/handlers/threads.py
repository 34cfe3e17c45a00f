"""Work that a call does in other threads: a pool, the event loop of a test client, a thread of its own.

Threads that start while a trial is under way are traced, and what happens in them while one call moves is that call's
doing. Threads that were there before cannot be traced; that part of a call ran in one is seen by the processor time it
used. A thread of yours that goes on from call to call is not stopped either, because it would not survive being killed
for one of them. Both are listed in `elsewhere`, and then the findings that rest on stopping are unknown.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging.handlers
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType
from typing import Any

from samekey.testing.faulty import Crashed
from samekey.testing.handlers.own_code import OwnCode, installed, ours

_POOLS = f"{os.sep}anyio{os.sep}"  # an installed package whose threads run what they are given
_LOGGERS = logging.handlers.__file__  # a QueueListener writes down what happened elsewhere


class Moving:
    """A call, as far as its threads go."""

    elsewhere: set[str]

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        raise NotImplementedError


class CallThread(threading.Thread):
    """The thread in which a call starts: it sets its own tracer."""

    def run(self) -> None:
        sys.setprofile(None)
        super().run()


_lone: Moving | None = None
_known = threading.local()
# Those that are traced. Not a WeakSet: a thread that starts while that is looked through breaks it.
_helpers: weakref.WeakKeyDictionary[threading.Thread, None] = weakref.WeakKeyDictionary()


def lone() -> Moving | None:
    """The only call that moves now."""
    return _lone


def at_work() -> list[threading.Thread]:
    """Threads that may be working for a call: traced ones that run what they are given.

    A thread that has ended is none of them: Python forgets what it was started with, and its number may be that of
    another thread by now, so a caller that waits would never look still.
    """
    known = [thread() for thread in _helpers.keyrefs()]
    return [one for one in known if one is not None and one.is_alive() and _runs_anything(one)]


def threads_of(own: OwnCode, *, but: Collection[threading.Thread]) -> set[str]:
    """The names of threads with something of yours to do: those in the middle of your code, and timers."""
    frames = current_frames()
    return {
        one.name
        for one in threading.enumerate()
        if one not in but and (isinstance(one, threading.Timer) or _is_in(own, frames.get(one.ident or 0)))
    }


def _is_in(own: OwnCode, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in own:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def moving(call: Moving) -> Iterator[None]:
    """Only this call moves, so work of threads that belong to no other call is counted as its work."""
    global _lone
    _lone = call
    try:
        yield
    finally:
        _lone = None


@contextlib.contextmanager
def helpers_traced() -> Iterator[None]:
    """Threads that start in this block are traced; those of a pool may outlive it, and are left alone by then."""
    tracer, profiler = threading.gettrace(), threading.getprofile()
    if not isinstance(threading.excepthook, _UnlessDead):
        threading.excepthook = _UnlessDead(threading.excepthook)
    threading.settrace(_trace)
    threading.setprofile(_trace_again)
    try:
        yield
    finally:
        threading.settrace(tracer)
        threading.setprofile(profiler)


class _UnlessDead:
    """In place of `threading.excepthook`, from the first trial on: a thread may come to its end after its trial."""

    def __init__(self, hook: Callable[[Any], object]) -> None:
        self._hook = hook

    def __call__(self, failed: Any) -> None:
        if not issubclass(failed.exc_type, Crashed):
            self._hook(failed)


def _trace(frame: FrameType, event: str, arg: Any) -> Any:
    if not getattr(_known, "thread", False):
        _known.thread = True
        thread = threading.current_thread()
        if not isinstance(thread, CallThread | threading.Timer):
            _helpers[thread] = None
    return None if _lone is None else _lone.trace(frame, event, arg)


def _trace_again(frame: FrameType, event: str, arg: Any) -> None:
    """Python drops a tracer that raises, which is how a call is unwound; the next work of a pool's thread needs it."""
    if event == "call" and sys.gettrace() is None and not _unwinds(frame):
        sys.settrace(_trace)


def _unwinds(frame: FrameType | None) -> bool:
    """Whether this belongs to a call that is being unwound: what it does to clean up must not be stopped."""
    while frame is not None:
        if isinstance(getattr(frame.f_trace, "__self__", None), Moving):
            return True
        frame = frame.f_back
    return False


def current_frames() -> Mapping[int, FrameType]:
    """Where every thread is. A garbage collection in the middle of it, with callbacks, hangs some Pythons for ever."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


class Bystanders:
    """Threads that were there before the trial and run what they are given: do they work for a call?"""

    def __init__(self) -> None:
        here = threading.current_thread()
        self._threads = [
            one
            for one in threading.enumerate()
            if one is not here
            and one not in _helpers
            and not isinstance(one, threading.Timer)  # which was set before, and not for a call
            and _runs_anything(one)
        ]
        self._used: dict[threading.Thread, float] = {}

    def watch(self) -> None:
        self._used = {one: _processor_seconds(one) for one in self._threads}

    def worked(self) -> set[str]:
        """The names of those that used the processor since `watch`."""
        return {one.name for one, used in self._used.items() if one.is_alive() and _processor_seconds(one) != used}


def _runs_anything(thread: threading.Thread) -> bool:
    """Those of an installed package, of `logging`, and ours, do only their own work: they are not a call's.

    A thread is recognised by the function it was started with: to follow its frames while it runs crashes some
    Pythons.
    """
    run: Any = type(thread).run
    if run is threading.Thread.run:
        run = getattr(thread, "_target", None)
    while isinstance(run, functools.partial):
        run = run.func
    code = getattr(run, "__code__", None)
    first = "" if code is None else code.co_filename
    return _POOLS in first if installed(first) else first != _LOGGERS and not ours(first)


def _processor_seconds(thread: threading.Thread) -> float:
    if thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):  # a system that does not tell
        return 0.0
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    except OSError:  # it has just ended
        return 0.0
