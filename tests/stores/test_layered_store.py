"""A layered store keeps the contract of a store, whatever its front does; and what is its own."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

import anyio
import pytest

from samekey import Guard, KeyReused, Misconfigured, ResultNotKept, StoreUnavailable
from samekey.core.commands import Free, Read, Redact, Renew, Settle, Wait
from samekey.core.key import make_key
from samekey.core.layers import Front, MayStillReplay
from samekey.core.states import Role, State
from samekey.stores import layered
from samekey.stores.layered import AsyncLayeredStore, LayeredStore
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing.clock import ManualClock
from samekey.testing.stores import AsyncStoreSuite, StoreSuite
from samekey.testing.stores.scene import A, B, Scene
from tests.guard import helpers
from tests.stores.memory_front import AsyncMemoryFront, MemoryFront


class TestLayeredStore(StoreSuite):
    survives_process = False
    random_steps = 3_000

    def setup_method(self):
        self.clock = ManualClock()
        self.front, self.back = MemoryFront(self.clock), MemoryStore(self.clock)

    def make_store(self):
        return LayeredStore(self.front, self.back)

    def pass_seconds(self, seconds):
        self.clock.advance(seconds)


@pytest.mark.variant
class TestLayeredStoreWithAForgetfulFront(TestLayeredStore):
    """It loses each word as soon as it has it."""

    def setup_method(self):
        super().setup_method()
        self.front.words = Forgetful()


class Forgetful(dict[bytes, tuple[bytes, float]]):
    def __setitem__(self, digest: bytes, word: tuple[bytes, float]) -> None:
        """Never mind."""


class TestAsyncLayeredStore(AsyncStoreSuite):
    survives_process = False

    def setup_method(self):
        self.front, self.back = MemoryFront(), MemoryStore()

    async def make_store(self):
        return AsyncLayeredStore(AsyncMemoryFront(self.front), AsyncMemoryStore(self.back))


# -- what is its own ---------------------------------------------------------------------------------------------------

scene = Scene(0.02)


class Counting(MemoryStore):
    """A durable store that tells what it was asked."""

    def __init__(self, clock=None):
        super().__init__(clock)
        self.asked = []

    def carry_out(self, command):
        if command.verb in ("open", "read"):
            self.asked.append(command.verb)
        return super().carry_out(command)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def front(clock):
    return MemoryFront(clock)


@pytest.fixture
def back(clock):
    return Counting(clock)


def guard_on(front, back, **options):
    return Guard(LayeredStore(front, back, **options))


def test_a_settled_key_is_replayed_without_a_word_to_the_durable_store(front, back):
    first, second = guard_on(front, back), guard_on(front, back)
    told = first.run("charge", lambda: 7, key="o-1", payload=1)
    back.asked.clear()

    again = second.run("charge", pytest.fail, key="o-1", payload=1)

    assert (told.result, again.result, again.replayed) == (7, 7, True)
    assert back.asked == []


def test_what_is_redacted_past_the_front_is_replayed_no_longer_than_its_ttl(front, back, clock):
    """A command, or a process from before the front was there, knows the durable store alone."""
    guard = guard_on(front, back, front_ttl=5)
    guard.run("charge", lambda: 7, key="o-1", payload=1)
    seen = back.carry_out(Read(make_key("charge", "o-1")))
    back.carry_out(Redact(seen, by="ann", why="asked for"))

    assert guard.run("charge", pytest.fail, key="o-1", payload=1).result == 7
    clock.advance(5)
    with pytest.raises(ResultNotKept):
        guard.run("charge", pytest.fail, key="o-1", payload=1)


def test_another_payload_is_refused_by_the_front_too(front, back):
    guard_on(front, back).run("charge", lambda: 7, key="o-1", payload={"amount": 200})

    with pytest.raises(KeyReused, match="amount"):
        guard_on(front, back).run("charge", pytest.fail, key="o-1", payload={"amount": 500})


@pytest.mark.parametrize("trouble", ["away", "forgets", "damaged", "foreign", "short"])
def test_a_front_in_trouble_costs_speed_and_nothing_else(front, back, trouble):
    guard = guard_on(front, back)
    guard.run("charge", lambda: 7, key="o-1", payload=1)
    if trouble == "away":
        front.away = True
    elif trouble == "forgets":
        front.words.clear()
    else:
        for digest, (word, until) in list(front.words.items()):
            # Cut; sealed by somebody who does not know the durable store; or no word at all.
            says = {"damaged": word[:-1], "foreign": word[:19] + bytes(16) + word[35:], "short": b"x"}[trouble]
            front.words[digest] = (says, until)

    assert guard.run("charge", pytest.fail, key="o-1", payload=1).result == 7


def test_after_a_failover_of_the_durable_store_its_old_words_say_nothing(front, back):
    guard = guard_on(front, back)
    guard.run("charge", lambda: 7, key="o-1", payload=1)
    back._incarnation = "promoted"
    back.asked.clear()

    assert guard.run("charge", pytest.fail, key="o-1", payload=1).replayed
    assert back.asked == ["open"]


def test_the_front_never_says_go(front, back):
    """Its copy of our own claim is not permission to run: only the durable store's answer is."""
    store = LayeredStore(front, back)
    held = store.carry_out(scene.opening(by=A))
    back._records.clear()  # the claim is gone where it counts

    again = store.carry_out(scene.opening(by=A))

    assert again.token > held.token, "answered by the front"


