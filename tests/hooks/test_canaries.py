"""Planted secrets in what a client sends and what a handler answers: none of them is in a log, a metric, a span or a
problem document, with every hook on."""

from __future__ import annotations

import logging
from typing import Any

from flask import Flask, request
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from samekey import Guard, NotDone, Opaque, Refused, current
from samekey.core.notes import notes_of
from samekey.core.ports import Hook, Query
from samekey.core.record import Record
from samekey.hooks.logging import LoggingHook, SamekeyFilter
from samekey.hooks.opentelemetry import OpenTelemetryHook
from samekey.hooks.prometheus import PrometheusHook
from samekey.http import Endpoint
from samekey.http.flask import Samekey
from samekey.stores.memory import MemoryStore

CANARIES = {
    "key": "canary-key-11f",
    "header": "canary-header-12f",
    "cookie": "canary-cookie-13f",
    "query": "canary-query-14f",
    "body": "canary-body-15f",
    "result": "canary-result-16f",
    "error": "canary-error-17f",
    "note": "canary-note-18f",
}


def shop(guard: Guard) -> Any:
    app = Flask("shop")
    app.config["PROPAGATE_EXCEPTIONS"] = False

    @app.post("/charges")
    def charge() -> Any:
        current().note(amount_minor=200, party=CANARIES["note"], memo=CANARIES["note"])
        match request.get_json()["ends"]:
            case "well":
                return {"receipt": CANARIES["result"]}, 201
            case "refused":
                raise Refused(CANARIES["error"])
            case "released":
                raise NotDone(CANARIES["error"])
            case _:
                raise TimeoutError(CANARIES["error"])

    Samekey(app, guard=guard, endpoint=Endpoint(boundary=Opaque(), single_tenant=True))
    app.logger.handlers = [logging.NullHandler()]  # Flask's own line has the traceback of the handler's error
    app.logger.propagate = False
    return app.test_client()


def test_no_secret_of_a_request_is_anywhere_but_in_its_answer(caplog):
    caplog.set_level(logging.DEBUG)
    caplog.handler.addFilter(SamekeyFilter())
    registry, exporter, provider = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hooks: list[Hook] = [LoggingHook(), PrometheusHook(registry), OpenTelemetryHook(provider)]
    guard = Guard(MemoryStore(), hooks=hooks)
    client = shop(guard)

    def post(ends: str, amount: int = 200) -> Any:
        return client.post(
            f"/charges?card={CANARIES['query']}",
            json={"ends": ends, "amount": amount, "card": CANARIES["body"]},
            headers={
                "Idempotency-Key": f"{CANARIES['key']}-{ends}",
                "Authorization": f"Bearer {CANARIES['header']}",
                "Cookie": f"session={CANARIES['cookie']}",
            },
        )

    answers = [post(ends, amount) for ends in ("well", "refused", "released", "lost") for amount in (200, 200, 300)]
    spans = exporter.get_finished_spans()
    shown = [f"{record.getMessage()} {record.__dict__!r}" for record in caplog.records]
    shown += [generate_latest(registry).decode(), *(span.to_json() for span in spans)]
    problems = [
        f"{answer.headers} {answer.text}" for answer in answers if answer.mimetype == "application/problem+json"
    ]

    assert [answer.status_code for answer in answers][:3] == [201, 201, 422]
    assert len(spans) == len(answers)
    assert len(problems) >= 4
    assert CANARIES["note"] in str(
        [notes_of(record) for record in guard.store.list(Query()) if isinstance(record, Record)]
    )
    assert [what for what, canary in CANARIES.items() if any(canary in text for text in shown)] == []
    secrets = [canary for what, canary in CANARIES.items() if what not in ("key", "error")]
    assert [canary for canary in secrets for problem in problems if canary in problem] == []
