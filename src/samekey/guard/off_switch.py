"""The off switch for tests: while it is off, guards run everything straight through.

It counts for the whole process, not for a thread: the code under test may start its own. `samekey.testing.off()`
turns it; answers then have `guarded=False`, and the hooks get the event `unguarded` for each call.
"""

from __future__ import annotations

import threading

depth = 0  # how many blocks have it off now; read by every call, so it is a plain number
_mutex = threading.Lock()


def turn(by: int) -> None:
    """One block more (1) or one less (-1) that wants the guards off."""
    global depth
    with _mutex:
        depth += by
