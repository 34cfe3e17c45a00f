"""The logging hook: one line per event, at its level, and nothing in it that belongs to a customer."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from samekey import (
    Asks,
    Conflicting,
    Guard,
    Happened,
    Held,
    InDoubt,
    KeyReused,
    NotDone,
    Opaque,
    Policy,
    Refused,
    Repeatable,
    ResultNotKept,
    StillUnknown,
    StoreUnavailable,
)
from samekey.core.events import EVENTS
from samekey.core.key import make_key
from samekey.core.ports import Event
from samekey.hooks.logging import LoggingHook, SamekeyFilter
from samekey.hooks.opentelemetry import OpenTelemetryHook
from samekey.hooks.prometheus import PrometheusHook
from samekey.stores.memory import MemoryStore
from tests.ops.scene import LEASE_SECONDS, Clock, Scene

CANARIES = {
    "key": "canary-key-1f",
    "tenant": "canary-tenant-2f",
    "payload": "canary-payload-3f",
    "result": "canary-result-4f",
    "error": "canary-error-5f",
}


LEVELS = {
    logging.DEBUG: [
        "claimed",
        "completed",
        "replayed",
        "waited",
        "closed",
        "released",
        "raised",
        "in_progress",
        "looked_up",
        "unguarded",
    ],
    logging.INFO: ["taken_over", "resolved", "key_reused", "lease_lost", "fenced", "abandoned"],
    logging.WARNING: ["in_doubt", "late", "not_kept", "not_recorded", "store_down", "store_unreachable"],
    logging.ERROR: ["conflicting", "store_lost_memory", "unmarked", "unkeyed"],
}
NOT_PLAYED = {"store_lost_memory", "lease_lost", "abandoned", "store_unreachable", "unkeyed", "waited", "in_progress"}
NOT_PLAYED |= {"parked", "late_truth"}  # of workers: tests/doubt


class DeadStore(MemoryStore):
    def carry_out(self, command):
        raise StoreUnavailable(f"cannot reach it; was asked for {command.key}")


class FallenStore(MemoryStore):
    def carry_out(self, command):
        if command.verb == "settle":
            raise StoreUnavailable(f"cannot reach it; was asked for {command.key}")
        return super().carry_out(command)


class Play:
    """Every event there is, with a canary wherever a customer's data may stand."""

    def __init__(self, hooks):
        self.clock = Clock()
        self.store = MemoryStore(self.clock)
        self.hooks = hooks
        self.guard = Guard(self.store, policy=Policy(lease=LEASE_SECONDS), hooks=hooks)

    def run(self, effect, *, key="", guard=None, payload=None, **options):
        return (guard or self.guard).run(
            "charge",
            effect,
            key=f"{CANARIES['key']}{key}",
            payload=payload or {CANARIES["payload"]: CANARIES["payload"]},
            tenant=CANARIES["tenant"],
            attributes={"who": CANARIES["payload"]},
            **options,
        )

    def fail(self, error, **options):
        def effect():
            raise error

        with pytest.raises(type(error)):
            self.run(effect, **options)

    def everything(self):
        result, error = CANARIES["result"], CANARIES["error"]
        self.run(lambda: result)
        self.run(lambda: result)
        self.fail(Refused(error), key="refused")
        with pytest.raises(KeyReused):
            self.run(lambda: result, payload=CANARIES["payload"])
        with pytest.raises(StoreUnavailable):
            self.run(lambda: result, guard=Guard(DeadStore(), hooks=self.hooks))
        self.fail(NotDone(error), key="not done")
        self.fail(TimeoutError(error), key="doubt", boundary=Opaque())
        self.fail(TimeoutError(error), key="again", boundary=Repeatable())
        self.run(lambda: result, key="again", boundary=Repeatable())
        self.asked(lambda record: Happened(result), key="found")
        for number, lookup in enumerate((self.conflicting, self.unknown, self.raising, self.no_verdict)):
            with pytest.raises(InDoubt):
                self.asked(lookup, key=f"asked {number}")
        self.run(lambda: {result: object()}, key="not kept")
        with pytest.raises(ResultNotKept):
            self.run(lambda: result, key="not kept")
        self.run(lambda: result, key="no mark", boundary=Opaque(marked=True))
        self.late()
        self.run(lambda: result, guard=Guard(DeadStore(), policy=Policy(store_down="run"), hooks=self.hooks))
        fallen = Guard(FallenStore(), policy=Policy(lease=0.01), hooks=self.hooks)
        assert self.run(lambda: result, guard=fallen).recorded is False

    def asked(self, lookup, **options):
        boundary = Asks(lookup)
        self.fail(TimeoutError(CANARIES["error"]), boundary=boundary, **options)
        return self.run(pytest.fail, boundary=boundary, **options)

    def conflicting(self, record):
        return Conflicting((CANARIES["result"], CANARIES["result"]))

    def unknown(self, record):
        return StillUnknown(CANARIES["error"])

    def raising(self, record):
        raise RuntimeError(f"{CANARIES['error']} {record.key}")

    def no_verdict(self, record):
        return CANARIES["result"]

    def late(self):
        options: dict[str, Any] = {
            "key": f"{CANARIES['key']}late",
            "payload": {CANARIES["payload"]: CANARIES["payload"]},
            "tenant": CANARIES["tenant"],
            "boundary": Repeatable(),
        }
        held = self.guard.hold("charge", **options)
        assert isinstance(held, Held)
        self.clock.advance(LEASE_SECONDS + 1)
        other = Guard(self.store, hooks=self.hooks)  # of another process: this one's would wait for its own hold
        other.run("charge", lambda: "second", **options)
        with held:
            held.complete(CANARIES["result"])


