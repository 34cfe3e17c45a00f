"""What Python cleans up by itself while a trial is under way: generators that are closed, `__del__`.

The collector runs in the thread that allocates something, so a call would be stopped inside the clean-up of another
call, at points that never come again. Therefore the collector is off during a trial and runs between two schedules.
Python reports what a finalizer raises, because it cannot raise it; the report is left out for a call that was killed.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

from samekey.testing.faulty import Crashed


@contextlib.contextmanager
def collected_between() -> Iterator[None]:
    """In this block only `collect` runs the collector."""
    collects, hook = gc.isenabled(), sys.unraisablehook

    def unless_dead(failed: Any) -> None:
        if not issubclass(failed.exc_type, Crashed):
            hook(failed)

    sys.unraisablehook = unless_dead
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        sys.unraisablehook = hook


def collect() -> None:
    """What the last schedule left: nothing is older than the second generation while the collector is off."""
    gc.collect(1)