def test_whoever_waits_and_learns_better_tells_the_front(front, back, monkeypatch):
    """A front that went back to a hold that is gone: one caller finds out, and nobody else waits for it."""
    monkeypatch.setattr(layered, "TRUTH_SECONDS", 0.0)
    store = LayeredStore(front, back)
    held = store.carry_out(scene.opening(by=A))
    back._records.clear()

    assert store.wait(Wait(held), 5.0) is None
    assert store.carry_out(scene.opening(by=B)).attempt == B


async def test_and_so_in_the_other_colour(monkeypatch):
    monkeypatch.setattr(layered, "TRUTH_SECONDS", 0.0)
    back = AsyncMemoryStore()
    store = AsyncLayeredStore(AsyncMemoryFront(), back)
    held = await store.carry_out(scene.opening(by=A))
    await back.carry_out(Settle(held, Role.HOLDER, State.COMPLETED, by=A, result=b"r", retain_seconds=60.0))

    seen = await store.wait(Wait(held), 5.0)
    assert seen is not None
    assert seen.state is State.COMPLETED
    assert (await store.carry_out(scene.opening(by=B))).state is State.COMPLETED


def test_those_who_come_while_it_is_held_wait_at_the_front(front, back):
    store = LayeredStore(front, back)
    store.carry_out(scene.opening(by=A))
    back.asked.clear()

    seen = store.carry_out(scene.opening(by=B))

    assert (seen.state, seen.attempt) == (State.STARTED, A)
    assert back.asked == []


def test_a_mark_makes_the_second_one_linger_and_its_word_wakes_it(front, back):
    key = scene.opening(by=A).key
    front.look(key.digest, mark=True)  # somebody is on the way
    store = LayeredStore(front, back)
    with ThreadPoolExecutor() as pool:
        second = pool.submit(store.carry_out, scene.opening(by=B))
        held = back.carry_out(scene.opening(by=A))
        front.put(key.digest, Front(back.incarnation)._sealed(held, 1, b""), 60.0)

        assert second.result(5).attempt == A


def test_what_is_freed_is_not_replayed_any_more(front, back):
    guard = guard_on(front, back)
    guard.run("charge", lambda: 7, key="o-1", payload=1)
    seen = guard.store.carry_out(Read(make_key("charge", "o-1")))
    stale = dict(front.words)

    guard.store.carry_out(Free(seen, "ada", "refunded"))
    for digest, (word, until) in stale.items():
        front.put(digest, word, until)  # a fill that comes late

    assert guard.run("charge", lambda: 8, key="o-1", payload=1).result == 8


