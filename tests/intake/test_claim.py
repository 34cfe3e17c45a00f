"""C1 to C7: the claim alone, on Redis and on SQLite, for threads and for tasks.

Two nodes are two `Claims` with a guard each: they share the store and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from samekey.core.policy import Policy
from samekey.guard.guards import AsyncGuard, Guard
from samekey.intake import Settings
from samekey.intake import commands as c
from samekey.intake.claim import AsyncClaims, Claims
from tests.intake.conftest import _databases

LONG = 60.0  # seconds that no test waits for
BRIEF = 0.2
SHORT_LEASE = 1.0


@dataclass
class Nodes:
    """Makes nodes on one store, each in one of the two colours, and calls both the same way."""

    address: str
    colour: str
    made: list[Any] = field(default_factory=list)

    def node(self, **settings: Any) -> Node:
        # The claim gives a store this long to answer: a busy machine must not look like a store that is gone.
        made = Node(self.address, self.colour, Settings(redis_budget=20.0, **settings))
        self.made.append(made)
        return made


class Node:
    def __init__(self, address: str, colour: str, settings: Settings) -> None:
        self._loop: Any = None
        if colour == "threads":
            self.claims: Any = Claims(Guard(address, policy=Policy()), settings)
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.claims = AsyncClaims(AsyncGuard(address, policy=Policy()), settings)

    def _done(self, work: Any, command: Any) -> Any:
        if self._loop:
            return asyncio.run_coroutine_threadsafe(work(command), self._loop).result(LONG)
        # A thread of its own, as each trigger has: one that holds a claim does not wait for itself.
        thread, found = in_thread(lambda: work(command))
        thread.join(LONG)
        return found[0]

    def claim(self, key: str = "k", *, patience: float = LONG, fingerprint: str = "f", generation: int = 0) -> Any:
        command = c.Claim("dev", key, generation, fingerprint, patience, 3600.0)
        return self._done(self.claims.claim_or_await, command)

    def publish(self, claimed: Any, run_id: str) -> bool | None:
        done: bool | None = self._done(self.claims.publish_claim, c.Publish(claimed.hold, run_id))
        return done

    def release(self, claimed: Any) -> None:
        self._done(self.claims.release_claim, c.Release(claimed.hold, RuntimeError("the pipeline failed")))

    def pause(self) -> None:
        """As a process that is stopped: its leases are renewed no more, and it can still go on later."""
        self.claims.guard.as_new_process()

    def close(self) -> None:
        if not self._loop:
            self.claims.close()
        else:
            asyncio.run_coroutine_threadsafe(self.claims.close(), self._loop).result(LONG)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@pytest.fixture(params=["redis-threads", "redis-tasks", "sqlite-threads", "sqlite-tasks"])
def nodes(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Nodes]:
    store, colour = request.param.split("-")
    if store == "redis":
        address = request.getfixturevalue("shared_redis").url(next(_databases))
    else:
        address = f"sqlite:///{tmp_path}/claims.db"
    made = Nodes(address, colour)
    yield made
    for one in made.made:
        one.close()


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def test_c1_the_first_wins(nodes):
    node = nodes.node()

    assert isinstance(node.claim(), c.Claimed)
    assert isinstance(node.claim("another key"), c.Claimed)
    assert isinstance(node.claim(generation=1), c.Claimed)
    assert node.claims.counts == {"wins": 3, "waits": 0, "timeouts": 0, "takeovers": 0, "errors": 0}


def test_c2_a_settled_claim_is_answered_at_once(nodes):
    one, other = nodes.node(), nodes.node()
    assert one.publish(one.claim(), "run_1") is True

    assert other.claim(patience=0.0) == c.Cached("run_1")
    assert one.claim(patience=0.0) == c.Cached("run_1")
    assert isinstance(other.claim(fingerprint="of another payload"), c.Mismatched)


def test_c3_a_loser_waits_until_the_claim_is_settled(nodes):
    one, other = nodes.node(), nodes.node()
    held = one.claim()
    threads = [in_thread(node.claim) for node in (other, other, one)]
    for thread, found in threads:
        thread.join(0.1)
        assert thread.is_alive(), found
    assert one.publish(held, "run_1") is True

    for thread, found in threads:
        thread.join(LONG)
        assert found == [c.Cached("run_1")]


def test_c4_a_waiter_takes_a_claim_whose_lease_has_ended(nodes):
    one, other = nodes.node(claim_lease=SHORT_LEASE), nodes.node()
    assert isinstance(one.claim(), c.Claimed)
    one.pause()
    taken = other.claim()

    assert isinstance(taken, c.Claimed)
    assert other.claims.counts["takeovers"] == 1
    assert other.publish(taken, "run_1") is True


def test_c5_a_claim_that_is_never_settled_times_out_after_the_patience(nodes):
    one, other = nodes.node(), nodes.node()
    held = one.claim()
    began = time.monotonic()
    answer = other.claim(patience=0.3)

    assert answer == c.TimedOut()
    assert time.monotonic() - began >= 0.3
    assert other.claims.counts["timeouts"] == 1
    assert one.publish(held, "run_1") is True


def test_c6_publish_writes_the_run_id_and_a_late_one_changes_nothing(nodes):
    """The holder was paused, and another trigger took the claim over and settled it."""
    paused, other, third = nodes.node(claim_lease=SHORT_LEASE), nodes.node(), nodes.node()
    late = paused.claim(patience=BRIEF)  # also what a late publish waits for the other attempt
    paused.pause()
    taken = other.claim()

    assert paused.publish(late, "run_of_the_paused") is False
    assert third.claim(patience=0.0) == c.TimedOut()
    assert other.publish(taken, "run_1") is True
    assert third.claim() == c.Cached("run_1")


def test_c7_release_frees_the_key_and_a_late_one_changes_nothing(nodes):
    paused, other, third = nodes.node(claim_lease=SHORT_LEASE), nodes.node(), nodes.node()
    free = third.claim("freed")
    thread, found = in_thread(lambda: other.claim("freed"))
    third.release(free)
    thread.join(LONG)
    assert isinstance(found[0], c.Claimed)

    late = paused.claim(patience=BRIEF)
    paused.pause()
    taken = other.claim()
    paused.release(late)
    assert third.claim(patience=0.0) == c.TimedOut()
    assert other.publish(taken, "run_1") is True
    assert third.claim() == c.Cached("run_1")


def test_a_late_publish_after_the_claim_was_settled_is_not_the_winner(nodes):
    paused, other = nodes.node(claim_lease=SHORT_LEASE), nodes.node()
    late = paused.claim(patience=BRIEF)
    paused.pause()
    assert other.publish(other.claim(), "run_1") is True

    assert paused.publish(late, "run_1") is False
    assert other.claim() == c.Cached("run_1")
