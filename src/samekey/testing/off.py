"""The off switch: unit tests of what a guarded function does, without what the guard does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from samekey import switch


@contextmanager
def off() -> Iterator[None]:
    """Until the block ends every guarded function of this process runs straight through, every time.

    No store is touched and nothing is remembered; `answer()` says `guarded=False`. A key that cannot be one and a
    call that does not fit are errors as before.

    >>> from samekey import Guard
    >>> guard = Guard("memory://")
    >>> greet = guard.once(name="greet", key="who")(lambda who: f"hello {who}")
    >>> with off():
    ...     greet.answer("ann").guarded
    False
    >>> greet.answer("ann").guarded
    True
    """
    switch.turn(1)
    try:
        yield
    finally:
        switch.turn(-1)
