"""Probes: how a test sees what really happened.

A probe is any function without arguments that returns something comparable: the rows of a table, a provider's
books, the messages that were sent, a number. A cursor, a generator or a view of a dict is read. What can be counted
of it judges calls that overlap: counting.py.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from samekey.testing.handlers.comparing import equals_itself_only
from samekey.testing.provider import LedgerProvider

Probe = Callable[[], Any]
SHOWN_MAX = 300  # characters of a snapshot in a message: enough to recognise a row
READ_MAX = 100_000  # of a cursor or a generator: a table that a test fills is smaller, and some never end


def rows(connection: Any, query: str) -> Probe:
    """A probe of what this query finds; `connection` has an `execute`, as those of sqlite3 and psycopg have."""
    return lambda: [tuple(row) for row in connection.execute(query).fetchall()]


class Probes:
    """Named probes, looked at together."""

    def __init__(self, probes: Mapping[str, Probe] | None, provider: LedgerProvider | None) -> None:
        given: Any = probes or {}
        if not isinstance(given, Mapping) or not all(callable(one) for one in given.values()):
            raise ValueError("give probes= as a dict of functions without arguments: {'mails': lambda: mails}")
        self._probes: dict[str, Probe] = dict(given)
        if provider is not None:
            if not isinstance(provider, LedgerProvider):
                raise ValueError(
                    f"provider= is a LedgerProvider, whose books judge, not {provider!r}: probe one of your own"
                )
            self._probes.setdefault("provider", lambda: provider.accepted)
        if not self._probes:
            raise ValueError("give probes= or provider=: without them nothing can be seen to move")
        self._read: dict[str, Any] = {}  # the last iterator of each that gave one

    def look(self) -> Snapshot:
        return Snapshot({name: self._look(name) for name in self._probes})

    def look_still(self) -> Snapshot:
        """Look twice while nothing is called: a probe that differs then cannot show what a call did."""
        first, second = self.look(), self.look()
        for name in first.names:
            try:
                differs = bool(first[name] != second[name])
            except Exception as error:
                raise ValueError(
                    f"the probe {name} gives what cannot be compared: let it give a list or a number"
                ) from error
            if differs:
                shown = _difference(first[name], second[name])
                raise ValueError(
                    f"the probe {name} moves although the handler is not called: two looks in a row differ ({shown}). "
                    "Let it return rows, texts or numbers instead of objects without an ==, no times, and let it "
                    "wait for effects that come later"
                )
        return second

    def _look(self, name: str) -> Any:
        seen = self._probes[name]()
        if isinstance(seen, Iterator):
            if seen is self._read.get(name):
                raise ValueError(f"the probe {name} gives the same iterator again: let it make a new one")
            self._read[name] = seen
        try:
            return _kept(seen)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the probe {name} gives what cannot be kept: {error}") from error


class Snapshot:
    """What the probes returned at one moment."""

    def __init__(self, seen: Mapping[str, Any]) -> None:
        self._seen = seen

    @property
    def names(self) -> Collection[str]:
        return self._seen.keys()

    def __getitem__(self, name: str) -> Any:
        return self._seen[name]

    def moved(self, since: Snapshot, *, of: Collection[str] | None = None) -> str | None:
        """What is different (of these probes, or of all), by name and as text; None if nothing is."""
        changes = [
            f"{name} moved: {_difference(since[name], self[name])}"
            for name in since.names
            if (of is None or name in of) and self[name] != since[name]
        ]
        return "; ".join(changes) or None


def _kept(seen: Any) -> Any:
    """A copy of what may go on changing, however deep: a probe often returns the list itself."""
    if isinstance(seen, ItemsView):
        return {name: _kept(one) for name, one in seen}
    if isinstance(seen, KeysView):
        return frozenset(seen)
    if isinstance(seen, ValuesView | Iterator) or _only_read(seen):
        return _read(seen)
    try:
        hash(seen)
    except TypeError:
        pass
    else:
        return seen  # as far as == can tell it stays as it is
    if isinstance(seen, list | tuple):
        return tuple(_kept(one) for one in seen)
    if isinstance(seen, set):
        return frozenset(seen)
    if isinstance(seen, Mapping):
        return {name: _kept(one) for name, one in seen.items()}
    return copy.deepcopy(seen)


def _only_read(seen: Any) -> bool:
    """Whether it can only be iterated over: some cursors, a query, a collection class of the user."""
    return equals_itself_only(seen) and isinstance(seen, Iterable) and not isinstance(seen, type)


def _read(seen: Iterable[Any]) -> tuple[Any, ...]:
    rows = tuple(_kept(one) for one in itertools.islice(seen, READ_MAX + 1))
    if len(rows) > READ_MAX:
        raise ValueError(f"it has more than {READ_MAX} rows")
    return rows


def _difference(was: Any, now: Any) -> str:
    """What is new and what is gone, where rows can be matched; else before and after."""
    try:
        if isinstance(was, tuple | frozenset):
            before, after = Counter(was), Counter(now)
        elif isinstance(was, dict):
            before, after = Counter(was.items()), Counter(now.items())
        else:
            return _shown(f"{was!r}, now {now!r}")
    except TypeError:  # rows that cannot be hashed
        return _shown(f"{was!r}, now {now!r}")
    new, gone = list((after - before).elements()), list((before - after).elements())
    return _shown(", ".join([f"new {one!r}" for one in new] + [f"gone {one!r}" for one in gone]) or "their order")


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."
