"""What Python cleans up by itself while a trial is under way: generators that are closed, `__del__`.

The collector does it in whatever thread allocates something, so a call would be stopped in what another call left
behind, at points that never come again. It is off during a trial, and comes between two schedules. And a finalizer
swallows what is raised in it: of a call that dies in one, nobody needs to be told that.
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
    """Nothing is collected in this block but by `collect`."""
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
