"""One seed, one run: a few client processes, a store, a provider, and whatever goes wrong between them.

Theory. The clients are real guards (`_stepping.py`), the store is the real register - in one world of four behind the
real layered store - and the promises are those of `schedules.py`, held against every write and every end. Events
wait in a heap under the time at which they happen; each of them decides what follows by drawing numbers. A number
near zero always means the harmless thing - no fault, no delay - so a run whose numbers are replaced by zeros is a
shorter story of the same kind.

Swarm: each run first draws which kinds of fault it knows at all; runs with few kinds go deeper into those.
At last the faults stop, what is under way is lost, and a fresh caller comes, which must get through.

A failover puts an asynchronous replica in the store's place: the last writes are gone, and the tokens that went with
them come again. What was promised then is less (`LOST`); an effect behind a provider that dedups is still single.

Three windows are not played, because guarantees.md promises nothing in them: a proxy's copy of a request that was
declined lands after the customer topped up; a failover loses the round in which a new provider key was made; and a key
that was freed lives again while the provider remembers a decline of its first life.

    stage.py      the heap and the clock; clients, their tasks, crashes, pauses, cancellations
    durable.py    the store that says "go": its register, its clock, its waiters, a replica that takes over
    front.py      a front before it: forgets, goes back in time, is away, is told late
    provider.py   requests on their way, and the books
    promises.py   what is held against which event
    faults.py     which faults there are, how likely, for how long
"""

from __future__ import annotations

from samekey.testing._simulation.promises import Broken
from samekey.testing._simulation.stage import BOUNDARIES, Simulation

__all__ = ["BOUNDARIES", "Broken", "Simulation"]
