"""Interrupts at every place where they may strike: Ctrl-C, or a signal handler that raises at a time limit."""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import samekey

ROOM = str(Path(samekey.__file__).parent)


class TimeLimit(Exception):
    """What a signal handler raises, as those of task queues do."""


class Strike:
    """An interrupt at the n-th line of this thread in our own files that have one of these words in their names.

    A line that comes again and again, as those do that greet 256 buckets, counts twice.
    """

    def __init__(self, number: int, kind: type[BaseException], words: tuple[str, ...]) -> None:
        self.left, self.where = number, ""
        self._kind, self._words = kind, words
        self._last: dict[FrameType, int] = {}
        self._visits: Counter[tuple[CodeType, int]] = Counter()

    @property
    def struck(self) -> bool:
        return self.left <= 0

    def calls(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        return self.lines if name.startswith(ROOM) and any(word in name for word in self._words) else None

    def lines(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and self._may_strike(frame):
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise self._kind
        return self.lines

    def forget(self) -> None:
        """Let go of the frames: what is in them lives as long as they do."""
        self._last.clear()

    def _may_strike(self, frame: FrameType) -> bool:
        """Not on the bare word `try`, nor when a with-block is being left: Python looks for signals after calls."""
        line, last = frame.f_lineno, self._last.get(frame, 0)
        self._last[frame] = line
        self._visits[frame.f_code, line] += 1
        if self._visits[frame.f_code, line] > 2:
            return False
        text = linecache.getline(frame.f_code.co_filename, line).strip()
        return text != "try:" and not (text.startswith("with ") and last > line)


@contextmanager
def interrupted_at(number: int, *words: str, kind: type[BaseException] = KeyboardInterrupt) -> Iterator[Strike]:
    strike, before = Strike(number, kind, words), sys.gettrace()
    sys.settrace(strike.calls)
    try:
        yield strike
    except kind:
        pass
    finally:
        sys.settrace(before)
        strike.forget()
