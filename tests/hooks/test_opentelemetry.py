"""Spans: one for each attempt, and a replay's links to the span of the attempt that made the record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from samekey import AsyncGuard, Guard, InDoubt
from samekey.hooks import opentelemetry
from samekey.hooks.opentelemetry import OpenTelemetryHook
from samekey.stores.memory import AsyncMemoryStore, MemoryStore


class Traced:
    def __init__(self) -> None:
        self.exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.hook = OpenTelemetryHook(self.provider)

    @property
    def spans(self) -> Any:
        return self.exporter.get_finished_spans()


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_a_replay_links_to_the_first_attempt(traced):
    """In another guard, as in another process: the record carries the first one's trace."""
    store = MemoryStore()
    for _ in range(2):
        Guard(store, hooks=[traced.hook]).run("charge", lambda: "done", key="o-1", payload=1)
    first, replay = traced.spans
    record = Guard(store).peek("charge", "o-1")

    assert [span.name for span in traced.spans] == ["samekey charge"] * 2
    assert [span.attributes["samekey.outcome"] for span in traced.spans] == ["new", "replayed"]
    (link,) = replay.links
    assert (link.context.trace_id, link.context.span_id) == (first.context.trace_id, first.context.span_id)
    assert first.links == ()
    assert record is not None
    assert dict(record.attributes)["trace_id"] == f"{first.context.trace_id:032x}"


def test_of_run_many_too(traced):
    guard = Guard("memory://", hooks=[traced.hook])
    for _ in range(2):
        guard.run_many("charge", lambda payload: "done", [{"id": "a"}, {"id": "b"}], key="id")

    assert [len(span.links) for span in traced.spans] == [0, 0, 1, 1]


def test_of_an_async_guard_inside_the_caller_s_span(traced):
    async def done() -> str:
        return "done"

    async def main() -> None:
        guard = AsyncGuard(AsyncMemoryStore(MemoryStore()), hooks=[traced.hook])
        with trace.get_tracer("shop", tracer_provider=traced.provider).start_as_current_span("request"):
            await guard.run("charge", done, key="o-1", payload=1)

    asyncio.run(main())
    attempt, request = traced.spans

    assert attempt.parent.span_id == request.context.span_id


def test_the_trace_of_a_request_goes_on_where_no_span_is_current(traced):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    guard = Guard("memory://", hooks=[traced.hook])
    guard.run("charge", lambda: "done", key="o-1", payload=1, attributes={"traceparent": parent})
    (span,) = traced.spans

    assert f"{span.context.trace_id:032x}" == parent[3:35]


def test_what_happened_on_the_way_is_in_the_span_and_doubt_is_an_error(traced):
    guard = Guard("memory://", hooks=[traced.hook])
    with pytest.raises(ZeroDivisionError):
        guard.run("charge", lambda: 1 / 0, key="o-1", payload=1)
    with pytest.raises(InDoubt):
        guard.run("charge", lambda: 1 / 0, key="o-1", payload=1)
    first, second = traced.spans

    assert [event.name for event in first.events] == ["samekey.in_doubt"]
    assert [span.status.status_code.name for span in traced.spans] == ["ERROR", "ERROR"]
    assert second.attributes["samekey.error"] == "InDoubt"


def test_without_an_sdk_nothing_is_written():
    guard = Guard("memory://", hooks=[OpenTelemetryHook()])
    guard.run("charge", lambda: "done", key="o-1", payload=1)
    record = guard.peek("charge", "o-1")

    assert record is not None
    assert record.attributes == ()


def test_spans_of_attempts_that_never_end_are_bounded(traced, monkeypatch):
    monkeypatch.setattr(opentelemetry, "SPANS_MAX", 3)
    guard = Guard("memory://", hooks=[traced.hook])
    held = [guard.hold("charge", key=key, payload=1) for key in range(10)]

    assert len(traced.hook._spans) == 3
    assert len(traced.spans) == 7
    del held