def everything_in(record):
    whole = logging.Formatter("%(message)s").format(record)
    return f"{whole} {record.args!r} {record.__dict__!r}"


def test_no_line_ever_holds_a_key_payload_result_or_error_text(caplog):
    """Not the hook's lines, and not those the core writes by itself."""
    caplog.set_level(logging.DEBUG)
    Play([LoggingHook()]).everything()

    names = {getattr(record, "samekey_event", "") for record in caplog.records}
    assert names >= EVENTS.keys() - NOT_PLAYED
    assert any(record.name == "samekey" for record in caplog.records)  # the core's own
    for record in caplog.records:
        for what, canary in CANARIES.items():
            assert canary not in everything_in(record), f"a {what} in {record.getMessage()!r}"


def test_no_hook_shows_what_belongs_to_a_customer(caplog):
    """All hooks at once: their log lines, metrics and spans, and the findings they lead to."""
    caplog.set_level(logging.DEBUG)
    registry, exporter, provider = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    play = Play([LoggingHook(), PrometheusHook(registry), OpenTelemetryHook(provider)])
    play.everything()
    spans = exporter.get_finished_spans()
    shown = [everything_in(record) for record in caplog.records]
    shown += [generate_latest(registry).decode(), *(span.to_json() for span in spans)]

    assert len(spans) > 20
    assert 'samekey_attempts_total{operation="charge",outcome="reused",source=""} 1.0' in shown[-len(spans) - 1]
    assert [what for what, canary in CANARIES.items() if any(canary in text for text in shown)] == []


def test_what_needs_a_person_is_logged_without_a_hook(caplog):
    caplog.set_level(logging.DEBUG)
    play = Play([])
    play.everything()
    lines = [record for record in caplog.records if " operation=charge digest=" in record.getMessage()]
    events = {record.getMessage().partition(" operation=")[0].rpartition(": ")[2] for record in lines}

    assert events == {"in_doubt", "late", "not_kept", "not_recorded", "store_down", "conflicting", "unmarked"}
    assert {record.name for record in lines} == {"samekey"}
    assert min(record.levelno for record in lines) == logging.WARNING
    assert [canary for canary in CANARIES.values() for record in lines if canary in everything_in(record)] == []


def test_a_logging_hook_takes_the_place_of_those_lines(caplog):
    """One line for each fact, not two."""
    scene = Scene(MemoryStore(Clock()), hooks=[LoggingHook()])
    scene.in_doubt()

    assert [record.name for record in caplog.records] == ["samekey.events"]


