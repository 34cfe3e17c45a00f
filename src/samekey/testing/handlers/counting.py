"""What one operation does to the probes, in numbers: the measure for calls that overlap or died half-way.

Calls that follow each other need no numbers: once one has answered, a later one may change nothing. Callers at once,
and a caller after a crash, may change something: together as much as one clean call does, and no more.

Theory. Two operations are done alone. What both change by the same amount is *steady*, and every other operation may
change it by that much: a number, how many rows or lines of text there are, the sum of a column of rows that were
there before. What differs between the two (an id, a time, the size of a text) says nothing about the next. So each
probe is one of three: it stays *still* (then nothing may move it), it is *counted*, or it is *uncounted*: it moves, and
nothing about it is steady. Of an uncounted one only later calls are judged, and `notes` say so. New rows are counted,
and their contents are not judged: an amount that was written twice into one row looks the same as a number of
attempts or a state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any

from samekey.testing.handlers.probes import Snapshot

CLOSE = 1e-6  # relative: money kept in floats is not off by more, and no operation repeats by less

Amounts = dict[str, Any]  # numbers by place in a snapshot: "" is the whole, "[1]" a column, "['ann']" an entry


class Measure:
    """What one clean operation does, seen on two of them, each as (before, after)."""

    def __init__(self, first: tuple[Snapshot, Snapshot], second: tuple[Snapshot, Snapshot]) -> None:
        if second[1].moved(second[0]) is None:
            second = first  # swallowed: operations that should have been done will be missed by the first's measure
        self._still: set[str] = set()
        self._one: dict[str, Amounts] = {}
        self._weights: dict[str, Amounts] = {}
        self._uncounted: list[str] = []
        for name in first[0].names:
            one, other = (_change(before[name], after[name]) for before, after in (first, second))
            steady = _steady(one, other)
            if all(before[name] == after[name] for before, after in (first, second)):
                self._still.add(name)
            elif any(steady.values()):
                self._one[name] = steady
                self._weights[name] = _steady(
                    *(_weights(before[name], after[name]) for before, after in (first, second))
                )
            else:
                self._uncounted.append(name)

    @property
    def moves(self) -> bool:
        """Whether it is seen at all."""
        return bool(self._one or self._uncounted)

    @property
    def counts(self) -> bool:
        """Whether calls that overlap or die are judged by anything."""
        return bool(self._one)

    @property
    def notes(self) -> list[str]:
        return [
            f"{name} cannot be counted: what calls did to it that overlapped or died was not judged, only what later "
            "calls did; probe rows or a number"
            for name in self._uncounted
        ]

    def wrong(self, before: Snapshot, now: Snapshot, *, answered: str) -> str | None:
        """What else than one operation was done between these; `answered` names the callers that got an answer."""
        for name in before.names:
            if name in self._still and now[name] != before[name]:
                return f"{now.moved(before, of={name})}, and one clean call does not move it"
            grown = _change(before[name], now[name])
            for at, one in self._one.get(name, {}).items():
                amount = grown.get(at, 0)
                moved = f"{name}{at} moved by {amount}"
                if _close(amount, one):
                    continue
                if not one or not 0 <= amount / one < 1:
                    return f"{moved} for one operation; one clean call moves it by {one}"
                if answered:
                    missing = "not all of it" if amount else "nothing"
                    return f"{answered} got an answer, but {moved} instead of {one}: {missing} was done"
        return None

    def heavier(self, before: Snapshot, now: Snapshot) -> list[str]:
        """What new rows hold at least twice of."""
        return [
            f"{name}{at} moved by {amount} in a new row, and one clean call moves it by {one}: "
            "if that is an effect, it was done more than once, and if it is not (a number of attempts), do not probe it"
            for name, weights in self._weights.items()
            for at, amount in _weights(before[name], now[name]).items()
            if (one := weights.get(at)) and amount / one > 2 - CLOSE
        ]


def _steady(one: Amounts, other: Amounts) -> Amounts:
    return {at: amount for at, amount in one.items() if at in other and _close(amount, other[at])}


def _weights(was: Any, now: Any) -> Amounts:
    """What the columns of a table, or the entries of a dict, have become more, where there are new ones."""
    if isinstance(was, tuple | frozenset | dict) and isinstance(now, tuple | frozenset | dict) and len(was) != len(now):
        old, new = (_sums(one.values() if isinstance(one, dict) else one, "") for one in (was, now))
        return _difference({at: old.get(at, 0) for at in new}, new)
    return {}


def _change(was: Any, now: Any, at: str = "") -> Amounts:
    """What can be counted of a change; a number that stayed as it was is left out."""
    if _number(was) and _number(now):
        return _difference({at: was}, {at: now})
    if isinstance(was, str) and isinstance(now, str):
        return {f"{at} (lines)": len(now.splitlines()) - len(was.splitlines())}
    if isinstance(was, tuple | frozenset) and isinstance(now, tuple | frozenset):
        if len(was) != len(now):
            return {at: len(now) - len(was)}
        return {at: 0, **_difference(_sums(was, at), _sums(now, at))}
    if isinstance(was, dict) and isinstance(now, dict):
        amounts: Amounts = {at: len(now) - len(was)}
        for name in was.keys() & now.keys():
            amounts |= _change(was[name], now[name], f"{at}[{name!r}]")
        return amounts
    return {}


def _sums(rows: Iterable[Any], at: str) -> Amounts:
    """The sum of each column that holds numbers; sums, because rows come in any order."""
    sums: Amounts = {}
    for row in rows:
        for column, value in _columns(row):
            if _number(value):
                place = f"{at}{column}"
                sums[place] = sums.get(place, 0) + value
    return sums


def _columns(row: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(row, tuple):
        return ((f"[{number}]", value) for number, value in enumerate(row))
    if isinstance(row, Mapping):
        return ((f"[{name!r}]", value) for name, value in row.items())
    if dataclasses.is_dataclass(row):
        return ((f".{field.name}", getattr(row, field.name)) for field in dataclasses.fields(row))
    return [(" in all", row)]


def _difference(was: Amounts, now: Amounts) -> Amounts:
    return {at: now[at] - was[at] for at in was.keys() & now.keys() if now[at] != was[at]}


def _number(seen: Any) -> bool:
    return isinstance(seen, Number) and not isinstance(seen, bool | complex)


def _close(one: Any, other: Any) -> bool:
    return math.isclose(one, other, rel_tol=CLOSE)
