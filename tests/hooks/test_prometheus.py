"""Metrics: what the table says, from 0 on, and no more series than it bounds."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from samekey import AsyncGuard, Guard, Held, InDoubt, Keyed, KeyReused, Policy, Repeatable, StoreUnavailable
from samekey.core.events import OUTCOMES
from samekey.core.ports import Event
from samekey.hooks import prometheus
from samekey.hooks.metrics import METRICS, STORE_ERROR_KINDS
from samekey.hooks.prometheus import PrometheusHook
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing.faulty import AsyncFaultyStore, Fault, FaultyStore
from tests.ops.scene import LEASE_SECONDS, Clock, Scene

pytestmark = pytest.mark.usefixtures("read_always")


@pytest.fixture
def read_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "READ_EVERY_SECONDS", 0.0)


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Each series as Prometheus reads it."""
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_every_series_is_there_at_0_before_the_first_call():
    registry = CollectorRegistry()
    guard = Guard("memory://", hooks=[PrometheusHook(registry)])
    guard.once(name="charge", key="order")(lambda order: order)
    series = shown(registry)

    for metric in METRICS:
        for name in metric.series:
            assert any(one.startswith(name) for one in series), name
    for outcome in OUTCOMES:
        assert series[f'samekey_attempts_total{{operation="charge",outcome="{outcome}",source=""}}'] == 0
    for kind in (*STORE_ERROR_KINDS.values(), "other"):
        assert series[f'samekey_store_errors_total{{kind="{kind}",operation="charge"}}'] == 0
    assert {value for name, value in series.items() if "_created" not in name} == {0.0}


