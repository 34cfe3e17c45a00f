"""Crowds, exceptions, hang-ups and stores that are down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from samekey import AsyncGuard, Guard, Opaque, Policy, Repeatable, State, current
from samekey.testing.faulty import AsyncFaultyStore, Fault, FaultyStore
from samekey.testing.http.drivers import Got, together
from samekey.testing.http.scene import (
    QUICK,
    SMALL,
    TEXT,
    Breaking,
    Called,
    Ending,
    Said,
    Scene,
    Shop,
    problem,
    same_answer,
)

T = TypeVar("T")


class Slow:
    """A handler that waits to be let on."""

    def __init__(self) -> None:
        self.shop = Shop()
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, called: Called) -> Said:
        self.entered.set()
        assert self.go.wait(20)
        return self.shop(called)

    def during(self, work: Callable[[], T]) -> Callable[[], T]:
        """This work, done while the handler runs; the handler goes on afterwards."""

        def late() -> T:
            assert self.entered.wait(20)
            try:
                return work()
            finally:
                self.go.set()

        return late


class Trouble(Scene):
    def test_many_at_once_are_one_effect(self) -> None:
        """C01: everybody gets the one answer."""
        site, shop = self.open_shop(waiters_max=8)
        got = together(*[site.post] * 8)

        assert shop.count == 1
        assert {(one.status, one.body) for one in got} == {(201, b'{"charge": 1}')}
        assert [one.header("idempotent-replayed") for one in got].count("true") == 7

    def test_the_loser_waits_for_the_answer(self) -> None:
        slow = Slow()
        site = self.open(slow)

        def late() -> Got:
            assert slow.entered.wait(20)
            return site.post()

        first, second, _ = together(site.post, late, slow.during(lambda: None))
        same_answer(first, second)
        assert slow.shop.count == 1

    def test_out_of_patience_the_loser_gets_retry_after(self) -> None:
        slow = Slow()
        site = self.open(slow, policy=QUICK)

        first, second = together(site.post, slow.during(site.post))

        assert (first.status, second.status, problem(second)) == (201, 409, "in-progress")
        assert 1 <= int(second.header("retry-after") or 0) <= 5
        same_answer(first, site.post())

    def test_losers_that_wait_leave_threads_to_other_requests(self) -> None:
        """Where `waiters_max` requests wait already, a loser is answered at once."""
        slow = Slow()
        site = self.open(slow, waiters_max=0, policy=Policy(patience=60))

        first, second = together(site.post, slow.during(site.post))

        assert (first.status, second.status, problem(second)) == (201, 409, "in-progress")
        assert int(second.header("retry-after") or 0) >= 1
        same_answer(first, site.post())

    def test_a_mismatch_is_answered_before_in_progress(self) -> None:
        """C46: 422 and not 409, while the first one still runs."""
        slow = Slow()
        site = self.open(slow, policy=QUICK)

        _, second = together(site.post, slow.during(lambda: site.post(body={"amount": 500})))

        assert (second.status, problem(second)) == (422, "key-reused")

    def test_other_keys_are_not_in_the_way(self) -> None:
        """C67: load on other keys does not cause a 409."""
        slow = Slow()
        site = self.open(lambda called: slow(called) if called.path == "/slow" else slow.shop(called), policy=QUICK)
        others = slow.during(lambda: [site.post(key=f"other-{number}").status for number in range(10)])
        _, statuses = together(lambda: site.post("/slow"), others)

        assert statuses == [201] * 10

    def test_an_exception_is_a_doubt_with_a_way_out(self) -> None:
        """C23: never "in progress" for ever. The exception leaves unchanged; the next try gets the record's state."""
        site, shop = self.open_shop(ValueError("boom"), Said(201))
        first, second = site.post(), site.post()
        record = site.record()

        assert (first.status, second.status, problem(second), shop.count) == (500, 409, "in-doubt", 1)
        assert record is not None and (record.state, record.error) == (State.IN_DOUBT, "ValueError")
        assert b"samekey" not in second.body.split(b'"detail"')[1]  # nothing of the store, no command lines

    def test_an_exception_under_repeatable_runs_again(self) -> None:
        site, shop = self.open_shop(ValueError("boom"), Said(201), boundary=Repeatable())

        assert [site.post().status, site.post().status, shop.count] == [500, 201, 2]

    def test_an_exception_the_policy_knows_frees_the_key(self) -> None:
        site, shop = self.open_shop(
            ConnectionRefusedError("refused"), Said(201), policy=Policy(releases=(ConnectionRefusedError,))
        )

        assert [site.post().status, site.post().status, shop.count] == [500, 201, 2]

    def test_the_mark_of_a_plain_handler_is_written_before_it_goes_on(self) -> None:
        """Under an async framework a plain `def` handler runs in a thread: `sending()` there is no less a write."""
        shop, marks = Shop(TimeoutError("no answer from the provider")), list[bool]()

        def handle(called: Called) -> Said:
            held = current()
            held.sending()
            marks.append(held.begun)
            return shop(called)

        site = self.open(handle, boundary=Opaque(marked=True))
        first, second = site.post(), site.post()
        record = site.record()

        assert (first.status, second.status, problem(second)) == (500, 409, "in-doubt")
        assert (shop.count, marks) == (1, [True])
        assert record is not None and record.begun_at is not None

    def test_a_client_that_hangs_up_in_its_body_leaves_nothing(self) -> None:
        """Nothing is claimed before the body is complete."""
        site, shop = self.open_shop()
        for chunked, terminated in ((False, False), (False, True), (True, True)):
            site.post(cut=True, chunked=chunked, terminated=terminated)

            assert (shop.count, site.record()) == (0, None)
        assert site.post(terminated=True).status == 201

    def test_a_client_that_hangs_up_later_changes_nothing(self) -> None:
        """C21: the effect is recorded, and the retry gets its answer."""
        site, shop = self.open_shop()
        site.post(hangs_up=True)
        record, second = site.record(), site.post()

        assert record is not None and record.state is State.COMPLETED
        assert (second.status, second.body, shop.count) == (201, b'{"charge": 1}', 1)

    def test_a_client_that_hangs_up_in_a_stream_changes_nothing(self) -> None:
        site, shop = self.open_shop(Said(200, [b"one ", b"two"], TEXT))
        site.post(hangs_up=True)

        assert (site.post().body, shop.count) == (b"one two", 1)

    def test_a_client_that_hangs_up_in_a_long_stream_is_not_served_twice(self) -> None:
        """A stream that reached its end is completed; one that was cut short at an unknown place is a doubt."""
        for kind in ("text/plain", "text/event-stream"):
            parts = Ending([b"x" * 600, b"y" * 600, b"z"])
            site, shop = self.open_shop(Said(200, parts, (("Content-Type", kind),)), policy=SMALL)
            site.post(hangs_up=True)
            record, second = site.record(), site.post()

            assert record is not None and record.state is (State.COMPLETED if parts.ended else State.IN_DOUBT)
            assert (problem(second), shop.count) == ("result-not-kept" if parts.ended else "in-doubt", 1)

    def test_a_handler_may_say_that_it_is_done_before_its_stream(self) -> None:
        """Then its client may leave whenever it likes."""

        def handle(called: Called) -> Said:
            current().keep()
            return Said(200, [b"x" * 600, b"y" * 600, b"z"], TEXT)

        site = self.open(handle, policy=SMALL)
        site.post(hangs_up=True)
        record = site.record()

        assert record is not None and record.state is State.COMPLETED

    def test_a_stream_that_breaks_is_a_doubt(self) -> None:
        """While it is gathered its end is the application's end."""
        site, shop = self.open_shop(Said(200, Breaking([b"one ", b"two"]), TEXT), Said(201))
        site.post()
        record, second = site.record(), site.post()

        assert record is not None and record.state is State.IN_DOUBT
        assert (problem(second), shop.count) == ("in-doubt", 1)

    def test_an_answer_shorter_than_declared_is_a_doubt(self) -> None:
        """Whole or streamed, kept or too long to keep: fewer bytes than Content-Length are not the answer."""
        headers = (("Content-Length", "10"), ("Content-Type", "text/plain"))
        for body in (b"12345", [b"123", b"45"]):
            for room in (1000, 4):
                site, shop = self.open_shop(Said(201, body, headers), policy=Policy(result_max_bytes=room))
                first, second = site.post(), site.post()

                assert first.status == 500 or first.header("content-length") == "10"  # its client sees it, too
                assert (second.status, problem(second), shop.count) == (409, "in-doubt", 1)

    def test_a_long_stream_that_breaks_is_a_doubt(self) -> None:
        """So is one of events: what it did is unknown, and it is not served twice."""
        for kind in ("text/plain", "text/event-stream"):
            site, shop = self.open_shop(
                Said(200, Breaking([b"x" * 600, b"y" * 600]), (("Content-Type", kind),)), Said(201), policy=SMALL
            )
            site.post()
            record, second = site.record(), site.post()

            assert record is not None and record.state is State.IN_DOUBT
            assert (problem(second), shop.count) == ("in-doubt", 1)

    def test_a_store_that_is_down_refuses(self) -> None:
        """C27: nothing runs, and the client gets Retry-After."""
        site, shop = self.open_shop(guard=self._faulty(Fault("open")))
        first, second = site.post(), site.post()

        assert (first.status, problem(first), first.header("retry-after")) == (503, "store-unavailable", "1")
        assert (second.status, shop.count) == (201, 1)

    def test_a_store_that_is_down_may_be_passed_by_and_says_so(self) -> None:
        site, shop = self.open_shop(guard=self._faulty(Fault("open")), policy=Policy(store_down="run"))
        got = site.post()

        assert (got.status, got.header("idempotency-stored"), shop.count) == (201, "false", 1)

    def _faulty(self, *faults: Fault) -> Any:
        inner = self.make_guard().store
        if self.protocol == "asgi":
            return AsyncGuard(AsyncFaultyStore(inner, list(faults)))
        return Guard(FaultyStore(inner, list(faults)))
