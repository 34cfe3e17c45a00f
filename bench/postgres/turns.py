"""Threads that only take turns: what a crowd of them costs before anything is done for it.

As in a lane (`stores/_postgres_lanes.py`): whoever comes while another leads sleeps on a lock, the leader answers all
who sleep, and each of them wakes the next. But nothing is sent; the leader sleeps for as long as a commit takes.
"""

from __future__ import annotations

import threading
import time
from itertools import pairwise

COMMIT_SECONDS = 0.0005


class _Sleeper:
    def __init__(self) -> None:
        self.bell = threading.Lock()
        self.bell.acquire()
        self.leads = False
        self.next: _Sleeper | None = None


class Turns:
    """What a lane is without its connection."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._sleepers: list[_Sleeper] = []
        self._led = False

    def take(self) -> None:
        me: _Sleeper | None = None
        with self._mutex:
            if self._led:
                me = _Sleeper()
                self._sleepers.append(me)
            self._led = True
        if me is not None:
            me.bell.acquire()
            if me.next is not None:
                me.next.bell.release()
            if not me.leads:
                return
        with self._mutex:
            answered, self._sleepers = self._sleepers, []
        time.sleep(COMMIT_SECONDS)
        for one, after in pairwise(answered):
            one.next = after
        with self._mutex:
            heir = self._sleepers.pop(0) if self._sleepers else None
            self._led = heir is not None
        if heir is not None:
            heir.leads = True
        for first in (*answered[:1], *filter(None, [heir])):
            first.bell.release()
