"""Who is at work on which connection: one guarded call at a time, or one inside the effect of the other.

Savepoints are a stack: whoever goes back to one of them takes along what others did on top of it, and the names of
two who know nothing of each other are the same.
"""

from __future__ import annotations

import threading
from weakref import ref

from samekey.core.call import Call
from samekey.core.errors import Misconfigured
from samekey.core.transaction import AsyncTransaction, Transaction
from samekey.guard.hold import lineage

# The innermost of them, by the connection's id, which stands as long as the performer is there.
_at_work: dict[int, ref[AtWork]] = {}
_mutex = threading.RLock()  # a hold that is thrown away leaves in the garbage collector, which may come in here


class AtWork:
    """A guarded call on a connection."""

    call: Call
    _transaction: Transaction | AsyncTransaction
    _working = _committing = False
    _waits = False  # as a hold that nobody has entered yet: its transaction may be over, and nobody told it
    _outer: ref[AtWork] | None = None  # who is at work on this connection around us

    def _arrive(self) -> AtWork | None:
        """Take the connection, or be refused. A hold in our way that waits to be entered is returned: look at it."""
        place = id(self._transaction.connection)
        with _mutex:
            known = _at_work.get(place)
            other = None if known is None else known()
            if other is not None and other._working and not other._has_committed():
                if other.call.attempt not in lineage():
                    if other._waits:
                        return other
                    raise occupied(other.call)
                self._outer = known
            self._working = True
            _at_work[place] = ref(self)
        return None

    def passed_by(self) -> None:
        """Another has gone past us, as a hold that waits: nothing of ours is left."""
        raise NotImplementedError

    def _has_committed(self) -> bool:
        """What a library calls as it commits (Django's `on_commit`) comes after us, not between."""
        return self._committing and not self._transaction.in_transaction

    def _depart(self) -> None:
        if self._working:
            place = id(self._transaction.connection)
            with _mutex:
                self._working = self._committing = False
                if _at_work.get(place) == ref(self):
                    del _at_work[place]
                    if self._outer is not None:
                        _at_work[place] = self._outer


def occupied(other: Call) -> Misconfigured:
    return Misconfigured(
        f"the connection is in the middle of another guarded call ({other.key}): one at a time, "
        "or one inside the effect of the other. Give each task and each thread a connection of its own"
    )