def test_the_types_and_texts_are_those_of_the_table():
    registry = CollectorRegistry()
    PrometheusHook(registry)
    found = {family.name: family for family in registry.collect()}

    for metric in METRICS:
        family = found[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_what_happens_is_counted():
    registry, clock = CollectorRegistry(), Clock()
    store = MemoryStore(clock)
    guard = Guard(store, policy=Policy(lease=LEASE_SECONDS), hooks=[PrometheusHook(registry)], source="region")

    def run(key: str, effect: Any = lambda: "done", payload: Any = 1, **options: Any) -> Any:
        return guard.run("charge", effect, key=key, payload=payload, attributes={"region": "eu"}, **options)

    run("a")
    run("a")
    with pytest.raises(KeyReused):
        run("a", payload=2)
    with pytest.raises(ZeroDivisionError):
        run("b", lambda: 1 / 0)
    clock.advance(7)
    with pytest.raises(InDoubt):
        run("b")
    held = guard.hold("charge", key="c", payload=1, boundary=Keyed(window=3600))
    assert isinstance(held, Held)
    with held:
        held.sending()
        held.complete("done")
    late(guard, store, clock)
    series = shown(registry)

    attempts = 'samekey_attempts_total{{operation="charge",outcome="{}",source="eu"}}'
    assert [series[attempts.format(name)] for name in ("new", "replayed", "reused", "in_doubt")] == [1, 1, 1, 2]
    of_charge = '{operation="charge"}'
    assert series["samekey_key_conflicts_total" + of_charge] == 1
    assert series["samekey_late_total" + of_charge] == 1
    assert series["samekey_fence_refusals_total" + of_charge] == 1
    assert series["samekey_provider_call_seconds_count" + of_charge] == 1
    assert series["samekey_doubts" + of_charge] == 1
    assert series["samekey_oldest_doubt_seconds" + of_charge] == pytest.approx(7 + LEASE_SECONDS + 1)
    assert series["samekey_old_claims" + of_charge] == 0


def late(guard: Guard, store: MemoryStore, clock: Clock) -> None:
    held = guard.hold("charge", key="late", payload=1, boundary=Repeatable())
    assert isinstance(held, Held)
    clock.advance(LEASE_SECONDS + 1)
    Guard(store).run("charge", lambda: "second", key="late", payload=1, boundary=Repeatable())
    with held:
        held.complete("first")


def test_a_store_that_is_down_is_counted_by_kind():
    registry = CollectorRegistry()
    faulty = FaultyStore(MemoryStore(), [Fault("open", times=2)])
    hook = PrometheusHook(registry)
    with pytest.raises(StoreUnavailable):
        Guard(faulty, hooks=[hook]).run("charge", int, key="o-1", payload=1)
    run = Guard(faulty, policy=Policy(store_down="run"), hooks=[hook])
    assert run.run("charge", int, key="o-1", payload=1).guarded is False
    series = shown(registry)

    assert series['samekey_store_errors_total{kind="unavailable",operation="charge"}'] == 2
    assert series['samekey_unguarded_total{operation="charge"}'] == 1


@pytest.mark.parametrize(
    ("event", "series"),
    [
        ("lease_lost", 'samekey_lease_losses_total{operation="charge"}'),
        ("store_lost_memory", "samekey_store_lost_memory_total"),
        ("not_recorded", 'samekey_store_errors_total{kind="other",operation="charge"}'),
    ],
)
def test_each_event_steps_its_own_series(event, series):
    registry = CollectorRegistry()
    hook = PrometheusHook(registry)
    hook(Event("claimed", "charge", "1a2b3c4d"))
    before = shown(registry)
    hook(Event(event, "charge", "1a2b3c4d"))
    changed = {name for name, value in shown(registry).items() if value != before[name]}

    assert changed == {series}


def test_a_claim_whose_holder_is_gone_is_an_old_one():
    registry, clock = CollectorRegistry(), Clock()
    scene = Scene(MemoryStore(clock), hooks=[PrometheusHook(registry)])
    scene.held()
    before = shown(registry)['samekey_old_claims{operation="charge"}']
    clock.advance(LEASE_SECONDS + 1)

    assert (before, shown(registry)['samekey_old_claims{operation="charge"}']) == (0, 1)


def test_the_gauges_of_an_async_store_are_read_in_its_loop():
    registry, store = CollectorRegistry(), MemoryStore()
    guard = AsyncGuard(AsyncFaultyStore(AsyncMemoryStore(store), ()), hooks=[PrometheusHook(registry)])

    async def fails() -> None:
        raise TimeoutError("?")

    async def main() -> float:
        with pytest.raises(TimeoutError):
            await guard.run("charge", fails, key="o-1", payload=1)
        series = await asyncio.to_thread(shown, registry)
        return series['samekey_doubts{operation="charge"}']

    assert asyncio.run(main()) == 1


def test_a_store_that_does_not_answer_holds_a_scrape_up_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(prometheus, "READ_SECONDS", 0.01)
    registry, go = CollectorRegistry(), threading.Event()

    class Hangs(MemoryStore):
        def list(self, query: Any) -> Any:
            go.wait(5)
            return super().list(query)

    guard = Guard(Hangs(), hooks=[PrometheusHook(registry)])
    guard.run("charge", int, key="o-1", payload=1)
    series = shown(registry)
    go.set()

    assert series['samekey_doubts{operation="charge"}'] == 0


def test_two_guards_on_one_registry_and_one_store_count_a_doubt_once():
    registry, store = CollectorRegistry(), MemoryStore()
    for key in ("a", "b"):
        Scene(store, hooks=[PrometheusHook(registry)]).in_doubt(key)
    kept = [Guard(store, hooks=[PrometheusHook(registry)]) for _ in range(2)]
    for guard in kept:
        guard.run("charge", int, key="c", payload=1)

    assert shown(registry)['samekey_doubts{operation="charge"}'] == 2


def test_operations_made_of_data_are_counted_together(monkeypatch):
    monkeypatch.setattr(prometheus, "OPERATIONS_MAX", 3)
    registry = CollectorRegistry()
    guard = Guard("memory://", hooks=[PrometheusHook(registry)])
    for number in range(10):
        guard.run(f"charge-{number}", int, key="o-1", payload=1)

    assert shown(registry)['samekey_attempts_total{operation="other",outcome="new",source=""}'] == 7
