"""A payment provider in this process: its books show how often an effect happened.

    provider = LedgerProvider(lose_answers=1)
    provider.charge(200, order="o-1")        # TimeoutError: charged, and the answer is lost
    provider.charge(200, order="o-1")        # a second charge: this provider was given no key
    assert provider.doubles() == {"o-1": 2}

It fails as real providers fail: it is slow, answers get lost, requests land after their callers gave up, old
declines are replayed under their key, keys are forgotten after a while, and a lookup may see a charge only some time
after it landed. Each is an option, counted and never random, so that a test does the same every time. Any thread may
call it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from samekey.core.boundary import Absent, Conflicting, Happened, Verdict


class Decline(Exception):
    """The provider declined, and nothing was charged."""


class InsufficientFunds(Decline):
    """A soft decline: it may work after a top-up. What a policy lists in `releases=`."""


class CardStolen(Decline):
    """A hard decline: it will never work. What a policy lists in `closes=`."""


class OtherRequest(Exception):
    """The provider knows this key from a request with another amount or order."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One line on the provider's books."""

    id: str
    amount: int
    order: str
    key: str | None
    reference: str | None
    lands_at: float  # on the provider's clock; before that no lookup finds it


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What the provider knows under a key."""

    amount: int
    order: str
    outcome: Charge | Decline
    at: float


class LedgerProvider:
    """A provider with books.

    `slow`               seconds between a request's arrival and its landing on the books
    `lose_answers`       the first so many charges are made, and their answers are lost (TimeoutError)
    `accept_then_late`   the first so many requests time out at once, and land `late_seconds` later all the same
    `funds`              what there is to charge; above it declines softly (InsufficientFunds) until `top_up`
    `stolen`             orders that are declined for good (CardStolen)
    `dedups`             a key charges once; without it keys are ignored
    `keeps_declines`     an old decline is replayed under its key, even after a top-up
    `forgets_after`      seconds after which a key is forgotten
    `stale_seconds`, `stale_calls`   a lookup sees a charge only that long, or so many lookups, after it landed
    `clock`, `sleep`     the provider's time; give a ManualClock and its `advance` so that no test waits

    >>> provider = LedgerProvider()
    >>> provider.charge(200, key="k-1", order="o-1").id
    'ch_1'
    >>> provider.charge(200, key="k-1", order="o-1").id     # a retry: the same charge
    'ch_1'
    >>> provider.count(order="o-1"), provider.doubles()
    (1, {})
    """

    def __init__(
        self,
        *,
        slow: float = 0.0,
        lose_answers: int = 0,
        accept_then_late: int = 0,
        late_seconds: float = 60.0,
        funds: int | None = None,
        stolen: Collection[str] = (),
        dedups: bool = True,
        keeps_declines: bool = False,
        forgets_after: float | None = None,
        stale_seconds: float = 0.0,
        stale_calls: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.requests = 0  # that arrived, charged or not
        self.lookups = 0
        self._mutex = threading.Lock()
        self._books: list[Charge] = []
        self._remembered: dict[str, _Remembered] = {}
        self._asked: Counter[str] = Counter()  # lookups that could have seen a charge, by charge id
        self._slow, self._sleep, self._clock = slow, sleep, clock
        self._lose_answers = lose_answers
        self._accept_then_late, self._late_seconds = accept_then_late, late_seconds
        self._decline_next = self._drop_next = 0
        self._lost_by: type[OSError] = TimeoutError
        self._funds, self._stolen = funds, frozenset(stolen)
        self._dedups, self._keeps_declines, self._forgets_after = dedups, keeps_declines, forgets_after
        self._stale_seconds, self._stale_calls = stale_seconds, stale_calls

    def charge(self, amount: int, *, key: str | None = None, reference: str | None = None, order: str = "") -> Charge:
        """Charge once for each call - or for each key, if this provider dedups and one is given.

        Raises a Decline when nothing was charged, and TimeoutError when the caller cannot know.
        """
        if self._slow:
            self._sleep(self._slow)
        with self._mutex:
            if self._drop_next > 0:
                self._drop_next -= 1
                raise TimeoutError("the provider did not answer")
            self.requests += 1
            outcome = self._recall(amount, key, order)
            if outcome is None:
                outcome = self._decide(amount, key, reference, order)
                if key is not None:
                    self._remembered[key] = _Remembered(amount, order, outcome, self._clock())
            if isinstance(outcome, Decline):
                raise type(outcome)(*outcome.args)
            if outcome.lands_at > self._clock():
                raise TimeoutError("the provider did not answer")
            if self._lose_answers > 0:
                self._lose_answers -= 1
                raise self._lost_by("the provider did not answer")
            return outcome

    def _recall(self, amount: int, key: str | None, order: str) -> Charge | Decline | None:
        """The earlier outcome under this key, if the provider still remembers and replays it."""
        known = self._remembered.get(key) if key is not None and self._dedups else None
        if known is None:
            return None
        if self._forgets_after is not None and self._clock() >= known.at + self._forgets_after:
            return None
        if (known.amount, known.order) != (amount, order):
            raise OtherRequest(f"the key {key!r} came with {known.amount} for {known.order!r} before")
        if isinstance(known.outcome, Decline) and not self._keeps_declines:
            return None
        return known.outcome

    def _decide(self, amount: int, key: str | None, reference: str | None, order: str) -> Charge | Decline:
        if order in self._stolen:
            return CardStolen(f"the card of {order!r} is stolen")
        if self._decline_next > 0:
            self._decline_next -= 1
            return InsufficientFunds(f"{amount} asked, too little there")
        if self._funds is not None and amount > self._funds:
            return InsufficientFunds(f"{amount} asked, {self._funds} there")
        if self._funds is not None:
            self._funds -= amount
        lands_at = self._clock()
        if self._accept_then_late > 0:
            self._accept_then_late -= 1
            lands_at += self._late_seconds
        charge = Charge(f"ch_{len(self._books) + 1}", amount, order, key, reference, lands_at)
        self._books.append(charge)
        return charge

    @property
    def late_seconds(self) -> float:
        """How long after its timeout a late request lands."""
        return self._late_seconds

    def top_up(self, amount: int) -> None:
        """More funds: the next charge may go through."""
        with self._mutex:
            self._funds = (self._funds or 0) + amount

    # -- trouble on demand: what a schedule does to the next request -------------------------------------------

    def decline_next(self) -> None:
        """Decline the next new request softly; the one after it goes through, as after a top-up."""
        with self._mutex:
            self._decline_next += 1

    def lose_next_answer(self, by: type[OSError] = TimeoutError) -> None:
        """Charge the next request and lose its answer: the caller gets this error."""
        with self._mutex:
            self._lose_answers += 1
            self._lost_by = by

    def drop_next(self) -> None:
        """Lose the next request itself: nothing is charged, and the caller gets the same error as for a lost answer."""
        with self._mutex:
            self._drop_next += 1

    def delay_next(self) -> None:
        """Let the next new request time out at once, and land `late_seconds` later all the same."""
        with self._mutex:
            self._accept_then_late += 1

    def heal(self) -> None:
        """Drop the trouble that no request has met yet."""
        with self._mutex:
            self._decline_next = self._lose_answers = self._accept_then_late = self._drop_next = 0
            self._lost_by = TimeoutError

    # -- asking the provider -------------------------------------------------------------------------------

    def find(self, reference: str) -> Charge | None:
        """The first charge with this reference or key that a lookup can see by now."""
        found = self.find_all(reference)
        return found[0] if found else None

    def find_all(self, reference: str) -> list[Charge]:
        """All of them: more than one is a double."""
        with self._mutex:
            self.lookups += 1
            return [one for one in self._landed() if reference in (one.reference, one.key) and self._visible(one)]

    def verdict(self, reference: str) -> Verdict:
        """The same as the verdict of a lookup: `Asks(lambda record: provider.verdict(record.provider_key()))`."""
        found = self.find_all(reference)
        if len(found) > 1:
            return Conflicting(tuple(one.id for one in found))
        return Happened(found[0].id) if found else Absent()

    def _visible(self, charge: Charge) -> bool:
        self._asked[charge.id] += 1
        return self._asked[charge.id] > self._stale_calls and self._clock() >= charge.lands_at + self._stale_seconds

    # -- the books -----------------------------------------------------------------------------------------

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The books: every charge that has landed, in order."""
        with self._mutex:
            return tuple(self._landed())

    @property
    def on_the_way(self) -> tuple[Charge, ...]:
        """Charges that were accepted and will land."""
        with self._mutex:
            return tuple(one for one in self._books if one.lands_at > self._clock())

    @property
    def accepted(self) -> tuple[Charge, ...]:
        """Both, in the order in which they came: what cannot be undone."""
        with self._mutex:
            return tuple(self._books)

    def count(self, *, order: str | None = None, key: str | None = None, reference: str | None = None) -> int:
        """How many charges landed, of this order, key or reference; of all without one."""
        return sum(
            order in (None, one.order) and key in (None, one.key) and reference in (None, one.reference)
            for one in self.charges
        )

    def doubles(self) -> dict[str, int]:
        """Orders that were charged more than once, and how often: what must be empty at the end of a test.

        Charges on their way count: they will land.
        """
        with self._mutex:
            counts = Counter(one.order for one in self._books)
        return {order: count for order, count in counts.items() if count > 1}

    def _landed(self) -> list[Charge]:
        now = self._clock()
        return [one for one in self._books if one.lands_at <= now]
