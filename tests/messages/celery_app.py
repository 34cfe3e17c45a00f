"""The Celery application of the tests. Its effects are counted in a ledger outside of the guard."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from samekey import Guard, Keyed, NotDone, Opaque, Policy, current
from samekey.messages import Rules
from samekey.messages.celery import Visibility, once_task
from samekey.testing.messages.worker import Ledger

BROKER = os.environ.get("LAB_BROKER", "memory://")
FOLDER = os.environ.get("LAB_FOLDER", "/tmp")
VISIBILITY = float(os.environ.get("LAB_VISIBILITY", "60"))

app = Celery("lab", broker=BROKER, backend=os.environ.get("LAB_BACKEND", "cache+memory://"))
app.conf.update(
    broker_transport_options={
        "visibility_timeout": VISIBILITY,
        "unacked_restore_interval": 1,
        **({"confirm_publish": True} if BROKER.startswith("amqp") else {"unacked_restore_throttle": 1}),
    },
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    result_extended=True,
)
if os.environ.get("LAB_STEP", "1") == "1":
    app.steps["consumer"].add(Visibility)

guard = Guard(f"sqlite:///{FOLDER}/keys.db", policy=Policy(lease=3))
ledger = Ledger(FOLDER)
RULES = Rules(backoff=0.2, backoff_max=1.0, later_max=1.0)


def effect(key: str) -> dict[str, Any]:
    do, _, name = ledger.planned(key, len(ledger.lines("begin", key))).partition(":")
    ledger.write("begin", key, do)
    if do == "not_done":
        raise NotDone("busy")
    if do == "error":
        raise RuntimeError("an ordinary failure")
    ledger.write("run", key, current().provider_key())
    if do == "die_after":
        os.kill(os.getpid(), 9)
    if do == "sleep":
        time.sleep(float(name))
    return {"done": key}


@once_task(app, guard, key="key", boundary=Keyed(), name="keyed", rules=RULES)
def keyed(key: str, note: str = "") -> dict[str, Any]:
    return effect(key)


@once_task(app, guard, key="key", boundary=Opaque(), name="opaque", rules=RULES)
def opaque(key: str) -> dict[str, Any]:
    return effect(key)


@once_task(app, guard, key="key", boundary=Keyed(), name="bound", rules=RULES, bind=True)
def bound(self: Any, key: str) -> str:
    effect(key)
    return str(self.name)


@once_task(app, guard, key="key", boundary=Opaque(), name="retries", rules=RULES, bind=True)
def retries(self: Any, key: str) -> None:
    ledger.write("begin", key)
    raise self.retry(countdown=0.2, max_retries=5)


@once_task(app, guard, key="key", boundary=Keyed(), name="limited", rules=RULES, time_limit=3)
def limited(key: str) -> dict[str, Any]:
    return effect(key)


@app.task(name="after")
def after(result: Any, tag: str) -> Any:
    """Plain: it shows that a chain or a chord goes on."""
    ledger.write("after", tag, str(result))
    return result


@app.task(name="plain")
def plain(key: str, seconds: float) -> None:
    """Not guarded: what Celery does by itself."""
    ledger.write("run", key)
    time.sleep(seconds)