def test_a_word_told_too_late_is_not_believed(front, back, clock):
    """Whoever sleeps between asking and telling tells it in vain: it would outlive the tombstone."""
    guard = guard_on(front, back, front_ttl=10)
    guard.run("charge", lambda: 7, key="o-1", payload=1)
    stale = dict(front.words)
    seen = guard.store.carry_out(Read(make_key("charge", "o-1")))
    guard.store.carry_out(Free(seen, "ada", "refunded"))
    clock.advance(11)  # the tombstone is gone
    for digest, (word, until) in stale.items():
        front.put(digest, word, until)

    assert guard.run("charge", lambda: 8, key="o-1", payload=1).result == 8


def test_no_clock_of_ours_makes_a_word_live_longer(front, back, clock, monkeypatch):
    """A process whose clock runs fast (or that was asleep) dates its words by what the front's clock showed it."""

    def effect():
        monkeypatch.setattr(layered, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 3600))
        return 7

    guard_on(front, back, front_ttl=10).run("charge", effect, key="o-1", payload=1)

    assert [until <= clock() + 10 for _, until in front.words.values()] == [True]


def test_a_long_hold_is_waited_for_at_the_front(front, back, clock):
    """Each renewal reads the front's clock again, so the copy of a hold lives as long as the hold."""
    store = LayeredStore(front, back, front_ttl=10)
    held = store.carry_out(scene.opening(by=A))
    for _ in range(5):
        clock.advance(7)
        back.asked.clear()
        renewed = store.carry_out(Renew(held, 30.0))
        assert renewed is not None
        assert renewed.lease_live
        assert LayeredStore(front, back, front_ttl=10).carry_out(scene.opening(by=B)).lease_live

    assert back.asked == []


def test_a_command_says_when_the_front_could_not_be_told(front, back):
    guard = guard_on(front, back)
    guard.run("charge", lambda: 7, key="o-1", payload=1)
    seen = guard.store.carry_out(Read(make_key("charge", "o-1")))
    front.away = True

    with pytest.raises(MayStillReplay, match="for up to 60 s"):
        guard.store.carry_out(Redact(seen, "ada", "asked to"))
    assert guard.store.carry_out(Read(seen.key)).result is None  # done all the same


@pytest.mark.parametrize("how", ["away", "told too late"])
def test_of_several_front_ttls_the_longest_counts(front, back, clock, how):
    """A command knows only its own: what it frees may be replayed for as long as another process believes the front."""
    patient, hasty = LayeredStore(front, back, front_ttl=3600), LayeredStore(front, back, front_ttl=10)
    guard = Guard(patient)
    guard.run("charge", lambda: 7, key="o-1", payload=1)
    stale = dict(front.words)
    seen = patient.carry_out(Read(make_key("charge", "o-1")))
    assert seen is not None
    if how == "away":
        front.away = True
        with pytest.raises(MayStillReplay, match="for up to 10 s"):
            hasty.carry_out(Free(seen, "ada", "refunded"))
        front.away = False
    else:
        hasty.carry_out(Free(seen, "ada", "refunded"))
        clock.advance(11)  # its tombstone is gone, and a process of the other kind that slept tells what it knew
        for digest, (word, until) in stale.items():
            front.put(digest, word, until)

    clock.advance(60)
    assert guard.run("charge", lambda: 8, key="o-1", payload=1).replayed
    clock.advance(3600)
    assert guard.run("charge", lambda: 8, key="o-1", payload=1).result == 8


def test_while_the_front_is_away_it_is_left_alone(front, back):
    store = LayeredStore(front, back)
    store.carry_out(scene.opening(by=A))
    front.away = True
    front.calls.clear()

    for _ in range(50):
        store.carry_out(Read(scene.opening(by=A).key))
        store.carry_out(scene.opening(by=B))

    assert len(front.calls) < 5


