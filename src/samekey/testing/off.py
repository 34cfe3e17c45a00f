"""The off switch: unit tests of what a guarded function does, without what the guard does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from samekey.guard import off_switch

OFF = "the guards are off (off(), samekey_off or --samekey-off), so whatever they do was not tried"


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
    off_switch.turn(1)
    try:
        yield
    finally:
        off_switch.turn(-1)


def guards_are_off(handler: Any, guard: Any = None) -> list[str]:
    """A note if guards are off; a ValueError where that leaves nothing to try."""
    if not off_switch.depth:
        return []
    if guard is not None or getattr(handler, "guard", None) is not None:
        raise ValueError(OFF)
    return [OFF]