def test_without_any_configuration_they_reach_stderr():
    program = """
from samekey import Guard
def effect():
    raise TimeoutError("canary")
try:
    Guard("memory://").run("charge", effect, key="canary", payload="canary")
except TimeoutError:
    pass
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert ran.stderr.startswith("it is unknown whether the effect happened: in_doubt operation=charge digest=")
    assert ran.stderr.count("\n") == 1
    assert "canary" not in ran.stderr


def test_a_store_that_is_down_does_not_fill_the_log(caplog):
    guard = Guard(DeadStore())
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            guard.run("charge", lambda: "done", key="o-1", payload=1)

    assert 1 <= caplog.text.count("store_down operation=charge") <= 5


def test_the_filter_puts_the_effect_on_the_application_s_own_lines(caplog):
    caplog.handler.addFilter(SamekeyFilter())
    caplog.set_level(logging.INFO)
    own = logging.getLogger("shop")

    def effect():
        own.info("inside")

    attributes = {"request_id": "r-1", "trace_id": "t-1"}
    guard = Guard("memory://")
    guard.run("charge", effect, key="o-1", payload=1, attributes=attributes)
    own.info("outside")
    inside, outside = caplog.records

    digest = make_key("charge", "o-1").short
    assert [getattr(inside, f"samekey_{name}") for name in FIELDS] == ["charge", digest, "r-1", "t-1"]
    assert [getattr(outside, f"samekey_{name}") for name in FIELDS] == [""] * 4


FIELDS = ("operation", "digest", "request_id", "trace_id")


@pytest.mark.parametrize(("level", "name"), [(level, name) for level, names in LEVELS.items() for name in names])
def test_each_event_has_its_level(caplog, level, name):
    caplog.set_level(logging.DEBUG)
    LoggingHook()(Event(name, "charge", "1a2b3c4d", state="started", token=7, attempt="f" * 32))

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("samekey.events", level)
    assert record.getMessage() == f"{name} operation=charge digest=1a2b3c4d state=started token=7 attempt=ffffffff"


def test_the_ordinary_may_be_raised_to_another_level(caplog):
    caplog.set_level(logging.INFO)
    hook = LoggingHook(level=logging.INFO)
    hook(Event("completed", "charge", "1a2b3c4d"))
    hook(Event("conflicting", "charge", "1a2b3c4d"))

    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.ERROR]


def test_another_logger_may_be_given(caplog):
    LoggingHook(logging.getLogger("shop.audit"))(Event("in_doubt", "charge", "1a2b3c4d"))

    assert [record.name for record in caplog.records] == ["shop.audit"]


def test_the_fields_are_there_for_structured_logs(caplog):
    LoggingHook()(Event("in_doubt", "charge", "1a2b3c4d", "acme", "in_doubt", 7, "f" * 32, "TimeoutError"))

    (record,) = caplog.records
    fields = {name: value for name, value in vars(record).items() if name.startswith("samekey_")}
    assert fields == {
        "samekey_event": "in_doubt",
        "samekey_operation": "charge",
        "samekey_digest": "1a2b3c4d",
        "samekey_state": "in_doubt",
        "samekey_token": 7,
        "samekey_attempt": "ffffffff",
        "samekey_outcome": "",
        "samekey_error": "",
        "samekey_seconds": 0,
        "samekey_detail": "TimeoutError",
    }


@pytest.mark.parametrize(
    ("name", "detail", "told"),
    [
        ("in_doubt", "TimeoutError", True),
        ("in_doubt", "the lease ended", True),
        ("conflicting", "2 results", True),
        ("in_doubt", "could not charge card 4242", False),
        ("in_doubt", "x" * 81, False),
        ("in_doubt", "two\nlines", False),
        ("taken_over", "o_1", False),  # may be a key
        ("not_kept", "email", False),  # may be part of a result
    ],
)
def test_a_detail_is_logged_only_where_it_can_be_nothing_but_a_name(caplog, name, detail, told):
    caplog.set_level(logging.DEBUG)
    LoggingHook()(Event(name, "charge", "1a2b3c4d", detail=detail))

    assert (detail in caplog.text) is told
    assert "\n" not in caplog.records[0].getMessage()


def test_a_hook_that_raises_changes_nothing(caplog):
    def broken(event):
        raise RuntimeError("no disk")

    scene = Scene(MemoryStore(Clock()), hooks=[broken, LoggingHook()])

    assert scene.completed().state == "completed"
    assert "a samekey hook raised" in caplog.text