class Cold(MemoryStore):
    """Its incarnation is known after a self-check; the first ones fail. Each ends when all callers have come."""

    def __init__(self, *, callers: int, failing: int = 0) -> None:
        super().__init__()
        self.checks, self._failing = 0, failing
        self._come, self._callers = list[int](), callers

    def came(self, number: int) -> None:
        self._come.append(number)

    @property
    def incarnation(self):
        return super().incarnation if self.checks > self._failing else ""

    def health(self):
        helpers.until(lambda: len(self._come) == self._callers)
        self.checks += 1
        if self.checks <= self._failing:
            raise StoreUnavailable("not yet")
        return super().health()


def test_of_many_first_callers_one_asks_for_the_incarnation_of_the_durable_store():
    back = Cold(callers=50)
    store = LayeredStore(MemoryFront(), back)

    def come(number):
        back.came(number)
        return store.carry_out(scene.opening(f"k-{number}", by=A))

    with ThreadPoolExecutor(50) as pool:
        records = list(pool.map(come, range(50)))

    assert (back.checks, len({record.fence for record in records})) == (1, 50)


def test_of_many_first_tasks_one_asks_for_the_incarnation_of_the_durable_store():
    class Slow(AsyncMemoryStore):
        checks = 0

        @property
        def incarnation(self):
            return super().incarnation if self.checks else ""

        async def health(self):
            await anyio.wait_all_tasks_blocked()  # every other task waits for this answer
            self.checks += 1
            return await super().health()

    back = Slow(MemoryStore())

    async def crowd():
        store = AsyncLayeredStore(AsyncMemoryFront(MemoryFront()), back)
        return await asyncio.gather(*(store.carry_out(scene.opening(f"k-{number}", by=A)) for number in range(50)))

    records = asyncio.run(crowd())
    assert (back.checks, len({record.fence for record in records})) == (1, 50)


def test_callers_whose_wait_for_a_self_check_ended_in_its_failure_make_their_own():
    back = Cold(callers=5, failing=1)
    store = LayeredStore(MemoryFront(), back)
    outcomes = []

    def come(number):
        back.came(number)
        try:
            store.carry_out(scene.opening(f"k-{number}", by=A))
            outcomes.append("claimed")
        except StoreUnavailable:
            outcomes.append("not yet")

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(come, range(5)))

    assert sorted(outcomes) == ["claimed"] * 4 + ["not yet"]


def test_the_address_of_two_stores_is_both_with_a_space_between():
    with pytest.raises(Misconfigured, match="front"):
        Guard("memory:// memory://").run("charge", lambda: 7, key="o-1", payload=1)


def test_the_address_of_the_front_says_how_old_an_answer_may_be():
    """No server is asked: its health is the memory store's."""
    with Guard("redis://127.0.0.1:1?front_ttl=5 memory://") as guard:
        assert ("front_ttl", "5 s") in guard.store.health().facts


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("redis://h?front_ttl=soon memory://", "a number of seconds"),
        ("redis://h?front_ttl=0 memory://", "how old an answer may be"),
        ("redis://h?front_ttl=5", "needs a database after"),
    ],
)
def test_a_front_ttl_that_cannot_be(address, told):
    with pytest.raises(Misconfigured, match=told):
        Guard(address).store.health()


@pytest.mark.parametrize("wrong", ["5", None, True, Decimal(5), 0, -1, math.nan, math.inf, timedelta(days=2)], ids=str)
def test_a_front_ttl_that_is_no_time_is_told_in_one_sentence(wrong):
    with pytest.raises(Misconfigured, match="how old an answer may be"):
        LayeredStore(MemoryFront(), MemoryStore(), front_ttl=wrong)


def test_a_front_ttl_may_be_a_timedelta():
    """Like every other time that is given."""
    store = LayeredStore(MemoryFront(), MemoryStore(), front_ttl=timedelta(minutes=1))

    assert ("front_ttl", "60 s") in store.health().facts
