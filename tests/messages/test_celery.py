"""Celery on real brokers, with real workers."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord

from samekey import Guard, Keyed, Misconfigured
from samekey.core.parking import ParkedQuery
from samekey.messages.celery import OnceTask, once_task
from samekey.testing.messages.worker import Ledger
from samekey.testing.servers import RabbitMQ, RedisServer, rabbitmq, redis_server

pytestmark = [
    pytest.mark.slow,
    # Sockets of Celery's own clients, which are closed when they are collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 90.0


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server("redis-7") as server:
        yield server


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitMQ]:
    with rabbitmq("4") as server:
        yield server


class Lab:
    """A broker, a folder, and workers that can be killed."""

    def __init__(self, broker: str, backend: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="samekey-celery-", dir="/tmp"))
        self.ledger = Ledger(self.folder)
        self.guard = Guard(f"sqlite:///{self.folder}/keys.db")
        self.guard.check()
        self._broker, self._backend = broker, backend
        self.app = Celery("sender", broker=broker, backend=backend)
        self._workers: list[subprocess.Popen[bytes]] = []

    def plan(self, **steps: list[str]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(steps))

    def worker(self, *, concurrency: int = 1, pool: str = "prefork", **settings: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LAB_BROKER": self._broker,
            "LAB_BACKEND": self._backend,
            "LAB_FOLDER": str(self.folder),
            **settings,
        }
        name = f"w{len(self._workers)}@%h"
        command = [sys.executable, "-m", "celery", "-A", "tests.messages.celery_app", "worker", "-c", str(concurrency)]
        command += [
            "-P",
            pool,
            "-n",
            name,
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "-l",
            "warning",
        ]
        log = open(self.folder / "log", "ab")  # noqa: SIM115 - the worker has it
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self._workers.append(process)
        return process

    def send(self, task: str, *args: Any, **options: Any) -> None:
        self.app.send_task(task, args, ignore_result=True, **options)

    def runs(self, key: str) -> int:
        return len(self.ledger.lines("run", key))

    def provider_keys(self, key: str) -> set[str]:
        return {line[2] for line in self.ledger.lines("run", key)}

    def state(self, task: str, key: str) -> str:
        record = self.guard.peek(task, key)
        return "" if record is None else str(record.state)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                log, ledger = self.folder / "log", self.folder / "ledger"
                told = [path.read_text(errors="replace")[-3000:] for path in (log, ledger) if path.exists()]
                raise AssertionError("\n".join([f"{what} did not happen", *told]))
            time.sleep(0.05)

    def close(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
        self.guard.close()
        gc.collect()  # results unsubscribe when they are deleted, and need the server for it
        self.app.backend.result_consumer.stop()
        self.app.close()


@pytest.fixture
def lab(redis: RedisServer) -> Iterator[Lab]:
    redis.call("FLUSHALL")
    found = Lab(redis.url(), redis.url(1))
    yield found
    found.close()


def test_each_message_is_handled_once_and_chains_go_on(lab: Lab):
    """One worker: duplicates, bind=True, a chain and a chord over replays, errors, retry, a parked doubt."""
    lab.plan(nd=["not_done", "ok"], bad=["error"], twice=["error", "ok"])
    lab.worker()
    for _ in range(3):
        lab.send("keyed", "a")
        lab.send("bound", "b")
    lab.until(lambda: lab.state("keyed", "a") == lab.state("bound", "b") == "completed", "both runs")
    keyed, after = lab.app.signature("keyed", ("a",)), lab.app.signature("after", kwargs={"tag": "chain"})
    chain(keyed, after, app=lab.app).apply_async()
    summed = lab.app.signature("after", kwargs={"tag": "chord"})
    chord([keyed.clone(), keyed.clone()], summed, app=lab.app).apply_async()
    for task, key in (("keyed", "nd"), ("opaque", "bad"), ("keyed", "twice"), ("retries", "r")):
        lab.send(task, key)

    lab.until(lambda: lab.ledger.lines("after", "chain") and lab.ledger.lines("after", "chord"), "chain and chord")
    lab.until(lambda: lab.state("keyed", "nd") == lab.state("keyed", "twice") == "completed", "the second tries")
    lab.until(lambda: len(lab.guard.store.parked(ParkedQuery())) >= 2, "two parked messages")
    parked = {one.operation: one for one in lab.guard.store.parked(ParkedQuery())}
    assert (lab.runs("a"), lab.runs("b"), lab.runs("nd")) == (1, 1, 1)
    assert len(lab.provider_keys("twice")) == 1
    assert lab.ledger.lines("after", "chain")[0][2] == "{'done': 'a'}"
    assert (lab.state("opaque", "bad"), parked["opaque"].key) == ("in_doubt", "bad")
    assert json.loads(parked["opaque"].body) == {"task": "opaque", "args": ["bad"], "kwargs": {}}
    # self.retry() under Opaque: its own message was sent, the record says unknown, and the message parks.
    assert (len(lab.ledger.lines("begin", "r")), lab.state("retries", "r")) == (1, "in_doubt")
    assert parked["retries"].kind == "in doubt"


def test_a_child_that_is_killed_inside_the_lease_is_not_dropped(lab: Lab):
    """The new user's trap: the redelivery comes while the lease lives. The work gets done, under one provider key."""
    lab.plan(a=["die_after", "ok"], hard=["sleep:60", "ok"])
    lab.worker(LAB_VISIBILITY="8")
    lab.send("keyed", "a")
    lab.until(lambda: lab.state("keyed", "a") == "completed", "the second run")
    lab.send("limited", "hard")
    lab.until(lambda: lab.state("limited", "hard") == "completed", "the run after the time limit")

    assert (lab.runs("a"), len(lab.provider_keys("a"))) == (2, 1)
    assert (lab.runs("hard"), len(lab.provider_keys("hard"))) == (2, 1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_and_etas_longer_than_the_visibility_timeout_run_once(lab: Lab, pool: str):
    """With our worker step. Two workers, so that a message that becomes visible is taken at once."""
    lab.plan(long=["sleep:9"])
    for _ in range(2):
        lab.worker(pool=pool, LAB_VISIBILITY="3")
    lab.send("keyed", "long")
    lab.send("keyed", "eta", countdown=9)

    lab.until(lambda: lab.state("keyed", "long") == lab.state("keyed", "eta") == "completed", "both runs")
    assert (lab.runs("long"), lab.runs("eta")) == (1, 1)


def test_a_worker_that_is_killed_whole_is_replaced(lab: Lab):
    lab.plan(a=["sleep:60", "ok"])
    worker = lab.worker(LAB_VISIBILITY="4")
    lab.send("keyed", "a")
    lab.until(lambda: lab.runs("a"), "the first run")
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    lab.worker(LAB_VISIBILITY="4")

    lab.until(lambda: lab.state("keyed", "a") == "completed", "the second run")
    assert (lab.runs("a"), len(lab.provider_keys("a"))) == (2, 1)


def test_on_rabbitmq_killed_children_and_workers_lose_nothing(rabbit: RabbitMQ, redis: RedisServer):
    lab = Lab(rabbit.url, redis.url(1))
    try:
        lab.plan(a=["die_after", "ok"], b=["sleep:60", "ok"])
        worker = lab.worker()
        lab.send("keyed", "a")
        lab.until(lambda: lab.state("keyed", "a") == "completed", "the second run")
        lab.send("keyed", "b")
        lab.until(lambda: lab.runs("b"), "the run of b")
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        lab.worker()
        lab.until(lambda: lab.state("keyed", "b") == "completed", "the second run of b")

        assert [(lab.runs(key), len(lab.provider_keys(key))) for key in "ab"] == [(2, 1), (2, 1)]
        assert lab.guard.store.parked(ParkedQuery()) == []
    finally:
        lab.close()


def test_a_task_that_would_drop_messages_is_refused():
    app = Celery("refused", broker="memory://")
    with Guard("memory://") as guard, pytest.raises(Misconfigured, match="acks_late=True"):

        @once_task(app, guard, key="key", boundary=Keyed(), acks_late=False, lazy=False)
        def charge(key: str) -> None: ...

    @app.task(base=OnceTask, name="bare")
    def bare() -> None: ...

    with pytest.raises(Misconfigured, match="has no rules"):
        bare()
    app.close()


def test_a_guarded_task_that_is_called_directly_is_guarded_too():
    app = Celery("direct", broker="memory://")
    runs: list[str] = []
    with Guard("memory://") as guard:

        @once_task(app, guard, key="key", boundary=Keyed(), name="direct")
        def charge(key: str) -> str:
            runs.append(key)
            return f"charged {key}"

        assert [charge("a"), charge("a")] == ["charged a", "charged a"]
        assert guard.declared()[0].by == "message"
    app.close()
    assert runs == ["a"]
