"""What a guard reports: events for the hooks, a log line for what needs a person, and the counts of its attempts.

What is promised to an attempt: a hook that raises changes nothing, and a hook that blocks does not do so twice. Hooks
are called on the caller's thread, one after the other, so that a quick one costs nothing but itself. A hook that took
longer than HOOK_BLOCKED_SECONDS in all, within a minute, or is inside a call for that long, is named in one warning and
is called in a thread of its own from then on, with a bounded queue. So the attempts that are inside a hook when it
blocks for the first time are slowed, and no others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from samekey.core.call import Call
from samekey.core.errors import Misconfigured
from samekey.core.events import EVENTS, OTHER, SOURCES_MAX, line_of, loggable
from samekey.core.ports import Event, Hook
from samekey.core.record import ATTRIBUTE_MAX_CHARS, ATTRIBUTES_MAX
from samekey.guard.bookkeeping import Books
from samekey.loops import started

_log = logging.getLogger("samekey")

HOOK_SLOW_SECONDS = 0.1  # a call that took so long counts; a thread may lose the processor for less
HOOK_BLOCKED_SECONDS = 0.5  # so much in a minute is no accident
HOOK_QUEUE_MAX = 1000  # events that wait for a slow hook; more are dropped
STORE_DOWN_LINE_SECONDS = 1.0  # between two log lines of a store that is down: every call would write one

Pairs = tuple[tuple[str, str], ...]


class Facts:
    """The facts of one guard, whose hooks, counts and log lines they become."""

    def __init__(self, hooks: Any, source: str | None, *, asynchronous: bool) -> None:
        given = as_hooks(hooks)
        self.hooks = tuple([WatchedHook(hook) for hook in given])
        self.logs = any(getattr(hook, "logs", False) for hook in given)  # then no line is written here
        self.begins = tuple([hook.begin for hook in given if hasattr(hook, "begin")])
        self._binds = tuple([hook.bind for hook in given if hasattr(hook, "bind")])
        self._source = as_source(source)
        self._sources: set[str] = set()
        self.books = Books(asynchronous=asynchronous)
        self.count = self.books.count
        self._down_at = -STORE_DOWN_LINE_SECONDS
        self._down_unlogged = 0

    def bind(self, guard: Any) -> None:
        """The guard is made: hooks that read its store, and the books, get it. Both keep a weak reference."""
        self.books.bind(guard)
        for bind in self._binds:
            bind(guard)

    def begin(self, call: Call) -> Pairs:
        """The call's attributes with those that the hooks add: for a trace that the record shall name."""
        attributes = dict(call.attributes)
        for begin in self.begins:
            try:
                added: Mapping[str, str] = begin(call.key.operation, attributes)
            except Exception:
                _log.exception("a samekey hook raised; the attempt is not affected")
                continue
            for name, value in added.items():
                if len(attributes) < ATTRIBUTES_MAX or name in attributes:
                    attributes[name] = value
        return tuple(sorted(attributes.items()))

    def source(self, attributes: Pairs) -> str:
        """The source among these attributes; at most SOURCES_MAX different ones, then "other"."""
        for name, value in attributes:
            if name == self._source:
                if value not in self._sources:
                    if len(self._sources) >= SOURCES_MAX:
                        return OTHER
                    self._sources.add(value)
                return value
        return ""

    def tell(self, event: Event, *, logged: bool = False) -> None:
        """Give the event to the hooks; where none of them writes a log, what needs a person is logged here."""
        if not (logged or self.logs) and EVENTS[event.name].needs_a_person:
            self._write_line(event)
        for hook in self.hooks:
            hook(event)

    def after_fork(self) -> None:
        """In the child: the queues' threads and the counts are the parent's."""
        self.books.after_fork()
        for hook in self.hooks:
            hook.begin_again()

    def _write_line(self, event: Event) -> None:
        fact, line = EVENTS[event.name], line_of(loggable(event))
        if event.name == "store_down":
            now = time.monotonic()
            if now - self._down_at < STORE_DOWN_LINE_SECONDS:
                self._down_unlogged += 1
                return
            unlogged, self._down_unlogged, self._down_at = self._down_unlogged, 0, now
            if unlogged:
                line = f"{line} (and {unlogged} more since the last such line)"
        _log.log(fact.level, "%s: %s", fact.meaning, line)


class WatchedHook:
    """A hook, called on the caller's thread; in a thread of its own once it has blocked."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._inside: float | None = None  # since when a call is inside it; of several, the one that entered last
        self._slow_seconds, self._slow_since = 0.0, 0.0
        self._aside = False
        self._dropped = False
        self.begin_again()

    def begin_again(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[Event] = deque()
        self._drains = False

    def __call__(self, event: Event) -> None:
        if self._aside:
            self._put(event)
            return
        now, inside = time.monotonic(), self._inside
        if inside is not None and now - inside > HOOK_BLOCKED_SECONDS:
            self._move_aside(now - inside)
            self._put(event)
            return
        self._inside = now
        self._call(event)
        self._inside = None
        took = time.monotonic() - now
        if took > HOOK_SLOW_SECONDS:
            self._was_slow(now, took)

    def _call(self, event: Event) -> None:
        try:
            self._hook(event)
        except Exception:
            _log.exception("a samekey hook raised; the answer is not affected")

    def _was_slow(self, now: float, took: float) -> None:
        if now - self._slow_since > 60:
            self._slow_seconds, self._slow_since = 0.0, now
        self._slow_seconds += took
        if self._slow_seconds > HOOK_BLOCKED_SECONDS:
            self._move_aside(took)

    def _move_aside(self, took: float) -> None:
        with self._mutex:
            known, self._aside = self._aside, True
        if not known:
            _log.warning(
                "the samekey hook %s blocked for %.1f s: it is called in a thread of its own from now on",
                _name(self._hook),
                took,
            )

    def _put(self, event: Event) -> None:
        with self._mutex:
            full = len(self._waiting) >= HOOK_QUEUE_MAX
            if not full:
                self._waiting.append(event)
            first_dropped, self._dropped = full and not self._dropped, self._dropped or full
            starts, self._drains = not self._drains, True
        if first_dropped:
            _log.warning(
                "the samekey hook %s does not keep up: %d events wait for it, and further ones are dropped",
                _name(self._hook),
                HOOK_QUEUE_MAX,
            )
        if starts and not started(threading.Thread(target=self._drain, name="samekey-hook", daemon=True)):
            self._drains = False  # the next event tries again

    def _drain(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._drains = False
                    return
                event = self._waiting.popleft()
            self._call(event)


def _name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def as_hooks(hooks: Any) -> tuple[Hook, ...]:
    given = tuple(hooks) if isinstance(hooks, Iterable) else (None,)
    if not all(map(callable, given)):
        raise Misconfigured(f"hooks= takes a list of functions that take an Event, not {hooks!r}")
    return given


def as_source(source: Any) -> str:
    if source is None:
        return "source"
    if not isinstance(source, str) or not 0 < len(source) <= ATTRIBUTE_MAX_CHARS:
        raise Misconfigured(f"source= takes the name of an attribute, not {source!r}")
    return source
