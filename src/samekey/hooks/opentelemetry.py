"""Events as spans, by the OpenTelemetry API: `Guard(hooks=[OpenTelemetryHook()])`.

One span for each attempt, from before its claim to its end. The claim writes the span's `trace_id` and `traceparent`
into the record's attributes. So the span of a replay can link to the span of the attempt that made the record, in
whichever process and trace that one ran. Without an SDK the API makes no spans, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from samekey.core.ports import Event

SPANS_MAX = 10_000  # attempts under way at once; of more, the oldest spans are ended

_TRACEPARENT = "traceparent"
_WRONG = frozenset({"in_doubt", "fenced", "store_down"})
_SILENT = frozenset({"claimed"})  # the beginning of the effect is close to the beginning of the span
_propagator = TraceContextTextMapPropagator()


class OpenTelemetryHook:
    """Spans named `samekey <operation>`, made by the global tracer provider or by the one given."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("samekey", tracer_provider=tracer_provider)
        self._spans: dict[str, Span] = {}  # by traceparent

    def begin(self, operation: str, attributes: Mapping[str, str]) -> dict[str, str]:
        """Called before the claim: what the record shall say about this attempt's trace."""
        parent = None
        if _TRACEPARENT in attributes and trace.get_current_span() is trace.INVALID_SPAN:
            parent = _propagator.extract({_TRACEPARENT: attributes[_TRACEPARENT]})
        span = self._tracer.start_span(f"samekey {operation}", context=parent)
        context = span.get_span_context()
        if not context.is_valid or isinstance(span, NonRecordingSpan):
            return {}
        trace_id = f"{context.trace_id:032x}"
        traceparent = f"00-{trace_id}-{context.span_id:016x}-{context.trace_flags:02x}"
        self._spans[traceparent] = span
        if len(self._spans) > SPANS_MAX:
            self._spans.pop(next(iter(self._spans))).end()
        return {"trace_id": trace_id, _TRACEPARENT: traceparent}

    def __call__(self, event: Event) -> None:
        traceparent = event.attributes.get(_TRACEPARENT)
        span = None if traceparent is None else self._spans.get(traceparent)
        if traceparent is None or span is None:
            return
        if not event.outcome:
            if event.name not in _SILENT:
                span.add_event(f"samekey.{event.name}")
            return
        self._spans.pop(traceparent, None)
        span.set_attributes(_attributes(event))
        first = _context_of(event.first) if event.first else None
        if first is not None:
            span.add_link(first)
        if event.outcome in _WRONG:
            span.set_status(Status(StatusCode.ERROR, event.outcome))
        span.end()


def _attributes(event: Event) -> dict[str, Any]:
    """No key, tenant, payload, result or attribute of the caller: as in a log line."""
    return {
        "samekey.operation": event.operation,
        "samekey.key_digest": event.key_digest,
        "samekey.outcome": event.outcome,
        "samekey.state": event.state,
        "samekey.token": event.token,
        "samekey.error": event.error,
    }


def _context_of(traceparent: str) -> SpanContext | None:
    found = trace.get_current_span(_propagator.extract({_TRACEPARENT: traceparent})).get_span_context()
    return found if found.is_valid else None
